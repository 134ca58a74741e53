"""The kernels of the reads on the CPU, compiled; the same names in the same order as in `reference_reads`.

The loops are in `numba_reads`, `numba_weighted` and `numba_weighted_general`. As in `cpu`, the work is shared out over threads by
batch rows, and by detectors going to the weights, so no two threads ever write to the same place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import check_tensor, fail
from lutetia.lut.cpu import NO_RATES, Rates, _anchor_array, _index_array, _raise_if, _scale, _weight_array, compiled
from lutetia.lut.cpu_memory import uncleared
from lutetia.lut.cpu_plan import Plan, array_of, fc_plan, float_array_of, new_array, sparse_plan
from lutetia.lut.sums import fixed_scale, sum_dtype
from lutetia.lut.synapses import SynapseMeta, Synapses
from lutetia.lut.threads import over

KINDS = {"hard": 0, "blend": 1, "confidence": 2, "confidence2": 3}
Coefficients = tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@cache
def compiled_reads() -> ModuleType:
    """The compiled loops; numba is first imported here."""
    from lutetia.lut import numba_reads

    return numba_reads


def compiled_weighted(plan: Plan, name: str) -> Callable[..., Any]:
    """A loop over rows with coefficients, for the layout of this plan."""
    module = "numba_weighted" if plan.blocks else "numba_weighted_general"
    return getattr(import_module(f"lutetia.lut.{module}"), name if plan.blocks else f"{name}_general")


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [B, I], anchors [N_t, N_c, 2], scalars [] -> indices, alternatives int32, a, b, each [B, N_t]."""
    rows, pairs = float_array_of(x), _anchor_array(anchors, x.shape[-1])
    shape = (len(rows), len(pairs))
    second = (0,) if read == "confidence" else shape
    indices, alternatives = np.empty(shape, np.int32), np.empty(second, np.int32)
    a, b = np.empty(shape, rows.dtype), np.empty(second, rows.dtype)
    others = (None, None) if read == "confidence" else (alternatives.view(np.uint32), b)
    scalars = _scalars((log_beta, log_gamma, log_tau), np.dtype(np.float64) if exact else rows.dtype)
    arrays = (rows, pairs, scalars, KINDS[read], indices.view(np.uint32), others[0], a, others[1])
    _raise_if(over(len(rows), _work(len(rows), pairs, read), compiled_reads().read, *arrays))
    found = [torch.from_numpy(array) for array in (indices, alternatives, a, b)]
    return found[0], found[1], found[2], found[3]


def _scalars(logs: tuple[Tensor | None, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """β, γ, τ as an array [3]; 1 where there is none."""
    return np.exp(np.array([0.0 if log is None else float(log) for log in logs], dtype))


def _work(n: int, pairs: np.ndarray, read: str) -> int:
    """An estimate in additions: an exponential takes about twenty."""
    return n * pairs.size * (10 if read.startswith("confidence") else 2)


# ---- forward ---------------------------------------------------------------------------------------------------------


def fill_outputs_weighted_fc(
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    two: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """weight [N_t, R, O], indices, alternatives, a, b [B, N_t] -> [B, O]."""
    return _fill(weight, indices, alternatives, a, b, fc_plan(*weight.shape), two, sums, int_rescaler)


def fill_outputs_weighted_sparse(
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    synapses: Synapses,
    *,
    two: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """weight [n_weights], the others [B, N_t] -> [B, O]."""
    return _fill(weight, indices, alternatives, a, b, sparse_plan(synapses), two, sums, int_rescaler)


def _fill(
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    plan: Plan,
    two: bool,
    sums: str,
    int_rescaler: float,
) -> Tensor:
    pairs = _coefficients(indices, alternatives, a, b, plan, two, sum_dtype(weight, a))
    n = len(pairs[0][0])
    y = new_array((n, plan.n_outputs), weight, a)
    kernel = compiled_weighted(plan, "fill_weighted")
    arrays = (_weight_array(weight, plan), plan.blocks or plan.rows, *pairs, y, _scale(sums, int_rescaler))
    _raise_if(over(n, (1 + two) * n * plan.n_synapses, kernel, *arrays), int_rescaler)
    return torch.from_numpy(y)


def _coefficients(
    indices: Tensor, alternatives: Tensor, a: Tensor, b: Tensor, plan: Plan, two: bool, dtype: torch.dtype
) -> Coefficients:
    """(indices, alternatives) and (a, b), checked, as arrays; the second of each empty where there is one row."""
    first = _index_array("indices", indices, plan.n_detectors, plan.n_rows)
    check_tensor("a", a, list(first.shape))
    if not two:
        factor = array_of(a.to(dtype))
        return (first, np.empty((0, 0), first.dtype)), (factor, np.empty((0, 0), factor.dtype))
    second = _index_array("alternatives", alternatives, plan.n_detectors, plan.n_rows)
    check_tensor("alternatives", alternatives, list(first.shape))
    check_tensor("b", b, list(first.shape))
    return (first, second), (array_of(a.to(dtype)), array_of(b.to(dtype)))


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


def row_gains_fc(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    *,
    for_b: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """grad [B, O], weight [N_t, R, O], indices, alternatives [B, N_t] -> da, db [B, N_t]."""
    return _gains(grad, weight, indices, alternatives, fc_plan(*weight.shape), for_b, sums, int_rescaler)


def row_gains_sparse(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    synapses: Synapses,
    *,
    for_b: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The same with weight [n_weights]."""
    return _gains(grad, weight, indices, alternatives, sparse_plan(synapses), for_b, sums, int_rescaler)


def _gains(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    plan: Plan,
    for_b: bool,
    sums: str,
    int_rescaler: float,
) -> tuple[Tensor, Tensor]:
    check_tensor("grad", grad, [indices.shape[0], plan.n_outputs])
    addend, weights = array_of(grad.to(sum_dtype(grad, weight))), _weight_array(weight, plan)
    kernel = compiled_weighted(plan, "gains")
    first = _index_array("indices", indices, plan.n_detectors, plan.n_rows)
    second = _index_array("alternatives", alternatives, plan.n_detectors, plan.n_rows) if for_b else first[:0]
    out = np.empty(first.shape, addend.dtype), np.empty(second.shape, addend.dtype)
    arrays = (addend, weights, plan.blocks or plan.rows, (first, second), out, _scale(sums, int_rescaler))
    _raise_if(over(len(first), (1 + for_b) * len(first) * plan.n_synapses, kernel, *arrays), int_rescaler)
    return torch.from_numpy(out[0]), torch.from_numpy(out[1] if for_b else out[1].reshape(-1))


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
    to_x: bool = True,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """da, db [B, N_t] -> dx [B, I], and the gradients of log β, log γ, log τ [3]."""
    rows, pairs = float_array_of(x), _anchor_array(anchors, x.shape[-1])
    fixed, n = sums == "fixed", len(rows)
    check_tensor("da", da, [n, len(pairs)])
    scalars = _scalars((log_beta, log_gamma, log_tau), np.dtype(np.float64) if fixed else rows.dtype)
    to_a = array_of(da.to(sum_dtype(da)))
    to_b = None if read == "confidence" else array_of(db.to(sum_dtype(da)))
    dx, learned = new_array(rows.shape, x) if to_x else None, np.empty((3, n), np.int64 if fixed else np.float64)
    arrays = (rows, pairs, scalars, KINDS[read], to_a, to_b, dx, learned, _scale(sums, int_rescaler))
    _raise_if(over(n, 3 * _work(n, pairs, read), compiled_reads().propagate_reads, *arrays), int_rescaler)
    units = fixed_scale(int_rescaler) if fixed else 1.0
    found = torch.from_numpy(learned.sum(1) / units).to(sum_dtype(x))
    return (x.new_empty(0, dtype=sum_dtype(x)) if dx is None else torch.from_numpy(dx)), found


# ---- backward, to the weights ----------------------------------------------------------------------------------------


def gather_weighted_gradients_fc(
    grad: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    n_rows: int,
    *,
    two: bool,
    meta: SynapseMeta = SynapseMeta(),
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """grad [B, O], the others [B, N_t] -> dW [N_t, R, O]; with external_lr >= 0 the updated weight."""
    plan, rows = fc_plan(indices.shape[1], n_rows, grad.shape[1]), (indices, alternatives, a, b)
    if external_lr < 0:
        return _gather(grad, rows, plan, two, float(meta.lr_scale), sums, int_rescaler).view(-1, n_rows, grad.shape[1])
    weight = _step(weight, grad, rows, plan, two, float(meta.lr_scale), external_lr, sums, int_rescaler)
    weight.detach().clamp_(meta.min_weight, meta.max_weight)
    return weight


def gather_weighted_gradients_sparse(
    grad: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    synapses: Synapses,
    *,
    two: bool,
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """grad [B, O], the others [B, N_t] -> dW [n_weights], or the updated weight [n_weights]."""
    plan, rows = sparse_plan(synapses), (indices, alternatives, a, b)
    if external_lr < 0:
        return _gather(grad, rows, plan, two, plan.rates, sums, int_rescaler)
    return synapses.clamp_(_step(weight, grad, rows, plan, two, plan.rates, external_lr, sums, int_rescaler))


def gather_weighted_rows_fc(
    grad: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    n_rows: int,
    *,
    two: bool,
    meta: SynapseMeta = SynapseMeta(),
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The rows of dW that were looked up: slots int64 [n], rising, and values [n, O]."""
    plan = fc_plan(indices.shape[1], n_rows, grad.shape[1])
    found = _gather_fired(grad, (indices, alternatives, a, b), plan, two, float(meta.lr_scale), sums, int_rescaler)
    return torch.from_numpy(found[0]), found[1].view(-1, grad.shape[1])


def gather_weighted_rows_sparse(
    grad: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    synapses: Synapses,
    *,
    two: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Places in weight int64 [n], rising; values [n]."""
    plan = sparse_plan(synapses)
    fired, values = _gather_fired(grad, (indices, alternatives, a, b), plan, two, plan.rates, sums, int_rescaler)
    return torch.from_numpy(plan.weights_of(fired)), values


Rows = tuple[Tensor, Tensor, Tensor, Tensor]  # indices, alternatives, a, b


def _gather(
    grad: Tensor, rows: Rows, plan: Plan, two: bool, rates: Rates, sums: str, int_rescaler: float, places: Any = None
) -> Tensor:
    """The gradients of all weights, flat; or those that have a place in `places`."""
    places = places or plan.places
    out = uncleared(int(places[1][-1]), sum_dtype(grad, rows[2])).zero_()
    _add_to(out.numpy(), grad.to(out.dtype), rows, plan, two, rates, sums, int_rescaler, places)
    return out


def _gather_fired(
    grad: Tensor, rows: Rows, plan: Plan, two: bool, rates: Rates, sums: str, int_rescaler: float
) -> tuple[np.ndarray, Tensor]:
    """The lookup neurons that were read, int64 [n], rising, and the gradients of their weights, flat."""
    fired = np.zeros((plan.n_detectors, plan.n_rows), np.bool_)
    for name, chosen in (("indices", rows[0]), ("alternatives", rows[1]))[: 1 + two]:
        compiled().mark(_index_array(name, chosen, plan.n_detectors, plan.n_rows), fired)
    neurons = np.flatnonzero(fired)
    return neurons, _gather(grad, rows, plan, two, rates, sums, int_rescaler, plan.places_of(neurons))


def _add_to(
    out: np.ndarray,
    grad: Tensor,
    rows: Rows,
    plan: Plan,
    two: bool,
    rates: Rates,
    sums: str,
    int_rescaler: float,
    places: Any,
) -> None:
    """out [n] += rates · coefficients · grad [B, O] at the rows that were read."""
    pairs = _coefficients(*rows, plan, two, grad.dtype)
    n = len(pairs[0][0])
    check_tensor("grad", grad, [n, plan.n_outputs])
    if isinstance(rates, float):
        grad, rates = (grad if rates == 1.0 else grad * rates), NO_RATES
    kernel = compiled_weighted(plan, "gather_weighted")
    layout, rates = plan.blocks or plan.rows, rates.astype(out.dtype, copy=False)
    arrays = (array_of(grad), rates, layout, *pairs, places, out, _scale(sums, int_rescaler))
    _raise_if(over(plan.n_detectors, (1 + two) * n * plan.n_synapses, kernel, *arrays), int_rescaler)


def _step(
    weight: Tensor | None,
    grad: Tensor,
    rows: Rows,
    plan: Plan,
    two: bool,
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
    if sums == "float" and weight.dtype == sum_dtype(weight, rows[2]):
        steps = -external_lr * rates
        _add_to(array_of(flat), grad.to(weight.dtype), rows, plan, two, steps, sums, int_rescaler, plan.places)
    else:  # each weight takes its step once, when the sum is complete: fixed sums need it, and halves would lose small addends
        neurons, values = _gather_fired(grad, rows, plan, two, rates, sums, int_rescaler)
        places = torch.from_numpy(plan.weights_of(neurons))
        flat[places] = (flat[places] - external_lr * values).to(flat.dtype)
    if not weight.is_contiguous():
        weight.detach().copy_(flat.view_as(weight))
    if not weight.is_inference():
        torch.autograd.graph.increment_version(weight)
    return weight
