"""The reads on CUDA, in Triton: what they make of the inputs, and rows added with coefficients.

The sources are in `source.reads`; grids and block sizes follow those of the hard read in `rows`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia.lut.kernels.protocol import TWO_ROWS
from lutetia.lut.kernels.triton.layout import Layout
from lutetia.lut.kernels.triton.rows import (
    ACC,
    CAP,
    KIND,
    _finish,
    _scaled,
    _sums,
    cdiv,
    exactly,
    fill_blocks,
    gather_blocks,
    next_power_of_2,
    propagate_blocks,
    scatter_blocks,
    scatters,
    sort_by_neuron,
)
from lutetia.lut.kernels.triton.source import reads as source
from lutetia.lut.kernels.triton.source.rows import transpose_kernel
from lutetia.lut.memo import Memo
from lutetia.lut.sums import Sums, sum_dtype

KINDS = {"hard": source.HARD.value, "blend": source.BLEND.value, "confidence": source.CONFIDENCE.value}
KINDS["confidence2"] = source.CONFIDENCE2.value
LEARNED = ("confidence", "confidence2")

Logs = tuple[Tensor | None, Tensor | None, Tensor | None]
Rows = tuple[Tensor, Tensor, Tensor, Tensor]  # indices, alternatives, a, b


# ---- detect ----------------------------------------------------------------------------------------------------------


def read_detectors(
    x: Tensor,
    anchors: Tensor,
    log_beta: Tensor | None,
    log_gamma: Tensor | None,
    log_tau: Tensor | None,
    *,
    read: str,
    exact: bool = False,
) -> Rows:
    """x [B, I], anchors [N_t, N_c, 2], scalars [] -> indices, alternatives int32, a, b, each [B, N_t]."""
    batch, n_detectors = x.shape[0], anchors.shape[0]
    shape = (batch, n_detectors)
    second = (0,) if read == "confidence" else shape
    found = (
        x.new_empty(shape, dtype=torch.int32), x.new_empty(second, dtype=torch.int32),
        x.new_empty(shape, dtype=sum_dtype(x)), x.new_empty(second, dtype=sum_dtype(x)),
    )  # fmt: skip
    if batch:
        options, block_t = _detecting(x, anchors, read, exact)
        source.read_detectors_kernel[(batch, cdiv(n_detectors, block_t))](
            x.contiguous(), anchors, *_given((log_beta, log_gamma, log_tau), x), *found, x.shape[1], n_detectors,
            BLOCK_T=block_t, num_warps=1, **options,
        )  # fmt: skip
    return found


def _given(logs: Logs, filler: Tensor) -> list[Tensor]:
    """The scalars, and something in the place of those that a read has not: it does not look."""
    return [filler if log is None else log for log in logs]


def _detecting(x: Tensor, anchors: Tensor, read: str, exact: bool) -> tuple[dict[str, Any], int]:
    """Launch options of what compares inputs, and how many detectors one program takes."""
    n_detectors, n_c, _ = anchors.shape
    padded = next_power_of_2(n_c)
    acc = ACC[sum_dtype(x)]
    options = {
        "KIND": KINDS[read], "N_C": n_c, "N_C_PADDED": padded, "ACC": acc, "WORK": ACC[torch.float64] if exact else acc,
        "enable_fp_fusion": not exact,
    }  # fmt: skip
    return options, min(next_power_of_2(n_detectors), max(1, 256 // padded))


# ---- forward ---------------------------------------------------------------------------------------------------------


def _fill(weight: Tensor, rows: Rows, layout: Layout, two: bool, sums: Sums) -> Tensor:
    indices, alternatives, a, b = rows
    batch, dtype = indices.shape[0], sum_dtype(weight, a)
    out, overflow = _sums([batch, layout.n_outputs], sums, weight, a, zero=not layout.disjoint)
    if batch == 0 or layout.n_weights == 0:
        pass
    elif layout.kind == "general":
        block_t = min(32, next_power_of_2(layout.n_detectors))
        for index, factor in ((indices, a), (alternatives, b))[: 1 + two]:
            source.fill_weighted_general_kernel[(batch, cdiv(layout.n_detectors, block_t))](
                weight, index, factor, out, overflow, layout.start, layout.targets,
                layout.n_detectors, layout.n_outputs, layout.widest,
                N_ROWS=layout.n_rows, **exactly(sums), ACC=ACC[dtype], BLOCK_T=block_t, BLOCK_O=32,
            )  # fmt: skip
    else:
        detect = {"KIND": 0, "N_C": 1, "N_C_PADDED": 1, "WORK": ACC[dtype], "X_ACC": ACC[dtype], "DETECT": False}
        options = {**detect, **exactly(sums), "ACC": ACC[dtype], "TWO": two}
        _launch_fill(weight, [weight] * 5, rows, out, overflow, layout, 0, options)
    return _finish(out, overflow, sums, dtype)


def _launch_fill(
    weight: Tensor,
    detecting: list[Tensor],
    rows: Rows,
    out: Tensor,
    overflow: Tensor,
    layout: Layout,
    n_inputs: int,
    options: dict[str, Any],
) -> None:
    """Fill from rows and coefficients, or, where DETECT is among the options, from x, anchors and the scalars."""
    block_t, block_o, warps = fill_blocks(layout)
    source.fill_weighted_kernel[(out.shape[0] * layout.n_blocks, cdiv(layout.widest, block_o))](
        *detecting, weight, *rows, out, overflow, *layout.tensors(weight),
        n_inputs, layout.n_detectors, layout.n_outputs, layout.n_blocks,
        N_ROWS=layout.n_rows, LAYOUT=KIND[layout.kind], WIDTH=layout.width, ATOMIC=not layout.disjoint, WIDE=layout.wide,
        BLOCK_T=block_t, BLOCK_O=block_o, num_warps=warps, **options,
    )  # fmt: skip


def _evaluate(x: Tensor, weight: Tensor, anchors: Tensor, logs: Logs, layout: Layout, read: str, sums: Sums) -> Tensor:
    exact, two = sums.exact, read in TWO_ROWS
    # Where a row takes several programs each would work out the coefficients; and then two kernels are faster.
    if layout.kind == "general" or layout.widest > fill_blocks(layout)[1]:
        return _fill(weight, read_detectors(x, anchors, *logs, read=read, exact=exact), layout, two, sums)
    dtype = sum_dtype(weight, x)
    out, overflow = _sums([x.shape[0], layout.n_outputs], sums, weight, x, zero=not layout.disjoint)
    if out.numel() and layout.n_weights:
        detect, _ = _detecting(x, anchors, read, exact)
        x_acc = detect.pop("ACC")
        options = {**detect, **exactly(sums), "X_ACC": x_acc, "ACC": ACC[dtype], "TWO": two, "DETECT": True}
        detecting = [x.contiguous(), anchors, *_given(logs, x)]
        _launch_fill(weight, detecting, (weight,) * 4, out, overflow, layout, x.shape[1], options)
    return _finish(out, overflow, sums, dtype)


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


def _gains(
    grad: Tensor, weight: Tensor, rows: tuple[Tensor, Tensor], layout: Layout, for_b: bool, sums: Sums
) -> tuple[Tensor, Tensor]:
    dtype, shape, batch = sum_dtype(grad, weight), rows[0].shape, grad.shape[0]
    make = grad.new_empty if layout.n_weights else grad.new_zeros
    da, db = make(shape, dtype=dtype), make(shape if for_b else (0,), dtype=dtype)
    overflow = grad.new_zeros(1, dtype=torch.int32) if sums.exact else da
    common: dict[str, Any] = {"N_ROWS": layout.n_rows, **exactly(sums), "ACC": ACC[dtype]}
    if batch == 0 or layout.n_weights == 0:
        pass
    elif layout.kind == "general":
        block_t = min(32, next_power_of_2(layout.n_detectors))
        for index, out in zip(rows, (da, db), strict=True) if for_b else [(rows[0], da)]:
            source.row_gains_general_kernel[(batch, cdiv(layout.n_detectors, block_t))](
                grad.contiguous(), weight, index, out, overflow, layout.start, layout.targets,
                layout.n_detectors, layout.n_outputs, layout.widest, BLOCK_T=block_t, BLOCK_O=32, **common,
            )  # fmt: skip
    else:
        block_t, block_o, warps = propagate_blocks(layout)
        source.row_gains_kernel[(batch * layout.n_blocks, cdiv(layout.largest, block_t))](
            grad.contiguous(), weight, *rows, da, db, overflow, *layout.tensors(weight),
            layout.n_detectors, layout.n_outputs, layout.n_blocks,
            LAYOUT=KIND[layout.kind], WIDTH=layout.width, FOR_B=for_b, WIDE=layout.wide,
            BLOCK_T=block_t, BLOCK_O=block_o, num_warps=warps, **common,
        )  # fmt: skip
    _check(overflow, sums)
    return da, db


def _check(overflow: Tensor, sums: Sums) -> None:
    """Raise when a flag is up."""
    if sums.exact:
        _finish(overflow.new_empty(0, dtype=torch.int64), overflow, sums, torch.float32)


def propagate_through_reads(
    x: Tensor,
    anchors: Tensor,
    log_beta: Tensor | None,
    log_gamma: Tensor | None,
    log_tau: Tensor | None,
    da: Tensor,
    db: Tensor,
    *,
    read: str,
    to_x: bool,
    sums: Sums,
) -> tuple[Tensor, Tensor]:
    """da, db [B, N_t] -> dx [B, I], and the gradients of log β, log γ, log τ [3]."""
    (batch, n_inputs), n_detectors, dtype = x.shape, anchors.shape[0], sum_dtype(x)
    learned, fixed = read in LEARNED, sums.exact
    # Atomics need zeros; where all comes from gather_slopes nothing need be there.
    dx, overflow = _sums([batch, n_inputs] if to_x else [0], sums, x, zero=read != "confidence")
    if not fixed:
        overflow = x  # unused
    options, block_t = _detecting(x, anchors, read, fixed)
    grid = (batch, cdiv(n_detectors, block_t))
    shares = x.new_zeros([grid[0] * grid[1] if learned else 0, 3], dtype=torch.int64 if fixed else dtype)
    logs = _given((log_beta, log_gamma, log_tau), x)
    if batch:
        work = torch.float64 if fixed else dtype
        columns = x.new_empty([2 if learned and to_x else 0, n_detectors, batch], dtype=work)
        plain, doubtful = columns if learned and to_x else (x, x)
        which = x.new_empty([n_detectors, batch] if fixed and to_x and read == "confidence2" else [0], dtype=torch.int32)
        exact = exactly(sums)
        x = x.contiguous()
        source.propagate_reads_kernel[grid](
            x, anchors, *logs, da, db, dx, plain, doubtful, which, shares, overflow, n_inputs, n_detectors, batch,
            TO_X=to_x, SCALE=exact["SCALE"], BLOCK_T=block_t, num_warps=1, **options,
        )  # fmt: skip
        if learned and to_x:
            _gather_slopes(x, anchors, logs[0], plain, doubtful, which, dx, overflow, read == "confidence2", options, exact)
    total = shares.sum(0) if learned else shares.new_zeros(3)
    scalars = (total.double() / sums.scale).to(dtype) if fixed else total
    return _finish(dx, overflow, sums, dtype), scalars


def _gather_slopes(
    x: Tensor,
    anchors: Tensor,
    log_beta: Tensor,
    plain: Tensor,
    doubtful: Tensor,
    which: Tensor,
    dx: Tensor,
    overflow: Tensor,
    add: bool,
    options: dict[str, Any],
    exact: dict[str, Any],
) -> None:
    """dx [B, I] = (or, with `add`, +=) what plain and doubtful [N_t, B] send to the anchors."""
    batch, n_inputs = x.shape
    columns = x.new_empty(n_inputs, batch)
    transpose_kernel[(cdiv(batch, 64), cdiv(n_inputs, 64))](x, columns, batch, n_inputs, BLOCK=64)
    starts, entries = pairs_of_inputs(anchors, n_inputs)
    block_b = min(256, next_power_of_2(batch))
    source.gather_slopes_kernel[(cdiv(batch, block_b), n_inputs)](
        columns, log_beta, plain, doubtful, which, starts, entries, dx, overflow, batch, n_inputs,
        ADD=add, ACC=options["ACC"], WORK=options["WORK"], BLOCK_B=block_b, num_warps=max(1, block_b // 128), **exact,
    )  # fmt: skip


def pairs_of_inputs(anchors: Tensor, n_inputs: int) -> tuple[Tensor, Tensor]:
    """The pairs that every input is in, as gather_slopes_kernel wants them: starts [I + 1], entries [2 · N_t · N_c, 2], int32."""
    if anchors.is_cuda and torch.cuda.is_current_stream_capturing() and (id(anchors), n_inputs) not in _pairs_seen.known:
        return _pairs_of_inputs(anchors, n_inputs)  # what a capture makes holds nothing before it is replayed: not to be kept
    return _pairs_seen.get((anchors,), n_inputs)


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


# ---- backward, to the weights ----------------------------------------------------------------------------------------


def _gradient(grad: Tensor, rows: Rows, layout: Layout, two: bool, sums: Sums) -> Tensor:
    """Σ lr_scale · g · coefficient over the rows that chose each lookup neuron, flat [n_weights]."""
    dtype = sum_dtype(grad, rows[2])
    by_atomics = scatters(layout, sums)
    out, overflow = _sums([layout.n_weights], sums, grad, rows[2], zero=by_atomics or not grad.shape[0])
    if by_atomics:
        _scatter(grad.to(dtype), rows, layout, two, out)
    else:
        index, factor = _listed(rows, two)
        in_order = sort_by_neuron(index, layout.n_rows)
        _add_up(grad.to(dtype), index, factor, layout, in_order, out, overflow, exactly(sums))
    return _finish(out, overflow, sums, dtype)


def _listed(rows: Rows, two: bool) -> tuple[Tensor, Tensor]:
    """Indices and coefficients [B, N_t], or of both rows, one batch after the other, [2 B, N_t]."""
    indices, alternatives, a, b = rows
    return (torch.cat([indices, alternatives]), torch.cat([a, b])) if two else (indices, a)


def _step(grad: Tensor, rows: Rows, layout: Layout, two: bool, external_lr: float, weight: Tensor, sums: Sums) -> None:
    """weight -= external_lr · gradient, without a gradient buffer where the sums can go straight into the weights."""
    if sums.exact or not (weight.dtype == sum_dtype(grad, rows[2]) == torch.float32):
        gradient = _gradient(grad, rows, layout, two, sums)
        weight.copy_(weight - external_lr * gradient.view_as(weight))
    elif scatters(layout, sums):
        _scatter(grad.float(), rows, layout, two, weight, external_lr)
    else:
        index, factor = _listed(rows, two)
        in_order = sort_by_neuron(index, layout.n_rows)
        _add_up(grad.float(), index, factor, layout, in_order, weight, weight, exactly(sums), external_lr)


def _scatter(grad: Tensor, rows: Rows, layout: Layout, two: bool, out: Tensor, external_lr: float = -1.0) -> None:
    """Add every row of g, times its coefficient, to the rows of `out` that it chose; with external_lr >= 0 to the weights."""
    indices, alternatives, a, b = rows
    if indices.numel() == 0 or layout.n_weights == 0:
        return
    grad, lr, mixed = _scaled(grad, layout)
    block_t, block_o, n_rows, warps = scatter_blocks(layout)
    tiles = cdiv(layout.largest, block_t)
    grid = (cdiv(grad.shape[0], n_rows) * layout.n_blocks, tiles * cdiv(layout.widest, block_o))
    for index, factor in ((indices, a), (alternatives, b))[: 1 + two]:
        source.scatter_weighted_kernel[grid](
            grad, index, factor, lr, out, *layout.tensors(grad),
            grad.shape[0], layout.n_detectors, layout.n_outputs, layout.n_blocks, tiles, float(external_lr),
            N_ROWS=layout.n_rows, LAYOUT=KIND[layout.kind], WIDTH=layout.width, MIXED_LR=mixed, IN_PLACE=external_lr >= 0,
            WIDE=layout.wide, ACC=ACC[grad.dtype], ROWS=n_rows, BLOCK_T=block_t, BLOCK_O=block_o, num_warps=warps,
        )  # fmt: skip


def _add_up(
    grad: Tensor,
    index: Tensor,
    factor: Tensor,
    layout: Layout,
    in_order: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    overflow: Tensor,
    exact: dict[str, Any],
    external_lr: float = -1.0,
    compact: Tensor | None = None,
) -> None:
    """Each neuron adds up its sorted rows into `out`: sums (at `compact` [N_t · R] if given), or weights that take a step."""
    batch, listed = grad.shape[0], index.shape[0]
    if index.numel() == 0 or out.numel() == 0:
        return
    grad, lr, mixed = _scaled(grad, layout)
    block_b, block_o, warps = gather_blocks(layout)
    start, targets, *_ = layout.tensors(grad)
    tensors = (lr, out, overflow, start, targets, grad if compact is None else compact)
    options: dict[str, Any] = {
        "N_ROWS": layout.n_rows, "LAYOUT": KIND[layout.kind], "MIXED_LR": mixed, "IN_PLACE": external_lr >= 0,
        "COMPACT": compact is not None, **exact, "ACC": ACC[grad.dtype], "CAP": CAP,
        "BLOCK_B": block_b, "BLOCK_O": block_o, "num_warps": warps,
    }  # fmt: skip
    tiles, step = cdiv(layout.widest, block_o), float(external_lr)
    source.gather_weighted_kernel[(layout.n_detectors * layout.n_rows, tiles)](
        grad, factor, *in_order, *tensors, batch, listed, layout.n_detectors, layout.n_outputs, step, **options
    )
    if listed > CAP:
        chunks = cdiv(listed, CAP)
        source.gather_weighted_overflow_kernel[(layout.n_detectors * chunks, tiles)](
            grad, factor, index, *in_order, *tensors, batch, listed, layout.n_detectors, layout.n_outputs, chunks, step, **options
        )


def _touched(grad: Tensor, rows: Rows, layout: Layout, two: bool, sums: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """Lookup neurons that were chosen [n], how many weights each has [n], and the sums of all of them, flat."""
    dtype = sum_dtype(grad, rows[2])
    index, factor = _listed(rows, two)
    in_order = sort_by_neuron(index, layout.n_rows)
    chosen = in_order[2].flatten() > 0
    sizes = chosen * layout.neuron_widths(grad.device)
    ends = sizes.cumsum(0)
    neurons = chosen.nonzero().squeeze(1)
    out, overflow = _sums([int(ends[-1])], sums, grad, rows[2], zero=False)
    compact, exact = ends - sizes, exactly(sums)
    _add_up(grad.to(dtype), index, factor, layout, in_order, out, overflow, exact, compact=compact)
    return neurons, sizes[neurons], _finish(out, overflow, sums, dtype)
