"""The notebooks of examples/ are tidy, run from first cell to last, show what is stored in them, and keep their promises."""

from __future__ import annotations

import base64
import importlib.util
import io
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import warm
from lutetia.precompute import find_tool
from tools import require_module

nbformat = require_module("nbformat")
nbclient = require_module("nbclient")
for needed in ("ipykernel", "matplotlib", "numba", "sklearn"):
    require_module(needed)

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))

Texts = dict[str, str]  # what each code cell printed and showed as text, by the id of the cell


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    """tools/run_notebooks.py, by its path: the name `tools` is taken by the helpers of the tests."""
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "tools" / "run_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def execute(runner: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[nbformat.NotebookNode, Path], None]:
    """Its own, in a warm kernel."""
    monkeypatch.setattr(runner, "PYTHON", shlex.split(warm.command()))
    return runner.execute


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_of(cell: nbformat.NotebookNode) -> str:
    shown = [output.get("text") or output.get("data", {}) for output in cell.outputs]
    return "".join(each if isinstance(each, str) else each.get("text/markdown") or each.get("text/html", "") for each in shown)


def kinds_of(cell: nbformat.NotebookNode) -> list[tuple[str, ...]]:
    """What a cell shows besides plain text."""
    return [tuple(sorted(output.data)) for output in cell.outputs if "data" in output]


def without_numbers(text: str) -> list[str]:
    """The lines of a text with numbers and the space around them left out: those of a run depend on the machine."""
    return [re.sub(r"\s*-?\d[\d.,]*(e-?\d+)?\s*", "#", line) for line in text.splitlines()]


# ---- tidy ------------------------------------------------------------------------------------------------------------


def test_each_part_has_a_notebook_and_each_notebook_a_promise() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(PROMISES) == {"decode_attention", "lut", "precompute", "relevance"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_tidy(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert text == nbformat.writes(notebook, indent=1) + "\n"  # one way to write it, so that a diff shows what changed
    assert notebook.metadata == {"language_info": {"name": "python"}}
    assert 8 <= len(notebook.cells) <= 15
    for cell in notebook.cells:
        assert re.fullmatch(rf"{path.stem.split('_')[0]}(-[a-z]+)+", cell.id), "ids are given by hand, so that they stay"
        assert cell.metadata == {}
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run tools/run_notebooks.py"
    assert str(ROOT) not in text


def test_the_page_names_every_example() -> None:
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    files = {path.name for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert files == set(re.findall(r"`(\w+\.(?:ipynb|py|toml))`", page))


# ---- promises --------------------------------------------------------------------------------------------------------


def lut(texts: Texts) -> None:
    read = re.match(r"([\d.]+)% accuracy on 360 test digits\n", texts["lut-picture"])
    assert read is not None
    assert float(read[1]) > 95
    assert "960 comparisons, 1920 additions and no multiplication" in texts["lut-picture"]  # 192 tables, 5 pairs, 10 classes
    assert texts["lut-attention"].startswith("100% recalled")
    for kernel in ("check_detectors", "fill_outputs_fc", "propagate_through_detectors_fc", "gather_weight_gradients_fc"):
        assert f'"{kernel}"' in texts["lut-flow"]


def decode_attention(texts: Texts) -> None:
    # Two tiles of ten keys for each of three cores: 2 · 2 + 1 exchanges, in each of which every core sends twice.
    assert f"{(2 * 2 + 1) * 3 * 2} messages in lockstep" in texts["decode-picture"]
    # A core reads a key in 10.24 ns. Eight take an eighth of that, plus 4.5 µs: less from 502 keys on, so 512 is the first.
    assert "should communicate from 512 tokens on" in texts["decode-picture"]
    assert texts["decode-draw"].count("->>") == 3 * 2  # one exchange of three cores
    assert "a message was dropped or duplicated" in texts["decode-errors"]


def relevance(texts: Texts) -> None:
    most, random, least = map(int, re.findall(r"(-?\d+)%", texts["relevance-picture"]))
    assert most < 15 < 40 < random < 75 < 105 < least
    read, understood = (float(re.findall(r"([\d.]+)%", texts[f"relevance-{name}"])[0]) for name in ("train", "words"))
    assert read > 95
    assert understood > 99
    strips = [(float(value), word) for value, word in re.findall(r'title="([^"]+)">(\w+)<', texts["relevance-strip"])]
    assert len(strips) == 2 * 8
    assert max(strips[:8])[1] == max(strips[8:])[1] == "good"  # each sentence also says "bad", but before
    assert "DoubleBackward" in texts["relevance-rule"]
    assert "tensor([1.0000, 1.0000, 1.0000])" in texts["relevance-rule"]


def precompute(texts: Texts) -> None:
    simulated = "512 inputs, equal: True" if find_tool("iverilog") or find_tool("yosys") else "left out:"
    assert f"simulated: {simulated}" in texts["precompute-verilog"]
    simulated = simulated.replace("512 inputs", "20 digits")
    assert f"simulated: {simulated}" in texts["precompute-picture"]
    proved, refuted = ("the whole net proved", "is not what the graph says") if find_tool("yosys") else ("left out:", "left out:")
    assert f"proved:    {proved}" in texts["precompute-picture"]
    assert refuted in texts["precompute-broken"]
    float_, whole = map(float, re.findall(r"([\d.]+)%", texts["precompute-digits"]))
    assert float_ > 93
    assert abs(whole - float_) < 1.5


PROMISES: dict[str, Callable[[Texts], None]] = {
    promise.__name__: promise for promise in (lut, decode_attention, relevance, precompute)
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_shows_what_is_stored_and_keeps_its_promise(
    path: Path, execute: Callable[[nbformat.NotebookNode, Path], None], tmp_path: Path
) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    stored = {cell.id: (kinds_of(cell), without_numbers(text_of(cell))) for cell in code_cells(notebook)}
    execute(notebook, tmp_path)
    cells = code_cells(notebook)
    for cell in cells:
        kinds, lines = stored[cell.id]
        now = without_numbers(text_of(cell))
        assert kinds_of(cell) == kinds, f"{cell.id}: run tools/run_notebooks.py"
        differ = [(before, after) for before, after in zip(lines, now, strict=True) if before != after]
        assert all("left out:" in after for _, after in differ), f"{cell.id}: run tools/run_notebooks.py"  # a tool is missing
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        assert [output for output in cell.outputs if output.output_type == "error" or output.get("name") == "stderr"] == []
    PROMISES[path.stem]({cell.id: text_of(cell) for cell in cells})
    pictures = [output.data["image/png"] for output in cells[-1].outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 1
    assert colours_of(base64.b64decode(pictures[0])) > 10


def colours_of(png: bytes) -> int:
    """How many colours a picture has; a blank one has one."""
    from PIL import Image

    with Image.open(io.BytesIO(png)) as picture:
        return len(picture.convert("RGB").getcolors(maxcolors=1 << 24))


def test_the_kernel_is_this_python_and_an_error_comes_out(runner: ModuleType, tmp_path: Path) -> None:
    cells = ["import lutetia, sys; print(sys.executable, lutetia.__file__)", "1 / 0", "print('not reached')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="ZeroDivisionError"):
        runner.execute(notebook, tmp_path)
    assert text_of(notebook.cells[0]).split() == [sys.executable, str(ROOT / "src" / "lutetia" / "__init__.py")]
    assert notebook.cells[2].outputs == []
