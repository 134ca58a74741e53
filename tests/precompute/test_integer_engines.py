"""Models answer the same in Python, in C, in the circuit and in the page: what language models write, what classifiers say."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from whole import PROMPTS, classifiers, numbers

from lutetia.cli import main
from lutetia.precompute import LanguageHardware, integer_model
from lutetia.precompute.integer.c import c_files
from lutetia.precompute.integer.pages import page
from lutetia.training import make_config, read_config, train
from tools import require_module, require_tool

if TYPE_CHECKING:
    from browser import OpenPage

pytest_plugins = ["browser"]

WRITE = "([prompt, n]) => Array.from(lutetia.generate(Uint8Array.from(prompt), n))"
CLASSIFY = "(rows) => rows.map((row) => lutetia.classify(Int32Array.from(row)))"
GATES = Path(__file__).resolve().parents[2] / "examples" / "gates.toml"
STEPS = 150
SIZES: tuple[dict[str, Any], ...] = (  # what is other than in examples/gates.toml
    {"context": 16, "width": 16, "n_detectors": 4, "ff_detectors": 12, "unembedding_anchors": 4, "seed": 1},
    {"context": 9, "width": 12, "n_layers": 3, "positional_dim": 0, "ff_anchors": 3, "seed": 2},
    {"context": 24, "width": 8, "n_layers": 1, "norm": "none", "shared_positions": True, "seed": 3},
)


def trained(fields: dict[str, Any], folder: Path) -> Path:
    """A checkpoint of `lutetia train`, that has learned something of Python's sources; tables of 8 bits where `seed` is 2."""
    tables = read_config(GATES).to_dict()
    tables["model"] |= fields
    tables["train"] |= {
        "steps": STEPS,
        "eval_every": STEPS,
        "eval_batches": 4,
        **({"table_bits": 8} if fields["seed"] == 2 else {}),
    }
    tables["checkpoint"]["every"] = STEPS
    summary = train(make_config(tables, "the test"), folder, device="cpu")
    assert summary["valid"]["bits_per_byte"] < 5.5
    return folder


def compiled(whole: Any, folder: Path) -> Path:
    """The C program of a whole-number model."""
    for name, text in c_files(whole).items():
        (folder / name).write_text(text)
    subprocess.run([require_tool("gcc", "cc"), "-std=c99", "-O3", "model.c", "-o", "run"], cwd=folder, check=True)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("fields", SIZES)
def test_four_engines_write_the_same_bytes(fields: dict[str, Any], tmp_path: Path, open_page: OpenPage) -> None:
    """From a trained checkpoint, by the commands: three prompts, the last longer than the context and of every byte."""
    require_module("typer")
    compiler = require_tool("gcc", "cc")
    require_tool("verilator")
    require_tool("iverilog")
    checkpoint = str(trained(fields, tmp_path / "run"))
    for target in ("c", "verilog"):
        assert main(["build", checkpoint, "--target", target, "--out", str(tmp_path / target)]) == 0
    assert main(["page", checkpoint, "--out", str(tmp_path / "page.html")]) == 0
    program, whole = tmp_path / "program", integer_model(checkpoint)
    subprocess.run([compiler, "-std=c99", "-O3", *(tmp_path / "c").glob("*.c"), "-o", program], check=True)
    opened = open_page((tmp_path / "page.html").read_text(encoding="utf-8")).page
    core = LanguageHardware.load(tmp_path / "verilog")
    for prompt in PROMPTS:
        wanted = whole.generate(prompt, 1000)
        written = subprocess.run([program, "1000"], input=prompt, capture_output=True, timeout=60, check=True).stdout
        assert written == wanted
        assert bytes(opened.evaluate(WRITE, [list(prompt), 1000])) == wanted
        assert core.generate(prompt, 1000, tool="verilator") == wanted
        assert core.generate(prompt, 100, tool="icarus") == wanted[:100]


@pytest.mark.slow
@pytest.mark.parametrize("kind", classifiers())
def test_four_engines_name_the_same_classes(kind: str, tmp_path: Path, open_page: OpenPage) -> None:
    require_tool("verilator")
    require_tool("iverilog")
    whole = integer_model(classifiers()[kind])
    x = numbers(whole.n_inputs, whole.input_bits, 1000)
    wanted = whole(x).tolist()
    assert len(set(wanted)) > 1
    lines = "\n".join(" ".join(map(str, row)) for row in x.tolist()).encode()
    said = subprocess.run([compiled(whole, tmp_path)], input=lines + b"\n", capture_output=True, timeout=60, check=True).stdout
    assert [int(line) for line in said.split()] == wanted
    assert open_page(page(whole, "a model")).page.evaluate(CLASSIFY, x.tolist()) == wanted
    circuit = whole.graph.emit("verilog")
    for tool in ("verilator", "icarus"):
        assert circuit.simulate(x, tool=tool)[:, 0].tolist() == wanted
