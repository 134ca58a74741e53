"""Cascades: a prefix that all rows share is read once for the queries of the whole batch, and its result is merged with the rest.

out = Σ_i exp(lse_i - lse) · out_i        lse = log Σ_i exp lse_i
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lutetia.attention.arguments import DecodeCall
from lutetia.attention.rotary import turned

Result = tuple[Tensor, Tensor]


def cascade(call: DecodeCall, decode: Callable[[DecodeCall], Result]) -> Result:
    """out [B, H_q, s_active, d] and lse [B, H_q, s_active] of a call with a prefix, from two calls of an executor without one."""
    assert call.prefix is not None
    length, call = call.prefix.length, turned(call)
    own = call._replace(prefix=None, sink=None, starts=torch.full_like(call.seq_lens, length).minimum(call.seq_lens))
    own = own._replace(q=call.q.to(call.statistics_dtype))  # nothing is rounded before both parts are together
    out, lse = join([unfold(decode(fold(call)), call), decode(own)], call.sink)
    return out.to(call.q.dtype), lse


def fold(call: DecodeCall) -> DecodeCall:
    """The prefix alone: one row, in which all queries of the batch that read a key head are heads of that key head."""
    assert call.prefix is not None
    length, k, v, table, k_scale, v_scale = call.prefix
    parts = (call.batch, call.n_kv_heads, call.group * call.s_active, call.head_dim)
    q = call.q.to(call.statistics_dtype).reshape(parts).transpose(0, 1).reshape(1, -1, 1, call.head_dim)
    row: dict[str, Any] = {"page_table": table[:1]} if table is not None else {"k_cache": k[:1], "v_cache": v[:1]}
    if table is None:
        for name, factor in (("k_scale", k_scale), ("v_scale", v_scale)):
            row[name] = factor[:1] if factor is not None and factor.dim() == 3 else factor
    nothing: dict[str, Any] = dict.fromkeys(("k_new", "v_new", "sink", "prefix", "tree"))
    return call._replace(q=q, seq_lens=call.seq_lens.new_full((1,), length), alibi=slopes_of_rows(call), **row, **nothing)


def slopes_of_rows(call: DecodeCall) -> Tensor | None:
    """The slopes of the heads that `fold` makes: [H_kv · B · G · s_active]."""
    if call.alibi is None:
        return None
    slopes = call.alibi.reshape(call.n_kv_heads, 1, call.group, 1)
    return slopes.expand(-1, call.batch, -1, call.s_active).reshape(-1)


def unfold(result: Result, call: DecodeCall) -> Result:
    """Undo `fold`: the results in the shapes of the call, out [B, H_q, s_active, d] and lse [B, H_q, s_active]."""
    assert call.prefix is not None
    parts = (call.n_kv_heads, call.batch, call.group * call.s_active)
    out = result[0].reshape(*parts, call.value_dim).transpose(0, 1).reshape(call.out_shape)
    lse = result[1].reshape(parts).transpose(0, 1).reshape(call.q.shape[:-1])
    if call.alibi is not None:  # the queries of `fold` are at the last position of the prefix, and these further on
        beyond = call.seq_lens[:, None] - call.s_active + torch.arange(call.s_active, device=lse.device) - call.prefix.length + 1
        lse = lse - call.alibi.to(lse.dtype)[:, None] * beyond[:, None]
    empty = (call.seq_lens < call.prefix.length)[:, None, None]
    return out.masked_fill(empty[..., None], 0), lse.masked_fill(empty, -torch.inf)  # 0 times NaN would be NaN


def join(parts: list[Result], sink: Tensor | None) -> Result:
    """Merge attention over several ranges of keys, each out [B, H_q, s, d] and lse [B, H_q, s], and a sink [H_q]."""
    logits = torch.stack([lse for _, lse in parts])
    if sink is not None:
        logits = torch.cat([logits, sink.to(logits.dtype)[:, None].expand(1, *logits.shape[1:])])
    lse = torch.logsumexp(logits, 0)
    weights = torch.exp(logits - lse.masked_fill(lse == -torch.inf, 0))
    outs = torch.stack([out for out, _ in parts])
    return (outs * weights[: len(parts), ..., None]).sum(0), lse
