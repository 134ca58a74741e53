"""Int8 tables lose at most 0.003 bits per byte, take about a quarter of the bytes, and large ones are read faster on a CPU.

Small language models learn from the source of Python's standard library; then their tables become int8. Bits per byte of
held-out text and bytes of the tables, before and after; and the processor time of one layer, a few rows at a time and many, with
float32 and with int8 tables, taking turns in one run.

    lutetia bench int8 [--quick] [--json] [--save] [-- --steps 300 --repeats 15]
"""

from __future__ import annotations

import copy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lutetia import models, training
from lutetia.nn import LUT, NgramTables, int8_tables
from lutetia.training import batches_in_order, evaluation_sums, metrics_of, open_data
from results import Row, finish, options_of, progress, result, table

LOST, SHARE, FASTER = 0.003, 0.27, 1.0
SIZES: dict[str, Any] = {"kind": "transformer", "context": 64, "width": 64, "n_layers": 2, "seed": 0}
MODELS: dict[str, dict[str, Any]] = {
    "tables everywhere, hard": {"ff_detectors": 64, "ff_anchors": 6, "unembedding": "lut"},
    "LUT attention, confidence2": {"ff_detectors": 64, "ff_anchors": 6, "read": "confidence2"},
    "n-gram tables, no other feed-forward": {
        "attention": "softmax",
        "feed_forward": "none",
        "ngrams": [2, 3, 4],
        "ngram_word": True,
        "ngram_rows": 16384,
    },
}
LAYERS: dict[str, dict[str, Any]] = {
    "256 tables, N_c 8, 384 -> 384, hard": {"sizes": (384, 384, 256, 8), "read": "hard"},
    "256 tables, N_c 8, 384 -> 384, confidence2": {"sizes": (384, 384, 256, 8), "read": "confidence2"},
}


def model_row(name: str, steps: int) -> Row:
    """One model before and after."""
    tables = {
        "model": {**SIZES, **MODELS[name]},
        "data": {"kind": "stdlib", "valid": 50_000},
        "optimizer": {"tables": {"lr": 3e-3}, "rest": {"lr": 3e-3, "weight_decay": 0.01}},
        "schedule": {"warmup": 0.05},
        "train": {"batch_size": 32, "steps": steps, "clip": 1.0},
    }
    config = training.make_config(tables, "the benchmark")
    text = open_data(config.data, Path()).splits["valid"]
    with tempfile.TemporaryDirectory() as folder:
        training.train(config, Path(folder) / "run", device="cpu")
        model: Any = models.load(Path(folder) / "run")
    row: Row = {"model": name}
    for kind in ("float32", "int8"):
        batches = batches_in_order(text, 32, context=SIZES["context"])
        bits = metrics_of(evaluation_sums(model, batches, torch.device("cpu"), "float32"), True)["bits_per_byte"]
        row |= {f"bits per byte, {kind}": bits, f"bytes of tables, {kind}": table_bytes(model)}
        int8_tables(model)
    row["lost"] = row["bits per byte, int8"] - row["bits per byte, float32"]
    row["share"] = row["bytes of tables, int8"] / row["bytes of tables, float32"]
    return row


def table_bytes(model: nn.Module) -> int:
    """What the tables of a model take in its file: weights, or codes and their scales."""
    layers = [module for module in model.modules() if isinstance(module, LUT | NgramTables)]
    kept = ("weight", "codes", "scale", "exponents")
    return sum(value.nbytes for layer in layers for name, value in layer.state_dict().items() if name in kept)


def layer_row(name: str, batch: int, repeats: int) -> Row:
    """One layer with both kinds of tables, in turns: the median processor time of a call."""
    wanted = LAYERS[name]
    layer = LUT(*wanted["sizes"], read=wanted["read"], seed=0).eval()
    pair = {"float32": layer, "int8": int8_tables(copy.deepcopy(layer))}
    inputs = [torch.randn(batch, layer.n_inputs) for _ in range(16)]  # other rows each time, as in use
    times: dict[str, list[float]] = {kind: [] for kind in pair}
    with torch.no_grad():
        for _ in range(repeats + 1):
            for kind, module in pair.items():
                times[kind].append(timed(module, inputs))
    taken = {kind: statistics.median(each[1:]) * 1e6 for kind, each in times.items()}
    return {"layer": name, "batch": batch, **taken, "faster": taken["float32"] / taken["int8"]}


def timed(module: nn.Module, inputs: list[Tensor]) -> float:
    begun = time.process_time()
    for x in inputs:
        module(x)
    return (time.process_time() - begun) / len(inputs)


def main(argv: list[str] | None = None) -> int:
    """Train, quantise, and time; 1 where more is lost than claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--steps", type=int, default=300, help="of training (default 300)")
    parser.add_argument("--repeats", type=int, default=15, help="turns of each layer (default 15)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    steps, repeats = (2, 1) if options.quick else (options.steps, options.repeats)
    rows, layers = [], []
    for name in MODELS:
        progress(name)
        rows.append(model_row(name, steps))
    for name in LAYERS:
        progress(name)
        layers += [layer_row(name, batch, repeats) for batch in ((1,) if options.quick else (1, 256))]
    missed = [f"{row['model']}: {row['lost']:.4f} bits lost, {LOST} claimed" for row in rows if row["lost"] > LOST]
    missed += [f"{row['model']}: {row['share']:.2f} of the bytes, {SHARE} claimed" for row in rows if row["share"] > SHARE]
    missed += [f"{row['layer']}, batch {row['batch']}: {row['faster']:.2f}x" for row in layers if row["faster"] < FASTER]
    kinds = ("float32", "int8")
    columns: dict[str, str | None] = {
        "model": None,
        **{f"bits per byte, {kind}": "bits/byte" for kind in kinds},
        "lost": "bits/byte",
    }
    columns |= {f"bytes of tables, {kind}": "bytes" for kind in kinds} | {"share": None}
    of_layers = {"layer": None, "batch": None, **dict.fromkeys(kinds, "µs"), "faster": "x"}
    tables = [table("models", columns, rows), table("layers", of_layers, layers)]
    settings = {"steps": steps, "repeats": repeats, "time": "of the processor, one thread"}
    return finish(result(__doc__, "int8", settings, tables, missed=[] if options.quick else missed), options)


if __name__ == "__main__":
    sys.exit(main())
