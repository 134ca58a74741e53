"""The compiled loops of the `cpu` backend. Each does its work for a range of rows or detectors, serially and without the GIL.

Conventions: weights, targets and index tensors are flat and unsigned (a signed index would be tested for "counts from the
end" on every use). `scale` is None for float sums, else how many units make 1.0; each of the two is compiled apart, so one
source is both kernels. What can overflow returns True when it did.

A layout of full or shared connectivity is a tuple of `blocks`: detectors with the same targets, of which each block is a
small fully connected layer of its own.

    start [n_blocks + 1]    the detectors of block i are start[i] to start[i + 1] of the next three
    detectors [N_t]         their numbers
    weight_at [N_t]         where their tables begin in the weights; a table is [R, width]
    list_at [N_t]           where their targets begin in `targets`
    width [n_blocks]        how many targets each has
    contiguous [n_blocks]   whether the targets are consecutive outputs
    targets                 outputs
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.lut.kernels.cpu.loops.basics import U as U  # these names are public here: other files of loops import them
from lutetia.lut.kernels.cpu.loops.basics import accumulate as accumulate
from lutetia.lut.kernels.cpu.loops.basics import add_4_rows, add_row_to_4, jit_inline, kernel, prefetch
from lutetia.lut.kernels.cpu.loops.basics import add_8_rows as add_8_rows
from lutetia.lut.kernels.cpu.loops.basics import add_row as add_row
from lutetia.lut.kernels.cpu.loops.basics import jit as jit
from lutetia.lut.kernels.cpu.loops.basics import jit_any_order as jit_any_order
from lutetia.lut.kernels.cpu.loops.basics import load as load
from lutetia.lut.kernels.cpu.loops.basics import out_of_range as out_of_range
from lutetia.lut.kernels.cpu.loops.basics import round_to_unit as round_to_unit
from lutetia.lut.kernels.cpu.loops.basics import sums_in as sums_in
from lutetia.lut.kernels.cpu.loops.basics import write_sums as write_sums

LANES = 64  # batch rows compared at once
PADDED = LANES + 16  # a power of two would put a whole column of lanes in the same few cache sets
FEW = 6  # rows below which comparing one by one is faster
FAR = 2**20  # weights that do not fit the caches of one core
ONCE = 512  # batch rows among which a row of a table is seldom looked up twice
HANDFUL = 64  # batch rows that go one after the other through tables far from the cache
WIDE = 128  # gradients per row from which on sorting the batch pays


# ---- detect ----------------------------------------------------------------------------------------------------------


@jit
def largest(values: Any) -> Any:
    """The largest of an unsigned array [n], 0 when it is empty."""
    found = values.dtype.type(0)
    for i in range(values.size):
        found = max(found, values[i])
    return found


@kernel
def detect(x: Any, anchors: Any, indices: Any, stacked: Any, min_delta: Any, min_delta_index: Any, begin: Any, end: Any) -> None:
    """x [B, I], anchors [N_t, N_c, 2] -> the others [B, N_t], for rows begin to end; the last two may be None.

    Stacked, indices count through the tables: t · R + index.
    """
    for first in range(begin, end, LANES):
        n = min(LANES, end - first)
        if n < FEW:
            for row in range(first, first + n):
                detect_row(x, anchors, indices, stacked, min_delta, min_delta_index, row)
        else:
            detect_lanes(x, anchors, indices, stacked, min_delta, min_delta_index, first, n)


@jit_inline
def first_row(t: Any, anchors: Any, stacked: Any) -> Any:
    """The number of the first row of table t."""
    return np.uint32(t) << np.uint32(anchors.shape[1]) if stacked else np.uint32(0)


@jit
def detect_row(x: Any, anchors: Any, indices: Any, stacked: Any, min_delta: Any, min_delta_index: Any, row: Any) -> None:
    for t in range(anchors.shape[0]):
        bits = first_row(t, anchors, stacked)
        closest, which = x[row, anchors[t, 0, 0]] - x[row, anchors[t, 0, 1]], np.uint32(0)
        for r in range(anchors.shape[1]):
            u = x[row, anchors[t, r, 0]] - x[row, anchors[t, r, 1]]
            bits |= np.uint32(u > 0) << np.uint32(r)  # no branch: half of them would be guessed wrong
            if min_delta is not None:
                closer = abs(u) < abs(closest)
                closest, which = (u if closer else closest), (np.uint32(r) if closer else which)
        indices[row, t] = bits
        if min_delta is not None:
            min_delta[row, t], min_delta_index[row, t] = closest, which


@jit
def detect_lanes(
    x: Any, anchors: Any, indices: Any, stacked: Any, min_delta: Any, min_delta_index: Any, first: Any, n: Any
) -> None:
    """The same for n rows at once: with x transposed, one instruction compares many rows (8 times as fast)."""
    n_detectors, n_anchors, _ = anchors.shape
    lanes = np.zeros((x.shape[1], PADDED), x.dtype)
    bits = np.empty((n_detectors, PADDED), np.uint32)
    for j in range(n):
        for i in range(x.shape[1]):
            lanes[i, j] = x[first + j, i]
    if min_delta is not None:
        closest, which = np.empty((n_detectors, PADDED), x.dtype), np.empty((n_detectors, PADDED), np.uint32)
    for t in range(n_detectors):
        a, b, start = anchors[t, 0, 0], anchors[t, 0, 1], first_row(t, anchors, stacked)
        for j in range(LANES):
            bits[t, j] = start
            if min_delta is not None:
                closest[t, j], which[t, j] = lanes[a, j] - lanes[b, j], 0
        for r in range(n_anchors):
            a, b, bit = anchors[t, r, 0], anchors[t, r, 1], np.uint32(1) << np.uint32(r)
            for j in range(LANES):
                u = lanes[a, j] - lanes[b, j]
                bits[t, j] |= bit if u > 0 else np.uint32(0)
                if min_delta is not None:
                    closer = abs(u) < abs(closest[t, j])
                    closest[t, j] = u if closer else closest[t, j]
                    which[t, j] = np.uint32(r) if closer else which[t, j]
    for j in range(n):
        for t in range(n_detectors):
            indices[first + j, t] = bits[t, j]
            if min_delta is not None:
                min_delta[first + j, t], min_delta_index[first + j, t] = closest[t, j], which[t, j]


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def fill(weight: Any, blocks: Any, indices: Any, y: Any, scale: Any, begin: Any, end: Any) -> Any:
    """weight flat, indices [B, N_t] -> y [B, O], for rows begin to end."""
    start, detectors, weight_at, list_at, width, contiguous, targets = blocks
    n, n_outputs, bad = U(end - begin), U(y.shape[1]), False
    y = y[begin:end].reshape(-1)
    indices = indices[begin:end]
    y[:] = 0
    total = sums_in(y, scale)
    for block in range(width.size):
        first, last, c = start[block], start[block + 1], width[block]
        outputs = targets[list_at[first] : list_at[first] + c]
        sums, at, stride = total, U(0), n_outputs
        if contiguous[block]:
            at = U(outputs[0])
        else:
            sums, stride = np.zeros(n * c, total.dtype), c
        bad |= fill_block(sums, at, stride, weight, weight_at[first:last], detectors[first:last], indices, c, scale)
        if not contiguous[block]:
            for i in range(n):
                for k in range(c):
                    total[i * n_outputs + U(outputs[k])] += sums[i * c + k]
    return bad | write_sums(total, scale, y)


@kernel
def evaluate(x: Any, anchors: Any, weight: Any, blocks: Any, indices: Any, y: Any, scale: Any, begin: Any, end: Any) -> Any:
    """detect and fill, for rows begin to end: one launch instead of two."""
    detect(x, anchors, indices, False, None, None, begin, end)
    return fill(weight, blocks, indices, y, scale, begin, end)


@jit_inline
def fetch_8_rows(weight: Any, tables: Any, indices: Any, place: Any, n: Any, n_detectors: Any) -> None:
    """Begin to fetch the rows that fill_block adds next: their first lines, from which the processor guesses the others."""
    weight_at, detectors, width = tables
    t, i = place
    if i < n:
        for j in range(t, min(t + U(8), U(detectors.size))):
            row = chosen_row(weight_at, detectors, indices, j, i * n_detectors, width)
            for k in range(U(0), min(width, U(64)), U(16)):
                prefetch(weight, row + k)


@jit
def fill_block(
    total: Any, at: Any, stride: Any, weight: Any, weight_at: Any, detectors: Any, indices: Any, width: Any, scale: Any
) -> Any:
    """Row i of total, at + i · stride, += the chosen rows of all detectors of a block.

    Detectors outside, batch rows inside: a few tables at a time stay in cache (and their pages in the TLB), up to twice as
    fast as going through all tables for each batch row.
    """
    n, n_tables, bad = U(indices.shape[0]), U(detectors.size), False
    n_detectors, indices = U(indices.shape[1]), indices.reshape(-1)
    done, ahead = U(0), weight.size > FAR and n <= ONCE
    if scale is None:
        done = n_tables // U(8) * U(8)
        tables = (weight_at, detectors, width)
        if ahead and n <= HANDFUL:  # too few to share a table: one batch row after the other, its sums at hand
            for i in range(n):
                for t in range(U(0), done, U(8)):
                    following: Any = (t + U(8), i) if t + U(8) < n_tables else (U(0), i + U(1))
                    fetch_8_rows(weight, tables, indices, following, n, n_detectors)
                    add_8_rows(total, at + i * stride, weight, chosen_rows(tables, indices, t, i * n_detectors), width)
        else:
            for t in range(U(0), done, U(8)):
                for i in range(n):
                    if ahead:
                        following = (t, i + U(1)) if i + U(1) < n else (t + U(8), U(0))
                        fetch_8_rows(weight, tables, indices, following, n, n_detectors)
                    add_8_rows(total, at + i * stride, weight, chosen_rows(tables, indices, t, i * n_detectors), width)
    for t in range(done, n_tables):
        for i in range(n):
            row = chosen_row(weight_at, detectors, indices, t, i * n_detectors, width)
            bad |= add_row(total, at + i * stride, weight, row, width, scale)
    return bad


@jit_inline
def chosen_rows(tables: Any, indices: Any, t: Any, batch_at: Any) -> Any:
    """The same for detectors t to t + 8."""
    weight_at, detectors, width = tables
    return (
        chosen_row(weight_at, detectors, indices, t, batch_at, width),
        chosen_row(weight_at, detectors, indices, t + U(1), batch_at, width),
        chosen_row(weight_at, detectors, indices, t + U(2), batch_at, width),
        chosen_row(weight_at, detectors, indices, t + U(3), batch_at, width),
        chosen_row(weight_at, detectors, indices, t + U(4), batch_at, width),
        chosen_row(weight_at, detectors, indices, t + U(5), batch_at, width),
        chosen_row(weight_at, detectors, indices, t + U(6), batch_at, width),
        chosen_row(weight_at, detectors, indices, t + U(7), batch_at, width),
    )


@jit_inline
def chosen_row(weight_at: Any, detectors: Any, indices: Any, t: Any, batch_at: Any, width: Any) -> Any:
    """Where the row that the t-th detector of a block chose begins in the weights."""
    return load(weight_at, t) + U(load(indices, batch_at + load(detectors, t))) * width


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


@jit_any_order
def dot(grad: Any, at: Any, weight: Any, row: Any, other: Any, width: Any) -> Any:
    """Σ grad · weight of the row - Σ grad · weight of the other, over `width` elements."""
    total = grad.dtype.type(0)
    for k in range(width):
        total += load(grad, at + k) * load(weight, row + k) - load(grad, at + k) * load(weight, other + k)
    return total


@jit
def dot_fixed(grad: Any, at: Any, weight: Any, row: Any, other: Any, width: Any, scale: Any) -> Any:
    """The same in units, and whether an addend was out of range."""
    total, bad = np.int64(0), False
    for k in range(width):
        plus = round_to_unit(load(grad, at + k) * load(weight, row + k), scale)
        minus = round_to_unit(load(grad, at + k) * load(weight, other + k), scale)
        bad |= out_of_range(plus) | out_of_range(minus)
        total += np.int64(plus) - np.int64(minus)
    return total, bad


@jit
def uncertainty_slope(u: Any, one: Any) -> Any:
    """0.5 sgn(u) / (1 + |u|)², with sgn(0) = -1; `one` keeps the arithmetic in the dtype of u."""
    half = one / (one + one)
    near = one + abs(u)
    return (half if u > 0 else -half) / (near * near)


@jit
def send_to_anchors(total: Any, row_at: Any, pair: Any, slope: Any, scale: Any) -> Any:
    """total[a] += slope, total[b] -= slope for the pair (a, b)."""
    a, b = row_at + U(pair[0]), row_at + U(pair[1])
    if scale is None:
        total[a] += slope
        total[b] -= slope
        return False
    units = round_to_unit(slope, scale)
    total[a] += np.int64(units)
    total[b] -= np.int64(units)
    return out_of_range(units)


@kernel
def propagate(grad: Any, weight: Any, blocks: Any, found: Any, anchors: Any, dx: Any, scale: Any, begin: Any, end: Any) -> Any:
    """grad [B, O], weight flat, anchors [N_t, N_c, 2] -> dx [B, I], for rows begin to end.

    `found` is indices, min_delta, min_delta_index, each [B, N_t].
    """
    start, detectors, weight_at, list_at, width, contiguous, targets = blocks
    n, n_outputs, bad = U(end - begin), U(grad.shape[1]), False
    found = (found[0][begin:end], found[1][begin:end], found[2][begin:end])
    grad = grad[begin:end].reshape(-1)
    dx = dx[begin:end].reshape(-1)
    dx[:] = 0
    total = sums_in(dx, scale)
    for block in range(width.size):
        first, last, c = start[block], start[block + 1], width[block]
        outputs = targets[list_at[first] : list_at[first] + c]
        tables = (weight_at[first:last], detectors[first:last], c)
        columns, at, stride = grad, U(0), n_outputs
        if contiguous[block]:
            at = U(outputs[0])
        else:
            columns, stride = np.empty(n * c, grad.dtype), c
            for i in range(n):
                for k in range(c):
                    columns[i * c + k] = grad[i * n_outputs + U(outputs[k])]
        bad |= propagate_block(columns, at, stride, weight, tables, found, anchors, total, scale)
    return bad | write_sums(total, scale, dx)


@jit
def propagate_block(
    grad: Any, at: Any, stride: Any, weight: Any, tables: Any, found: Any, anchors: Any, total: Any, scale: Any
) -> Any:
    """The detectors of one block: row i of its gradients is at + i · stride; total [n · I] takes the slopes."""
    weight_at, detectors, width = tables
    indices, min_delta, min_delta_index = found
    n, bad, one = indices.shape[0], False, min_delta.dtype.type(1)
    n_inputs = U(total.size // max(n, 1))
    for first in range(0, detectors.size, 8):  # eight tables at a time, for the same reason as in fill_block
        for i in range(n):
            for j in range(first, min(first + 8, detectors.size)):
                t = detectors[j]
                index, which = indices[i, t], min_delta_index[i, t]
                row = weight_at[j] + U(index) * width
                other = weight_at[j] + U(index ^ (np.uint32(1) << which)) * width
                if scale is None:
                    gain = dot(grad, at + U(i) * stride, weight, row, other, width)
                else:
                    units, overflow = dot_fixed(grad, at + U(i) * stride, weight, row, other, width, scale)
                    bad |= overflow or out_of_range(units)
                    gain = grad.dtype.type(np.float64(units) / scale)
                slope = uncertainty_slope(min_delta[i, t], one) * gain
                bad |= send_to_anchors(total, U(i) * n_inputs, anchors[t, which], slope, scale)
    return bad


# ---- backward, to the weights ----------------------------------------------------------------------------------------
# `places` says where the sums go: starts [N_t · R], where those of each lookup neuron begin in `out` (empty: row after row),
# spans [N_t + 1], where those of each detector begin, and R. Each detector has its own part of `out`: threads never meet.


@jit
def mark(indices: Any, fired: Any) -> None:
    """fired [N_t, R] = 1 for each lookup neuron that indices [B, N_t] name."""
    for i in range(indices.shape[0]):
        for t in range(indices.shape[1]):
            fired[t, indices[i, t]] = 1


@kernel
def gather(
    grad: Any, rates: Any, blocks: Any, indices: Any, places: Any, out: Any, fresh: Any, scale: Any, begin: Any, end: Any
) -> Any:
    """out += grad [B, O] at the looked-up rows, for positions begin to end of the blocks' detectors.

    `rates` multiplies the gradients: a number per listed target, or none at all. A fresh `out` is cleared, each table just
    before it is added to, while it is at hand.
    """
    start, detectors, _, list_at, width, contiguous, targets = blocks
    n, n_outputs, bad = U(grad.shape[0]), U(grad.shape[1]), False
    for block in range(width.size):
        first, last, c = max(start[block], U(begin)), min(start[block + 1], U(end)), width[block]
        if first >= last:
            continue
        if scale is None and rates.size == 0 and contiguous[block]:  # the gradients as they are
            at = U(targets[list_at[first]])
            gather_floats(grad.reshape(-1), at, n_outputs, c, indices, detectors[first:last], places, out, fresh)
            continue
        packed = sums_in(np.empty(n * c, grad.dtype), scale)
        for j in range(first, last):
            listed = list_at[j]
            if j == first or not same_rates(rates, listed, list_at[j - U(1)], c):
                bad |= pack_columns(packed, grad, targets[listed : listed + c], rates, listed, scale)
            if scale is None:
                gather_floats(packed, U(0), c, c, indices, detectors[j : j + U(1)], places, out, fresh)
            else:
                bad |= gather_fixed(packed, c, indices, detectors[j], places, out, scale)
    return bad


@jit
def same_rates(rates: Any, one: Any, other: Any, width: Any) -> Any:
    """Whether two lists of targets have the same rates."""
    same = True
    if rates.size > 0:
        for k in range(width):
            same &= rates[one + k] == rates[other + k]
    return same


@jit
def pack_columns(packed: Any, grad: Any, outputs: Any, rates: Any, listed: Any, scale: Any) -> Any:
    """packed [B · width] = the columns of grad [B, O] that a detector reaches, times their rates; in units, for fixed sums."""
    bad, width = False, U(outputs.size)
    for i in range(U(grad.shape[0])):
        for k in range(width):
            value = grad[i, outputs[k]]
            if rates.size > 0:
                value = value * rates[listed + k]
            if scale is None:
                packed[i * width + k] = value
            else:
                units = round_to_unit(value, scale)
                bad |= out_of_range(units)
                packed[i * width + k] = np.int64(units)
    return bad


@jit
def gather_fixed(packed: Any, width: Any, indices: Any, t: Any, places: Any, out: Any, scale: Any) -> Any:
    """The table of detector t: row i of `packed` [B · width], in units, is added where it belongs."""
    starts, spans, n_rows = places
    part = out[spans[t] : spans[t + U(1)]]
    total = sums_in(part, scale)
    for i in range(U(indices.shape[0])):
        row = row_of(starts, spans, n_rows, t, U(indices[i, t]), width)
        add_row(total, row - spans[t], packed, i * width, width, None)
    return write_sums(total, scale, part)


@jit
def gather_floats(
    packed: Any, at: Any, stride: Any, width: Any, indices: Any, tables: Any, places: Any, out: Any, fresh: Any
) -> None:
    """The tables of some detectors: row i of `packed`, at + i · stride, is added where it belongs. Three ways, one sum each:

    wide rows that several of the batch hit   sort the batch by row, then add up each row: it is read and written 1/8 as often
    few rows into tables far from the cache   a table at a time, fetching ahead
    else                                      four tables at a time: each gradient is fetched once for the four
    """
    starts, spans, n_rows = places
    n, n_tables, done = U(indices.shape[0]), U(tables.size), U(0)
    if starts.size == 0 and width >= WIDE and n >= U(2) * n_rows:
        for j in range(n_tables):
            clear(out, spans, tables[j : j + U(1)], fresh)
            gather_sorted(packed, at, stride, width, indices[:, tables[j]], spans[tables[j]], n_rows, out)
        return
    far = out.size > FAR and n <= ONCE
    if starts.size == 0 and not far:
        done = n_tables // U(4) * U(4)
        for j in range(U(0), done, U(4)):
            clear(out, spans, tables[j : j + U(4)], fresh)
            gather_4_tables(packed, at, stride, width, indices, tables[j : j + U(4)], spans, out)
    for j in range(done, n_tables):
        clear(out, spans, tables[j : j + U(1)], fresh)
        t = tables[j]
        for i in range(n):
            if far:
                following = U(indices[min(i + U(2), n - U(1)), t])
                row = row_of(starts, spans, n_rows, t, following, width)
                for k in range(U(0), width, U(16)):
                    prefetch(out, row + k)
            row = row_of(starts, spans, n_rows, t, U(indices[i, t]), width)
            add_row(out, row, packed, at + i * stride, width, None)


@jit
def clear(out: Any, spans: Any, tables: Any, fresh: Any) -> None:
    """The sums of some detectors = 0, when they are fresh."""
    if fresh:
        for j in range(tables.size):
            out[spans[tables[j]] : spans[tables[j] + U(1)]] = 0


@jit_inline
def row_of(starts: Any, spans: Any, n_rows: Any, t: Any, index: Any, width: Any) -> Any:
    """Where the sums of a lookup neuron begin in `out`."""
    return starts[t * n_rows + index] if starts.size > 0 else spans[t] + index * width


@jit
def gather_4_tables(packed: Any, at: Any, stride: Any, width: Any, indices: Any, tables: Any, spans: Any, out: Any) -> None:
    """Written out, since a loop over the four would look up their places again for every row: 1.5 times as long."""
    n, n_detectors, indices = U(indices.shape[0]), U(indices.shape[1]), indices.reshape(-1)
    t, u, v, w = tables[0], tables[1], tables[2], tables[3]
    t_at, u_at, v_at, w_at = spans[t], spans[u], spans[v], spans[w]
    for i in range(n):
        batch_at = i * n_detectors
        places = (
            t_at + U(load(indices, batch_at + t)) * width,
            u_at + U(load(indices, batch_at + u)) * width,
            v_at + U(load(indices, batch_at + v)) * width,
            w_at + U(load(indices, batch_at + w)) * width,
        )
        add_row_to_4(out, places, packed, at + i * stride, width)


@jit
def gather_sorted(packed: Any, at: Any, stride: Any, width: Any, indices: Any, row: Any, n_rows: Any, out: Any) -> None:
    """Row by row of the table that begins at `row`, eight gradients at a time; indices [B] are the table's."""
    ends, sources = np.empty(n_rows, np.uint64), np.empty(indices.size, np.uint64)
    sort_by_row(indices, at, stride, ends, sources)
    k = U(0)
    for r in range(n_rows):
        while k + U(8) <= ends[r]:
            add_8_rows(out, row, packed, (*four_of(sources, k), *four_of(sources, k + U(4))), width)
            k += U(8)
        if k + U(4) <= ends[r]:
            add_4_rows(out, row, packed, four_of(sources, k), width)
            k += U(4)
        while k < ends[r]:
            add_row(out, row, packed, load(sources, k), width, None)
            k += U(1)
        row += width


@jit
def sort_by_row(indices: Any, at: Any, stride: Any, ends: Any, sources: Any) -> None:
    """indices [B] -> sources [B]: where the gradients begin, at + i · stride, by row; ends [R]: where those of each row end."""
    ends[:] = 0
    for i in range(indices.size):
        ends[indices[i]] += U(1)
    before = U(0)
    for r in range(ends.size):
        count, ends[r] = ends[r], before
        before += count
    for i in range(U(indices.size)):
        sources[ends[indices[i]]] = at + i * stride
        ends[indices[i]] += U(1)


@jit_inline
def four_of(sources: Any, k: Any) -> Any:
    return load(sources, k), load(sources, k + U(1)), load(sources, k + U(2)), load(sources, k + U(3))
