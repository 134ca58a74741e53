"""Tables as trees of LUTs, by Shannon's expansion: cofactors in LUTs, and LUTs that choose between them.

A cofactor that occurs twice, in any output, is built once; its complement is free, since the LUT that reads it
can undo it. Rows that do not count repeat their neighbours, which makes cofactors equal.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from lutetia.precompute.ir.netlist import ONE, ZERO, LutCells, LutForm, columns
from lutetia.precompute.ir.stream import TableData

ORDERS = 6  # variable orders that are tried on tables of up to LARGE rows
LARGE = 2**13


def shannon(table: TableData, k: int) -> LutForm:
    """The smallest of a few trees of LUTs of k inputs."""
    bits = np.stack([filled(each, table.care) for each in columns(table)])
    best: LutForm | None = None
    for order in _orders(bits, table.k):
        tree = _Tree(table.k, k, order)
        outputs = [tree.build(_moved(each, order)) for each in bits]
        made = tree.cells.form("shannon", k, [tree.settled(*each) for each in outputs])
        if best is None or made.luts < best.luts:
            best = made
    assert best is not None
    return best


def _orders(bits: np.ndarray, n: int) -> list[tuple[int, ...]]:
    """Which address bits are split first: as they are, by influence, and a few at random (place 0 is most significant)."""
    natural = tuple(range(n))
    if bits.shape[1] > LARGE:
        return [natural]
    influence = [
        int((half[:, :, 0] != half[:, :, 1]).sum()) for half in (bits.reshape(len(bits), 2**at, 2, -1) for at in range(n))
    ]
    rising = tuple(sorted(range(n), key=influence.__getitem__))
    rng = np.random.default_rng(n)
    drawn = [tuple(rng.permutation(n).tolist()) for _ in range(ORDERS - 3)]
    return list(dict.fromkeys([natural, rising, rising[::-1], *drawn]))


def _moved(column: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(column.reshape((2,) * len(order)).transpose(order)).reshape(-1) if order else column


class _Tree:
    """The LUTs of one table, under one order of its address bits."""

    def __init__(self, n: int, k: int, order: tuple[int, ...]) -> None:
        self.n, self.k, self.order = n, k, order
        self.cells = LutCells(n)
        self.known: dict[bytes, tuple[int, bool]] = {}

    def signal(self, level: int) -> int:
        """The signal of the address bit that is split at a level."""
        return self.n - 1 - self.order[level]

    def build(self, column: np.ndarray) -> tuple[int, bool]:
        """A signal for a function of the last address bits, and whether it is the complement: bool [2**m]."""
        m = len(column).bit_length() - 1
        level = self.n - m
        if column.all() or not column.any():
            return ONE if column[0] else ZERO, False
        key = np.packbits(column).tobytes() + bytes([m])
        if key in self.known:
            return self.known[key]
        support = [at for at in range(m) if _depends(column, at, m)]
        made = (self._leaf(column, support, level, m) if len(support) <= self.k else self._split(column, level), False)
        self.known[key] = made
        inverse = np.packbits(~column).tobytes() + bytes([m])
        self.known.setdefault(inverse, (made[0], not made[1]))
        return made

    def _leaf(self, column: np.ndarray, support: list[int], level: int, m: int) -> int:
        """One LUT over the bits that matter; the last one lies lowest."""
        inputs = tuple(self.signal(level + at) for at in reversed(support))
        picked = column.reshape((2,) * m)[tuple(slice(None) if at in support else 0 for at in range(m))].reshape(-1)
        return self.cells.add(inputs, _number(picked))

    def _split(self, column: np.ndarray, level: int) -> int:
        """Choose the number of selecting bits that promises the fewest LUTs."""
        plans = []
        for size in range(1, min(self.k - 1, self.n - level - 1) + 1 if self.k > 2 else 2):
            parts = np.split(column, 2**size)
            different = {key: part for part in parts if (key := _shape(part)) is not None}
            if size + len(different) <= max(self.k, 3):
                new = [part for part in different.values() if np.packbits(part).tobytes() + _size(part) not in self.known]
                plans.append((sum(_bound(_support(part), self.k) for part in new), size, parts))
        _, size, parts = min(plans, key=lambda plan: plan[:2])
        built = [self.build(part) for part in parts]
        select = [self.signal(level + at) for at in reversed(range(size))]
        data = sorted({signal for signal, _ in built if signal >= 0})
        return self._choose(built, data, select)

    def _choose(self, parts: list[tuple[int, bool]], data: list[int], select: list[int]) -> int:
        inputs = tuple(dict.fromkeys([*select, *data]))
        place = {signal: at for at, signal in enumerate(inputs)}
        init = 0
        for row in range(2 ** len(inputs)):
            chosen, flipped = parts[sum((row >> place[signal] & 1) << at for at, signal in enumerate(select))]
            value = int(chosen == ONE) if chosen < 0 else row >> place[chosen] & 1
            init |= (value ^ flipped) << row
        return self.cells.add(inputs, init)

    def settled(self, signal: int, flipped: bool) -> int:
        """The signal itself, or an inverter if only its complement exists."""
        if not flipped:
            return signal
        if signal < 0:
            return ONE if signal == ZERO else ZERO
        at = signal - self.n
        if at < 0:
            return self.cells.add((signal,), 1)
        cell = self.cells.cells[at]
        return self.cells.add(cell.inputs, cell.init ^ (2**2 ** len(cell.inputs) - 1))


@cache
def _bound(inputs: int, k: int) -> int:
    """LUTs of k inputs for any function of n inputs, by trees alone; a wire needs none."""
    if inputs <= k:
        return int(inputs > 1)
    sizes = [size for size in range(1, k) if size + 2**size <= max(k, 3)]
    return min(2**size * _bound(inputs - size, k) + 1 for size in sizes)


def _support(column: np.ndarray) -> int:
    m = len(column).bit_length() - 1
    return sum(_depends(column, at, m) for at in range(m))


def _shape(column: np.ndarray) -> bytes | None:
    """Equal for a function and its complement; None for a constant."""
    if column.all() or not column.any():
        return None
    return np.packbits(~column if column[0] else column).tobytes()


def _size(column: np.ndarray) -> bytes:
    return bytes([len(column).bit_length() - 1])


def filled(column: np.ndarray, care: np.ndarray | None) -> np.ndarray:
    """Rows that do not count repeat the row before them that does, since runs are easy to share: bool [rows]."""
    if care is None or care.all():
        return column
    if not care.any():
        return np.zeros_like(column)
    last = np.maximum.accumulate(np.where(care, np.arange(len(column)), -1))
    return column[np.where(last >= 0, last, int(np.argmax(care)))]


def _depends(column: np.ndarray, at: int, m: int) -> bool:
    halves = column.reshape(2**at, 2, 2 ** (m - 1 - at))
    return not np.array_equal(halves[:, 0], halves[:, 1])


def _number(bits: np.ndarray) -> int:
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
