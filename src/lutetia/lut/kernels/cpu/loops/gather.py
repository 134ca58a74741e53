"""The compiled loops of the `cpu` backend that add gradients to the rows that were read. Conventions are those of `rows`."""

from __future__ import annotations

import numpy as np

from lutetia._shared.loops import U, by_none, clear, element, first_given, jit, jit_inline, kernel, load, prefetch
from lutetia.lut.kernels.cpu.arrays import Blocks, Lines, Places, Reads, Rows, Sink
from lutetia.lut.kernels.cpu.loops.basics import (
    add_4_rows,
    add_8_rows,
    add_row,
    add_row_to_4,
    out_of_range,
    round_to_unit,
    sums_in,
    write_sums,
)
from lutetia.lut.kernels.cpu.loops.rows import FAR, ONCE

WIDE = 128  # gradients per row from which on sorting the batch pays

rows_from = by_none(lambda rows: None, lambda rows: Rows(*rows))


@jit_inline
def reads_from(reads):
    """Plain tuples under their names."""
    return Reads(rows_from(reads[0]), rows_from(reads[1]))


@jit_inline
def sink_from(sink):
    return Sink(sink[0], Places(*sink[1]), sink[2])


# ---- one table at a time --------------------------------------------------------------------------------------------

# Gradients are in units before they meet a table, unless a factor comes between: the product is what is rounded.
scale_before = by_none(lambda factors, scale: scale, lambda factors, scale: None)
scale_after = by_none(lambda factor, scale: None, lambda factor, scale: scale)


@jit
def gather_table(lines, width, t, reads, sink, scale):
    """The table of one detector. Few rows into tables far from the cache are fetched ahead."""
    spans, bad = sink.places.spans, False
    part = sink.out[spans[t] : spans[t + U(1)]]
    if sink.fresh:
        clear(part)
    total = sums_in(scale, part)
    far = sink.out.size > FAR and lines.n <= ONCE
    for i in range(lines.n):
        if far:
            following = row_in_part(sink.places, t, reads.first.indices[min(i + U(2), lines.n - U(1)), t], width)
            for k in range(U(0), width, U(16)):
                prefetch(total, following + k)
        bad |= add_line(total, lines, width, (i, t), reads.first, sink.places, scale)
        bad |= add_line(total, lines, width, (i, t), reads.second, sink.places, scale)
    return bad | write_sums(total, scale, part)


@jit_inline
def add_line(total, lines, width, place, rows, places, scale):
    """Line i to the row of table t that batch row i read; place is (i, t)."""
    if rows is None:
        return False
    i, t = place
    row, factor = row_in_part(places, t, rows.indices[i, t], width), element(rows.factors, place)
    return add_row(total, row, lines.data, lines.first + i * lines.stride, width, factor, scale_after(factor, scale))


@jit_inline
def row_in_part(places, t, index, width):
    """Where the sums of a row begin among those of its detector."""
    starts, spans, n_rows = places
    return starts[t * n_rows + U(index)] - spans[t] if starts.size > 0 else U(index) * width


# ---- several gradients or tables at a time ---------------------------------------------------------------------------


@jit
def gather_several(_, lines, width, detectors, indices, sink):
    """As many tables as there is a faster way for, in float sums and without factors; how many these are.

    wide rows that several of the batch hit     sort the batch by row, then add up each row: it is read and written 1/8 as often
    tables in the cache, or rows hit often      four tables at a time: each gradient is fetched once for the four
    """
    (starts, spans, n_rows), n_tables, out = sink.places, U(detectors.size), sink.out
    if starts.size > 0:
        return U(0)
    if width >= WIDE and lines.n >= U(2) * n_rows:
        for j in range(n_tables):
            clear_tables(sink, detectors[j : j + U(1)])
            gather_sorted(lines, width, indices[:, detectors[j]], spans[detectors[j]], n_rows, out)
        return n_tables
    if out.size > FAR and lines.n <= ONCE:
        return U(0)
    done = n_tables // U(4) * U(4)
    for j in range(U(0), done, U(4)):
        clear_tables(sink, detectors[j : j + U(4)])
        gather_4_tables(lines, width, indices, detectors[j : j + U(4)], spans, out)
    return done


gather_together = by_none(gather_several, lambda _, lines, width, detectors, indices, sink: U(0))


@jit
def clear_tables(sink, detectors):
    """The sums of some detectors = 0, when they are fresh."""
    if sink.fresh:
        for t in detectors:
            clear(sink.out[sink.places.spans[t] : sink.places.spans[t + U(1)]])


@jit
def gather_4_tables(lines, width, indices, detectors, spans, out):
    """Written out, since a loop over the four would look up their places again for every row: 1.5 times as long."""
    n_detectors, indices = U(indices.shape[1]), indices.reshape(-1)
    t, u, v, w = detectors[0], detectors[1], detectors[2], detectors[3]
    t_at, u_at, v_at, w_at = spans[t], spans[u], spans[v], spans[w]
    for i in range(lines.n):
        batch_at = i * n_detectors
        places = (
            t_at + U(load(indices, batch_at + t)) * width,
            u_at + U(load(indices, batch_at + u)) * width,
            v_at + U(load(indices, batch_at + v)) * width,
            w_at + U(load(indices, batch_at + w)) * width,
        )
        add_row_to_4(out, places, lines.data, lines.first + i * lines.stride, width)


@jit
def gather_sorted(lines, width, indices, row, n_rows, out):
    """Row by row of the table that begins at `row`, eight gradients at a time; indices [B] are the table's."""
    ends, sources = np.empty(n_rows, np.uint64), np.empty(indices.size, np.uint64)
    sort_by_row(indices, lines, ends, sources)
    k = U(0)
    for r in range(n_rows):
        while k + U(8) <= ends[r]:
            add_8_rows(out, row, lines.data, (*four_of(sources, k), *four_of(sources, k + U(4))), None, width)
            k += U(8)
        if k + U(4) <= ends[r]:
            add_4_rows(out, row, lines.data, four_of(sources, k), width)
            k += U(4)
        while k < ends[r]:
            add_row(out, row, lines.data, load(sources, k), width, None, None)
            k += U(1)
        row += width


@jit
def sort_by_row(indices, lines, ends, sources):
    """indices [B] -> sources [B]: where the gradients begin, by row; ends [R]: where those of each row end."""
    clear(ends)
    for i in range(indices.size):
        ends[indices[i]] += U(1)
    before = U(0)
    for r in range(ends.size):
        count, ends[r] = ends[r], before
        before += count
    for i in range(U(indices.size)):
        sources[ends[indices[i]]] = lines.first + i * lines.stride
        ends[indices[i]] += U(1)


@jit_inline
def four_of(sources, k):
    return load(sources, k), load(sources, k + U(1)), load(sources, k + U(2)), load(sources, k + U(3))


# ---- all tables ------------------------------------------------------------------------------------------------------


@jit
def gather_tables(lines, width, detectors, reads, sink, scale):
    """The tables of some detectors: each line is added where it belongs."""
    bad, indices, special = False, reads.first.indices, first_given(scale, reads.first.factors)
    for j in range(gather_together(special, lines, width, detectors, indices, sink), U(detectors.size)):
        bad |= gather_table(lines, width, detectors[j], reads, sink, scale)
    return bad


@jit
def same_rates(rates, one, other, width):
    """Whether two lists of targets have the same rates."""
    same = True
    if rates.size > 0:
        for k in range(width):
            same &= rates[one + k] == rates[other + k]
    return same


@jit
def pack_columns(packed, grad, outputs, rates, listed, scale):
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
def gather_packed(early, gradients, blocks, some, reads, sink, scale):
    """Some detectors of a block, its number and the positions from which to which: columns packed, times their rates."""
    (grad, rates), (block, first, last) = gradients, some
    n, c, bad = U(grad.shape[0]), blocks.width[block], False
    packed = sums_in(early, np.empty(n * c, grad.dtype))
    for j in range(first, last):
        listed = blocks.list_at[j]
        if j == first or not same_rates(rates, listed, blocks.list_at[j - U(1)], c):
            bad |= pack_columns(packed, grad, blocks.targets[listed : listed + c], rates, listed, early)
        bad |= gather_tables(Lines(packed, U(0), c, n), c, blocks.detectors[j : j + U(1)], reads, sink, scale)
    return bad


@jit
def gather_floats(early, gradients, blocks, some, reads, sink, scale):
    """The same where the gradients may be added as they are."""
    (grad, rates), (block, first, last) = gradients, some
    if rates.size > 0 or not blocks.contiguous[block]:
        return gather_packed(early, gradients, blocks, some, reads, sink, scale)
    lines = Lines(grad.reshape(-1), U(blocks.targets[blocks.list_at[first]]), U(grad.shape[1]), U(grad.shape[0]))
    return gather_tables(lines, blocks.width[block], blocks.detectors[first:last], reads, sink, scale)


gather_block = by_none(gather_floats, gather_packed)


@kernel
def gather(gradients, blocks, reads, sink, scale, begin, end):
    """sink += gradients [B, O] at the rows read, for positions begin to end of the blocks' detectors.

    A fresh sink is cleared, each table just before it is added to, while it is at hand.
    """
    blocks, reads, sink, bad = Blocks(*blocks), reads_from(reads), sink_from(sink), False
    early = scale_before(reads.first.factors, scale)
    for block in range(blocks.width.size):
        positions = (max(blocks.start[block], U(begin)), min(blocks.start[block + 1], U(end)))
        if positions[0] < positions[1]:
            bad |= gather_block(early, gradients, blocks, (block, *positions), reads, sink, scale)
    return bad
