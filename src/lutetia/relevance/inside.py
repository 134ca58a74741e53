"""Walks inside one node: a fused operation is recomputed in parts, and the parts are walked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from lutetia.relevance.graph import WIDER, AutogradGraph, Node
from lutetia.relevance.names import read_names
from lutetia.relevance.precision import widen
from lutetia.relevance.registry import Args, Given
from lutetia.relevance.report import Report
from lutetia.relevance.result import ResultTarget
from lutetia.relevance.targets import Placing, grad_fn, wanted_nodes

if TYPE_CHECKING:
    from lutetia.relevance.rules.choices import Rules


class Outer(NamedTuple):
    """The walk around: where its targets are placed, what it reports, and what it does with unknown operations."""

    placing: Placing
    report: Report
    unknown: str


OUTER: ContextVar[Outer | None] = ContextVar("lutetia relevance", default=None)


def by_parts(
    node: Node,
    compute: Callable[..., Sequence[Tensor]],
    inputs: Args,
    R: Any,
    *,
    rules: Rules | None = None,
    told: bool = False,
    recurrent: bool = False,
) -> Given:
    """The relevance of the inputs, by a walk over what `compute(*inputs)` does.

    `R`: relevance of its outputs, one or a tuple. Inputs that are weights of the node are weights of the parts, too. `told`:
    whether the parts are reported and may be targets, as if they were nodes of the outer graph. `recurrent`: whether they belong
    to a recurrent cell.
    """
    from lutetia.relevance.engine import Walk

    outer = OUTER.get() if told else None
    leaves = [_leaf(node, position, tensor) for position, tensor in enumerate(inputs)]
    with torch.enable_grad():
        stacked = outer is not None and outer.report.stacked
        output, seed = _joined(compute(*leaves), R, node, 1 if stacked else 0)
        fns = {position: grad_fn(leaves[position]) for position in node.walked}
    wanted = [] if outer is None else wanted_nodes(outer.placing.asked.items)
    graph = AutogradGraph(output, [*fns.values(), *wanted])
    if outer is not None:
        named = read_names(graph)
        for part in graph.nodes:
            part.index, part.module = node.index, part.outer or node.outer
        outer.placing.place(graph, named)
    for part in graph.nodes:
        part.recurrent = recurrent
    targets = {position: ResultTarget(position, 0, leaves[position]) for position in node.walked}
    for position, fn in fns.items():
        if fn in graph.by_fn:
            graph.by_fn[fn].is_inner = True
            graph.by_fn[fn].targets = [*graph.by_fn[fn].targets, targets[position]]
    (rules or node.rules).prepare(graph)
    if seed.dtype is WIDER.get(output.dtype):  # the walk around is in float64
        widen(graph)
    report, unknown = (Report(), "raise") if outer is None else (outer.report, outer.unknown)
    Walk(graph, report, unknown, output.detach(), to_the_end=outer is not None).run(seed)
    graph.release()
    return [targets[position].total if position in targets else None for position in range(len(node.edges))]


def _joined(outputs: Sequence[Tensor], R: Any, node: Node, first: int) -> tuple[Tensor, Tensor]:
    """The outputs that have relevance, and that relevance; several are flattened into one, from the dimension `first` on."""
    seeds = R if isinstance(R, tuple) else tuple(R if nr == node.nr else None for nr in range(len(outputs)))
    pairs = [(output, seed) for output, seed in zip(outputs, seeds, strict=False) if seed is not None]
    if len(pairs) == 1:
        return pairs[0]
    return torch.cat([output.reshape(-1) for output, _ in pairs]), torch.cat([seed.flatten(first) for _, seed in pairs], first)


def _leaf(node: Node, position: int, tensor: Tensor | None) -> Any:
    edge = node.edges[position] if position < len(node.edges) else None
    if tensor is None or edge is None:
        return tensor
    return nn.Parameter(tensor.detach()) if edge.child.is_weight else tensor.detach().requires_grad_()
