"""Normalisations: layer, group, batch and RMS norm, with their statistics treated as constants.

With mean μ and deviation σ fixed, y = x·γ/σ + (β - μ·γ/σ) is linear in each element of x: it gets R · (x·γ/σ) / (y + ε·sgn y),
and the rest is the share of a bias. `Centred` holds only σ constant, as AttnLRP does: the mean over x is one more linear part.
`Identity` passes everything on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, divide, known_sum, reduce_to, register
from lutetia.relevance.rules.choices import Centred, Identity


class Norm(Op):
    """y = (x - μ)·scale·γ + β, for the statistics that each norm keeps in its own way."""

    def family(self, node: Node) -> str:
        return "norm"

    def statistics(self, node: Node, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """μ and 1/σ, broadcastable to x."""
        raise NotImplementedError

    def spread(self, node: Node, parameter: Tensor, x: Tensor) -> Tensor:
        """γ or β, broadcastable to x."""
        return parameter

    def kept(self, node: Node) -> Args:
        fn = node.fn
        return fn._saved_input, fn._saved_weight, getattr(fn, "_saved_bias", None)

    def needs(self, node: Node) -> Sequence[int]:
        return (0,) if node.edges[0] is not None and type(node.choice) is not Identity else ()

    def _scaled(self, node: Node, args: Args) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, γ/σ, and β - μ·γ/σ as far as it is known."""
        x = args[0]
        mean, scale = self.statistics(node, x)
        if args[1] is not None:
            scale = scale * self.spread(node, args[1], x)
        offset = None if mean is None else -mean * scale
        bias = args[2] if len(args) > 2 else None
        if bias is not None:
            bias = self.spread(node, bias, x)
            offset = bias if offset is None else offset + bias
        return x, scale, offset

    def value(self, node: Node, args: Args) -> Relevance:
        x, scale, offset = self._scaled(node, args)
        return x * scale if offset is None else torch.addcmul(offset.expand_as(x), x, scale)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given: list[Tensor | None] = [None] * len(node.edges)
        if type(node.choice) is Centred and set(node.walked) <= {0}:
            given[0] = self._centred(node, R, args)
            return given
        passes = type(node.choice) is Identity or node.rules.bias == "redistribute"
        if passes and set(node.walked) <= {0}:
            given[0] = R
            return given
        x, scale, offset = self._scaled(node, args)
        part = x * scale
        if passes:
            given[0] = R
            s = divide(R, part, getattr(node.choice, "eps", 1e-6))
        else:
            known = known_sum(node, seen=offset is None)
            y = known if known is not None else part if offset is None else part + offset
            s = divide(R, y, node.choice.eps)
            given[0] = part * s if 0 in node.walked else None
        if 1 in node.walked:  # γ's part of y is (x - μ)/σ·γ
            mean, inverse = self.statistics(node, x)
            centred = x if mean is None else x - mean
            given[1] = self._gather(node, centred * inverse * s, args[1]) * args[1]
        if 2 in node.walked:
            given[2] = self._gather(node, s, args[2]) * args[2]
        return given

    def _centred(self, node: Node, R: Tensor, args: Args) -> Tensor:
        """x · cᵀ(R / y · γ/σ), with c the centring of x: symmetric, so it is its own transpose."""
        x, scale, offset = self._scaled(node, args)
        if node.rules.bias == "redistribute":
            y = self.centre(node, x, x) * scale
        else:
            y = x * scale if offset is None else x * scale + offset
        return self.centre(node, divide(R, y, node.choice.eps) * scale, x) * x

    def centre(self, node: Node, tensor: Tensor, x: Tensor) -> Tensor:
        """A tensor like x minus its mean over the normalised dimensions; unchanged where the mean is a constant."""
        return tensor

    def _gather(self, node: Node, tensor: Tensor, parameter: Tensor) -> Tensor:
        return reduce_to(tensor, parameter.shape)


class LayerNorm(Norm):
    """Over the last dimensions."""

    def centre(self, node: Node, tensor: Tensor, x: Tensor) -> Tensor:
        dims = [dim for dim, size in enumerate(node.fn._saved_result1.shape) if size == 1 and x.shape[dim] > 1]
        return tensor - tensor.mean(dims, keepdim=True) if dims else torch.zeros_like(tensor)

    def statistics(self, node: Node, x: Tensor) -> tuple[Tensor | None, Tensor]:
        return node.fn._saved_result1, node.fn._saved_result2


class FusedRmsNorm(Norm):
    """x / √mean(x²): no mean, no bias."""

    def kept(self, node: Node) -> Args:
        return node.fn._saved_input, node.fn._saved_weight

    def statistics(self, node: Node, x: Tensor) -> tuple[Tensor | None, Tensor]:
        return None, node.fn._saved_result1


class _Channels(Norm):
    """Parameters per channel, the second dimension."""

    def spread(self, node: Node, parameter: Tensor, x: Tensor) -> Tensor:
        return parameter.reshape(1, -1, *([1] * (x.dim() - 2)))

    def _gather(self, node: Node, tensor: Tensor, parameter: Tensor) -> Tensor:
        return tensor.sum(dim=[0, *range(2, tensor.dim())])


class BatchNorm(_Channels):
    """Per channel over the batch: the batch's statistics when training, the running ones otherwise."""

    def kept(self, node: Node) -> Args:
        return node.fn._saved_input, node.fn._saved_weight, None

    def statistics(self, node: Node, x: Tensor) -> tuple[Tensor | None, Tensor]:
        fn = node.fn
        if getattr(fn, "_saved_training", False) or fn._saved_running_mean is None:
            mean, scale = fn._saved_result1, fn._saved_result2
        else:
            eps = fn._saved_eps if hasattr(fn, "_saved_eps") else fn._saved_epsilon
            mean, scale = fn._saved_running_mean, torch.rsqrt(fn._saved_running_var + eps)
        return self.spread(node, mean, x), self.spread(node, scale, x)


class GroupNorm(_Channels):
    """Per group of channels."""

    def centre(self, node: Node, tensor: Tensor, x: Tensor) -> Tensor:
        grouped = tensor.reshape(x.shape[0], node.fn._saved_group, -1)
        return (grouped - grouped.mean(-1, keepdim=True)).reshape(x.shape)

    def kept(self, node: Node) -> Args:
        return node.fn._saved_input, node.fn._saved_weight, None

    def statistics(self, node: Node, x: Tensor) -> tuple[Tensor | None, Tensor]:
        fn = node.fn
        shape = (x.shape[0], fn._saved_C, *([1] * (x.dim() - 2)))
        each = fn._saved_C // fn._saved_group
        mean, scale = (
            s.reshape(x.shape[0], -1).repeat_interleave(each, 1).reshape(shape) for s in (fn._saved_result1, fn._saved_result2)
        )
        return mean, scale


register(LayerNorm(), "NativeLayerNormBackward0")
register(FusedRmsNorm(), "FusedRmsNormBackward0")
register(GroupNorm(), "NativeGroupNormBackward0")
register(
    BatchNorm(),
    "NativeBatchNormBackward0",
    "NativeBatchNormLegitBackward0",
    "NativeBatchNormLegitNoTrainingBackward0",
    "CudnnBatchNormBackward0",
    "MiopenBatchNormBackward0",
)
