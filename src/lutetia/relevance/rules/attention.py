"""Softmax, and scaled dot-product attention in one node: equal to the eager computation, to rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance, unknown
from lutetia.relevance.registry import Args, Given, Op, divide, register
from lutetia.relevance.rules.choices import Identity
from lutetia.relevance.rules.common import integer


def through_softmax(x: Tensor, s: Tensor, R: Tensor, dim: int) -> Tensor:
    """x · (R - s · ΣR), all of one shape; 0 where masked: where s is 0, or x is near the minimum of its dtype."""
    # Where all of a row is masked, s is not 0. The product would overflow, and the score is lost to rounding anyway.
    masked = (s == 0).logical_or_(x < max(torch.finfo(x.dtype).min, torch.finfo(torch.float32).min) / 2)
    return _inner(s, R, dim).mul_(x).masked_fill_(masked, 0)


def _inner(s: Tensor, R: Tensor, dim: int) -> Tensor:
    """R - s · ΣR, both of one shape."""
    return torch.addcmul(R, s, R.sum(dim, keepdim=True), value=-1)


class Softmax(Op):
    """softmax(x): autograd kept the result, the input comes by a promise."""

    def family(self, node: Node) -> str:
        return "softmax"

    def result(self, node: Node) -> Relevance | None:
        return node.fn._saved_result

    def dim(self, node: Node) -> int:
        """The dimension that is normalised."""
        return integer(node.fn._saved_dim)

    def needs(self, node: Node) -> Sequence[int]:
        return () if type(node.choice) is Identity else (0,)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        rest = [None] * (len(node.edges) - 1)
        if type(node.choice) is Identity:
            return (R, *rest)
        x, s = args[0], self.result(node)
        assert isinstance(s, Tensor)
        return (through_softmax(x, s, R, self.dim(node)).to(x.dtype), *rest)


class CustomSoftmax(Softmax):
    """A custom function that computes a masked softmax, and saved its result."""

    def result(self, node: Node) -> Relevance | None:
        return node.fn.saved_tensors[0]

    def dim(self, node: Node) -> int:
        return node.fn.dim


class LogSoftmax(Op):
    """x - log Σ exp x: the normaliser is a constant, so the relevance passes."""

    conserves = True

    def family(self, node: Node) -> str:
        return "activation"

    def result(self, node: Node) -> Relevance | None:
        return node.fn._saved_result

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (R,)


class Attention(Op):
    """softmax(q kᵀ · scale + mask) v, whose intermediate values were never stored: computed here, as eager code would."""

    def __init__(self, mask: str | None) -> None:
        self._mask = mask  # the name under which the mask was kept

    def family(self, node: Node) -> str:
        return "product"

    def kept(self, node: Node) -> Args:
        fn = node.fn
        mask = None if self._mask is None or len(node.edges) < 4 else getattr(fn, self._mask)
        return [fn._saved_query, fn._saved_key, fn._saved_value, mask, *[None] * (len(node.edges) - 4)][: len(node.edges)]

    def result(self, node: Node) -> Relevance | None:
        return None if node.several or node.nr else node.fn._saved_output

    def needs(self, node: Node) -> Sequence[int]:
        return [at for at in range(3) if node.edges[at] is not None]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        fn = node.fn
        q, k, v = args[:3]
        if fn._saved_dropout_p:
            raise unknown(node, "attention with dropout drew a mask that was not kept; call model.eval() first")
        eps = node.choice.eps
        # The kernels of half dtypes add in float32: shares of sums that were rounded on the way would be off by a tenth.
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        if wide is not dtype:
            q, k, v, R = (tensor.to(wide) for tensor in (q, k, v, R))
        shape, sizes, rows = q.shape, k.shape, k.shape[:-2].numel()
        # As batches of matrices; several heads that share a key see it one after the other, as more queries.
        q, k, v = q.reshape(rows, -1, shape[-1]), k.flatten(0, -3), v.flatten(0, -3)
        scale = 1 / math.sqrt(shape[-1]) if fn._saved_scale is None else fn._saved_scale
        scores = torch.bmm(q, k.mT)
        scaled = scores * scale
        mask = None if self._mask is None else getattr(fn, self._mask)
        x = self._masked(scaled.reshape(*shape[:-1], -1), mask, fn._saved_is_causal)
        s = torch.softmax(x, -1)
        s = torch.nan_to_num(s, nan=0.0) if mask is not None else s  # a row that is masked throughout
        attention = s.reshape(scores.shape)
        out = fn._saved_output.reshape(rows, -1, v.shape[-1]) if wide is dtype and eps else torch.bmm(attention, v)
        half = divide(R.reshape(out.shape), out, eps, 2)
        R_s = torch.bmm(half, v.mT).mul_(attention)
        R_v = torch.bmm(attention.mT, half).mul_(v)
        # Without a mask nothing overflows: where s is 0, so is its relevance.
        R_x = _inner(attention, R_s, -1).mul_(scaled) if mask is None else through_softmax(x, s, R_s.reshape(s.shape), -1)
        R_mask = None
        if mask is not None and mask.dtype != torch.bool and node.rules.bias == "absorb":
            share = divide(R_x, torch.where(s == 0, torch.ones_like(x), x), eps)
            if 3 in node.walked:
                R_mask = (share * mask).sum_to_size(mask.shape)
            R_x = torch.where(s == 0, s, torch.where(mask == 0, R_x, share * scaled.reshape(s.shape)))
        half = divide(R_x.reshape(scores.shape), scores, eps, 2)
        R_q, R_k = torch.bmm(half, k).mul_(q).reshape(shape), torch.bmm(half.mT, q).mul_(k).reshape(sizes)
        R_v = R_v.reshape(*sizes[:-1], -1)
        if wide is not dtype:
            R_q, R_k, R_v = R_q.to(dtype), R_k.to(dtype), R_v.to(dtype)
        return [R_q, R_k, R_v, R_mask, *[None] * (len(node.edges) - 4)][: len(node.edges)]

    def _masked(self, x: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if causal:
            x = x.masked_fill(torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu_(1), -math.inf)
        if mask is None:
            return x
        return x.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else x + mask


register(Softmax(), "SoftmaxBackward0", "SafeSoftmaxBackward0", "MaskedSoftmaxBackward0")
register(CustomSoftmax(), "XSoftmaxBackward")  # of transformers' SEW-D
register(LogSoftmax(), "LogSoftmaxBackward0")
register(Attention("_saved_attn_mask"), "ScaledDotProductFlashAttentionForCpuBackward0")
register(Attention(None), "ScaledDotProductFlashAttentionBackward0")
register(
    Attention("_saved_attn_bias"),
    "ScaledDotProductEfficientAttentionBackward0",
    "ScaledDotProductCudnnAttentionBackward0",
    "ScaledDotProductFusedAttentionOverrideableBackward0",
)
