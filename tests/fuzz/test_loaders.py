"""Damaged files: every loader takes them or refuses them with an error of Lutetia's, whatever they hold."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from loaders import LOADERS
from runner import Fuzz, Runner

import lutetia
from tools import optional_module, require_module

require_module("typer")
require_module("numba")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system cannot limit the memory of a process")
HOUSE = Path(lutetia.__file__).parent
CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files(name: str, fuzz: Fuzz) -> None:
    if LOADERS[name].needs:
        optional_module(LOADERS[name].needs)
    fuzz("loader", name)


@pytest.mark.parametrize("name", sorted(each.name for each in CORPUS.iterdir()) if CORPUS.exists() else [])
def test_files_that_were_found_before(name: str, runner: Runner) -> None:
    cases = len(list((CORPUS / name).iterdir()))
    counts, found = runner.run("corpus", name, 0, cases, corpus=str(CORPUS / name))
    assert found == []
    assert sum(counts.values()) == cases


# Modules that read files, and the loaders under whose names these are damaged.
MODELS = {name for name, loader in LOADERS.items() if "model/config.toml" in loader.damaged}
READERS: dict[str, set[str]] = {
    "_shared/folders.py": {"manifest", "hardware"},
    "_shared/tensor_files.py": {"synapses", "tables"},
    "cli/bench.py": {"sources"},
    "cli/board.py": {"board"},
    "cli/inputs.py": {"inputs"},
    "cli/values.py": {"sources"},
    "files.py": {"manifest"},
    "flow/serialize.py": {"flow"},
    "integrations/onnx_import.py": {"onnx"},
    "integrations/transformers/loading.py": {"decoder"},
    "integrations/transformers/pooling.py": {"pooling"},
    "integrations/trees/files.py": {"trees"},
    "models/metadata.py": MODELS,
    "models/saving.py": MODELS,
    "precompute/boards/table.py": {"board"},
    "precompute/integer/hardware.py": {"core"},
    "precompute/tables/table_files.py": {"tables"},
    "toml.py": {"config"},
    "training/arrays.py": {"npz", "samples", "inputs"},
    "training/checkpoint.py": {"checkpoint"},
    "training/config.py": {"config"},
    "training/formats.py": {"idx", "text"},
    "training/images.py": {"images", "samples"},
    "training/metrics.py": {"metrics"},
    "training/parquet.py": {"spreadsheet", "samples"},
    "training/shard_files.py": {"shards"},
}
# They read what this package brings, what a tool or this process has just written, the system, or the sources of a benchmark.
OWN = {
    *("_shared/compiled.py", "_shared/memory.py", "_shared/nvrtc.py", "_shared/pages.py", "report/machines.py"),
    *("precompute/hdl/cocotb.py", "precompute/hdl/dialect.py", "precompute/integer/c_text.py"),
    *("precompute/integer/verilog_language.py", "precompute/passes/minimise.py", "demo/learn.py", "integrations/onnx.py"),
    *(f"precompute/tools/{name}.py" for name in ("elaborated", "place", "sat", "simulate", "stages", "synthesize", "whole")),
    "cli/apart.py",  # the device that swallows what a process of its own prints
    *("cli/build.py", "cli/quantize.py"),  # a text for nextpnr as it is; a model that was loaded before
    *("cli/explain_hf.py", "cli/explain_hf_texts.py"),  # a prompt, lines of text: of any bytes
    *("training/data.py", "training/folder.py", "training/run.py"),  # the standard library; a lock; a line for a log
    "integrations/trees/estimators.py",  # what CatBoost has just written
    "demo/telling.py",  # names that are compared with those in the folder
    "lut/autograd/small_layers.py",  # the source of its kernels
    *("cli/build_board.py", "precompute/boards/top.py"),  # a model that was just saved; the sources of the serial line
    "precompute/boards/serial.py",  # a serial port
}
READING = {
    *("open", "open_file", "read_bytes", "read_text", "read_json", "safe_open", "load_file", "ZipFile", "ParquetFile"),
    *("memmap", "fromfile", "loadtxt"),
}
READING_METHODS = {"toml.read", "onnx.load", "state_dict_loader.load", "AutoConfig.from_pretrained", "np.load", "torch.load"}


def test_every_module_that_reads_files_has_a_loader_here() -> None:
    reading = set()
    for path in sorted(HOUSE.rglob("*.py")):
        called = {ast.unparse(each.func) for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Call)}
        if called & READING_METHODS or {name.rpartition(".")[2] for name in called} & READING:
            reading.add(path.relative_to(HOUSE).as_posix())
    assert reading == READERS.keys() | OWN
    assert set().union(*READERS.values()) | {"csv", "evaluation"} == set(LOADERS)
