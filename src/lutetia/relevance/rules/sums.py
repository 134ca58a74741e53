"""Sums: add, sub, rsub, sum, mean, cumsum, lerp, addcmul: in proportion to the signed share, R · a / (a + b + ε·sgn)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lutetia.relevance.graph import OPERANDS, SMALL, Node, Relevance, wide
from lutetia.relevance.registry import Args, Given, Op, divide, known_sum, left_over, register
from lutetia.relevance.rules.common import dims, fit, integer, times, transposed, without_masked

BOTH = (0, 1)  # positions
UNSEEN = "the share of a constant is unknown: its value was not kept"


class Add(Op):
    """f₀·a + f₁·b, for factors that depend on the operation; either may be a constant that has no node."""

    def __init__(self, factors: Callable[[Node], Sequence[float]]) -> None:
        self._factors = factors

    def family(self, node: Node) -> str:
        return "sum"

    def kept(self, node: Node) -> Args:
        operands = node.notes.get(OPERANDS)
        if operands is None:
            return [None] * len(node.edges)
        return [None if operand is None else operand.value() for operand in operands[: len(node.edges)]]

    def _lone(self, node: Node) -> bool:
        """Whether a single operand gets everything: the others are constants that take no share."""
        sharing = [edge for edge in node.edges if edge is not None]
        if len(sharing) == 2 and node.rules.bias == "absorb":
            return False
        if node.rules.bias == "redistribute":
            sharing = [edge for edge in sharing if not edge.child.is_weight]
        if len(sharing) != 1:
            return False
        absent = len(node.edges) < 2 or any(edge is None for edge in node.edges)
        return node.rules.bias == "redistribute" or not absent or (node.constant() is None and node.output() is None)

    def needs(self, node: Node) -> Sequence[int]:
        return () if self._lone(node) else [position for position, edge in enumerate(node.edges) if edge is not None]

    def _parts(self, node: Node, args: Args) -> list[Tensor | None]:
        """What each operand adds; a constant's part if `watch` recorded it."""
        factors = self._factors(node)
        parts: list[Tensor | None] = [
            None if arg is None else arg if factor == 1 else arg * factor for arg, factor in zip(args, factors, strict=False)
        ]
        return parts

    def _constant(self, node: Node) -> Tensor | float | None:
        constant = node.constant()
        if constant is None:
            return None
        position = next((at for at, edge in enumerate(node.edges) if edge is None), len(node.edges))
        factors = self._factors(node)
        return constant * (factors[position] if position < len(factors) else 1)

    def value(self, node: Node, args: Args) -> Relevance:
        there = [part for part in self._parts(node, args) if part is not None]
        total = there[0] if len(there) == 1 else there[0] + there[1]
        constant = self._constant(node)
        if constant is not None:
            total = total + constant
        elif any(edge is None for edge in node.edges) or len(node.edges) < 2:
            node.note = UNSEEN
        shape = node.shape()
        return total if total.shape == shape else total.expand(shape)

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        usual = node.walked == BOTH and node.rules.bias == "absorb"  # two activations
        if not usual and self._lone(node):
            only = next(at for at in range(len(node.edges)) if at in node.walked)
            if node.rules.bias == "absorb":
                node.note = UNSEEN
            return [fit(node, at, R) if at == only else None for at in range(len(node.edges))]
        parts = self._parts(node, args)
        seen = usual or (len(parts) == 2 and None not in node.edges)
        small = R.numel() <= SMALL and seen  # to add two small parts takes less than to ask who kept their sum
        z = None if small and node.value is None else known_sum(node, seen)
        if usual:
            shares = node.choice.share(parts, R, z)
            return [fit(node, at, without_masked(shares[at], parts[at]), args[at]) for at in BOTH]
        constant = self._constant(node)
        if node.rules.bias == "redistribute":
            parts = [None if edge is None or edge.child.is_weight else part for part, edge in zip(parts, node.edges, strict=True)]
            z = None
        elif constant is not None and z is None:
            z = torch.as_tensor(self.value(node, args))
        shares = node.choice.share(parts, R, z)
        if constant is not None and z is not None and len(node.walked) == 1 and _may_be_zero(constant):
            nothing = torch.as_tensor(constant, device=R.device) == 0  # adding 0 takes nothing, not even an ε
            shares = [None if share is None else torch.where(nothing, R, share) for share in shares]
        return [
            fit(node, at, without_masked(share, part), args[at]) if share is not None and at in node.walked else None
            for at, (share, part) in enumerate(zip(shares, parts, strict=True))
        ]


def _may_be_zero(constant: Tensor | float) -> bool:
    return isinstance(constant, Tensor) or constant == 0


class Map(Op):
    """A linear map of one input, such as a mean: x · fᵀ(R / z), with fᵀ the node's own backward."""

    def __init__(self, forward: Callable[[Node, Tensor], Tensor], family: str = "sum", saved: bool = False) -> None:
        self._forward, self._family, self._saved = forward, family, saved

    def family(self, node: Node) -> str:
        return self._family

    def kept(self, node: Node) -> Args:
        return [node.fn._saved_self if self._saved else None]

    def needs(self, node: Node) -> Sequence[int]:
        return (0,)

    def value(self, node: Node, args: Args) -> Relevance:
        return self._forward(node, args[0])

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        x = args[0]
        choice = node.choice
        if type(choice).__name__ == "Absolute":
            x = x.abs()
            z = self._forward(node, x)
        else:
            known = known_sum(node)
            z = self._forward(node, x if choice.eps else wide(x)) if known is None else known
        given = times(transposed(node, self._forward, divide(R, z, choice.eps).to(R.dtype)), x)
        left = None if choice.eps else left_over(R, z)
        if left is not None:
            given = given + transposed(node, self._forward, divide(left, self._forward(node, torch.ones_like(x)), 0.0))
        return (given,)


class Lerp(Op):
    """a + w·(b - a): two parts, (1 - w)·a and w·b. A weight that is an activation gets nothing."""

    def family(self, node: Node) -> str:
        return "sum"

    def _weight(self, node: Node, args: Args) -> Tensor | float:
        return node.fn._saved_weight

    def kept(self, node: Node) -> Args:
        fn = node.fn
        return (fn._saved_self, fn._saved_end, fn._saved_weight) if len(node.edges) == 3 else (None, None)

    def needs(self, node: Node) -> Sequence[int]:
        return [position for position in (0, 1) if node.edges[position] is not None]

    def value(self, node: Node, args: Args) -> Relevance:
        a, b = self._parts(node, args)
        return a + b

    def _parts(self, node: Node, args: Args) -> tuple[Tensor, Tensor]:
        weight = self._weight(node, args)
        a, b = args[0], args[1]
        return a * (1 - weight), b * weight

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        shares = node.choice.share(self._parts(node, args), R, None)
        given = [fit(node, at, share) if at in node.walked else None for at, share in enumerate(shares)]
        return [*given, *[None] * (len(node.edges) - 2)]


class Addcmul(Op):
    """a + v·b·c: two parts; the product's part is divided equally between its activations."""

    def family(self, node: Node) -> str:
        return "sum"

    def kept(self, node: Node) -> Args:
        return None, node.fn._saved_tensor1, node.fn._saved_tensor2

    def needs(self, node: Node) -> Sequence[int]:
        return [position for position in range(3) if node.edges[position] is not None]

    def value(self, node: Node, args: Args) -> Relevance:
        a, b, c = args
        product = b * c * node.fn._saved_value
        return product if a is None else a + product

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        a, b, c = args
        share_a, share = node.choice.share([a, b * c * node.fn._saved_value], R, None)
        active = [at for at in (1, 2) if (edge := node.edges[at]) is not None and not edge.child.is_weight]
        given: list[Tensor | None] = [share_a, None, None]
        for at in node.walked:
            if at:
                given[at] = share / max(len(active), 1) if at in active else share
        return [fit(node, at, g) if g is not None and at in node.walked else None for at, g in enumerate(given)]


def _sum(node: Node, x: Tensor) -> Tensor:
    return x.sum(dims(node.fn._saved_dim), keepdim=node.fn._saved_keepdim)


def _mean(node: Node, x: Tensor) -> Tensor:
    return x.mean(dims(node.fn._saved_dim), keepdim=node.fn._saved_keepdim)


register(Add(lambda node: (1, node.fn._saved_alpha)), "AddBackward0")
register(Add(lambda node: (1,)), "AddBackward1", "SubBackward1")
register(Add(lambda node: (1, -node.fn._saved_alpha)), "SubBackward0")
register(Add(lambda node: (-node.fn._saved_alpha, 1)), "RsubBackward0")
register(Add(lambda node: (-node.fn._saved_alpha,)), "RsubBackward1")
register(Map(lambda node, x: x.sum()), "SumBackward0")
register(Map(_sum), "SumBackward1")
register(Map(lambda node, x: x.mean()), "MeanBackward0")
register(Map(_mean), "MeanBackward1")
register(Map(lambda node, x: x.nansum(dims(node.fn._saved_dim), node.fn._saved_keepdim), saved=True), "NansumBackward0")
register(Map(lambda node, x: x.cumsum(integer(node.fn._saved_dim))), "CumsumBackward0")
register(Map(lambda node, x: x.trace()), "TraceBackward0")
register(Lerp(), "LerpBackward0", "LerpBackward1")
register(Addcmul(), "AddcmulBackward0")
