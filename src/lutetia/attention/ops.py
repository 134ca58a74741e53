"""Decode attention as torch.library ops, so that torch.compile, torch.export and autograd know it.

    decode_attention          reads the caches
    decode_attention_append   writes k_new and v_new into the caches first

Both give out [B, H_q, s_active, d] and lse [B, H_q, s_active]; a gradient through them is an error, not a silent zero.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from lutetia._shared.ops import LIBRARY, define
from lutetia.attention.run import run
from lutetia.errors import LutetiaError

REST = (
    "float? scale, int? window, Tensor? sink, Tensor? page_table, Tensor? k_scale, Tensor? v_scale, "
    "int cores, str shard, str sync, str backend, bool batch_invariant, str policy, Tensor? starts=None, float? softcap=None, "
    "int? prefix=None, Tensor? alibi=None, Tensor? rotary=None, Tensor? tree=None"
)
WRITTEN = REST.replace("Tensor? k_scale, Tensor? v_scale", "Tensor(c!)? k_scale, Tensor(d!)? v_scale")  # of each token
RESULT = "(Tensor, Tensor)"


def _fake(q: Tensor, k_cache: Tensor, v_cache: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    statistics = torch.float64 if q.dtype == torch.float64 else torch.float32
    out = torch.empty((*q.shape[:-1], v_cache.shape[3]), dtype=q.dtype, device=q.device)
    return out, q.new_empty(q.shape[:-1], dtype=statistics)


@define(f"decode_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor seq_lens, {REST}) -> {RESULT}", _fake)
def _decode(q: Tensor, k_cache: Tensor, v_cache: Tensor, seq_lens: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return run(q, k_cache, v_cache, seq_lens, None, None, *rest)


@define(
    "decode_attention_append(Tensor q, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor seq_lens, Tensor k_new, Tensor v_new, "
    f"{WRITTEN}) -> {RESULT}",
    _fake,
)
def _decode_append(q: Tensor, k_cache: Tensor, v_cache: Tensor, seq_lens: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return run(q, k_cache, v_cache, seq_lens, *rest)


def _no_gradient(ctx: Any, *grads: Tensor) -> NoReturn:
    raise LutetiaError("decode attention has no gradient: train with scaled_dot_product_attention, or call it under no_grad")


torch.library.register_autograd("lutetia::decode_attention", _no_gradient, lib=LIBRARY)
