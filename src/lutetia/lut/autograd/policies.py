"""Gradient policies: a dense gradient, a sparse one, and a step taken inside the backward pass.

All are plain autograd functions. A compiled graph holds the op with its own formula instead, whose gradient is dense: a sparse
tensor has a length that depends on the data, and a step in a backward pass is a side effect, so neither fits a graph. A hook on
the weight does the rest, once its gradient is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lutetia import flow
from lutetia._shared.backward import at_end_of_pass, is_wanted, refuse_batches
from lutetia._shared.direct import is_quiet
from lutetia._shared.ops import op
from lutetia._shared.prepared import Prepared
from lutetia.errors import ArgumentError, fail
from lutetia.lut.autograd.how import How, Wires, how_of, text_of
from lutetia.lut.autograd.saved import ATTENTION, LUT, READ, ROWS, Facts, Formula, Record, Unpacked, record_of, rows_to_weight
from lutetia.lut.kernels import choice
from lutetia.lut.kernels.protocol import FLOAT, Connectivity, Full, Into

Rate: TypeAlias = float | Callable[[], float]
WeightStep: TypeAlias = tuple[Tensor, Rate]  # a weight, and the rate at which it takes steps in place


class Call(NamedTuple):
    """A call of a training op without its leading tensors."""

    formula: Formula
    rest: tuple[Any, ...]
    quick: Prepared | None = None
    step: WeightStep | None = None

    def start(self, ctx: Any, tensors: Sequence[Tensor]) -> Any:
        """y, or where there is no weight all that the op gives; what the backward pass needs is kept on ctx."""
        if self.quick is not None:
            return _start_quickly(ctx, self.quick, *tensors)
        given = [tensor for tensor in tensors if tensor is not None]  # a read need not have all scalars
        output = op(self.formula.op, *given)(*tensors, *self.rest)
        self.formula.remember(ctx, (*tensors, *self.rest), output)
        return output[0] if self.formula.weight_at >= 0 and isinstance(output, tuple) else output


# ---- dense -----------------------------------------------------------------------------------------------------------


class Dense(torch.autograd.Function):
    """A training op whose weight has a dense gradient: as the op with its own formula, but without torch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *tensors, ctx.call = arguments
        return ctx.call.start(ctx, tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        formula, quick = ctx.call.formula, ctx.call.quick
        if quick is not None and not torch.is_grad_enabled() and is_quiet() and not flow.recording():
            refuse_batches(*grads)
            grad = grads[0] if grads[0].is_contiguous() else grads[0].contiguous()  # that of a sum is one number, expanded
            if quick.takes(grad):
                return *_quick_gradients(ctx, quick, grad), None, None
        return formula.backward(ctx, grads, formula.weight_at >= 0 and is_wanted(ctx, formula.weight_at))


def start_quickly(x: Tensor, weight: Tensor, anchors: Tensor, quick: Prepared) -> Tensor:
    """`lut` by what was prepared, with its node in the graph."""
    if quick.call is None:
        quick.call = Call(LUT, (), quick)
    return _apply_lut(x, weight, anchors, quick.call)


def _start_quickly(ctx: Any, quick: Prepared, x: Tensor, weight: Tensor, anchors: Tensor) -> Tensor:
    """`lut` by what was prepared, keeping what its formula would keep."""
    launches = quick.launches
    indices, min_delta, which = room = launches.room(x)
    y = launches.fill(x, weight, room)
    if quick.facts is None:
        c, how = launches.connectivity, How(FLOAT, choice.chosen)
        how = how._replace(meta=c.meta) if isinstance(c, Full) else how._replace(header=c.header_text)
        quick.facts = Facts(text_of(how), tuple(weight.shape), weight.dtype, x.shape[1], x.dtype)
    ctx.facts, nothing = quick.facts, (None, None, None)
    if ctx.needs_input_grad[0]:
        ctx.save_for_backward(indices, min_delta, which, *nothing, weight, anchors, *nothing, *launches.wires)
    else:
        ctx.save_for_backward(indices, None, None, *nothing, None, None, *nothing, *launches.wires)
    return y


def _quick_gradients(ctx: Any, quick: Prepared, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """grad [B, O] -> dx [B, I] and dW, where they are wanted."""
    saved, launches, to_weight = ctx.saved_tensors, quick.launches, ctx.needs_input_grad[1]
    if to_weight and not quick.by_grad:
        try:
            to_weight = torch._C._will_engine_execute_node(ctx.next_functions[1][0])
        except RuntimeError:  # as in `is_wanted`; it takes 10 µs, so that after one of these nobody asks again
            quick.by_grad = True
    if ctx.needs_input_grad[0] and to_weight and launches.scatters:
        return launches.gradients(grad, saved[6], saved[:3], quick.facts.size)
    dx = launches.to_inputs(grad, saved[6], saved[:3]) if ctx.needs_input_grad[0] else None
    if not to_weight:
        return dx, None
    return dx, launches.to_weight(grad, saved[0], quick.facts.size) if launches.scatters else rows_to_weight(
        Unpacked(ctx, saved), grad
    )


# ---- sparse ----------------------------------------------------------------------------------------------------------


class Sparse(Dense):
    """A training op whose weight has a sparse gradient: a coalesced COO tensor of the rows that were read."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_batches(grad)
        formula, ctx = ctx.call.formula, Unpacked(ctx)
        gradients = formula.to_inputs(ctx, False, grad)
        if ctx.needs_input_grad[formula.weight_at]:
            gradient = record_of(ctx).gather_sparse(grad.contiguous())
            # Autograd takes over a sparse gradient that nobody else holds, and forgets that it is coalesced: an optimiser would
            # sort it again. One that is held until the pass ends is copied instead, which is cheaper.
            held = [gradient]
            torch.autograd.Variable._execution_engine.queue_callback(held.clear)
            gradients[formula.weight_at] = gradient
        return *gradients, None


# ---- in place --------------------------------------------------------------------------------------------------------


def with_step_in_place(call: Call, tensors: tuple[Tensor, ...], external_lr: Rate | None) -> Tensor:
    """y; the backward pass ends with weight -= external_lr · lr_scale · gradient, and keeps no gradient.

    The steps of one backward pass are taken when all of it is done, those of one weight as one: every gradient that flows
    on comes from the weights as they were, wherever else in the graph the weight is used.
    """
    weight = tensors[call.formula.weight_at]
    return IN_PLACE[call.formula.op].apply(*tensors, call._replace(step=(weight, check_step(weight, external_lr))))


def check_step(weight: Tensor, external_lr: Rate | None) -> Rate:
    """Check the rate and the weight of steps in place; returns the rate."""
    if external_lr is None:
        raise ArgumentError("external_lr is None, expected a number or a function that returns one, for gradient='in_place'")
    if not weight.is_leaf or not weight.is_contiguous():
        fail("weight", weight, "a contiguous leaf tensor, because gradient='in_place' changes it")
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


class InPlace(Dense):
    """A training op whose weight takes a step where its gradient is wanted: in backward(), not in torch.autograd.grad(y, x)."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_batches(grad)
        ctx = Unpacked(ctx)
        if is_wanted(ctx, ctx.call.formula.weight_at):
            at_end_of_pass(_Steps).add(ctx.call.step, grad.contiguous(), record_of(ctx))
        return *ctx.call.formula.to_inputs(ctx, False, grad), None


class _Steps:
    """The steps of one backward pass, taken when it ends; one that fails takes none of them."""

    def __init__(self) -> None:
        self.uses: dict[tuple[Any, ...], tuple[WeightStep, list[tuple[Tensor, Record]]]] = {}

    def add(self, step: WeightStep, grad: Tensor, record: Record) -> None:
        """Keep the gradient of y and what its node knows, next to those that may be merged with them."""
        kind = (record.in_sequence, record.saved.a is None, record.facts.two)
        key = (id(step[0]), record.facts.how, id(record.saved.start), kind, step[1])
        self.uses.setdefault(key, (step, []))[1].append((grad, record))

    def finish(self) -> None:
        """Take all steps."""
        together, self.uses = self.uses, {}
        for step, uses in together.values():
            _take(*step, uses)


@torch.no_grad()
def _take(leaf: Tensor, external_lr: Rate, uses: list[tuple[Tensor, Record]]) -> None:
    """One step of one weight. Several uses are one of a larger batch, but for sequences, whose lengths may differ."""
    weight, (grad, record) = leaf.detach(), uses[0]
    rate = check_rate(external_lr() if callable(external_lr) else external_lr)
    if record.in_sequence and len(uses) > 1:
        weight.copy_(weight - rate * sum(record.gather(grad) for grad, record in uses))
    else:
        if len(uses) > 1:
            names = [name for name in ("indices", "a", "b", "alternatives") if getattr(record.saved, name) is not None]
            joined = {name: torch.cat([getattr(each.saved, name) for _, each in uses]) for name in names}
            grad, record = torch.cat([grad for grad, _ in uses]), record._replace(saved=record.saved._replace(**joined))
        record.gather(grad, Into(weight, rate))
    record.connectivity().clamp_(weight)
    torch.autograd.graph.increment_version(leaf)  # compiled kernels write behind torch's back


# ---- what a compiled graph leaves to do ------------------------------------------------------------------------------


@torch.no_grad()
def settle(gradient: str, connectivity: Connectivity, external_lr: Rate | None, weight: Tensor) -> None:
    """Turn a weight's dense gradient into what the policy wants: a sparse one, or a step. A hook that runs once."""
    hooks = weight._post_accumulate_grad_hooks
    for key in [key for key, hook in (hooks or {}).items() if getattr(getattr(hook, "func", hook), "settles", False)]:
        del hooks[key]
    if weight.grad is None or weight.grad.is_sparse:  # settled by another call of the same backward pass
        return
    dense, weight.grad = weight.grad, None
    if gradient == "sparse":
        read = (dense != 0).any(-1) if isinstance(connectivity, Full) else dense != 0
        places = read.nonzero().t()
        weight.grad = torch.sparse_coo_tensor(places, dense[read], dense.shape, is_coalesced=True, check_invariants=False)
        return
    rate = check_step(weight, external_lr)
    weight.sub_(dense, alpha=check_rate(rate() if callable(rate) else rate))
    connectivity.clamp_(weight)


def settle_call(gradient: str, how: str, wires: Wires, external_lr: Rate | None, weight: Tensor) -> None:
    """The same for a call of a function, which has no layer to ask."""
    settle(gradient, how_of(how).connectivity(wires, weight.shape), external_lr, weight)


settle_call.settles = True  # type: ignore[attr-defined]


# ---- the nodes of the graph ------------------------------------------------------------------------------------------


def _nodes(policy: Any) -> dict[str, Any]:
    """A policy for each training op, under a name of its own, by which an autograd graph tells them apart."""
    ops = (formula.op for formula in (LUT, READ, ROWS, ATTENTION))
    return {name: type(policy)(f"{policy.__name__}_{name}", (policy,), {"__doc__": policy.__doc__}) for name in ops}


DENSE, SPARSE, IN_PLACE = _nodes(Dense), _nodes(Sparse), _nodes(InPlace)
# What `apply` does where no transform is at work: what it looks at before that takes 5 µs.
_apply_lut = super(torch.autograd.Function, DENSE["lut"]).apply


def nodes_of(name: str) -> list[str]:
    """The names that the nodes of one op have in an autograd graph, whatever its gradient policy."""
    policies = [f"{made[name].__name__}Backward" for made in (DENSE, SPARSE, IN_PLACE)]
    return [f"GeneratedBackwardFor_lutetia_{name}_defaultBackward", *policies]
