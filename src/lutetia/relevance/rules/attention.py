"""Softmax, and scaled dot-product attention in one node: equal to the eager computation, to rounding."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance, unknown
from lutetia.relevance.registry import Args, Given, Op, divide, register, scalar
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
        # The kernels of half dtypes add in float32: shares of sums that were rounded on the way would be off by a tenth.
        dtype, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        out = fn._saved_output if wide is dtype and node.choice.eps else None
        if wide is not dtype:
            q, k, v, R = (tensor.to(wide) for tensor in (q, k, v, R))
        shape, sizes, rows = q.shape, k.shape, k.shape[:-2].numel()
        # As batches of matrices; several heads that share a key see it one after the other, as more queries.
        q, R = (tensor.reshape(rows, -1, *tensor.shape[-2:]) for tensor in (q, R))
        out = None if out is None else out.reshape(R.shape)
        k, v = k.flatten(0, -3), v.flatten(0, -3)
        mask = None if self._mask is None else getattr(fn, self._mask)
        scale = 1 / math.sqrt(shape[-1]) if fn._saved_scale is None else fn._saved_scale
        scores = Scores(shape[:-2], mask, fn._saved_is_causal, scale, node)
        R_q: list[Tensor] = []
        R_k = R_v = R_mask = None
        for start, stop, end in scores.blocks(q, k):
            known = None if out is None else _queries(out, start, stop)
            some = (_queries(q, start, stop), _queries(R, start, stop), known)
            seen = (k, v) if end == k.shape[1] else (k[:, :end], v[:, :end])
            part, to_k, to_v, R_mask = scores.shares(*some, *seen, start)
            R_q.append(part.reshape(rows, -1, stop - start, shape[-1]))
            if R_k is None or R_v is None:  # the last queries, which see every key
                R_k, R_v = to_k, to_v
            else:
                R_k[:, :end] += to_k
                R_v[:, :end] += to_v
        assert R_k is not None
        assert R_v is not None
        of_q = R_q[0] if len(R_q) == 1 else torch.cat(R_q[::-1], 2)
        given = [of_q.mul_(q).reshape(shape), R_k.mul_(k).reshape(sizes), R_v.mul_(v).reshape(*sizes[:-1], -1)]
        if wide is not dtype:
            given = [each.to(dtype) for each in given]
        return [*given, R_mask, *[None] * (len(node.edges) - 4)][: len(node.edges)]


def _queries(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Some queries of [rows, heads, queries, ...], as [rows, heads·queries, ...]."""
    return (tensor if stop - start == tensor.shape[2] else tensor[:, :, start:stop]).flatten(1, 2)


LARGEST = {"cpu": 1 << 17}  # scores that are taken at once: larger blocks leave the cache
OTHERWISE = 1 << 26  # where every step is a launch
FEWEST = 16  # queries of a block


class Scores:
    """softmax(q kᵀ · scale + mask) and how relevance passes it, for a block of queries at a time.

    A causal mask leaves half of the scores: the first queries are not compared with the last keys.
    """

    def __init__(self, heads: torch.Size, mask: Tensor | None, causal: bool, scale: float, node: Node) -> None:
        self._heads, self._mask, self._causal, self._scale = heads, mask, causal, scale
        self._eps, self._walked, self._bias = node.choice.eps, node.walked, node.rules.bias

    def blocks(self, q: Tensor, k: Tensor) -> Iterator[tuple[int, int, int]]:
        """Of each block the first query and the one after the last, and how many keys they see; the last block first."""
        queries, keys = q.shape[2], k.shape[1]
        most = LARGEST.get(q.device.type, OTHERWISE)
        step = queries if 3 in self._walked else max(most // max(q.shape[0] * q.shape[1] * keys, 1), FEWEST)
        for start in reversed(range(0, max(queries, 1), step)):
            stop = min(start + step, queries)
            yield start, stop, (stop if self._causal and keys == queries else keys)

    def shares(self, q: Tensor, R: Tensor, out: Tensor | None, k: Tensor, v: Tensor, start: int) -> tuple[Any, ...]:
        """Relevance of the queries, keys, values and the mask, before each is multiplied with its value.

        q, R and out: [rows, heads·queries, ...], the queries from `start` on; k and v: [rows, keys, ...].
        """
        scaled = self._product(q, k.mT)
        mask, eps = self._mask, self._eps
        x = self._masked(scaled, start)
        if mask is None:  # `scaled` changed in place
            s = attention = torch.softmax(scaled, -1)
        else:
            s = torch.nan_to_num(torch.softmax(x, -1), nan=0.0)  # a row that is masked throughout
            attention = s.reshape(scaled.shape)
        half = divide(R, torch.bmm(attention, v) if out is None else out, eps, 2)
        R_s = torch.bmm(half, v.mT).mul_(attention)
        R_v = torch.bmm(attention.mT, half)
        # Without a mask nothing overflows: where s is 0, so is its relevance.
        R_x = _inner(attention, R_s, -1).mul_(scaled) if mask is None else through_softmax(x, s, R_s.reshape(s.shape), -1)
        R_mask = None
        if mask is not None and mask.dtype != torch.bool and self._bias == "absorb":
            mask = self._rows(mask, x, start)
            share = divide(R_x, torch.where(s == 0, torch.ones_like(x), x), eps)
            if 3 in self._walked:
                R_mask = (share * mask).sum_to_size(mask.shape)
            R_x = torch.where(s == 0, s, torch.where(mask == 0, R_x, share * scaled.reshape(s.shape)))
        # The scores themselves have no scale: R / (2·(scores + ε·sgn)), with numerator and denominator times the scale.
        half = divide(R_x if mask is None else R_x.reshape(scaled.shape), scaled, abs(self._scale) * eps, 2)
        return self._product(half, k), self._product(half.mT, q), R_v, R_mask

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b · scale, for batches of matrices."""
        return torch.baddbmm(scalar(0.0, b.dtype, b.device), a, b, beta=0, alpha=self._scale)

    def _rows(self, mask: Tensor, x: Tensor, start: int) -> Tensor:
        """The rows of a mask that broadcasts to all scores [..., queries, keys] for a block of them, x."""
        return mask if mask.dim() < 2 or mask.shape[-2] == 1 else mask[..., start : start + x.shape[-2], :]

    def _masked(self, scaled: Tensor, start: int) -> Tensor:
        """Scores with the mask, [*heads, queries, keys]; `scaled` changes only where nothing is read."""
        x = scaled.view(*self._heads, -1, scaled.shape[-1])
        if self._causal:
            later = _later(x.shape[-2], x.shape[-1], start, x.device)
            x.masked_fill_(later, torch.finfo(x.dtype).min / 4)  # whose exponential is 0
        if self._mask is None:
            return x
        mask = self._rows(self._mask, x, start)
        return x.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else x + mask


@functools.lru_cache(maxsize=4)
def _later(queries: int, keys: int, start: int, device: torch.device) -> Tensor:
    """Which keys come after each of the queries from `start` on: all layers of a model ask for the same."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu_(start + 1)


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
