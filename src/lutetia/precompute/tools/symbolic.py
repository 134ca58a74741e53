"""Cells of yosys on symbolic bits, many cases at once: control bits are 0 or 1, data bits are tokens that may only be moved.

A value is 0, 1, a token (2 and more: "this bit of that sample") or UNKNOWN. A cell that does anything but move a token gives
UNKNOWN, and so does one whose control is not known. What comes out as a token is therefore that very bit, for every sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lutetia.errors import DataError
from lutetia.precompute.tools.elaborated import NamedCell, ordered_cells

UNKNOWN = -1
FIRST_TOKEN = 2
WIDE = 62  # bits of a number that is computed


class SymbolicModule:
    """A flat module whose registers are all clocked by `clk`; values are int32 [bits, cases]."""

    def __init__(self, module: dict[str, Any]) -> None:
        self._numbers: dict[Any, int] = {"0": 0, "1": 1, "x": 2, "z": 2}  # places of the constants; x is unknown
        self.ports = {name: self._places(port["bits"]) for name, port in module["ports"].items()}
        cells: list[NamedCell] = [(name, cell) for name, cell in module["cells"].items() if cell["type"] != "$scopeinfo"]
        registers = [cell for _, cell in cells if cell["type"] == "$dff"]
        for cell in registers:
            if cell["connections"]["CLK"] != module["ports"]["clk"]["bits"] or int(cell["parameters"]["CLK_POLARITY"], 2) != 1:
                raise DataError("a register is not clocked by the rising edge of clk")
        self.d = self._joined([cell["connections"]["D"] for cell in registers])
        self.q = self._joined([cell["connections"]["Q"] for cell in registers])
        self._steps = [self._step(cell) for _, cell in ordered_cells([each for each in cells if each[1]["type"] != "$dff"])]

    def settle(self, state: np.ndarray, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """All bits for given registers [registers, cases] and inputs, each [bits, cases]."""
        values = np.full((len(self._numbers), state.shape[1]), UNKNOWN, dtype=np.int32)
        values[0], values[1] = 0, 1
        values[self.q] = state
        for name, bits in inputs.items():
            if name in self.ports:
                values[self.ports[name]] = bits
        for target, rule, operands in self._steps:
            values[target] = rule([values[each] for each in operands])
        return values

    def _places(self, bits: list[Any]) -> np.ndarray:
        return np.array([self._numbers.setdefault(bit, len(self._numbers)) for bit in bits], dtype=np.int64)

    def _joined(self, parts: list[list[Any]]) -> np.ndarray:
        return self._places([bit for part in parts for bit in part])

    def _step(self, cell: dict[str, Any]) -> tuple[np.ndarray, Callable[[list[np.ndarray]], np.ndarray], list[np.ndarray]]:
        kind, pins = cell["type"], cell["connections"]
        settings = {name: int(str(value), 2) for name, value in cell["parameters"].items()}
        operands = [self._places(pins[port]) for port in ("A", "B", "S") if port in pins]
        target = self._places(pins["Y"])
        return target, _rule(kind, settings, len(target)), operands


def _rule(kind: str, settings: dict[str, int], width: int) -> Callable[[list[np.ndarray]], np.ndarray]:
    signs = settings.get("A_SIGNED", 0), settings.get("B_SIGNED", 0)
    if kind in ("$mux", "$pmux"):
        return lambda each: _chosen(each[0], each[1], each[2])
    if kind in ("$and", "$or"):
        return lambda each: _gate(_wide(each[0], width, signs[0]), _wide(each[1], width, signs[1]), int(kind == "$or"))
    if kind == "$not":
        return lambda each: _not(_wide(each[0], width, signs[0]))
    if kind in ("$xor", "$xnor"):
        same = int(kind == "$xnor")
        return lambda each: _exclusive(_wide(each[0], width, signs[0]), _wide(each[1], width, signs[1]), same)
    if kind == "$shiftx":
        return lambda each: _part(each[0], each[1], width)
    if kind not in NUMERIC:
        raise DataError(f"yosys made a {kind}, which the proof does not know")
    return lambda each: _numeric(NUMERIC[kind], each, signs, width)


def _wide(bits: np.ndarray, width: int, signed: int) -> np.ndarray:
    more = width - len(bits)
    if more <= 0:
        return bits[:width]
    top = bits[-1:] if signed else np.zeros_like(bits[:1])
    return np.concatenate([bits, np.repeat(top, more, axis=0)])


def _known(bits: np.ndarray) -> np.ndarray:
    return (bits == 0) | (bits == 1)


def _chosen(a: np.ndarray, b: np.ndarray, select: np.ndarray) -> np.ndarray:
    """A, or the part of B whose bit of S is set; what both agree on does not depend on S."""
    made, width = a, len(a)
    for choice, chosen in enumerate(select):
        other = b[choice * width : (choice + 1) * width]
        unsure = np.where(made == other, made, UNKNOWN)
        made = np.where(chosen == 1, other, np.where(chosen == 0, made, unsure))
    return made


def _gate(a: np.ndarray, b: np.ndarray, either: int) -> np.ndarray:
    """`and`, or `or` where `either`: one value decides, the other lets the second operand through."""
    decided = (a == either) | (b == either)
    passed = np.where(a == 1 - either, b, np.where(b == 1 - either, a, np.where((a == b) & (a >= 0), a, UNKNOWN)))
    return np.where(decided, either, passed)


def _not(a: np.ndarray) -> np.ndarray:
    return np.where(_known(a), 1 - a, UNKNOWN)


def _exclusive(a: np.ndarray, b: np.ndarray, same: int) -> np.ndarray:
    return np.where(_known(a) & _known(b), a ^ b ^ same, UNKNOWN)


def _part(a: np.ndarray, by: np.ndarray, width: int) -> np.ndarray:
    """Bits `by` and on of a."""
    known = _known(by).all(0)
    start = _number(np.where(known, by, 0), 0)
    made = np.full((width, a.shape[1]), UNKNOWN, dtype=np.int32)
    cases = np.arange(a.shape[1])
    for place in range(width):
        inside = known & (start + place < len(a))
        made[place] = np.where(inside, a[np.minimum(start + place, len(a) - 1), cases], UNKNOWN)
    return made


def _number(bits: np.ndarray, signed: int) -> np.ndarray:
    total = np.zeros(bits.shape[1], dtype=np.int64)
    for place, row in enumerate(bits[:WIDE]):
        total += row.astype(np.int64) << place
    if signed and len(bits):
        total -= bits[-1].astype(np.int64) << len(bits)
    return total


def _numeric(function: Callable[..., np.ndarray], operands: list[np.ndarray], signs: tuple[int, int], width: int) -> np.ndarray:
    """Numbers of known bits; UNKNOWN in the cases where one is not."""
    known = np.logical_and.reduce([_known(each).all(0) for each in operands])
    signed = len(operands) == 1 or all(signs)
    numbers = [_number(np.where(known, each, 0), int(signed and sign)) for each, sign in zip(operands, signs, strict=False)]
    result = function(*numbers) if function not in (_all_ones,) else _all_ones(numbers[0], len(operands[0]))
    result = np.asarray(result).astype(np.int64)
    bits = np.stack([result >> min(place, WIDE) & 1 for place in range(width)]).astype(np.int32)
    return np.where(known, bits, UNKNOWN)


def _all_ones(a: np.ndarray, width: int = 1) -> np.ndarray:
    return a == 2**width - 1


NUMERIC: dict[str, Callable[..., np.ndarray]] = {
    "$add": np.add, "$sub": np.subtract, "$mul": np.multiply, "$neg": np.negative, "$pos": np.positive,
    "$lt": np.less, "$le": np.less_equal, "$gt": np.greater, "$ge": np.greater_equal,
    "$eq": np.equal, "$ne": np.not_equal, "$eqx": np.equal, "$nex": np.not_equal,
    "$logic_not": lambda a: a == 0, "$logic_and": lambda a, b: (a != 0) & (b != 0), "$logic_or": lambda a, b: (a != 0) | (b != 0),
    "$reduce_or": lambda a: a != 0, "$reduce_bool": lambda a: a != 0, "$reduce_and": _all_ones,
}  # fmt: skip
