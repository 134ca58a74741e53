"""After half an hour of two CPU cores n-gram tables have the lowest loss, and write twice as fast as a dense model twice as deep.

Models of one width, with and without n-gram tables, train for the same minutes on the source of Python's standard library, or on
the text of `--text FILE`. Then each writes one text, on one thread. Bits per byte of held-out text; bytes a second of training,
and of writing in processor time. The claim holds where tables without any other feed-forward are no worse than any dense model,
and write twice as fast as one with twice the blocks.

With `--device cuda` a GPU makes as many steps as the CPU would have made: the CPU makes a few, which are timed.

    lutetia bench language_cpu [--quick] [--json] [--save] [-- --minutes 30 --text FILE --device cuda]
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from lutetia import models, training
from results import Row, finish, options_of, peer, progress, result, table

CLAIM, WRITTEN, REPEATS, BATCH = 2.0, 192, 5, 16
CORES, TIMED = 2, 3  # steps on the CPU that are timed, after one that is not
SIZES: dict[str, Any] = {"kind": "transformer", "context": 256, "width": 384, "n_heads": 6, "attention": "softmax", "seed": 0}
NGRAMS: dict[str, Any] = {"ngrams": [2, 3, 4, 5], "ngram_word": True, "ngram_rows": 65536, "ngram_width": 64}
TABLES: dict[str, Any] = {"ff_heads": 8, "ff_head_width": 48, "ff_detectors": 64, "ff_anchors": 8, "read": "confidence2"}
MODELS: dict[str, dict[str, Any]] = {
    "n-gram tables, no other feed-forward": {"n_layers": 3, "feed_forward": "none", **NGRAMS},
    "n-gram tables and table feed-forward": {"n_layers": 3, "feed_forward": "projected", **TABLES, **NGRAMS},
    "n-gram tables and dense feed-forward": {"n_layers": 3, "feed_forward": "dense", **NGRAMS},
    "dense twin": {"n_layers": 3, "feed_forward": "dense"},
    "dense, twice the blocks": {"n_layers": 6, "feed_forward": "dense"},
}
ALL_TABLES, *_, TWIN, DEEP = MODELS


def config_of(model: dict[str, Any], text: Path | None, length: dict[str, float]) -> training.Config:
    """`length` is {"minutes": m} or {"steps": n}."""
    data = {"kind": "stdlib"} if text is None else {"kind": "bytes", "path": str(text.resolve())}
    tables = {
        "model": {**SIZES, **model},
        "data": {**data, "valid": 100_000},
        "optimizer": {"rest": {"lr": 2e-3, "weight_decay": 0.1}, "ngrams": {"lr": 1e-2}, "tables": {"lr": 1e-3}},
        "schedule": {"warmup": 0.05, "floor": 0.05},
        "train": {"batch_size": BATCH, **length, "clip": 1.0, "log_every": 1},
        "checkpoint": {"every": 1_000_000, "keep": 1},
    }
    return training.make_config(tables, "the benchmark")


def measure(name: str, text: Path | None, minutes: float, written: int, device: str) -> Row:
    """Train a model and let it write."""
    torch.set_num_threads(CORES)
    with tempfile.TemporaryDirectory() as folder:
        length: dict[str, float] = {"minutes": minutes}
        if device != "cpu":
            length = {"steps": round(60 * minutes / seconds_of_a_step(name, text, Path(folder)))}
        summary = training.train(config_of(MODELS[name], text, length), Path(folder) / "run", device=device)
        model: Any = models.load(Path(folder) / "run")
    torch.set_num_threads(1)
    model.generate(b"\n", 4, temperature=0)
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        model.generate(b"The ", written, temperature=0)
        times.append(time.process_time() - begun)
    return {
        "model": name,
        "blocks": MODELS[name]["n_layers"],
        "weights": summary["weights"],
        "steps": summary["step"],
        "bits per byte": summary["valid"]["bits_per_byte"],
        "trained": summary["step"] * BATCH * SIZES["context"] / (60 * minutes),
        "written": written / statistics.median(times),
    }


def seconds_of_a_step(name: str, text: Path | None, folder: Path) -> float:
    """Of training on the CPU: the median of a few."""
    training.train(config_of(MODELS[name], text, {"steps": TIMED + 1}), folder / "timed", device="cpu")
    lines = [json.loads(line) for line in (folder / "timed" / "metrics.jsonl").read_text().splitlines()]
    ends = [line["elapsed"] for line in lines if line["kind"] == "train"]
    return statistics.median(after - before for before, after in itertools.pairwise(ends))


def main(argv: list[str] | None = None) -> int:
    """Train and write with all; 1 when the tables are worse, or not twice as fast."""
    parser = options_of(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of training, each (default 30)")
    parser.add_argument("--text", type=Path, help="a text to learn from")
    parser.add_argument("--device", default="cpu", help="where to train (default cpu)")
    options = parser.parse_args(argv)
    minutes, written = (0.02, 8) if options.quick else (options.minutes, WRITTEN)
    rows = {}
    for name in MODELS:
        progress(name)
        rows[name] = measure(name, options.text, minutes, written, options.device)
    missed = []
    ratio, best = rows[ALL_TABLES]["written"] / rows[DEEP]["written"], min(rows[name]["bits per byte"] for name in (TWIN, DEEP))
    if ratio < CLAIM:
        missed.append(f"the tables write {ratio:.2f} times as fast, {CLAIM} claimed")
    if rows[ALL_TABLES]["bits per byte"] > best:
        missed.append(f"the tables need {rows[ALL_TABLES]['bits per byte']:.3f} bits per byte, a dense model {best:.3f}")
    units = {"bits per byte": "bits/byte", "trained": "bytes/s", "written": "bytes/s"}
    columns: dict[str, str | None] = {"model": None, "blocks": None, "weights": None, "steps": None, **units}
    text = options.text.name if options.text else "stdlib"
    settings = {"minutes": minutes, "cores": CORES, "steps made on": options.device, "text": text, "bytes written": written}
    tables = [table("models", columns, list(rows.values()))]
    return finish(result(__doc__, "language_cpu", settings, tables, peers=[peer("dense")], missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())
