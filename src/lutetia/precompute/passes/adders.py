"""Tables as partial sums: a few inputs at a time are replaced by a number that holds all the rest needs to know about them.

A neuron is one or a few thresholds of a weighted sum, so only the partial sum of some of its inputs matters, and often less than
that. How many different numbers there are is counted on the table itself: two settings of the inputs are equivalent if they leave
the same function of the others. No weights need to be known, and any table that is such a sum, or a comparison, or a count of
ones, is found. Groups of up to k inputs are coded like this, with one LUT per bit of the code, until k signals are left.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from lutetia.precompute.ir.netlist import LutCells, LutForm, columns
from lutetia.precompute.ir.stream import TableData
from lutetia.precompute.passes.shannon import filled

WIDEST, BITS = 14, 24  # maximum address bits and output bits of the tables examined
GROUPS = 60  # of inputs that are tried at each step


def adder(table: TableData, k: int) -> LutForm | None:
    """The form as partial sums, all outputs together or each separately; None where inputs do not collapse."""
    if table.k > WIDEST or table.out_bits > BITS or k < 3:
        return None
    bits = np.stack([filled(each, table.care) for each in columns(table)])
    together = _coded(bits, table.k, k, [list(range(len(bits)))])
    apart = _coded(bits, table.k, k, [[at] for at in range(len(bits))]) if len(bits) > 1 else None
    made = [form for form in (together, apart) if form is not None]
    return min(made, key=lambda form: form.luts) if made else None


def _coded(bits: np.ndarray, n: int, k: int, groups: list[list[int]]) -> LutForm | None:
    cells = LutCells(n)
    outputs = [0] * len(bits)
    for group in groups:
        # Axis 0 is the most significant address bit, signal n - 1.
        found = _collapse(cells, bits[group].reshape(len(group), *(2,) * n), [n - 1 - at for at in range(n)], k)
        if found is None:
            return None
        for output, signal in zip(group, found, strict=True):
            outputs[output] = signal
    return cells.form("adder", k, outputs)


def _collapse(cells: LutCells, cube: np.ndarray, signals: list[int], k: int) -> list[int] | None:
    """Signals for the outputs of a function, cube bool [outputs, 2, 2, ..], of signals, one per axis."""
    rng = np.random.default_rng(len(signals))
    while True:
        cube, signals = _without_idle(cube, signals)
        if len(signals) <= k:
            inputs = tuple(reversed(signals))
            return [cells.add(inputs, _number(each.reshape(-1))) for each in cube]
        best = None
        for group in _groups(len(signals), k, rng):
            classes, count = _classes(cube, group)
            code = max((count - 1).bit_length(), 1)
            score = (len(group) - code) / code
            if code < len(group) and (best is None or score > best[0]):
                best = (score, group, classes, count, code)
        if best is None:
            return None
        _, group, classes, count, code = best
        inputs = tuple(signals[at] for at in reversed(group))
        made = [cells.add(inputs, _number(classes >> bit & 1)) for bit in reversed(range(code))]
        cube = _replaced(cube, group, classes, count, code)
        signals = made + [signal for at, signal in enumerate(signals) if at not in group]


def _groups(n: int, k: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Neighbours of every size, then others: all where they are few, else some at random."""
    size = min(k, n - 1)
    near = [tuple(range(at, at + width)) for width in range(size, 2, -1) for at in range(n - width + 1)]
    every = list(combinations(range(n), size)) if n <= 9 else []
    drawn = every or [tuple(sorted(rng.choice(n, size, replace=False).tolist())) for _ in range(GROUPS)]
    return list(dict.fromkeys([*near, *drawn]))


def _classes(cube: np.ndarray, group: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """The class of each setting of a group, equal where the rest sees no difference: int64 [2**len(group)], and their number."""
    rows = _rows(cube, group)
    _, classes = np.unique(np.packbits(rows, axis=1), axis=0, return_inverse=True)
    classes = classes.ravel()
    return classes, int(classes.max()) + 1


def _rows(cube: np.ndarray, group: tuple[int, ...]) -> np.ndarray:
    """The function that is left for each setting of a group: bool [2**len(group), outputs · rest]."""
    axes = [at + 1 for at in group]
    return np.ascontiguousarray(np.moveaxis(cube, axes, range(len(axes)))).reshape(2 ** len(group), -1)


def _replaced(cube: np.ndarray, group: tuple[int, ...], classes: np.ndarray, count: int, code: int) -> np.ndarray:
    """The function of the code, in front, and the other inputs; codes that do not occur are as the last one."""
    first = np.array([int(np.argmax(classes == number)) for number in range(count)])
    rows = _rows(cube, group)[first[np.minimum(np.arange(2**code), count - 1)]]
    rest = cube.ndim - 1 - len(group)
    return np.moveaxis(rows.reshape(*(2,) * code, len(cube), *(2,) * rest), code, 0)


def _without_idle(cube: np.ndarray, signals: list[int]) -> tuple[np.ndarray, list[int]]:
    """Drop the inputs that nothing depends on."""
    for at in reversed(range(len(signals))):
        low, high = np.take(cube, 0, at + 1), np.take(cube, 1, at + 1)
        if np.array_equal(low, high):
            cube, signals = low, [*signals[:at], *signals[at + 1 :]]
    return cube, signals


def _number(bits: np.ndarray) -> int:
    return int.from_bytes(np.packbits(bits.astype(bool), bitorder="little").tobytes(), "little")
