"""Operations that stand for several: relevance passes the same written out, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.inside import by_parts
from lutetia.relevance.registry import Args, Given, Op, register
from lutetia.relevance.rules.common import dims, integer


class Written(Op):
    """An operation as a function of its node and its inputs, which uses operations that have rules."""

    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, ...]], *names: str) -> None:
        self._function = function
        self._names = names  # under which autograd kept the inputs, "" for those it did not keep

    def kept(self, node: Node) -> Args:
        kept = [getattr(node.fn, f"_saved_{name}") if name else None for name in self._names]
        return [each if isinstance(each, Tensor) else None for each in kept[: len(node.edges)]]

    def needs(self, node: Node) -> Sequence[int]:
        return [at for at, edge in enumerate(node.edges) if edge is not None]

    def value(self, node: Node, args: Args) -> Relevance:
        made = self._function(node, *args)
        return made if isinstance(made, Tensor) or node.several else made[node.nr]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        def compute(*inputs: Tensor) -> Sequence[Tensor]:
            made = self._function(node, *inputs)
            return (made,) if isinstance(made, Tensor) else made

        return by_parts(node, compute, args, R)


def _plus(node: Node, c: Tensor | None, product: Tensor) -> Tensor:
    """β·c + α·product."""
    fn = node.fn
    product = product if fn._saved_alpha == 1 else product * fn._saved_alpha
    c = node.constant() if c is None else c
    return product if c is None or not fn._saved_beta else (c if fn._saved_beta == 1 else c * fn._saved_beta) + product


def _addcdiv(node: Node, a: Tensor | None, b: Tensor, c: Tensor) -> Tensor:
    quotient = b / c * node.fn._saved_value
    return quotient if a is None else a + quotient


def _deviation(name: str) -> Callable[[Node, Tensor], tuple[Tensor, ...]]:
    def both(node: Node, x: Tensor) -> tuple[Tensor, ...]:
        fn = node.fn
        over, kept, correction = dims(fn._saved_dim), fn._saved_keepdim, fn._saved_correction
        spread = getattr(x, name)(over, correction=1 if correction is None else correction, keepdim=kept)
        return spread, x.mean(over, keepdim=kept)

    return both


def _ends(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    dim = node.fn._saved_dim
    over = list(range(x.dim())) if dim is None else integer(dim)
    return x.amin(over, node.fn._saved_keepdim), x.amax(over, node.fn._saved_keepdim)


def _logaddexp(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.stack(torch.broadcast_tensors(a, b)).logsumexp(0)


def _xlogy(node: Node, x: Tensor | None, y: Tensor | None) -> Tensor:
    """x · log y, 0 where x is."""
    x = torch.as_tensor(node.fn._saved_self) if x is None else x
    y = torch.as_tensor(node.fn._saved_other) if y is None else y
    return x * y.clamp(min=torch.finfo(y.dtype).tiny).log()


def _cross(node: Node, a: Tensor, b: Tensor) -> Tensor:
    dim = integer(node.fn._saved_dim)
    a, b = torch.broadcast_tensors(a, b)
    return a.roll(-1, dim) * b.roll(-2, dim) - a.roll(-2, dim) * b.roll(-1, dim)


def _distances(node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Between the rows of a [..., N, D] and those of b [..., M, D]: [..., N, M]."""
    return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), node.fn._saved_p, -1)


register(Written(lambda node, c, a, b: _plus(node, c, a @ b), "", "mat", "vec"), "AddmvBackward0")
register(Written(lambda node, c, a, b: _plus(node, c, a[:, None] * b), "", "vec1", "vec2"), "AddrBackward0")
register(Written(lambda node, c, a, b: _plus(node, c, (a @ b).sum(0)), "", "batch1", "batch2"), "AddbmmBackward0")
register(Written(_addcdiv, "", "tensor1", "tensor2"), "AddcdivBackward0")
register(Written(_deviation("var"), "self"), "VarMeanBackward0")
register(Written(_deviation("std"), "self"), "StdMeanBackward0")
register(Written(_ends, "self"), "AminmaxBackward0")
register(Written(_logaddexp, "self", "other"), "LogaddexpBackward0")
register(Written(lambda node, a, b: (a.square() + b.square()).sqrt(), "self", "other"), "HypotBackward0")
register(Written(_xlogy, "self", "other"), "XlogyBackward0")
register(Written(lambda node, y: _xlogy(node, None, y), "other"), "XlogyBackward1")
register(Written(lambda node, x: _xlogy(node, x, None), "self"), "XlogyBackward2")
register(Written(_cross, "self", "other"), "LinalgCrossBackward0")
register(Written(_distances, "x1", "x2"), "CdistBackward0")
register(Written(lambda node, a, b: torch.linalg.vector_norm(a - b, node.fn._saved_p), "self", "other"), "DistBackward0")
