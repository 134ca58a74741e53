"""Linear maps that autograd's own backward describes: relevance x · Jᵀ(R / z), the value J x.

Resampling, Fourier transforms, packed sequences, the sampling of images at points, solving triangular systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, divide, register
from lutetia.relevance.rules.common import backward, fit, own_map, pieces
from lutetia.relevance.rules.sums import Map
from lutetia.relevance.rules.views import Move


class GridSampler(Op):
    """An image sampled at points: linear in the image, which gets everything; the points only say where, as an index does. If the
    image is a constant, the points get everything, each coordinate the same.
    """

    wide = False

    def family(self, node: Node) -> str:
        return "pool"

    def kept(self, node: Node) -> Args:
        return node.fn._saved_input, node.fn._saved_grid

    def needs(self, node: Node) -> Sequence[int]:
        return () if node.edges[0] is None else (0, 1)

    def value(self, node: Node, args: Args) -> Relevance:
        fn, (image, grid) = node.fn, args
        sample = torch.grid_sampler_2d if image.dim() == 4 else torch.grid_sampler_3d
        return sample(image, grid, fn._saved_interpolation_mode, fn._saved_padding_mode, fn._saved_align_corners)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        if node.edges[0] is None:
            grid = args[1]
            each = R.sum(1).unsqueeze(-1) / grid.shape[-1]
            return None, each.expand(grid.shape)
        known = node.output()
        z = known if isinstance(known, Tensor) else torch.as_tensor(self.value(node, args))
        back = backward(node, divide(R, z, node.choice.eps))
        return (back[0] if isinstance(back, tuple) else back) * args[0], None


class SolveTriangular(Op):
    """X with A X = B: linear in B, which gets everything, because A divides. If B is a constant, A gets everything."""

    wide = False

    def family(self, node: Node) -> str:
        return "product"

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, None

    def result(self, node: Node) -> Relevance | None:
        return node.fn._saved_result

    def needs(self, node: Node) -> Sequence[int]:
        return (1,) if self._to_b(node) else (0,)

    def _to_b(self, node: Node) -> bool:
        edge = node.edges[1]
        return edge is not None and not edge.child.is_weight

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        back = pieces(node, divide(R, node.fn._saved_result, node.choice.eps))
        given: list[Tensor | None] = [None, None]
        if self._to_b(node):
            given[1] = None if back[1] is None else fit(node, 1, back[1] * args[1])
        elif back[0] is not None:  # scaled up, A makes X smaller: its gradient has the other sign
            given[0] = fit(node, 0, -back[0] * args[0])
        return given


register(Map(own_map, "pool"), "UpsampleBilinear2DAaBackward0", "UpsampleBicubic2DAaBackward0", "UpsampleLanczos2DAaBackward0")
register(Move(own_map), "PackPaddedSequenceBackward0")
register(Map(own_map), "FftR2CBackward0", "FftC2CBackward0", "FftC2RBackward0")
register(GridSampler(), "GridSampler2DBackward0", "GridSampler3DBackward0")
register(SolveTriangular(), "LinalgSolveTriangularBackward0")
