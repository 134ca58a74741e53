"""Rows of tables on CUDA, in Triton, one step at a time.

The sources are in `source.rows`; here each is given its grid and its block sizes (measured on an H200). Under
TRITON_INTERPRET=1 everything here runs on CPU tensors too, which is how it is tested without a GPU.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from lutetia.errors import require
from lutetia.lut.kernels.triton.layout import Layout
from lutetia.lut.sums import Sums, raise_overflow, sum_dtype

triton = require("triton", "the triton backend of lutetia.lut")
from lutetia.lut.kernels.triton.source import rows as source  # noqa: E402  (needs triton)

KIND = {"fc": source.FC.value, "shared": source.SHARED.value, "general": source.GENERAL.value}
ACC = {torch.float32: triton.language.float32, torch.float64: triton.language.float64}
CAP = 128  # rows of one lookup neuron that one program adds up; the rest is shared out

Found: TypeAlias = tuple[Tensor, Tensor, Tensor]  # indices, min_delta, min_delta_index


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. (Triton's own is for kernels too and takes 5 µs a call.)"""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


# ---- detect ----------------------------------------------------------------------------------------------------------


def _found(x: Tensor, anchors: Tensor, train: bool) -> Found:
    """Room for indices, and for training also the closest deltas and their numbers (fillers otherwise)."""
    shape = (*x.shape[:-1], anchors.shape[0])
    index = x.new_empty(shape, dtype=torch.int32)
    if not train:
        return index, index, index
    return index, x.new_empty(shape, dtype=sum_dtype(x)), torch.empty_like(index)


def _check(x: Tensor, anchors: Tensor, found: Found, train: bool) -> None:
    n_detectors, n_c, _ = anchors.shape
    rows = found[0].numel() // n_detectors
    if rows == 0:
        return
    padded = next_power_of_2(n_c)
    block_t = min(next_power_of_2(n_detectors), max(1, 256 // padded))
    source.check_detectors_kernel[(rows, cdiv(n_detectors, block_t))](
        x.contiguous(), anchors, *found, x.shape[-1], n_detectors,
        N_C=n_c, N_C_PADDED=padded, TRAIN=train, ACC=ACC[sum_dtype(x)], BLOCK_T=block_t, num_warps=1,
    )  # fmt: skip


def _check_columns(x: Tensor, anchors: Tensor) -> Tensor:
    """x [B, I], anchors [N_t, N_c, 2] -> indices [B, N_t], stored by detector: faster for large batches."""
    (batch, n_inputs), (n_detectors, n_c, _) = x.shape, anchors.shape
    columns = x.new_empty(n_inputs, batch)
    source.transpose_kernel[(cdiv(batch, 64), cdiv(n_inputs, 64))](x.contiguous(), columns, batch, n_inputs, BLOCK=64)
    index = x.new_empty(n_detectors, batch, dtype=torch.int32)
    block_t = min(16, next_power_of_2(n_detectors))
    source.check_columns_kernel[(cdiv(batch, 128),)](
        columns, anchors, index, batch, n_detectors,
        N_C=n_c, ACC=ACC[sum_dtype(x)], BLOCK_T=block_t, BLOCK_B=128, num_warps=block_t,
    )  # fmt: skip
    return index.t()


# ---- forward ---------------------------------------------------------------------------------------------------------


def _detect_and_fill(
    x: Tensor, weight: Tensor, anchors: Tensor, layout: Layout, train: bool, sums: Sums
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both in one kernel, except where two are faster or the layout asks for it; in eval what was found is not kept."""
    if not train and fills_by_slab(layout, x.shape[0]):
        return _fill(weight, _check_columns(x, anchors), layout, sums), x, x, x
    if layout.kind == "general":
        found = _found(x, anchors, train)
        _check(x, anchors, found, train)
        return _fill(weight, found[0], layout, sums), *found
    found = _found(x, anchors, train) if train else (x, x, x)
    out, overflow = _sums([x.shape[0], layout.n_outputs], sums, weight, zero=not layout.disjoint)
    _launch_fill(weight, found, out, overflow, layout, sums, x.contiguous(), anchors, train)
    return _finish(out, overflow, sums, sum_dtype(weight)), *found


def _fill(weight: Tensor, indices: Tensor, layout: Layout, sums: Sums) -> Tensor:
    batch = indices.shape[0]
    out, overflow = _sums([batch, layout.n_outputs], sums, weight, zero=not layout.disjoint)
    exact, acc = exactly(sums), ACC[sum_dtype(weight)]
    if batch == 0 or layout.n_weights == 0:
        pass
    elif layout.kind == "general":
        block_t = min(32, next_power_of_2(layout.n_detectors))
        source.fill_outputs_general_kernel[(batch, cdiv(layout.n_detectors, block_t))](
            weight, indices, out, overflow, layout.start, layout.targets,
            layout.n_detectors, layout.n_outputs, layout.widest,
            N_ROWS=layout.n_rows, **exact, ACC=acc, BLOCK_T=block_t, BLOCK_O=32,
        )  # fmt: skip
    elif fills_by_slab(layout, batch):
        block_b, block_o, warps = slab_blocks(layout)
        source.fill_outputs_slab_kernel[(cdiv(batch, block_b), cdiv(layout.width, block_o))](
            weight, indices, out, overflow, batch, layout.n_detectors, *indices.stride(),
            N_ROWS=layout.n_rows, WIDTH=layout.width, **exact, WIDE=layout.wide, ACC=acc,
            BLOCK_B=block_b, BLOCK_O=block_o, num_warps=warps,
        )  # fmt: skip
    else:
        found = (indices, indices, indices)  # the kernel reads the first only
        _launch_fill(weight, found, out, overflow, layout, sums)
    return _finish(out, overflow, sums, sum_dtype(weight))


def _launch_fill(
    weight: Tensor,
    found: Found,
    out: Tensor,
    overflow: Tensor,
    layout: Layout,
    sums: Sums,
    x: Tensor | None = None,
    anchors: Tensor | None = None,
    train: bool = False,
) -> None:
    """Fill from indices, or, when x and anchors are given, detect first."""
    if out.numel() == 0:
        return
    block_t, block_o, warps = fill_blocks(layout)
    n_c = 1 if anchors is None else anchors.shape[1]
    source.fill_outputs_kernel[(out.shape[0] * layout.n_blocks, cdiv(layout.widest, block_o))](
        weight if x is None else x, weight if anchors is None else anchors, weight, *found, out, overflow,
        *layout.tensors(weight), 0 if x is None else x.shape[1], layout.n_detectors, layout.n_outputs, layout.n_blocks,
        N_ROWS=layout.n_rows, N_C=n_c, N_C_PADDED=next_power_of_2(n_c), LAYOUT=KIND[layout.kind], WIDTH=layout.width,
        ATOMIC=not layout.disjoint, DETECT=x is not None, TRAIN=train, **exactly(sums),
        WIDE=layout.wide, ACC=ACC[sum_dtype(weight)], X_ACC=ACC[torch.float32 if x is None else sum_dtype(x)],
        BLOCK_T=block_t, BLOCK_O=block_o, num_warps=warps,
    )  # fmt: skip


def fill_blocks(layout: Layout) -> tuple[int, int, int]:
    """Detectors and outputs per step of one program, and its warps."""
    block_o = min(256, next_power_of_2(layout.widest))
    block_t = 4 if block_o >= 256 else 8 if block_o >= 64 else 16
    return min(block_t, next_power_of_2(layout.largest)), block_o, 1


def fills_by_slab(layout: Layout, batch: int) -> bool:
    """Whether a batch is large enough to share table slabs in the first-level cache (and the tables fit in the second)."""
    return layout.kind == "fc" and batch >= 16384 and layout.width >= 64 and layout.n_weights <= 12 * 2**20


def slab_blocks(layout: Layout) -> tuple[int, int, int]:
    """Rows of the batch and outputs per step of one program, and its warps."""
    return 32, 64, 8


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


def _propagate(
    grad: Tensor,
    weight: Tensor,
    found: Found,
    anchors: Tensor,
    n_inputs: int,
    layout: Layout,
    sums: Sums,
) -> Tensor:
    batch = grad.shape[0]
    dx, overflow = _sums([batch, n_inputs], sums, grad, weight)
    common: dict[str, Any] = {
        "N_ROWS": layout.n_rows, "N_C": anchors.shape[1], **exactly(sums),
        "ACC": ACC[sum_dtype(grad, weight)],
    }  # fmt: skip
    tensors = (grad.contiguous(), weight, *found, anchors, dx, overflow)
    if batch == 0 or layout.n_weights == 0:
        pass
    elif layout.kind == "general":
        block_t = min(32, next_power_of_2(layout.n_detectors))
        source.propagate_general_kernel[(batch, cdiv(layout.n_detectors, block_t))](
            *tensors, layout.start, layout.targets, n_inputs, layout.n_detectors, layout.n_outputs, layout.widest,
            BLOCK_T=block_t, BLOCK_O=32, **common,
        )  # fmt: skip
    else:
        block_t, block_o, warps = propagate_blocks(layout)
        source.propagate_kernel[(batch * layout.n_blocks, cdiv(layout.largest, block_t))](
            *tensors, *layout.tensors(weight), n_inputs, layout.n_detectors, layout.n_outputs, layout.n_blocks,
            LAYOUT=KIND[layout.kind], WIDTH=layout.width, WIDE=layout.wide, BLOCK_T=block_t, BLOCK_O=block_o,
            num_warps=warps, **common,
        )  # fmt: skip
    return _finish(dx, overflow, sums, sum_dtype(grad, weight))


def propagate_blocks(layout: Layout) -> tuple[int, int, int]:
    """Detectors and outputs per step of one program, and its warps."""
    block_t, block_o = (4, 128) if layout.widest > 64 else (16, 32)
    return min(block_t, next_power_of_2(layout.largest)), min(block_o, next_power_of_2(layout.widest)), 1


# ---- backward, to the weights ----------------------------------------------------------------------------------------


def _gradient(grad: Tensor, indices: Tensor, layout: Layout, sums: Sums) -> Tensor:
    """Σ lr_scale · g over the rows of the batch that chose each lookup neuron, flat [n_weights]."""
    by_atomics = scatters(layout, sums)
    out, overflow = _sums([layout.n_weights], sums, grad, zero=by_atomics or not grad.shape[0])
    if by_atomics:
        _scatter(grad, indices, layout, out)
    else:
        _add_up(grad, indices, layout, sort_by_neuron(indices, layout.n_rows), out, overflow, exactly(sums))
    return _finish(out, overflow, sums, sum_dtype(grad))


def _step(grad: Tensor, indices: Tensor, layout: Layout, external_lr: float, weight: Tensor, sums: Sums) -> None:
    """weight -= external_lr · gradient, without a gradient buffer where the sums can go straight into the weights."""
    if sums.exact or not (weight.dtype == sum_dtype(grad) == torch.float32):
        gradient = _gradient(grad, indices, layout, sums)
        weight.copy_(weight - external_lr * gradient.view_as(weight))
    elif scatters(layout, sums):
        _scatter(grad, indices, layout, weight, external_lr)
    else:
        _add_up(
            grad,
            indices,
            layout,
            sort_by_neuron(indices, layout.n_rows),
            weight,
            weight,
            exactly(sums),
            external_lr,
        )


def scatters(layout: Layout, sums: Sums) -> bool:
    """Whether atomics beat the sort: measured, up to about 70 outputs. Only float32 atomics come 16 bytes at a time."""
    return layout.kind != "general" and layout.widest <= 64 and not sums.exact


def _scaled(grad: Tensor, layout: Layout) -> tuple[Tensor, Tensor, bool]:
    """g times lr_scale where that is one number; else lr_scale per synapse for the kernel: grad, lr, whether lr counts."""
    dtype = sum_dtype(grad)
    if isinstance(layout.lr_scale, Tensor):
        return grad.contiguous(), layout.lr_scale.to(dtype), True
    grad = (grad if layout.lr_scale == 1.0 else grad.to(dtype) * layout.lr_scale).contiguous()
    return grad, grad, False


def _scatter(grad: Tensor, indices: Tensor, layout: Layout, out: Tensor, external_lr: float = -1.0) -> None:
    """Add every row of g to the rows of `out` that it chose; with external_lr >= 0 `out` are the weights."""
    if indices.numel() == 0 or layout.n_weights == 0:
        return
    grad, lr, mixed = _scaled(grad, layout)
    block_t, block_o, rows, warps = scatter_blocks(layout)
    tiles = cdiv(layout.largest, block_t)
    source.scatter_weight_gradients_kernel[
        (cdiv(grad.shape[0], rows) * layout.n_blocks, tiles * cdiv(layout.widest, block_o))
    ](
        grad, indices, lr, out, *layout.tensors(grad),
        grad.shape[0], layout.n_detectors, layout.n_outputs, layout.n_blocks, tiles, float(external_lr),
        N_ROWS=layout.n_rows, LAYOUT=KIND[layout.kind], WIDTH=layout.width, MIXED_LR=mixed, IN_PLACE=external_lr >= 0,
        WIDE=layout.wide, ACC=ACC[sum_dtype(grad)], ROWS=rows, BLOCK_T=block_t, BLOCK_O=block_o, num_warps=warps,
    )  # fmt: skip


def scatter_blocks(layout: Layout) -> tuple[int, int, int, int]:
    """Detectors and outputs per program, rows of the batch it walks, and its warps."""
    block_o = min(64, next_power_of_2(layout.widest))
    return min(16, next_power_of_2(layout.largest)), block_o, 8, 1


def _add_up(
    grad: Tensor,
    indices: Tensor,
    layout: Layout,
    sorted_rows: Found,
    out: Tensor,
    overflow: Tensor,
    exact: dict[str, Any],
    external_lr: float = -1.0,
    compact: Tensor | None = None,
) -> None:
    """Each neuron adds up its sorted rows into `out`: sums (at `compact` [N_t · R] if given), or weights that take a step."""
    batch = indices.shape[0]
    if indices.numel() == 0 or out.numel() == 0:
        return
    grad, lr, mixed = _scaled(grad, layout)
    block_b, block_o, warps = gather_blocks(layout)
    start, targets, *_ = layout.tensors(grad)
    tensors = (lr, out, overflow, start, targets, grad if compact is None else compact)
    options: dict[str, Any] = {
        "N_ROWS": layout.n_rows, "LAYOUT": KIND[layout.kind], "MIXED_LR": mixed, "IN_PLACE": external_lr >= 0,
        "COMPACT": compact is not None, **exact, "ACC": ACC[sum_dtype(grad)], "CAP": CAP,
        "BLOCK_B": block_b, "BLOCK_O": block_o, "num_warps": warps,
    }  # fmt: skip
    tiles, step = cdiv(layout.widest, block_o), float(external_lr)
    source.gather_weight_gradients_kernel[(layout.n_detectors * layout.n_rows, tiles)](
        grad, *sorted_rows, *tensors, batch, layout.n_outputs, step, **options
    )
    if batch > CAP:
        chunks = cdiv(batch, CAP)
        source.gather_overflow_kernel[(layout.n_detectors * chunks, tiles)](
            grad, indices, *sorted_rows, *tensors, batch, layout.n_detectors, layout.n_outputs, chunks, step, **options
        )


def gather_blocks(layout: Layout) -> tuple[int, int, int]:
    """Rows of g and outputs per step of one program, and its warps."""
    block_o = min(256 if layout.widest > 256 else 128, next_power_of_2(layout.widest))
    return max(2, 256 // block_o), block_o, 1


def sort_by_neuron(indices: Tensor, n_rows: int) -> Found:
    """Counting sort of each detector's rows by chosen neuron: order [N_t, B], and end and count of each neuron [N_t, R]."""
    batch, n_detectors = indices.shape
    count = indices.new_zeros(n_detectors, n_rows)
    rank = torch.empty_like(indices)
    order = indices.new_empty(n_detectors, batch)
    total = indices.numel()
    if total == 0:
        return order, count, count
    grid = (cdiv(total, 256),)
    source.rank_kernel[grid](indices, count, rank, total, n_detectors, N_ROWS=n_rows, BLOCK=256, num_warps=4)
    end = count.cumsum(1, dtype=torch.int32)
    source.place_kernel[grid](indices, end, count, rank, order, total, batch, n_detectors, N_ROWS=n_rows, BLOCK=256, num_warps=4)
    return order, end, count


def _touched(grad: Tensor, indices: Tensor, layout: Layout, sums: Sums) -> Found:
    """Lookup neurons that were chosen [n], how many weights each has [n], and the sums of all of them, flat."""
    sorted_rows = sort_by_neuron(indices, layout.n_rows)
    chosen = sorted_rows[2].flatten() > 0
    sizes = chosen * layout.neuron_widths(grad.device)
    ends = sizes.cumsum(0)
    neurons = chosen.nonzero().squeeze(1)
    out, overflow = _sums([int(ends[-1])], sums, grad, zero=False)
    _add_up(grad, indices, layout, sorted_rows, out, overflow, exactly(sums), compact=ends - sizes)
    return neurons, sizes[neurons], _finish(out, overflow, sums, sum_dtype(grad))


# ---- sums ------------------------------------------------------------------------------------------------------------


def exactly(sums: Sums) -> dict[str, Any]:
    """Launch options: units per 1.0 in fixed sums (0 for float). A fused multiply-add would round float64 addends otherwise."""
    return {"SCALE": sums.scale if sums.exact else 0.0, "enable_fp_fusion": not sums.exact}


def _sums(shape: list[int], sums: Sums, *operands: Tensor, zero: bool = True) -> tuple[Tensor, Tensor]:
    """A buffer for sums (int64 when fixed) and the overflow flag (unused when float: any tensor serves)."""
    make = operands[0].new_zeros if zero else operands[0].new_empty
    if not sums.exact:
        buffer = make(shape, dtype=sum_dtype(*operands))
        return buffer, buffer
    return make(shape, dtype=torch.int64), operands[0].new_zeros(1, dtype=torch.int32)


def _finish(buffer: Tensor, overflow: Tensor, sums: Sums, dtype: torch.dtype) -> Tensor:
    """The sums in floating point; raise when one left the range."""
    if not sums.exact:
        return buffer
    out = buffer.new_empty(buffer.shape, dtype=dtype)
    total = buffer.numel()
    if total:
        source.convert_kernel[(cdiv(total, 1024),)](buffer.contiguous(), out, overflow, total, SCALE=sums.scale, BLOCK=1024)
    if buffer.is_cuda and torch.cuda.is_current_stream_capturing():
        torch._assert_async(overflow == 0)  # a captured graph cannot raise; a replay that overflows stops the stream
    elif bool(overflow.item()):
        raise_overflow(sums)
    return out
