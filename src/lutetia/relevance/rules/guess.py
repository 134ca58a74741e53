"""Operations without a rule, treated as linear maps, as `unknown="linear"` asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lutetia.relevance.graph import NO_GRADIENT, Node, Relevance, unknown
from lutetia.relevance.registry import Args, Given, Unknown, divide
from lutetia.relevance.rules.common import fit, forward_map, pieces

EPS = 1e-6


class GuessedLinear(Unknown):
    """x · Jᵀ(R / z), with the operation's own backward for Jᵀ.

    With one activation, z is the output, and a constant part absorbs its share. Several activations are treated as the parts of a
    sum, z = Σ J x; so a product gives the same to each factor.
    """

    def needs(self, node: Node) -> Sequence[int]:
        return [at for at, edge in enumerate(node.edges) if edge is not None]

    def value(self, node: Node, args: Args) -> Relevance:
        parts = self._parts(node, args, node.walked) if len(node.walked) == 1 else None
        return super().value(node, args) if parts is None else parts

    def _parts(self, node: Node, args: Args, positions: Sequence[int]) -> Tensor | None:
        """Σ J x over some inputs; None where the backward cannot be differentiated."""
        try:
            parts = [forward_map(node, at, args[at]) for at in positions]
        except (RuntimeError, NotImplementedError):
            return None
        there = [part for part in parts if part is not None]
        if not there:
            return None
        total = there[0]
        for part in there[1:]:
            total = total + part
        return total

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        if node.name == NO_GRADIENT:  # its backward gives nothing to any input
            raise unknown(node)
        if node.several:
            raise unknown(node, "an operation without a rule and with several outputs in use cannot be treated as a linear map")
        active = [at for at in node.walked if not node.edges[at].child.is_weight] or list(node.walked)  # type: ignore[union-attr]
        known = node.output() if len(active) == 1 else None
        z: Any = known if isinstance(known, Tensor) else self._parts(node, args, active)
        z = node.output() if z is None else z
        if not isinstance(z, Tensor):
            raise unknown(
                node, "its output was not kept; run the model through relevance.attribute, or inside relevance.watch(model)"
            )
        back = pieces(node, divide(R, z, getattr(node.rules.sum, "eps", EPS)))
        given: list[Tensor | None] = [None] * len(node.edges)
        for at in node.walked:
            piece = back[at]
            if piece is not None:
                given[at] = fit(node, at, piece) * args[at]
        return given


LINEAR = GuessedLinear()
