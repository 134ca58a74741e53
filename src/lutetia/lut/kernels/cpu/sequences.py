"""Sequences on the CPU, by pairs or by cells, compiled; the primitives of a `Backend`.

The loops are in `loops.pairs`, `loops.slopes` and `loops.cells`, and `arrays` says what they take; here tensors become arrays,
detector by detector, are checked, and the work is divided over threads: positions going forward, detectors and batch rows to
the inputs, detectors to the weights. No two threads write to the same place, and how many there are never changes a result.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.arrays import array_of, float_array_of, new_array
from lutetia._shared.memory import free_memory
from lutetia._shared.threads import over
from lutetia.errors import ArgumentError, check_tensor, fail
from lutetia.lut.kernels.cpu.arrays import Gradients, Keys, Margins
from lutetia.lut.kernels.cpu.detect import anchor_array
from lutetia.lut.kernels.cpu.plan import LayerPlan, loop, plan_of, raise_if, scale_of
from lutetia.lut.kernels.cpu.rows import index_array, weight_array
from lutetia.lut.kernels.protocol import Connectivity, Into, Sequence
from lutetia.lut.kernels.recorder import kernel
from lutetia.lut.kernels.reference.rows import uncertainty_slope
from lutetia.lut.sums import Sums, from_units, sum_dtype

STEP = 1 << 24  # gradients that an in-place step keeps at once
SMALL = 1 << 26  # bytes of scratch for which nobody need ask how much memory there is
TILE = 64  # places that gather_cells counts at once: with 16 it takes 1.1 times as long, with 4 half as long again


# ---- tensors as arrays -----------------------------------------------------------------------------------------------


def keys_of(sequence: Sequence, plan: LayerPlan) -> Keys:
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


def grad_array(grad: Tensor, weight: Tensor, sequence: Sequence, plan: LayerPlan) -> np.ndarray:
    """grad [B, S, O] as [B · S, O], in the dtype of sums with weight."""
    check_tensor("grad", grad, [*sequence.x.indices.shape[:2], plan.n_outputs])
    return array_of(grad.to(sum_dtype(grad, weight))).reshape(grad.shape[0] * grad.shape[1], plan.n_outputs)


def margins_of(sequence: Sequence) -> Margins:
    """The margins of a sequence's closest calls, and which bit each decides."""
    for found, prefix in ((sequence.x, ""), (sequence.positions, "pe_")):
        check_tensor(prefix + "min_delta", found.min_delta, list(found.indices.shape))
        check_tensor(prefix + "min_delta_index", found.min_delta_index, list(found.indices.shape))
    delta, which = (tensor.detach().permute(2, 0, 1) for tensor in sequence.x.closest)
    pe_delta, pe_which = (tensor.detach().flip(0).t() for tensor in sequence.positions.closest)
    bits = (1 << (which.int() + sequence.positional_dim), 1 << pe_which.int())
    margins = (delta.abs(), uncertainty_slope(delta), bits[0], pe_delta.abs(), uncertainty_slope(pe_delta), bits[1])
    return Margins(*map(array_of, margins))


def counts_cells(sequence: Sequence, sums: Sums) -> bool:
    """Whether cells are counted: if requested and the loops can; walking pairs gives the same answer."""
    return sequence.products is not None and not sums.exact and sequence.n_cells >= 4


def n_pairs(sequence: Sequence) -> int:
    """Pairs i < j of a batch: B · S (S - 1) / 2."""
    batch, length, _ = sequence.x.indices.shape
    return batch * length * (length - 1) // 2


def within_budget(sequence: Sequence, seq: Keys, bytes_per_tile: int, tiles: int = 1) -> int:
    """How many of the tiles of scratch that each thread would like it can have, at least one."""
    budget = None if sequence.products is None else sequence.products.budget
    per_tile = bytes_per_tile * torch.get_num_threads()
    least = seq.keys.nbytes + seq.signs.nbytes + per_tile
    if budget is None and least + tiles * per_tile < SMALL:
        return tiles
    limit = free_memory(torch.device("cpu")) // 4 if budget is None else budget
    if limit < least:
        raise ArgumentError(f"budget is {limit} bytes, expected at least {least}: the indices, and one tile for each thread")
    return min(tiles, 1 + (limit - least) // per_tile)


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def fill_sequence(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """y[j] = Σ_{i < j} Σ_t W[t, cell] -> [B, S, O]."""
    plan, (batch, length, _) = plan_of(connectivity), sequence.x.indices.shape
    seq, y = keys_of(sequence, plan), new_array((batch * length, plan.n_outputs), weight)
    couples, additions = batch * ((length + 1) // 2), n_pairs(sequence) * plan.n_synapses
    if counts_cells(sequence, sums):
        within_budget(sequence, seq, 4 * (sequence.n_cells + plan.n_outputs) * y.itemsize)
        over(couples, additions, loop("cells", "fill_cells"), weight_array(weight, plan), seq, y)
    else:
        arrays = (weight_array(weight, plan), plan.layer, seq, y, scale_of(sums))
        raise_if(over(couples, additions, loop("pairs", "fill_seq"), *arrays), sums)
    return torch.from_numpy(y).view(batch, length, plan.n_outputs)


@kernel
def fill_step(x: Tensor, weight: Tensor, anchors: Tensor, cache: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """y [B, O] of one new position of each row, whose indices join those in the cache; in one launch."""
    n_rows, n_detectors, capacity = weight.shape[1], len(anchors), cache.shape[2]
    positional_dim = n_rows.bit_length() - 1 - 2 * anchors.shape[1]
    fits = cache.shape[:2] == (len(x), n_detectors) and len(lengths) == len(x) and places.shape == (n_detectors, capacity - 1)
    if not fits or positional_dim < 0 or weight.shape[:2] != (n_detectors, 1 << (2 * anchors.shape[1] + positional_dim)):
        fail("cache", cache, f"indices, lengths and places of {len(x)} rows and {n_detectors} detectors, and tables that fit")
    y, held = new_array((len(x), weight.shape[2]), weight), lengths.numpy()
    earlier = (cache.numpy(), held, array_of(places), positional_dim)
    arrays = ((float_array_of(x), anchor_array(anchors, x.shape[1])), array_of(weight).reshape(-1), earlier, y)
    work = int(held.sum()) * n_detectors * weight.shape[2]
    if over(len(x), work, loop("pairs", "fill_step"), *arrays):
        raise ArgumentError(f"the cache holds an index past {1 << anchors.shape[1]}, or a length past {capacity - 1}: reset() it")
    return torch.from_numpy(y)


# ---- backward, to the inputs and the positions -----------------------------------------------------------------------


@kernel
def propagate_sequence(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, sequence: Sequence, anchors: Tensor, n_inputs: int, sums: Sums
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], anchors [N_t, N_c, 2] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    plan, (batch, length, n_detectors), n_pe = plan_of(connectivity), sequence.x.indices.shape, sequence.positional_dim
    g, seq = grad_array(grad, weight, sequence, plan), keys_of(sequence, plan)
    if anchors.shape[:2] != (n_detectors, sequence.n_anchors):
        fail("anchors", anchors, f"shape [{n_detectors}, {sequence.n_anchors}, 2]")
    (_, closest), (_, pe_closest) = sequence.x.closest, sequence.positions.closest
    pairs, margins = anchor_array(anchors, n_inputs), margins_of(sequence)
    which = index_array("min_delta_index", closest.flatten(0, 1), n_detectors, anchors.shape[1])
    bits = index_array("pe_min_delta_index", pe_closest, n_detectors, max(n_pe, 1))

    # The slopes of every place and detector, and of every distance and detector, farthest first.
    kept = np.int64 if sums.exact else g.dtype
    slopes = (np.zeros((n_detectors, batch, length), kept), np.zeros((n_detectors, batch, length - 1), kept))
    work = n_pairs(sequence) * plan.n_synapses
    if counts_cells(sequence, sums):
        padded, n_cells = plan.n_outputs + 3, sequence.n_cells
        within_budget(sequence, seq, (padded * n_cells + 4 * (padded + n_cells)) * g.itemsize)
        by_cells = (g, weight_array(weight, plan), seq, margins, slopes)
        over(n_detectors * batch, work, loop("cells", "propagate_cells"), *by_cells)
    else:
        by_pairs = (g, (weight_array(weight, plan), plan.layer), seq, margins, slopes, scale_of(sums))
        raise_if(over(n_detectors * batch, 3 * work, loop("slopes", "propagate_seq"), *by_pairs), sums)

    dx = np.empty((batch * length, n_inputs), g.dtype)
    to_send = (slopes[0].reshape(n_detectors, -1), np.ascontiguousarray(which.T), pairs, dx, scale_of(sums))
    raise_if(over(len(dx), slopes[0].size, loop("slopes", "send_slopes"), *to_send), sums)
    of_distance = torch.from_numpy(slopes[1]).sum(1).flip(1).t()  # nearest first
    dpositions = of_distance.new_zeros(*of_distance.shape, n_pe)
    if n_pe:
        dpositions.scatter_(2, torch.from_numpy(bits.view(np.int32)).long().unsqueeze(2), of_distance.unsqueeze(2))
    to_x = torch.from_numpy(dx).view(batch, length, n_inputs)
    return to_x, from_units(dpositions, sums, to_x.dtype)


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@kernel
def gather_sequence(grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
    """grad [B, S, O] -> dW, or `into` after its step."""
    plan = plan_of(connectivity)
    seq, g, cells = keys_of(sequence, plan), grad_array(grad, grad, sequence, plan), counts_cells(sequence, sums)
    additions = n_pairs(sequence) * plan.n_synapses // max(plan.n_detectors, 1)
    tile = 0
    if cells:
        tile = 4 * within_budget(sequence, seq, 4 * (sequence.n_cells + plan.n_outputs) * g.itemsize, TILE // 4)

    def add(begin: int, end: int, out: np.ndarray, rate: float) -> None:
        """out += rate times the gradients of the weights of detectors begin to end, flat."""
        (scaled, rates), n, work = scaled_by(g, plan, rate), end - begin, (end - begin) * additions
        if cells:
            over(n, work, loop("cells", "gather_cells"), scaled, seq, out, begin, np.uint64(tile))
        else:
            arrays = (Gradients(scaled, rates), plan.layer, seq, (out, plan.table_at, begin), scale_of(sums))
            raise_if(over(n, work, loop("pairs", "gather_seq"), *arrays), sums)

    def gradient(begin: int, end: int) -> Tensor:
        out = np.zeros(int(plan.table_at[end] - plan.table_at[begin]), g.dtype)
        add(begin, end, out, 1.0)
        return torch.from_numpy(out)

    n = plan.n_detectors
    if into is None:
        return gradient(0, n).view(connectivity.weight_shape)
    weight, rate = into
    check_tensor("weight", weight, list(connectivity.weight_shape))
    if not sums.exact and weight.is_contiguous() and array_of(weight).dtype == g.dtype:
        # Straight to the weights: of large tables a batch reads a few rows in a hundred, and the others are not touched.
        add(0, n, array_of(weight).reshape(-1), -rate)
        torch.autograd.graph.increment_version(weight)
        return weight
    # A few detectors after the other, so that only their gradients are kept. But a fixed sum may be out of range, and that must
    # be known before the first weight changes.
    some = n if sums.exact else max(torch.get_num_threads(), STEP * n // max(plan.n_weights, 1), 1)
    for begin in range(0, n, some):
        end = min(begin + some, n)
        rows = slice(begin, end) if weight.dim() == 3 else slice(int(plan.table_at[begin]), int(plan.table_at[end]))
        part = weight.detach()[rows]
        part.copy_(part - rate * gradient(begin, end).view(part.shape))
    return weight


def scaled_by(g: np.ndarray, plan: LayerPlan, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """g times rate and lr_scale where that is one number; else also what multiplies each synapse."""
    if isinstance(plan.rates, float):
        factor = rate * plan.rates
        return (g if factor == 1.0 else g * g.dtype.type(factor)), np.empty(0, g.dtype)
    return g, (rate * plan.rates).astype(g.dtype)
