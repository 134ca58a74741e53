"""The dtype in which relevance travels: that of the values or, where no rule has an ε, float64.

Without ε relevance is divided by sums that may cancel, so that the shares of a layer can be 10⁹ times the output. Rounded to
float32 between two layers they would lose 6·10⁻⁸ of that. So such a walk sees a graph in float32 as if it was one in float64:
what autograd kept is converted when a rule reads it, and the relevance is rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.relevance.graph import WIDER, AutogradGraph, Node, Relevance, wide
from lutetia.relevance.parts import SlicedRelevance
from lutetia.relevance.registry import Args, Given


class WideMeta(NamedTuple):
    """What autograd knows of an output."""

    shape: Sequence[int]
    dtype: torch.dtype
    device: torch.device


class WideFunction:
    """An autograd node whose saved tensors and outputs appear in float64."""

    __slots__ = ("fn",)

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.fn, name)
        if name == "_input_metadata":
            return [WideMeta(meta.shape, WIDER.get(meta.dtype, meta.dtype), meta.device) for meta in value]
        return wide(value) if name.startswith("_saved") or name == "saved_tensors" else value

    def __call__(self, *grads: Any) -> Any:
        return (self.fn if callable(self.fn) else self.fn.apply)(*grads)


def carry(graph: AutogradGraph, seed: Tensor) -> Tensor:
    """The relevance that a walk begins with, in the dtype in which it travels; the rules must have been chosen."""
    epsilons = {getattr(node.choice, "eps", None) for node in graph.nodes} - {None}
    epsilons = epsilons or {getattr(graph.root.rules.sum, "eps", None)}  # where no node divides
    if epsilons != {0}:
        return seed
    widen(graph)
    return wide(seed)


def widen(graph: AutogradGraph) -> None:
    """Let the nodes of a graph appear in float64, except those whose rules keep to their own dtype."""
    for node in graph.nodes:
        node.wide = node.op.wide
        if node.wide:
            node.fn = WideFunction(node.fn)
            node.metadata_of_outputs = None


def value_of(node: Node, args: Args) -> Relevance:
    """The output of a node from its inputs."""
    return node.op.value(node, args if node.wide is not False else _as_kept(node, args))


def relevance_of(node: Node, R: Any, args: Args) -> Given:
    """What the inputs of a node get of R: in the dtypes of the inputs, or all in float64."""
    if node.wide is None:
        given = node.op.relevance(node, R, args)
        return given if node.op.blind else _as_computed(node, given, args)
    if node.wide:
        return node.op.relevance(node, R, args)
    narrow = R
    if not node.op.nests:  # a walk inside goes on in the dtype of R
        dtypes = [meta.dtype for meta in node.metas]
        narrow = (
            tuple(None if part is None else part.to(dtype) for part, dtype in zip(R, dtypes, strict=True))
            if isinstance(R, tuple)
            else R.to(dtypes[max(node.nr, 0)])
        )
    given = node.op.relevance(node, narrow, _as_kept(node, args))
    return [
        SlicedRelevance(part.node, wide(part.R), part.view, part.stack) if isinstance(part, SlicedRelevance) else wide(part)
        for part in given
    ]


def _as_computed(node: Node, given: Given, args: Args) -> Given:
    """Relevance in the dtypes of the inputs, as autograd converts gradients: operations may mix float32 with narrower floats."""
    original = args is node.kept
    for position in node.walked:
        part, edge = given[position], node.edges[position]
        if isinstance(part, Tensor) and edge is not None:
            x = args[position] if original else None
            dtype = edge.child.metas[edge.nr].dtype if x is None else x.dtype
            if part.dtype is not dtype and part.is_floating_point() and dtype.is_floating_point:
                given = [*given]
                given[position] = part.to(dtype)
    return given


def _as_kept(node: Node, args: Args) -> Args:
    """Inputs in their own dtypes."""
    return [
        arg if arg is None or edge is None else arg.to(_own(edge.child)._input_metadata[edge.nr].dtype)
        for arg, edge in zip(args, node.edges, strict=True)
    ]


def _own(node: Node) -> Any:
    return node.fn.fn if node.wide else node.fn


def rounded(R: Tensor, dtype: torch.dtype) -> Tensor:
    """R [N, ...] in a narrower dtype, so that each of the N rows keeps its sum to 10⁻⁸ where it can.

    Every element becomes one of the two numbers of `dtype` beside it: the nearest, or, where the errors of a row add up to more,
    the other one. As many as needed change, of the coarsest numbers first, and those nearest to the middle before others.
    """
    if R.is_complex() or not R.numel():
        return R.to(dtype)
    exact = R.reshape(R.shape[0], -1) if R.dim() > 1 else R.reshape(1, -1)
    near = exact.to(dtype)
    error = exact - near.double()
    missing, enough = error.sum(1, keepdim=True), KEPT * exact.sum(1, keepdim=True).abs()
    if not bool((missing.abs() > enough).any()):
        return near.reshape(R.shape)
    other = torch.nextafter(near, torch.where(error > 0, torch.inf, -torch.inf).to(dtype))
    step = torch.where(error == 0, 0.0, other.double() - near.double())
    for size in step.abs().unique().flip(0).tolist():  # powers of two
        wanted = torch.where(missing.abs() > enough, (missing.abs() / size).round(), 0.0) if size else torch.zeros_like(missing)
        if not bool(wanted.any()):
            continue
        here = step == size * missing.sign()
        best = torch.where(here, error.abs(), -1.0).topk(min(int(wanted.max()), here.shape[1]), 1).indices
        chosen = torch.zeros_like(here).scatter_(1, best, torch.arange(best.shape[1], device=R.device) < wanted) & here
        near = torch.where(chosen, other, near)
        missing = missing - torch.where(chosen, step, 0.0).sum(1, keepdim=True)
    return near.reshape(R.shape)


KEPT = 1e-8  # of the sum of a row
