"""The Triton sources of rows: added up forward, multiplied with g, and given what g sends to them.

CUDA on a GPU, and the same text under Triton's interpreter on a CPU. One source serves three layouts of the weights:

    FC       W[t, row, o]: every detector reaches every output
    SHARED   the rows of detector t reach `targets[start[t] : start[t + 1]]`; detectors with the same targets form a block
    GENERAL  lookup neuron n reaches `targets[start[n] : start[n + 1]]`

A fully connected layer is one block of all detectors, so FC and SHARED run the same loops. Rows are added as they are, or, where
there are coefficients, times those.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from lutetia._shared.triton_fixed import from_units, units
from lutetia.lut.kernels.triton.source.basics import FC, HARD, SHARED, also, as_stored, send, uncertainty_slope
from lutetia.lut.kernels.triton.source.detect import coefficients_tile, detect_tile

# ---- where things are ------------------------------------------------------------------------------------------------


@triton.jit
def block_of_detectors(block, tables, sizes, CASE: tl.constexpr):
    """First and last place of a block in the list of detectors, how many outputs it reaches, where their list begins."""
    WIDTH: tl.constexpr = CASE.WIDTH
    if CASE.LAYOUT == FC:
        return 0, sizes.n_detectors, WIDTH, 0
    else:
        first = tl.load(tables.block_start + block)
        head = tl.load(tables.block_detectors + first)
        targets = tl.load(tables.start + head)
        width = WIDTH if WIDTH > 0 else (tl.load(tables.start + head + 1) - targets).to(tl.int32)
        return first, tl.load(tables.block_start + block + 1), width, targets


@triton.jit
def detectors_from(first, last, tables, CASE: tl.constexpr):
    """BLOCK_T detectors from a place in the list of a block on, and which of them are there."""
    t = first + tl.arange(0, CASE.BLOCK_T)
    t_mask = t < last
    if CASE.LAYOUT == SHARED:
        t = tl.load(tables.block_detectors + t, mask=t_mask, other=0)
    return t, t_mask


@triton.jit
def outputs_of(k, k_mask, target_base, tables, CASE: tl.constexpr):
    """The outputs that the weights k of a row reach."""
    return k if CASE.LAYOUT == FC else tl.load(tables.targets + target_base + k, mask=k_mask, other=0)


@triton.jit
def rates_of(k, k_mask, target_base, tables, CASE: tl.constexpr):
    """The lr_scale of the weights k of a row, as far as g does not have it yet."""
    if tables.lr is not None:
        return tl.load(tables.lr + target_base + k, mask=k_mask, other=0.0).to(CASE.ACC)
    else:
        return tl.full([CASE.BLOCK_O], 1.0, CASE.ACC)


@triton.jit
def row_offset(t, index, tables, width, t_mask, CASE: tl.constexpr):
    """Where the row `index` of detector t begins in the flat weights."""
    if CASE.WIDTH > 0:
        row = t * CASE.N_ROWS + index
        return row.to(tl.int64) * CASE.WIDTH if CASE.WIDE else row * CASE.WIDTH
    else:
        start = tl.load(tables.start + t, mask=t_mask, other=0) * CASE.N_ROWS
        return start + index * width if CASE.WIDE else start.to(tl.int32) + index * width


@triton.jit
def load_rows(row, k, mask, tables, CASE: tl.constexpr):
    """The weights k [O] of rows that begin at `row` [T]: [T, O]."""
    return tl.load(tables.weight + row[:, None] + k[None, :], mask=mask, other=0.0).to(CASE.ACC)


# ---- forward ---------------------------------------------------------------------------------------------------------


@triton.jit
def fill_kernel(inputs, rows, sums, tables, sizes, READ: tl.constexpr, CASE: tl.constexpr):
    """One program per (row of the batch, block of detectors, tile of its outputs): read the inputs if given, add up the rows."""
    b = (tl.program_id(0) // sizes.n_blocks).to(tl.int64)
    first, last, width, target_base = block_of_detectors(tl.program_id(0) % sizes.n_blocks, tables, sizes, CASE)
    tile = tl.program_id(1)
    o = tile * CASE.BLOCK_O + tl.arange(0, CASE.BLOCK_O)
    o_mask = o < width
    total = tl.full([CASE.BLOCK_T, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
    for start in range(first, last, CASE.BLOCK_T):
        t, t_mask = detectors_from(start, last, tables, CASE)
        place = b * sizes.n_detectors + t
        if inputs.x is None:
            index = tl.load(rows.indices + b * sizes.n_detectors + t, mask=t_mask, other=0)
            if READ.COEFFICIENTS > 0:
                factor = tl.load(rows.a + place, mask=t_mask, other=0.0)
            if READ.COEFFICIENTS > 1:
                other = tl.load(rows.alternatives + place, mask=t_mask, other=0)
                other_factor = tl.load(rows.b + place, mask=t_mask, other=0.0)
        elif READ.KIND == HARD:
            TRAIN: tl.constexpr = rows.min_delta is not None
            index, closest, which = detect_tile(inputs, (b, sizes.n_inputs), t, t_mask, TRAIN, READ)
            if TRAIN:
                keep = also(t_mask, tile == 0)
                tl.store(rows.indices + place, index, mask=keep)
                tl.store(rows.min_delta + place, closest, mask=keep)
                tl.store(rows.min_delta_index + place, which, mask=keep)
        else:
            index, other, factor, other_factor = coefficients_tile(inputs, (b, sizes.n_inputs), t, t_mask, READ)
        mask = t_mask[:, None] & o_mask[None, :]
        addend = load_rows(row_offset(t, index, tables, width, t_mask, CASE), o, mask, tables, CASE)
        if READ.COEFFICIENTS > 0:
            addend = factor.to(CASE.ACC)[:, None] * addend
        total += units(addend, sums.overflow, mask, CASE.SCALE)
        if READ.COEFFICIENTS > 1:
            addend = load_rows(row_offset(t, other, tables, width, t_mask, CASE), o, mask, tables, CASE)
            total += units(other_factor.to(CASE.ACC)[:, None] * addend, sums.overflow, mask, CASE.SCALE)
    y = tl.sum(total, axis=0)
    o = outputs_of(o, o_mask, target_base, tables, CASE)
    if CASE.ATOMIC:
        tl.atomic_add(sums.out + b * sizes.n_outputs + o, y, mask=o_mask, sem="relaxed")
    else:
        tl.store(sums.out + b * sizes.n_outputs + o, y, mask=o_mask)


@triton.jit
def fill_slab_kernel(index_ptr, strides, sums, tables, batch, n_detectors, CASE: tl.constexpr):
    """Large batches, FC: one program per (many rows of the batch, slab of outputs).

    The programs of one processor walk the detectors at one pace, so the slab W[t, :, o] stays in its first-level cache while
    many rows of the batch choose from it (B 32768, O 256, 128 tables: 0.32 ms against 0.44 ms).
    """
    row_stride, detector_stride = strides
    b = tl.program_id(0) * CASE.BLOCK_B + tl.arange(0, CASE.BLOCK_B)
    o = tl.program_id(1) * CASE.BLOCK_O + tl.arange(0, CASE.BLOCK_O)
    b_mask = b < batch
    mask = b_mask[:, None] & (o < CASE.WIDTH)[None, :]
    row_ptr = index_ptr + b.to(tl.int64) * row_stride
    total = tl.full([CASE.BLOCK_B, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
    for t in range(n_detectors):
        index = tl.load(row_ptr + tl.cast(t, tl.int64) * detector_stride, mask=b_mask, other=0)
        row = row_offset(t, index, tables, 0, b_mask, CASE)
        total += units(load_rows(row, o, mask, tables, CASE), sums.overflow, mask, CASE.SCALE)
    tl.store(sums.out + b.to(tl.int64)[:, None] * CASE.WIDTH + o[None, :], total, mask=mask)


@triton.jit
def fill_general_kernel(rows, sums, tables, sizes, max_fan_out, CASE: tl.constexpr):
    """One program per (row of the batch, tile of detectors): walk the forward synapse groups of their lookup neurons."""
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * CASE.BLOCK_T + tl.arange(0, CASE.BLOCK_T)
    t_mask = t < sizes.n_detectors
    place = b * sizes.n_detectors + t
    neuron = t * CASE.N_ROWS + tl.load(rows.indices + place, mask=t_mask, other=0)
    if rows.a is not None:
        factor = tl.load(rows.a + place, mask=t_mask, other=0.0).to(CASE.ACC)[:, None]
    first = tl.load(tables.start + neuron, mask=t_mask, other=0)
    last = tl.load(tables.start + neuron + 1, mask=t_mask, other=0)
    for start in range(0, max_fan_out, CASE.BLOCK_O):
        synapse = first[:, None] + (start + tl.arange(0, CASE.BLOCK_O))[None, :]
        mask = synapse < last[:, None]
        addend = tl.load(tables.weight + synapse, mask=mask, other=0.0).to(CASE.ACC)
        if rows.a is not None:
            addend = factor * addend
        o = tl.load(tables.targets + synapse, mask=mask, other=0)
        addend = units(addend, sums.overflow, mask, CASE.SCALE)
        tl.atomic_add(sums.out + b * sizes.n_outputs + o, addend, mask=mask, sem="relaxed")


# ---- backward, to the inputs -----------------------------------------------------------------------------------------
# g · W of the chosen rows. With the anchors of a hard read what goes on is the difference to the row of the closest call, sent to
# the anchors, else the products themselves.


@triton.jit
def clear(out_ptr, first, last, step):
    """Set out[first:last] to zero, or of every `step` numbers the first 128."""
    for start in range(first, last, step):
        n = start + tl.arange(0, 128)
        tl.store(out_ptr + n, tl.zeros([128], out_ptr.dtype.element_ty), mask=n < last)


@triton.jit
def gains_kernel(grad_ptr, rows, anchors_ptr, sums, tables, sizes, cleared, CASE: tl.constexpr):
    """One program per (row of the batch, tile of detectors of one block).

    `cleared`, if not None, is memory that the next kernel adds to, and how many numbers: all programs together set it to zero.
    One that has a row of dx to itself does the same with that.
    """
    SEND: tl.constexpr = anchors_ptr is not None
    TWO: tl.constexpr = rows.alternatives is not None
    b = (tl.program_id(0) // sizes.n_blocks).to(tl.int64)
    if cleared is not None:
        memory, count = cleared
        program = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        clear(memory, program * 128, count, tl.num_programs(0) * tl.num_programs(1) * 128)
    if CASE.ALONE:
        clear(sums.out + b * sizes.n_inputs, 0, sizes.n_inputs, 128)
        tl.debug_barrier()  # the numbers are there before a thread adds to them
    first, last, width, target_base = block_of_detectors(tl.program_id(0) % sizes.n_blocks, tables, sizes, CASE)
    t, t_mask = detectors_from(first + tl.program_id(1) * CASE.BLOCK_T, last, tables, CASE)
    place = b * sizes.n_detectors + t
    index = tl.load(rows.indices + place, mask=t_mask, other=0)
    row = row_offset(t, index, tables, width, t_mask, CASE)
    gain = tl.full([CASE.BLOCK_T, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
    if SEND:
        which = tl.load(rows.min_delta_index + place, mask=t_mask, other=0)
        other = index ^ (1 << which)
    elif TWO:
        other = tl.load(rows.alternatives + place, mask=t_mask, other=0)
        other_gain = tl.full([CASE.BLOCK_T, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
    if SEND or TWO:
        other_row = row_offset(t, other, tables, width, t_mask, CASE)
    for start in range(0, width, CASE.BLOCK_O):
        k = start + tl.arange(0, CASE.BLOCK_O)
        k_mask = k < width
        mask = t_mask[:, None] & k_mask[None, :]
        weight = load_rows(row, k, mask, tables, CASE)
        if SEND or TWO:
            other_weight = load_rows(other_row, k, mask, tables, CASE)
        o = outputs_of(k, k_mask, target_base, tables, CASE)
        g = tl.load(grad_ptr + b * sizes.n_outputs + o, mask=k_mask, other=0.0).to(CASE.ACC)[None, :]
        if SEND and CASE.SCALE == 0:
            gain += g * (weight - other_weight)
        else:
            gain += units(g * weight, sums.overflow, mask, CASE.SCALE)
            if SEND:
                gain -= units(g * other_weight, sums.overflow, mask, CASE.SCALE)
            elif TWO:
                other_gain += units(g * other_weight, sums.overflow, mask, CASE.SCALE)
    if SEND:
        result = from_units(tl.sum(gain, axis=1), sums.overflow, t_mask, CASE.SCALE, CASE.ACC)
        slope = uncertainty_slope(tl.load(rows.min_delta + place, mask=t_mask, other=1.0)).to(CASE.ACC) * result
        pair_ptr = anchors_ptr + (t * CASE.N_C + which) * 2
        send(slope, pair_ptr, (sums.out + b * sizes.n_inputs, sizes.n_inputs), sums.overflow, t_mask, CASE.SCALE)
    else:
        tl.store(sums.out + place, as_stored(tl.sum(gain, axis=1), sums.out, sums.overflow, t_mask, CASE), mask=t_mask)
        if TWO:
            total = as_stored(tl.sum(other_gain, axis=1), sums.other, sums.overflow, t_mask, CASE)
            tl.store(sums.other + place, total, mask=t_mask)


@triton.jit
def neuron_dot(grad_row_ptr, neuron, t_mask, overflow_ptr, tables, max_fan_out, CASE: tl.constexpr):
    """g · W[neuron] over the synapses of each lookup neuron [T]."""
    first = tl.load(tables.start + neuron, mask=t_mask, other=0)
    last = tl.load(tables.start + neuron + 1, mask=t_mask, other=0)
    total = tl.full([CASE.BLOCK_T, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
    for start in range(0, max_fan_out, CASE.BLOCK_O):
        synapse = first[:, None] + (start + tl.arange(0, CASE.BLOCK_O))[None, :]
        mask = synapse < last[:, None]
        weight = tl.load(tables.weight + synapse, mask=mask, other=0.0).to(CASE.ACC)
        o = tl.load(tables.targets + synapse, mask=mask, other=0)
        g = tl.load(grad_row_ptr + o, mask=mask, other=0.0).to(CASE.ACC)
        total += units(g * weight, overflow_ptr, mask, CASE.SCALE)
    return tl.sum(total, axis=1)


@triton.jit
def gains_general_kernel(grad_ptr, rows, anchors_ptr, sums, tables, numbers, CASE: tl.constexpr):
    """One program per (row of the batch, tile of detectors)."""
    sizes, max_fan_out = numbers
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * CASE.BLOCK_T + tl.arange(0, CASE.BLOCK_T)
    t_mask = t < sizes.n_detectors
    place = b * sizes.n_detectors + t
    index = tl.load(rows.indices + place, mask=t_mask, other=0)
    grad_ptr += b * sizes.n_outputs
    gain = neuron_dot(grad_ptr, t * CASE.N_ROWS + index, t_mask, sums.overflow, tables, max_fan_out, CASE)
    if anchors_ptr is not None:
        which = tl.load(rows.min_delta_index + place, mask=t_mask, other=0)
        other = t * CASE.N_ROWS + (index ^ (1 << which))
        gain -= neuron_dot(grad_ptr, other, t_mask, sums.overflow, tables, max_fan_out, CASE)
    if anchors_ptr is not None:
        result = from_units(gain, sums.overflow, t_mask, CASE.SCALE, CASE.ACC)
        slope = uncertainty_slope(tl.load(rows.min_delta + place, mask=t_mask, other=1.0)).to(CASE.ACC) * result
        pair_ptr = anchors_ptr + (t * CASE.N_C + which) * 2
        send(slope, pair_ptr, (sums.out + b * sizes.n_inputs, sizes.n_inputs), sums.overflow, t_mask, CASE.SCALE)
    else:
        tl.store(sums.out + place, as_stored(gain, sums.out, sums.overflow, t_mask, CASE), mask=t_mask)


# ---- backward, to the weights ----------------------------------------------------------------------------------------
# Two ways. *Scatter*: add each row of g to the weights it chose, with atomics: best where rows are short.
# *Sort*: put the rows of the batch in order of the lookup neuron they chose, detector by detector (a counting sort); then each
# neuron adds up its own rows of g and writes its weights once, without atomics.
# A read of two rows scatters twice, or sorts both at once: a list of 2 B rows, of which the second half are the batch again.


@triton.jit
def scatter_kernel(grad_ptr, rows, out_ptr, tables, sizes, numbers, CASE: tl.constexpr):
    """One program per (BLOCK_B rows of the batch, tile of detectors of a block, tile of outputs).

    Neighbouring rows that chose the same neuron are added before the atomic: otherwise a batch that hits one entry would
    serialise on its address (about 40 ns each).
    """
    batch, n_tiles, step = numbers
    BLOCK_B: tl.constexpr = CASE.BLOCK_B
    b = (tl.program_id(0) // sizes.n_blocks).to(tl.int64) * CASE.BLOCK_B
    first, last, width, target_base = block_of_detectors(tl.program_id(0) % sizes.n_blocks, tables, sizes, CASE)
    t, t_mask = detectors_from(first + (tl.program_id(1) % n_tiles) * CASE.BLOCK_T, last, tables, CASE)
    k = (tl.program_id(1) // n_tiles) * CASE.BLOCK_O + tl.arange(0, CASE.BLOCK_O)
    k_mask = k < width
    o = outputs_of(k, k_mask, target_base, tables, CASE)
    lr = rates_of(k, k_mask, target_base, tables, CASE)
    if step is not None:
        lr = -step * lr
    index = tl.load(rows.indices + b * sizes.n_detectors + t, mask=t_mask, other=-1)
    total = tl.full([CASE.BLOCK_T, CASE.BLOCK_O], 0, CASE.ACC)
    for j in tl.static_range(BLOCK_B):
        g = tl.load(grad_ptr + (b + j) * sizes.n_outputs + o, mask=also(k_mask, b + j < batch), other=0.0).to(CASE.ACC)
        if rows.a is not None:
            place = (b + j) * sizes.n_detectors + t
            factor = tl.load(rows.a + place, mask=also(t_mask, b + j < batch), other=0.0).to(CASE.ACC)
            total += (g * lr)[None, :] * factor[:, None]
        else:
            total += g[None, :] * lr[None, :]
        # A row past the batch, or the last of this program, has no successor: -1 differs from every index.
        alive = also(t_mask, b + j + 1 < batch) & (j + 1 < CASE.BLOCK_B)
        following = tl.load(rows.indices + (b + j + 1) * sizes.n_detectors + t, mask=alive, other=-1)
        ends = (following != index)[:, None]
        row = row_offset(t, tl.maximum(index, 0), tables, width, t_mask, CASE)
        tl.atomic_add(
            out_ptr + row[:, None] + k[None, :], total, mask=ends & (index >= 0)[:, None] & k_mask[None, :], sem="relaxed"
        )
        total = tl.where(ends, 0.0, total)
        index = following


class GatherNumbers(NamedTuple):
    """Numbers of a gradient by sorting: rows of the batch, and of the list, which is as long or twice as long.

    With a step, the sums go straight into the weights.
    """

    batch: int
    listed: int
    chunks: int
    step: float | None


@triton.jit
def neuron_synapses(neuron, tables, n_outputs, CASE: tl.constexpr):
    """Where the weights and the targets of one lookup neuron begin, and how many there are (start: det_start or row_start)."""
    if CASE.LAYOUT == FC:
        return neuron.to(tl.int64) * n_outputs, neuron.to(tl.int64) * 0, n_outputs
    elif CASE.LAYOUT == SHARED:
        start = tl.load(tables.start + neuron // CASE.N_ROWS)
        width = (tl.load(tables.start + neuron // CASE.N_ROWS + 1) - start).to(tl.int32)
        return start * CASE.N_ROWS + (neuron % CASE.N_ROWS).to(tl.int64) * width, start, width
    else:
        start = tl.load(tables.start + neuron)
        return start, start, (tl.load(tables.start + neuron + 1) - start).to(tl.int32)


@triton.jit
def neuron_sum(neuron, span, gradients, sorted_rows, tables, numbers, CASE: tl.constexpr):
    """Where a tile of a neuron's weights lies and which are there, [O], and Σ lr · g (· a) over the rows order[first:last]."""
    first, last = span
    grad_ptr, rows, overflow_ptr, sizes = gradients
    t = neuron // CASE.N_ROWS
    base, target_base, width = neuron_synapses(neuron, tables, sizes.n_outputs, CASE)
    if sorted_rows.compact is not None:
        base = tl.load(sorted_rows.compact + neuron)
    k = tl.program_id(1) * CASE.BLOCK_O + tl.arange(0, CASE.BLOCK_O)
    k_mask = k < width
    o = outputs_of(k, k_mask, target_base, tables, CASE)
    lr = rates_of(k, k_mask, target_base, tables, CASE)[None, :]
    order_ptr = sorted_rows.order + t.to(tl.int64) * numbers.listed
    total = tl.full([CASE.BLOCK_B, CASE.BLOCK_O], 0, tl.int64 if CASE.SCALE > 0 else CASE.ACC)
    for start in range(first, last, CASE.BLOCK_B):
        i = start + tl.arange(0, CASE.BLOCK_B)
        b = tl.load(order_ptr + i, mask=i < last, other=0).to(tl.int64)
        mask = (i < last)[:, None] & k_mask[None, :]
        if rows.a is not None:
            factor = tl.load(rows.a + t + b * sizes.n_detectors, mask=i < last, other=0.0).to(CASE.ACC)
            b = b % numbers.batch
        addend = tl.load(grad_ptr + b[:, None] * sizes.n_outputs + o[None, :], mask=mask, other=0.0).to(CASE.ACC) * lr
        if rows.a is not None:
            addend = addend * factor[:, None]
        total += units(addend, overflow_ptr, mask, CASE.SCALE)
    return base + k, k_mask, tl.sum(total, axis=0)


@triton.jit
def gather_kernel(gradients, sums, sorted_rows, tables, numbers, CASE: tl.constexpr, CAP: tl.constexpr):
    """One program per (lookup neuron, tile of its synapses): the first CAP rows that chose it; the rest is for `gather_rest`."""
    neuron = tl.program_id(0)
    count = tl.load(sorted_rows.count + neuron)
    if numbers.step is not None or sorted_rows.compact is not None:
        if count == 0:
            return
    first = tl.load(sorted_rows.end + neuron) - count
    span = (first, first + tl.minimum(count, CAP))
    at, mask, total = neuron_sum(neuron, span, gradients, sorted_rows, tables, numbers, CASE)
    if numbers.step is not None:
        total = tl.load(sums.out + at, mask=mask, other=0.0) - numbers.step * total
    tl.store(sums.out + at, total, mask=mask)


@triton.jit
def gather_rest_kernel(gradients, sums, sorted_rows, tables, numbers, CASE: tl.constexpr, CAP: tl.constexpr):
    """One program per (detector and CAP places of its `order`, tile of synapses): rows past a neuron's first CAP.

    Such a row lies more than CAP places behind its neuron's first, so all of them within these CAP places belong to the one
    neuron that owns the first place. This is what keeps a batch that hits one entry from running on one processor.
    """
    _, rows, _, sizes = gradients
    t = tl.program_id(0) // numbers.chunks
    here = (tl.program_id(0) % numbers.chunks) * CAP
    head = tl.load(sorted_rows.order + t.to(tl.int64) * numbers.listed + here).to(tl.int64)
    neuron = t * CASE.N_ROWS + tl.load(rows.indices + head * sizes.n_detectors + t)
    end = tl.load(sorted_rows.end + neuron)
    first = tl.maximum(here, end - tl.load(sorted_rows.count + neuron) + CAP)
    last = tl.minimum(here + CAP, end)
    if first >= last:
        return
    at, mask, total = neuron_sum(neuron, (first, last), gradients, sorted_rows, tables, numbers, CASE)
    if numbers.step is not None:
        total = -numbers.step * total
    tl.atomic_add(sums.out + at, total, mask=mask, sem="relaxed")
