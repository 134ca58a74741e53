"""Decode attention on the CPU is at least level with scaled_dot_product_attention on dense batches, and faster on ragged ones.

Ratios of medians taken in one run, the contestants taking turns. A ragged batch has lengths evenly spaced over 10..100% of S;
torch is given a mask. Of two ways to give torch grouped heads (as heads, as queries of one head) the faster one counts. All in
inference mode, as tokens are generated. Claimed: 0.95 on dense batches, since one shape is level and a shared machine moves by
a tenth; 1.3 on ragged ones.

    lutetia bench decode_attention_cpu [--quick] [--json] [--save] [-- --repeats N --only WORD]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from lutetia.attention import decode_attention
from results import Row, finish, options_of, peer, progress, result, table
from timing import in_turns

SHAPES = [(8, 32, 8, 2048, 128), (1, 32, 8, 8192, 128), (4, 16, 16, 2048, 64), (16, 16, 4, 256, 64)]
QUICK = [(2, 4, 2, 64, 32)]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CLAIMS = {"dense": 0.95, "ragged": 1.3}
RATIO = "SDPA / Lutetia"


def name_of(sizes: tuple[int, ...]) -> str:
    """Batch, query heads, key heads, length, head width."""
    return "{:,} × {:,} on {:,} × {:,} × {:,}".format(*sizes)


def contestants(kind: str, sizes: tuple[int, ...], dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Who decodes one token for each row of the same batch."""
    batch, n_q_heads, n_kv_heads, length, d = sizes
    q = torch.randn(batch, n_q_heads, 1, d, dtype=dtype)
    k, v = (torch.randn(batch, n_kv_heads, length, d, dtype=dtype) for _ in range(2))
    lengths = torch.full((batch,), length, dtype=torch.int32)
    mask = None
    if kind == "ragged":
        lengths = (length * torch.linspace(0.1, 1.0, batch)).int()[torch.randperm(batch)]
        mask = (torch.arange(length) < lengths[:, None])[:, None, None]
    grouped = q.view(batch, n_kv_heads, n_q_heads // n_kv_heads, d)
    return {
        "Lutetia": lambda: decode_attention(q, k, v, seq_lens=lengths),
        "SDPA, heads": lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=n_q_heads != n_kv_heads),
        "SDPA, queries": lambda: scaled_dot_product_attention(grouped, k, v, attn_mask=mask),
    }


@torch.inference_mode()
def measure(kind: str, sizes: tuple[int, ...], dtype: str, repeats: int) -> Row:
    """Median milliseconds by contestant, and how many times as long torch takes, the faster way."""
    taken = in_turns(contestants(kind, sizes, DTYPES[dtype]), repeats)
    best = min(time for name, time in taken.items() if name != "Lutetia")
    return {"kind": kind, "shape": name_of(sizes), "dtype": dtype, **taken, RATIO: best / taken["Lutetia"]}


def main(argv: list[str] | None = None) -> int:
    """Run the shapes; 1 when one misses its claim."""
    parser = options_of(__doc__)
    parser.add_argument("--repeats", type=int, default=101, help="calls per contestant (default 101)")
    parser.add_argument("--only", default="", help="run the shapes whose name contains this")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    repeats = 3 if options.quick else options.repeats
    rows = []
    for kind in CLAIMS:
        for sizes in QUICK if options.quick else SHAPES:
            for dtype in DTYPES:
                name = f"{kind} {name_of(sizes)} {dtype}"
                if options.only in name and not (kind == "ragged" and sizes[0] == 1):
                    progress(name)
                    rows.append(measure(kind, sizes, dtype, repeats))
    if not rows:
        parser.error(f"no shape contains {options.only!r}")
    units = dict.fromkeys(("Lutetia", "SDPA, heads", "SDPA, queries"), "ms")
    missed = [
        f"{row['kind']} {row['shape']} {row['dtype']}: {row[RATIO]:.2f}, {CLAIMS[row['kind']]} claimed"
        for row in rows
        if row[RATIO] < CLAIMS[row["kind"]]
    ]
    peers = [peer("SDPA", "torch", "eager; the faster of two ways to give it grouped heads; a mask on ragged batches")]
    columns = {"kind": None, "shape": None, "dtype": None, **units, RATIO: "x"}
    tables = [table("decode", columns, rows)]
    return finish(result(__doc__, "decode_attention_cpu", {"repeats": repeats}, tables, peers=peers, missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())
