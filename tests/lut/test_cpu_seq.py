"""What only the compiled CPU kernels for sequences can get wrong: blocks, threads, steps in place. See test_kernels.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lut.cpu_cases import assert_near, cpu, reference
from lut.oracle import make_sequence
from lutetia.errors import ArgumentError, OverflowInSumError
from lutetia.lut import growth
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.connectivity.synapses import Synapses
from lutetia.lut.kernels.cpu import sequences
from lutetia.lut.kernels.cpu.loops import pairs as loops

# B, S, I, O, N_t, N_c, N_pe
SHAPES = [
    (1, 1, 3, 2, 1, 1, 0), (3, 2, 4, 3, 2, 1, 1), (1, 3, 5, 1, 1, 2, 3), (3, 17, 7, 13, 5, 3, 2),
    (1, 64, 11, 7, 3, 4, 3), (3, 17, 6, 5, 2, 5, 4), (1, 129, 5, 11, 2, 2, 0), (3, 64, 5, 3, 2, 1, 0),
]  # fmt: skip
SMALL = (3, 17, 7, 13, 5, 3, 2)
ALGORITHMS = {
    "pairs": ("fill_outputs_seq_fc", "propagate_through_detectors_seq_fc", "gather_weight_gradients_seq_fc"),
    "cells": ("fill_outputs_cells_fc", "propagate_through_cells_fc", "gather_weight_gradients_cells_fc"),
}
METAS = (SynapseMeta(), SynapseMeta(lr_scale=0.3, min_weight=-0.5, max_weight=0.7), SynapseMeta(lr_scale=2.0))


class Case(NamedTuple):
    """A layer, a batch of sequences, and what the detectors find in it."""

    x: Tensor
    positions: Tensor
    weight: Tensor
    anchors: Tensor
    grad: Tensor
    found: tuple[Tensor, Tensor, Tensor]
    pe: tuple[Tensor, Tensor, Tensor]

    @property
    def positional_dim(self) -> int:
        return self.positions.shape[2]

    @property
    def forward(self) -> tuple[Any, ...]:
        return self.weight, self.found[0], self.pe[0], self.positional_dim

    @property
    def backward(self) -> tuple[Any, ...]:
        return self.grad, self.weight, *self.found, *self.pe, self.anchors, self.x.shape[2], self.positional_dim

    @property
    def to_weights(self) -> tuple[Any, ...]:
        return self.grad, self.found[0], self.pe[0], self.positional_dim, self.weight.shape[1]


def make(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Case:
    """Half of the positions of x hold small integers, and those of the parameter halves: ties and exact zeros are common."""
    given = make_sequence(shape)
    x, positions, weight, grad = (given[name].to(dtype) for name in ("x", "positions", "weight", "grad"))
    anchors = given["anchors"]
    found, pe = reference.check_detectors(x, anchors), reference.check_positions(positions)
    return Case(x, positions, weight, anchors, grad, found, pe)


def sparse(case: Case, layout: str) -> tuple[Synapses, Tensor]:
    """Synapses for the case in one of the layouts, and weights for them."""
    n_detectors, n_rows, n_outputs = case.weight.shape
    bits = n_rows.bit_length() - 1
    if layout == "blocks":  # each detector reaches a run of outputs, the last one none at all
        edges = [(t, o) for t in range(n_detectors - 1) for o in range(t, min(t + 5, n_outputs))]
        synapses = growth.from_edges(n_detectors, bits, n_outputs, edges)
    else:
        synapses = growth.random(n_detectors, bits, n_outputs, 0.4, shared=layout == "shared", metas=METAS, seed=5)
    return synapses, torch.randn(synapses.n_weights, generator=torch.Generator().manual_seed(5))


def run(module: Any, case: Case, algorithm: str = "pairs", **options: Any) -> list[Tensor]:
    """y, dx, dpositions and dW."""
    fill, propagate, gather = (getattr(module, name) for name in ALGORITHMS[algorithm])
    y, (dx, dpositions) = fill(*case.forward, **options), propagate(*case.backward, **options)
    return [y, dx, dpositions, gather(*case.to_weights, meta=METAS[1], **options)]


def run_sparse(module: Any, case: Case, synapses: Synapses, weight: Tensor, **options: Any) -> list[Tensor]:
    """The same where synapses are missing."""
    y = module.fill_outputs_seq_sparse(weight, *case.forward[1:], synapses, **options)
    backward = (case.grad, weight, *case.backward[2:], synapses)
    dx, dpositions = module.propagate_through_detectors_seq_sparse(*backward, **options)
    return [y, dx, dpositions, module.gather_weight_gradients_seq_sparse(*case.to_weights[:4], synapses, **options)]


def compare(actual: list[Tensor], expected: list[Tensor], sums: str = "float") -> None:
    for a, e in zip(actual, expected, strict=True):
        assert_near(a, e, sums)


# ---- several ways to the same sums -----------------------------------------------------------------------------------


def test_positions_in_half_precision() -> None:
    positions = make((1, 65, 3, 1, 5, 2, 3)).positions.bfloat16()
    compare(list(cpu.check_positions(positions)), list(reference.check_positions(positions)), "fixed")
    assert torch.equal(cpu.check_positions_eval(positions), reference.check_positions_eval(positions))


@pytest.mark.usefixtures("in_parts")
def test_the_number_of_threads_changes_nothing() -> None:
    case = make((1, 64, 11, 7, 3, 4, 3))
    for algorithm in ALGORITHMS:
        torch.set_num_threads(3)
        together = run(cpu, case, algorithm)
        torch.set_num_threads(1)
        compare(run(cpu, case, algorithm), together, "fixed")


def test_half_precision_weights() -> None:
    case = make(SMALL)
    weight = case.weight.bfloat16()
    expected = reference.fill_outputs_seq_fc(weight, *case.forward[1:])
    assert_near(cpu.fill_outputs_seq_fc(weight, *case.forward[1:]), expected)
    assert_near(cpu.fill_outputs_cells_fc(weight, *case.forward[1:]), expected)


@pytest.mark.parametrize("n_outputs", [31, 32, 33, 64, 71])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_in_blocks_and_what_is_left(n_outputs: int, dtype: torch.dtype) -> None:
    """Blocks of 32 are taken in vectors, from weights of every type."""
    case = make((2, 9, 5, n_outputs, 2, 2, 2), torch.float64 if dtype == torch.float64 else torch.float32)
    case = case._replace(weight=case.weight.to(dtype))
    expected = reference.propagate_through_detectors_seq_fc(*case.backward)
    for found, wanted in zip(cpu.propagate_through_detectors_seq_fc(*case.backward), expected, strict=True):
        assert_near(found, wanted)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("length", [2, 7, 70])
def test_tables_larger_than_a_cache(length: int) -> None:
    """What such a table needs next is fetched ahead, and more than 64 pairs of a place are not."""
    case = make((2, length, 14, 5, 2, 6, 4))
    assert case.weight[0].numel() > int(loops.FAR)
    compare(run(cpu, case), run(reference, case))


# ---- firing statistics -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_firing_statistics(shape: tuple[int, ...]) -> None:
    case = make(shape)
    arguments = (case.found[0], case.pe[0], case.positional_dim, shape[5])
    stat = cpu.fill_firing_stat(*arguments)
    assert_near(stat, reference.fill_firing_stat(*arguments))
    firings = cpu.densify_firing_stat(stat, case.found[0], shape[5])
    for sums in ("float", "fixed"):
        y = cpu.fill_outputs_by_firings(case.weight, firings, *shape[:2], sums=sums)
        assert_near(y, reference.fill_outputs_seq_fc(*case.forward, sums=sums), sums)


def test_firings_that_make_no_sense() -> None:
    case = make(SMALL)
    stat = cpu.fill_firing_stat(case.found[0], case.pe[0], 2, 3)
    place, row, count = cpu.densify_firing_stat(stat, case.found[0], 3)
    turned = tuple(each.flip(0) for each in (place, row, count))  # any order will do
    assert_near(*(cpu.fill_outputs_by_firings(case.weight, some, 3, 17) for some in (turned, (place, row, count))), "float")
    with pytest.raises(ArgumentError, match=r"firings have a row from .* expected 0 to 1279"):
        cpu.fill_outputs_by_firings(case.weight, (place, row + 1280, count), 3, 17)
    with pytest.raises(ArgumentError, match=r"firings have a place from .* expected 0 to 33"):
        cpu.fill_outputs_by_firings(case.weight, (place, row, count), 2, 17)


# ---- steps in place --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_in_place(algorithm: str, sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "STEP", 1)  # three detectors at a time
    case, name = make(SMALL), ALGORITHMS[algorithm][2]
    for weight in (case.weight, case.weight.bfloat16(), case.weight.transpose(1, 2).contiguous().transpose(1, 2)):
        mine, expected = (weight.clone(memory_format=torch.preserve_format) for _ in range(2))
        version = mine._version
        options: dict[str, Any] = {"meta": METAS[1], "external_lr": 0.1, "sums": sums}
        returned = getattr(cpu, name)(*case.to_weights, weight=mine, **options)
        reference.gather_weight_gradients_seq_fc(*case.to_weights, weight=expected, **options)
        assert returned is mine
        assert mine._version > version
        assert not torch.equal(mine, weight)
        assert_close(mine, expected, rtol=2**-8 if mine.dtype == torch.bfloat16 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("layout", ["general", "shared"])
def test_a_sparse_step_in_place(layout: str, sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "STEP", 1)
    case = make(SMALL)
    synapses, weight = sparse(case, layout)
    mine, expected = weight.clone(), weight.clone()
    for module, updated in ((cpu, mine), (reference, expected)):
        options = {"external_lr": 0.1, "weight": updated, "sums": sums}
        module.gather_weight_gradients_seq_sparse(*case.to_weights[:4], synapses, **options)
    assert not torch.equal(mine, weight)
    assert_near(mine, expected, sums)


# ---- budget, overflow, bad arguments ---------------------------------------------------------------------------------


def test_cells_stay_within_their_budget() -> None:
    case = make(SMALL)
    expected = run(cpu, case, "cells")
    results: list[Tensor] = []
    for name, arguments in zip(ALGORITHMS["cells"], (case.forward, case.backward, case.to_weights), strict=True):
        kernel = getattr(cpu, name)
        with pytest.raises(ArgumentError, match="budget is 100 bytes, expected at least") as error:
            kernel(*arguments, budget=100)
        least = int(str(error.value).split("at least ")[1].split(":")[0])
        with pytest.raises(ArgumentError, match="budget is"):
            kernel(*arguments, budget=least - 1)
        options = {"meta": METAS[1]} if name.startswith("gather") else {}
        result = kernel(*arguments, budget=least, **options)
        results += [result] if isinstance(result, Tensor) else result
    compare(results, expected)
    with pytest.raises(ArgumentError, match="precision is 'int4', expected one of"):
        cpu.fill_outputs_cells_fc(*case.forward, precision="int4")


def test_a_fixed_sum_out_of_range() -> None:
    case = make(SMALL)
    big = case._replace(weight=case.weight * 1e5, grad=case.grad * 1e5)
    for kernel, arguments in zip(ALGORITHMS["pairs"], (big.forward, big.backward, big.to_weights), strict=True):
        with pytest.raises(OverflowInSumError, match="left its range"):
            getattr(cpu, kernel)(*arguments, sums="fixed")


@pytest.mark.usefixtures("in_parts")
def test_a_step_that_overflows_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 408 pairs add 6 to one row of the last detector, past the range of 2048; the rows of the others stay within it."""
    monkeypatch.setattr(sequences, "STEP", 1)
    case = make(SMALL)
    weight, grad, indices, pe = case.weight.clone(), torch.full_like(case.grad, 6), case.found[0].clone(), case.pe[0].clone()
    arguments = (grad, indices, pe, case.positional_dim, case.weight.shape[1])
    cpu.gather_weight_gradients_seq_fc(*arguments, sums="fixed")
    indices[..., -1], pe[:, -1] = 0, 0
    with pytest.raises(OverflowInSumError):
        cpu.gather_weight_gradients_seq_fc(*arguments, weight=weight, external_lr=0.1, sums="fixed")
    assert torch.equal(weight, case.weight)


def test_what_would_read_outside_a_table_is_refused() -> None:
    case = make(SMALL)
    weight, indices, pe, positional_dim = case.forward
    fill: Any = cpu.fill_outputs_seq_fc
    propagate: Any = cpu.propagate_through_detectors_seq_fc
    with pytest.raises(ArgumentError, match="indices are from 8 to 8, expected 0 to 7"):
        fill(weight, torch.full_like(indices, 8), pe, positional_dim)
    with pytest.raises(ArgumentError, match="pe_indices are from -1 to -1, expected 0 to 3"):
        fill(weight, indices, torch.full_like(pe, -1), positional_dim)
    with pytest.raises(ArgumentError, match=r"pe_indices is .* expected shape \[16, 5\]"):
        fill(weight, indices, pe[1:], positional_dim)
    with pytest.raises(ArgumentError, match=r"a table has 256 rows, expected 2\*\*\(2 N_c \+ 1\)"):
        fill(weight, indices, pe, 1)
    with pytest.raises(ArgumentError, match=r"grad is .* expected shape \[3, 17, 13\]"):
        propagate(case.grad[:, 1:], *case.backward[1:])
    with pytest.raises(ArgumentError, match=r"a table has 256 rows, expected 2\*\*\(2 N_c \+ 2\)"):  # of anchors with two pairs
        propagate(*case.backward[:8], case.anchors[:, :2], *case.backward[9:])
    with pytest.raises(ArgumentError, match="expected inputs from 0 to 1"):
        propagate(*case.backward[:9], 2, positional_dim)
    with pytest.raises(ArgumentError, match="pe_min_delta_index are from 2 to 2, expected 0 to 1"):
        propagate(*case.backward[:7], torch.full_like(pe, 2), *case.backward[8:])
    with pytest.raises(ArgumentError, match=r"weight is .* expected shape \[5, 256, 13\]"):
        cpu.gather_weight_gradients_seq_fc(*case.to_weights, external_lr=0.1, weight=weight[1:])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_leaves_rows_that_nobody_read(algorithm: str) -> None:
    case = make((2, 5, 6, 3, 4, 3, 2))
    gradient = reference.gather_weight_gradients_seq_fc(case.grad.abs() + 1, *case.to_weights[1:])
    stepped = case.weight.clone()
    run = getattr(cpu, ALGORITHMS[algorithm][2])
    run(case.grad.abs() + 1, *case.to_weights[1:], external_lr=0.1, weight=stepped)
    read = (gradient != 0).any(-1)
    assert torch.equal(stepped[~read], case.weight[~read])
    assert (stepped[read] != case.weight[read]).all()
    assert_close(stepped, case.weight - 0.1 * gradient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1] > 1])
def test_fill_step_is_the_last_position_of_the_whole(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Rows of different lengths: row b is at position max(S - 1 - b, 0)."""
    case, (batch, length) = make(shape, dtype), shape[:2]
    at = (length - 1 - torch.arange(batch)).clamp(min=0)
    rows, held = torch.arange(batch), torch.arange(length) < at[:, None]
    cache = (case.found[0].short() * held[:, :, None]).transpose(1, 2).contiguous()
    before = cache.clone()
    places = case.pe[0].flip(0).t().contiguous()
    kept = cache.clone()
    step = (case.x[rows, at].contiguous(), case.weight, case.anchors)
    y = cpu.backend.fill_step(*step, cache, at, places)
    assert_close(y, reference.fill_outputs_seq_fc(*case.forward)[rows, at])
    other = reference.backend.fill_step(*step, kept, at, places)  # added in another order: a few roundings of float32 apart
    torch.testing.assert_close(other, y, rtol=1e-5, atol=1e-5)
    before[rows, :, at] = case.found[0][rows, at].short()
    assert torch.equal(cache, before)
