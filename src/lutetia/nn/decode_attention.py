"""`DecodeAttention`: softmax self-attention that trains on whole sequences and generates from a cache."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from lutetia._shared.dtypes import FLOATS
from lutetia.attention import FEW_ACTIVE, MAX_HEAD_DIM, KVCache, check_int, decode_attention, prefill, turn
from lutetia.errors import ArgumentError, check_range, check_tensor, fail
from lutetia.nn.projected_lut import check_dtype_of

MAX_SIZE = 2**20  # inputs or heads


class DecodeAttention(nn.Module):
    """Causal attention of n_heads query heads over n_kv_heads key heads: x [B, S, n_inputs] -> y [B, S, n_inputs].

    Without a cache it is an ordinary layer, with gradients. With one, x holds the tokens that follow those in it, and y is
    theirs: up to eight tokens a step run through `lutetia.attention.decode_attention`, longer pieces through `prefill`.

        q, k, v, out   Linear layers: n_inputs to n_heads · head_dim, twice to n_kv_heads · head_dim, and back
        sink           Parameter [n_heads] with `sink=True`: a logit of each head that joins its softmax sum; zero at first

    `window` limits how far a token looks back, itself included. `rope_base` rotates queries and keys by their positions (10000 is
    usual), `alibi=True` gives head i of n the slope 2^(-8i/n). `backend` is that of `decode_attention`.
    """

    angles: Tensor | None
    slopes: Tensor | None

    def __init__(
        self,
        n_inputs: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        *,
        head_dim: int | None = None,
        window: int | None = None,
        sink: bool = False,
        rope_base: float | None = None,
        alibi: bool = False,
        bias: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_int("n_inputs", n_inputs, 1, MAX_SIZE)
        check_int("n_heads", n_heads, 1, MAX_SIZE)
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_int("n_kv_heads", n_kv_heads, 1, MAX_SIZE)
        if n_heads % n_kv_heads:
            raise ArgumentError(f"n_heads is {n_heads} and n_kv_heads {n_kv_heads}, expected a multiple of n_kv_heads")
        if head_dim is None:
            if n_inputs % n_heads:
                fail("n_inputs", n_inputs, f"a multiple of n_heads {n_heads}, or a head_dim")
            head_dim = n_inputs // n_heads
        check_int("head_dim", head_dim, 1, MAX_HEAD_DIM)
        if window is not None:
            check_int("window", window, 1)
        self.n_inputs, self.n_heads, self.n_kv_heads, self.head_dim = n_inputs, n_heads, n_kv_heads, head_dim
        if rope_base is not None:
            check_range("rope_base", rope_base, 1.0, 1e12)
            if head_dim % 2:
                fail("head_dim", head_dim, "an even number: rotary positions rotate pairs of elements")
        self.window, self.rope_base, self.backend = window, rope_base, backend
        options: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.q = nn.Linear(n_inputs, n_heads * head_dim, **options)
        self.k = nn.Linear(n_inputs, n_kv_heads * head_dim, **options)
        self.v = nn.Linear(n_inputs, n_kv_heads * head_dim, **options)
        self.out = nn.Linear(n_heads * head_dim, n_inputs, **options)
        self.sink = nn.Parameter(torch.zeros(n_heads, device=device, dtype=dtype)) if sink else None
        slopes = 2.0 ** (-8.0 * torch.arange(1, n_heads + 1, device=device) / n_heads) if alibi else None
        self.register_buffer("slopes", slopes, persistent=False)
        self.register_buffer("angles", None, persistent=False)

    def forward(self, x: Tensor, lengths: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        """x [B, S, n_inputs] -> y [B, S, n_inputs]; positions past `lengths`, integers [B], neither see nor are seen.

        With a `cache` S and `lengths` count the new tokens only. A step that does not fit is an error and leaves the cache as
        it was.
        """
        check_tensor("x", x, ["B", "S", self.n_inputs], FLOATS)
        check_dtype_of(self.q, x)
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        y = self._whole(q, k, v, lengths) if cache is None else self._step(q, k, v, lengths, cache)
        return self.out(y.transpose(1, 2).flatten(2))

    def new_cache(self, batch: int, max_length: int, dtype: torch.dtype | None = None) -> KVCache:
        """An empty cache for `batch` sequences of up to `max_length` tokens, in the dtype of the layer unless given."""
        weight = self.k.weight
        return KVCache(batch, self.n_kv_heads, max_length, self.head_dim, dtype=dtype or weight.dtype, device=weight.device)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, S, heads · d] -> [B, heads, S, d]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _whole(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        if self.rope_base is not None:
            angles = self._angles(q.shape[2])[:, None, : q.shape[2]]
            q, k = turn(q, angles), turn(k, angles)
        return prefill(q, k, v, lengths=lengths, window=self.window, sink=self.sink, alibi=self.slopes)

    @torch.no_grad()
    def _step(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, cache: KVCache) -> Tensor:
        """Attention of q [B, n_heads, s, d] over the cache, to which k and v [B, n_kv_heads, s, d] are appended."""
        if not isinstance(cache, KVCache):
            fail("cache", cache, "a KVCache, made with new_cache")
        check_tensor("cache.k", cache.k, ["B", "n_kv_heads", "max_length", "head_dim"], device=q.device)
        check_tensor("cache.v", cache.v, [*cache.k.shape], cache.k.dtype, q.device)
        check_tensor("cache.lengths", cache.lengths, [len(cache.k)], torch.int32, q.device)
        if not all(tensor.is_contiguous() for tensor in (cache.k, cache.v, cache.lengths)):
            fail("cache", cache, "contiguous tensors, as new_cache makes them")
        if cache.owner is not None and cache.owner() is not self:
            fail("cache", cache, "a cache that this layer has filled, and no other: reset() forgets its tokens")
        start, angles = cache.lengths.clone(), None
        if self.rope_base is not None:
            angles = self._angles(cache.max_length)
            at = start.long()[:, None] + torch.arange(q.shape[2], device=q.device)
            turns = angles[:, at.clamp(max=cache.max_length - 1)]  # the cache says where there is no room for more
            k = turn(k, turns)
        cache.append(k, v, lengths)
        cache.owner = weakref.ref(self)
        if lengths is None and 1 <= q.shape[2] <= FEW_ACTIVE:
            options: dict[str, Any] = {"k_scale": cache.k_scale, "v_scale": cache.v_scale, "backend": self.backend}
            options |= {"window": self.window, "sink": self.sink, "alibi": self.slopes, "rotary": angles}
            return decode_attention(q, cache.k, cache.v, seq_lens=cache.lengths, **options)[0]
        q = q if angles is None else turn(q, turns)
        keys, values = _as_queries(cache.k, cache.k_scale, q), _as_queries(cache.v, cache.v_scale, q)
        return prefill(q, keys, values, lengths=lengths, start=start, window=self.window, sink=self.sink, alibi=self.slopes)

    def _angles(self, n: int) -> Tensor:
        """Cosines and sines of at least n positions, [2, n, head_dim / 2]; never in half precision, which is too coarse."""
        weight, half = self.k.weight, self.head_dim // 2
        work = torch.promote_types(weight.dtype, torch.float32)
        if self.angles is None or self.angles.shape[1] < n or (self.angles.dtype, self.angles.device) != (work, weight.device):
            assert self.rope_base is not None
            speed = self.rope_base ** (torch.arange(half, device=weight.device, dtype=work) / -half)
            angle = torch.arange(n, device=weight.device).to(work)[:, None] * speed
            self.angles = torch.stack([angle.cos(), angle.sin()])
        return self.angles

    def extra_repr(self) -> str:
        """The sizes, and what differs from the defaults."""
        parts = [f"n_inputs={self.n_inputs}, n_heads={self.n_heads}, n_kv_heads={self.n_kv_heads}, head_dim={self.head_dim}"]
        if self.window is not None:
            parts.append(f"window={self.window}")
        if self.sink is not None:
            parts.append("sink=True")
        if self.rope_base is not None:
            parts.append(f"rope_base={self.rope_base:g}")
        if self.slopes is not None:
            parts.append("alibi=True")
        return ", ".join(parts)


def _as_queries(cache: Tensor, scale: Tensor | None, q: Tensor) -> Tensor:
    """k or v of a cache [B, H_kv, S_max, d] in the dtype of q."""
    if scale is None:
        return cache.to(q.dtype)
    return (cache.float() * (scale[..., None] if scale.dim() == 3 else scale[:, None, None])).to(q.dtype)
