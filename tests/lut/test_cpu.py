"""The compiled CPU kernels against the reference: every kernel, odd shapes, ties, all dtypes, both kinds of sums."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import lutetia.nn
from lutetia.errors import ArgumentError, MissingFeatureError, OverflowInSumError
from lutetia.lut import cpu, cpu_memory, cpu_plan, growth, reference, threads
from lutetia.lut.anchors import random_anchors
from lutetia.lut.synapses import SynapseMeta, Synapses

SHAPES = [  # inputs, outputs, detectors, anchor pairs
    (2, 1, 1, 1),
    (5, 3, 2, 2),
    (11, 13, 17, 3),
    (7, 31, 9, 5),
    (13, 10, 8, 7),
    (17, 5, 3, 12),
]
BATCHES = [0, 1, 7, 64, 71]
METAS = (SynapseMeta(), SynapseMeta(lr_scale=0.3, min_weight=-0.5, max_weight=0.7), SynapseMeta(lr_scale=2))


class Case(NamedTuple):
    """A layer, a batch and what `check_detectors` finds in it."""

    x: Tensor
    weight: Tensor
    anchors: Tensor
    grad: Tensor
    found: tuple[Tensor, Tensor, Tensor]

    @property
    def n_rows(self) -> int:
        return 1 << self.anchors.shape[1]

    @property
    def backward(self) -> tuple[Any, ...]:
        """The arguments of propagate_through_detectors_fc."""
        return self.grad, self.weight, *self.found, self.anchors, self.x.shape[1]


def make(batch: int, shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32, ties: bool = False) -> Case:
    """Random tensors; with ties x is made of a few small integers, so margins are often equal and often zero."""
    n_inputs, n_outputs, n_detectors, n_anchors = shape
    generator = torch.Generator().manual_seed(batch * 1000 + n_inputs)
    x = torch.randn(batch, n_inputs, generator=generator, dtype=torch.float64)
    x = (x * 2).round() if ties else x
    weight = torch.randn(n_detectors, 1 << n_anchors, n_outputs, generator=generator, dtype=torch.float64)
    grad = torch.randn(batch, n_outputs, generator=generator, dtype=torch.float64)
    anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed=3)
    x, weight, grad = x.to(dtype), weight.to(dtype), grad.to(dtype)
    return Case(x, weight, anchors, grad, reference.check_detectors(x, anchors))


def sparse(case: Case, layout: str, seed: int = 5) -> tuple[Synapses, Tensor]:
    """Synapses for the case in one of the layouts, and weights for them."""
    n_detectors, n_anchors, n_outputs = case.anchors.shape[0], case.anchors.shape[1], case.grad.shape[1]
    if layout == "blocks":  # two groups of detectors, each with a run of outputs of its own
        half = n_outputs // 2
        edges = [(t, o) for t in range(n_detectors) for o in (range(half) if t % 2 else range(half, n_outputs))]
        synapses = growth.from_edges(n_detectors, n_anchors, n_outputs, edges)
    else:
        shared = layout == "shared"
        synapses = growth.random(n_detectors, n_anchors, n_outputs, 0.4, shared=shared, metas=METAS, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return synapses, torch.randn(synapses.n_weights, generator=generator).to(case.weight.dtype)


def assert_near(actual: Tensor, expected: Tensor, sums: str = "float") -> None:
    """Equal in fixed sums; in float sums to rounding, relative to the largest value."""
    assert actual.dtype == expected.dtype
    if sums == "fixed" or not expected.is_floating_point():
        assert torch.equal(actual, expected)
    else:
        rtol = 1e-10 if expected.dtype == torch.float64 else 1e-5
        assert_close(actual, expected, rtol=rtol, atol=rtol * float(expected.abs().max() if expected.numel() else 0))


def both(name: str, *args: Any, sums: str = "float", **options: Any) -> None:
    """Run a kernel of both backends and compare everything it returns."""
    actual = getattr(cpu, name)(*args, sums=sums, **options)
    expected = getattr(reference, name)(*args, sums=sums, **options)
    if isinstance(expected, Tensor):
        actual, expected = (actual,), (expected,)
    for a, e in zip(actual, expected, strict=True):
        assert_near(a, e, sums)


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Share out even the smallest work over three threads."""
    monkeypatch.setattr(threads, "SMALLEST_SHARE", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


# ---- detect ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_detectors_find_what_the_reference_finds(batch: int, ties: bool) -> None:
    for shape in SHAPES:
        case = make(batch, shape, ties=ties)
        for actual, expected in zip(cpu.check_detectors(case.x, case.anchors), case.found, strict=True):
            assert torch.equal(actual, expected)
            assert actual.dtype == expected.dtype
        assert torch.equal(cpu.check_detectors_eval(case.x, case.anchors), case.found[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_detectors_take_every_dtype(dtype: torch.dtype) -> None:
    case = make(71, SHAPES[2], dtype)
    for actual, expected in zip(cpu.check_detectors(case.x, case.anchors), case.found, strict=True):
        assert torch.equal(actual, expected)
        assert actual.dtype == expected.dtype


def test_detectors_take_leading_dimensions_and_infinite_margins() -> None:
    case = make(60, SHAPES[2])
    x = case.x.clone()
    x[3], x[5, :2], x[50] = float("inf"), -float("inf"), torch.arange(11) * 1e38
    for rows in (x.view(3, 4, 5, -1), x[50:52]):
        found, expected = cpu.check_detectors(rows, case.anchors), reference.check_detectors(rows, case.anchors)
        assert torch.equal(found[0], expected[0])
        finite = ~expected[1].isnan()  # inf - inf: a margin that is not a number is nobody's smallest
        assert torch.equal(found[1][finite], expected[1][finite])
        assert torch.equal(found[2][finite], expected[2][finite])


# ---- full connectivity -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("batch", BATCHES)
def test_full_connectivity(batch: int, sums: str) -> None:
    for shape in SHAPES:
        case = make(batch, shape, ties=batch == 64)
        both("fill_outputs_fc", case.weight, case.found[0], sums=sums)
        both("detect_and_fill_eval_fc", case.x, case.weight, case.anchors, sums=sums)
        both("detect_and_fill_fc", case.x, case.weight, case.anchors, sums=sums)
        both("propagate_through_detectors_fc", *case.backward, sums=sums)
        both("gather_weight_gradients_fc", case.grad, case.found[0], case.n_rows, meta=METAS[1], sums=sums)
        both("gather_weight_rows_fc", case.grad, case.found[0], case.n_rows, meta=METAS[1], sums=sums)


@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_float64(sums: str) -> None:
    case = make(7, SHAPES[2], torch.float64)
    both("detect_and_fill_eval_fc", case.x, case.weight, case.anchors, sums=sums)
    both("fill_outputs_fc", case.weight, case.found[0], sums=sums)
    both("propagate_through_detectors_fc", *case.backward, sums=sums)
    both("gather_weight_gradients_fc", case.grad, case.found[0], case.n_rows, meta=METAS[1], sums=sums)


def test_halves() -> None:
    case = make(7, SHAPES[2], torch.bfloat16)
    both("detect_and_fill_eval_fc", case.x, case.weight, case.anchors)
    both("propagate_through_detectors_fc", *case.backward)
    both("gather_weight_gradients_fc", case.grad, case.found[0], case.n_rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_is_decoded(dtype: torch.dtype) -> None:
    """One detector of 256 rows of 256 weights, which are all there are: subnormal, infinite, not a number."""
    weight = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    y = cpu.fill_outputs_fc(weight.view(1, 256, 256), torch.arange(256, dtype=torch.int32)[:, None])
    assert_close(y.flatten(), weight.float(), rtol=0, atol=0, equal_nan=True)


def test_wide_inputs_and_narrow_weights() -> None:
    case, wide = make(7, SHAPES[2]), make(7, SHAPES[2], torch.float64)
    both("detect_and_fill_eval_fc", wide.x, case.weight, case.anchors)
    both("propagate_through_detectors_fc", wide.grad, case.weight, *wide.found, case.anchors, 11)


def test_what_is_not_contiguous_or_wants_gradients() -> None:
    case = make(7, SHAPES[2])
    x = torch.randn(11, 14).t()[::2]
    weight = case.weight.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    grad = torch.ones(1, 13).expand(7, 13)
    found = [tensor.t().contiguous().t() for tensor in reference.check_detectors(x, case.anchors)]
    assert not any(tensor.is_contiguous() for tensor in (x, weight, grad, *found))
    with torch.no_grad():
        both("detect_and_fill_eval_fc", x, weight, case.anchors)
        both("detect_and_fill_fc", x, weight, case.anchors)
        both("propagate_through_detectors_fc", grad, weight, *found, case.anchors, 11)
        both("gather_weight_gradients_fc", grad, found[0].long(), 8)


# ---- sparse connectivity ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("layout", ["general", "shared", "blocks"])
def test_sparse_connectivity(layout: str, sums: str) -> None:
    for batch, shape in [(0, SHAPES[2]), (1, SHAPES[0]), (7, SHAPES[1]), (64, SHAPES[3]), (71, SHAPES[4]), (7, SHAPES[5])]:
        case = make(batch, shape)
        synapses, weight = sparse(case, layout)
        grad, _, *rest = case.backward
        both("fill_outputs_sparse", weight, case.found[0], synapses, sums=sums)
        both("detect_and_fill_eval_sparse", case.x, weight, case.anchors, synapses, sums=sums)
        both("detect_and_fill_sparse", case.x, weight, case.anchors, synapses, sums=sums)
        both("propagate_through_detectors_sparse", grad, weight, *rest, synapses, sums=sums)
        both("gather_weight_gradients_sparse", grad, case.found[0], synapses, sums=sums)
        both("gather_weight_rows_sparse", grad, case.found[0], synapses, sums=sums)


def test_a_detector_without_synapses() -> None:
    case = make(7, SHAPES[1])
    for edges in ([(1, 2)], [(1, 0, 2), (1, 3, 0)]):
        synapses = growth.from_edges(2, 2, 3, edges)
        weight = torch.randn(synapses.n_weights)
        grad, _, *rest = case.backward
        both("detect_and_fill_eval_sparse", case.x, weight, case.anchors, synapses)
        both("propagate_through_detectors_sparse", grad, weight, *rest, synapses)
        both("gather_weight_gradients_sparse", grad, case.found[0], synapses)
        both("gather_weight_rows_sparse", grad, case.found[0], synapses)


# ---- the several ways to the same sums -------------------------------------------------------------------------------

WAYS = {  # batch, (inputs, outputs, detectors, anchor pairs): which way the loops go
    "sorted by row": (67, (9, 131, 5, 3)),
    "sorted, most rows never hit": (80, (2, 128, 3, 5)),
    "four tables and three": (23, (9, 10, 7, 4)),
    "far from the cache": (5, (9, 67, 3, 13)),
    "far, more than a handful": (131, (9, 67, 9, 11)),
    "far and wide": (3, (11, 300, 17, 8)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_through_the_tables(way: str, dtype: torch.dtype) -> None:
    case = make(*WAYS[way], dtype)
    indices, weight = case.found[0], case.weight
    both("detect_and_fill_eval_fc", case.x, weight, case.anchors)
    both("detect_and_fill_fc", case.x, weight, case.anchors)
    both("propagate_through_detectors_fc", *case.backward)
    both("gather_weight_gradients_fc", case.grad, indices, case.n_rows, meta=METAS[1])
    both("gather_weight_rows_fc", case.grad, indices, case.n_rows, meta=METAS[1])
    into = {"external_lr": 0.3, "meta": METAS[2]}
    stepped = [
        k.gather_weight_gradients_fc(case.grad, indices, case.n_rows, weight=weight.clone(), **into) for k in (cpu, reference)
    ]
    assert_near(*stepped)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("layout", ["general", "shared", "blocks"])
def test_wide_sparse_layers_in_parts(layout: str) -> None:
    case = make(67, (9, 311, 5, 3))
    synapses, weight = sparse(case, layout)
    both("detect_and_fill_eval_sparse", case.x, weight, case.anchors, synapses)
    both("gather_weight_gradients_sparse", case.grad, case.found[0], synapses)


@pytest.mark.parametrize("shape", [(9, 1, 16, 3), (32, 33, 16, 6), (7, 10, 31, 9)])
def test_bags_add_up_the_same_rows(shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(71, shape)
    used = []
    bag = cpu.embedding_bag
    monkeypatch.setattr(cpu, "embedding_bag", lambda *args, **options: used.append(1) or bag(*args, **options))
    monkeypatch.setattr(cpu_plan, "A_CALL", 1)
    both("detect_and_fill_eval_fc", case.x, case.weight, case.anchors)
    both("detect_and_fill_eval_fc", case.x, case.weight.transpose(0, 1).contiguous().transpose(0, 1), case.anchors)
    y = cpu.detect_and_fill_eval_fc(case.x, case.weight.requires_grad_(), case.anchors)
    assert len(used) == 3
    assert not y.requires_grad
    case.weight.requires_grad_(False)
    both("detect_and_fill_eval_fc", case.x, case.weight, case.anchors, sums="fixed")
    both("detect_and_fill_eval_fc", case.x.double(), case.weight, case.anchors)
    both("detect_and_fill_eval_fc", case.x[:0], case.weight, case.anchors)
    assert len(used) == 3  # bags round as they please, add in the dtype of the table, and take no empty batch


# ---- memory of gradients ---------------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep the memory of the smallest gradients; the list of what is kept."""
    monkeypatch.setattr(cpu_memory, "KEPT_BY_MALLOC", 0)
    monkeypatch.setattr(cpu_memory, "_kept", [])
    return cpu_memory._kept


@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("layout", ["full", "general", "shared", "blocks"])
def test_memory_that_was_used_before_is_cleared(layout: str, sums: str, kept: list[Any]) -> None:
    for batch in (7, 64, 0, 71):
        case = make(batch, SHAPES[3])
        if layout == "full":
            both("gather_weight_gradients_fc", case.grad, case.found[0], case.n_rows, sums=sums)
        else:
            both("gather_weight_gradients_sparse", case.grad, case.found[0], sparse(case, layout)[0], sums=sums)
    assert len(kept) == 1


def test_a_gradient_that_is_held_stays(kept: list[Any]) -> None:
    case = make(7, SHAPES[3])
    gather = lambda grad: cpu.gather_weight_gradients_fc(grad, case.found[0], case.n_rows)  # noqa: E731
    first, row = gather(case.grad), gather(2 * case.grad)[1]
    expected, third = first.clone(), gather(3 * case.grad)
    assert torch.equal(first, expected)
    assert torch.equal(row, 2 * expected[1])
    assert len(kept) == 3
    array = third.numpy()
    del first, row, third
    again = gather(case.grad)
    assert_near(again, expected)
    assert_near(torch.from_numpy(array), 3 * expected)
    assert len(kept) == 3
    assert gather(case.grad.double()).dtype == torch.float64
    assert len(kept) == 4


def test_no_more_memory_is_kept_than_allowed(kept: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(7, SHAPES[2])
    size = case.weight.numel() * 4
    monkeypatch.setattr(cpu_memory, "KEPT_HERE", 2 * size)
    held = [cpu.gather_weight_gradients_fc(case.grad, case.found[0], case.n_rows) for _ in range(5)]
    assert sum(block.memory.nbytes for block in kept) == 2 * size
    assert all(torch.equal(gradient, held[0]) for gradient in held)
    monkeypatch.setattr(cpu_memory, "KEPT_HERE", size - 1)
    both("gather_weight_gradients_fc", case.grad, case.found[0], case.n_rows)
    both("gather_weight_gradients_fc", case.grad.double(), case.found[0], case.n_rows)
    assert not kept


def test_a_training_step_uses_the_memory_of_the_last(kept: list[Any]) -> None:
    layer = lutetia.nn.LUT(9, 131, 5, 3, seed=1)
    for _ in range(3):
        x = torch.randn(67, 9, requires_grad=True)
        gradients = []
        for backend in ("cpu", "reference"):
            with lutetia.lut.use_backend(backend):
                layer.zero_grad()
                x.grad = None
                layer(x).square().sum().backward()
                gradients.append((x.grad, layer.weight.grad.clone()))
        for actual, expected in zip(*gradients, strict=True):
            assert_near(actual, expected)
    assert len(kept) == 1


# ---- the step in place -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_in_place_is_a_dense_step(dtype: torch.dtype, sums: str) -> None:
    case = make(71, SHAPES[2], dtype)
    weight = case.weight.clone()
    options: dict[str, Any] = {"meta": METAS[1], "sums": sums}
    dense = reference.gather_weight_gradients_fc(case.grad, case.found[0], case.n_rows, **options)
    expected = (weight - 0.1 * dense).clamp(-0.5, 0.7).to(dtype)
    version = weight._version
    args = (case.grad, case.found[0], case.n_rows)
    assert cpu.gather_weight_gradients_fc(*args, external_lr=0.1, weight=weight, **options) is weight
    assert weight._version > version
    assert_near(weight, expected, sums if dtype != torch.bfloat16 else "fixed")


@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("layout", ["general", "shared", "blocks"])
def test_in_place_with_several_metas(layout: str, sums: str) -> None:
    case = make(71, SHAPES[2])
    synapses, weight = sparse(case, layout)
    dense = reference.gather_weight_gradients_sparse(case.grad, case.found[0], synapses, sums=sums)
    expected = synapses.clamp_(weight - 0.1 * dense)
    cpu.gather_weight_gradients_sparse(case.grad, case.found[0], synapses, external_lr=0.1, weight=weight, sums=sums)
    assert_near(weight, expected, sums)


def test_in_place_on_a_leaf_that_is_not_contiguous() -> None:
    case = make(7, SHAPES[2])
    weight = case.weight.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    args = (case.grad, case.found[0], case.n_rows)
    expected = case.weight - 0.1 * reference.gather_weight_gradients_fc(*args)
    cpu.gather_weight_gradients_fc(*args, external_lr=0.1, weight=weight)
    assert_near(weight.detach(), expected)


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
        monkeypatch.setattr(threads, "in_parts", lambda kernel: None)
    monkeypatch.setattr(threads, "forked", launch == "python without openmp")
    case = make(71, SHAPES[2])
    actual = everything(case)
    torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(actual, everything(case), strict=True))


@pytest.mark.usefixtures("in_parts")
def test_every_kernel_has_its_launch_compiled() -> None:
    for kernel in ("detect", "fill", "propagate", "gather"):
        assert threads.in_parts(getattr(cpu.compiled(), kernel)) is getattr(cpu.compiled(), f"{kernel}_in_parts")
    for kernel in ("fill_general", "propagate_general", "gather_general"):
        assert threads.in_parts(getattr(cpu.compiled_general(), kernel)) is not None
    assert threads.in_parts(cpu.compiled().largest) is None


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
    for module in ("numba_basics", "numba_kernels"):
        monkeypatch.delitem(sys.modules, f"lutetia.lut.{module}", raising=False)
        monkeypatch.delattr(f"lutetia.lut.{module}", raising=False)
    cpu.compiled.cache_clear()
    with pytest.raises(MissingFeatureError, match=r"the cpu backend of lutetia.lut needs numba"):
        cpu.detect_and_fill_eval_fc(case.x, case.weight, case.anchors)
    monkeypatch.undo()
    cpu.compiled.cache_clear()
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
    with pytest.raises(ArgumentError, match="expected 0 to 3"):
        cpu.check_detectors(case.x[:, :4], anchors)
    with pytest.raises(ArgumentError, match=r"grad is .* expected shape"):
        cpu.gather_weight_gradients_fc(grad[:3], indices, 8)
    with pytest.raises(ArgumentError, match="anchors of 17 detectors with 8 rows each"):
        cpu.detect_and_fill_eval_fc(case.x, weight, make(7, SHAPES[3]).anchors)
    with pytest.raises(ArgumentError, match="indices is int32"):
        cpu.fill_outputs_fc(weight, indices[:, :5])
    synapses, flat = sparse(case, "shared")
    with pytest.raises(ArgumentError, match=r"weight is .* weights"):
        cpu.fill_outputs_sparse(flat[1:], indices, synapses)


def test_anchors_that_change_are_checked_again() -> None:
    case = make(1, SHAPES[2])
    anchors = case.anchors.clone()
    assert torch.equal(cpu.check_detectors_eval(case.x, anchors), case.found[0])
    anchors[3, 1, 0] = 11
    with pytest.raises(ArgumentError, match="expected 0 to 10"):
        cpu.check_detectors_eval(case.x, anchors)
    anchors.copy_(case.anchors.flip(0))
    assert torch.equal(cpu.check_detectors_eval(case.x, anchors), case.found[0].flip(1))
    gone = weakref.ref(anchors)
    del anchors
    gc.collect()
    assert gone() is None
