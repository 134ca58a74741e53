"""The compiled loop of `lutetia.models.signal_shapes`: all shapes of one window after another."""

from __future__ import annotations

import numpy as np

from lutetia._shared.compiled import jit
from lutetia._shared.loops import U

SAMPLES = 9


@jit(nogil=True)
def count(signals, starts, length, shapes, order, kernels, found):  # type: ignore[no-untyped-def]
    """Counts of windows: signals int64 [signals, rows], found int64 [n, shapes]; shape order[s] is shapes[s], int64 [shapes, 4].

    Shapes of one signal, of one distance and of one kernel follow each other, and share their sums."""
    nine, sums = np.empty(length, np.int64), np.empty(length, np.int64)
    for window in range(len(starts)):
        start, last = starts[window], (-1, -1, -1)
        places = U(0)
        for number in range(len(shapes)):
            signal, kernel, apart, above = shapes[number]
            x = signals[signal, start : start + length]
            if (signal, apart) != (last[0], last[1]):
                places = U(length - (SAMPLES - 1) * apart)
                add_up(x, apart, nine[:places])
                last = (signal, apart, -1)
            if kernel != last[2]:
                raise_three(x, kernels[kernel] * apart, nine[:places], sums[:places])
                last = (signal, apart, kernel)
            total = 0
            for place in range(places):
                total += sums[place] > above
            found[window, order[number]] = total


@jit(inner=True, nogil=True)
def add_up(x, apart, nine):  # type: ignore[no-untyped-def]
    """The sum of nine samples at each place."""
    n = U(len(nine))
    nine[:] = 0
    for number in range(SAMPLES):
        own = x[number * apart : number * apart + len(nine)]
        for place in range(n):
            nine[place] += own[place]


@jit(inner=True, nogil=True)
def raise_three(x, places, nine, sums):  # type: ignore[no-untyped-def]
    """How far three of nine samples are above the six others, six times, at each place."""
    m = len(nine)
    a, b, c = x[places[0] : places[0] + m], x[places[1] : places[1] + m], x[places[2] : places[2] + m]
    for place in range(U(m)):
        three = a[place] + b[place] + c[place]
        sums[place] = three + three + three - nine[place]
