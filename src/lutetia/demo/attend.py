"""Decode attention beside PyTorch's own attention: one new token for each of a few texts of different lengths."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from lutetia.attention import decode_attention
from lutetia.report import CellTable

LENGTHS = (64, 100, 150, 300, 500, 700, 1000, 2048)  # tokens of each text
HEADS, KEY_HEADS, HEAD_DIM = 8, 2, 64
CALLS = 15


@torch.no_grad()
def compare() -> CellTable:
    """The median times of both, taking turns, and how far their outputs differ."""
    generator = torch.Generator().manual_seed(0)
    batch, longest = len(LENGTHS), max(LENGTHS)
    q = torch.randn(batch, HEADS, 1, HEAD_DIM, generator=generator)
    k, v = torch.randn(2, batch, KEY_HEADS, longest, HEAD_DIM, generator=generator)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    mask = (torch.arange(longest) < lengths[:, None])[:, None, None]
    calls: dict[str, Callable[[], Tensor]] = {
        "decode attention": lambda: decode_attention(q, k, v, seq_lens=lengths)[0],
        "PyTorch's SDPA, with a mask": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True),
    }
    ours, theirs = (call() for call in calls.values())  # the first call compiles
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(CALLS):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    least = median(times["decode attention"])
    rows = [(name, f"{median(each) * 1e3:.2f}", f"{median(each) / least:.1f}x") for name, each in times.items()]
    said = (
        f"One new token for each of {batch} texts of {min(LENGTHS)} to {longest:,} tokens. Median of {CALLS} calls, "
        f"taking turns on this machine. The outputs differ by at most {float((ours - theirs).abs().max()):.0e}."
    )
    return CellTable(("how", "ms per call", "relative time"), rows, said, "Attention over caches of different lengths")
