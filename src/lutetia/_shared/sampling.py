"""Random draws in numpy that cost what is drawn, not what it is drawn from."""

from __future__ import annotations

import numpy as np

CHUNK = 1 << 22  # random numbers held at a time


def draw_distinct(rng: np.random.Generator, totals: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers below totals[t] for each t, distinct within a row while totals[t] allows, [len(totals), count].

    Floyd's sampling, one column for all rows at a time: exact, without rejection.
    """
    drawn = np.empty((len(totals), count), dtype=np.int64)
    distinct = np.minimum(totals, count)
    rows = np.arange(len(totals))
    for j in range(count):
        last = totals - distinct + j
        number = rng.integers(0, np.minimum(last, totals - 1), endpoint=True)
        taken = (drawn[:, :j] == number[:, None]).any(axis=1)
        # Past the last distinct number a row starts over with those it has.
        drawn[:, j] = np.where(j < distinct, np.where(taken, last, number), drawn[rows, j % distinct])
    # Floyd draws large numbers late: shuffle, so that every column has the same distribution.
    return rng.permuted(drawn, axis=1)


def unrank(rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pair low < high at each place of the list (0,1) (0,2) (1,2) (0,3) ..., any shape."""
    high = ((1 + np.sqrt(1 + 8 * rank.astype(np.float64))) / 2).astype(np.int64)
    high -= high * (high - 1) // 2 > rank  # rounding may lift a large rank to the next square, and never lowers one
    return rank - high * (high - 1) // 2, high


def draw_pairs(rng: np.random.Generator, sizes: np.ndarray, count: int) -> np.ndarray:
    """`count` pairs of different numbers below sizes[t] for each t, distinct whichever way round, [len(sizes), count, 2].

    Where there are no more pairs, they repeat.
    """
    low, high = unrank(draw_distinct(rng, sizes * (sizes - 1) // 2, count))
    swap = rng.random(low.shape) < 0.5
    return np.stack([np.where(swap, high, low), np.where(swap, low, high)], axis=2)


def bernoulli_places(rng: np.random.Generator, total: int, probability: float) -> np.ndarray:
    """The successes of `total` independent trials, increasing int64 [n]; the failures cost nothing.

    The distance from one success to the next is geometric, so only the distances are drawn.
    """
    if probability == 0:
        return np.empty(0, dtype=np.int64)
    parts, last = [], -1
    while last < total:
        expected = (total - last) * probability
        gaps = rng.geometric(probability, size=int(expected + 5 * expected**0.5) + 8)
        # A single gap may be near 2**63 when the probability is tiny: past the end is far enough.
        parts.append(np.cumsum(np.minimum(gaps, total + 1)) + last)
        last = int(parts[-1][-1])
    places = np.concatenate(parts)
    return places[: np.searchsorted(places, total)]


def keep_some(rng: np.random.Generator, outputs: np.ndarray, kept: int) -> np.ndarray:
    """`kept` of the columns of each row of outputs [n, width], drawn at random, in order: [n, kept]."""
    width = outputs.shape[1]
    if kept == width:
        return outputs
    rows = max(1, CHUNK // width)
    parts = []
    for first in range(0, len(outputs), rows):
        part = outputs[first : first + rows]
        chosen = np.argpartition(rng.random(part.shape), kept, axis=1)[:, :kept]
        parts.append(np.take_along_axis(part, np.sort(chosen, axis=1), axis=1))
    return np.concatenate(parts)
