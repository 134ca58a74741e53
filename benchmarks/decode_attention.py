"""Decode attention on a GPU is no slower than the fastest attention torch has, and reads the cache at the speed of memory.

Medians over replays of CUDA graphs that walk through several caches, together larger than the second-level cache; the contestants
take turns. In the same run: every backend of scaled_dot_product_attention, and how fast this device reads at all. Claimed:

    dense     at most 1.0 times cuDNN's time where the cache has 250 MB, 1.15 times on B 1, S 8k; there 90% of the read rate
    ragged    at least 1.5 times as fast as scaled_dot_product_attention with a mask (lengths evenly spaced over 10..100% of S)
    s_active  four new tokens take at most 1.3 times as long as one

    python benchmarks/decode_attention.py [--only WORD] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gpu_timing import machine, timed
from lutetia.attention import decode_attention

H_Q, H_KV, D = 32, 8, 128
SHAPES = {"B1 8k": (1, 8192), "B1 128k": (1, 131072), "B8 8k": (8, 8192), "B32 4k": (32, 4096), "B64 8k": (64, 8192)}
RAGGED = {"B8 8k": (8, 8192), "B32 4k": (32, 4096), "B64 8k": (64, 8192)}
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
ROTATED = 400e6  # bytes of caches that a graph walks through: eight times the second-level cache
LARGE = 250e6
Replay = tuple[torch.cuda.CUDAGraph, int]


@dataclass
class Row:
    """One shape: median microseconds by contestant; None where one does not take it."""

    kind: str
    shape: str
    cache_bytes: int
    live_bytes: int
    microseconds: dict[str, float | None] = field(default_factory=dict)


def main(argv: list[str] | None = None) -> int:
    """Run the shapes, print tables; 1 when a claim is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the rows whose kind and shape contain this")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("decode_attention measures CUDA and this machine has none; see decode_attention_cpu", file=sys.stderr)
        return 1
    rate = read_rate()
    rows = []
    for kind, shapes in (("dense", SHAPES), ("ragged", RAGGED), ("s_active 4", SHAPES)):
        for name, (batch, length) in shapes.items():
            if options.only in f"{kind} {name}":
                rows.append(measure(kind, name, batch, length))
                torch.cuda.empty_cache()
    misses = claims(rows, rate)
    if options.json:
        print(
            json.dumps({"machine": machine(), "bytes_per_second": rate, "rows": [asdict(row) for row in rows], "missed": misses})
        )
    else:
        show(rows, rate, misses)
    return int(bool(misses))


def measure(kind: str, name: str, batch: int, length: int) -> Row:
    """One row of a table."""
    torch.manual_seed(0)
    one = 2 * batch * H_KV * length * D * 2
    caches = [tuple(random(batch, H_KV, length, D) for _ in "kv") for _ in range(max(1, -(-int(ROTATED) // one)))]
    s_active = 4 if kind == "s_active 4" else 1
    q = random(batch, H_Q, s_active, D)
    lengths = torch.full((batch,), length, dtype=torch.int32, device="cuda")
    if kind == "ragged":
        lengths = (length * torch.linspace(0.1, 1.0, batch, device="cuda")).int()[torch.randperm(batch, device="cuda")]
    row = Row(kind, name, one, int(lengths.sum()) * one // (batch * length))
    graphs = {"lutetia": [captured(caches, lambda k, v: decode_attention(q, k, v, seq_lens=lengths))]}
    if kind == "s_active 4":
        graphs["one token"] = [captured(caches, lambda k, v: decode_attention(q[:, :, :1], k, v, seq_lens=lengths))]
    else:
        mask = (torch.arange(length, device="cuda") < lengths[:, None])[:, None, None] if kind == "ragged" else None
        for peer, backend in BACKENDS.items():
            if not (peer == "math" and one > 1e9):  # it copies the keys for every query head
                graphs[f"SDPA {peer}"] = of_backend(backend, q, caches, mask)
    row.microseconds = in_turns(graphs)
    return row


def of_backend(backend: SDPBackend, q: Tensor, caches: Any, mask: Tensor | None) -> list[Replay]:
    """Those it takes of two ways to give torch grouped heads: as heads, or as queries of one head, which no causality forbids."""
    batch = q.shape[0]
    ways = [
        lambda k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True),
        lambda k, v: scaled_dot_product_attention(q.view(batch, H_KV, H_Q // H_KV, D), k, v, attn_mask=mask),
    ]
    found = []
    for way in ways:
        try:
            with sdpa_kernel(backend):
                found.append(captured(caches, way))
        except RuntimeError:  # this backend does not take these arguments
            torch.cuda.synchronize()
    return found


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def captured(caches: Any, call: Callable[[Tensor, Tensor], Any]) -> Replay:
    """A graph that walks through all caches several times, replayed once, and how many calls it is."""
    call(*caches[0])
    torch.cuda.synchronize()
    rounds = max(1, 12 // len(caches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for k, v in caches:
                call(k, v)
    graph.replay()
    return graph, rounds * len(caches)


def in_turns(graphs: dict[str, list[Replay]], turns: int = 9) -> dict[str, float | None]:
    """Median microseconds of one call by contestant, the fastest of its ways; None for one that has none."""
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(turns):
        for name, ways in graphs.items():
            for way, (graph, calls) in enumerate(ways):
                graph.replay()  # not to be measured by what the one before leaves in the caches
                times.setdefault((name, way), []).append(1e3 * timed(graph.replay) / calls)
    medians = {name: [statistics.median(times[name, way]) for way in range(len(ways))] for name, ways in graphs.items()}
    return {name: min(found, default=None) for name, found in medians.items()}


def read_rate() -> float:
    """Bytes a second that this device reads: the fastest of a few ways to add up two gigabytes."""
    x = torch.ones(1 << 29, device="cuda", dtype=torch.float32)
    ways = [lambda n=n: x.view(n, -1).sum(1) for n in (1 << 8, 1 << 11, 1 << 14, 1 << 17)]
    seconds = [1e-3 * statistics.median(timed(way) for _ in range(9)) for way in ways for _ in range(2)]
    return 4 * x.numel() / min(seconds)


def claims(rows: list[Row], rate: float) -> list[str]:
    """What was claimed and is not so."""
    missed = []
    for row in rows:
        ours, name = row.microseconds["lutetia"], f"{row.kind} {row.shape}"
        assert ours is not None
        if row.kind == "dense":
            peer, limit = row.microseconds.get("SDPA cuDNN"), 1.0 if row.cache_bytes >= LARGE else 1.15
            if peer is not None and ours > limit * peer:
                missed.append(f"{name}: {ours / peer:.4f} times cuDNN's time, at most {limit} claimed")
            share = row.live_bytes / (1e-6 * ours) / rate
            if row.cache_bytes >= LARGE and share < 0.9:
                missed.append(f"{name}: {share:.0%} of the read rate, 90% claimed")
        elif row.kind == "ragged":
            peers = [t for t in list(row.microseconds.values())[1:] if t is not None]
            if peers and min(peers) < 1.5 * ours:
                missed.append(f"{name}: {min(peers) / ours:.2f} times as fast as the best masked SDPA, 1.5 claimed")
        elif ours > 1.3 * (row.microseconds["one token"] or 0):
            missed.append(f"{name}: {ours / (row.microseconds['one token'] or 1):.2f} times one token, at most 1.3 claimed")
    return missed


def show(rows: list[Row], rate: float, missed: list[str]) -> None:
    """A table for each kind."""
    console = Console(width=150)
    console.print(" · ".join(f"{name} {value}" for name, value in machine().items()), f"· reads {rate / 1e12:.2f} TB/s")
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        names = list(dict.fromkeys(name for row in mine for name in row.microseconds))
        table = Table(title=f"{kind}: µs (bf16, H_q {H_Q}, H_kv {H_KV}, d {D})", title_justify="left")
        for heading in ("shape", *names, "over the best", "of the read rate"):
            table.add_column(heading, justify="left" if heading == "shape" else "right")
        for row in mine:
            ours = row.microseconds["lutetia"]
            assert ours is not None
            times = ["" if (t := row.microseconds.get(name)) is None else f"{t:.1f}" for name in names]
            peers = [t for name, t in row.microseconds.items() if name != "lutetia" and t is not None]
            table.add_row(row.shape, *times, f"{min(peers) / ours:.2f}x", f"{row.live_bytes / (1e-6 * ours) / rate:.0%}")
        console.print(table)
    for each in missed:
        console.print("missed:", each)


if __name__ == "__main__":
    sys.exit(main())
