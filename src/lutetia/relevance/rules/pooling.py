"""Pooling and resizing: the winner takes all in max pools; averages and interpolations share in proportion."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.relevance.graph import Node
from lutetia.relevance.registry import register
from lutetia.relevance.rules.common import dims, own_map
from lutetia.relevance.rules.sums import Map
from lutetia.relevance.rules.views import Move


def _max_pool(node: Node, x: Tensor) -> Tensor:
    """The elements at the indices that the pool kept."""
    indices = node.fn._saved_result1
    spatial = 2 if "2D" in node.name else 3
    flat = x.flatten(-spatial).gather(-1, indices.flatten(-spatial))
    return flat.reshape(indices.shape)


def _avg_pool(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    pool = F.avg_pool2d if "2D" in node.name else F.avg_pool3d
    settings = (fn._saved_padding, fn._saved_ceil_mode, fn._saved_count_include_pad, fn._saved_divisor_override)
    return pool(x, fn._saved_kernel_size, fn._saved_stride or fn._saved_kernel_size, *settings)


def _adaptive_avg_pool(node: Node, x: Tensor) -> Tensor:
    shape: Any = node.shape()
    return F.adaptive_avg_pool2d(x, shape[-2:]) if "2D" in node.name else F.adaptive_avg_pool3d(x, shape[-3:])


def _amax(node: Node, x: Tensor) -> Tensor:
    reduce = torch.amax if node.name.startswith("Amax") else torch.amin
    return reduce(x, dims(node.fn._saved_dim), node.fn._saved_keepdim)


def _upsample(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    name = node.name.removeprefix("Upsample").removesuffix("Backward0").lower()
    op: Any = getattr(torch.ops.aten, f"upsample_{name}")
    if name.startswith("nearest"):
        return op(x, fn._saved_output_size)
    return op(x, fn._saved_output_size, fn._saved_align_corners)


def _col2im(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    return F.fold(x, node.shape()[-2:], fn._saved_kernel_size, fn._saved_dilation, fn._saved_padding, fn._saved_stride)


def _im2col(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    return F.unfold(x, fn._saved_kernel_size, fn._saved_dilation, fn._saved_padding, fn._saved_stride)


register(
    Move(_max_pool, saved=True),
    "MaxPool2DWithIndicesBackward0",
    "MaxPool3DWithIndicesBackward0",
    "AdaptiveMaxPool2DBackward0",
    "AdaptiveMaxPool3DBackward0",
    "FractionalMaxPool2DBackward0",
    "FractionalMaxPool3DBackward0",
)
register(Move(_amax, saved=True), "AmaxBackward0", "AminBackward0")
register(Move(lambda node, x: x.max(), saved=True), "MaxBackward1")
register(Move(lambda node, x: x.min(), saved=True), "MinBackward1")
register(Move(lambda node, x: x.median(), saved=True), "MedianBackward0")
register(Map(_avg_pool, "pool", saved=True), "AvgPool2DBackward0", "AvgPool3DBackward0")
register(Map(_adaptive_avg_pool, "pool", saved=True), "AdaptiveAvgPool2DBackward0", "AdaptiveAvgPool3DBackward0")
register(Move(_upsample), *(f"UpsampleNearest{n}DBackward0" for n in (1, 2, 3)))
register(
    Move(own_map), *(f"UpsampleNearestExact{n}DBackward0" for n in (1, 2, 3)), "MaxUnpool2DBackward0", "MaxUnpool3DBackward0"
)
register(Map(_upsample, "pool"), "UpsampleLinear1DBackward0", "UpsampleBilinear2DBackward0", "UpsampleBicubic2DBackward0")
register(Map(_upsample, "pool"), "UpsampleTrilinear3DBackward0")
register(Move(_im2col), "Im2ColBackward0")
register(Map(_col2im, "pool"), "Col2ImBackward0")
