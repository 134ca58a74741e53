"""Blocks that are recomputed when relevance reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from lutetia.relevance.blocks import give_memory_back
from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.inside import by_parts
from lutetia.relevance.registry import Args, Given, Op, register


class Recomputed(Op):
    """One call of a block: its inputs were kept, and nothing inside."""

    nests = True
    wide = False  # the block runs again as it did

    def reads_data(self, node: Node) -> bool:
        return True

    def kept(self, node: Node) -> Args:
        return node.fn.saved_tensors

    def value(self, node: Node, args: Args) -> Relevance:
        outputs = node.fn.call.run_again(args)
        return outputs if node.several else outputs[node.nr]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        def compute(*inputs: Tensor) -> Sequence[Tensor]:
            return node.fn.call.run_again(inputs)

        rules = node.rules if node.choice is node.rules.firsts else replace(node.rules, firsts=None)
        given = by_parts(node, compute, args, R, rules=rules, told=True)
        give_memory_back()
        return given


register(Recomputed(), "RecomputedBlockBackward")
