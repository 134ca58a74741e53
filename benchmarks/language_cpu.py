"""On a CPU a language model whose feed-forwards are tables writes at least twice as fast as a dense one of equal loss.

Both train for the same minutes, on the source of Python's standard library or on the text of `--text FILE`: attention and n-gram
tables without any other feed-forward, and a dense model of the same width with twice the blocks. Then each writes one text. Bits
per byte of held-out text, bytes a second of training and of writing, and the processor time of each. The claim holds where the
tables are no worse and write twice as fast.

    lutetia bench language_cpu [--quick] [--json] [--save] [-- --minutes 30 --text FILE]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lutetia import models, training
from results import Row, finish, options_of, peer, progress, result, table

CLAIM, WRITTEN, REPEATS = 2.0, 192, 5
BLOCKS = 3  # of the tables; the dense model has twice as many
SIZES: dict[str, Any] = {"kind": "transformer", "context": 256, "width": 384, "n_heads": 6, "attention": "softmax", "seed": 0}
NGRAMS: dict[str, Any] = {"ngrams": [2, 3, 4, 5], "ngram_word": True, "ngram_rows": 65536, "ngram_width": 64}
MODELS: dict[str, dict[str, Any]] = {
    "n-gram tables, no other feed-forward": {"n_layers": BLOCKS, "feed_forward": "none", **NGRAMS},
    "dense": {"n_layers": 2 * BLOCKS, "feed_forward": "dense"},
}


def config_of(model: dict[str, Any], text: Path | None, minutes: float) -> training.Config:
    data = {"kind": "stdlib"} if text is None else {"kind": "bytes", "path": str(text.resolve())}
    tables = {
        "model": {**SIZES, **model},
        "data": {**data, "valid": 100_000},
        "optimizer": {"rest": {"lr": 2e-3, "weight_decay": 0.1}, "ngrams": {"lr": 1e-2}},
        "schedule": {"warmup": 0.05, "floor": 0.05},
        "train": {"batch_size": 16, "minutes": minutes, "clip": 1.0, "log_every": 1},
        "checkpoint": {"every": 1_000_000, "keep": 1},
    }
    return training.make_config(tables, "the benchmark")


def measure(name: str, text: Path | None, minutes: float, written: int) -> Row:
    """Train a model and let it write."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        summary = training.train(config_of(MODELS[name], text, minutes), Path(folder) / "run", device="cpu")
        trained = time.process_time() - begun
        model: Any = models.load(Path(folder) / "run")
    model.generate(b"\n", 4, temperature=0)
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        model.generate(b"The ", written, temperature=0)
        times.append(time.process_time() - begun)
    seen = summary["step"] * 16 * SIZES["context"]
    return {
        "model": name,
        "weights": summary["weights"],
        "steps": summary["step"],
        "bits per byte": summary["valid"]["bits_per_byte"],
        "trained": seen / summary["seconds"],
        "processor time of training": trained,
        "written": written / statistics.median(times),
    }


def main(argv: list[str] | None = None) -> int:
    """Train and write with both; 1 when the tables are worse, or not twice as fast."""
    parser = options_of(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of training, each (default 30)")
    parser.add_argument("--text", type=Path, help="a text to learn from")
    options = parser.parse_args(argv)
    minutes, written = (0.02, 8) if options.quick else (options.minutes, WRITTEN)
    rows = []
    for name in MODELS:
        progress(name)
        rows.append(measure(name, options.text, minutes, written))
    tables, dense = rows
    ratio = tables["written"] / dense["written"]
    missed = [] if options.quick or ratio >= CLAIM else [f"the tables write {ratio:.2f} times as fast, {CLAIM} claimed"]
    if not options.quick and tables["bits per byte"] > dense["bits per byte"]:
        missed.append(
            f"the tables need {tables['bits per byte']:.3f} bits per byte, the dense model {dense['bits per byte']:.3f}"
        )
    units = {"bits per byte": "bits/byte", "trained": "bytes/s", "processor time of training": "s", "written": "bytes/s"}
    columns: dict[str, str | None] = {"model": None, "weights": None, "steps": None, **units}
    settings = {"minutes": minutes, "text": "enwik8" if options.text else "stdlib", "batch": 1, "bytes written": written}
    found = result(__doc__, "language_cpu", settings, [table("models", columns, rows)], peers=[peer("dense")], missed=missed)
    return finish(found, options)


if __name__ == "__main__":
    sys.exit(main())
