"""Models answer the same in Python, in C, in the circuit and in the page: what language models write, what classifiers say."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from whole import PROMPTS, SMALL, classifiers, numbers

from lutetia.models import LUTTransformer
from lutetia.precompute import integer_model
from lutetia.precompute.integer.c import c_files
from lutetia.precompute.integer.pages import page
from lutetia.training.data import standard_library
from tools import require_tool

if TYPE_CHECKING:
    from browser import OpenPage

pytest_plugins = ["browser"]

WRITE = "([prompt, n]) => Array.from(lutetia.generate(Uint8Array.from(prompt), n))"
CLASSIFY = "(rows) => rows.map((row) => lutetia.classify(Int32Array.from(row)))"
STEPS, BATCH = 200, 16
SIZES: tuple[dict[str, Any], ...] = (
    {"context": 16, "width": 16, "n_detectors": 4, "ff_detectors": 12, "seed": 1},
    {"context": 9, "width": 12, "n_layers": 3, "positional_dim": 0, "seed": 2},
    {"context": 24, "width": 8, "n_layers": 1, "norm": "none", "seed": 3},
)


def trained(fields: dict[str, Any]) -> LUTTransformer:
    """A model after a few steps on Python's sources, which has learned something of them."""
    model = LUTTransformer(**{**SMALL, "initial_noise": 0.01, **fields})
    text = torch.from_numpy(standard_library()[: STEPS * BATCH * model.config.context].copy()).long()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for batch in text.view(STEPS, BATCH, -1):
        loss = cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-20:]) / 20 < 0.8 * losses[0]
    return model.eval()


def compiled(whole: Any, folder: Path) -> Path:
    """The C program of a whole-number model."""
    for name, text in c_files(whole).items():
        (folder / name).write_text(text)
    subprocess.run([require_tool("gcc", "cc"), "-std=c99", "-O3", "model.c", "-o", "run"], cwd=folder, check=True)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("fields", SIZES)
def test_four_engines_write_the_same_bytes(fields: dict[str, Any], tmp_path: Path, open_page: OpenPage) -> None:
    require_tool("verilator")
    require_tool("iverilog")
    whole = integer_model(trained(fields))
    program = compiled(whole, tmp_path)
    opened = open_page(page(whole, "a model")).page
    core = whole.emit()
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
