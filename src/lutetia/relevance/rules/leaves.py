"""Where the walk ends or is watched: leaves, embeddings, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F

from lutetia.relevance.graph import Node, Relevance, weight_value
from lutetia.relevance.registry import Args, Given, Op, register
from lutetia.relevance.rules.views import Same


class Leaf(Op):
    """A tensor that requires grad: the relevance has arrived."""

    def result(self, node: Node) -> Relevance | None:
        return node.fn.variable.detach()

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return ()


class Embedding(Op):
    """Rows of a table: the relevance ends at the tokens; the table gets the relevance of its rows when requested."""

    def reads_data(self, node: Node) -> bool:
        return True

    def value(self, node: Node, args: Args) -> Relevance:
        table = args[0]
        if table is None:
            edge = node.edges[0]
            assert edge is not None
            table = weight_value(edge.child)
        return F.embedding(node.fn._saved_indices, table)

    def needs(self, node: Node) -> Sequence[int]:
        return ()

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        if not node.walked:
            return (None,)
        dense = R.new_zeros(node.input_shape(0))
        return (dense.index_add_(0, node.fn._saved_indices.reshape(-1), R.reshape(-1, R.shape[-1])),)


register(Leaf(), "AccumulateGrad")
register(Embedding(), "EmbeddingBackward0")
register(Same(), "CheckpointBackward")
