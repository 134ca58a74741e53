"""`prefill`: the prompt's own attention, by torch's scaled_dot_product_attention."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lutetia.attention.arguments import INTEGERS, QUERIES, check_int
from lutetia.errors import ArgumentError, check_range, check_tensor


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lengths: Tensor | None = None,
    start: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """Causal attention of many new tokens: q [B, H_q, S, d], k and v [B, H_kv, S_k, d] -> out [B, H_q, S, d], with gradients.

    `lengths` [B] says how many of the S are real; out is zero past them. Without `start` the tokens are the first of their rows,
    and keys past S are ignored. With it, integers [B], token i of row b is at position start[b] + i, and k and v are the cache,
    the new keys already in it. `scale`, `window` and `sink` [H_q] as in `decode_attention`.
    """
    _check(q, k, v, {"lengths": lengths, "start": start}, scale, window, sink)
    n = q.shape[2]
    if start is None:
        k, v = k[:, :, :n], v[:, :, :n]
    if q.numel() == 0:
        return torch.empty_like(q)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if start is None and window is None and sink is None:
        out = scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    else:
        seen = _seen(q, k.shape[2], start, window)
        k, v = (_alive(cache, seen) for cache in (k, v))
        out = _masked(q, k, v, seen, sink, options)
    if lengths is None:
        return out
    real = torch.arange(n, device=q.device) < lengths.to(q.device)[:, None]
    return out.where(real[:, None, :, None], 0)


def _seen(q: Tensor, n_keys: int, start: Tensor | None, window: int | None) -> Tensor:
    """Which keys each token sees: bool [B, S, n_keys]."""
    at = torch.arange(q.shape[2], device=q.device).expand(q.shape[0], -1)
    if start is not None:
        at = at + start.to(q.device)[:, None]
    key = torch.arange(n_keys, device=q.device)
    seen = key <= at[..., None]
    return seen if window is None else seen & (key > at[..., None] - window)


def _alive(cache: Tensor, seen: Tensor) -> Tensor:
    """k or v [B, H_kv, n_keys, d], zero where no token looks: a NaN there would survive the mask."""
    return cache.where(seen.any(1)[:, None, :, None], 0)


def _masked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sink: Tensor | None, options: dict[str, Any]) -> Tensor:
    """With a mask [B, S, n_keys]; a sink becomes a key of zeros whose score the mask brings."""
    if sink is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None], **options)
    nothing = k.new_zeros(*k.shape[:2], 1, k.shape[3])
    k, v = torch.cat([k, nothing], 2), torch.cat([v, nothing], 2)
    mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(~seen, -torch.inf)
    mask = mask[:, None].expand(-1, q.shape[1], -1, -1)
    bias = sink.to(q.dtype)[:, None, None].expand(q.shape[0], -1, q.shape[2], 1)
    return scaled_dot_product_attention(q, k, v, attn_mask=torch.cat([mask, bias], -1), **options)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: dict[str, Tensor | None],
    scale: float | None,
    window: int | None,
    sink: Tensor | None,
) -> None:
    check_tensor("q", q, ["B", "H_q", "S", "d"], QUERIES)
    check_tensor("k", k, [q.shape[0], "H_kv", "S_k", q.shape[3]], q.dtype, q.device)
    check_tensor("v", v, list(k.shape), q.dtype, q.device)
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        raise ArgumentError(f"q has {q.shape[1]} heads and k {k.shape[1]}, expected a multiple of the heads of k")
    if rows["start"] is None and k.shape[2] < q.shape[2]:
        raise ArgumentError(f"q has {q.shape[2]} tokens and k {k.shape[2]}, expected no more than there are keys")
    for name, value in rows.items():
        if value is not None:
            check_tensor(name, value, [q.shape[0]], INTEGERS)
    if window is not None:
        check_int("window", window, 1)
    if scale is not None:
        check_range("scale", scale, -sys.float_info.max, sys.float_info.max)
    if sink is not None:
        check_tensor("sink", sink, [q.shape[1]], QUERIES, q.device)
