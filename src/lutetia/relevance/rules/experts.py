"""Grouped matrix products: groups of rows, each multiplied by its own matrix, as in mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, unknown
from lutetia.relevance.registry import Args, register
from lutetia.relevance.rules.linear import Bilinear


class GroupedMm(Bilinear):
    """x [S, K], w [E, K, N], and where each of the E groups of rows ends: [S, N]."""

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, node.fn._saved_mat2

    def ends(self, node: Node) -> Any:
        return node.fn._saved_offs

    def _groups(self, node: Node, x: Tensor, w: Tensor) -> list[slice]:
        ends = self.ends(node)
        if ends is None or x.dim() != 2 or w.dim() != 3:
            raise unknown(node, "the only grouped product with a rule is that of grouped rows with one matrix per group")
        ends = ends.tolist()
        return [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def product(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        out = a.new_zeros(a.shape[0], b.shape[2])
        return self._each(node, a, b, out, lambda rows, e: a[rows] @ b[e])

    def to_left(self, node: Node, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        return self._each(node, like, b, torch.zeros_like(like), lambda rows, e: s[rows] @ b[e].mT)

    def to_right(self, node: Node, s: Tensor, a: Tensor, like: Tensor) -> Tensor:
        given = torch.zeros_like(like)
        for expert, rows in enumerate(self._groups(node, a, like)):
            given[expert] = a[rows].mT @ s[rows]
        return given

    def _each(self, node: Node, x: Tensor, w: Tensor, out: Tensor, compute: Callable[[slice, int], Tensor]) -> Tensor:
        """Fill the rows of every group; those beyond the last group stay 0."""
        for expert, rows in enumerate(self._groups(node, x, w)):
            out[rows] = compute(rows, expert)
        return out


class GroupedMmFallback(GroupedMm):
    """The same, as `transformers` computes it where torch cannot."""

    def kept(self, node: Node) -> Args:
        x, w = node.fn.saved_tensors[:2]
        return [x, w, *[None] * (len(node.edges) - 2)]

    def ends(self, node: Node) -> Any:
        return node.fn.offs if hasattr(node.fn, "offs") else node.fn.saved_tensors[2]


register(GroupedMm(), "GroupedMmBackward0")
register(GroupedMmFallback(), "GeneratedBackwardFor_transformers_grouped_mm_fallback_defaultBackward")
