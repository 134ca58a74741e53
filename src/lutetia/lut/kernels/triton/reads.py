"""The gradients of reads on CUDA, and read and fill in one; the sources are in `source.reads`."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia._shared.launches import planned
from lutetia._shared.memo import Memo
from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia._shared.triton_order import transposed
from lutetia.lut.connectivity.anchors import Comparisons, is_captured
from lutetia.lut.kernels.cuda import LEAST_ROWS, is_by_detector, tables
from lutetia.lut.kernels.protocol import TWO_ROWS, Connectivity, Read, Sums, sum_dtype
from lutetia.lut.kernels.recorder import kernel
from lutetia.lut.kernels.reference.reads import rows_that_are_added
from lutetia.lut.kernels.triton import rows
from lutetia.lut.kernels.triton.detect import compared, read, tile_of, windows_for
from lutetia.lut.kernels.triton.launch import check_overflow, finish, fusion, scale_of, target_of
from lutetia.lut.kernels.triton.layout import layout_of
from lutetia.lut.kernels.triton.source import reads as source
from lutetia.lut.kernels.triton.source.basics import Inputs, ReadCase, Rows, Target
from lutetia.lut.kernels.triton.source.reads import Slopes


def read_and_fill(
    x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, read_: Read, sums: Sums
) -> Tensor:
    """x [B, I] -> y [B, O], in one launch where rows are short."""
    layout = layout_of(connectivity)
    # Where a row takes several programs, each would work out the coefficients, and two kernels are faster.
    if layout.kind != "general" and layout.widest <= rows.fill_blocks(layout)[1]:
        return _read_and_fill(x, weight, comparisons, connectivity, read_, sums)
    indices, coefficients = read(x, comparisons, read_, sums)
    return rows.fill_rows(weight, connectivity, indices, rows_that_are_added(coefficients, read_), sums)


@kernel
def _read_and_fill(
    x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, read: Read, sums: Sums
) -> Tensor:
    layout, count = layout_of(connectivity), 2 if read.name in TWO_ROWS else 0 if read.name == "hard" else 1
    large = x.shape[0] * layout.n_blocks >= LEAST_ROWS and tables.fits(layout, weight)
    windows = windows_for(x, comparisons, sums) if large and read.name != "hard" else None
    if windows is not None:
        return tables.read_and_fill(x, weight, comparisons.anchors, windows, layout, read)
    target = target_of([x.shape[0], layout.n_outputs], sums, weight, x, zero=not (layout.disjoint and layout.n_weights))
    if layout.n_weights:
        inputs = Inputs(x.contiguous(), comparisons.anchors, *read.logs, comparisons.thresholds)
        rows.launch_fill(weight, layout, inputs, Rows(None), target, (sums, sum_dtype(weight, x)), (read.name, count))
    return finish(target, sums, sum_dtype(weight, x))


@kernel
def send_slopes(
    x: Tensor, comparisons: Comparisons, read: Read, gains: tuple[Tensor, Tensor | None], sums: Sums, to_x: bool
) -> tuple[Tensor | None, Tensor]:
    """The gradients of a and b, [B, N_t] each -> dx [B, I] (None unless `to_x`), and of log β, log γ, log τ: [3]."""
    anchors, thresholds = comparisons
    windows = windows_for(x, comparisons, sums) if is_by_detector(gains[0]) else None
    if windows is not None:
        return tables.send_slopes(x, anchors, windows, read, gains, to_x)
    gains = (gains[0].contiguous(), None if gains[1] is None else gains[1].contiguous())
    (batch, n_inputs), n_detectors, dtype = x.shape, anchors.shape[0], sum_dtype(x)
    learned = read.name in ("confidence", "confidence2")
    # Atomics need zeros; where all comes from _gather_slopes nothing need be there.
    target = target_of([batch, n_inputs] if to_x else [0], sums, x, zero=read.name != "confidence")
    case = compared(x, anchors, read.name, sums)._replace(SCALE=scale_of(sums))
    block_t = tile_of(case, n_detectors)
    grid = (batch, cdiv(n_detectors, block_t))
    shares = x.new_zeros([grid[0] * grid[1] if learned else 0, 3], dtype=torch.int64 if sums.exact else dtype)
    if batch:
        inputs = Inputs(x.contiguous(), anchors, *read.logs, thresholds)
        slopes = Slopes(shares=shares)
        if learned and to_x:
            plain, doubtful = x.new_empty([2, n_detectors, batch], dtype=torch.float64 if sums.exact else dtype)
            which = x.new_empty([n_detectors, batch], dtype=torch.int32) if sums.exact and read.name == "confidence2" else None
            slopes = Slopes(plain, doubtful, which, shares)
        planned(source.send_slopes_kernel, grid)(
            inputs, gains, slopes, target if to_x else target._replace(out=None), (batch, n_inputs, n_detectors),
            READ=case, BLOCK_T=block_t, num_warps=1, **fusion(sums),
        )  # fmt: skip
        if learned and to_x:
            _gather_slopes(inputs, slopes, target, case, sums)
    total = shares.sum(0) if learned else shares.new_zeros(3)
    scalars = (total.double() / sums.scale).to(dtype) if sums.exact else total
    if not to_x:
        check_overflow(target, sums)
    return finish(target, sums, dtype) if to_x else None, scalars


def _gather_slopes(inputs: Inputs, slopes: Slopes, target: Target, case: ReadCase, sums: Sums) -> None:
    """dx [B, I] = (or, of `confidence2`, +=) what plain and doubtful [N_t, B] send to the anchors."""
    batch, n_inputs = inputs.x.shape
    block_b = min(256, next_power_of_2(batch))
    columns = Inputs(transposed(inputs.x), None, inputs.log_beta, thresholds=inputs.thresholds)
    planned(source.gather_slopes_kernel, (cdiv(batch, block_b), n_inputs))(
        columns, slopes, pairs_of_inputs(inputs.anchors, n_inputs), target, (batch, n_inputs),
        READ=case, BLOCK_B=block_b, num_warps=max(1, block_b // 128), **fusion(sums),
    )  # fmt: skip


def pairs_of_inputs(anchors: Tensor, n_inputs: int) -> tuple[Tensor, Tensor]:
    """The pairs that every input is in, as gather_slopes_kernel takes them: starts [I + 1], entries [2 · N_t · N_c, 2], int32."""
    # What a capture makes holds nothing before it is replayed: not to be kept.
    return _pairs_seen.get((anchors,), n_inputs, is_captured) or _pairs_of_inputs(anchors, n_inputs)


def _pairs_of_inputs(anchors: Tensor, n_inputs: int) -> tuple[Tensor, Tensor]:
    n_detectors, n_c, _ = anchors.shape
    mine, role = anchors.long().flatten(), torch.arange(2, device=anchors.device)
    detector, r = (torch.arange(n, device=anchors.device) for n in (n_detectors, n_c))
    other = anchors.long().flip(-1) * 64 + r[:, None] * 2 + role
    listed = torch.stack([detector[:, None, None].expand_as(other), other], -1).flatten(0, 2)
    order = mine.argsort(stable=True)
    starts = torch.searchsorted(mine[order], torch.arange(n_inputs + 1, device=anchors.device))
    return starts.int(), listed[order].int().contiguous()


_pairs_seen = Memo(_pairs_of_inputs)
