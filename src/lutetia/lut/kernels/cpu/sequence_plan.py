"""How a sequence and the tables it reads lie in memory, as arrays that the compiled loops can walk, and the scratch they may use.

`arrays` says what the arrays mean.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.memory import free_memory
from lutetia.errors import ArgumentError, check_tensor
from lutetia.lut.kernels.cpu.arrays import Keys, Margins, SequenceTables
from lutetia.lut.kernels.cpu.plan import Plan, array_of
from lutetia.lut.kernels.cpu.rows import index_array, weight_array
from lutetia.lut.kernels.protocol import Sequence
from lutetia.lut.kernels.reference.rows import uncertainty_slope
from lutetia.lut.sums import sum_dtype

SMALL = 1 << 26  # bytes of scratch for which nobody need ask how much memory there is


def n_pairs(sequence: Sequence) -> int:
    """Pairs i < j of a batch: B · S (S - 1) / 2."""
    batch, length, _ = sequence.x.indices.shape
    return batch * length * (length - 1) // 2


def arrays_of(sequence: Sequence, plan: Plan) -> Keys:
    """The indices, checked, as the loops want them."""
    n_anchors, n_pe, indices, pe_indices = sequence.n_anchors, sequence.positional_dim, sequence.x[0], sequence.positions[0]
    if n_anchors < 1 or plan.n_rows != 1 << (2 * n_anchors + n_pe):
        raise ArgumentError(f"a table has {plan.n_rows} rows, expected 2**(2 N_c + {n_pe}) of them")
    check_tensor("indices", indices, ["B", "S", plan.n_detectors])
    check_tensor("pe_indices", pe_indices, [indices.shape[1] - 1, plan.n_detectors])
    chosen = index_array("indices", indices.flatten(0, 1), plan.n_detectors, 1 << n_anchors).reshape(indices.shape)
    signs = index_array("pe_indices", pe_indices, plan.n_detectors, 1 << n_pe)
    keys = np.ascontiguousarray(chosen.transpose(2, 0, 1)) << np.uint32(n_pe)
    return Keys(keys, np.ascontiguousarray(signs[::-1].T), np.uint32(n_anchors), np.uint32(n_pe))


def tables_of(plan: Plan, weight: Tensor | None = None) -> SequenceTables:
    """The tables of a plan, with their weights where these are read."""
    n, weights = plan.n_detectors, None if weight is None else weight_array(weight, plan)
    if plan.rows is not None:
        row_start, targets, n_rows = plan.rows
        none = np.zeros(n, np.uint64)
        start = np.arange(n + 1, dtype=np.uint64) * n_rows
        return SequenceTables(weights, start, none, none.view(np.int64), none, targets, row_start)
    assert plan.blocks is not None
    start, detectors, _, list_at, width, contiguous, targets = plan.blocks
    block = np.repeat(np.arange(len(width)), start[1:].astype(np.int64) - start[:-1].astype(np.int64))
    widths, lists, column = np.empty(n, np.uint64), np.empty(n, np.uint64), np.full(n, -1, np.int64)
    widths[detectors], lists[detectors] = width[block], list_at
    in_a_run = contiguous[block]
    column[detectors[in_a_run]] = targets[list_at[in_a_run]]
    return SequenceTables(weights, plan.table_at, widths, column, lists, targets)


def grad_array(grad: Tensor, weight: Tensor, sequence: Sequence, plan: Plan) -> np.ndarray:
    """grad [B, S, O] as [B · S, O], in the dtype of sums with weight."""
    check_tensor("grad", grad, [*sequence.x.indices.shape[:2], plan.n_outputs])
    return array_of(grad.to(sum_dtype(grad, weight))).reshape(grad.shape[0] * grad.shape[1], plan.n_outputs)


def margins_of(sequence: Sequence) -> Margins:
    """How close the calls of a sequence were, and which bit the closest decides."""
    for found, prefix in ((sequence.x, ""), (sequence.positions, "pe_")):
        check_tensor(prefix + "min_delta", found.min_delta, list(found.indices.shape))
        check_tensor(prefix + "min_delta_index", found.min_delta_index, list(found.indices.shape))
    delta, which = (tensor.detach().permute(2, 0, 1) for tensor in sequence.x.closest)
    pe_delta, pe_which = (tensor.detach().flip(0).t() for tensor in sequence.positions.closest)
    bits = (1 << (which.int() + sequence.positional_dim), 1 << pe_which.int())
    margins = (delta.abs(), uncertainty_slope(delta), bits[0], pe_delta.abs(), uncertainty_slope(pe_delta), bits[1])
    return Margins(*map(array_of, margins))


def within_budget(budget: int | None, seq: Keys, bytes_per_tile: int, tiles: int = 1) -> int:
    """How many of the tiles that each thread would like it can have, at least one."""
    per_tile = bytes_per_tile * torch.get_num_threads()
    least = seq[0].nbytes + seq[1].nbytes + per_tile
    if budget is None and least + tiles * per_tile < SMALL:
        return tiles
    limit = free_memory(torch.device("cpu")) // 4 if budget is None else budget
    if limit < least:
        raise ArgumentError(f"budget is {limit} bytes, expected at least {least}: the indices, and one tile for each thread")
    return min(tiles, 1 + (limit - least) // per_tile)
