"""Operations that hide many in one node, such as an LSTM layer: computed again in parts, and the parts walked.

Inside, the same rules are in force; what comes out equals what the unfused operation would get, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance, unknown
from lutetia.relevance.inside import by_parts
from lutetia.relevance.registry import Args, Given, Op, register

LSTM = 2  # the number of the mode, among RNNs with ReLU (0), with tanh (1), LSTMs (2) and GRUs (3)


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

        return by_parts(node, compute, args, R, recurrent=True)


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
