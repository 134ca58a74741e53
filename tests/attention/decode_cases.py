"""Calls of decode attention on every feature and the shapes that break things, and each executor's answer to one.

Triton runs on a GPU where there is one, under its interpreter otherwise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from attention.decode_oracle import Case, expected, make
from lutetia.attention import decode_attention, reference
from lutetia.attention.arguments import check_call

EXECUTORS = ("reference", "cpu", "triton")
TINY: dict[str, Any] = {"n_q_heads": 2, "n_kv_heads": 1, "head_dim": 8}  # the oracle goes key by key
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a key head for every query head": {"n_kv_heads": 4},
    "one key head, five query heads": {"n_q_heads": 5, "n_kv_heads": 1},
    "more query rows than a tile": {"n_q_heads": 34, "n_kv_heads": 1, "s_active": 2, "lengths": (40, 33), "capacity": 40},
    "prime lengths": {"capacity": 151, "lengths": (149, 101)},
    "one key": {"capacity": 1, "lengths": (1, 1)},
    "a row of one batch": {"batch": 1, "lengths": (67,)},
    "an empty row": {"lengths": (0, 37)},
    "nothing but empty rows": {"lengths": (0, 0)},
    "three new tokens": {"s_active": 3},
    "eight new tokens": {"s_active": 8, "lengths": (31, 8), "capacity": 31},
    "fewer live than new tokens": {"s_active": 5, "lengths": (3, 20), "capacity": 20},
    "new keys": {"new": True},
    "three new keys": {"new": True, "s_active": 3, "lengths": (148, 3)},
    "new keys, fewer live": {"new": True, "s_active": 5, "lengths": (2, 20), "capacity": 20},
    "new keys, an empty row": {"new": True, "lengths": (0, 1)},
    "a window of one": {"window": 1, "s_active": 2},
    "a window": {"window": 7, "s_active": 3},
    "a window of whole tiles": {"window": 128, "s_active": 2},
    "a window past the beginning": {"window": 1000},
    "a window and new keys": {"window": 20, "new": True, "s_active": 2},
    "a window that wraps": {"window": 20, "capacity": 30, "lengths": (145, 29), "new": True, "s_active": 3},
    "a window that just fits its ring": {"window": 28, "capacity": 30, "lengths": (61, 90), "new": True, "s_active": 3},
    "sinks": {"sink": 1.0, "s_active": 2},
    "large sinks": {"sink": 100.0},
    "sinks and empty rows": {"sink": 100.0, "lengths": (0, 3), "s_active": 2},
    "pages": {"page_len": 16, "lengths": (145, 37)},
    "pages, new keys": {"page_len": 16, "lengths": (145, 0), "new": True, "s_active": 2},
    "pages of one": {"page_len": 1, "capacity": 40, "lengths": (40, 13)},
    "more pages than are listed at once": {"page_len": 1, "capacity": 530, "lengths": (530, 257), "head_dim": 8, "window": 500},
    "pages of a prime": {"page_len": 7, "capacity": 70, "lengths": (64, 70), "window": 11, "s_active": 2},
    "pages longer than rows": {"page_len": 64, "capacity": 64, "lengths": (3, 50)},
    "d 1": {"head_dim": 1},
    "d 33": {"head_dim": 33},
    "d 40": {"head_dim": 40, "s_active": 2},
    "d 80": {"head_dim": 80, "new": True},
    "d 192": {"head_dim": 192, "lengths": (40, 33), "capacity": 40},
    "d 256": {"head_dim": 256, "lengths": (40, 33), "capacity": 40},
    "a scale": {"scale": 0.05},
    "a scale of zero": {"scale": 0.0},
    "a negative scale": {"scale": -0.3},
    "scores of ten thousand": {"spread": 42.0, "scale": 1.0, "s_active": 2},
    "padding on the left": {"starts": (111, 5)},
    "padding, new keys": {"starts": (131, 36), "new": True, "s_active": 3},
    "padding up to the new keys": {"starts": (150, 35), "new": True, "s_active": 3},
    "padding and a window": {"starts": (131, 0), "window": 30, "s_active": 3},
    "padding and pages": {"starts": (131, 7), "page_len": 16, "lengths": (145, 37), "s_active": 2},
    "a soft cap": {"softcap": 0.7, "s_active": 2},
    "a soft cap on large scores": {"softcap": 30.0, "spread": 42.0, "scale": 1.0},
    "padding, a soft cap and sinks": {"starts": (131, 36), "softcap": 2.0, "sink": 1.0, "new": True},
    "a prefix": {"prefix": 30},
    "a prefix, new keys and an empty row": {"prefix": 33, "batch": 3, "lengths": (148, 0, 36), "new": True, "s_active": 3},
    "a prefix in an empty row": {"prefix": 33, "batch": 3, "lengths": (0, 150, 33), "sink": 2.0},
    "a prefix of whole rows": {"prefix": 37, "lengths": (37, 37), "softcap": 2.0, "n_q_heads": 10},
    "a prefix of pages": {"prefix": 32, "page_len": 16, "lengths": (145, 37), "new": True, "s_active": 2, "sink": 1.0},
    "a prefix that ends within a page": {"prefix": 35, "page_len": 8, "lengths": (145, 37), "head_dim": 80},
    "no prefix": {"prefix": 0, "new": True},
    "slopes": {"alibi": 0.3, "s_active": 3},
    "slopes, a soft cap and a window": {"alibi": 1.0, "softcap": 2.0, "window": 20, "new": True, "n_q_heads": 6},
    "slopes and a prefix": {"alibi": 0.3, "prefix": 30, "s_active": 3, "new": True, "page_len": 8, "lengths": (145, 33)},
    "turned": {"turned": 16, "s_active": 2},
    "turned in part, new keys": {"turned": 5, "new": True, "s_active": 3, "lengths": (148, 2), "head_dim": 33},
    "turned, a prefix": {"turned": 16, "prefix": 30, "new": True, "page_len": 16, "lengths": (145, 33)},
    "a tree": {"tree": 2, "s_active": 7},
    "trees of each row, new keys": {"tree": 3, "s_active": 5, "new": True, "lengths": (148, 3)},
    "a tree of 64": {"tree": 2, "s_active": 64, **TINY, "lengths": (70, 64), "capacity": 70, "new": True},
    "a tree wider than a tile": {"tree": 2, "s_active": 40, **TINY, "head_dim": 136, "lengths": (45, 40), "capacity": 48},
    "a tree and a prefix": {"tree": 3, "s_active": 3, "prefix": 30, "new": True},
    "twenty new tokens": {"s_active": 20, "new": True, "lengths": (60, 11), "page_len": 4, "capacity": 60},
    "a chunk of a prompt": {"s_active": 70, "lengths": (90, 70), "capacity": 96, "page_len": 16, **TINY, "turned": 4},
    "a long chunk": {"s_active": 130, "batch": 1, "lengths": (150,), **TINY, "new": True, "window": 100},
    "narrow values": {"value_dim": 13, "s_active": 2, "new": True},
    "narrow values in pages": {"value_dim": 16, "page_len": 16, "lengths": (145, 37), "alibi": 0.3},
    "values in the keys": {"shared": 13, "s_active": 2, "new": True, "n_q_heads": 20, "n_kv_heads": 1},
    "values in the keys, pages and a prefix": {"shared": 16, "prefix": 30, "page_len": 16, "lengths": (145, 37), "new": True},
    "latent attention": {"head_dim": 576, "shared": 512, "n_kv_heads": 1, "lengths": (40, 33), "capacity": 40, "new": True},
    "everything": {"window": 50, "s_active": 3, "new": True, "sink": 2.0, "page_len": 8, "head_dim": 24, "n_q_heads": 6},
}  # fmt: skip


@cache
def solved(name: str) -> tuple[Case, tuple[Tensor, Tensor]]:
    case = make(**CASES[name])
    return case, expected(case)


def device_of(executor: str) -> str:
    return "cuda" if executor == "triton" and torch.cuda.is_available() else "cpu"


def decode(case: Case, executor: str, **options: Any) -> tuple[Tensor, Tensor]:
    """On a copy of the case; results on the CPU."""
    case = case.to(device_of(executor))
    if executor == "reference":
        out, lse = reference.decode(check_call(case.q, case.k, case.v, **case.arguments))
    else:
        out, lse = decode_attention(case.q, case.k, case.v, **case.arguments, backend=executor, **options)
    return out.cpu(), lse.cpu()


def agree(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], tolerance: float = 1e-5, spread: float = 1.0) -> None:
    out, lse = found
    assert out.shape == wanted[0].shape
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), wanted[0], rtol=0, atol=tolerance * max(1.0, spread))
    torch.testing.assert_close(lse.double(), wanted[1], rtol=1e-6, atol=tolerance)
