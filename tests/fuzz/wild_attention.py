"""Random calls of what `lutetia.attention` makes public."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from wild import Made, Wild, small

from lutetia import attention


def _decode(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    batch, kv, ratio, active, d, longest = (
        wild.one(1, 2, 3),
        wild.one(1, 2),
        wild.one(1, 2, 3),
        wild.one(1, 1, 2, 4),
        wild.one(2, 8, 16),
        16,
    )
    dtype = wild.one(torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16)
    shape = (batch, kv, longest, d)
    arguments: dict[str, Any] = {
        "q": torch.randn(batch, kv * ratio, active, d).to(dtype),
        "k_cache": torch.randn(shape).to(dtype),
        "v_cache": torch.randn(shape).to(dtype),
        "seq_lens": torch.randint(active, longest + 1, (batch,), dtype=wild.one(torch.int32, torch.int64)),
    }
    if wild.draw.random() < 0.3:
        arguments |= {name: torch.randn(batch, kv, active, d).to(dtype) for name in ("k_new", "v_new")}
    options = {
        "scale": 0.5,
        "window": 4,
        "sink": torch.zeros(kv * ratio),
        "cores": wild.one(1, 2, 3),
        "shard": wild.one("auto", "batch", "sequence"),
        "sync": wild.one("lse", "deferred", "lockstep"),
        "backend": wild.one("auto", "cpu", "cores", "reference"),
        "batch_invariant": True,
        "k_scale": 2.0,
        "v_scale": torch.ones(kv),
        "policy": wild.one("cost", "neuron"),
        "starts": torch.randint(0, longest + 2, (batch,), dtype=wild.one(torch.int32, torch.int64)),
        "softcap": wild.one(0.5, 30.0),
        "prefix": wild.one(1, 2, 7),
        "alibi": torch.rand(kv * ratio),
        "rotary": torch.rand(2, longest, d // 2),
        "tree": wild.one(
            torch.ones(active, active, dtype=torch.bool).tril(),
            torch.rand(batch, active, active) < 0.5,
            torch.randint(0, 2**active, (batch, active)),
        ),
    }
    arguments |= {name: options[name] for name in wild.draw.sample(list(options), wild.draw.randrange(4))}
    if wild.draw.random() < 0.15:  # eight bits, with a scale for each token
        caches = {name: torch.randint(-127, 128, shape, dtype=torch.int8) for name in ("k_cache", "v_cache")}
        arguments |= caches | {name: torch.rand(shape[:3]) for name in ("k_scale", "v_scale")}
    elif wild.draw.random() < 0.1 and d > 2:  # values within the keys
        arguments |= {"v_cache": arguments["k_cache"][..., : d - 1]}
    elif wild.draw.random() < 0.2:
        pages = torch.randn(8, 4, kv, d).to(dtype)
        arguments |= {
            "k_cache": pages,
            "v_cache": pages.clone(),
            "page_table": torch.randint(0, 8, (batch, 4), dtype=torch.int32),
        }
    return attention.decode_attention, arguments


def _prefill(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    batch, kv, n, d = wild.one(1, 2), wild.one(1, 2), wild.one(1, 3, 6), wild.one(2, 4)
    arguments: dict[str, Any] = {
        "q": torch.randn(batch, 2 * kv, n, d),
        "k": torch.randn(batch, kv, 8, d),
        "v": torch.randn(batch, kv, 8, d),
    }
    options = {
        "lengths": torch.full((batch,), n),
        "start": torch.zeros(batch, dtype=torch.int64),
        "scale": 0.5,
        "window": 3,
        "sink": torch.zeros(2 * kv),
        "alibi": torch.rand(2 * kv),
    }
    return attention.prefill, arguments | {
        name: options[name] for name in wild.draw.sample(list(options), wild.draw.randrange(4))
    }


def _kv_cache(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(k: Any, v: Any, lengths: Any, rows: Any, **sizes: Any) -> None:
        if not small(sizes):
            return
        cache = attention.KVCache(**sizes)
        cache.append(k, v)
        cache.append(k, v, lengths)
        attention.decode_attention(k, cache.k, cache.v, seq_lens=cache.lengths, k_scale=cache.k_scale, v_scale=cache.v_scale)
        cache.reset(rows)
        repr(cache)

    new = torch.randn(2, 1, 3, 4)
    return use, {
        "batch": 2,
        "n_kv_heads": 1,
        "max_length": 8,
        "head_dim": 4,
        "k": new,
        "v": new.clone(),
        "lengths": torch.tensor([1, 3]),
        "rows": wild.one(None, [0], torch.tensor([1])),
        "dtype": wild.one(None, torch.int8, torch.bfloat16, torch.float8_e4m3fn),
    }


def _paged_cache(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    def use(length: Any, sequence: Any, k: Any, v: Any, lengths: Any, kept: Any, **sizes: Any) -> None:
        if not small(sizes):
            return
        cache = attention.PagedKVCache(**sizes)
        first = cache.allocate(length)
        cache.fork(first)
        cache.append([sequence], k, v, lengths)
        table, counts = cache.page_table([sequence]), cache.lengths([sequence])
        options = {"k_scale": cache.k_scale, "v_scale": cache.v_scale, "prefix": cache.prefix([sequence, first])}
        attention.decode_attention(k[:, :, :1], cache.k, cache.v, seq_lens=counts, page_table=table, **options)
        cache.truncate(sequence, kept)
        cache.free(sequence)
        repr(cache)

    new = torch.randn(1, 1, 2, 4)
    return use, {
        "n_pages": 6,
        "page_len": 2,
        "n_kv_heads": 1,
        "head_dim": 4,
        "length": 1,
        "sequence": 0,
        "k": new,
        "v": new.clone(),
        "lengths": wild.one(None, torch.tensor([1])),
        "kept": 1,
        "dtype": wild.one(None, torch.int8, torch.bfloat16, torch.float8_e4m3fn),
    }


def _choose(wild: Wild) -> tuple[Callable[..., object], dict[str, Any]]:
    sizes = {
        "lengths": [100, 7],
        "cores": 4,
        "n_q_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "s_active": 1,
        "element_bytes": 2,
        "capacity": None,
        "shard": wild.one("auto", "batch", "sequence"),
        "sync": "lse",
        "policy": wild.one("cost", "neuron"),
        "out_in_sb": False,
    }
    return lambda **given: attention.explain_choice(attention.choose_shard(**given)), sizes


CALLS: dict[str, Made] = {
    "decode_attention": _decode,
    "prefill": _prefill,
    "KVCache": _kv_cache,
    "PagedKVCache": _paged_cache,
    "choose_shard": _choose,
}
