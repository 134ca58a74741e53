"""Small layers in compiled graphs: ops that keep what they are given and nothing else, and compare again in the backward pass.

Each tensor that a graph keeps for its backward pass takes longer than the comparisons of a small layer. On CUDA `lut_layer` is
shown to a graph as the kernels of `kernels.triton.plain`, each of which is an op. These read the anchors as they are, without the
check that other ops make: they are for layers, which check theirs, and not for `lut()`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia._shared import ops
from lutetia.lut.autograd.how import DEFAULT
from lutetia.lut.autograd.ops import (
    REPLAY,
    _lut,
    _lut_attention_gradients,
    _lut_eval,
    _lut_gradients,
    _lut_weight_gradients,
    detect_sequence,
    evaluate,
)
from lutetia.lut.kernels.protocol import FEW, NARROW, STACKED

PLAIN = (None, None, None, "{}")  # full connectivity, usual options
FOUR = ", ".join(f"Tensor{'?' * (n > 2)} weight_{n}, Tensor{'?' * (n > 2)} anchors_{n}" for n in range(1, STACKED + 1))
define = partial(ops.define, replay=ops.Replay((), REPLAY.watched))  # the kernels take anchors as they are
# torch keeps compiled graphs on disk and knows them by their ops: this number is another one for other ops behind those.
SOURCE = zlib.crc32(Path(__file__).read_bytes())


# ---- sequences -------------------------------------------------------------------------------------------------------


@ops.define(
    "lut_attention_layer(Tensor x, Tensor weight, Tensor anchors, Tensor positions, int source) -> Tensor",
    lambda x, weight, anchors, positions, source: x.new_empty((*x.shape[:2], weight.shape[2])),
    replay=REPLAY,
)
def _lut_attention_layer(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, source: int) -> Tensor:
    """x [B, S, I], weight [N_t, R, O], anchors [N_t, N_c, 2], positions [L-1, N_t or 1, N_pe] -> y [B, S, O]."""
    return evaluate(x, weight, anchors, positions, *PLAIN)


@ops.define(
    "lut_attention_layer_gradients(Tensor grad, Tensor x, Tensor weight, Tensor anchors, Tensor positions, bool to_weight, "
    "int source) -> (Tensor, Tensor, Tensor)",
    lambda grad, x, weight, anchors, positions, to_weight, source: (
        x.new_empty(x.shape),
        positions.new_empty(positions.shape),
        weight.new_empty(weight.shape if to_weight else 0),
    ),
    replay=REPLAY,
)
def _lut_attention_layer_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, to_weight: bool, source: int
) -> tuple[Tensor, ...]:
    """grad [B, S, O] -> dx [B, S, I], dpositions [L-1, N_t or 1, N_pe], and dW [N_t, R, O], empty unless to_weight."""
    found = detect_sequence(x, anchors, positions, DEFAULT, True)
    numbers = (x.shape[2], positions.shape, x.dtype, positions.dtype, to_weight)
    return _lut_attention_gradients(grad, weight, *found.x, *found.positions, anchors, *numbers, *PLAIN)


def _remember_sequence(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.source = inputs
    ctx.save_for_backward(*tensors)


def _sequence_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    to_x, to_weight, _, to_positions, _ = ctx.needs_input_grad
    made = torch.ops.lutetia.lut_attention_layer_gradients(grad, *ctx.saved_tensors, to_weight, ctx.source)
    dx, dpositions, dw = made
    return dx if to_x else None, dw if to_weight else None, None, dpositions if to_positions else None, None


torch.library.register_autograd(
    "lutetia::lut_attention_layer", _sequence_backward, setup_context=_remember_sequence, lib=ops.LIBRARY
)
ops.show_alone("lut_attention_layer")


# ---- one step --------------------------------------------------------------------------------------------------------


@ops.define(
    "lut_layer(Tensor x, Tensor weight, Tensor anchors, int source) -> Tensor",
    lambda x, weight, anchors, source: x.new_empty(x.shape[0], weight.shape[2]),
)
def _lut_layer(x: Tensor, weight: Tensor, anchors: Tensor, source: int) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O]; for the backward pass x is kept, and compared again."""
    return _lut_eval(x, weight, anchors, *PLAIN)


@ops.define(
    "lut_layer_gradients(Tensor grad, Tensor x, Tensor weight, Tensor anchors, bool to_x, int source) -> (Tensor, Tensor)",
    lambda grad, x, weight, anchors, to_x, source: (x.new_empty(x.shape if to_x else 0), weight.new_empty(weight.shape)),
)
def _lut_layer_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, anchors: Tensor, to_x: bool, source: int
) -> tuple[Tensor, Tensor]:
    """grad [B, O] -> dx [B, I], empty unless to_x, and dW [N_t, R, O]."""
    _, *found = _lut(x, weight, anchors, *PLAIN)
    if to_x:
        return _lut_gradients(grad, weight, *found, anchors, x.shape[1], x.dtype, True, *PLAIN)
    nothing = (None, None, None, None, 0, 0)
    return x.new_empty(0), _lut_weight_gradients(grad, found[0], *nothing, weight.shape, weight.dtype, *PLAIN)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.source = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    to_x, to_weight, *_ = ctx.needs_input_grad
    dx, dw = torch.ops.lutetia.lut_layer_gradients(grad, *ctx.saved_tensors, to_x, ctx.source)
    return dx if to_x else None, dw if to_weight else None, None, None


def _is_shown(*tensors: Tensor) -> bool:
    """Whether a graph may see the kernels of these tensors: on CUDA, of known sizes, not of a graph for several sizes."""
    return tensors[0].is_cuda and all(type(size) is int for each in tensors for size in each.shape)


def _fill(x: Tensor, weight: Tensor, anchors: Tensor, source: int) -> Tensor | None:
    if not _is_shown(x, weight, anchors):
        return None
    stack = _stack_with(x, weight, anchors)
    if len(stack.layers) > 1:
        y = torch.ops.lutetia.stack_fill(stack.x, *stack.tensors())
    else:
        y = torch.ops.lutetia.plain_fill(x, weight, anchors)
    y.lutetia_stack = Marked(stack, y._version)
    return y


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, anchors: Tensor, to_x: bool, source: int) -> tuple[Tensor, Tensor] | None:
    if not _is_shown(x, weight, anchors):
        return None
    known = _known(grad, weight, anchors)
    if known is not None and (not to_x or known[0].shape == x.shape):
        return known
    stack = _stack_with(x, weight, anchors)
    n = len(stack.layers)
    if not to_x or n == 1 or not all(each.requires_grad for each, _ in stack.layers):
        return torch.ops.lutetia.plain_gradients(grad, x, weight, anchors, to_x)
    made = torch.ops.lutetia.stack_gradients(grad, stack.x, *stack.tensors(), stack.x.requires_grad)
    layers = list(zip(made[:n], made[n:], strict=True))
    for number, dy in enumerate(made[1:n], 1):
        dy.lutetia_sent = Marked((stack.first(number), layers[number - 1]), dy._version)
    return layers[-1]


# ---- the kernels of small layers -------------------------------------------------------------------------------------


@define(
    "plain_fill(Tensor x, Tensor weight, Tensor anchors) -> Tensor",
    lambda x, weight, anchors: x.new_empty(x.shape[0], weight.shape[2]),
)
def _plain_fill(x: Tensor, weight: Tensor, anchors: Tensor) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O]."""
    from lutetia.lut.kernels.triton import plain

    return plain.fill(x, weight, anchors)


@define(
    "plain_gradients(Tensor grad, Tensor x, Tensor weight, Tensor anchors, bool to_x) -> (Tensor, Tensor)",
    lambda grad, x, weight, anchors, to_x: (x.new_empty(x.shape if to_x else 0), weight.new_empty(weight.shape)),
)
def _plain_gradients(grad: Tensor, x: Tensor, weight: Tensor, anchors: Tensor, to_x: bool) -> tuple[Tensor, Tensor]:
    """grad [B, O] -> dx [B, I], empty unless to_x, and dW [N_t, R, O]."""
    from lutetia.lut.kernels.triton import plain

    return plain.gradients(grad, x, weight, anchors, to_x)


def _layers_of(tensors: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
    """Weight and anchors of each layer, from those of four, of which the last may be None."""
    pairs = zip(tensors[::2], tensors[1::2], strict=True)
    return [(weight, anchors) for weight, anchors in pairs if weight is not None and anchors is not None]


def _stack_fake(x: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    return [x.new_empty(x.shape[0], weight.shape[2]) for weight, _ in _layers_of(tensors)]


@define(f"stack_fill(Tensor x, {FOUR}) -> Tensor", lambda x, *tensors: _stack_fake(x, *tensors)[-1])
def _stack_fill(x: Tensor, *tensors: Tensor | None) -> Tensor:
    """x [B, I], weight [N_t, R, O] and anchors [N_t, N_c, 2] of two to four layers -> y [B, O] of the last."""
    from lutetia.lut.kernels.triton import plain

    return plain.fill_stack(x, _layers_of(tensors))


def _stack_gradients_fake(grad: Tensor, x: Tensor, *rest: Any) -> list[Tensor]:
    *tensors, to_x = rest
    dws = [weight.new_empty(weight.shape) for weight, _ in _layers_of(tensors)]
    return [x.new_empty(x.shape if to_x else 0), *_stack_fake(x, *tensors)[:-1], *dws]


@define(f"stack_gradients(Tensor grad, Tensor x, {FOUR}, bool to_x) -> Tensor[]", _stack_gradients_fake)
def _stack_gradients(grad: Tensor, x: Tensor, *rest: Any) -> list[Tensor]:
    """grad [B, O] of the last layer's y -> dx [B, I], empty unless to_x; dy of the layers before the last; dW of all."""
    from lutetia.lut.kernels.triton import plain

    *tensors, to_x = rest
    dx, dys, dws = plain.stack_gradients(grad, x, _layers_of(tensors), to_x)
    return [dx, *dys, *dws]


# ---- layers that follow each other -----------------------------------------------------------------------------------
# A graph is traced layer by layer. What a layer gives remembers where it came from, as an attribute of the traced tensor: if the
# next layer takes just that, unchanged, one kernel computes both from the beginning, and that of the first alone, whose result
# nobody uses then, is dropped from the graph. Backward, the kernel of the last layer sends gradients through all of them. A layer
# that gets just the gradient that was sent to it finds its own there; if others added to it, the layer computes them itself.


class Marked(NamedTuple):
    """What a tensor remembers, and how often it had been written to."""

    what: Any
    version: int


class Stack(NamedTuple):
    """Layers one after the other: what the first is given, weight and anchors of each, and how often all were written to."""

    x: Tensor
    layers: list[tuple[Tensor, Tensor]]
    versions: list[int]

    @staticmethod
    def of(x: Tensor, layers: list[tuple[Tensor, Tensor]]) -> Stack:
        return Stack(x, layers, [each._version for each in (x, *chain.from_iterable(layers))])

    def is_unchanged(self) -> bool:
        return self.versions == Stack.of(self.x, self.layers).versions

    def tensors(self) -> list[Tensor | None]:
        """Weights and anchors as the ops of stacks take them."""
        given: list[Tensor | None] = [*chain.from_iterable(self.layers)]
        return given + [None] * (2 * STACKED - len(given))

    def first(self, number: int) -> Stack:
        """So many of its layers."""
        return Stack(self.x, self.layers[:number], self.versions[: 1 + 2 * number])


def _remembered(tensor: Tensor, name: str) -> Any:
    """What a tensor remembers by this name, if it was not written to since."""
    marked: Marked | None = getattr(tensor, name, None)
    return marked.what if marked is not None and marked.version == tensor._version else None


def _stack_with(x: Tensor, weight: Tensor, anchors: Tensor) -> Stack:
    """This layer and, where one kernel computes them all, those that x came from."""
    before: Stack | None = _remembered(x, "lutetia_stack")
    if before is not None and before.is_unchanged():
        longer = Stack.of(before.x, [*before.layers, (weight, anchors)])
        if are_stacked(longer.layers):
            return longer
    return Stack.of(x, [(weight, anchors)])


def _known(grad: Tensor, weight: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor] | None:
    """dx and dW of a layer, where this gradient was sent to it by a kernel that went on to compute them."""
    stack, gradients = _remembered(grad, "lutetia_sent") or (None, None)
    if stack is None or not stack.is_unchanged():
        return None
    own_weight, own_anchors = stack.layers[-1]
    return gradients if own_weight is weight and own_anchors is anchors else None


def are_stacked(layers: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether one launch serves these layers, two at least."""
    small = all(len(anchors) <= FEW and weight.shape[2] <= NARROW for weight, anchors in layers)
    return small and 1 < len(layers) <= STACKED


torch.library.register_autograd("lutetia::lut_layer", _backward, setup_context=_remember, lib=ops.LIBRARY)
ops.show_as("lut_layer", _fill)
ops.show_as("lut_layer_gradients", _gradients)
