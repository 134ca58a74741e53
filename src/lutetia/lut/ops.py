"""The LUT layer as torch.library ops, so that torch.compile, torch.export and autograd know it.

    lut_eval, lut_eval_sparse                            no gradients wanted: only y
    lut, lut_sparse                                      training: y and what the backward pass needs
    lut_input_gradients, lut_input_gradients_sparse      dx
    lut_weight_gradients, lut_weight_gradients_sparse    dW, dense

B batch · I inputs · O outputs · N_t detectors · N_c anchor pairs per detector · R = 2**N_c rows.
Synapses travel as their three tensors and a JSON text that holds the rest, `backend` as the name of one or "" for the default.
The ops are defined with a Library and not with `torch.library.custom_op`: a call costs 3 µs instead of 11.
The schemas say what arguments an op has; `rest` below are those after the tensors that fc and sparse share.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

import lutetia
from lutetia.errors import ArgumentError, LutetiaError
from lutetia.lut.anchors import check_anchors
from lutetia.lut.backend import kernels_for
from lutetia.lut.sums import sum_dtype
from lutetia.lut.synapses import TENSOR_NAMES, SynapseMeta, Synapses

LIBRARY = torch.library.Library("lutetia", "FRAGMENT")
SYNAPSES = "Tensor start, Tensor targets, Tensor meta, str header"
OPTIONS = "str sums, float int_rescaler, str backend"

Found: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]  # y [B, O]; indices, min_delta, min_delta_index [B, N_t]


# ---- what is known of tensors that were seen before ------------------------------------------------------------------


class Memo:
    """Values that were made from tensors, kept as long as the tensors live and do not change."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.known: dict[Any, tuple[list[tuple[weakref.ref[Tensor], int]], Any]] = {}

    def get(self, tensors: tuple[Tensor, ...], extra: Any) -> Any:
        """make(*tensors, extra), or what it gave the last time."""
        key = (id(tensors[0]), extra)
        entry = self.known.get(key)
        if entry is not None:
            for tensor, (seen, version) in zip(tensors, entry[0], strict=True):
                if seen() is not tensor or version != _version(tensor):
                    break
            else:
                return entry[1]
        value = self.make(*tensors, extra)
        forget = lambda _: self.known.pop(key, None)  # noqa: E731
        self.known[key] = ([(weakref.ref(tensor, forget), _version(tensor)) for tensor in tensors], value)
        return value


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; tensors made in inference mode do not count."""
    return -1 if tensor.is_inference() else tensor._version


def _rebuilt(start: Tensor, targets: Tensor, meta: Tensor, header: str) -> Synapses:
    facts = json.loads(header)
    # Aliases: the memo must not keep alive the very tensors whose end it waits for.
    arrays = (start.detach(), targets.detach(), meta.detach())
    return Synapses.from_tensors(dict(zip(TENSOR_NAMES[facts["layout"]], arrays, strict=True)), facts)


_anchors_seen = Memo(lambda anchors, n_inputs: check_anchors(anchors, n_inputs))
_synapses_seen = Memo(_rebuilt)


def check_values(x: Tensor, anchors: Tensor) -> None:
    """The checks that read tensors: anchors once per tensor and version, NaN in x only when `lutetia.debug` is on."""
    if not (anchors.is_cuda and torch.cuda.is_current_stream_capturing()):  # a capture cannot wait for an answer
        _anchors_seen.get((anchors,), x.shape[-1])
    if lutetia.debug and bool(x.isnan().any()):
        row = int(x.isnan().any(-1).nonzero()[0])
        raise ArgumentError(f"x has NaN in row {row} of {x.shape[0]}, expected numbers: NaN is greater than nothing")


def synapses_of(start: Tensor, targets: Tensor, meta: Tensor, header: str) -> Synapses:
    """The synapses of these tensors, built and checked once, so that what they have worked out is kept."""
    return _synapses_seen.get((start, targets, meta), header)


@lru_cache(maxsize=256)
def header_facts(header: str) -> dict[str, Any]:
    """What the text that travels with the tensors of Synapses says."""
    return json.loads(header)


@lru_cache(maxsize=256)
def meta_of(lr_scale: float) -> SynapseMeta:
    """A meta for a kernel that only asks for the learning rate scale."""
    return SynapseMeta(lr_scale=lr_scale)


# ---- eval ------------------------------------------------------------------------------------------------------------

LIBRARY.define(f"lut_eval(Tensor x, Tensor weight, Tensor anchors, {OPTIONS}) -> Tensor")
LIBRARY.define(f"lut_eval_sparse(Tensor x, Tensor weight, Tensor anchors, {SYNAPSES}, {OPTIONS}) -> Tensor")


def _lut_eval(x: Tensor, weight: Tensor, anchors: Tensor, sums: str, int_rescaler: float, backend: str) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O]."""
    check_values(x, anchors)
    run = kernels_for(backend, x).detect_and_fill_eval_fc
    y = run(x.contiguous(), weight.contiguous(), anchors.contiguous(), sums=sums, int_rescaler=int_rescaler)
    return y.to(_dtype(x, weight))


def _lut_eval_sparse(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    """x [B, I], weight [n_weights], anchors [N_t, N_c, 2] -> y [B, O]."""
    check_values(x, anchors)
    synapses, sums, int_rescaler, backend = _opened(rest)
    run = kernels_for(backend, x).detect_and_fill_eval_sparse
    y = run(x.contiguous(), weight.contiguous(), anchors.contiguous(), synapses, sums=sums, int_rescaler=int_rescaler)
    return y.to(_dtype(x, weight))


def _dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of y."""
    return x.dtype if x.dtype == weight.dtype else torch.promote_types(x.dtype, weight.dtype)


def _opened(rest: tuple[Any, ...]) -> tuple[Synapses, str, float, str]:
    """The arguments of SYNAPSES as an object, and those of OPTIONS."""
    start, targets, meta, header, *options = rest
    return synapses_of(start, targets, meta, header), *options


def _lut_eval_fake(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[2]), dtype=_dtype(x, weight))


def _lut_eval_sparse_fake(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    n_outputs = header_facts(rest[3])["n_outputs"]
    return x.new_empty((x.shape[0], n_outputs), dtype=_dtype(x, weight))


# ---- training forward ------------------------------------------------------------------------------------------------

FOUND = "(Tensor, Tensor, Tensor, Tensor)"
LIBRARY.define(f"lut(Tensor x, Tensor weight, Tensor anchors, float lr_scale, {OPTIONS}) -> {FOUND}")
LIBRARY.define(f"lut_sparse(Tensor x, Tensor weight, Tensor anchors, {SYNAPSES}, {OPTIONS}) -> {FOUND}")


def _lut(x: Tensor, weight: Tensor, anchors: Tensor, lr_scale: float, sums: str, int_rescaler: float, backend: str) -> Found:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2]; lr_scale is for the backward pass."""
    check_values(x, anchors)
    run = kernels_for(backend, x).detect_and_fill_fc
    y, *found = run(x.contiguous(), weight.contiguous(), anchors.contiguous(), sums=sums, int_rescaler=int_rescaler)
    return y.to(_dtype(x, weight)), *found


def _lut_sparse(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Found:
    """x [B, I], weight [n_weights], anchors [N_t, N_c, 2]."""
    check_values(x, anchors)
    synapses, sums, int_rescaler, backend = _opened(rest)
    run = kernels_for(backend, x).detect_and_fill_sparse
    y, *found = run(x.contiguous(), weight.contiguous(), anchors.contiguous(), synapses, sums=sums, int_rescaler=int_rescaler)
    return y.to(_dtype(x, weight)), *found


def _found_fake(x: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (x.shape[0], anchors.shape[0])
    indices, min_delta_index = (x.new_empty(shape, dtype=torch.int32) for _ in range(2))
    return indices, x.new_empty(shape, dtype=sum_dtype(x)), min_delta_index


def _lut_fake(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Found:
    return _lut_eval_fake(x, weight, anchors, *rest), *_found_fake(x, anchors)


def _lut_sparse_fake(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Found:
    return _lut_eval_sparse_fake(x, weight, anchors, *rest), *_found_fake(x, anchors)


# ---- backward --------------------------------------------------------------------------------------------------------

FOR_X = "Tensor grad, Tensor weight, Tensor indices, Tensor min_delta, Tensor min_delta_index, Tensor anchors"
LIBRARY.define(f"lut_input_gradients({FOR_X}, SymInt n_inputs, ScalarType dtype, {OPTIONS}) -> Tensor")
LIBRARY.define(f"lut_input_gradients_sparse({FOR_X}, SymInt n_inputs, ScalarType dtype, {SYNAPSES}, {OPTIONS}) -> Tensor")

FOR_W = "Tensor grad, Tensor indices"
LIBRARY.define(f"lut_weight_gradients({FOR_W}, SymInt n_rows, ScalarType dtype, float lr_scale, {OPTIONS}) -> Tensor")
LIBRARY.define(f"lut_weight_gradients_sparse({FOR_W}, SymInt n_weights, ScalarType dtype, {SYNAPSES}, {OPTIONS}) -> Tensor")


def _lut_input_gradients(*arguments: Any) -> Tensor:
    """grad [B, O], weight [N_t, R, O], three times [B, N_t], anchors [N_t, N_c, 2] -> dx [B, I]."""
    *tensors, n_inputs, dtype, sums, int_rescaler, backend = arguments
    run = kernels_for(backend, tensors[0]).propagate_through_detectors_fc
    return run(*_contiguous(tensors), n_inputs, sums=sums, int_rescaler=int_rescaler).to(dtype)


def _lut_input_gradients_sparse(*arguments: Any) -> Tensor:
    """grad [B, O], weight [n_weights], three times [B, N_t], anchors [N_t, N_c, 2] -> dx [B, I]."""
    (*tensors, n_inputs, dtype), rest = arguments[:8], arguments[8:]
    synapses, sums, int_rescaler, backend = _opened(rest)
    run = kernels_for(backend, tensors[0]).propagate_through_detectors_sparse
    return run(*_contiguous(tensors), n_inputs, synapses, sums=sums, int_rescaler=int_rescaler).to(dtype)


def _lut_weight_gradients(grad: Tensor, indices: Tensor, n_rows: int, dtype: torch.dtype, *rest: Any) -> Tensor:
    """grad [B, O], indices [B, N_t] -> dW [N_t, R, O]."""
    lr_scale, sums, int_rescaler, backend = rest
    run = kernels_for(backend, grad).gather_weight_gradients_fc
    options = {"meta": meta_of(lr_scale), "sums": sums, "int_rescaler": int_rescaler}
    return run(*_contiguous([grad, indices]), n_rows, **options).to(dtype)


def _lut_weight_gradients_sparse(grad: Tensor, indices: Tensor, n_weights: int, dtype: torch.dtype, *rest: Any) -> Tensor:
    """grad [B, O], indices [B, N_t] -> dW [n_weights]."""
    synapses, sums, int_rescaler, backend = _opened(rest)
    run = kernels_for(backend, grad).gather_weight_gradients_sparse
    return run(*_contiguous([grad, indices]), synapses, sums=sums, int_rescaler=int_rescaler).to(dtype)


def _contiguous(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _lut_input_gradients_fake(*arguments: Any) -> Tensor:
    grad, n_inputs, dtype = arguments[0], *arguments[6:8]
    return grad.new_empty((grad.shape[0], n_inputs), dtype=dtype)


def _lut_weight_gradients_fake(grad: Tensor, indices: Tensor, n_rows: int, dtype: torch.dtype, *rest: Any) -> Tensor:
    return grad.new_empty((indices.shape[1], n_rows, grad.shape[1]), dtype=dtype)


def _lut_weight_gradients_sparse_fake(grad: Tensor, indices: Tensor, n_weights: int, dtype: torch.dtype, *rest: Any) -> Tensor:
    return grad.new_empty((n_weights,), dtype=dtype)


# ---- autograd --------------------------------------------------------------------------------------------------------


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Found) -> None:
    """Save what the gradients that will be asked for need, and nothing else."""
    x, weight, anchors, *rest = inputs
    _, indices, min_delta, min_delta_index = output
    ctx.mark_non_differentiable(indices, min_delta, min_delta_index)
    ctx.set_materialize_grads(False)
    for_x = (weight, indices, min_delta, min_delta_index, anchors) if ctx.needs_input_grad[0] else (indices,)
    synapses = [value for value in rest if isinstance(value, Tensor)]
    ctx.save_for_backward(*for_x, *synapses)
    ctx.n_for_x, ctx.rest = len(for_x), rest[len(synapses) :]
    ctx.n_inputs, ctx.x_dtype = x.shape[1], x.dtype
    ctx.weight_dtype, ctx.weight_size = weight.dtype, weight.shape[-2 if weight.dim() == 3 else 0]


def _gradients(ctx: Any, grad: Tensor | None, to_x: Any, to_weight: Any, options: tuple[list[Any], list[Any]]) -> list[Any]:
    """dx and dW from the ops that make them, where they are wanted."""
    saved = ctx.saved_tensors[: ctx.n_for_x]
    dx = dw = None
    if grad is not None and ctx.needs_input_grad[0]:
        dx = to_x(grad, *saved, ctx.n_inputs, ctx.x_dtype, *options[0])
    if grad is not None and ctx.needs_input_grad[1]:
        indices = saved[1] if ctx.needs_input_grad[0] else saved[0]
        dw = to_weight(grad, indices, ctx.weight_size, ctx.weight_dtype, *options[1])
    return [dx, dw]


def _lut_backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """grad [B, O] -> dx [B, I], dW [N_t, R, O], and nothing for the five arguments after them."""
    ops = torch.ops.lutetia
    options = (ctx.rest[1:], ctx.rest)  # only dW is scaled with the learning rate
    return *_gradients(ctx, grad, ops.lut_input_gradients, ops.lut_weight_gradients, options), *[None] * 5


def _lut_sparse_backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """grad [B, O] -> dx [B, I], dW [n_weights], and nothing for the eight arguments after them."""
    ops = torch.ops.lutetia
    rest = [*ctx.saved_tensors[ctx.n_for_x :], *ctx.rest]
    return *_gradients(ctx, grad, ops.lut_input_gradients_sparse, ops.lut_weight_gradients_sparse, (rest, rest)), *[None] * 8


def _twice(ctx: Any, *grads: Tensor) -> NoReturn:
    raise LutetiaError("a LUT layer cannot be differentiated twice: its gradient is the slope of a blend and has none of its own")


def _register(name: str, run: Callable[..., Any], fake: Callable[..., Any], backward: Any = None, setup: Any = None) -> None:
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, run, device)
    torch.library.register_fake(f"lutetia::{name}", fake, lib=LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f"lutetia::{name}", backward, setup_context=setup, lib=LIBRARY)


# The eval ops have no autograd on purpose: a formula costs 4 µs a call even when no gradient is wanted.
_register("lut_eval", _lut_eval, _lut_eval_fake)
_register("lut_eval_sparse", _lut_eval_sparse, _lut_eval_sparse_fake)
_register("lut", _lut, _lut_fake, _lut_backward, _remember)
_register("lut_sparse", _lut_sparse, _lut_sparse_fake, _lut_sparse_backward, _remember)
_register("lut_input_gradients", _lut_input_gradients, _lut_input_gradients_fake, _twice)
_register("lut_input_gradients_sparse", _lut_input_gradients_sparse, _lut_input_gradients_fake, _twice)
_register("lut_weight_gradients", _lut_weight_gradients, _lut_weight_gradients_fake, _twice)
_register("lut_weight_gradients_sparse", _lut_weight_gradients_sparse, _lut_weight_gradients_sparse_fake, _twice)
