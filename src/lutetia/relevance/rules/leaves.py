"""Where the walk ends or is watched: leaves, embeddings, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance, weight_value
from lutetia.relevance.registry import Args, Given, Op, divide, register
from lutetia.relevance.rules.choices import Absolute
from lutetia.relevance.rules.common import integer
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

    def of_rows(self, node: Node, R: Tensor) -> Tensor:
        """The relevance [..., D] of the row of each token, of the output's R."""
        return R

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        rest = [None] * (len(node.edges) - 1)
        if 0 not in node.walked:
            return (None, *rest)
        dense, rows = R.new_zeros(node.input_shape(0)), self.of_rows(node, R)
        return (dense.index_add_(0, node.fn._saved_indices.reshape(-1), rows.reshape(-1, rows.shape[-1])), *rest)


class EmbeddingBag(Embedding):
    """Sums, means or maxima of the rows of bags of tokens: a token gets the share of its row, a maximum goes to the winner."""

    def family(self, node: Node) -> str:
        return "sum"

    def _table(self, node: Node) -> Tensor:
        edge = node.edges[0]
        table = node.fn._saved_weight if edge is None else weight_value(edge.child)
        assert isinstance(table, Tensor)
        return table

    def _bags(self, node: Node) -> Tensor:
        """The number of the bag that each token is in."""
        fn = node.fn
        places = torch.arange(len(fn._saved_indices), device=fn._saved_indices.device, dtype=fn._saved_offsets.dtype)
        return torch.searchsorted(fn._saved_offsets, places, right=True) - 1

    def _rows(self, node: Node) -> Tensor:
        """What each token adds [N, D]; the token that pads adds nothing."""
        fn = node.fn
        rows = self._table(node)[fn._saved_indices]
        if fn._saved_per_sample_weights is not None:
            rows = rows * fn._saved_per_sample_weights[:, None]
        return torch.where((fn._saved_indices == integer(fn._saved_padding_idx))[:, None], 0.0, rows)

    def value(self, node: Node, args: Args) -> Relevance:
        fn = node.fn
        padding = integer(fn._saved_padding_idx)
        how = ("sum", "mean", "max")[fn._saved_mode]
        return F.embedding_bag(
            fn._saved_indices,
            self._table(node),
            fn._saved_offsets[: node.shape()[0]],
            mode=how,
            per_sample_weights=fn._saved_per_sample_weights,
            padding_idx=None if padding < 0 else padding,
        )

    def of_rows(self, node: Node, R: Tensor) -> Tensor:
        rows, bags = self._rows(node), self._bags(node)
        if node.fn._saved_mode == MAX:
            best = torch.as_tensor(self.value(node, ()))[bags]
            rows = ((rows == best) & (node.fn._saved_indices != integer(node.fn._saved_padding_idx))[:, None]).to(R.dtype)
        if type(node.choice) is Absolute:
            rows = rows.abs()
        z = torch.zeros(node.shape(), dtype=rows.dtype, device=rows.device).index_add_(0, bags, rows)
        return rows * divide(R, z, node.choice.eps)[bags]


MAX = 2  # the number of that mode


register(Leaf(), "AccumulateGrad")
register(Embedding(), "EmbeddingBackward0")
register(EmbeddingBag(), "EmbeddingBagBackward0")
register(Same(), "CheckpointBackward")
