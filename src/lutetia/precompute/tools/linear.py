"""Sums proved by algebra: the bits of an output, weighed by their places, are rewritten cell by cell until only inputs are left.

All coefficients are modulo 2**n for an output of n bits. An adder's whole output, Σ 2^i y_i, is its operands' sum modulo
2**width; it may stand for the plain sum where the width of the output hides the difference, or where the sum is too
small to overflow, as a number with a sign or without one. SAT solvers take exponential time for such counters; this takes one
pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lutetia.precompute.tools.elaborated import NamedCell, ordered_cells

Bit = Any  # a net of yosys, or a constant as text
LINEAR = ("$add", "$sub", "$neg", "$pos", "$mul")


class LinearForm(NamedTuple):
    """constant + Σ coefficient · bit, modulo 2**n."""

    constant: int
    coefficients: dict[Bit, int]


class Operand(NamedTuple):
    """The bits of an operand without those that only extend it, and whether the last one is a sign."""

    bits: list[Bit]
    signed: bool


class LinearModule:
    """The adders of a flat module, and what they are made of."""

    def __init__(self, module: dict[str, Any]) -> None:
        named: list[NamedCell] = [(name, cell) for name, cell in module["cells"].items() if cell["type"] != "$scopeinfo"]
        self.cells = [cell for _, cell in ordered_cells(named)]
        self.driver = {bit: number for number, cell in enumerate(self.cells) for bit in cell["connections"]["Y"]}
        self.range: list[tuple[int, int]] = []  # the least and the greatest result of each cell, before it is cut to its width
        for cell in self.cells:
            self.range.append(self._result_range(cell))

    def form(self, bits: list[Bit]) -> LinearForm | str:
        """A word, lowest bit first, in bits of the inputs; or why it is not a sum of them."""
        size = 2 ** len(bits)
        constant, weights = 0, {}  # type: int, dict[Bit, int]
        for place, bit in enumerate(bits):
            constant += _put(weights, bit, 2**place)
        for number in reversed(range(len(self.cells))):
            outputs = self.cells[number]["connections"]["Y"]
            if not any(bit in weights for bit in outputs):
                continue
            more = self._rewritten(number, [weights.pop(bit, 0) for bit in outputs], size, weights)
            if isinstance(more, str):
                return more
            constant += more
        left = {bit: weight % size for bit, weight in weights.items() if weight % size}
        return LinearForm(constant % size, left)

    def _rewritten(self, number: int, weights: list[int], size: int, left: dict[Bit, int]) -> int | str:
        """Put the operands of a cell in place of its output, whose bits have these weights; what they add to the constant."""
        cell, kind, width = self.cells[number], self.cells[number]["type"], len(weights)
        factor = weights[0]
        differs = [(weight - (factor << place)) % size for place, weight in enumerate(weights)]
        # The last bit as a sign weighs -2**place and not 2**place: 2**width less.
        signed = width > 1 and differs[-1] != 0 and (differs[-1] + (factor << width)) % size == 0
        if any(differs[:-1]) or (differs[-1] and not signed):
            return f"{kind} is read in parts"
        if kind not in LINEAR:
            return f"{kind} is not a sum"
        if factor * 2**width % size:
            low, high = self.range[number]
            least, most = (-(2 ** (width - 1)), 2 ** (width - 1)) if signed else (0, 2**width)
            if low < least or high >= most:
                return f"{kind} of {width} bits may overflow"
        operands = self._operands(cell)
        if isinstance(operands, str):
            return operands
        constant = 0
        for operand, times in operands:
            for place, bit in enumerate(operand.bits):
                top = operand.signed and place == len(operand.bits) - 1
                constant += _put(left, bit, factor * times * (-(2**place) if top else 2**place))
        return constant

    def _operands(self, cell: dict[str, Any]) -> list[tuple[Operand, int]] | str:
        """What a cell adds up: operands and their factors."""
        pins, kind, width = cell["connections"], cell["type"], len(cell["connections"]["Y"])
        signed = _signed(cell)
        own = {port: self._operand(pins[port], width, signed) for port in "AB" if port in pins}
        if kind == "$mul":
            numbers = {port: _constant(each) for port, each in own.items()}
            known = next((port for port in "AB" if numbers[port] is not None), None)
            if known is None:
                return "$mul has no constant operand"
            return [(own["B" if known == "A" else "A"], int(numbers[known] or 0))]
        signs = {"A": -1 if kind == "$neg" else 1, "B": -1 if kind == "$sub" else 1}
        return [(operand, signs[port]) for port, operand in own.items()]

    def _operand(self, pins: list[Bit], width: int, signed: bool) -> Operand:
        """How an operand of a cell is to be read, which matters beyond the width of the cell only: by its sign where that is
        repeated, or where it is a cell's result that may be negative and fits."""
        if signed and len(pins) < width:
            return Operand(pins, True)
        kept = [*pins[:width], *["0"] * (width - len(pins))]
        while kept and kept[-1] == "0":
            kept.pop()
        if len(kept) < width:
            return Operand(kept, False)
        while len(kept) > 1 and kept[-1] == kept[-2]:
            kept.pop()
        low, high = self._cell_range(kept)
        fits = low < 0 and -(2 ** (len(kept) - 1)) <= low and high < 2 ** (len(kept) - 1)
        return Operand(kept, len(kept) < width or fits)

    def _cell_range(self, bits: list[Bit]) -> tuple[int, int]:
        """The range of a cell's result, where bits are all of it; else that of bits without a sign."""
        number = self.driver.get(bits[0])
        if number is not None and self.cells[number]["connections"]["Y"][: len(bits)] == bits:
            return self.range[number]
        return 0, sum(2**place for place, bit in enumerate(bits) if bit != "0")

    def _result_range(self, cell: dict[str, Any]) -> tuple[int, int]:
        """The least and the greatest result before it is cut to its width; for a cell that is no sum, anything of its width."""
        operands = self._operands(cell) if cell["type"] in LINEAR else "not a sum"
        if isinstance(operands, str):
            return 0, 2 ** len(cell["connections"]["Y"]) - 1
        low = high = 0
        for operand, times in operands:
            ends = sorted(times * end for end in self._range_of(operand))
            low, high = low + ends[0], high + ends[1]
        return low, high

    def _range_of(self, operand: Operand) -> tuple[int, int]:
        """The least and the greatest number of an operand, as it is read."""
        size = 2 ** len(operand.bits)
        if not operand.bits:
            return 0, 0
        low, high = self._cell_range(operand.bits)
        if operand.signed:
            fits = self.driver.get(operand.bits[0]) is not None and -size // 2 <= low and high < size // 2
            return (low, high) if fits else (-size // 2, size // 2 - 1)
        plain = sum(2**place for place, bit in enumerate(operand.bits) if bit != "0")
        return (low, high) if low >= 0 and high < size else (0, plain)


def _put(weights: dict[Bit, int], bit: Bit, weight: int) -> int:
    """Add a bit to a form; a constant bit is given back as a number."""
    if isinstance(bit, str):
        return weight if bit == "1" else 0
    weights[bit] = weights.get(bit, 0) + weight
    return 0


def _signed(cell: dict[str, Any]) -> bool:
    """Whether operands are extended by their sign: only where both are signed."""
    settings = {name: int(str(value), 2) for name, value in cell["parameters"].items() if name.endswith("_SIGNED")}
    return all(settings.values()) if settings else False


def _constant(operand: Operand) -> int | None:
    if not all(isinstance(bit, str) for bit in operand.bits):
        return None
    value = sum(2**place for place, bit in enumerate(operand.bits) if bit == "1")
    return value - 2 ** len(operand.bits) if operand.signed and operand.bits and operand.bits[-1] == "1" else value
