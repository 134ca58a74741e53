"""Gradient policies beyond `dense`: a sparse gradient, and a step taken inside the backward pass.

Both are plain autograd functions around the ops, since neither fits a compiled graph: a sparse tensor has a length that
depends on the data, and an update in a backward pass is a side effect. torch.compile breaks its graph around them.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lutetia._uncompiled import uncompiled
from lutetia.errors import ArgumentError, fail
from lutetia.lut.backend import kernels_for
from lutetia.lut.ops import synapses_of
from lutetia.lut.synapses import SynapseMeta

Rate: TypeAlias = float | Callable[[], float]

UNCOMPILED = "gradient='{}' runs outside of compiled graphs: compile without fullgraph=True, or use gradient='dense'"


class Call(NamedTuple):
    """What a call of the layer has besides x, weight and anchors."""

    synapses: tuple[Any, ...]  # start, targets, meta, header; empty when fully connected
    meta: SynapseMeta
    options: tuple[str, float, str]  # sums, int_rescaler, backend

    def forward(self, x: Tensor, weight: Tensor, anchors: Tensor) -> tuple[Tensor, ...]:
        """x [B, I] -> y [B, O]; indices, min_delta, min_delta_index [B, N_t]."""
        if self.synapses:
            return torch.ops.lutetia.lut_sparse(x, weight, anchors, *self.synapses, *self.options)
        return torch.ops.lutetia.lut(x, weight, anchors, self.meta.lr_scale, *self.options)

    def remember(self, ctx: Any, x: Tensor, weight: Tensor, anchors: Tensor, found: list[Tensor]) -> None:
        """Save what the backward pass needs; found holds indices, min_delta, min_delta_index [B, N_t]."""
        ctx.call, ctx.n_inputs, ctx.x_dtype = self, x.shape[1], x.dtype
        ctx.save_for_backward(found[0], *((weight, *found[1:], anchors) if ctx.needs_input_grad[0] else ()))

    def input_gradients(self, ctx: Any, grad: Tensor) -> Tensor | None:
        """grad [B, O] -> dx [B, I], when it is wanted."""
        if not ctx.needs_input_grad[0]:
            return None
        indices, weight, min_delta, min_delta_index, anchors = ctx.saved_tensors
        tensors = (grad, weight, indices, min_delta, min_delta_index, anchors)
        run = torch.ops.lutetia.lut_input_gradients_sparse if self.synapses else torch.ops.lutetia.lut_input_gradients
        return run(*tensors, ctx.n_inputs, ctx.x_dtype, *self.synapses, *self.options)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for calls whose steps may be taken as one."""
        return id(self.synapses[0]) if self.synapses else None, self.meta, self.options

    def take(self, weight: Tensor, rate: float, grad: Tensor, indices: Tensor) -> None:
        """weight -= rate · lr_scale · gradient, in place: grad [B, O], indices [B, N_t]."""
        sums, int_rescaler, backend = self.options
        kernels = kernels_for(backend, weight)
        options = {"external_lr": rate, "weight": weight, "sums": sums, "int_rescaler": int_rescaler}
        if self.synapses:
            kernels.gather_weight_gradients_sparse(grad, indices, synapses_of(*self.synapses), **options)
        else:
            kernels.gather_weight_gradients_fc(grad, indices, weight.shape[1], meta=self.meta, **options)


# ---- sparse ----------------------------------------------------------------------------------------------------------


@uncompiled(UNCOMPILED.format("sparse"))
def lut_with_sparse_gradient(x: Tensor, weight: Tensor, anchors: Tensor, call: Call) -> Tensor:
    """x [B, I] -> y [B, O]; weight.grad will be a coalesced COO tensor of the rows that were read.

    weight [N_t, R, O] gets two sparse dimensions and a dense one, weight [n_weights] a sparse one.
    """
    return _SparseGradient.apply(x, weight, anchors, call)


class _SparseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, anchors: Tensor, call: Call) -> Tensor:
        y, *found = call.forward(x, weight, anchors)
        call.remember(ctx, x, weight, anchors, found)
        ctx.size, ctx.dtype = weight.shape, weight.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dx = ctx.call.input_gradients(ctx, grad)
        dw = _sparse_gradient(ctx, grad) if ctx.needs_input_grad[1] else None
        return dx, dw, None, None


def _sparse_gradient(ctx: Any, grad: Tensor) -> Tensor:
    """grad [B, O] -> the gradient of the weight, sparse."""
    call, indices = ctx.call, ctx.saved_tensors[0]
    sums, int_rescaler, backend = call.options
    kernels, options = kernels_for(backend, grad), {"sums": sums, "int_rescaler": int_rescaler}
    if call.synapses:
        found = kernels.gather_weight_rows_sparse(grad.contiguous(), indices, synapses_of(*call.synapses), **options)
    else:
        found = kernels.gather_weight_rows_fc(grad.contiguous(), indices, ctx.size[1], meta=call.meta, **options)
    slots, values = found
    return sparse_gradient(slots, values, ctx.size, ctx.dtype)


def sparse_gradient(slots: Tensor, values: Tensor, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """A COO tensor like a weight [N_t, R, O] out of slots t · R + row [n] and values [n, O], or [n_weights] out of twice [n]."""
    at = slots[None] if len(size) == 1 else torch.stack([slots // size[1], slots % size[1]])
    gradient = torch.sparse_coo_tensor(at, values.to(dtype), size, is_coalesced=True, check_invariants=False)
    # Autograd takes over a sparse gradient that nobody else holds, and forgets that it is coalesced: an optimiser would sort it
    # again. One that is held until the pass ends is copied instead, which is cheaper.
    held = [gradient]
    torch.autograd.Variable._execution_engine.queue_callback(held.clear)
    return gradient


# ---- in place --------------------------------------------------------------------------------------------------------


@uncompiled(UNCOMPILED.format("in_place"))
def lut_with_step_in_place(x: Tensor, weight: Tensor, anchors: Tensor, call: Call, external_lr: Rate | None) -> Tensor:
    """x [B, I] -> y [B, O]; the backward pass ends with weight -= external_lr · lr_scale · gradient, and keeps no gradient.

    The steps of one backward pass are taken when all of it is done, those of one weight as one: every gradient that flows
    on comes from the weights as they were, wherever else in the graph the weight is used.
    """
    step = Step(weight, call, check_step(weight, external_lr))
    # The token is how autograd asks for the weight's gradient: it asks in backward(), not in torch.autograd.grad(y, x).
    token = Token.apply(weight, step)
    return _InPlace.apply(x, token, weight.detach(), anchors, step)


def check_step(weight: Tensor, external_lr: Rate | None) -> Rate:
    """A rate for steps of this weight in place, when both will do."""
    if external_lr is None:
        raise ArgumentError("external_lr is None, expected a number or a function that returns one, for gradient='in_place'")
    if not weight.is_leaf or not weight.is_contiguous():
        fail("weight", weight, "a contiguous leaf tensor, for gradient='in_place' changes it")
    if not callable(external_lr):
        check_rate(external_lr)
    return external_lr


def check_rate(value: Any) -> float:
    """A learning rate as a number that can be used."""
    try:
        rate = float(value)
    except (TypeError, ValueError):
        fail("external_lr", value, "a number, or a function that returns one")
    if not 0 <= rate < math.inf:
        fail("external_lr", value, "a finite number that is not negative")
    return rate


class Step:
    """One use of a weight, and what its backward pass brings."""

    def __init__(self, weight: Tensor, call: Any, external_lr: Rate) -> None:
        self.weight, self.call, self.external_lr = weight, call, external_lr
        self.found: tuple[Tensor, ...] | None = None  # what call.take wants: grad [B, O], indices [B, N_t]

    def key(self) -> tuple[Any, ...]:
        """Equal for steps that may be taken as one."""
        return id(self.weight), type(self.call), self.call.key, self.external_lr


class Token(torch.autograd.Function):
    """A number that stands for the weight in the graph; its gradient says that the weight's is wanted."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, step: Step) -> Tensor:
        ctx.step = step
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        _pass_of_now().add(ctx.step)
        return None, None


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, anchors: Tensor, step: Step) -> Tensor:
        y, *found = step.call.forward(x, weight, anchors)
        step.call.remember(ctx, x, weight, anchors, found)
        ctx.step, ctx.token_dtype = step, token.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dx = ctx.call.input_gradients(ctx, grad)
        ctx.step.found = (grad.contiguous(), ctx.saved_tensors[0])
        return dx, grad.new_zeros((), dtype=ctx.token_dtype), None, None, None


class _Pass:
    """The steps of one backward pass, taken when it ends. Owned by the pass: one that fails takes none of them."""

    def __init__(self) -> None:
        self.steps: list[tuple[Step, tuple[Tensor, ...]]] = []

    def add(self, step: Step) -> None:
        assert step.found is not None
        self.steps.append((step, step.found))
        step.found = None

    def finish(self) -> None:
        by_key: dict[tuple[Any, ...], list[tuple[Step, tuple[Tensor, ...]]]] = {}
        for step, found in self.steps:
            by_key.setdefault(step.key(), []).append((step, found))
        self.steps = []
        for uses in by_key.values():
            _take(uses[0][0], *map(_joined, zip(*(found for _, found in uses), strict=True)))


_passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _pass_of_now() -> _Pass:
    """The backward pass that this thread works for; several threads may work for one."""
    number = torch._C._current_graph_task_id()
    with _lock:
        current = _passes.get(number)
        if current is None:
            current = _passes[number] = _Pass()
            # Only the engine's list of callbacks keeps the pass alive.
            torch.autograd.Variable._execution_engine.queue_callback(current.finish)
    return current


def _joined(tensors: tuple[Tensor, ...]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


@torch.no_grad()
def _take(step: Step, *found: Tensor) -> None:
    """One step of one weight, with what `call.take` wants."""
    rate = check_rate(step.external_lr() if callable(step.external_lr) else step.external_lr)
    step.call.take(step.weight.detach(), rate, *found)
    torch.autograd.graph.increment_version(step.weight)  # compiled kernels write behind torch's back
