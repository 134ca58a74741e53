"""Operations that fuse many into one node, such as an LSTM layer: recomputed in parts, and the parts are walked.

The same rules apply inside; the result equals that of the unfused operation, to rounding. With the default rules for recurrent
cells, all steps are prepared at once, and a step costs a few tensor operations instead of a walk.
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
from lutetia.relevance.rules.choices import Absolute

WEIGHTS = (1, 2, 3, 4)  # their positions among the inputs
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
            raise unknown(node, "the only fused recurrent layer with a rule is the LSTM")
        rules = node.rules
        usual = not rules.types and rules.firsts is None and rules.bias == "absorb" and not set(node.walked) & set(WEIGHTS)
        if usual and isinstance(rules.recurrent, Absolute):
            return _all_steps(node, R, args, rules.recurrent.eps)

        def compute(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor, c: Tensor) -> Sequence[Tensor]:
            return _lstm(x, w, u, (b, d) if fn._saved_has_biases else (None, None), h, c, fn._saved_reverse)

        return by_parts(node, compute, args, R, recurrent=True)


def _all_steps(node: Node, R: Any, args: Args, eps: float) -> Given:
    """What the walk would find, with `Absolute` for sums and gates as constants: only the cell's input g leads back to x and h.

    c = f·c' + i·g, h = o·tanh c, g = tanh(a + e), a = U h' + d, e = W x + b; the index of a step is the first dimension.
    """
    fn = node.fn
    x, w, u, b, d, h, c = args
    out = node.fn._saved_result0
    (R_out, R_h, R_c) = R if isinstance(R, tuple) else tuple(R if nr == node.nr else None for nr in range(3))
    if fn._saved_reverse:
        x, out, R_out = x.flip(0), out.flip(0), None if R_out is None else R_out.flip(0)
    before = torch.cat([h.reshape(1, *out.shape[1:]), out[:-1]])  # h' of every step
    b, d = (b, d) if fn._saved_has_biases else (None, None)
    e, a = F.linear(x, w, b), F.linear(before, u, d)
    i, f, g, _ = (a + e).chunk(4, -1)
    new, forget = torch.sigmoid(i) * torch.tanh(g), torch.sigmoid(f)
    old = torch.empty_like(new)  # f·c' of every step
    state = c.reshape(out.shape[1:])
    for step in range(len(out)):
        torch.mul(forget[step], state, out=old[step])
        state = old[step] + new[step]
    to_old, to_new = _shares(old, new, eps)
    a, e = a.chunk(4, -1)[2], e.chunk(4, -1)[2]
    to_a, to_e = _shares(a, e, eps)
    w, u = w.chunk(4)[2].abs(), u.chunk(4)[2].abs()
    b, d = (None if bias is None else bias.chunk(4)[2].abs() for bias in (b, d))
    before, x = before.abs(), x.abs()
    to_a = to_a * to_new / (F.linear(before, u, d) + eps)

    nothing = torch.zeros_like(out[0])
    R_h = nothing if R_h is None else R_h.reshape(nothing.shape)
    R_c = nothing if R_c is None else R_c.reshape(nothing.shape)
    arrived = torch.empty_like(out)  # at the cell of every step
    for step in range(len(out) - 1, -1, -1):
        R_h = R_h if R_out is None else R_h + R_out[step]
        R_c = torch.add(R_h, R_c, out=arrived[step])
        R_h = ((R_c * to_a[step]) @ u).mul_(before[step])
        R_c = R_c * to_old[step]
    R_x = ((arrived * to_new * to_e / (F.linear(x, w, b) + eps)) @ w).mul_(x)
    given = [R_x.flip(0) if fn._saved_reverse else R_x, None, None, None, None, R_h.reshape(h.shape), R_c.reshape(c.shape)]
    return [given[position] if position in node.walked else None for position in range(len(node.edges))]


def _shares(a: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The shares of two parts of a sum, of one shape, in proportion to their magnitudes."""
    a, b = a.abs(), b.abs()
    total = a + b + eps
    return a / total, b / total


def _lstm(
    x: Tensor, w: Tensor, u: Tensor, biases: tuple[Tensor | None, Tensor | None], h: Tensor, c: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM layer written out. x: [T, B, I]; w: [4H, I]; u: [4H, H]; biases of both: [4H]; h, c: [B, H]."""
    b, d = biases
    steps = F.linear(x, w, b).unbind(0)
    outputs = []
    for step in reversed(steps) if reverse else steps:
        i, f, g, o = (F.linear(h, u, d) + step).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs), h, c


register(MkldnnRnn(), "MkldnnRnnLayerBackward0")
