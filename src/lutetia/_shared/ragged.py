"""Lists of different lengths, one after the other, and rows of a batch that have lengths of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lutetia._shared.dtypes import INTEGER_DTYPES
from lutetia.errors import ArgumentError, check_memory, check_tensor, fail


def listed(lengths: Tensor, total: int | None = None) -> tuple[Tensor, Tensor]:
    """Every entry of lists of these lengths [n]: the number of its list, and its place in it, int64 [total] each.

    On CUDA the total, where it is known, need not be waited for.
    """
    lists = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths, output_size=total)
    return lists, torch.arange(len(lists), device=lengths.device) - (lengths.cumsum(0) - lengths)[lists]


def turns_of(lengths: Tensor, limit: int) -> Iterator[slice]:
    """Runs of lists of these lengths [n] that have no more than `limit` entries together, or of a single list."""
    begin, entries = 0, 0
    for end, length in enumerate(lengths.tolist()):
        if end > begin and entries + length > limit:
            yield slice(begin, end)
            begin, entries = end, 0
        entries += length
    if begin < len(lengths):
        yield slice(begin, len(lengths))


def runs_of(start: Tensor, keys: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Runs of at most `most` entries of one list that have one key: where each begins, and how many entries it has, [n] each.

    List i has the entries start[i] to start[i + 1], keys [all of them].
    """
    begins = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)
    begins[1:] = keys[1:] != keys[:-1]
    begins[start[:-1][start.diff() > 0]] = True
    first = begins.nonzero().flatten()
    length = torch.cat([first, first.new_tensor([len(keys)])]).diff()
    run, nth = listed((length + most - 1) // most)
    return first[run] + nth * most, (length[run] - nth * most).clamp(max=most)


def check_lengths(lengths: Any, x: Tensor, name: str = "lengths") -> None:
    """Check lengths [B] of the sequences x [B, S, ...]; their values only where they can be read without harm."""
    check_tensor(name, lengths, [x.shape[0]], INTEGER_DTYPES)
    if lengths.is_meta != x.is_meta:
        fail(name, lengths, f"a tensor on {x.device}")
    if torch.compiler.is_compiling() or (lengths.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    outside = (lengths < 0) | (lengths > x.shape[1])
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ArgumentError(f"{name} has {int(lengths[row])} in row {row}, expected 0 to {x.shape[1]}")


def rows_in(index: Any, batch: int) -> Tensor:
    """index, an integer tensor [any B] that names rows of a batch, as int64 on the host."""
    check_tensor("index", index, ["B"], INTEGER_DTYPES)
    check_memory("index", index)
    rows = index.long().cpu()
    if bool(((rows < 0) | (rows >= batch)).any()):
        fail("index", rows.tolist(), f"rows from 0 to {batch - 1}")
    return rows
