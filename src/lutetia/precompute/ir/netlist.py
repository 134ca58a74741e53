"""LUT netlists: a table as a few lookup tables of at most k inputs, wired together."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lutetia.precompute.ir.stream import TableData

ZERO, ONE = -1, -2  # signals that never change


@dataclass(frozen=True, slots=True)
class Lut:
    """One LUT: the signals it reads, and what it answers: bit i of `init` for input 0 in the lowest place of i."""

    inputs: tuple[int, ...]
    init: int


@dataclass(frozen=True)
class LutForm:
    """How a table is built. Signals: bits 0 .. n_inputs - 1 of the address (0 the lowest), then one per cell, then constants."""

    kind: str  # "shannon", "adder" or "yosys"
    k: int  # inputs of a LUT
    n_inputs: int
    cells: tuple[Lut, ...]
    outputs: tuple[int, ...]  # the signal of each output bit, lowest first
    tried: dict[str, int] = field(default_factory=dict)  # LUTs of every form that was tried

    @property
    def luts(self) -> int:
        """How many LUTs there are."""
        return len(self.cells)

    def columns(self) -> np.ndarray:
        """Each output bit at every address, lowest bit first: bool [n_bits, 2**n_inputs]."""
        addresses = np.arange(2**self.n_inputs)
        signals = [addresses >> bit & 1 for bit in range(self.n_inputs)]
        for cell in self.cells:
            place = np.zeros(len(addresses), dtype=np.int64)
            for at, signal in enumerate(cell.inputs):
                place |= signals[signal] << at
            bits = np.array([cell.init >> row & 1 for row in range(2 ** len(cell.inputs))], dtype=np.int64)
            signals.append(bits[place])
        constant = {ZERO: np.zeros_like(addresses), ONE: np.ones_like(addresses)}
        picked = [constant[signal] if signal < 0 else signals[signal] for signal in self.outputs]
        return np.stack(picked).astype(bool) if picked else np.zeros((0, len(addresses)), dtype=bool)


def columns(table: TableData) -> np.ndarray:
    """The same for a table, output 0 in the lowest bits: bool [out_bits, 2**k]."""
    contents = table.contents.astype(np.int64)
    places = [(column, bit) for column, bits in enumerate(table.bits) for bit in range(bits)]
    return np.stack([(contents[:, column] >> bit & 1).astype(bool) for column, bit in places])


class LutCells:
    """A list of LUTs that grows, in which equal ones are the same."""

    def __init__(self, n_inputs: int) -> None:
        self.n_inputs = n_inputs
        self.cells: list[Lut] = []
        self._known: dict[Lut, int] = {}

    def add(self, inputs: tuple[int, ...], init: int) -> int:
        """The signal of a LUT; inputs that decide nothing are left out, a wire or a constant needs no LUT."""
        inputs, init = _without_idle(inputs, init)
        if not inputs:
            return ONE if init & 1 else ZERO
        if len(inputs) == 1 and init == 2:
            return inputs[0]
        cell = Lut(inputs, init)
        if cell not in self._known:
            self._known[cell] = self.n_inputs + len(self.cells)
            self.cells.append(cell)
        return self._known[cell]

    def form(self, kind: str, k: int, outputs: list[int]) -> LutForm:
        """The netlist without the LUTs that nothing reads."""
        alive = set()
        stack = [signal for signal in outputs if signal >= self.n_inputs]
        while stack:
            signal = stack.pop()
            if signal not in alive:
                alive.add(signal)
                stack += [each for each in self.cells[signal - self.n_inputs].inputs if each >= self.n_inputs]
        order = sorted(alive)
        place = {signal: self.n_inputs + at for at, signal in enumerate(order)}
        place |= {signal: signal for signal in range(-2, self.n_inputs)}
        cells = [self.cells[signal - self.n_inputs] for signal in order]
        moved = tuple(Lut(tuple(place[each] for each in cell.inputs), cell.init) for cell in cells)
        return LutForm(kind, k, self.n_inputs, moved, tuple(place[signal] for signal in outputs))


def _without_idle(inputs: tuple[int, ...], init: int) -> tuple[tuple[int, ...], int]:
    """Sorted inputs, each once, constants and idle ones folded in."""
    kept = sorted({signal for signal in inputs if signal >= 0})
    rows = range(2 ** len(kept))
    place = {signal: at for at, signal in enumerate(kept)}

    def row_of(number: int) -> int:
        return sum(
            (1 if signal == ONE else 0 if signal == ZERO else number >> place[signal] & 1) << at
            for at, signal in enumerate(inputs)
        )

    values = [init >> row_of(number) & 1 for number in rows]
    at = 0
    while at < len(kept):
        half = 1 << at
        low = [value for number, value in enumerate(values) if not number & half]
        high = [value for number, value in enumerate(values) if number & half]
        if low == high:
            values = low
            del kept[at]
        else:
            at += 1
    return tuple(kept), sum(value << number for number, value in enumerate(values))
