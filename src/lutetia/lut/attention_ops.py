"""LUT attention as torch.library ops, so that torch.compile, torch.export and autograd know it.

    lut_attention_eval                no gradients wanted: only y
    lut_attention                     training: y and what the backward pass needs
    lut_attention_input_gradients     dx and dpositions
    lut_attention_weight_gradients    dW, dense

B batch · S sequence length · L - 1 distances that have a position · I inputs · O outputs · N_t detectors · N_c anchor pairs ·
N_pe positional bits · R = 2**(2 N_c + N_pe) rows. Synapses travel as three tensors and a text (`Wiring`); None, None, None and
"" when fully connected. The ops cut `positions` themselves: a graph that holds a slice of S - 1 rows cannot have S = 2.
Which algorithm "auto" is, is decided where the sizes are numbers: as an op runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

import lutetia
from lutetia.lut.algorithm import choose
from lutetia.lut.backend import kernels_for
from lutetia.lut.ops import LIBRARY, _register, _twice, check_values, header_facts, meta_of, synapses_of
from lutetia.lut.sums import sum_dtype
from lutetia.lut.synapses import SynapseMeta, Synapses

SYNAPSES = "Tensor? start, Tensor? targets, Tensor? meta, str header"
OPTIONS = "str algorithm, str sums, float int_rescaler, str precision, int? budget, str backend"
NO_SYNAPSES = (None, None, None, "")

Found: TypeAlias = tuple[Tensor, Tensor, Tensor]  # indices, min_delta, min_delta_index: [B, S, N_t], or of positions [S-1, N_t]
Sizes: TypeAlias = tuple[int, int, int, int, int, int]  # B, S, O, N_t, N_c, N_pe


class Call(NamedTuple):
    """The arguments of an op that are not tensors of the layer, opened: how it is to run."""

    kernels: SimpleNamespace
    algorithm: str  # "pairs" or "cells"
    synapses: Synapses | None
    options: dict[str, Any]  # of every kernel
    more: dict[str, Any]  # of those that run cells

    @staticmethod
    def of(rest: tuple[Any, ...], x: Tensor, sizes: Sizes, dtype: torch.dtype) -> Call:
        """rest: the arguments of SYNAPSES and OPTIONS; x: any tensor of the call."""
        start, targets, meta, header, algorithm, sums, int_rescaler, precision, budget, backend = rest
        algorithm = choose(algorithm, *sizes, bool(header), dtype, sums, x.device.type)
        synapses = synapses_of(start, targets, meta, header) if header else None
        options = {"sums": sums, "int_rescaler": int_rescaler}
        return Call(kernels_for(backend, x), algorithm, synapses, options, {"precision": precision, "budget": budget})

    def fill(self, weight: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int) -> Tensor:
        """weight [N_t, R, O] or [n_weights], indices [B, S, N_t], pe_indices [S-1, N_t] -> y [B, S, O]."""
        tensors = (weight, indices, pe_indices, positional_dim)
        if self.synapses is not None:
            return self.kernels.fill_outputs_seq_sparse(*tensors, self.synapses, **self.options)
        if self.algorithm == "cells":
            return self.kernels.fill_outputs_cells_fc(*tensors, **self.options, **self.more)
        return self.kernels.fill_outputs_seq_fc(*tensors, **self.options)

    def propagate(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        """The arguments of `propagate_through_detectors_seq_fc` -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
        if self.synapses is not None:
            return self.kernels.propagate_through_detectors_seq_sparse(*arguments, self.synapses, **self.options)
        if self.algorithm == "cells":
            return self.kernels.propagate_through_cells_fc(*arguments, **self.options, **self.more)
        return self.kernels.propagate_through_detectors_seq_fc(*arguments, **self.options)

    def gather(
        self, grad: Tensor, indices: Tensor, pe_indices: Tensor, positional_dim: int, n_rows: int, meta: SynapseMeta, **step: Any
    ) -> Tensor:
        """grad [B, S, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> dW; with external_lr and weight in `step` that weight."""
        tensors = (grad, indices, pe_indices, positional_dim)
        if self.synapses is not None:
            return self.kernels.gather_weight_gradients_seq_sparse(*tensors, self.synapses, **step, **self.options)
        if self.algorithm == "cells":
            run = self.kernels.gather_weight_gradients_cells_fc
            return run(*tensors, n_rows, meta=meta, **step, **self.options, **self.more)
        return self.kernels.gather_weight_gradients_seq_fc(*tensors, n_rows, meta=meta, **step, **self.options)


def sizes_of(indices_shape: tuple[int, ...], n_outputs: int, n_anchors: int, positional_dim: int) -> Sizes:
    """The sizes of a call whose indices have the shape [B, S, N_t]."""
    batch, length, n_detectors = indices_shape
    return batch, length, n_outputs, n_detectors, n_anchors, positional_dim


def n_outputs_of(weight: Tensor, header: str) -> int:
    """O, from weight [N_t, R, O] or from the text of the synapses."""
    return header_facts(header)["n_outputs"] if header else weight.shape[2]


# ---- forward ---------------------------------------------------------------------------------------------------------

LAYER = "Tensor x, Tensor weight, Tensor anchors, Tensor positions"
LIBRARY.define(f"lut_attention_eval({LAYER}, {SYNAPSES}, {OPTIONS}) -> Tensor")
LIBRARY.define(f"lut_attention({LAYER}, float lr_scale, {SYNAPSES}, {OPTIONS}) -> ({', '.join(['Tensor'] * 7)})")


def _call(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, rest: tuple[Any, ...]) -> Call:
    check_sequences(x, anchors)
    shape = (*x.shape[:2], anchors.shape[0])
    return Call.of(
        rest, x, sizes_of(shape, n_outputs_of(weight, rest[3]), anchors.shape[1], positions.shape[2]), sum_dtype(weight)
    )


def check_sequences(x: Tensor, anchors: Tensor) -> None:
    """The checks that read tensors, of x [B, S, I]; a search for NaN names a row of B · S."""
    check_values(x.flatten(0, 1) if lutetia.debug else x, anchors)


def positions_of(positions: Tensor, length: int, n_detectors: int, dtype: torch.dtype) -> Tensor:
    """Those of the distances in a sequence, one per detector: positions [L-1, N_t or 1, N_pe] -> [S-1, N_t, N_pe].

    `dtype` is that of the margins of x, with which those of the positions are compared.
    """
    return positions[: length - 1].expand(-1, n_detectors, -1).to(dtype).contiguous()


def like_positions(gradient: Tensor, shape: Sequence[int]) -> Tensor:
    """The way back: gradient [S-1, N_t, N_pe] -> [L-1, N_t or 1, N_pe], the given shape; zero past the sequence."""
    if shape[1] != gradient.shape[1]:
        gradient = gradient.sum(1, keepdim=True)
    return torch.nn.functional.pad(gradient, (0, 0, 0, 0, 0, shape[0] - gradient.shape[0]))


def _lut_attention_eval(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    """x [B, S, I], weight [N_t, R, O] or [n_weights], anchors [N_t, N_c, 2], positions [L-1, N_t or 1, N_pe] -> y [B, S, O]."""
    call = _call(x, weight, anchors, positions, rest)
    indices = call.kernels.check_detectors_eval(x.contiguous(), anchors.contiguous())
    pe_indices = call.kernels.check_positions_eval(positions_of(positions, x.shape[1], anchors.shape[0], sum_dtype(x)))
    return call.fill(weight.contiguous(), indices, pe_indices, positions.shape[2]).to(_dtype(x, weight))


def _lut_attention(
    x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, lr_scale: float, *rest: Any
) -> tuple[Tensor, ...]:
    """The same, and what was found: three times [B, S, N_t], three times [S-1, N_t]; lr_scale is for the backward pass."""
    call = _call(x, weight, anchors, positions, rest)
    found = call.kernels.check_detectors(x.contiguous(), anchors.contiguous())
    pe = call.kernels.check_positions(positions_of(positions, x.shape[1], anchors.shape[0], sum_dtype(x)))
    y = call.fill(weight.contiguous(), found[0], pe[0], positions.shape[2]).to(_dtype(x, weight))
    return y, *found, *pe


def _dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, weight.dtype)


def _lut_attention_eval_fake(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    return x.new_empty((*x.shape[:2], n_outputs_of(weight, rest[3])), dtype=_dtype(x, weight))


def _lut_attention_fake(
    x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, lr_scale: float, *rest: Any
) -> tuple[Tensor, ...]:
    found = []
    for shape in ((*x.shape[:2], anchors.shape[0]), (x.shape[1] - 1, anchors.shape[0])):
        found += [x.new_empty(shape, dtype=dtype) for dtype in (torch.int32, sum_dtype(x), torch.int32)]
    return _lut_attention_eval_fake(x, weight, anchors, positions, *rest), *found


# ---- backward --------------------------------------------------------------------------------------------------------

FOUND = (
    "Tensor indices, Tensor min_delta, Tensor min_delta_index, "
    "Tensor pe_indices, Tensor pe_min_delta, Tensor pe_min_delta_index"
)  # fmt: skip
LIBRARY.define(
    f"lut_attention_input_gradients(Tensor grad, Tensor weight, {FOUND}, Tensor anchors, SymInt n_inputs, "
    f"SymInt[] positions_shape, ScalarType dtype, ScalarType positions_dtype, {SYNAPSES}, {OPTIONS}) -> (Tensor, Tensor)"
)
LIBRARY.define(
    "lut_attention_weight_gradients(Tensor grad, Tensor indices, Tensor pe_indices, SymInt n_anchors, SymInt positional_dim, "
    f"SymInt size, ScalarType dtype, float lr_scale, {SYNAPSES}, {OPTIONS}) -> Tensor"
)


def _lut_attention_input_gradients(*arguments: Any) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], weight, 3 × [B, S, N_t], 3 × [S-1, N_t], anchors -> dx [B, S, I], dpositions of positions_shape."""
    tensors, (n_inputs, positions_shape, dtype, positions_dtype) = arguments[:9], arguments[9:13]
    positional_dim = positions_shape[2]
    grad, indices, anchors = tensors[0], tensors[2], tensors[8]
    sizes = sizes_of(tuple(indices.shape), grad.shape[2], anchors.shape[1], positional_dim)
    call = Call.of(arguments[13:], grad, sizes, sum_dtype(tensors[1], grad))
    dx, dpositions = call.propagate(*(tensor.contiguous() for tensor in tensors), n_inputs, positional_dim)
    return dx.to(dtype), like_positions(dpositions, positions_shape).to(positions_dtype)


def _lut_attention_weight_gradients(
    grad: Tensor, indices: Tensor, pe_indices: Tensor, n_anchors: int, positional_dim: int, size: int, *rest: Any
) -> Tensor:
    """grad [B, S, O], indices [B, S, N_t], pe_indices [S-1, N_t] -> dW [N_t, R, O] or [n_weights]; size is R or n_weights."""
    dtype, lr_scale, *rest_ = rest
    sizes = sizes_of(tuple(indices.shape), grad.shape[2], n_anchors, positional_dim)
    call = Call.of(tuple(rest_), grad, sizes, sum_dtype(grad))
    tensors = (grad.contiguous(), indices.contiguous(), pe_indices.contiguous())
    return call.gather(*tensors, positional_dim, size, meta_of(lr_scale)).to(dtype)


def _lut_attention_input_gradients_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    grad, (n_inputs, positions_shape, dtype, positions_dtype) = arguments[0], arguments[9:13]
    dx = grad.new_empty((*grad.shape[:2], n_inputs), dtype=dtype)
    return dx, grad.new_empty(positions_shape, dtype=positions_dtype)


def _lut_attention_weight_gradients_fake(
    grad: Tensor, indices: Tensor, pe_indices: Tensor, n_anchors: int, positional_dim: int, size: int, *rest: Any
) -> Tensor:
    shape = (size,) if rest[5] else (indices.shape[2], size, grad.shape[2])
    return grad.new_empty(shape, dtype=rest[0])


# ---- autograd --------------------------------------------------------------------------------------------------------


def remember(ctx: Any, layer: tuple[Tensor, ...], found: tuple[Tensor, ...], synapses: tuple[Any, ...]) -> None:
    """Save what the gradients that will be asked for need; layer is x, weight, anchors, positions, synapses the three tensors."""
    x, weight, anchors, positions = layer
    ctx.wants_inputs = ctx.needs_input_grad[0] or ctx.needs_input_grad[3]
    saved = (weight, *found, anchors) if ctx.wants_inputs else (found[0], found[3])
    ctx.save_for_backward(*saved, *synapses)
    ctx.n_saved, ctx.n_anchors = len(saved), anchors.shape[1]
    ctx.n_inputs, ctx.positions_shape, ctx.positional_dim = x.shape[2], list(positions.shape), positions.shape[2]
    ctx.dtype, ctx.positions_dtype = x.dtype, positions.dtype
    ctx.weight_dtype, ctx.size = weight.dtype, weight.shape[-2 if weight.dim() == 3 else 0]


def input_gradients(ctx: Any, grad: Tensor, options: tuple[Any, ...]) -> tuple[Tensor | None, Tensor | None]:
    """grad [B, S, O] -> dx [B, S, I], dpositions [L-1, N_t or 1, N_pe], where wanted; options are those from `header` on."""
    if not ctx.wants_inputs:
        return None, None
    saved = ctx.saved_tensors
    run = torch.ops.lutetia.lut_attention_input_gradients
    numbers = (ctx.n_inputs, ctx.positions_shape, ctx.dtype, ctx.positions_dtype)
    dx, dpositions = run(grad, *saved[: ctx.n_saved], *numbers, *saved[ctx.n_saved :], *options)
    return dx if ctx.needs_input_grad[0] else None, dpositions if ctx.needs_input_grad[3] else None


def indices_of(ctx: Any) -> tuple[Tensor, Tensor]:
    """indices [B, S, N_t] and pe_indices [S-1, N_t] that were saved."""
    saved = ctx.saved_tensors
    return (saved[1], saved[4]) if ctx.wants_inputs else saved[:2]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    remember(ctx, inputs[:4], output[1:], inputs[5:8])
    ctx.lr_scale, ctx.options = inputs[4], inputs[8:]


def _lut_attention_backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    """grad [B, S, O] -> dx, dW, nothing for anchors, dpositions, and nothing for the eleven arguments after them."""
    if grad is None:
        return (None,) * 15
    dx, dpositions = input_gradients(ctx, grad, ctx.options)
    dw = None
    if ctx.needs_input_grad[1]:
        numbers = (ctx.n_anchors, ctx.positional_dim, ctx.size, ctx.weight_dtype, ctx.lr_scale)
        run = torch.ops.lutetia.lut_attention_weight_gradients
        dw = run(grad, *indices_of(ctx), *numbers, *ctx.saved_tensors[ctx.n_saved :], *ctx.options)
    return dx, dw, None, dpositions, *[None] * 11


_register("lut_attention_eval", _lut_attention_eval, _lut_attention_eval_fake)
_register("lut_attention", _lut_attention, _lut_attention_fake, _lut_attention_backward, _remember)
_register("lut_attention_input_gradients", _lut_attention_input_gradients, _lut_attention_input_gradients_fake, _twice)
_register("lut_attention_weight_gradients", _lut_attention_weight_gradients, _lut_attention_weight_gradients_fake, _twice)
