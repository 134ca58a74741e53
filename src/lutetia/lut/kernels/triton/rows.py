"""Rows of tables on CUDA, in Triton, one step at a time; the sources are in `source.rows`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia._shared.launches import Planned, planned
from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia._shared.triton_order import Sorted, sort_by_atomics
from lutetia.lut.kernels.cuda import LEAST_ROWS, is_by_detector, keeps_hard_by_detector, tables
from lutetia.lut.kernels.protocol import Coefficients, Comparisons, Connectivity, Detected, Into, Sums, sum_dtype
from lutetia.lut.kernels.recorder import kernel
from lutetia.lut.kernels.reference.rows import factors, rows_read, subtract
from lutetia.lut.kernels.triton.detect import compared, detect, detect_columns, room_for
from lutetia.lut.kernels.triton.launch import case_of, check_overflow, finish, fusion, sizes_of, tables_of, target_of
from lutetia.lut.kernels.triton.layout import Layout, layout_of
from lutetia.lut.kernels.triton.source import rows as source
from lutetia.lut.kernels.triton.source.basics import Inputs, ReadCase, Rows, Target
from lutetia.lut.kernels.triton.source.rows import GatherNumbers

CAP = 128  # rows of one lookup neuron that one program adds up; the rest is shared out


def by_row(indices: Tensor, coefficients: Coefficients | None) -> tuple[Tensor, Coefficients | None]:
    """What was read [B, N_t], contiguous: what the Triton kernels take."""
    if indices.is_contiguous():
        return indices, coefficients
    if coefficients is not None:
        coefficients = Coefficients(*(each if each is None else each.contiguous() for each in coefficients))  # type: ignore[arg-type]
    return indices.contiguous(), coefficients


def through_shared_memory(layout: Layout, indices: Tensor, sums: Sums, *operands: Tensor) -> bool:
    """Whether the CUDA kernels take these rows: they were read by detector, and the tables fit."""
    if not is_by_detector(indices) or sums.exact or indices.shape[0] * layout.n_blocks < LEAST_ROWS:
        return False
    return tables.fits(layout, *operands)


def one_by_one(indices: Tensor, coefficients: Coefficients | None) -> list[Rows]:
    """The rows of each detector, for kernels that take one of each at a time."""
    return [Rows(rows, a=factor) for rows, factor in rows_read(indices, coefficients)]


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def fill_rows(
    weight: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> Tensor:
    """indices [B, N_t] -> y [B, O]."""
    layout = layout_of(connectivity)
    if through_shared_memory(layout, indices, sums, weight, *factors(coefficients)):
        return tables.fill(weight, layout, indices, coefficients)
    return _fill(weight, layout, *by_row(indices, coefficients), sums)


def fill_units(weight: Tensor, connectivity: Connectivity, indices: Tensor, sums: Sums) -> Tensor:
    """`fill_rows` as a part of a sum: fixed ones are integers."""
    return _fill(weight, layout_of(connectivity), indices, None, sums, torch.int64)


def _fill(
    weight: Tensor,
    layout: Layout,
    indices: Tensor,
    coefficients: Coefficients | None,
    sums: Sums,
    like: torch.dtype | None = None,
) -> Tensor:
    batch, dtype = indices.shape[0], sum_dtype(weight, *factors(coefficients))
    target = target_of([batch, layout.n_outputs], sums, weight, *factors(coefficients), zero=not layout.disjoint)
    if batch == 0 or layout.n_weights == 0:
        pass
    elif layout.kind == "general":
        case = case_of(layout, sums, dtype, BLOCK_T=min(32, next_power_of_2(layout.n_detectors)), BLOCK_O=32)
        for rows in one_by_one(indices, coefficients):
            planned(source.fill_general_kernel, (batch, cdiv(layout.n_detectors, case.BLOCK_T)))(
                rows, target, tables_of(layout, weight), sizes_of(layout), layout.widest, CASE=case, **fusion(sums)
            )
    elif coefficients is None and fills_by_slab(layout, batch):
        case = case_of(layout, sums, dtype, BLOCK_B=32, BLOCK_O=64)
        planned(source.fill_slab_kernel, (cdiv(batch, case.BLOCK_B), cdiv(layout.width, case.BLOCK_O)))(
            indices, indices.stride(), target, tables_of(layout, weight), batch, layout.n_detectors,
            CASE=case, num_warps=8, **fusion(sums),
        )  # fmt: skip
    else:
        count = 0 if coefficients is None else 1 if coefficients.alternatives is None else 2
        rows = Rows(indices, None, None, *(coefficients or ()))
        launch_fill(weight, layout, Inputs(), rows, target, (sums, dtype), ("hard", count))
    return finish(target, sums, like or dtype)


def launch_fill(
    weight: Tensor,
    layout: Layout,
    inputs: Inputs,
    rows: Rows,
    target: Target,
    how: tuple[Sums, torch.dtype],
    read: tuple[str, int] = ("hard", 0),
) -> Planned | None:
    """Fill from rows, or, when inputs are given, from what they choose; `read` is its name and how many coefficients it has."""
    if not target.out.numel():
        return None
    (sums, dtype), (block_t, block_o), n_inputs, reads = how, fill_blocks(layout), None, ReadCase(COEFFICIENTS=read[1])
    case = case_of(layout, sums, dtype, BLOCK_T=block_t, BLOCK_O=block_o, ATOMIC=not layout.disjoint)
    if inputs.x is not None:
        n_inputs, reads = inputs.x.shape[1], compared(inputs.x, inputs.anchors, read[0], sums, read[1])
    return planned(source.fill_kernel, (target.out.shape[0] * layout.n_blocks, cdiv(layout.widest, block_o)))(
        inputs, rows, target, tables_of(layout, weight), sizes_of(layout, n_inputs),
        READ=reads, CASE=case, num_warps=1, **fusion(sums),
    )  # fmt: skip


def detect_and_fill(
    x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, sums: Sums, train: bool
) -> tuple[Tensor, Detected | None]:
    """x [B, I] -> y [B, O] and, with `train`, `Detected` [B, N_t]; in one launch where each output is stored once."""
    layout = layout_of(connectivity)
    if layout.kind != "general" and layout.widest:  # without any weight no program would run
        return _detect_and_fill(x, weight, comparisons, connectivity, sums, train)
    detected = detect(x, comparisons, train)
    return fill_rows(weight, connectivity, detected.indices, None, sums), detected if train else None


@kernel
def _detect_and_fill(
    x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, sums: Sums, train: bool
) -> tuple[Tensor, Detected | None]:
    layout, dtype = layout_of(connectivity), sum_dtype(weight)
    arrays, anchors, thresholds = (weight, layout.n_outputs), comparisons.anchors, comparisons.thresholds
    if keeps_hard_by_detector(x, anchors, arrays, sums.exact, thresholds) and tables.fits(layout, weight):
        windows = tables.windows_of(anchors, x.shape[1])
        if windows is not None:
            detected = tables.detect(x, anchors, windows, train)
            return tables.fill(weight, layout, detected.indices, None), detected if train else None
    if not train and fills_by_slab(layout, x.shape[0]):
        return _fill(weight, layout, detect_columns(x, comparisons), None, sums), None
    room = room_for(x, (len(x), len(anchors)), True) if train else None
    target = target_of([x.shape[0], layout.n_outputs], sums, weight, zero=not layout.disjoint)
    rows, inputs = Rows(*(room or (None,))), Inputs(x.contiguous(), anchors, thresholds=thresholds)
    launch_fill(weight, layout, inputs, rows, target, (sums, dtype))
    return finish(target, sums, dtype), room


def fill_blocks(layout: Layout) -> tuple[int, int]:
    """Detectors and outputs per step of one program."""
    block_o = min(256, next_power_of_2(layout.widest))
    block_t = 4 if block_o >= 256 else 8 if block_o >= 64 else 16
    return min(block_t, next_power_of_2(layout.largest)), block_o


def fills_by_slab(layout: Layout, batch: int) -> bool:
    """Whether a batch is large enough to share table slabs in the first-level cache (and the tables fit in the second)."""
    return layout.kind == "fc" and batch >= 16384 and layout.width >= 64 and layout.n_weights <= 12 * 2**20


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


@kernel
def row_gains(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, rows: tuple[Tensor, Tensor | None], sums: Sums
) -> tuple[Tensor, Tensor | None]:
    """grad [B, O], rows [B, N_t] each -> g·W[t, index_t] of each, [B, N_t]."""
    layout = layout_of(connectivity)
    if through_shared_memory(layout, rows[0], sums, grad, weight):
        return tables.gains(grad, weight, layout, rows)
    return gain_units(grad, weight, layout, rows, sums, sum_dtype(grad, weight))


def gain_units(
    grad: Tensor, weight: Tensor, layout: Layout, rows: tuple[Tensor, Tensor | None], sums: Sums, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """The same as tensors of this dtype: fixed sums may be integers, parts of a sum."""
    rows = (rows[0].contiguous(), None if rows[1] is None else rows[1].contiguous())
    make = grad.new_empty if layout.n_weights else grad.new_zeros
    da, db = (None if row is None else make(row.shape, dtype=dtype) for row in rows)
    target = Target(da, grad.new_zeros(1, dtype=torch.int32) if sums.exact else None, db)
    gains(grad, weight, layout, Rows(rows[0], alternatives=rows[1]), target, sums)
    check_overflow(target, sums)
    assert da is not None
    return da, db


@kernel
def propagate(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, detected: Detected, anchors: Tensor, n_inputs: int, sums: Sums
) -> Tensor:
    """grad [B, O], detected [B, N_t], anchors [N_t, N_c, 2] -> dx [B, I]."""
    layout = layout_of(connectivity)
    if through_shared_memory(layout, detected.indices, sums, grad, weight):
        windows = tables.windows_of(anchors, n_inputs)
        if windows is not None:
            slope = tables.hard_slope(grad, weight, layout, detected)
            return tables.send_hard_slopes(slope, detected, anchors, windows, n_inputs)
    target = target_of([grad.shape[0], n_inputs], sums, grad, weight, zero=not clears_rows(layout, sums))
    rows = Rows(*(None if each is None else each.contiguous() for each in detected))
    gains(grad, weight, layout, rows, target, sums, (anchors, n_inputs, None))
    return finish(target, sums, sum_dtype(grad, weight))


def gains(
    grad: Tensor,
    weight: Tensor,
    layout: Layout,
    rows: Rows,
    target: Target,
    sums: Sums,
    to: tuple[Tensor, int, Tensor | None] | None = None,
) -> Planned | None:
    """g·W of rows into the target, or, with anchors and the number of inputs in `to`, what they send to dx.

    The last of `to` is memory that is set to zero, where the layout `clears_rows` as dx is.
    """
    batch, arrays, grad = grad.shape[0], tables_of(layout, weight), grad.contiguous()
    anchors, n_inputs, cleared = (None, None, None) if to is None else to
    if batch == 0 or layout.n_weights == 0:
        return None
    general, n_c = layout.kind == "general", 0 if anchors is None else anchors.shape[1]
    block_t, block_o = (min(32, next_power_of_2(layout.n_detectors)), 32) if general else gains_blocks(layout)
    alone = anchors is not None and clears_rows(layout, sums)
    case = case_of(layout, sums, sum_dtype(grad, weight), BLOCK_T=block_t, BLOCK_O=block_o, N_C=n_c, ALONE=alone)
    sizes = sizes_of(layout, n_inputs)
    if not general:
        memory = None if cleared is None else (cleared, cleared.numel())
        return planned(source.gains_kernel, (batch * layout.n_blocks, cdiv(layout.largest, block_t)))(
            grad, rows, anchors, target, arrays, sizes, memory, CASE=case, num_warps=1, **fusion(sums)
        )
    both = [(rows, target.out)]
    if rows.alternatives is not None:
        both = [(Rows(rows.indices), target.out), (Rows(rows.alternatives), target.other)]
    for row, out in both:
        planned(source.gains_general_kernel, (batch, cdiv(layout.n_detectors, block_t)))(
            grad, row, anchors, Target(out, target.overflow), arrays, (sizes, layout.widest), CASE=case, **fusion(sums)
        )
    return None


def clears_rows(layout: Layout, sums: Sums) -> bool:
    """Whether one program of `gains` has a row of dx to itself, and sets it to zero first."""
    if layout.kind == "general" or layout.n_blocks != 1 or not layout.n_weights or sums.exact:
        return False
    return layout.largest <= gains_blocks(layout)[0]


def gains_blocks(layout: Layout) -> tuple[int, int]:
    """Detectors and outputs per step of one program."""
    block_t, block_o = (4, 128) if layout.widest > 64 else (16, 32)
    return min(block_t, next_power_of_2(layout.largest)), min(block_o, next_power_of_2(layout.widest))


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@kernel
def gather_rows(
    grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums, into: Into | None
) -> Tensor:
    """grad [B, O], indices [B, N_t] -> dW, or `into` after its step, straight into the weights where that can be done."""
    target, stepped = _gather(grad, layout_of(connectivity), indices, coefficients, sums, into)
    if stepped:
        return target.out
    dtype = sum_dtype(grad, *factors(coefficients))
    return subtract(finish(target, sums, dtype).view(connectivity.weight_shape), into)


def gather_units(grad: Tensor, connectivity: Connectivity, indices: Tensor, sums: Sums) -> Tensor:
    """The gradient as a part of a sum: fixed ones are integers."""
    target, _ = _gather(grad, layout_of(connectivity), indices, None, sums, None)
    return finish(target, sums, torch.int64).view(connectivity.weight_shape)


def _gather(
    grad: Tensor, layout: Layout, indices: Tensor, coefficients: Coefficients | None, sums: Sums, into: Into | None
) -> tuple[Target, bool]:
    """Where the gradient was added up, and whether these are the weights after their step."""
    dtype = sum_dtype(grad, *factors(coefficients))
    scale = layout.lr_scale
    sorts = not isinstance(scale, Tensor) and through_shared_memory(layout, indices, sums, grad, *factors(coefficients))
    if not sorts:
        indices, coefficients = by_row(indices, coefficients)
    by_atomics = sorts or scatters(layout, sums)
    if into is not None and not sums.exact and into.weight.dtype == dtype == torch.float32:
        target, step = Target(into.weight), float(into.rate)
    else:
        zero = by_atomics or not grad.shape[0]
        target, step = target_of([layout.n_weights], sums, grad, *factors(coefficients), zero=zero), None
    if sorts:
        assert not isinstance(scale, Tensor)
        tables.gather(grad, layout, indices, coefficients, target.out, scale if step is None else -step * scale)
    elif by_atomics:
        for rows in one_by_one(indices, coefficients):
            scatter(grad, rows, layout, target.out, step, dtype)
    else:
        rows = _listed(indices, coefficients)
        _add_up(grad, rows, layout, target, sort_by_atomics(rows.indices, layout.n_rows), (sums, dtype, step))
    return target, step is not None


@kernel
def gather_compact(
    grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> tuple[Tensor, Tensor]:
    """The lookup neurons that were read, int64 [n], rising, and the gradients of their weights, flat."""
    layout, dtype = layout_of(connectivity), sum_dtype(grad, *factors(coefficients))
    indices, coefficients = by_row(indices, coefficients)
    rows = _listed(indices, coefficients)
    sorted_rows = sort_by_atomics(rows.indices, layout.n_rows)
    chosen = sorted_rows.count.flatten() > 0
    widths = chosen * connectivity.neuron_widths(grad.device)
    ends = widths.cumsum(0)
    target = target_of([int(ends[-1])], sums, grad, *factors(coefficients), zero=False)
    _add_up(grad, rows, layout, target, sorted_rows._replace(compact=ends - widths), (sums, dtype, None))
    return chosen.nonzero().squeeze(1), finish(target, sums, dtype)


def _listed(indices: Tensor, coefficients: Coefficients | None) -> Rows:
    """Indices and coefficients [B, N_t], or of both rows, one batch after the other, [2 B, N_t]."""
    rows = one_by_one(indices, coefficients)
    return rows[0] if len(rows) == 1 else Rows(torch.cat([r.indices for r in rows]), a=torch.cat([r.a for r in rows]))


def scatters(layout: Layout, sums: Sums) -> bool:
    """Whether atomics beat the sort: measured, up to about 70 outputs. Only float32 atomics come 16 bytes at a time."""
    return layout.kind != "general" and layout.widest <= 64 and not sums.exact


def _scaled(grad: Tensor, layout: Layout, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """g times lr_scale where that is one number; else g, and lr_scale per synapse for the kernel."""
    if isinstance(layout.lr_scale, Tensor):
        return grad.contiguous(), layout.lr_scale.to(dtype)
    return (grad if layout.lr_scale == 1.0 else grad.to(dtype) * layout.lr_scale).contiguous(), None


def scatter(
    grad: Tensor, rows: Rows, layout: Layout, out: Tensor, step: float | None, dtype: torch.dtype
) -> tuple[Planned, tuple[Any, ...]] | None:
    """Add every row of g to the rows of `out` that it chose; with a step `out` are the weights. The launch, and its numbers."""
    if rows.indices.numel() == 0 or layout.n_weights == 0:
        return None
    grad, lr = _scaled(grad, layout, dtype)
    batch, block_t = grad.shape[0], min(16, next_power_of_2(layout.largest))
    tiles, block_o, block_b = cdiv(layout.largest, block_t), min(64, next_power_of_2(layout.widest)), 8
    case = case_of(layout, Sums(), dtype, BLOCK_T=block_t, BLOCK_O=block_o, BLOCK_B=block_b)
    grid, numbers = (cdiv(batch, block_b) * layout.n_blocks, tiles * cdiv(layout.widest, block_o)), (batch, tiles, step)
    arguments = (grad, rows, out, tables_of(layout, None, lr), sizes_of(layout), numbers)
    return planned(source.scatter_kernel, grid)(*arguments, CASE=case, num_warps=1), numbers


def _add_up(
    grad: Tensor, rows: Rows, layout: Layout, target: Target, sorted_rows: Sorted, how: tuple[Sums, torch.dtype, float | None]
) -> None:
    """Each neuron adds up its sorted rows: sums, or, with a step, weights that take it."""
    if rows.indices.numel() == 0 or target.out.numel() == 0:
        return
    sums, dtype, step = how
    grad, lr = _scaled(grad, layout, dtype)
    batch, listed = grad.shape[0], rows.indices.shape[0]
    block_b, block_o = gather_blocks(layout)
    case, tiles, chunks = (
        case_of(layout, sums, dtype, BLOCK_B=block_b, BLOCK_O=block_o),
        cdiv(layout.widest, block_o),
        cdiv(listed, CAP),
    )
    numbers, tables = GatherNumbers(batch, listed, chunks, step), tables_of(layout, None, lr)
    gradients = (grad, rows, target.overflow, sizes_of(layout))
    planned(source.gather_kernel, (layout.n_detectors * layout.n_rows, tiles))(
        gradients, target, sorted_rows, tables, numbers, CASE=case, CAP=CAP, num_warps=1, **fusion(sums)
    )
    if listed > CAP:
        planned(source.gather_rest_kernel, (layout.n_detectors * chunks, tiles))(
            gradients, target, sorted_rows, tables, numbers, CASE=case, CAP=CAP, num_warps=1, **fusion(sums)
        )


def gather_blocks(layout: Layout) -> tuple[int, int]:
    """Rows of g and outputs per step of one program."""
    block_o = min(256 if layout.widest > 256 else 128, next_power_of_2(layout.widest))
    return max(2, 256 // block_o), block_o
