"""Decode attention in plain torch: the definition that every executor is compared with.

    S = scale · Q Kᵀ, masked to -inf      lse = log(Σ exp S + exp sink)      out = exp(S - lse) V

Query a of a row of length L is at position p = L - s_active + a and sees the keys at max(start, p - window + 1) .. p. With a
tree it sees all keys before the new ones, and of those what the tree says.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia._shared.dtypes import without_rounding
from lutetia.attention.arguments import EIGHT_BITS, DecodeCall
from lutetia.attention.rotary import turned


def decode(call: DecodeCall) -> tuple[Tensor, Tensor]:
    """out [B, H_q, s_active, d_v] in the dtype of q, and lse [B, H_q, s_active]."""
    with without_rounding():
        call = turned(call)
        write_new(call)
        k, v = live_keys(call)
        return attend(call, k, v)


# ---- the cache -------------------------------------------------------------------------------------------------------


def write_new(call: DecodeCall) -> None:
    """Write k_new and v_new into the last s_active live slots of each row; tokens before position 0 are left out."""
    if call.k_new is None:
        return
    position = call.seq_lens[:, None] - call.s_active + torch.arange(call.s_active, device=call.q.device)  # [B, s_active]
    row, a = torch.nonzero(position >= 0, as_tuple=True)
    put(call, row, a, position[row, a])


def put(call: DecodeCall, row: Tensor, a: Tensor, position: Tensor) -> None:
    """Write new tokens a [n] of rows [n] into the slots of these positions [n]."""
    assert call.k_new is not None
    assert call.v_new is not None
    at, slot = slots(call, row, position)
    place = (at, slice(None), slot) if call.page_table is None else (at, slot)
    pairs = [(call.k_cache, call.k_new, call.k_scale), (call.v_cache, call.v_new, call.v_scale)]
    for cache, new, factor in pairs[:1] if call.shared else pairs:
        stored, scales = to_cache(new, cache.dtype, factor)
        as_bytes(cache)[place] = as_bytes(stored)[row, :, a]
        if scales is not None and factor is not None:
            factor[place] = scales[row, :, a]


def to_cache(new: Tensor, dtype: torch.dtype, factor: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """new [B, H_kv, s, d] as a cache of this dtype stores it: divided by its scale [H_kv] and clamped to the range of 8 bits.
    Per-token scales (a factor of three dimensions) map each token's largest number to the end of that range, and are returned,
    too: float32 [B, H_kv, s].
    """
    limit, scales = EIGHT_BITS.get(dtype), None
    if factor is not None:
        new = new.to(torch.promote_types(new.dtype, torch.float32))
        if factor.dim() == 3:
            assert limit is not None
            scales = new.abs().amax(-1).float() / limit
            scales = torch.where(scales == 0, 1.0, scales)
        new = new / (factor.to(new.device)[:, None, None] if scales is None else scales[..., None])
    if limit is not None:
        new = (new.round() if dtype == torch.int8 else new).clamp(-limit, limit)
    return new.to(dtype), scales


def as_bytes(tensor: Tensor) -> Tensor:
    """An fp8 tensor as its bytes, since torch neither gathers nor scatters fp8; others as they are."""
    return tensor.view(torch.uint8) if tensor.dtype in EIGHT_BITS else tensor


def slots(call: DecodeCall, row: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Where positions of rows live, both of one shape: (row, slot) in a cache [B, H_kv, S_max, d], or (page, slot) in pages."""
    position = position.long()
    if call.page_table is None:
        return row, position % call.page_len
    return call.page_table[row, position // call.page_len].long(), position % call.page_len


def seen_range(call: DecodeCall) -> tuple[Tensor, Tensor]:
    """The positions of each row that any of its queries sees, [first, stop): int64 [B] each."""
    stop = call.seq_lens.long()
    first = torch.zeros_like(stop) if call.window is None else (stop - call.s_active - call.window + 1).clamp(min=0)
    return first if call.starts is None else torch.maximum(first, call.starts.long()).minimum(stop), stop


def live_keys(call: DecodeCall) -> tuple[Tensor, Tensor]:
    """Keys and values from the first position of each row that is seen, [B, H_kv, S, d] in the statistics' dtype.

    S is the most that any row sees: a ring has as many as its window, however far the positions have come. Zero past the last.
    """
    first, stop = seen_range(call)
    count = stop - first
    most = max(count.tolist(), default=0)
    row, at = torch.nonzero(torch.arange(most, device=call.q.device) < count[:, None], as_tuple=True)
    caches = []
    for name in "kv":
        taken = fetch(call, name, row, first[row] + at)
        dense = taken.new_zeros(call.batch, most, *taken.shape[1:])
        dense[row, at] = taken
        caches.append(dense.transpose(1, 2))
    return caches[0], caches[1]


def fetch(call: DecodeCall, name: str, row: Tensor, position: Tensor) -> Tensor:
    """The keys ("k") or values ("v") of n positions of rows [n]: [n, H_kv, d] in the statistics' dtype."""
    if call.prefix is None:
        return _fetch_from(call, name, row, position)
    early = position < call.prefix.length
    _, k, v, table, k_scale, v_scale = call.prefix
    first = call._replace(k_cache=k, v_cache=v, page_table=table, k_scale=k_scale, v_scale=v_scale)
    width = call.head_dim if name == "k" else call.value_dim
    taken = call.q.new_empty(len(row), call.n_kv_heads, width, dtype=call.statistics_dtype)
    taken[early] = _fetch_from(first, name, torch.zeros_like(row[early]), position[early])
    taken[~early] = _fetch_from(call, name, row[~early], position[~early])
    return taken


def _fetch_from(call: DecodeCall, name: str, row: Tensor, position: Tensor) -> Tensor:
    """Like `fetch`, each row from its own part of the cache."""
    cache, factor = (call.k_cache, call.k_scale) if name == "k" else (call.v_cache, call.v_scale)
    where, slot = slots(call, row, position)
    stored = as_bytes(cache)
    taken = stored[where, :, slot] if call.page_table is None else stored[where, slot]  # [n, H_kv, d]
    taken = taken.view(cache.dtype).to(call.statistics_dtype)
    if factor is None:
        return taken
    if factor.dim() == 3:  # of each token
        return taken * (factor[where, :, slot] if call.page_table is None else factor[where, slot])[..., None]
    return taken * factor[:, None]


def visible(call: DecodeCall, key: Tensor) -> Tensor:
    """Which of the keys at positions [B, n] each query sees: bool [B, s_active, n]."""
    first = call.seq_lens.long()[:, None, None] - call.s_active
    query, key = first + torch.arange(call.s_active, device=key.device)[:, None], key[:, None]
    if call.tree is not None:
        new = (key - first).clamp(min=0, max=63)
        return (key < first) | ((key < first + call.s_active) & ((call.tree[..., None] >> new) & 1 == 1))
    seen = key <= query
    return seen if call.window is None else seen & (key > query - call.window)


def biases(call: DecodeCall, key: Tensor) -> Tensor:
    """What is added to the scores of keys at positions [B, n]: -alibi · distance, [B, H_kv, G, s_active, n]."""
    assert call.alibi is not None
    query = call.seq_lens.long()[:, None] - call.s_active + torch.arange(call.s_active, device=key.device)
    distance = (query[..., None] - key[:, None]).to(call.statistics_dtype)  # [B, s_active, n]
    slope = call.alibi.to(call.statistics_dtype).reshape(call.n_kv_heads, call.group, 1, 1)
    return -slope * distance[:, None, None]


# ---- the sum ---------------------------------------------------------------------------------------------------------


def attend(call: DecodeCall, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax attention over k, v [B, H_kv, S, d], from the first position that is seen on: out and lse as of `decode`."""
    key = seen_range(call)[0][:, None] + torch.arange(k.shape[2], device=k.device)
    shape = (call.batch, call.n_kv_heads, call.group, call.s_active, call.head_dim)
    q = call.q.to(k.dtype).reshape(shape)
    scores = call.scale * torch.einsum("bhgad,bhkd->bhgak", q, k)
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    if call.alibi is not None:
        scores = scores + biases(call, key)
    scores = scores.masked_fill(~visible(call, key)[:, None, None], -torch.inf)
    if call.sink is not None:  # an extra key, whose value is zero
        sink = call.sink.to(k.dtype).reshape(call.n_kv_heads, call.group, 1, 1).expand(*shape[:-1], 1)
        scores, v = torch.cat([scores, sink], -1), torch.cat([v, v.new_zeros(*v.shape[:2], 1, v.shape[3])], 2)
    lse = torch.logsumexp(scores, -1) if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
    weights = torch.exp(scores - lse.masked_fill(lse == -torch.inf, 0)[..., None])
    out = torch.einsum("bhgak,bhkd->bhgad", weights, v)
    return out.reshape(call.out_shape).to(call.q.dtype), lse.reshape(call.q.shape[:-1])
