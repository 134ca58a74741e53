"""Which row of each table a position reads: a hash of the tokens that end there.

Table k has a length: it hashes that many tokens, the last one first. A table of words has the length REACH, and stops behind the
token that begins the last word. Tokens are counted from 1, and 0 stands for what is before the first:

    h = Σ_i (token[s - i] + 1) · multiplier[k, i]  mod 2⁶⁴,  mixed,  row = its upper 32 bits · n_rows / 2³²

`addresses` is plain torch and the definition; `loops` (numba) and `kernels` (Triton) compute the same integers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

REACH = 16  # tokens that a word is followed back at most
MIX = -7046029254386353131  # 2⁶⁴ over the golden ratio, odd, as int64
LOW31 = 0x1FFFFFFFF  # what is left of 64 bits after a shift by 31
LOW32 = 0xFFFFFFFF
WORD_BYTES = 128  # tokens from here on belong to words: in UTF-8 they are parts of letters


class Hash(NamedTuple):
    """How the tables of a layer are addressed."""

    lengths: tuple[int, ...]  # tokens of each table
    words: tuple[bool, ...]  # which tables stop where a word begins
    n_rows: int  # of each table
    multipliers: Tensor  # int64 [n_tables, reach], odd

    @property
    def reach(self) -> int:
        """Tokens of the longest table."""
        return self.multipliers.shape[1]


def draw_multipliers(n_tables: int, reach: int, seed: int) -> Tensor:
    """Odd numbers, int64 [n_tables, reach], that depend only on the seed (SplitMix64, by Steele, Lea and Flood 2014)."""
    state, numbers = seed, []
    for _ in range(n_tables * reach):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        number = (z ^ (z >> 31)) | 1
        numbers.append(number - 2**64 if number >= 2**63 else number)
    return torch.tensor(numbers, dtype=torch.int64).view(n_tables, reach)


def addresses(tokens: Tensor, past: Tensor, hash_: Hash) -> Tensor:
    """tokens int64 [B, S], past [B, reach - 1] -> rows of all tables, one table after another, int64 [B, S, n_tables].

    `past` holds the tokens before, each plus one, 0 where there are none.
    """
    shifted = torch.cat([past, tokens + 1], 1)
    begins = begins_word(shifted)
    S, reach = tokens.shape[1], hash_.reach
    windows = [shifted[:, reach - 1 - i : reach - 1 - i + S] for i in range(reach)]  # the i-th token back
    ends = [begins[:, reach - 1 - i : reach - 1 - i + S] for i in range(reach)]
    found = []
    for table, (length, word) in enumerate(zip(hash_.lengths, hash_.words, strict=True)):
        total, inside = torch.zeros_like(tokens), torch.ones_like(tokens, dtype=torch.bool)
        for i in range(length):
            total = total + torch.where(inside, windows[i] * hash_.multipliers[table, i], 0)
            if word:
                inside = inside & ~ends[i]
        mixed = (total ^ ((total >> 31) & LOW31)) * MIX
        found.append(((((mixed >> 32) & LOW32) * hash_.n_rows) >> 32) + table * hash_.n_rows)
    return torch.stack(found, -1)


def begins_word(shifted: Tensor) -> Tensor:
    """Where a word begins: shifted, tokens plus one, [B, n] -> bool [B, n]; for the first column only whether it is in a word."""
    tokens = shifted - 1
    lower = tokens | 32
    letter = ((lower >= 97) & (lower <= 122)) | ((tokens >= 48) & (tokens <= 57)) | (tokens >= WORD_BYTES)
    before = torch.cat([torch.zeros_like(letter[:, :1]), letter[:, :-1]], 1)
    return letter & ~before
