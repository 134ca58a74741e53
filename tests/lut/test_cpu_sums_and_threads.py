"""The compiled CPU kernels: sums in fixed point, threads and processes, and arguments they refuse."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lut.cpu_cases import SHAPES, Case, both, cpu, make, reference, sparse
from lutetia._shared import threads
from lutetia.errors import ArgumentError, MissingFeatureError, OverflowInSumError
from lutetia.lut import growth
from lutetia.lut.kernels.cpu import plan

# ---- fixed sums ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["full", "general", "shared"])
@pytest.mark.usefixtures("in_parts")
def test_fixed_sums_depend_on_neither_threads_nor_order(layout: str) -> None:
    case = make(71, SHAPES[2])
    order = torch.randperm(71, generator=torch.Generator().manual_seed(0))
    extra: tuple[Any, ...] = ()
    for_weight: tuple[Any, ...] = (case.n_rows,)
    kind, weight = "fc", case.weight
    if layout != "full":
        synapses, weight = sparse(case, layout)
        kind, extra, for_weight = "sparse", (synapses,), (synapses,)

    def run(rows: Tensor) -> list[Tensor]:
        found, grad = [tensor[rows] for tensor in case.found], case.grad[rows]
        y = getattr(cpu, f"fill_outputs_{kind}")(weight, found[0], *extra, sums="fixed")
        propagate = getattr(cpu, f"propagate_through_detectors_{kind}")
        dx = propagate(grad, weight, *found, case.anchors, 11, *extra, sums="fixed")
        dw = getattr(cpu, f"gather_weight_gradients_{kind}")(grad, found[0], *for_weight, sums="fixed")
        return [y[rows.argsort()], dx[rows.argsort()], dw]

    first = None
    for n_threads in (1, 2, 3):
        torch.set_num_threads(n_threads)
        for rows in (torch.arange(71), order):
            results = run(rows)
            first = first or results
            assert all(torch.equal(a, b) for a, b in zip(results, first, strict=True))


@pytest.mark.parametrize("bad", [3000.0, -3000.0, float("nan"), float("inf"), 1500.0])
@pytest.mark.parametrize("layout", ["full", "general", "shared"])
def test_overflow_is_found(bad: float, layout: str) -> None:
    """An addend past the range of 2048, or two addends of 1500, whose sum is."""
    case = make(7, (5, 3, 2, 2))
    grad, weight, x, found = torch.full_like(case.grad, bad), torch.full_like(case.weight, bad), case.x, case.found
    extra: tuple[Any, ...] = ()
    for_weight: tuple[Any, ...] = (4,)
    kind = "fc"
    if layout != "full":
        edges = [(t, o) for t in range(2) for o in range(3)]
        synapses = growth.from_edges(2, 2, 3, edges)
        synapses = synapses if layout == "shared" else synapses.to_general()
        kind, extra, for_weight, weight = "sparse", (synapses,), (synapses,), weight.flatten()
    with pytest.raises(OverflowInSumError):
        getattr(cpu, f"fill_outputs_{kind}")(weight, found[0], *extra, sums="fixed")
    with pytest.raises(OverflowInSumError):
        getattr(cpu, f"detect_and_fill_eval_{kind}")(x, weight, case.anchors, *extra, sums="fixed")
    propagate = getattr(cpu, f"propagate_through_detectors_{kind}")
    with pytest.raises(OverflowInSumError):
        propagate(grad, weight, *found, case.anchors, 5, *extra, sums="fixed")
    before = weight.clone()
    for step in ({}, {"external_lr": 0.1, "weight": weight}):
        with pytest.raises(OverflowInSumError):
            getattr(cpu, f"gather_weight_gradients_{kind}")(grad, found[0], *for_weight, sums="fixed", **step)
    assert_close(weight, before, rtol=0, atol=0, equal_nan=True)
    getattr(cpu, f"fill_outputs_{kind}")(weight.clamp(-1, 1).nan_to_num(), found[0], *extra, sums="fixed")


def test_the_rescaler_widens_the_range() -> None:
    case = make(7, (5, 3, 2, 2))
    options: dict[str, Any] = {"sums": "fixed", "int_rescaler": 0.001}
    actual = cpu.fill_outputs_fc(case.weight * 5000, case.found[0], **options)
    assert torch.equal(actual, reference.fill_outputs_fc(case.weight * 5000, case.found[0], **options))


# ---- threads and processes -------------------------------------------------------------------------------------------


def everything(case: Case) -> list[Tensor]:
    """The results of one training step, in fixed sums."""
    y = cpu.fill_outputs_fc(case.weight, case.found[0], sums="fixed")
    dx = cpu.propagate_through_detectors_fc(*case.backward, sums="fixed")
    return [
        *cpu.check_detectors(case.x, case.anchors),
        y,
        dx,
        cpu.gather_weight_gradients_fc(case.grad, case.found[0], case.n_rows),
    ]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("launch", ["compiled", "python", "python without openmp"])
def test_kernels_run_in_parts(launch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if launch != "compiled":
        for file, name in (("detect", "detect"), ("rows", "fill"), ("rows", "propagate"), ("gather", "gather")):
            monkeypatch.setattr(plan.loop(file, name), "in_parts", None)
    monkeypatch.setattr(threads, "forked", launch == "python without openmp")
    case = make(71, SHAPES[2])
    actual = everything(case)
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(actual, everything(case), strict=True))


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("forked", [False, True])
def test_the_parts_cover_the_range(forked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "forked", forked)
    calls: list[tuple[Any, ...]] = []

    def kernel(*call: Any) -> bool:
        calls.append(call)
        if call == ("raise", 6, 10):
            raise IndexError("the last part")
        return call == ("overflow", 3, 6)

    assert threads.over(10, 100, kernel, "a") == 0
    assert calls[0] == ("a", 0, 0)  # to compile it, if need be
    assert sorted(calls[1:]) == [("a", 0, 3), ("a", 3, 6), ("a", 6, 10)]
    assert threads.over(10, 100, kernel, "overflow") == threads.OVERFLOW
    with pytest.raises(IndexError, match="the last part"):
        threads.over(10, 100, kernel, "raise")
    calls.clear()
    assert threads.over(0, 0, kernel) == 0
    assert calls == [(0, 0)]


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("bad_row", [0, 35, 70])
def test_an_overflow_in_any_part_is_found(bad_row: int) -> None:
    case = make(71, SHAPES[2])
    grad = case.grad.clone()
    grad[bad_row, 5] = float("nan")
    cpu.propagate_through_detectors_fc(*case.backward, sums="fixed")
    with pytest.raises(OverflowInSumError):
        cpu.propagate_through_detectors_fc(grad, *case.backward[1:], sums="fixed")


@pytest.mark.usefixtures("in_parts")
def test_kernels_called_from_several_python_threads() -> None:
    cases = [make(71 + i, SHAPES[2]) for i in range(8)]
    expected = [everything(case) for case in cases]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for actual, wanted in zip(pool.map(everything, cases), expected, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(actual, wanted, strict=True))


def in_child(case: Case, expected: list[Tensor]) -> None:
    """What the forked process of the next test does; its exit code is the answer."""
    threads.SMALLEST_SHARE = 1
    same = all(torch.equal(a, b) for a, b in zip(everything(case), expected, strict=True))
    os._exit(0 if same else 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("in_parts")
def test_kernels_in_a_forked_child() -> None:
    """A child has none of its parent's threads; a kernel must not wait for them."""
    case = make(71, SHAPES[2])
    expected = everything(case)
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(case, expected))
    child.start()
    child.join(30)
    code = child.exitcode
    child.kill()
    assert code == 0


def test_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(1, SHAPES[0])
    monkeypatch.setitem(sys.modules, "numba", None)
    for module in ("basics", "detect", "rows"):
        monkeypatch.delitem(sys.modules, f"lutetia.lut.kernels.cpu.loops.{module}", raising=False)
        monkeypatch.delattr(sys.modules["lutetia.lut.kernels.cpu.loops"], module, raising=False)
    plan.loop.cache_clear()
    with pytest.raises(MissingFeatureError, match=r"the cpu backend of lutetia.lut needs numba"):
        cpu.detect_and_fill_eval_fc(case.x, case.weight, case.anchors)
    monkeypatch.undo()
    plan.loop.cache_clear()
    both("detect_and_fill_eval_fc", case.x, case.weight, case.anchors)


# ---- bad arguments ---------------------------------------------------------------------------------------------------


def test_what_would_read_outside_a_table_is_refused() -> None:
    case = make(7, SHAPES[2])
    grad, weight, indices, min_delta, which, anchors, n_inputs = case.backward
    with pytest.raises(ArgumentError, match="indices are from 8 to 8, expected 0 to 7"):
        cpu.fill_outputs_fc(weight, torch.full_like(indices, 8))
    with pytest.raises(ArgumentError, match="indices are from -1 to -1"):
        cpu.gather_weight_gradients_fc(grad, torch.full_like(indices, -1), 8)
    with pytest.raises(ArgumentError, match="min_delta_index are from 3 to 3, expected 0 to 2"):
        cpu.propagate_through_detectors_fc(grad, weight, indices, min_delta, which * 0 + 3, anchors, n_inputs)
    with pytest.raises(ArgumentError, match="expected inputs from 0 to 3"):
        cpu.check_detectors(case.x[:, :4], anchors)
    with pytest.raises(ArgumentError, match=r"grad is .* expected shape"):
        cpu.gather_weight_gradients_fc(grad[:3], indices, 8)
    with pytest.raises(ArgumentError, match=r"anchors is .* expected shape \[17, N_c, 2\]"):
        cpu.detect_and_fill_eval_fc(case.x, weight, make(7, SHAPES[3]).anchors)
    with pytest.raises(ArgumentError, match="indices is int32"):
        cpu.fill_outputs_fc(weight, indices[:, :5])
    synapses, flat = sparse(case, "shared")
    with pytest.raises(ArgumentError, match=r"weight is .* expected shape \[648\]"):
        cpu.fill_outputs_sparse(flat[1:], indices, synapses)


def test_anchors_that_change_are_checked_again() -> None:
    case = make(1, SHAPES[2])
    anchors = case.anchors.clone()
    assert torch.equal(cpu.check_detectors_eval(case.x, anchors), case.found[0])
    anchors[3, 1, 0] = 11
    with pytest.raises(ArgumentError, match="expected inputs from 0 to 10"):
        cpu.check_detectors_eval(case.x, anchors)
    anchors.copy_(case.anchors.flip(0))
    assert torch.equal(cpu.check_detectors_eval(case.x, anchors), case.found[0].flip(1))
    gone = weakref.ref(anchors)
    del anchors
    gc.collect()
    assert gone() is None
