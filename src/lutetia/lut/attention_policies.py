"""Gradient policies of LUT attention beyond `dense`: those of `policies`, for sequences.

As there, both are plain autograd functions around the ops, and torch.compile breaks its graph around them.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lutetia._uncompiled import uncompiled
from lutetia.errors import ArgumentError, fail
from lutetia.lut.attention_ops import NO_SYNAPSES, Call, indices_of, input_gradients, remember, sizes_of
from lutetia.lut.ops import synapses_of
from lutetia.lut.policies import UNCOMPILED, Rate, check_rate
from lutetia.lut.sums import sum_dtype
from lutetia.lut.synapses import SynapseMeta


class Setup(NamedTuple):
    """What a call of the layer has besides x, weight, anchors and positions."""

    synapses: tuple[Any, ...]  # start, targets, meta, header; Nones and "" when fully connected
    meta: SynapseMeta
    options: tuple[Any, ...]  # algorithm, sums, int_rescaler, precision, budget, backend

    def forward(self, ctx: Any, *layer: Tensor) -> Tensor:
        """x [B, S, I], weight, anchors, positions -> y [B, S, O]; what backward needs is saved."""
        y, *found = torch.ops.lutetia.lut_attention(*layer, self.meta.lr_scale, *self.synapses, *self.options)
        remember(ctx, layer, tuple(found), self.synapses[:3])
        ctx.setup = self
        return y

    def input_gradients(self, ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """grad [B, S, O] -> dx, dpositions, where they are wanted."""
        return input_gradients(ctx, grad, (self.synapses[3], *self.options))


class Use(NamedTuple):
    """What the weight's gradient is made of: one use of it in one backward pass."""

    grad: Tensor  # [B, S, O]
    indices: Tensor  # [B, S, N_t]
    pe_indices: Tensor  # [S-1, N_t]
    n_anchors: int
    positional_dim: int

    def gather(self, setup: Setup, n_rows: int, **step: Any) -> Tensor:
        """The dense gradient, or the weight after a step."""
        sizes = sizes_of(tuple(self.indices.shape), self.grad.shape[2], self.n_anchors, self.positional_dim)
        call = Call.of((*setup.synapses, *setup.options), self.grad, sizes, sum_dtype(self.grad))
        return call.gather(*self[:3], self.positional_dim, n_rows, setup.meta, **step)

    def rows_read(self, setup: Setup) -> Tensor:
        """Which rows were read for a y whose gradient is not zero: bool [N_t, R]. One output whose gradient is 1 counts them."""
        n_rows = 1 << (2 * self.n_anchors + self.positional_dim)
        ones = (self.grad != 0).any(-1, keepdim=True).float()
        options = (setup.options[0] if not setup.synapses[3] else "pairs", "float", 1.0, *setup.options[3:])
        counts = Use(ones, *self[1:]).gather(Setup(NO_SYNAPSES, SynapseMeta(), options), n_rows)
        return counts.squeeze(-1) > 0


def _use(ctx: Any, grad: Tensor) -> Use:
    return Use(grad.contiguous(), *indices_of(ctx), ctx.n_anchors, ctx.positional_dim)


# ---- sparse ----------------------------------------------------------------------------------------------------------


@uncompiled(UNCOMPILED.format("sparse"))
def attention_with_sparse_gradient(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, setup: Setup) -> Tensor:
    """x [B, S, I] -> y [B, S, O]; weight.grad will be a coalesced COO tensor of the rows that were read.

    weight [N_t, R, O] gets two sparse dimensions and a dense one, weight [n_weights] a sparse one.
    """
    return _SparseGradient.apply(x, weight, anchors, positions, setup)


class _SparseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, setup: Setup) -> Tensor:
        return setup.forward(ctx, x, weight, anchors, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dx, dpositions = ctx.setup.input_gradients(ctx, grad)
        dw = _sparse_gradient(ctx.setup, _use(ctx, grad), ctx) if ctx.needs_input_grad[1] else None
        return dx, dw, None, dpositions, None


def _sparse_gradient(setup: Setup, use: Use, ctx: Any) -> Tensor:
    """The rows of the dense gradient that were read."""
    dense, read = use.gather(setup, ctx.size), use.rows_read(setup)
    if setup.synapses[3]:
        synapses = synapses_of(*setup.synapses)
        read = synapses.flatten(read.unsqueeze(-1).expand(-1, -1, synapses.n_outputs))
    at = read.nonzero(as_tuple=True)
    values = dense[at].to(ctx.weight_dtype)
    gradient = torch.sparse_coo_tensor(torch.stack(at), values, dense.shape, is_coalesced=True, check_invariants=False)
    # Held until the pass ends, as in `policies`: autograd would take over what nobody holds, and forget that it is coalesced.
    held = [gradient]
    torch.autograd.Variable._execution_engine.queue_callback(held.clear)
    return gradient


# ---- in place --------------------------------------------------------------------------------------------------------


@uncompiled(UNCOMPILED.format("in_place"))
def attention_with_step_in_place(
    x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, setup: Setup, external_lr: Rate | None
) -> Tensor:
    """x [B, S, I] -> y [B, S, O]; the backward pass ends with weight -= external_lr · lr_scale · gradient, and keeps none."""
    if external_lr is None:
        raise ArgumentError("external_lr is None, expected a number or a function that returns one, for gradient='in_place'")
    if not weight.is_leaf or not weight.is_contiguous():
        fail("weight", weight, "a contiguous leaf tensor, for gradient='in_place' changes it")
    if not callable(external_lr):
        check_rate(external_lr)
    step = _Step(weight, setup, external_lr)
    # The token is how autograd asks for the weight's gradient: it asks in backward(), not in torch.autograd.grad(y, x).
    token = _Token.apply(weight, step)
    return _InPlace.apply(x, weight.detach(), anchors, positions, token, step)


class _Step:
    """One use of a weight, and what its backward pass brings."""

    def __init__(self, weight: Tensor, setup: Setup, external_lr: Rate) -> None:
        self.weight, self.setup, self.external_lr = weight, setup, external_lr
        self.use: Use | None = None

    def key(self) -> tuple[Any, ...]:
        """Equal for steps that may be taken as one."""
        return id(self.weight), id(self.setup.synapses[0]), self.setup.meta, self.setup.options, self.external_lr


class _Token(torch.autograd.Function):
    """A number that stands for the weight in the graph; its gradient says that the weight's is wanted."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, step: _Step) -> Tensor:
        ctx.step = step
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        _pass_of_now().add(ctx.step)
        return None, None


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, token: Tensor, step: _Step) -> Tensor:
        ctx.step, ctx.token_dtype = step, token.dtype
        return step.setup.forward(ctx, x, weight, anchors, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dx, dpositions = ctx.setup.input_gradients(ctx, grad)
        ctx.step.use = _use(ctx, grad)
        return dx, None, None, dpositions, grad.new_zeros((), dtype=ctx.token_dtype), None


class _Pass:
    """The steps of one backward pass, taken when it ends. Owned by the pass: one that fails takes none of them."""

    def __init__(self) -> None:
        self.steps: list[tuple[_Step, Use]] = []

    def add(self, step: _Step) -> None:
        assert step.use is not None
        self.steps.append((step, step.use))
        step.use = None

    def finish(self) -> None:
        by_key: dict[tuple[Any, ...], list[tuple[_Step, Use]]] = {}
        for step, use in self.steps:
            by_key.setdefault(step.key(), []).append((step, use))
        self.steps = []
        for uses in by_key.values():
            _take(uses[0][0], [use for _, use in uses])


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


@torch.no_grad()
def _take(step: _Step, uses: list[Use]) -> None:
    """One step of one weight. Several uses, whose lengths may differ, are summed first: bounds are kept once."""
    weight, setup = step.weight.detach(), step.setup
    rate = check_rate(step.external_lr() if callable(step.external_lr) else step.external_lr)
    n_rows = 1 << (2 * uses[0].n_anchors + uses[0].positional_dim)
    if len(uses) == 1:
        uses[0].gather(setup, n_rows, external_lr=rate, weight=weight)
    else:
        gradient = sum(use.gather(setup, n_rows) for use in uses)
        weight.copy_(weight - rate * gradient)
        _clamp(weight, setup)
    torch.autograd.graph.increment_version(step.weight)  # compiled kernels write behind torch's back


def _clamp(weight: Tensor, setup: Setup) -> None:
    if setup.synapses[3]:
        synapses_of(*setup.synapses).clamp_(weight)
    else:
        weight.clamp_(setup.meta.min_weight, setup.meta.max_weight)
