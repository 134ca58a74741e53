"""`SoftmaxAttention`: causal attention with rotary positions and grouped queries, and its decoding through a KV cache."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.attention import KVCache, decode_attention
from lutetia.errors import check_tensor, fail
from lutetia.models.building import STD, linear

FIRST_TURNS = 8192  # positions whose rotary angles are worked out at once; more when a text has more


class SoftmaxCache(KVCache):
    """A KV cache that can be reordered."""

    def __init__(self, batch: int, attention: SoftmaxAttention, length: int) -> None:
        weight = attention.key.weight
        sizes = (batch, attention.n_kv_heads, length, attention.head_dim)
        super().__init__(*sizes, dtype=weight.dtype, device=weight.device)

    def held(self) -> list[int]:
        """How many tokens each row holds; the device is asked only when something other than `append` changed it."""
        check_tensor("cache.k", self.k, ["B", "n_kv_heads", "context", "head_dim"])
        check_tensor("cache.v", self.v, [*self.k.shape], self.k.dtype, self.k.device)
        check_tensor("cache.lengths", self.lengths, [len(self.k)], torch.int32, self.k.device)
        if not all(tensor.is_contiguous() for tensor in (self.k, self.v, self.lengths)):
            fail("cache", self, "contiguous tensors, as new_cache makes them")
        return self._host_lengths()

    def clear(self) -> None:
        """Forget all tokens."""
        self.reset()

    def reorder(self, rows: Tensor) -> None:
        """Make row b the former row rows[b], an integer tensor [any B] in the memory of the host."""
        here = rows.to(self.k.device)
        self.k, self.v, self.lengths = self.k[here], self.v[here], self.lengths[here]


class SoftmaxAttention(nn.Module):
    """x [B, S, width] -> y [B, S, width]; query head h reads the keys and values of head h // (n_heads / n_kv_heads).

    turns   buffer [2, n, d / 2], not saved: cosines and sines of the rotary positions, of as many as were needed
    """

    turns: Tensor

    def __init__(
        self, width: int, n_heads: int, n_kv_heads: int, context: int, *, rope_base: float = 10000.0, out_std: float = STD
    ) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim, self.context = n_heads, n_kv_heads, width // n_heads, context
        self.query = linear(width, width, bias=False)
        self.key = linear(width, n_kv_heads * self.head_dim, bias=False)
        self.value = linear(width, n_kv_heads * self.head_dim, bias=False)
        self.out = linear(width, width, bias=False, std=out_std)
        self.rope_base = float(rope_base)
        self.register_buffer("turns", self._turns(min(context, FIRST_TURNS)), persistent=False)
        self.cores, self.shard, self.backend = 1, "auto", "auto"  # options of lutetia.attention.decode_attention

    def forward(self, x: Tensor, lengths: Tensor | None = None, cache: SoftmaxCache | None = None) -> Tensor:
        """x [B, S, width] -> y [B, S, width]. With a `cache` x holds only the positions that follow those in it, of which
        `lengths` [B] are real."""
        q, k, v = (self._heads(project(x)) for project in (self.query, self.key, self.value))
        if cache is None:
            turn = self._turns_up_to(x.shape[1])[:, : x.shape[1]]
            y = _attend(_turned(q, turn), _turned(k, turn), v, None)
        else:
            y = self._decode(q, k, v, lengths, cache)
        return self.out(y.transpose(1, 2).flatten(2))

    def new_cache(self, batch: int, length: int | None = None) -> SoftmaxCache:
        """An empty cache for `batch` sequences of at most `length` positions, `context` by default."""
        return SoftmaxCache(batch, self, self.context if length is None else min(length, self.context))

    def _decode(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, cache: SoftmaxCache) -> Tensor:
        """y [B, H, s, d] of new positions, whose keys and values join the cache."""
        held, s = cache.held(), q.shape[2]
        fresh, reach = not any(held), min(max(held, default=0) + s, self.context)
        where = cache.lengths.long()[:, None] + torch.arange(s, device=q.device)  # [B, s]
        turn = self._turns_up_to(reach)[:, where[:, None].clamp(max=reach - 1)]  # the cache says where there is no room for more
        q, k, v = (each.to(cache.k.dtype) for each in (_turned(q, turn), _turned(k, turn), v))
        cache.append(k, v, lengths)
        if fresh:  # past its length a row sees padding, and nobody looks there
            return _attend(q, k, v, None)
        if s == 1 and lengths is None:
            options: dict[str, Any] = {"cores": self.cores, "shard": self.shard, "backend": self.backend}
            return decode_attention(q, cache.k, cache.v, seq_lens=cache.lengths, **options)[0]
        reached = max(cache.held())
        seen = torch.arange(reached, device=q.device) <= where[:, :, None]  # [B, s, reached]
        return _attend(q, cache.k[:, :, :reached], cache.v[:, :, :reached], seen[:, None])

    def _heads(self, x: Tensor) -> Tensor:
        """[B, S, heads · d] -> [B, heads, S, d]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _turns_up_to(self, n: int) -> Tensor:
        """The rotations of at least n positions: a context that no text reaches takes no memory."""
        if n > self.turns.shape[1]:
            self.turns = self._turns(min(self.context, 1 << (n - 1).bit_length()))
        return self.turns

    def _turns(self, n: int) -> Tensor:
        """Cosines and sines of n positions, [2, n, d / 2], never in half precision, which would blur them."""
        weight, half = self.key.weight, self.head_dim // 2
        work = torch.promote_types(weight.dtype, torch.float32)
        speed = self.rope_base ** (torch.arange(half, device=weight.device, dtype=work) / -half)
        angle = torch.arange(n, device=weight.device).to(work)[:, None] * speed
        return torch.stack([angle.cos(), angle.sin()])

    def _apply(self, *args: Any, **options: Any) -> SoftmaxAttention:
        """As in any module; the rotations are recomputed in the dtype of the weights, but never in half precision."""
        super()._apply(*args, **options)
        self.turns = self._turns(self.turns.shape[1])
        return self


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """x [B, heads, S, d] rotated by the angles of its positions [2, .., S, d / 2]: element i pairs with i + d / 2."""
    cos, sin = turn.unbind()
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """q [B, H, s, d], k and v [B, H_kv, S, d] -> [B, H, s, d], each position with those seen, a bool tensor, or those before."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None, enable_gqa=grouped)
