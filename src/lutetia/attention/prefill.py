"""`prefill`: the prompt's own attention, by torch's scaled_dot_product_attention."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lutetia.attention.arguments import INTEGERS, QUERIES, check_int
from lutetia.errors import ArgumentError, check_memory, check_range, check_tensor


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
    alibi: Tensor | None = None,
) -> Tensor:
    """Causal attention of many new tokens: q [B, H_q, S, d], k and v [B, H_kv, S_k, d] -> out [B, H_q, S, d], with gradients.

    `lengths` [B] says how many of the S are real; out is zero past them. Without `start` the tokens are the first of their rows,
    and keys past S are ignored. With it, integers [B], token i of row b is at position start[b] + i, and k and v are the cache,
    the new keys already in it. `scale`, `window`, `sink` [H_q] and `alibi` [H_q] as in `decode_attention`.
    """
    _check(q, k, v, {"lengths": lengths, "start": start}, {"sink": sink, "alibi": alibi}, scale, window)
    n = q.shape[2]
    if start is None:
        k, v = k[:, :, :n], v[:, :, :n]
    if q.numel() == 0:
        return torch.empty_like(q)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}
    if start is None and window is None and sink is None and alibi is None:
        out = scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    else:
        distance = _distance(q, k.shape[2], start)
        seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        k, v = (_alive(cache, seen) for cache in (k, v))
        mask = seen[:, None] if sink is None and alibi is None else _scores(q, seen, distance, alibi)
        out = _masked(q, k, v, mask, sink, options)
    if lengths is None:
        return out
    real = torch.arange(n, device=q.device) < lengths.to(q.device)[:, None]
    return out.where(real[:, None, :, None], 0)


def _distance(q: Tensor, n_keys: int, start: Tensor | None) -> Tensor:
    """How far back each key lies from each token: [B, S, n_keys]."""
    at = torch.arange(q.shape[2], device=q.device).expand(q.shape[0], -1)
    if start is not None:
        at = at + start.to(q.device)[:, None]
    return at[..., None] - torch.arange(n_keys, device=q.device)


def _scores(q: Tensor, seen: Tensor, distance: Tensor, alibi: Tensor | None) -> Tensor:
    """What is added to scores, [B, H_q, S, n_keys]: -alibi · distance where a key is seen, -inf elsewhere."""
    bias = torch.zeros(seen.shape, dtype=q.dtype, device=q.device)[:, None]
    if alibi is not None:
        bias = -alibi.to(q.dtype)[:, None, None] * distance[:, None]
    return bias.masked_fill(~seen[:, None], -torch.inf).expand(-1, q.shape[1], -1, -1)


def _alive(cache: Tensor, seen: Tensor) -> Tensor:
    """k or v [B, H_kv, n_keys, d], zero where no token looks: a NaN there would survive the mask."""
    return cache.where(seen.any(1)[:, None, :, None], 0)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sink: Tensor | None, options: dict[str, Any]) -> Tensor:
    """Attention with a mask [B, 1 or H_q, S, n_keys]; a sink becomes a key of zeros whose score is in the mask."""
    if sink is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)
    nothing = k.new_zeros(*k.shape[:2], 1, k.shape[3])
    k, v = torch.cat([k, nothing], 2), torch.cat([v, nothing], 2)
    bias = sink.to(q.dtype)[:, None, None].expand(q.shape[0], -1, q.shape[2], 1)
    return scaled_dot_product_attention(q, k, v, attn_mask=torch.cat([mask, bias], -1), **options)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: dict[str, Tensor | None],
    heads: dict[str, Tensor | None],
    scale: float | None,
    window: int | None,
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
            if not q.is_meta:
                check_memory(name, value)
    if window is not None:
        check_int("window", window, 1)
    if scale is not None:
        check_range("scale", scale, -sys.float_info.max, sys.float_info.max)
    for name, value in heads.items():
        if value is not None:
            check_tensor(name, value, [q.shape[1]], QUERIES, q.device)
