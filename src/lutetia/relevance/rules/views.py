"""Views, copies, casts, pads and other moves: the relevance goes where the value came from.

Each is described by its forward alone. Its relevance rule is the node's own backward: a move is linear with
coefficients of 0 and 1, so its gradient is exactly that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.parts import SlicedRelevance
from lutetia.relevance.registry import Args, Given, Op, register
from lutetia.relevance.rules.common import backward, dims, integer, transposed


class Move(Op):
    """One input whose elements are moved, copied or left out."""

    blind = conserves = True

    def __init__(self, forward: Callable[[Node, Tensor], Any], saved: bool = False) -> None:
        self._forward, self._saved = forward, saved

    def kept(self, node: Node) -> Args:
        return (node.fn._saved_self,) if self._saved else (None,)

    def value(self, node: Node, args: Args) -> Relevance:
        made = self._forward(node, args[0])
        if isinstance(made, (tuple, list)):
            return tuple(made) if node.several else made[node.nr]
        return made

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (transposed(node, self._forward, R),)


class Same(Move):
    """The input, unchanged."""

    def __init__(self) -> None:
        super().__init__(lambda node, x: x)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (R,)


class Reshape(Move):
    """The same elements in another shape."""

    def __init__(self) -> None:
        super().__init__(lambda node, x: x.reshape(node.shape()))

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (node.fn(R),)


class Cast(Move):
    """A copy in another dtype or on another device."""

    def __init__(self) -> None:
        super().__init__(self._cast)

    def _cast(self, node: Node, x: Tensor) -> Tensor:
        meta = node.metas[0]
        return x.to(dtype=meta.dtype, device=meta.device)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        edge = node.edges[0]
        assert edge is not None
        meta = edge.child.metas[edge.nr]
        R = R.real if R.is_complex() and not meta.dtype.is_complex else R  # a real number has no imaginary part to give to
        return (R.to(dtype=meta.dtype, device=meta.device),)


class SliceMove(Move):
    """A slice of the input. If the input has other consumers, it stays a `SlicedRelevance` until all is added up."""

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        edge = node.edges[0]
        assert edge is not None
        return (transposed(node, self._forward, R) if len(edge.child.parents) == 1 else SlicedRelevance(node, R, self._forward),)


class Join(Op):
    """Cat and stack: each input gets its own piece back."""

    def __init__(self, join: Callable[[list[Tensor], int], Tensor], stacked: bool) -> None:
        self._join, self._stacked = join, stacked

    def value(self, node: Node, args: Args) -> Relevance:
        dim = integer(node.fn._saved_dim)
        constants = node.constant()
        if isinstance(constants, list) and len(constants) == len(args):
            args = [constant if arg is None else arg for arg, constant in zip(args, constants, strict=True)]
        there = [arg for arg in args if arg is not None]
        absent = len(args) - len(there)
        if not absent:
            return self._join(there, dim)
        # Constants left no node: their places are filled with what is seen of them, or with zeros.
        node.note = "a constant is among the joined tensors, and its value was not kept"
        filler = there[0].new_zeros(self._missing_shape(node, there, absent, dim))
        return self._join([filler if arg is None else arg for arg in args], dim)

    def _missing_shape(self, node: Node, there: list[Tensor], absent: int, dim: int) -> list[int]:
        shape = list(there[0].shape)
        if not self._stacked:
            if absent > 1:
                from lutetia.relevance.graph import unknown

                raise unknown(node, "its output is needed, and contains several constants that were not kept")
            shape[dim] = node.shape()[dim] - sum(piece.shape[dim] for piece in there)
        return shape

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        pieces = backward(node, R)
        return pieces if isinstance(pieces, tuple) else (pieces,)


class Hooked(Op):
    """Where a full backward hook looks on: the inputs or outputs of a module, each unchanged."""

    def value(self, node: Node, args: Args) -> Relevance:
        return tuple(args) if node.several else args[node.nr]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given = list(R) if isinstance(R, tuple) else [R if at == node.nr else None for at in range(len(node.edges))]
        return [part if at in node.walked else None for at, part in enumerate(given)]


def _pad(mode: str) -> Callable[[Node, Tensor], Tensor]:
    return lambda node, x: F.pad(x, list(node.fn._saved_padding), mode=mode)


def _slice(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    return torch.ops.aten.slice(x, integer(fn._saved_dim), _end(fn._saved_start), _end(fn._saved_end), fn._saved_step)


def _end(number: int | None) -> int | None:
    return None if number is None else integer(number)


def _transpose(node: Node, x: Tensor) -> Tensor:
    return x.transpose(integer(node.fn._saved_dim0), integer(node.fn._saved_dim1))


def _select(node: Node, x: Tensor) -> Tensor:
    return x.select(integer(node.fn._saved_dim), integer(node.fn._saved_index))


def _diagonal(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    return x.diagonal(integer(fn._saved_offset), integer(fn._saved_dim1), integer(fn._saved_dim2))


def _diag_embed(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    return torch.diag_embed(x, integer(fn._saved_offset), integer(fn._saved_dim1), integer(fn._saved_dim2))


def _split_sizes(node: Node, x: Tensor) -> Any:
    return x.split(list(node.fn._saved_split_sizes), integer(node.fn._saved_dim))


register(Same(), "CloneBackward0", "AliasBackward0", "LiftFreshBackward0", "LiftBackward0")
register(
    Reshape(),
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "ReshapeCopyBackward0",
    "UnsqueezeBackward0",
    "UnsqueezeBackward1",
    *(f"SqueezeBackward{number}" for number in range(6)),
)
register(Hooked(), "BackwardHookFunctionBackward")
register(Cast(), "ToCopyBackward0")
register(Join(torch.cat, stacked=False), "CatBackward0")
register(Join(torch.stack, stacked=True), "StackBackward0")
register(Move(_transpose), "TransposeBackward0", "TransposeBackward1")
register(Move(lambda node, x: x.t()), "TBackward0", "TBackward1")
register(Move(lambda node, x: x.permute(dims(node.fn._saved_dims))), "PermuteBackward0")
register(Move(lambda node, x: x.expand(node.shape())), "ExpandBackward0")
register(Move(lambda node, x: x.repeat(list(node.fn._saved_repeats))), "RepeatBackward0")
register(SliceMove(_slice), "SliceBackward0")
register(SliceMove(_select), "SelectBackward0")
register(Move(_diagonal), "DiagonalBackward0")
register(Move(_diag_embed), "DiagEmbedBackward0")
register(Move(lambda node, x: x.flip(dims(node.fn._saved_dims))), "FlipBackward0")
register(Move(lambda node, x: x.roll(dims(node.fn._saved_shifts), dims(node.fn._saved_dims))), "RollBackward0")
register(Move(lambda node, x: x.rot90(integer(node.fn._saved_k), dims(node.fn._saved_dims))), "Rot90Backward0")
register(Move(lambda node, x: x.tril(integer(node.fn._saved_diagonal))), "TrilBackward0")
register(Move(lambda node, x: x.triu(integer(node.fn._saved_diagonal))), "TriuBackward0")
register(
    Move(lambda node, x: x.unfold(integer(node.fn._saved_dimension), node.fn._saved_size, node.fn._saved_step)), "UnfoldBackward0"
)
register(Move(lambda node, x: x.unbind(integer(node.fn._saved_dim))), "UnbindBackward0")
register(
    Move(lambda node, x: x.split(node.fn._saved_split_size, integer(node.fn._saved_dim))),
    "SplitBackward0",
    "UnsafeSplitBackward0",
)
register(Move(_split_sizes), "SplitWithSizesBackward0", "UnsafeSplitWithSizesBackward0")
register(Move(lambda node, x: F.pad(x, dims(node.fn._saved_pad))), "ConstantPadNdBackward0")
register(Move(_pad("reflect"), saved=True), *(f"ReflectionPad{n}DBackward0" for n in (1, 2, 3)))
register(Move(_pad("replicate"), saved=True), *(f"ReplicationPad{n}DBackward0" for n in (1, 2, 3)))
register(Move(lambda node, x: F.pixel_shuffle(x, node.fn._saved_upscale_factor)), "PixelShuffleBackward0")
register(Move(lambda node, x: F.pixel_unshuffle(x, node.fn._saved_downscale_factor)), "PixelUnshuffleBackward0")
register(Move(lambda node, x: F.channel_shuffle(x, node.fn._saved_groups)), "ChannelShuffleBackward0")
