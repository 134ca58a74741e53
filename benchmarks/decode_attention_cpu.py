"""Decode attention on the CPU is not slower than scaled_dot_product_attention on dense batches, and faster on ragged ones.

Ratios of medians taken in one run, the contestants taking turns. A ragged batch has lengths evenly spaced over 10..100% of S;
torch is given a mask. Of two ways to give torch grouped heads (as heads, as queries of one head) the faster one counts. All in
inference mode, as tokens are generated.

    python benchmarks/decode_attention_cpu.py [--repeats N] [--only WORD] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numba
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention

from lutetia.attention import decode_attention

SHAPES = {  # batch, query heads, key heads, length, head dimension
    "grouped": (8, 32, 8, 2048, 128),
    "one long row": (1, 32, 8, 8192, 128),
    "a head each": (4, 16, 16, 2048, 64),
    "short": (16, 16, 4, 256, 64),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class Result:
    """Median milliseconds, by contestant."""

    kind: str
    shape: str
    dtype: str
    milliseconds: dict[str, float]

    def ratio(self) -> float:
        """How many times as long torch takes, the faster way."""
        return min(t for name, t in self.milliseconds.items() if name != "lutetia") / self.milliseconds["lutetia"]


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
        "lutetia": lambda: decode_attention(q, k, v, seq_lens=lengths),
        "SDPA, heads": lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=n_q_heads != n_kv_heads),
        "SDPA, queries": lambda: scaled_dot_product_attention(grouped, k, v, attn_mask=mask),
    }


@torch.inference_mode()
def measure(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Medians, the contestants taking turns."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # compiles, warms up
    for _ in range(repeats):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            taken[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(times) for name, times in taken.items()}


def machine() -> dict[str, Any]:
    """Where this ran and on what."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), model)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numba": numba.__version__}
    return {"cpu": model, "cores": os.cpu_count(), "threads": torch.get_num_threads(), **versions}


def show(results: list[Result]) -> None:
    """A table."""
    table = Table(title="One new token for each row, in milliseconds", title_justify="left")
    for heading in ("batch", "shape", "dtype", *results[0].milliseconds, "SDPA / lutetia"):
        table.add_column(heading, justify="left" if heading in ("batch", "shape", "dtype") else "right")
    for result in results:
        times = [f"{t:.2f}" for t in result.milliseconds.values()]
        table.add_row(result.kind, result.shape, result.dtype, *times, f"{result.ratio():.2f}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    console.print(", ".join(f"{key} {value}" for key, value in machine().items()))


def main(argv: list[str] | None = None) -> int:
    """Run the shapes, print ratios; 1 when one misses its claim."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=101, help="calls per contestant (default 101)")
    parser.add_argument("--only", default="", help="run the shapes whose name contains this")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    results = []
    for kind in ("dense", "ragged"):
        for shape, sizes in SHAPES.items():
            for name, dtype in DTYPES.items():
                if options.only in f"{kind} {shape} {name}" and not (kind == "ragged" and sizes[0] == 1):
                    results.append(Result(kind, shape, name, measure(contestants(kind, sizes, dtype), options.repeats)))
    if not results:
        parser.error(f"no shape contains {options.only!r}")
    if options.json:
        print(json.dumps({"machine": machine(), "results": [asdict(r) | {"ratio": r.ratio()} for r in results]}))
    else:
        show(results)
    return int(any(r.ratio() < 1.0 for r in results))


if __name__ == "__main__":
    sys.exit(main())
