"""Operations that hide many in one node, such as an LSTM layer: computed again in parts, and the parts walked.

Inside, the same rules are in force; what comes out equals what the unfused operation would get, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.relevance.graph import Graph, Node, Relevance, unknown
from lutetia.relevance.registry import Args, Given, Op, register
from lutetia.relevance.result import Target

LSTM = 2  # the number of the mode, among RNNs with ReLU (0), with tanh (1), LSTMs (2) and GRUs (3)


def by_parts(node: Node, compute: Callable[..., Sequence[Tensor]], inputs: Args, R: Any) -> Given:
    """The relevance of the inputs, by a walk over what `compute(*inputs)` does.

    `R`: relevance of its outputs, one or a tuple. Inputs that are weights of the node are weights of the parts, too.
    """
    from lutetia.relevance.engine import Walk
    from lutetia.relevance.report import Report

    leaves = [_leaf(node, position, tensor) for position, tensor in enumerate(inputs)]
    with torch.enable_grad():
        outputs = compute(*leaves)
    given: list[Tensor | None] = [None] * len(node.edges)
    seeds = R if isinstance(R, tuple) else tuple(R if nr == node.nr else None for nr in range(len(outputs)))
    for output, seed in zip(outputs, seeds, strict=False):
        if seed is None:
            continue
        targets = {position: Target(position, 0, leaves[position]) for position in node.walked}
        fns = {position: _accumulator(leaves[position]) for position in node.walked}
        graph = Graph(output, fns.values())
        for position, fn in fns.items():
            if fn in graph.by_fn:
                graph.by_fn[fn].targets = [targets[position]]
        node.rules.prepare(graph)
        Walk(graph, Report(), output=output.detach()).run(seed)
        for position, target in targets.items():
            if target.total is not None:
                held = given[position]
                given[position] = target.total if held is None else held + target.total
    return given


def _leaf(node: Node, position: int, tensor: Tensor | None) -> Any:
    edge = node.edges[position] if position < len(node.edges) else None
    if tensor is None or edge is None:
        return tensor
    return nn.Parameter(tensor.detach()) if edge.child.is_weight else tensor.detach().requires_grad_()


def _accumulator(leaf: Tensor) -> Any:
    with torch.enable_grad():
        return leaf.view_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


class MkldnnRnn(Op):
    """One layer and direction of an LSTM on the CPU in float32: outputs [T, B, H], last hidden and cell state [B, H]."""

    def reads_data(self, node: Node) -> bool:
        return True

    def kept(self, node: Node) -> Args:
        fn = node.fn
        weights = (fn._saved_weight0, fn._saved_weight1, fn._saved_weight2, fn._saved_weight3)
        return [fn._saved_input, *weights, fn._saved_hx_, fn._saved_cx_]

    def result(self, node: Node) -> Relevance | None:
        results = (node.fn._saved_result0, node.fn._saved_result1, node.fn._saved_result2)
        return results if node.several else results[node.nr]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        fn = node.fn
        if fn._saved_mode != LSTM:
            raise unknown(node, "only LSTMs are known in this fused form")

        def compute(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor, c: Tensor) -> Sequence[Tensor]:
            return _lstm(
                x, w, u, b if fn._saved_has_biases else None, d if fn._saved_has_biases else None, h, c, fn._saved_reverse
            )

        return by_parts(node, compute, args, R)


def _lstm(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor | None, d: Tensor | None, h: Tensor, c: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM layer written out. x: [T, B, I]; w: [4H, I]; u: [4H, H]; b, d: [4H]; h, c: [B, H]."""
    steps = F.linear(x, w, b).unbind(0)
    outputs = []
    for step in reversed(steps) if reverse else steps:
        i, f, g, o = (F.linear(h, u, d) + step).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs), h, c


register(MkldnnRnn(), "MkldnnRnnLayerBackward0")
