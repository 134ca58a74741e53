"""The compiled loops of the `cpu` backend that add gradients to the rows that were read. Conventions are those of `rows`."""

from __future__ import annotations

from lutetia._shared.fixed import sums_in, write_sums
from lutetia._shared.loops import U, by_none, clear, element, first_given, jit, jit_inline, kernel, load, prefetch
from lutetia._shared.vectors import Lines, add_by_value, add_row_to_4, same_runs
from lutetia.lut.kernels.cpu.arrays import Gradients, LayerArrays, Places, Reads, RowArrays, Sink
from lutetia.lut.kernels.cpu.loops.basics import give_row, lines_of, scale_before
from lutetia.lut.kernels.cpu.loops.rows import FAR, ONCE

WIDE = 128  # gradients per row from which on sorting the batch pays

rows_from = by_none(lambda rows: None, lambda rows: RowArrays(*rows))


# ---- one table at a time --------------------------------------------------------------------------------------------


@jit
def gather_table(lines, width, t, reads, sink, listed, scale):
    """The table of one detector; `listed` are row_start, targets and rates. Few rows into far tables are fetched ahead."""
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
        bad |= add_line(total, lines, width, (i, t), reads.first, (sink.places, listed), scale)
        bad |= add_line(total, lines, width, (i, t), reads.second, (sink.places, listed), scale)
    return bad | write_sums(total, scale, part)


@jit_inline
def add_line(total, lines, width, place, rows, where, scale):
    """Line i to the row of table t that batch row i read; place is (i, t), and `where` the places and lists of `gather_table`."""
    if rows is None:
        return False
    (i, t), (places, (row_start, targets, rates)) = place, where
    index, factor = rows.indices[i, t], element(rows.factors, place)
    line, neuron = (lines.data, lines.first + i * lines.stride, width), t * places.n_rows + U(index)
    at = row_in_part(places, t, index, width)
    return give_row(row_start, total, at, line, (targets, rates), neuron, factor, scale)


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
            add_by_value(out, spans[detectors[j]], lines, width, indices[:, detectors[j]], n_rows)
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


# ---- all tables ------------------------------------------------------------------------------------------------------


@jit
def gather_tables(lines, width, detectors, reads, sink, scale):
    """The tables of some detectors: each line is added where it belongs."""
    bad, indices, special = False, reads.first.indices, first_given(scale, reads.first.factors)
    for j in range(gather_together(special, lines, width, detectors, indices, sink), U(detectors.size)):
        bad |= gather_table(lines, width, detectors[j], reads, sink, (None, None, None), scale)
    return bad


@jit
def gather_runs(_, gradients, layer, detectors, reads, sink, scale):
    """Some detectors of a block, those with the same rates at once."""
    (grad, rates), early = gradients, scale_before(reads.first.factors, scale)
    first, n, width, bad = 0, detectors.size, layer.width[detectors[0]], False
    while first < n:
        last, listed = first + 1, layer.list_at[detectors[first]]
        while last < n and same_runs(rates, listed, layer.list_at[detectors[last]], width):
            last += 1
        lines, overflow = lines_of(early, grad, layer, detectors[first], rates)
        bad |= overflow | gather_tables(lines, width, detectors[first:last], reads, sink, scale)
        first = last
    return bad


@jit
def gather_neurons(row_start, gradients, layer, detectors, reads, sink, scale):
    """The same where connectivity is general."""
    (grad, rates), bad = gradients, False
    lines = Lines(grad.reshape(-1), U(0), U(grad.shape[1]), U(grad.shape[0]))
    for t in detectors:
        bad |= gather_table(lines, U(1), t, reads, sink, (row_start, layer.targets, rates), scale)
    return bad


gather_block = by_none(gather_runs, gather_neurons)


@kernel
def gather(gradients, layer, reads, sink, scale, begin, end):
    """sink += gradients [B, O] at the rows read, for positions begin to end of the blocks' detectors.

    A fresh sink is cleared, each table just before it is added to, while it is at hand.
    """
    layer, reads, bad = LayerArrays(*layer), Reads(rows_from(reads[0]), rows_from(reads[1])), False
    sink, gradients = Sink(sink[0], Places(*sink[1]), sink[2]), Gradients(*gradients)
    for block in range(layer.start.size - 1):
        first, last = max(layer.start[block], U(begin)), min(layer.start[block + 1], U(end))
        if first < last:
            bad |= gather_block(layer.row_start, gradients, layer, layer.detectors[first:last], reads, sink, scale)
    return bad
