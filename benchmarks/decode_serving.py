"""Rows of `decode_attention` that a serving engine asks for: shared prefixes, latent attention, and chunks of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import flashinfer_peer
from lutetia.attention import decode_attention
from results import Row

LATENT, VALUES = 576, 512  # numbers of a key, and of the value that it begins with
Capture = Callable[[Any, Callable[[Tensor, Tensor], Any]], Any]
Turns = Callable[[dict[str, list[Any]]], dict[str, float | None]]


def cascade(paged: bool, sizes: tuple[int, int, int], heads: tuple[int, int, int], captured: Capture, in_turns: Turns) -> Row:
    """B rows that share a prefix and have some tokens of their own: the whole call, and with the prefix read once."""
    batch, prefix, own = sizes
    n_q, n_kv, d = heads
    lengths, q = torch.full((batch,), prefix + own, dtype=torch.int32, device="cuda"), random(batch, n_q, 1, d)
    given: dict[str, Any] = {"seq_lens": lengths}
    if paged:  # the pages of the prefix are the same ones in every row
        n_pages = (prefix + batch * own) // 16
        caches = [(random(n_pages, 16, n_kv, d), random(n_pages, 16, n_kv, d))]
        shared = torch.arange(prefix // 16, device="cuda").expand(batch, -1)
        given["page_table"] = torch.cat([shared, torch.arange(prefix // 16, n_pages, device="cuda").view(batch, -1)], 1).int()
    else:
        caches = [(random(batch, n_kv, prefix + own, d), random(batch, n_kv, prefix + own, d))]
    graphs = {
        "read for each row": [captured(caches, lambda k, v: decode_attention(q, k, v, **given))],
        "prefix read once": [captured(caches, lambda k, v: decode_attention(q, k, v, **given, prefix=prefix))],
    }
    shape = f"B{batch} ({prefix} + {own}){', pages of 16' if paged else ''}"
    pages, views = flashinfer_peer.Pages(given.get("page_table", lengths), 16, "NHD"), caches
    if not paged:
        pages = flashinfer_peer.pages_of(caches[0][0], 16)
        views = [(flashinfer_peer.in_pages(k, 16), flashinfer_peer.in_pages(v, 16)) for k, v in caches]
    theirs = flashinfer_peer.cascades(q, views[0][0], prefix, lengths, pages)
    ours = decode_attention(q, *caches[0], **given, prefix=prefix)[0]
    graphs |= of_flashinfer(shape, theirs, views, ours, captured)
    times = in_turns(graphs)
    once, each = times["prefix read once"], times["read for each row"]
    faster = {"times as fast": each / once if each and once else None}
    return {"shape": shape, **times, **faster, **flashinfer_peer.beside(times, "prefix read once")}


def latent(sizes: tuple[int, int, int], rate: float, captured: Capture, in_turns: Turns) -> Row:
    """The absorbed form of latent attention: one key head of 576 numbers, whose first 512 are the value. The peer reads keys and
    values as if they were two tensors."""
    batch, length, n_heads = sizes
    n_caches = max(1, -(-400_000_000 // (2 * batch * length * LATENT)))
    caches = [(each, each[..., :VALUES]) for each in (random(batch, 1, length, LATENT) for _ in range(n_caches))]
    lengths, q = torch.full((batch,), length, dtype=torch.int32, device="cuda"), random(batch, n_heads, 1, LATENT)
    shape = f"B{batch} {length}, {n_heads} heads"
    ours = decode_attention(q, *caches[0], seq_lens=lengths)[0]
    theirs = of_flashinfer(shape, flashinfer_peer.latents(q, lengths, length, VALUES), caches, ours, captured)
    times = in_turns(
        {
            "Lutetia": [captured(caches, lambda k, v: decode_attention(q, k, v, seq_lens=lengths))],
            # All heads read one key head, so they are queries of it: as heads, their keys would be copied for each of them.
            "SDPA": [captured(caches, lambda k, v: scaled_dot_product_attention(q.transpose(1, 2), k, v))],
            **theirs,
        }
    )
    read, time = 2 * batch * length * LATENT, times["Lutetia"]
    share = 100 * read / (1e-6 * time) / rate if time else None
    beside = flashinfer_peer.beside(times, "Lutetia")
    return {"shape": shape, **times, **beside, "of the read rate": share, "cache": read / 1e6}


def chunk(sizes: tuple[int, int, int], heads: tuple[int, int, int], captured: Capture, in_turns: Turns) -> Row:
    """Many new tokens after what is in a cache; the peer is given a mask."""
    batch, length, new = sizes
    n_q, n_kv, d = heads
    caches = [(random(batch, n_kv, length, d), random(batch, n_kv, length, d))]
    lengths, q = torch.full((batch,), length, dtype=torch.int32, device="cuda"), random(batch, n_q, new, d)
    seen = torch.arange(length, device="cuda") <= torch.arange(length - new, length, device="cuda")[:, None]
    times = in_turns(
        {
            "Lutetia": [captured(caches, lambda k, v: decode_attention(q, k, v, seq_lens=lengths))],
            "SDPA, masked": [captured(caches, lambda k, v: scaled_dot_product_attention(q, k, v, seen, enable_gqa=True))],
        }
    )
    return {"shape": f"B{batch} {length}, {new} tokens", **times}


def of_flashinfer(shape: str, calls: Any, caches: Any, ours: Tensor, captured: Capture) -> dict[str, list[Any]]:
    """Its ways to the same output, in one column; none where it is not installed."""
    found = flashinfer_peer.ways(shape, calls, caches, ours[:, :, 0], captured)
    return {"FlashInfer": [*chain.from_iterable(found.values())]} if found else {}


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
