"""The LUT kernels on CUDA, in Triton; the same names in the same order as in `reference`.

The sources are in `triton_kernels`; here each is given its grid and its block sizes (measured on an H200). Under
TRITON_INTERPRET=1 everything here runs on CPU tensors too, which is how it is tested without a GPU.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from lutetia.errors import require
from lutetia.lut.sums import fixed_scale, raise_overflow, sum_dtype
from lutetia.lut.synapses import SynapseMeta, Synapses
from lutetia.lut.triton_layout import Layout, fc_layout, sparse_layout

triton = require("triton", "the triton backend of lutetia.lut")
from lutetia.lut import triton_kernels as source  # noqa: E402  (needs triton)

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


def check_detectors(x: Tensor, anchors: Tensor) -> Found:
    """x [..., I], anchors [N_t, N_c, 2] -> indices, min_delta, min_delta_index, each [..., N_t]."""
    found = _found(x, anchors, train=True)
    _check(x, anchors, found, train=True)
    return found


def check_detectors_eval(x: Tensor, anchors: Tensor) -> Tensor:
    """x [..., I], anchors [N_t, N_c, 2] -> indices int32 [..., N_t]."""
    found = _found(x, anchors, train=False)
    _check(x, anchors, found, train=False)
    return found[0]


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


def fill_outputs_fc(weight: Tensor, indices: Tensor, *, sums: str = "float", int_rescaler: float = 1.0) -> Tensor:
    """weight [N_t, R, O], indices [B, N_t] -> [B, O]."""
    return _fill(weight, indices, fc_layout(*weight.shape), sums, int_rescaler)


def fill_outputs_sparse(
    weight: Tensor, indices: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """weight [n_weights], indices [B, N_t] -> [B, O]."""
    return _fill(weight, indices, sparse_layout(synapses), sums, int_rescaler)


def detect_and_fill_eval_fc(
    x: Tensor, weight: Tensor, anchors: Tensor, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O], in one kernel and without an index tensor."""
    return _detect_and_fill(x, weight, anchors, fc_layout(*weight.shape), False, sums, int_rescaler)[0]


def detect_and_fill_eval_sparse(
    x: Tensor, weight: Tensor, anchors: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """x [B, I], weight [n_weights], anchors [N_t, N_c, 2] -> y [B, O]."""
    return _detect_and_fill(x, weight, anchors, sparse_layout(synapses), False, sums, int_rescaler)[0]


def detect_and_fill_fc(
    x: Tensor, weight: Tensor, anchors: Tensor, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y, indices, min_delta, min_delta_index, in one kernel."""
    return _detect_and_fill(x, weight, anchors, fc_layout(*weight.shape), True, sums, int_rescaler)


def detect_and_fill_sparse(
    x: Tensor, weight: Tensor, anchors: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [B, I], weight [n_weights], anchors [N_t, N_c, 2] -> y, indices, min_delta, min_delta_index."""
    return _detect_and_fill(x, weight, anchors, sparse_layout(synapses), True, sums, int_rescaler)


def _detect_and_fill(
    x: Tensor, weight: Tensor, anchors: Tensor, layout: Layout, train: bool, sums: str, int_rescaler: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both in one kernel, except where two are faster or the layout asks for it; in eval what was found is not kept."""
    if not train and fills_by_slab(layout, x.shape[0]):
        return _fill(weight, _check_columns(x, anchors), layout, sums, int_rescaler), x, x, x
    if layout.kind == "general":
        found = _found(x, anchors, train)
        _check(x, anchors, found, train)
        return _fill(weight, found[0], layout, sums, int_rescaler), *found
    found = _found(x, anchors, train) if train else (x, x, x)
    out, overflow = _sums([x.shape[0], layout.n_outputs], sums, weight, zero=not layout.disjoint)
    _launch_fill(weight, found, out, overflow, layout, sums, int_rescaler, x.contiguous(), anchors, train)
    return _finish(out, overflow, sums, int_rescaler, sum_dtype(weight)), *found


def _fill(weight: Tensor, indices: Tensor, layout: Layout, sums: str, int_rescaler: float) -> Tensor:
    batch = indices.shape[0]
    out, overflow = _sums([batch, layout.n_outputs], sums, weight, zero=not layout.disjoint)
    exact, acc = exactly(sums, int_rescaler), ACC[sum_dtype(weight)]
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
        _launch_fill(weight, found, out, overflow, layout, sums, int_rescaler)
    return _finish(out, overflow, sums, int_rescaler, sum_dtype(weight))


def _launch_fill(
    weight: Tensor,
    found: Found,
    out: Tensor,
    overflow: Tensor,
    layout: Layout,
    sums: str,
    int_rescaler: float,
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
        ATOMIC=not layout.disjoint, DETECT=x is not None, TRAIN=train, **exactly(sums, int_rescaler),
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


def propagate_through_detectors_fc(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    min_delta: Tensor,
    min_delta_index: Tensor,
    anchors: Tensor,
    n_inputs: int,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """grad [B, O], weight [N_t, R, O], indices, min_delta, min_delta_index [B, N_t], anchors [N_t, N_c, 2] -> dx [B, I]."""
    found = (indices, min_delta, min_delta_index)
    return _propagate(grad, weight, found, anchors, n_inputs, fc_layout(*weight.shape), sums, int_rescaler)


def propagate_through_detectors_sparse(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    min_delta: Tensor,
    min_delta_index: Tensor,
    anchors: Tensor,
    n_inputs: int,
    synapses: Synapses,
    *,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """The same with weight [n_weights] -> dx [B, I]."""
    found = (indices, min_delta, min_delta_index)
    return _propagate(grad, weight, found, anchors, n_inputs, sparse_layout(synapses), sums, int_rescaler)


def _propagate(
    grad: Tensor,
    weight: Tensor,
    found: Found,
    anchors: Tensor,
    n_inputs: int,
    layout: Layout,
    sums: str,
    int_rescaler: float,
) -> Tensor:
    batch = grad.shape[0]
    dx, overflow = _sums([batch, n_inputs], sums, grad, weight)
    common: dict[str, Any] = {
        "N_ROWS": layout.n_rows, "N_C": anchors.shape[1], **exactly(sums, int_rescaler),
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
    return _finish(dx, overflow, sums, int_rescaler, sum_dtype(grad, weight))


def propagate_blocks(layout: Layout) -> tuple[int, int, int]:
    """Detectors and outputs per step of one program, and its warps."""
    block_t, block_o = (4, 128) if layout.widest > 64 else (16, 32)
    return min(block_t, next_power_of_2(layout.largest)), min(block_o, next_power_of_2(layout.widest)), 1


# ---- backward, to the weights ----------------------------------------------------------------------------------------


def gather_weight_gradients_fc(
    grad: Tensor,
    indices: Tensor,
    n_rows: int,
    *,
    meta: SynapseMeta = SynapseMeta(),
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """grad [B, O], indices [B, N_t] -> dW [N_t, R, O]; with external_lr >= 0 the updated weight."""
    layout = fc_layout(indices.shape[1], n_rows, grad.shape[1], meta.lr_scale)
    if external_lr < 0:
        gradient = _gradient(grad, indices, layout, sums, int_rescaler)
        return gradient.view(layout.n_detectors, n_rows, layout.n_outputs)
    assert weight is not None
    _step(grad, indices, layout, external_lr, weight, sums, int_rescaler)
    if meta.min_weight > -float("inf") or meta.max_weight < float("inf"):
        weight.clamp_(meta.min_weight, meta.max_weight)
    return weight


def gather_weight_gradients_sparse(
    grad: Tensor,
    indices: Tensor,
    synapses: Synapses,
    *,
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """grad [B, O], indices [B, N_t] -> dW [n_weights]; with external_lr >= 0 the updated weight."""
    layout = sparse_layout(synapses)
    if external_lr < 0:
        return _gradient(grad, indices, layout, sums, int_rescaler)
    assert weight is not None
    _step(grad, indices, layout, external_lr, weight, sums, int_rescaler)
    return synapses.clamp_(weight)


def _gradient(grad: Tensor, indices: Tensor, layout: Layout, sums: str, int_rescaler: float) -> Tensor:
    """Σ lr_scale · g over the rows of the batch that chose each lookup neuron, flat [n_weights]."""
    by_atomics = scatters(layout, sums)
    out, overflow = _sums([layout.n_weights], sums, grad, zero=by_atomics or not grad.shape[0])
    if by_atomics:
        _scatter(grad, indices, layout, out)
    else:
        _add_up(grad, indices, layout, sort_by_neuron(indices, layout.n_rows), out, overflow, exactly(sums, int_rescaler))
    return _finish(out, overflow, sums, int_rescaler, sum_dtype(grad))


def _step(
    grad: Tensor, indices: Tensor, layout: Layout, external_lr: float, weight: Tensor, sums: str, int_rescaler: float
) -> None:
    """weight -= external_lr · gradient, without a gradient buffer where the sums can go straight into the weights."""
    if sums == "fixed" or not (weight.dtype == sum_dtype(grad) == torch.float32):
        gradient = _gradient(grad, indices, layout, sums, int_rescaler)
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
            exactly(sums, int_rescaler),
            external_lr,
        )


def scatters(layout: Layout, sums: str) -> bool:
    """Whether atomics beat the sort: measured, up to about 70 outputs. Only float32 atomics come 16 bytes at a time."""
    return layout.kind != "general" and layout.widest <= 64 and sums == "float"


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


def gather_weight_rows_fc(
    grad: Tensor,
    indices: Tensor,
    n_rows: int,
    *,
    meta: SynapseMeta = SynapseMeta(),
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The rows of dW that were touched: sorted slots t·R + index [n], and their sums [n, O]."""
    layout = fc_layout(indices.shape[1], n_rows, grad.shape[1], meta.lr_scale)
    neurons, _, values = _touched(grad, indices, layout, sums, int_rescaler)
    return neurons, values.view(-1, grad.shape[1])


def gather_weight_rows_sparse(
    grad: Tensor, indices: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The weights that were touched: their sorted positions [n], and the sums [n]."""
    layout = sparse_layout(synapses)
    neurons, widths, values = _touched(grad, indices, layout, sums, int_rescaler)
    # The weights of all neurons lie one after the other in both layouts.
    all_widths = layout.neuron_widths(grad.device)
    begins = (all_widths.cumsum(0) - all_widths)[neurons]
    shift = torch.repeat_interleave(begins - (widths.cumsum(0) - widths), widths)
    return shift + torch.arange(values.numel(), device=values.device), values


def _touched(grad: Tensor, indices: Tensor, layout: Layout, sums: str, int_rescaler: float) -> Found:
    """Lookup neurons that were chosen [n], how many weights each has [n], and the sums of all of them, flat."""
    sorted_rows = sort_by_neuron(indices, layout.n_rows)
    chosen = sorted_rows[2].flatten() > 0
    sizes = chosen * layout.neuron_widths(grad.device)
    ends = sizes.cumsum(0)
    neurons = chosen.nonzero().squeeze(1)
    out, overflow = _sums([int(ends[-1])], sums, grad, zero=False)
    _add_up(grad, indices, layout, sorted_rows, out, overflow, exactly(sums, int_rescaler), compact=ends - sizes)
    return neurons, sizes[neurons], _finish(out, overflow, sums, int_rescaler, sum_dtype(grad))


# ---- sums ------------------------------------------------------------------------------------------------------------


def convert_integers_to_floats(buffer: Tensor, int_rescaler: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Integer sums [...] (int32 or int64) back to floating point; a sum past the range of an int32 is an error."""
    return _finish(buffer, buffer.new_zeros(1, dtype=torch.int32), "fixed", int_rescaler, dtype)


def exactly(sums: str, int_rescaler: float) -> dict[str, Any]:
    """Launch options: units per 1.0 in fixed sums (0 for float). A fused multiply-add would round float64 addends otherwise."""
    return {"SCALE": fixed_scale(int_rescaler) if sums == "fixed" else 0.0, "enable_fp_fusion": sums == "float"}


def _sums(shape: list[int], sums: str, *operands: Tensor, zero: bool = True) -> tuple[Tensor, Tensor]:
    """A buffer for sums (int64 when fixed) and the overflow flag (unused when float: any tensor serves)."""
    make = operands[0].new_zeros if zero else operands[0].new_empty
    if sums == "float":
        buffer = make(shape, dtype=sum_dtype(*operands))
        return buffer, buffer
    return make(shape, dtype=torch.int64), operands[0].new_zeros(1, dtype=torch.int32)


def _finish(buffer: Tensor, overflow: Tensor, sums: str, int_rescaler: float, dtype: torch.dtype) -> Tensor:
    """The sums in floating point; raise when one left the range."""
    if sums == "float":
        return buffer
    out = buffer.new_empty(buffer.shape, dtype=dtype)
    total = buffer.numel()
    if total:
        source.convert_kernel[(cdiv(total, 1024),)](
            buffer.contiguous(), out, overflow, total, SCALE=fixed_scale(int_rescaler), BLOCK=1024
        )
    if buffer.is_cuda and torch.cuda.is_current_stream_capturing():
        torch._assert_async(overflow == 0)  # a captured graph cannot raise; a replay that overflows stops the stream
    elif bool(overflow.item()):
        raise_overflow(int_rescaler)
    return out
