"""The LUT kernels on the CPU, compiled; the same names in the same order as in `reference`.

The loops are in `numba_kernels`, compiled on first use and kept on disk; here tensors become arrays, are checked, and the work
is shared out over threads: batch rows going forward and to the inputs, detectors going to the weights, so no two threads
ever write to the same place.
"""

from __future__ import annotations

import math
import weakref
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from lutetia.errors import ArgumentError, check_tensor, fail
from lutetia.lut.cpu_memory import uncleared
from lutetia.lut.cpu_plan import Plan, array_of, fc_plan, float_array_of, new_array, sparse_plan
from lutetia.lut.sums import convert_integers_to_floats, fixed_scale, raise_overflow, sum_dtype
from lutetia.lut.synapses import SynapseMeta, Synapses
from lutetia.lut.threads import OUT_OF_MEMORY, openmp, over

__all__ = [
    "check_detectors",
    "check_detectors_eval",
    "convert_integers_to_floats",
    "detect_and_fill_eval_fc",
    "detect_and_fill_eval_sparse",
    "detect_and_fill_fc",
    "detect_and_fill_sparse",
    "fill_outputs_fc",
    "fill_outputs_sparse",
    "gather_weight_gradients_fc",
    "gather_weight_gradients_sparse",
    "gather_weight_rows_fc",
    "gather_weight_rows_sparse",
    "propagate_through_detectors_fc",
    "propagate_through_detectors_sparse",
]


Rates: TypeAlias = float | np.ndarray  # what multiplies the gradients: one number, or one for every synapse listed
NO_RATES = np.empty(0, np.float32)


@cache
def compiled() -> ModuleType:
    """The compiled loops; numba is first imported here."""
    from lutetia.lut import numba_kernels

    return numba_kernels


@cache
def compiled_general() -> ModuleType:
    """Those for the general layout."""
    from lutetia.lut import numba_general

    return numba_general


# ---- detect ----------------------------------------------------------------------------------------------------------


def check_detectors(x: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x [..., I], anchors [N_t, N_c, 2] -> indices int32, min_delta, min_delta_index int32, each [..., N_t]."""
    shape = (*x.shape[:-1], anchors.shape[0])
    found = (np.empty(shape, np.int32), new_array(shape, x), np.empty(shape, np.int32))
    _detect(x, anchors, *found)
    indices, min_delta, min_delta_index = map(torch.from_numpy, found)
    return indices, min_delta, min_delta_index


def check_detectors_eval(x: Tensor, anchors: Tensor) -> Tensor:
    """x [..., I], anchors [N_t, N_c, 2] -> indices int32 [..., N_t]."""
    indices = np.empty((*x.shape[:-1], anchors.shape[0]), np.int32)
    _detect(x, anchors, indices)
    return torch.from_numpy(indices)


def _detect(x: Tensor, anchors: Tensor, indices: np.ndarray, *closest: np.ndarray) -> None:
    pairs, rows = _anchor_array(anchors, x.shape[-1]), float_array_of(x).reshape(-1, x.shape[-1])
    columns = (len(rows), len(pairs))
    found = [array.reshape(columns) for array in (indices.view(np.uint32), *closest)]
    arrays = (rows, pairs, found[0], False, *(found[1:] or (None, None)))
    _raise_if(over(len(rows), 2 * len(rows) * pairs.size, compiled().detect, *arrays))


# ---- forward ---------------------------------------------------------------------------------------------------------


def fill_outputs_fc(weight: Tensor, indices: Tensor, *, sums: str = "float", int_rescaler: float = 1.0) -> Tensor:
    """weight [N_t, R, O], indices [B, N_t] -> [B, O]."""
    return _fill(weight, indices, fc_plan(*weight.shape), sums, int_rescaler)


def fill_outputs_sparse(
    weight: Tensor, indices: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """weight [n_weights], indices [B, N_t] -> [B, O]."""
    return _fill(weight, indices, sparse_plan(synapses), sums, int_rescaler)


def detect_and_fill_eval_fc(
    x: Tensor, weight: Tensor, anchors: Tensor, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O]."""
    return _evaluate(x, weight, anchors, fc_plan(*weight.shape), sums, int_rescaler)


def detect_and_fill_eval_sparse(
    x: Tensor, weight: Tensor, anchors: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> Tensor:
    """x [B, I], weight [n_weights], anchors [N_t, N_c, 2] -> y [B, O]."""
    return _evaluate(x, weight, anchors, sparse_plan(synapses), sums, int_rescaler)


def detect_and_fill_fc(
    x: Tensor, weight: Tensor, anchors: Tensor, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y, indices, min_delta, min_delta_index."""
    found = check_detectors(x, anchors)
    return fill_outputs_fc(weight, found[0], sums=sums, int_rescaler=int_rescaler), *found


def detect_and_fill_sparse(
    x: Tensor, weight: Tensor, anchors: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [B, I], weight [n_weights], anchors [N_t, N_c, 2] -> y, indices, min_delta, min_delta_index."""
    found = check_detectors(x, anchors)
    return fill_outputs_sparse(weight, found[0], synapses, sums=sums, int_rescaler=int_rescaler), *found


def _fill(weight: Tensor, indices: Tensor, plan: Plan, sums: str, int_rescaler: float) -> Tensor:
    chosen = _index_array("indices", indices, plan.n_detectors, plan.n_rows)
    y = new_array((len(chosen), plan.n_outputs), weight)
    kernel = compiled().fill if plan.blocks else compiled_general().fill_general
    arrays = (_weight_array(weight, plan), plan.blocks or plan.rows, chosen, y, _scale(sums, int_rescaler))
    _raise_if(over(len(chosen), len(chosen) * plan.n_synapses, kernel, *arrays), int_rescaler)
    return torch.from_numpy(y)


def _evaluate(x: Tensor, weight: Tensor, anchors: Tensor, plan: Plan, sums: str, int_rescaler: float) -> Tensor:
    rows, pairs = float_array_of(x), _anchor_array(anchors, x.shape[-1], plan)
    weights, n = _weight_array(weight, plan), len(rows)
    indices, work = np.empty((n, plan.n_detectors), np.uint32), n * (2 * pairs.size + plan.n_synapses)
    if sums == "float" and plan.suits_bags(n) and x.dtype == weight.dtype == torch.float32 and openmp():
        over(n, work, compiled().detect, rows, pairs, indices, True, None, None)
        table = torch.from_numpy(weights).view(-1, plan.n_outputs)
        return embedding_bag(torch.from_numpy(indices.view(np.int32)), table, mode="sum")
    y, scale = new_array((n, plan.n_outputs), weight), _scale(sums, int_rescaler)
    if plan.blocks:
        _raise_if(over(n, work, compiled().evaluate, rows, pairs, weights, plan.blocks, indices, y, scale), int_rescaler)
    else:
        over(n, work, compiled().detect, rows, pairs, indices, False, None, None)
        _raise_if(over(n, work, compiled_general().fill_general, weights, plan.rows, indices, y, scale), int_rescaler)
    return torch.from_numpy(y)


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
    return _propagate(grad, weight, found, anchors, n_inputs, fc_plan(*weight.shape), sums, int_rescaler)


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
    """weight [n_weights], everything else as in `_fc` -> dx [B, I]."""
    found = (indices, min_delta, min_delta_index)
    return _propagate(grad, weight, found, anchors, n_inputs, sparse_plan(synapses), sums, int_rescaler)


def _propagate(
    grad: Tensor,
    weight: Tensor,
    found: tuple[Tensor, Tensor, Tensor],
    anchors: Tensor,
    n_inputs: int,
    plan: Plan,
    sums: str,
    int_rescaler: float,
) -> Tensor:
    pairs = _anchor_array(anchors, n_inputs, plan)
    indices = _index_array("indices", found[0], plan.n_detectors, plan.n_rows)
    which = _index_array("min_delta_index", found[2], plan.n_detectors, anchors.shape[1])
    check_tensor("grad", grad, [len(indices), plan.n_outputs])
    check_tensor("min_delta", found[1], list(indices.shape))
    dx = new_array((len(indices), n_inputs), grad, weight, found[1])
    kernel = compiled().propagate if plan.blocks else compiled_general().propagate_general
    seen, synapses = (indices, array_of(found[1]), which), plan.blocks or plan.rows
    addend = grad.to(sum_dtype(grad, weight))
    arrays = (array_of(addend), _weight_array(weight, plan), synapses, seen, pairs, dx, _scale(sums, int_rescaler))
    _raise_if(over(len(indices), 3 * len(indices) * plan.n_synapses, kernel, *arrays), int_rescaler)
    return torch.from_numpy(dx)


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
    """grad [B, O], indices [B, N_t] -> dW [N_t, R, O]; with external_lr >= 0 the updated weight [N_t, R, O]."""
    plan = fc_plan(indices.shape[1], n_rows, grad.shape[1])
    if external_lr < 0:
        return _gather(grad, indices, plan, float(meta.lr_scale), sums, int_rescaler).view(-1, n_rows, grad.shape[1])
    weight = _step(weight, grad, indices, plan, float(meta.lr_scale), external_lr, sums, int_rescaler)
    if math.isinf(meta.min_weight) and math.isinf(meta.max_weight):
        return weight
    weight.detach().clamp_(meta.min_weight, meta.max_weight)
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
    """grad [B, O], indices [B, N_t] -> dW [n_weights], or the updated weight [n_weights]."""
    plan = sparse_plan(synapses)
    if external_lr < 0:
        return _gather(grad, indices, plan, plan.rates, sums, int_rescaler)
    return synapses.clamp_(_step(weight, grad, indices, plan, plan.rates, external_lr, sums, int_rescaler))


def gather_weight_rows_fc(
    grad: Tensor,
    indices: Tensor,
    n_rows: int,
    *,
    meta: SynapseMeta = SynapseMeta(),
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The rows of dW that were looked up: grad [B, O], indices [B, N_t] -> slots int64 [n], rising, and values [n, O]."""
    plan = fc_plan(indices.shape[1], n_rows, grad.shape[1])
    fired, values = _gather_fired(grad, indices, plan, float(meta.lr_scale), sums, int_rescaler)
    return torch.from_numpy(fired), values.view(-1, grad.shape[1])


def gather_weight_rows_sparse(
    grad: Tensor, indices: Tensor, synapses: Synapses, *, sums: str = "float", int_rescaler: float = 1.0
) -> tuple[Tensor, Tensor]:
    """grad [B, O], indices [B, N_t] -> places in weight int64 [n], rising; values [n]."""
    plan = sparse_plan(synapses)
    fired, values = _gather_fired(grad, indices, plan, plan.rates, sums, int_rescaler)
    return torch.from_numpy(plan.weights_of(fired)), values


def _gather(
    grad: Tensor, indices: Tensor, plan: Plan, rates: Rates, sums: str, int_rescaler: float, places: Any = None
) -> Tensor:
    """The gradients of all weights, flat; or those that have a place in `places`."""
    places = places or plan.places
    addend = grad.to(sum_dtype(grad))
    out = uncleared(int(places[1][-1]), addend.dtype)
    _add_to(out.numpy(), addend, indices, plan, rates, sums, int_rescaler, places, fresh=True)
    return out


def _gather_fired(
    grad: Tensor, indices: Tensor, plan: Plan, rates: Rates, sums: str, int_rescaler: float
) -> tuple[np.ndarray, Tensor]:
    """The lookup neurons that fired, int64 [n], rising, and the gradients of their weights, flat."""
    fired = np.zeros((plan.n_detectors, plan.n_rows), np.bool_)
    compiled().mark(_index_array("indices", indices, plan.n_detectors, plan.n_rows), fired)
    neurons = np.flatnonzero(fired)
    return neurons, _gather(grad, indices, plan, rates, sums, int_rescaler, plan.places_of(neurons))


def _add_to(
    out: np.ndarray,
    grad: Tensor,
    indices: Tensor,
    plan: Plan,
    rates: Rates,
    sums: str,
    int_rescaler: float,
    places: Any,
    fresh: bool = False,
) -> None:
    """out [n] += rates · grad [B, O] at the rows that indices [B, N_t] name; a fresh one is cleared first."""
    chosen = _index_array("indices", indices, plan.n_detectors, plan.n_rows)
    check_tensor("grad", grad, [len(chosen), plan.n_outputs])
    if isinstance(rates, float):
        grad, rates = (grad if rates == 1.0 else grad * rates), NO_RATES
    kernel = compiled().gather if plan.blocks else compiled_general().gather_general
    layout, rates = plan.blocks or plan.rows, rates.astype(out.dtype, copy=False)
    arrays = (array_of(grad), rates, layout, chosen, places, out, fresh, _scale(sums, int_rescaler))
    work = len(chosen) * plan.n_synapses + (out.size // 8 if fresh else 0)
    _raise_if(over(plan.n_detectors, work, kernel, *arrays), int_rescaler)


def _step(
    weight: Tensor | None,
    grad: Tensor,
    indices: Tensor,
    plan: Plan,
    rates: Rates,
    external_lr: float,
    sums: str,
    int_rescaler: float,
) -> Tensor:
    """weight -= external_lr · dW, without a gradient of its size."""
    check_tensor("weight", weight)
    assert weight is not None
    if weight.numel() != plan.n_weights:
        fail("weight", weight, f"{plan.n_weights} weights")
    flat = weight.detach().contiguous().view(-1)
    if sums == "float" and weight.dtype in (torch.float32, torch.float64):
        _add_to(array_of(flat), grad.to(weight.dtype), indices, plan, -external_lr * rates, sums, int_rescaler, plan.places)
    else:  # each weight takes its step once, when the sum is complete: fixed sums need it, and halves would lose small addends
        neurons, values = _gather_fired(grad, indices, plan, rates, sums, int_rescaler)
        places = torch.from_numpy(plan.weights_of(neurons))
        flat[places] = (flat[places] - external_lr * values).to(flat.dtype)
    if not weight.is_contiguous():
        weight.detach().copy_(flat.view_as(weight))
    if not weight.is_inference():
        torch.autograd.graph.increment_version(weight)
    return weight


# ---- arguments and results -------------------------------------------------------------------------------------------


def _anchor_array(anchors: Tensor, n_inputs: int, plan: Plan | None = None) -> np.ndarray:
    """anchors [N_t, N_c, 2] as unsigned, checked, since the loops trust them: once, until they change."""
    if plan is not None and (anchors.shape[0] != plan.n_detectors or 1 << anchors.shape[1] != plan.n_rows):
        fail("anchors", anchors, f"anchors of {plan.n_detectors} detectors with {plan.n_rows} rows each")
    key = id(anchors)
    stamp = (anchors.data_ptr(), n_inputs, 0 if anchors.is_inference() else anchors._version)
    known = _known_anchors.get(key)
    if known is not None and known[0]() is anchors and known[1] == stamp:
        return known[2]
    if anchors.dim() != 3 or anchors.shape[2] != 2 or anchors.shape[1] == 0:
        fail("anchors", anchors, "shape [N_t, N_c, 2] with N_c of at least 1")
    array = array_of(anchors.detach().to(torch.int32))  # of an alias: what is kept must not keep the anchors themselves
    if array.size and compiled().largest(array.reshape(-1)) >= n_inputs:
        raise ArgumentError(f"anchors are from {int(anchors.min())} to {int(anchors.max())}, expected 0 to {n_inputs - 1}")
    if not anchors.is_inference():  # an inference tensor does not count its changes
        _known_anchors[key] = (weakref.ref(anchors, lambda _: _known_anchors.pop(key, None)), stamp, array)
    return array


_known_anchors: dict[int, tuple[Any, tuple[int, int, int], np.ndarray]] = {}


def _index_array(name: str, indices: Tensor, n_detectors: int, end: int) -> np.ndarray:
    """indices [B, N_t] as unsigned, checked to lie below `end`."""
    check_tensor(name, indices, ["B", n_detectors])
    array = array_of(indices if indices.dtype == torch.int32 else indices.to(torch.int32))
    if array.size and compiled().largest(array.reshape(-1)) >= end:
        raise ArgumentError(f"{name} are from {int(indices.min())} to {int(indices.max())}, expected 0 to {end - 1}")
    return array


def _weight_array(weight: Tensor, plan: Plan) -> np.ndarray:
    if weight.numel() != plan.n_weights:
        fail("weight", weight, f"{plan.n_weights} weights")
    return array_of(weight).reshape(-1)


def _scale(sums: str, int_rescaler: float) -> float | None:
    return None if sums == "float" else fixed_scale(int_rescaler)


def _raise_if(flags: int, int_rescaler: float = 1.0) -> None:
    """Raise what a kernel's flags stand for."""
    if flags & OUT_OF_MEMORY:
        raise MemoryError("a compiled kernel found no memory for its sums")
    if flags:
        raise_overflow(int_rescaler)
