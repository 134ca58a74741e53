"""Rounding with a straight-through gradient, and functions of which autograd keeps too little: the input gets everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, register, seen_value


class StraightThrough(Op):
    """round(x / scale): everything goes to x. Its own backward, as a linear map, would divide by values rounded to 0.

    What it gave is known where `watch` saw it.
    """

    wants_output = True

    def family(self, node: Node) -> str:
        return "activation"

    def result(self, node: Node) -> Relevance | None:
        return seen_value(node)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (R, *[None] * (len(node.edges) - 1))


class FixedPointSum(StraightThrough):
    """round(x · a) + round(y · b). Its inputs: x, x's scale, the output's scale, and optionally y and y's scale."""

    def family(self, node: Node) -> str:
        return "sum"

    def needs(self, node: Node) -> Sequence[int]:
        return (0, 3) if len(node.edges) > 3 else ()

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given = [*super().relevance(node, R, args)]
        if len(node.edges) > 3:  # both are divided by one scale: their shares are those of x + y
            given[0], given[3] = node.choice.share([args[0], args[3]], R, None)
        return [part if position in node.walked else None for position, part in enumerate(given)]


register(StraightThrough(), "SymmetricQuantFunctionBackward", "floor_steBackward", "round_steBackward")
register(
    StraightThrough(),
    "FakeQuantizePerTensorAffineCachemaskBackward0",
    "FakeQuantizePerTensorAffineCachemaskTensorQparamsBackward0",
    "FakeQuantizePerChannelAffineCachemaskBackward0",
    "FusedMovingAvgObsFqHelperBackward0",
    "ThresholdBackward0",  # whose value below the threshold is not kept
    "ThresholdBackward1",
    "RemainderBackward0",
    "FmodBackward0",
)
register(FixedPointSum(), "FixedPointMulBackward")
