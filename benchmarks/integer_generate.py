"""A language model in whole numbers, as C: at least five times the bytes a second of Python, and three times any dense engine.

The model of examples/gates.toml, and dense ones of the same context, trained for as many steps on the same text: the smallest, by
products for a byte, whose validation loss is no higher. Then each writes bytes one after another, one thread, processor time: C
(`cc -O3`), `generate` of both, the dense model in bfloat16 and with int8 weights outside its attention (torch's dynamic
quantisation), and in onnxruntime, which is given the whole window for every byte.

    lutetia bench integer_generate [--quick] [--json] [--save] [-- --run FOLDER] [--dense FOLDER]
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lutetia import models, training
from lutetia.precompute import c_files, integer_model
from results import Row, finish, options_of, peer, progress, result, table

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "gates.toml"
DENSE: dict[str, Any] = {"kind": "dense_transformer", "context": 64, "n_heads": 2, "seed": 0}
SIZES = ((16, 1), (20, 1), (24, 1), (32, 1), (32, 2), (48, 2))  # width and layers, by products for a byte
WRITTEN = 200  # bytes, three quarters of them with a full window
PYTHON, DENSE_TIMES = 5.0, 3.0
PROMPT = b"\n"
OWN = "width 32, 2 layers"


def trained(tables: dict[str, Any], folder: Path) -> tuple[Any, float]:
    """A model and its bits per byte on the validation split; trained no more where the folder holds a finished run."""
    if not (folder / "summary.json").is_file():
        training.train(training.make_config(tables, "the benchmark"), folder, device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    return models.load(folder), float(summary["valid"]["bits_per_byte"])


def as_good(
    tables: dict[str, Any], wanted: float, folder: Path, sizes: tuple[tuple[int, int], ...]
) -> tuple[Any, list[tuple[str, float]]]:
    """The first dense model whose loss is no higher than `wanted`, the last otherwise; and the loss of each that was tried."""
    tried: list[tuple[str, float]] = []
    for width, layers in sizes:
        name = f"width {width}, {layers} layer{'s' if layers > 1 else ''}"
        progress(f"dense, {name}")
        own = {**copy.deepcopy(tables), "model": {**DENSE, "width": width, "n_layers": layers}}
        model, loss = trained(own, folder / f"dense{width}x{layers}")
        tried.append((name, loss))
        if loss <= wanted:
            break
    return model, tried


def rate(write: Callable[[int], Any], n: int) -> float:
    """Bytes a second of processor time, less what the first byte takes."""
    write(2)
    times = []
    for count in (1, n + 1):
        begun = time.process_time()
        write(count)
        times.append(time.process_time() - begun)
    return n / max(times[1] - times[0], 1e-9)


def c_rate(model: Any, folder: Path, n: int) -> float:
    for name, text in c_files(integer_model(model)).items():
        (folder / name).write_text(text)
    subprocess.run(["cc", "-std=c99", "-O3", "model.c", "-o", "run"], cwd=folder, check=True)
    child = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], input=b'\\n', stdout=subprocess.DEVNULL, check=True);"
    child += " print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)"
    many = 100 * n
    done = subprocess.run(
        [sys.executable, "-c", child, str(folder / "run"), str(many)], capture_output=True, text=True, check=True
    )
    return many / max(float(done.stdout), 1e-9)


def dense_engines(model: Any, folder: Path) -> dict[str, Callable[[int], Any]]:
    """What writes n bytes with the dense model, by engine."""
    half = copy.deepcopy(model).to(torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen = {name for name, each in model.named_modules() if isinstance(each, nn.Linear) and "attention" not in name}
        small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), chosen, dtype=torch.qint8)
    engines: dict[str, Callable[[int], Any]] = {
        f"dense, torch {name}": lambda n, each=each: each.generate(PROMPT, n, temperature=0)  # type: ignore[misc]
        for name, each in (("float32", model), ("bfloat16", half), ("int8", small))
    }
    try:
        import onnxruntime
    except ImportError:
        return engines
    window = torch.zeros(1, model.config.context, dtype=torch.int64)
    torch.onnx.export(model, (window,), folder / "dense.onnx", input_names=["x"], dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "dense.onnx"), options)

    def write(n: int) -> None:
        x = window.numpy().copy()
        for _ in range(n):
            best = session.run(None, {"x": x})[0][0, -1].argmax()
            x[0, :-1], x[0, -1] = x[0, 1:].copy(), best

    return {**engines, "dense, onnxruntime": write}


def measure(folder: Path, run: Path | None, dense_folder: Path | None, quick: bool) -> list[Row]:
    """The rows of the table: every engine with its loss and its rate, then dense models that are not as good."""
    tables = training.read_config(EXAMPLE).to_dict()
    tables["train"]["steps"] = 2 if quick else tables["train"]["steps"]
    progress("tables")
    model, loss = trained(tables, run or folder / "tables")
    dense, tried = as_good(tables, loss, dense_folder or folder, SIZES[:1] if quick else SIZES)
    size, dense_loss = tried.pop()
    n = 4 if quick else WRITTEN
    torch.set_num_threads(1)
    rows = [
        {
            "engine": "tables, Python",
            "model": OWN,
            "bits per byte": loss,
            "written": rate(lambda n: model.generate(PROMPT, n, temperature=0), n),
        }
    ]
    if shutil.which("cc"):
        rows.insert(0, {"engine": "tables, C", "model": OWN, "bits per byte": loss, "written": c_rate(model, folder, n)})
    for name, write in dense_engines(dense, folder).items():
        progress(name)
        rows.append({"engine": name, "model": size, "bits per byte": dense_loss, "written": rate(write, n)})
    return [*rows, *({"engine": "dense, not as good", "model": name, "bits per byte": loss} for name, loss in reversed(tried))]


def missed(rows: list[Row]) -> list[str]:
    """What the claim says and the rows do not."""
    rates = {row["engine"]: row["written"] for row in rows if "written" in row}
    best = max(value for name, value in rates.items() if name.startswith("dense"))
    wanted = {"Python's tables": PYTHON * rates["tables, Python"], "the best dense engine": DENSE_TIMES * best}
    own = rates.get("tables, C", 0.0)
    return [f"C writes {own:,.0f} bytes/s, {limit:,.0f} claimed by {name}" for name, limit in wanted.items() if own < limit]


def main(argv: list[str] | None = None) -> int:
    """Train both models and let every engine write; 1 when C is not as fast as claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--run", type=Path, help="a run of examples/gates.toml, to train it no more")
    parser.add_argument("--dense", type=Path, help="a folder of dense runs, dense16x1 and so on, trained there if missing")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        rows = measure(Path(name), options.run, options.dense, options.quick)
    columns = {"engine": None, "model": None, "bits per byte": "bits/byte", "written": "bytes/s"}
    peers = [peer("torch", "torch", "float32, bfloat16, int8 dynamic"), peer("onnxruntime", "onnxruntime", "the whole window")]
    settings = {"batch": 1, "threads": 1, "bytes written": WRITTEN, "context": DENSE["context"]}
    told = [] if options.quick else missed(rows)
    return finish(
        result(__doc__, "integer_generate", settings, [table("engines", columns, rows)], peers=peers, missed=told), options
    )


if __name__ == "__main__":
    sys.exit(main())
