"""Reductions that are not plain sums: log-sum-exp, norms, deviations, scattered reductions, and losses.

Each does what its parts would do: an elementwise function passes everything on, and a sum shares in proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, divide, register
from lutetia.relevance.rules.common import dims, fit, integer, pieces


class Weighed(Op):
    """A reduction of one kept input whose elements share in proportion to non-negative weights."""

    conserves = True

    def __init__(self, forward: Callable[[Node, Tensor], Tensor], weigh: Callable[[Node, Tensor], Tensor]) -> None:
        self._forward, self._weigh = forward, weigh

    def kept(self, node: Node) -> Args:
        return (node.fn._saved_self,)

    def value(self, node: Node, args: Args) -> Relevance:
        return self._forward(node, args[0])

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        x = node.fn._saved_self
        over, kept = _reduced(node, x), getattr(node.fn, "_saved_keepdim", False)
        if not kept and x.dim():
            for dim in sorted(dim % x.dim() for dim in over):
                R = R.unsqueeze(dim)
        weights = self._weigh(node, x)
        total = weights.sum(over, keepdim=True) if x.dim() else weights
        equal = torch.ones_like(weights) / max(weights.numel() // max(total.numel(), 1), 1)  # where there is nothing to weigh
        return (R * torch.where(total > 0, weights / torch.where(total > 0, total, torch.ones_like(total)), equal),)


def _reduced(node: Node, x: Tensor) -> list[int]:
    """The dimensions that are reduced."""
    over = dims(getattr(node.fn, "_saved_dim", None))
    return over if over else list(range(x.dim()))


def _powers(node: Node, x: Tensor) -> Tensor:
    order = _order(node)
    size = x.abs()
    if order in (float("inf"), float("-inf")):
        ends = torch.amax if order > 0 else torch.amin
        return (size == ends(size, _reduced(node, x), keepdim=True)).to(x.dtype)
    # Of each sum: powers stay finite, and a small sum beside a large one does not vanish.
    largest = size.amax(_reduced(node, x), keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)
    return (size / largest) ** order if order else (size != 0).to(x.dtype)


def _order(node: Node) -> float:
    """The order of a norm: those of `torch.norm` have another name for it, and none for the second."""
    order = node.fn._saved_ord if hasattr(node.fn, "_saved_ord") else node.fn._saved_p
    return 2.0 if order is None else float(order)


def _norm(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    kept = getattr(fn, "_saved_keepdim", False)
    return torch.linalg.vector_norm(x, _order(node), dims(getattr(fn, "_saved_dim", None)), kept)


def _squares(node: Node, x: Tensor) -> Tensor:
    return (x - x.mean(_reduced(node, x), keepdim=True)).square()


def _spread(function: Any) -> Callable[[Node, Tensor], Tensor]:
    return lambda node, x: function(x, dims(node.fn._saved_dim), correction=_correction(node), keepdim=node.fn._saved_keepdim)


def _correction(node: Node) -> float:
    correction = node.fn._saved_correction
    return 1 if correction is None else correction


def _log_sum(node: Node, x: Tensor) -> Tensor:
    return x.logsumexp(dims(node.fn._saved_dim), node.fn._saved_keepdim)


def _exponentials(node: Node, x: Tensor) -> Tensor:
    largest = x.amax(_reduced(node, x), keepdim=True)
    return (x - torch.where(largest.isinf(), torch.zeros_like(largest), largest)).exp()


class ScatterReduce(Op):
    """Values reduced into places of another tensor: sums and means share in proportion, a maximum goes to the winner."""

    wide = False

    def family(self, node: Node) -> str:
        return "sum"

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, node.fn._saved_src

    def result(self, node: Node) -> Relevance | None:
        return node.fn._saved_result

    def needs(self, node: Node) -> Sequence[int]:
        return [at for at, edge in enumerate(node.edges) if edge is not None]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        fn, kind = node.fn, node.fn._saved_reduce
        if kind in ("amax", "amin"):
            given = pieces(node, R)
        else:
            s = divide(R, fn._saved_result, node.choice.eps)
            if kind == "prod":  # each factor the same
                ones = torch.ones_like(args[1])
                start = torch.ones_like(R) if fn._saved_include_self else torch.zeros_like(R)
                s = s / start.scatter_add(integer(fn._saved_dim), fn._saved_index, ones).clamp(min=1)
            given = [None if g is None or x is None else g * x for g, x in zip(pieces(node, s), args, strict=True)]
        return [fit(node, at, g) if g is not None and at in node.walked else None for at, g in enumerate(given)]


class Nll(Op):
    """The negative log-likelihood: a weighted sum of the chosen log-probabilities, which share in proportion."""

    wide = False

    def family(self, node: Node) -> str:
        return "sum"

    def kept(self, node: Node) -> Args:
        return (node.fn._saved_self,)

    def value(self, node: Node, args: Args) -> Relevance:
        fn = node.fn
        loss = F.nll_loss(
            args[0],
            fn._saved_target,
            fn._saved_weight,
            None,
            integer(fn._saved_ignore_index),
            None,
            REDUCTIONS[fn._saved_reduction],
        )
        return loss

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        z = torch.as_tensor(self.value(node, args))
        (back,) = pieces(node, divide(R, z, node.choice.eps))
        return (None if back is None else back * args[0],)


REDUCTIONS = ("none", "mean", "sum")


class Loss(Op):
    """A loss of elements, each of a prediction and a target: the elements share in proportion to what each adds.

    In a difference, prediction and target get their signed shares; otherwise the prediction gets everything.
    """

    def __init__(self, loss: Callable[..., Tensor], settings: tuple[str, ...] = (), differs: bool = True) -> None:
        self._loss, self._settings, self._differs = loss, settings, differs

    def family(self, node: Node) -> str:
        return "sum"

    def kept(self, node: Node) -> Args:
        return [node.fn._saved_self, node.fn._saved_target, *[None] * (len(node.edges) - 2)][: len(node.edges)]

    def _each(self, node: Node, reduction: str) -> Tensor:
        fn = node.fn
        settings = {name: getattr(fn, f"_saved_{name}") for name in self._settings}
        return self._loss(fn._saved_self, fn._saved_target, reduction=reduction, **settings)

    def value(self, node: Node, args: Args) -> Relevance:
        return self._each(node, REDUCTIONS[node.fn._saved_reduction])

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        fn = node.fn
        each = self._each(node, "none")
        share = R if not fn._saved_reduction else divide(R, each.sum(), torch.finfo(each.dtype).tiny) * each
        given: list[Tensor | None] = [None] * len(node.edges)
        if not self._differs:
            given[0] = share
        else:
            x, target = fn._saved_self, fn._saved_target
            s = divide(share, x - target, torch.finfo(each.dtype).tiny)
            given[:2] = [s * x, -s * target][: len(node.edges)]
        return [fit(node, at, g) if g is not None and at in node.walked else None for at, g in enumerate(given)]


register(Weighed(_log_sum, _exponentials), "LogsumexpBackward0")
register(Weighed(_norm, _powers), "LinalgVectorNormBackward0", *(f"NormBackward{number}" for number in range(4)))
register(Weighed(_spread(torch.std), _squares), "StdBackward0")
register(Weighed(_spread(torch.var), _squares), "VarBackward0")
register(ScatterReduce(), "ScatterReduceBackward0")
register(Nll(), "NllLossBackward0", "NllLoss2DBackward0")
register(Loss(F.mse_loss), "MseLossBackward0")
register(Loss(F.smooth_l1_loss, ("beta",)), "SmoothL1LossBackward0")
register(Loss(F.huber_loss, ("delta",)), "HuberLossBackward0")
register(
    Loss(F.binary_cross_entropy_with_logits, ("weight", "pos_weight"), differs=False), "BinaryCrossEntropyWithLogitsBackward0"
)
register(Loss(F.binary_cross_entropy, ("weight",), differs=False), "BinaryCrossEntropyBackward0")
