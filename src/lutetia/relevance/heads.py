"""Where attention heads are in a graph: what each head contributed at each position."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from lutetia.relevance.graph import AutogradGraph, Node

Place = tuple[Node, int, Callable[[Tensor], Tensor]]  # a node, which of its outputs, and how its relevance becomes [B, H, S]

_PASSING = frozenset(
    {"ViewBackward0", "UnsafeViewBackward0", "ExpandBackward0", "ToCopyBackward0", "CloneBackward0", "ReshapeAliasBackward0"}
    | {"NativeDropoutBackward0", "MulBackward0", "MaskedFillBackward0", "WhereBackward0"}
)


def head_places(graph: AutogradGraph) -> Iterator[Place]:
    """The nodes where attention weights meet values, in one node or written out."""
    for node in graph.nodes:
        if node.name.startswith("ScaledDotProduct"):
            yield node, 0, _fused
        elif node.name == "BmmBackward0" and (weights := _softmax_shape(node)) is not None:
            yield node, 0, _written_out(weights)


def _fused(R: Tensor) -> Tensor:
    return R.sum(-1)


def _written_out(weights: torch.Size) -> Callable[[Tensor], Tensor]:
    """For the relevance [B·H, S, D] of a batched product, whose weights have the shape [..., S, T]."""

    def reduce(R: Tensor) -> Tensor:
        R = R.sum(-1)
        return R.reshape(weights[:-1]) if R.numel() == weights[:-1].numel() else R

    return reduce


def _softmax_shape(node: Node) -> torch.Size | None:
    """The shape of the attention weights, where a product's left factor is a softmax behind views and dropout."""
    edge = node.edges[0]
    for _ in range(8):
        if edge is None:
            return None
        child = edge.child
        if "Softmax" in child.name:
            return child.shape(edge.nr)
        if child.name not in _PASSING:
            return None
        edge = child.edges[0]
    return None
