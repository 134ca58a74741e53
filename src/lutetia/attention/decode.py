"""`decode_attention`: new tokens against a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia.attention import ops  # noqa: F401  (defines them)
from lutetia.attention.run import run
from lutetia.errors import fail


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    seq_lens: Tensor,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    sink: Tensor | None = None,
    page_table: Tensor | None = None,
    cores: int = 1,
    shard: str = "auto",
    sync: str = "lse",
    backend: str = "auto",
    batch_invariant: bool = False,
    k_scale: Tensor | float | None = None,
    v_scale: Tensor | float | None = None,
    policy: str = "cost",
    starts: Tensor | None = None,
    softcap: float | None = None,
    prefix: int | None = None,
    alibi: Tensor | None = None,
    rotary: Tensor | None = None,
    tree: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention of the newest tokens over a cache: out [B, H_q, s_active, d] in the dtype of q, lse [B, H_q, s_active].

    q is [B, H_q, s_active, d], s_active 1 to 4096. The caches are [B, H_kv, S_max, d], or with a `page_table`, int32
    [B, max_pages], pages [n_pages, page_len, H_kv, d]; H_q is a multiple of H_kv. `seq_lens` [B] counts the live positions, those
    of the new tokens included: query a is at position seq_len - s_active + a, and sees itself and earlier keys, or the last
    `window` keys. k_new, v_new [B, H_kv, s_active, d] are first written into the last s_active live slots. A `sink` [H_q] is a
    logit that joins the softmax sum but has no value. `scale` is 1/√d unless given. lse is the log of that sum, in float32.
    Positions before `starts` [B] are not seen, as after padding on the left. With `softcap` c a score s becomes c·tanh(s/c). With
    slopes `alibi` [H_q] a key at distance n then loses alibi · n of its score. `rotary` [2, n_positions, r], cosines and sines,
    rotates elements i and i + r of each query, and of k_new before it is written, by the angles of its position. A `tree`, bool
    [s_active, s_active] or one for each row, says which new tokens each of at most 64 sees, instead of itself and earlier ones.

    `prefix` n promises that all rows begin with the same n positions, which all queries see, or are empty. They are read once,
    from row 0, for the whole batch.

    A row that sees nothing gives 0 and -inf. Slots past a row's length are never used, even if they hold NaN. With a window of at
    most S_max - s_active + 1 a cache without pages is a ring: position p is in slot p mod S_max, and seq_lens may exceed S_max.

    The numbers in 8-bit caches (float8_e4m3fn, float8_e5m2, int8) are multiplied by `k_scale` and `v_scale`, one number or
    [H_kv]. Per-token scales are float32, in the shape of the cache without d, and new tokens write theirs.

    `backend` "auto" is Triton on CUDA and compiled code on the CPU, or with `cores` > 1 the model of cores ("cores"), which share
    the rows or the keys (`shard`, or by `policy` "cost" or "neuron") and synchronise as `sync` says. "reference" is plain torch.
    On "cpu" and "triton" a core's part is a split. `batch_invariant` fixes the split size, so a row's bits depend on it alone.

    There is no gradient. On CUDA nothing waits for the device, and the values of `seq_lens` and `page_table` are only checked
    when `lutetia.debug` is on.
    """
    how = (cores, shard, sync, backend, batch_invariant, policy)
    rest = (scale, window, sink, page_table, k_scale, v_scale, *how, starts, softcap, prefix, alibi, rotary, tree)
    if not torch.compiler.is_compiling():
        learning = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (q, k_cache, v_cache))
        if not (learning and k_new is None):
            return run(q, k_cache, v_cache, seq_lens, k_new, v_new, *rest)
    factors = (_tensor(k_scale, q), _tensor(v_scale, q))
    rest = (*rest[:4], *factors, *how, starts, softcap, prefix, alibi, rotary, tree)
    if (k_new is None) != (v_new is None):
        fail("v_new" if v_new is None else "k_new", None, "a tensor, since the other of the two is given")
    if k_new is None or v_new is None:
        return torch.ops.lutetia.decode_attention(q, k_cache, v_cache, seq_lens, *rest)
    return torch.ops.lutetia.decode_attention_append(q, k_cache, v_cache, seq_lens, k_new, v_new, *rest)


def _tensor(factor: Tensor | float | None, q: Tensor) -> Tensor | None:
    """A scale as the ops take it."""
    return factor if factor is None or isinstance(factor, Tensor) else torch.full((), float(factor), device=q.device)
