"""The ops in compiled graphs: how a call becomes one, and what the graph sees of it.

A graph calls the same ops as an eager program. Of a small layer on CUDA it sees more: `lut_layer` is shown to it as the kernels
of `kernels.triton.plain`, which it launches itself. These read the anchors as they are, without the check that other ops make:
they are for layers, which check theirs, and not for `lut()`.
"""

from __future__ import annotations

import zlib
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lutetia
from lutetia import flow
from lutetia._shared import ops
from lutetia._uncompiled import as_constant, is_exporting
from lutetia.lut.autograd.ops import _lut, _lut_eval, _lut_gradients, _lut_weight_gradients
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.kernels import choice

WIDEST, MOST_ROWS, MOST_READS = 256, 2**14, 2**20  # outputs, rows of a batch, and these times detectors of a small layer
MOST_NUMBERS = 2**27  # these times outputs
PLAIN = (None, None, None, "{}")  # full connectivity, usual options
# torch keeps compiled graphs on disk and knows them by their ops: this number is another one for other kernels.
SOURCE = zlib.crc32((Path(__file__).parents[1] / "kernels/triton/source/plain.py").read_bytes())


def in_graph(x: Any, layer: tuple[Any, ...], meta: Any, n_inputs: int | None = None) -> Tensor | None:
    """y in a compiled graph, of a call with usual options and tensors that fit, else None; layer: weight, anchors and, if any,
    positions. A graph checks before each run all that was looked at to make it, and so this looks at little.
    """
    fits = isinstance(x, Tensor) and x.dim() > 1 and all(isinstance(each, Tensor) and each.dim() == 3 for each in layer)
    if not fits or x.shape[-1] != (n_inputs or x.shape[-1]):
        return None
    if choice.chosen or not isinstance(meta, SynapseMeta) or meta.lr_scale != 1.0:
        return None
    weight, anchors, *positions = layer
    for each in (x, weight, *positions):
        if each.dtype != torch.float32 or each.device != anchors.device or each.layout != anchors.layout:
            return None
    n_bits, name, rows = anchors.shape[1], "lut", x if x.dim() == 2 else x.flatten(0, -2)
    if positions:
        distances, n_owners, n_pe = positions[0].shape
        if x.dim() != 3 or (n_owners != 1 and n_owners != anchors.shape[0]) or not 1 <= x.shape[1] <= distances + 1:
            return None
        n_bits, name, rows = 2 * n_bits + n_pe, "lut_attention", x
    if weight.shape[:2] != (anchors.shape[0], 1 << as_constant(n_bits)) or anchors.dtype != torch.int32:
        return None
    learns = torch.is_grad_enabled() and any(each.requires_grad for each in (x, weight, *positions))
    is_layer = n_inputs is not None and len(layer) == 2  # torch 2.11 does not compile `not` of a tuple
    if is_layer and (weight.requires_grad or not learns) and is_small(rows, weight, anchors):  # dW is made with dx
        y = torch.ops.lutetia.lut_layer(rows, weight, anchors, SOURCE)
    elif learns:
        y = getattr(torch.ops.lutetia, name)(rows, *layer, None, None, None, "{}")[0]
    else:
        y = getattr(torch.ops.lutetia, f"{name}_eval")(rows, *layer, None, None, None, "{}")
    return y if y.dim() == x.dim() else y.view(*x.shape[:-1], y.shape[-1])


def is_small(x: Tensor, weight: Tensor, anchors: Tensor) -> bool:
    """Whether launches of a layer take longer than its kernels, on CUDA, and nothing looks at them."""
    if not x.is_cuda or lutetia.debug or flow.recording() or is_exporting():
        return False
    n_rows, n_reads = x.shape[0], x.shape[0] * anchors.shape[0]
    if not 0 < n_rows < MOST_ROWS or n_reads > MOST_READS or weight.shape[2] > WIDEST:
        return False
    return n_reads * weight.shape[2] <= MOST_NUMBERS and weight.numel() < 2**30


# ---- small layers ----------------------------------------------------------------------------------------------------


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
    from lutetia.lut.kernels.triton import plain

    if not _is_shown(x, weight, anchors):
        return None
    stack = _stack_with(x, weight, anchors)
    y = plain.fill_stack(stack.x, stack.layers)[-1] if plain.stacks(stack.layers) else plain.fill(x, weight, anchors)
    y.lutetia_stack = Marked(stack, y._version)  # type: ignore[attr-defined]
    return y


def _gradients(grad: Tensor, x: Tensor, weight: Tensor, anchors: Tensor, to_x: bool, source: int) -> tuple[Tensor, Tensor] | None:
    from lutetia.lut.kernels.triton import plain

    if not _is_shown(x, weight, anchors):
        return None
    known = _known(grad, weight, anchors)
    if known is not None and (not to_x or known[0].shape == x.shape):
        return known
    stack = _stack_with(x, weight, anchors)
    if not to_x or not plain.stacks(stack.layers) or not all(each.requires_grad for each, _ in stack.layers):
        return plain.gradients(grad, x, weight, anchors, to_x)
    dx, dys, dws = plain.stack_gradients(grad, stack.x, stack.layers, stack.x.requires_grad)
    layers = list(zip((dx, *dys), dws, strict=True))
    for number, dy in enumerate(dys, 1):
        dy.lutetia_sent = Marked((stack.first(number), layers[number - 1]), dy._version)  # type: ignore[attr-defined]
    return layers[-1]


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

    def first(self, number: int) -> Stack:
        """So many of its layers."""
        return Stack(self.x, self.layers[:number], self.versions[: 1 + 2 * number])


def _remembered(tensor: Tensor, name: str) -> Any:
    """What a tensor remembers by this name, if it was not written to since."""
    marked: Marked | None = getattr(tensor, name, None)
    return marked.what if marked is not None and marked.version == tensor._version else None


def _stack_with(x: Tensor, weight: Tensor, anchors: Tensor) -> Stack:
    """This layer and, where one kernel computes them all, those that x came from."""
    from lutetia.lut.kernels.triton import plain

    before: Stack | None = _remembered(x, "lutetia_stack")
    if before is not None and before.is_unchanged():
        longer = Stack.of(before.x, [*before.layers, (weight, anchors)])
        if plain.stacks(longer.layers):
            return longer
    return Stack.of(x, [(weight, anchors)])


def _known(grad: Tensor, weight: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor] | None:
    """dx and dW of a layer, where this gradient was sent to it by a kernel that went on to compute them."""
    stack, gradients = _remembered(grad, "lutetia_sent") or (None, None)
    if stack is None or not stack.is_unchanged():
        return None
    own_weight, own_anchors = stack.layers[-1]
    return gradients if own_weight is weight and own_anchors is anchors else None


torch.library.register_autograd("lutetia::lut_layer", _backward, setup_context=_remember, lib=ops.LIBRARY)
ops.show_as("lut_layer", _fill)
ops.show_as("lut_layer_gradients", _gradients)
