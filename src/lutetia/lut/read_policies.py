"""The gradient policies `sparse` and `in_place` for rows that are added with coefficients; as in `policies`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lutetia._uncompiled import uncompiled
from lutetia.lut.backend import kernels_for
from lutetia.lut.ops import synapses_of
from lutetia.lut.policies import UNCOMPILED, Call, Rate, Step, Token, check_step, sparse_gradient


class RowsRead(NamedTuple):
    """Which rows are added, with which coefficients; [B, N_t], the second and the last empty where a read has one row."""

    indices: Tensor
    alternatives: Tensor
    a: Tensor
    b: Tensor
    two: bool  # whether the second row is added at all


class WeightedCall(NamedTuple):
    """What a call of the layer has besides its tensors."""

    call: Call
    dtype: torch.dtype  # of y

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for calls whose steps may be taken as one."""
        return self.call.key

    def forward(self, weight: Tensor, found: RowsRead) -> Tensor:
        """-> y [B, O]."""
        synapses, meta, options = self.call
        if synapses:
            return torch.ops.lutetia.weigh_rows_sparse(weight, *found, self.dtype, *synapses, *options)
        return torch.ops.lutetia.weigh_rows(weight, *found, self.dtype, meta.lr_scale, *options)

    def coefficient_gradients(self, ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """grad [B, O] -> da, db [B, N_t], where they are wanted."""
        to_a, to_b = ctx.needs_input_grad[:2]
        if not (to_a or to_b):
            return None, None
        indices, alternatives, a, b, weight = ctx.saved_tensors
        run = torch.ops.lutetia.row_gains_sparse if self.call.synapses else torch.ops.lutetia.row_gains
        da, db = run(grad, weight, indices, alternatives, to_b, *self.call.synapses, *self.call.options)
        return da.to(a.dtype) if to_a else None, db.to(b.dtype) if to_b else None

    def take(self, weight: Tensor, rate: float, two: bool, grad: Tensor, *rows: Tensor) -> None:
        """weight -= rate · lr_scale · gradient, in place: grad [B, O], the four of RowsRead [B, N_t]."""
        sums, int_rescaler, backend = self.call.options
        kernels = kernels_for(backend, weight)
        options = {"two": two, "external_lr": rate, "weight": weight, "sums": sums, "int_rescaler": int_rescaler}
        if self.call.synapses:
            kernels.gather_weighted_gradients_sparse(grad, *rows, synapses_of(*self.call.synapses), **options)
        else:
            kernels.gather_weighted_gradients_fc(grad, *rows, weight.shape[1], meta=self.call.meta, **options)


# ---- sparse ----------------------------------------------------------------------------------------------------------


@uncompiled(UNCOMPILED.format("sparse"))
def rows_with_sparse_gradient(weight: Tensor, found: RowsRead, call: WeightedCall) -> Tensor:
    """-> y [B, O]; weight.grad will be a coalesced COO tensor of the rows that were read, both of them where there are two."""
    return _SparseRows.apply(found.a, found.b, weight, found, call)


class _SparseRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, weight: Tensor, found: RowsRead, call: WeightedCall) -> Tensor:
        ctx.call, ctx.two, ctx.size, ctx.dtype = call, found.two, weight.shape, weight.dtype
        ctx.save_for_backward(found.indices, found.alternatives, a, b, weight)
        return call.forward(weight, RowsRead(found.indices, found.alternatives, a, b, found.two))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        da, db = ctx.call.coefficient_gradients(ctx, grad)
        dw = _sparse_rows(ctx, grad) if ctx.needs_input_grad[2] else None
        return da, db, dw, None, None


def _sparse_rows(ctx: Any, grad: Tensor) -> Tensor:
    """grad [B, O] -> the gradient of the weight, sparse."""
    call, rows = ctx.call.call, ctx.saved_tensors[:4]
    sums, int_rescaler, backend = call.options
    kernels, options = kernels_for(backend, grad), {"two": ctx.two, "sums": sums, "int_rescaler": int_rescaler}
    if call.synapses:
        found = kernels.gather_weighted_rows_sparse(grad.contiguous(), *rows, synapses_of(*call.synapses), **options)
    else:
        found = kernels.gather_weighted_rows_fc(grad.contiguous(), *rows, ctx.size[1], meta=call.meta, **options)
    slots, values = found
    return sparse_gradient(slots, values, ctx.size, ctx.dtype)


# ---- in place --------------------------------------------------------------------------------------------------------


@uncompiled(UNCOMPILED.format("in_place"))
def rows_with_step_in_place(weight: Tensor, found: RowsRead, call: WeightedCall, external_lr: Rate | None) -> Tensor:
    """-> y [B, O]; the backward pass ends with weight -= external_lr · lr_scale · gradient, and keeps no gradient."""
    step = Step(weight, _Take(call, found.two), check_step(weight, external_lr))
    token = Token.apply(weight, step)
    return _RowsInPlace.apply(found.a, found.b, token, weight.detach(), found, call, step)


class _Take(NamedTuple):
    """What a step asks of a call."""

    weighted: WeightedCall
    two: bool

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for calls whose steps may be taken as one."""
        return (*self.weighted.key, self.two)

    def take(self, weight: Tensor, rate: float, *found: Tensor) -> None:
        """Take the step."""
        self.weighted.take(weight, rate, self.two, *found)


class _RowsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, a: Tensor, b: Tensor, token: Tensor, weight: Tensor, found: RowsRead, call: WeightedCall, step: Step
    ) -> Tensor:
        ctx.call, ctx.step, ctx.token_dtype = call, step, token.dtype
        ctx.save_for_backward(found.indices, found.alternatives, a, b, weight)
        return call.forward(weight, RowsRead(found.indices, found.alternatives, a, b, found.two))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        da, db = ctx.call.coefficient_gradients(ctx, grad)
        ctx.step.found = (grad.contiguous(), *ctx.saved_tensors[:4])
        return da, db, grad.new_zeros((), dtype=ctx.token_dtype), None, None, None, None
