"""The compiled loops of n-gram tables on a CPU: addresses, and steps of the rows that were read."""

from __future__ import annotations

import math

import numpy as np

from lutetia._shared.compiled import jit
from lutetia.nn.ngram.hashing import LOW31, LOW32, MIX, WORD_BYTES


@jit(nogil=True)
def in_word(token):  # type: ignore[no-untyped-def]
    """Whether a token is a letter, a digit or a byte of one; -1, before the first token, is not."""
    lower = token | 32
    return 97 <= lower <= 122 or 48 <= token <= 57 or token >= WORD_BYTES


@jit(nogil=True)
def addresses(tokens, past, lengths, words, multipliers, n_rows, out, begin, end):  # type: ignore[no-untyped-def]
    """Rows begin to end of the batch: tokens [B, S], past [B, reach - 1] -> out [B, S, n_tables], all int64."""
    reach, S = multipliers.shape[1], tokens.shape[1]
    shifted = np.empty(reach - 1 + S, np.int64)
    for b in range(begin, end):
        for i in range(reach - 1):
            shifted[i] = past[b, i]
        for s in range(S):
            shifted[reach - 1 + s] = tokens[b, s] + 1
        for s in range(S):
            last = reach - 1 + s
            for table in range(len(lengths)):
                total = np.int64(0)
                for i in range(lengths[table]):
                    at = last - i
                    total += shifted[at] * multipliers[table, i]
                    if words[table] and at > 0 and in_word(shifted[at] - 1) and not in_word(shifted[at - 1] - 1):
                        break
                mixed = (total ^ ((total >> 31) & LOW31)) * MIX
                out[b, s, table] = ((((mixed >> 32) & LOW32) * n_rows) >> 32) + table * n_rows


@jit(nogil=True)
def read_codes(codes, exponents, index, out, begin, end):  # type: ignore[no-untyped-def]
    """Rows begin to end of out [n, width] float32: codes [rows, width] times 2**exponents [rows], of the rows in index [n]."""
    for n in range(begin, end):
        row = index[n]
        scale = np.float32(math.ldexp(1.0, exponents[row]))
        for d in range(codes.shape[1]):
            out[n, d] = np.float32(codes[row, d]) * scale


@jit(nogil=True)
def step_rows(weight, square, count, order, starts, rows, values, lr, beta, eps, decay, begin, end):  # type: ignore[no-untyped-def]
    """Step the rows begin to end of those that were read; the gradients of row n are values[order[starts[n] : starts[n + 1]]]."""
    width = weight.shape[1]
    gradient = np.empty(width, weight.dtype)
    for n in range(begin, end):
        row = rows[n]
        for d in range(width):
            gradient[d] = 0
        for at in range(starts[n], starts[n + 1]):
            for d in range(width):
                gradient[d] += values[order[at], d]
        count[row, 0] += 1
        unbiased = 1 - beta ** count[row, 0]
        for d in range(width):
            square[row, d] = beta * square[row, d] + (1 - beta) * gradient[d] * gradient[d]
            change = gradient[d] / (math.sqrt(square[row, d] / unbiased) + eps)
            weight[row, d] = weight[row, d] * (1 - lr * decay) - lr * change
