"""The next byte from its scores: the best, or sampled with integers only, the same in every language.

    d_i      = (best score - score_i) >> drop
    weight_i = weights[d_i], 0 past the table's end;  weights[d] = round(65535 · exp(-d · 2**(drop - fraction) / temperature))
    r        = the generator's next number & mask, drawn again until it is below Σ weight;  mask = the smallest 2**k - 1 >= Σ - 1
    byte     = the first i whose weights up to i add up to more than r

The generator is Marsaglia's xorshift of 32 bits: s ^= s << 13, s ^= s >> 17, s ^= s << 5. It starts with the seed, and with
2463534242 for the seed 0. `drop` makes a step of the table about 1/32 nat.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lutetia.errors import check_range, fail

HEAVIEST = 65535  # the weight of the best byte
FINEST = 5  # a step of the table is at least 2**-5 nat
MASK = 0xFFFFFFFF
SEED_OF_ZERO = 2463534242


class Draws:
    """What draws bytes: the generator, and the weights of score differences."""

    def __init__(self, seed: int, temperature: float, fraction: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MASK:
            fail("seed", seed, f"a whole number from 0 to {MASK}")
        self.state = seed or SEED_OF_ZERO
        self.drop, self.weights = weights(temperature, fraction)

    def next(self) -> int:
        """The next number of the generator, 1 to 2**32 - 1."""
        s = self.state
        s ^= (s << 13) & MASK
        s ^= s >> 17
        s ^= (s << 5) & MASK
        self.state = s
        return s


def weights(temperature: float, fraction: int) -> tuple[int, np.ndarray]:
    """`drop`, and the weight of each difference: int64 [n]."""
    check_range("temperature", temperature, 2**-10, 2**10)
    drop = max(0, fraction + math.floor(math.log2(temperature)) - FINEST)
    step = math.ldexp(1.0, drop - fraction) / temperature
    n = math.floor(math.log(2 * HEAVIEST) / step) + 1
    return drop, np.rint(HEAVIEST * np.exp(-step * np.arange(n))).astype(np.int64)


def choose(scores: np.ndarray[Any, Any], draws: Draws | None) -> int:
    """The next byte: int64 [vocab] -> its number."""
    best = int(scores.argmax())
    if draws is None:
        return best
    steps = (scores[best] - scores) >> draws.drop
    weight = np.append(draws.weights, 0)[np.minimum(steps, len(draws.weights))]
    total = int(weight.sum())
    mask = (1 << (total - 1).bit_length()) - 1
    while (r := draws.next() & mask) >= total:
        pass
    return int(np.searchsorted(weight.cumsum(), r, side="right"))
