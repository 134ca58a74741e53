"""Rows of tables on the CPU, one step at a time, compiled; the primitives of a `Backend`.

The loops are in `loops`, compiled on first use and kept on disk; here tensors become arrays, are checked, and the work is divided
over threads: batch rows going forward and to the inputs, detectors going to the weights, so no two threads ever write to the same
place.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.arrays import array_of, float_array_of, new_array
from lutetia._shared.memory import uncleared
from lutetia._shared.threads import over
from lutetia.errors import MAX_INT32, ArgumentError, check_tensor, fail
from lutetia.lut.kernels.cpu.arrays import Places
from lutetia.lut.kernels.cpu.detect import anchor_array, detect
from lutetia.lut.kernels.cpu.plan import LayerPlan, loop, plan_of, raise_if, scale_of
from lutetia.lut.kernels.protocol import Coefficients, Comparisons, Connectivity, Detected, Into, Sums, sum_dtype
from lutetia.lut.kernels.recorder import kernel, unrecorded
from lutetia.lut.kernels.reference.rows import factors, rows_read

NO_RATES = np.empty(0, np.float32)
RowsRead: TypeAlias = tuple[Tensor, Coefficients | None]  # indices [B, N_t], and with what the rows are multiplied


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def fill_rows(
    weight: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> Tensor:
    """indices [B, N_t] -> y [B, O]."""
    plan = plan_of(connectivity)
    reads = reads_of(indices, coefficients, plan, weight)
    n = len(reads[0][0])
    y = new_array((n, plan.n_outputs), weight, *factors(coefficients))
    arrays = (weight_array(weight, plan), plan.arrays, reads, y, scale_of(sums))
    raise_if(over(n, len(rows_read(indices, coefficients)) * n * plan.n_synapses, loop("rows", "fill"), *arrays), sums)
    return torch.from_numpy(y)


def detect_and_fill(
    x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, sums: Sums, train: bool
) -> tuple[Tensor, Detected | None]:
    """x [B, I] -> y [B, O] and, with `train`, `Detected` [B, N_t]; in one loop where nothing is kept."""
    if not train and comparisons.thresholds is None:  # that loop for thresholds too would take seconds to compile
        return _detect_and_fill(x, weight, comparisons, connectivity, sums), None
    detected = detect(x, comparisons, train)
    return fill_rows(weight, connectivity, detected.indices, None, sums), detected if train else None


@kernel
def _detect_and_fill(x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, sums: Sums) -> Tensor:
    plan, anchors = plan_of(connectivity), comparisons.anchors
    check_anchors_fit(anchors, plan)
    rows, pairs, weights = float_array_of(x), array_of(anchors), weight_array(weight, plan)
    n, y = len(rows), new_array((len(rows), plan.n_outputs), weight)
    arrays = ((rows, pairs), weights, plan.arrays, y, scale_of(sums))
    flags = over(n, n * (2 * pairs.size + plan.n_synapses), loop("rows", "evaluate"), *arrays)
    if flags:
        anchor_array(anchors, x.shape[1])  # the loop has looked at them: a call of its own would take 1 µs
        raise_if(flags, sums)
    return torch.from_numpy(y)


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


@kernel
def row_gains(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, rows: tuple[Tensor, Tensor | None], sums: Sums
) -> tuple[Tensor, Tensor | None]:
    """grad [B, O], rows [B, N_t] each -> g·W[t, index_t] of each, [B, N_t]."""
    plan = plan_of(connectivity)
    check_tensor("grad", grad, [rows[0].shape[0], plan.n_outputs])
    addend, weights = array_of(grad.to(sum_dtype(grad, weight))), weight_array(weight, plan)
    indices = [
        index_array(name, row, plan.n_detectors, plan.n_rows, len(grad))
        for name, row in zip(("indices", "alternatives"), rows, strict=True)
        if row is not None
    ]
    out = [np.empty(row.shape, addend.dtype) for row in indices]
    first, *second = zip(indices, out, strict=True)
    arrays = (addend, weights, plan.arrays, (first, second[0] if second else None), scale_of(sums))
    work = len(out) * len(addend) * plan.n_synapses
    raise_if(over(len(addend), work, loop("rows", "gains"), *arrays), sums)
    return torch.from_numpy(out[0]), torch.from_numpy(out[1]) if len(out) == 2 else None


@kernel
def propagate(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, detected: Detected, anchors: Tensor, n_inputs: int, sums: Sums
) -> Tensor:
    """grad [B, O], detected [B, N_t], anchors [N_t, N_c, 2] -> dx [B, I]."""
    plan = plan_of(connectivity)
    check_anchors_fit(anchors, plan)
    indices, (min_delta, bits) = index_array("indices", detected.indices, plan.n_detectors, plan.n_rows), detected.closest
    which = index_array("min_delta_index", bits, plan.n_detectors, anchors.shape[1], len(indices))
    check_tensor("grad", grad, [len(indices), plan.n_outputs])
    check_tensor("min_delta", min_delta, list(indices.shape))
    dx = new_array((len(indices), n_inputs), grad, weight, min_delta)
    found = (indices, array_of(min_delta), which, anchor_array(anchors, n_inputs, MAX_INT32 - n_inputs))
    addend = grad.to(sum_dtype(grad, weight))
    arrays = (array_of(addend), weight_array(weight, plan), plan.arrays, found, dx, scale_of(sums))
    raise_if(over(len(indices), 3 * len(indices) * plan.n_synapses, loop("rows", "propagate"), *arrays), sums)
    return torch.from_numpy(dx)


# ---- backward, to the weights ----------------------------------------------------------------------------------------


@kernel
def gather_rows(
    grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums, into: Into | None
) -> Tensor:
    """grad [B, O], indices [B, N_t] -> dW, or `into` after its step, without a gradient of its size."""
    plan, rows = plan_of(connectivity), (indices, coefficients)
    if into is None:
        return _sums_at(plan.places, grad, rows, plan, sums).view(connectivity.weight_shape)
    weight, rate = into
    if weight.numel() != plan.n_weights:
        fail("weight", weight, f"{plan.n_weights} weights")
    flat = weight.detach().contiguous().view(-1)
    if not sums.exact and weight.dtype == sum_dtype(weight, *factors(coefficients)):
        _add(grad.to(weight.dtype), rows, plan, sums, (array_of(flat), plan.places, False), -rate * plan.rates)
    else:  # each weight takes its step once, when the sum is complete: fixed sums need it, and halves would lose small addends
        neurons, values = unrecorded(gather_compact)(grad, connectivity, *rows, sums)
        places = connectivity.places_of(neurons)
        with torch.inference_mode(weight.is_inference() or torch.is_inference_mode_enabled()):
            flat[places] = (flat[places] - rate * values).to(flat.dtype)
    if not weight.is_contiguous():
        weight.detach().copy_(flat.view_as(weight))
    if not weight.is_inference():
        torch.autograd.graph.increment_version(weight)
    return weight


@kernel
def gather_compact(
    grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> tuple[Tensor, Tensor]:
    """The lookup neurons that were read, int64 [n], rising, and the gradients of their weights, flat."""
    plan, rows = plan_of(connectivity), (indices, coefficients)
    fired = np.zeros((plan.n_detectors, plan.n_rows), np.bool_)
    for (each, _), name in zip(rows_read(*rows), ("indices", "alternatives"), strict=False):
        loop("detect", "mark")(index_array(name, each, plan.n_detectors, plan.n_rows), fired)
    neurons = np.flatnonzero(fired)
    places = plan.places_of(neurons, connectivity.neuron_widths(grad.device))
    return torch.from_numpy(neurons), _sums_at(places, grad, rows, plan, sums)


def _sums_at(places: Places, grad: Tensor, rows: RowsRead, plan: LayerPlan, sums: Sums) -> Tensor:
    """The gradients of the weights that have a place, flat."""
    addend = grad.to(sum_dtype(grad, *factors(rows[1])))
    out = uncleared(int(places.spans[-1]), addend.dtype)
    _add(addend, rows, plan, sums, (out.numpy(), places, True), plan.rates)
    return out


def _add(grad: Tensor, rows: RowsRead, plan: LayerPlan, sums: Sums, sink: tuple[Any, ...], rates: float | np.ndarray) -> None:
    """sink, as in `arrays.Sink`, += rates, one or one for every synapse listed, times grad [B, O] at the rows read."""
    (indices, coefficients), (out, places, fresh), n = rows, sink, rows[0].shape[0]
    reads = reads_of(indices, coefficients, plan, grad)
    check_tensor("grad", grad, [n, plan.n_outputs])
    if isinstance(rates, float):
        grad, rates = (grad if rates == 1.0 else grad * rates), NO_RATES
    gradients = (array_of(grad), rates.astype(out.dtype, copy=False))
    work = len(rows_read(indices, coefficients)) * n * plan.n_synapses + (out.size // 8 if fresh else 0)
    arrays = (gradients, plan.arrays, reads, (out, tuple(places), fresh), scale_of(sums))
    raise_if(over(plan.n_detectors, work, loop("gather", "gather"), *arrays), sums)


# ---- arguments and results -------------------------------------------------------------------------------------------


def reads_of(indices: Tensor, coefficients: Coefficients | None, plan: LayerPlan, addend: Tensor) -> tuple[Any, ...]:
    """The rows that indices [B, N_t] and coefficients name, checked, as in `arrays.Reads`; `addend` is what is multiplied."""
    reads: list[Any] = []
    dtype = sum_dtype(addend, *factors(coefficients))
    for (rows, factor), names in zip(rows_read(indices, coefficients), (("indices", "a"), ("alternatives", "b")), strict=False):
        chosen = index_array(names[0], rows, plan.n_detectors, plan.n_rows, len(indices))
        if factor is not None:
            check_tensor(names[1], factor, list(chosen.shape))
        reads.append((chosen, None if factor is None else array_of(factor.to(dtype))))
    return tuple(reads) if len(reads) == 2 else (reads[0], None)


def check_anchors_fit(anchors: Tensor, plan: LayerPlan) -> None:
    """Check that anchors [N_t, N_c, 2] are those of the tables."""
    if anchors.shape[0] != plan.n_detectors or 1 << anchors.shape[1] != plan.n_rows:
        fail("anchors", anchors, f"anchors of {plan.n_detectors} detectors with {plan.n_rows} rows each")


def index_array(name: str, indices: Tensor, n_detectors: int, end: int, batch: int | str = "B") -> np.ndarray:
    """indices [B, N_t] as unsigned, checked to lie below `end`."""
    check_tensor(name, indices, [batch, n_detectors])
    array = array_of(indices if indices.dtype == torch.int32 else indices.clamp(-1, end).to(torch.int32))
    if array.size and loop("detect", "largest")(array.reshape(-1)) >= end:
        raise ArgumentError(f"{name} are from {int(indices.min())} to {int(indices.max())}, expected 0 to {end - 1}")
    return array


def weight_array(weight: Tensor, plan: LayerPlan) -> np.ndarray:
    """A weight of the layer of a plan, flat."""
    if weight.numel() != plan.n_weights:
        fail("weight", weight, f"{plan.n_weights} weights")
    return array_of(weight).reshape(-1)
