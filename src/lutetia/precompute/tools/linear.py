"""Sums proved by algebra: the bits of an output, weighed by their places, are rewritten cell by cell until only inputs are left.

All coefficients are modulo 2**n for an output of n bits. An adder's whole output, Σ 2^i y_i, is its operands' sum modulo
2**width; it may stand for the plain sum where the width of the output hides the difference, or where the sum is too
small to overflow. SAT solvers take exponential time for such counters; this takes one pass.
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


class LinearModule:
    """The adders of a flat module, and what they are made of."""

    def __init__(self, module: dict[str, Any]) -> None:
        named: list[NamedCell] = [(name, cell) for name, cell in module["cells"].items() if cell["type"] != "$scopeinfo"]
        self.cells = [cell for _, cell in ordered_cells(named)]
        self.driver = {bit: number for number, cell in enumerate(self.cells) for bit in cell["connections"]["Y"]}
        self.highest: dict[int, int] = {}  # the greatest value of each cell's output as a number
        for number, cell in enumerate(self.cells):
            self.highest[number] = min(self._result_range(cell)[1], 2 ** len(cell["connections"]["Y"]) - 1)

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
            factor = weights.get(outputs[0], 0)
            if any((weights.pop(bit, 0) - factor * 2**place) % size for place, bit in enumerate(outputs)):
                return f"{self.cells[number]['type']} is read in parts"
            more = self._rewritten(self.cells[number], factor, size, weights)
            if isinstance(more, str):
                return more
            constant += more
        left = {bit: weight % size for bit, weight in weights.items() if weight % size}
        return LinearForm(constant % size, left)

    def _rewritten(self, cell: dict[str, Any], factor: int, size: int, weights: dict[Bit, int]) -> int | str:
        """Put the operands of a cell in place of its output; what they add to the constant."""
        kind, pins = cell["type"], cell["connections"]
        if kind not in LINEAR:
            return f"{kind} is not a sum"
        width = len(pins["Y"])
        if factor * 2**width % size:
            low, high = self._result_range(cell)
            if low < 0 or high >= 2**width:
                return f"{kind} of {width} bits may overflow"
        signs = _signs(cell)
        operands = [("A", 1, signs[0])] if "B" not in pins else [("A", 1, signs[0]), ("B", -1 if kind == "$sub" else 1, signs[1])]
        if kind == "$neg":
            operands = [("A", -1, signs[0])]
        if kind == "$mul":
            numbers = {port: _constant(pins[port], sign) for port, sign in zip("AB", signs, strict=True)}
            known = next((port for port in "AB" if numbers[port] is not None), None)
            if known is None:
                return "$mul has no constant operand"
            other = "B" if known == "A" else "A"
            operands = [(other, int(numbers[known] or 0), signs["AB".index(other)])]
        constant = 0
        for port, times, signed in operands:
            for place, bit in enumerate(pins[port][:width]):
                top = signed and place == len(pins[port]) - 1 and place < width - 1
                constant += _put(weights, bit, factor * times * (-(2**place) if top else 2**place))
        return constant

    def _result_range(self, cell: dict[str, Any]) -> tuple[int, int]:
        """The least and the greatest result before it is cut to its width; of signed operands and others none is known."""
        pins, kind = cell["connections"], cell["type"]
        if kind not in ("$add", "$sub", "$mul", "$pos") or any(_signs(cell)):
            return -(2**64), 2**64
        highs = [self._highest(pins[port]) for port in ("A", "B") if port in pins]
        if kind == "$sub":
            return -highs[1], highs[0]
        return 0, highs[0] * highs[1] if kind == "$mul" else sum(highs)

    def _highest(self, bits: list[Bit]) -> int:
        """The greatest value of an operand: that of a cell's whole output where the operand is one, else all ones."""
        kept = list(bits)
        while kept and kept[-1] == "0":
            kept.pop()
        if not kept:
            return 0
        number = self.driver.get(kept[0])
        if number is not None and self.cells[number]["connections"]["Y"][: len(kept)] == kept:
            return min(self.highest[number], 2 ** len(kept) - 1)
        return sum(2**place for place, bit in enumerate(kept) if bit != "0")


def _put(weights: dict[Bit, int], bit: Bit, weight: int) -> int:
    """Add a bit to a form; a constant bit is given back as a number."""
    if isinstance(bit, str):
        return weight if bit == "1" else 0
    weights[bit] = weights.get(bit, 0) + weight
    return 0


def _signs(cell: dict[str, Any]) -> tuple[bool, bool]:
    """Whether operands are extended by their sign: only where both are signed."""
    settings = {name: int(str(value), 2) for name, value in cell["parameters"].items() if name.endswith("_SIGNED")}
    signed = all(settings.values()) if settings else False
    return signed, signed


def _constant(bits: list[Bit], signed: bool) -> int | None:
    if not all(isinstance(bit, str) for bit in bits):
        return None
    value = sum(2**place for place, bit in enumerate(bits) if bit == "1")
    return value - 2 ** len(bits) if signed and bits and bits[-1] == "1" else value
