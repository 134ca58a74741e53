"""The reads as torch.library ops: what a read makes of the inputs, and rows of the tables that are added with weights.

    read_eval, read_eval_sparse                     no gradients wanted: only y
    read_detectors, read_detectors_gradients        x -> a, b, indices, alternatives; and back to x and the learned scalars
    weigh_rows, weigh_rows_sparse                   y = Σ_t a W[index] + b W[alt]
    row_gains, row_gains_sparse                     da, db
    weighted_gradients, weighted_gradients_sparse   dW, dense

The conventions are those of `ops`. A tensor that a read has no use for is empty.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from lutetia.errors import LutetiaError
from lutetia.lut.backend import kernels_for
from lutetia.lut.ops import (
    LIBRARY,
    OPTIONS,
    SYNAPSES,
    _contiguous,
    _dtype,
    _opened,
    _register,
    check_values,
    header_facts,
    meta_of,
)
from lutetia.lut.sums import sum_dtype

Rows: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]  # a, b, indices, alternatives [B, N_t]

# ---- eval ------------------------------------------------------------------------------------------------------------

EVAL = "Tensor x, Tensor weight, Tensor anchors, Tensor? log_beta, Tensor? log_gamma, Tensor? log_tau, str read"
LIBRARY.define(f"read_eval({EVAL}, {OPTIONS}) -> Tensor")
LIBRARY.define(f"read_eval_sparse({EVAL}, {SYNAPSES}, {OPTIONS}) -> Tensor")


def _read_eval(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2], three scalars [] or None -> y [B, O]."""
    check_values(x, anchors)
    *scalars, read, sums, int_rescaler, backend = rest
    run = kernels_for(backend, x).detect_and_read_eval_fc
    tensors = _contiguous([x, weight, anchors])
    return run(*tensors, *scalars, read=read, sums=sums, int_rescaler=int_rescaler).to(_dtype(x, weight))


def _read_eval_sparse(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    """x [B, I], weight [n_weights], anchors [N_t, N_c, 2], three scalars [] or None -> y [B, O]."""
    check_values(x, anchors)
    scalars, read = rest[:3], rest[3]
    synapses, sums, int_rescaler, backend = _opened(rest[4:])
    run = kernels_for(backend, x).detect_and_read_eval_sparse
    tensors = _contiguous([x, weight, anchors])
    return run(*tensors, *scalars, synapses, read=read, sums=sums, int_rescaler=int_rescaler).to(_dtype(x, weight))


def _read_eval_fake(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[2]), dtype=_dtype(x, weight))


def _read_eval_sparse_fake(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    n_outputs = header_facts(rest[7])["n_outputs"]
    return x.new_empty((x.shape[0], n_outputs), dtype=_dtype(x, weight))


# ---- detect ----------------------------------------------------------------------------------------------------------

SCALARS = "Tensor? log_beta, Tensor? log_gamma, Tensor? log_tau"
READ = f"Tensor x, Tensor anchors, {SCALARS}"
LIBRARY.define(f"read_detectors({READ}, str read, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)")
LIBRARY.define(f"read_detectors_gradients({READ}, Tensor da, Tensor db, bool to_x, str read, {OPTIONS}) -> (Tensor, Tensor)")


def _read_detectors(x: Tensor, anchors: Tensor, *rest: Any) -> Rows:
    """x [B, I], anchors [N_t, N_c, 2], three scalars [] or None -> a, b, indices, alternatives [B, N_t]."""
    check_values(x, anchors)
    *scalars, read, sums, _, backend = rest
    run = kernels_for(backend, x).read_detectors
    indices, alternatives, a, b = run(x.contiguous(), anchors.contiguous(), *scalars, read=read, exact=sums == "fixed")
    return a, b, indices, alternatives


def _read_detectors_fake(x: Tensor, anchors: Tensor, *rest: Any) -> Rows:
    shape, read = (x.shape[0], anchors.shape[0]), rest[3]
    second = (0,) if read == "confidence" else shape
    indices, alternatives = (x.new_empty(size, dtype=torch.int32) for size in (shape, second))
    a, b = (x.new_empty(size, dtype=sum_dtype(x)) for size in (shape, second))
    return a, b, indices, alternatives


def _read_detectors_gradients(x: Tensor, anchors: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """da, db [B, N_t] -> dx [B, I], and the gradients of log β, log γ, log τ [3]."""
    *scalars, da, db, to_x, read, sums, int_rescaler, backend = rest
    run = kernels_for(backend, x).propagate_through_reads
    options = {"read": read, "to_x": to_x, "sums": sums, "int_rescaler": int_rescaler}
    dx, learned = run(x.contiguous(), anchors.contiguous(), *scalars, da.contiguous(), db.contiguous(), **options)
    return dx.to(x.dtype), learned


def _read_detectors_gradients_fake(x: Tensor, anchors: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    to_x = rest[5]
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if to_x else x.new_empty(0)
    return dx, x.new_empty(3, dtype=sum_dtype(x))


def _remember_read(ctx: Any, inputs: tuple[Any, ...], output: Rows) -> None:
    x, anchors, *scalars, ctx.read, sums, int_rescaler, backend = inputs
    _, b, indices, alternatives = output
    ctx.mark_non_differentiable(indices, alternatives, *([b] if ctx.read == "confidence" else []))
    ctx.set_materialize_grads(False)
    ctx.options = (sums, int_rescaler, backend)
    ctx.given = [scalar is not None for scalar in scalars]
    # The margins are worked out again from x: there are N_c times as many as of anything else.
    ctx.save_for_backward(x, anchors, *(scalar for scalar in scalars if scalar is not None))


def _read_backward(ctx: Any, da: Tensor | None, db: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """da, db [B, N_t] -> dx [B, I], nothing, the gradients of the scalars [], and nothing for the four after them."""
    nothing = [None] * 4
    if da is None and db is None:
        return None, None, None, None, None, *nothing
    x, anchors, *saved = ctx.saved_tensors
    kept = iter(saved)
    scalars = [next(kept) if given else None for given in ctx.given]
    if da is None:
        assert db is not None
        da = torch.zeros_like(db)
    if db is None:
        db = da.new_empty(0) if ctx.read == "confidence" else torch.zeros_like(da)
    run = torch.ops.lutetia.read_detectors_gradients
    to_x = ctx.needs_input_grad[0]
    dx, learned = run(x, anchors, *scalars, da, db, to_x, ctx.read, *ctx.options)
    wanted = zip(scalars, learned.unbind(), ctx.needs_input_grad[2:5], strict=True)
    gradients = [value.to(scalar.dtype) if want and scalar is not None else None for scalar, value, want in wanted]
    return dx if to_x else None, None, *gradients, *nothing


# ---- rows, forward ---------------------------------------------------------------------------------------------------

ROWS = "Tensor indices, Tensor alternatives, Tensor a, Tensor b"
WEIGH = f"Tensor weight, {ROWS}, bool two, ScalarType dtype"
LIBRARY.define(f"weigh_rows({WEIGH}, float lr_scale, {OPTIONS}) -> Tensor")
LIBRARY.define(f"weigh_rows_sparse({WEIGH}, {SYNAPSES}, {OPTIONS}) -> Tensor")


def _weigh_rows(weight: Tensor, *arguments: Any) -> Tensor:
    """weight [N_t, R, O], four times [B, N_t] -> y [B, O]; lr_scale is for the backward pass."""
    *rows, two, dtype, _, sums, int_rescaler, backend = arguments
    run = kernels_for(backend, weight).fill_outputs_weighted_fc
    return run(weight.contiguous(), *_contiguous(rows), two=two, sums=sums, int_rescaler=int_rescaler).to(dtype)


def _weigh_rows_sparse(weight: Tensor, *arguments: Any) -> Tensor:
    """weight [n_weights], four times [B, N_t] -> y [B, O]."""
    (*rows, two, dtype), rest = arguments[:6], arguments[6:]
    synapses, sums, int_rescaler, backend = _opened(rest)
    run = kernels_for(backend, weight).fill_outputs_weighted_sparse
    return run(weight.contiguous(), *_contiguous(rows), synapses, two=two, sums=sums, int_rescaler=int_rescaler).to(dtype)


def _weigh_rows_fake(weight: Tensor, indices: Tensor, *arguments: Any) -> Tensor:
    return weight.new_empty((indices.shape[0], weight.shape[2]), dtype=arguments[4])


def _weigh_rows_sparse_fake(weight: Tensor, indices: Tensor, *arguments: Any) -> Tensor:
    n_outputs = header_facts(arguments[8])["n_outputs"]
    return weight.new_empty((indices.shape[0], n_outputs), dtype=arguments[4])


# ---- rows, backward --------------------------------------------------------------------------------------------------

GAINS = "Tensor grad, Tensor weight, Tensor indices, Tensor alternatives, bool for_b"
LIBRARY.define(f"row_gains({GAINS}, {OPTIONS}) -> (Tensor, Tensor)")
LIBRARY.define(f"row_gains_sparse({GAINS}, {SYNAPSES}, {OPTIONS}) -> (Tensor, Tensor)")

FOR_W = f"Tensor grad, {ROWS}, bool two"
LIBRARY.define(f"weighted_gradients({FOR_W}, SymInt n_rows, ScalarType dtype, float lr_scale, {OPTIONS}) -> Tensor")
LIBRARY.define(f"weighted_gradients_sparse({FOR_W}, SymInt n_weights, ScalarType dtype, {SYNAPSES}, {OPTIONS}) -> Tensor")


def _row_gains(*arguments: Any) -> tuple[Tensor, Tensor]:
    """grad [B, O], weight [N_t, R, O], indices, alternatives [B, N_t] -> da, db [B, N_t]."""
    *tensors, for_b, sums, int_rescaler, backend = arguments
    run = kernels_for(backend, tensors[0]).row_gains_fc
    return run(*_contiguous(tensors), for_b=for_b, sums=sums, int_rescaler=int_rescaler)


def _row_gains_sparse(*arguments: Any) -> tuple[Tensor, Tensor]:
    """grad [B, O], weight [n_weights], indices, alternatives [B, N_t] -> da, db [B, N_t]."""
    (*tensors, for_b), rest = arguments[:5], arguments[5:]
    synapses, sums, int_rescaler, backend = _opened(rest)
    run = kernels_for(backend, tensors[0]).row_gains_sparse
    return run(*_contiguous(tensors), synapses, for_b=for_b, sums=sums, int_rescaler=int_rescaler)


def _row_gains_fake(grad: Tensor, weight: Tensor, indices: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    dtype, for_b = sum_dtype(grad, weight), rest[1]
    return grad.new_empty(indices.shape, dtype=dtype), grad.new_empty(indices.shape if for_b else (0,), dtype=dtype)


def _weighted_gradients(*arguments: Any) -> Tensor:
    """grad [B, O], four times [B, N_t] -> dW [N_t, R, O]."""
    *tensors, two, n_rows, dtype, lr_scale, sums, int_rescaler, backend = arguments
    run = kernels_for(backend, tensors[0]).gather_weighted_gradients_fc
    options = {"two": two, "meta": meta_of(lr_scale), "sums": sums, "int_rescaler": int_rescaler}
    return run(*_contiguous(tensors), n_rows, **options).to(dtype)


def _weighted_gradients_sparse(*arguments: Any) -> Tensor:
    """grad [B, O], four times [B, N_t] -> dW [n_weights]."""
    (*tensors, two, _, dtype), rest = arguments[:8], arguments[8:]
    synapses, sums, int_rescaler, backend = _opened(rest)
    run = kernels_for(backend, tensors[0]).gather_weighted_gradients_sparse
    return run(*_contiguous(tensors), synapses, two=two, sums=sums, int_rescaler=int_rescaler).to(dtype)


def _weighted_gradients_fake(grad: Tensor, indices: Tensor, *rest: Any) -> Tensor:
    n_rows, dtype = rest[4:6]
    return grad.new_empty((indices.shape[1], n_rows, grad.shape[1]), dtype=dtype)


def _weighted_gradients_sparse_fake(grad: Tensor, indices: Tensor, *rest: Any) -> Tensor:
    n_weights, dtype = rest[4:6]
    return grad.new_empty((n_weights,), dtype=dtype)


# ---- autograd --------------------------------------------------------------------------------------------------------


def _remember_rows(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weight, indices, alternatives, a, b, ctx.two, _, *rest = inputs
    ctx.set_materialize_grads(False)
    synapses = [value for value in rest if isinstance(value, Tensor)]
    ctx.rest = rest[len(synapses) :]
    ctx.weight_dtype, ctx.weight_size = weight.dtype, weight.shape[-2 if weight.dim() == 3 else 0]
    ctx.dtypes = (a.dtype, b.dtype)
    to_weight, to_coefficients = ctx.needs_input_grad[0], any(ctx.needs_input_grad[3:5])
    coefficients = (a, b) if to_weight else ()
    ctx.save_for_backward(indices, alternatives, *coefficients, *((weight,) if to_coefficients else ()), *synapses)


def _rows_backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
    """grad [B, O] -> dW, da, db, where they are wanted, and nothing for the other arguments."""
    ops, sparse = torch.ops.lutetia, len(ctx.rest) == 4 and isinstance(ctx.rest[0], str)
    others = [None] * (9 if sparse else 6)
    dw = da = db = None
    to_weight, to_a, to_b = (ctx.needs_input_grad[k] for k in (0, 3, 4))
    if grad is None or not (to_weight or to_a or to_b):
        return None, None, None, None, None, *others
    indices, alternatives, *saved = ctx.saved_tensors
    synapses = tuple(saved[-3:]) if sparse else ()
    if to_a or to_b:
        weight = saved[2 if to_weight else 0]
        run, rest = (ops.row_gains_sparse, ctx.rest) if sparse else (ops.row_gains, ctx.rest[1:])
        da, db = run(grad, weight, indices, alternatives, to_b, *synapses, *rest)
        da, db = da.to(ctx.dtypes[0]) if to_a else None, db.to(ctx.dtypes[1]) if to_b else None
    if to_weight:
        run = ops.weighted_gradients_sparse if sparse else ops.weighted_gradients
        tensors = (grad, indices, alternatives, *saved[:2], ctx.two)
        dw = run(*tensors, ctx.weight_size, ctx.weight_dtype, *synapses, *ctx.rest)
    return dw, None, None, da, db, *others


def _twice(ctx: Any, *grads: Tensor) -> NoReturn:
    raise LutetiaError("a LUT layer cannot be differentiated twice: the kernels of its gradients have none of their own")


_register("read_eval", _read_eval, _read_eval_fake)
_register("read_eval_sparse", _read_eval_sparse, _read_eval_sparse_fake)
_register("read_detectors", _read_detectors, _read_detectors_fake, _read_backward, _remember_read)
_register("read_detectors_gradients", _read_detectors_gradients, _read_detectors_gradients_fake, _twice)
_register("weigh_rows", _weigh_rows, _weigh_rows_fake, _rows_backward, _remember_rows)
_register("weigh_rows_sparse", _weigh_rows_sparse, _weigh_rows_sparse_fake, _rows_backward, _remember_rows)
_register("row_gains", _row_gains, _row_gains_fake, _twice)
_register("row_gains_sparse", _row_gains_sparse, _row_gains_fake, _twice)
_register("weighted_gradients", _weighted_gradients, _weighted_gradients_fake, _twice)
_register("weighted_gradients_sparse", _weighted_gradients_sparse, _weighted_gradients_sparse_fake, _twice)
