"""`lutetia flow` as a user meets it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from lutetia.cli import flow as flow_command
from lutetia.cli import main
from lutetia.flow import Flow, recording
from lutetia.models import LUTClassifier, LUTTransformer
from tools import require_module

require_module("typer")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("flow")
    tables: dict[str, Any] = {"readout": "lut", "readout_detectors": 9, "readout_anchors": 3, "seed": 0}
    LUTClassifier(input_shape=(5,), n_classes=3, **tables).save_pretrained(place / "features")
    LUTTransformer(width=16, n_layers=1, n_heads=2, context=12, seed=0).save_pretrained(place / "text")
    return place


def names(flow: Flow) -> list[str]:
    return [step.name for step in flow.steps]


def test_it_draws_a_page(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["flow", str(folder / "features"), "1,2,3,4,5", "--out", str(tmp_path / "a.html")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].split() == ["step", "times", "ms", "bytes"]
    assert said[1].split()[1] == "1"
    count = sum(int(line.split()[1]) for line in said[1:-1])
    moved = sum(int(line.split()[3].replace(",", "")) for line in said[1:-1])
    steps = f"{count} step{'' if count == 1 else 's'}"
    assert said[-1] == f"{steps}, {moved:,} bytes read and written; drawn in {tmp_path / 'a.html'}"
    assert said[1].split()[0] in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert os.listdir(tmp_path) == ["a.html"]


def test_without_a_name_the_page_is_run_html(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["flow", str(folder / "text"), "def f"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("bytes read and written; drawn in run.html")
    assert os.listdir(tmp_path) == ["run.html"]


def test_json_is_the_flow_and_writes_nothing_unasked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["flow", str(folder / "text"), "def f", "--json"]) == 0
    flow = Flow.from_json(capsys.readouterr().out)
    shapes = {tensor.shape for step in flow.steps for tensor in step.inputs}
    assert (1, 5, 16) in shapes  # five bytes
    assert os.listdir(tmp_path) == []
    assert main(["flow", str(folder / "text"), "def f", "--json", "--out", "b.json"]) == 0
    assert names(Flow.from_json(capsys.readouterr().out)) == names(Flow.load("b.json")) == names(flow)


def test_the_same_pass_runs_once_before_it_is_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no step is charged for compiling kernels, those of the backward pass neither."""
    calls: list[bool] = []
    lead = flow_command.lead_over_rivals

    def counted(scores: torch.Tensor, target: int) -> torch.Tensor:
        calls.append(recording())
        return lead(scores, target)

    monkeypatch.setattr(flow_command, "lead_over_rivals", counted)
    assert main(["flow", str(folder / "features"), "1,2,3,4,5", "--backward", "--json"]) == 0
    assert calls == [False, True]


def test_the_way_back_on_request(folder: Path, capsys: Capture) -> None:
    assert main(["flow", str(folder / "features"), "1,2,3,4,5", "--json"]) == 0
    forward = names(Flow.from_json(capsys.readouterr().out))
    assert main(["flow", str(folder / "features"), "1,2,3,4,5", "--json", "--backward"]) == 0
    both = names(Flow.from_json(capsys.readouterr().out))
    assert not [name for name in forward if "propagate" in name]
    assert [name for name in both if "propagate_through_detectors" in name]
    assert main(["flow", str(folder / "text"), "def", "--json", "--backward"]) == 0
    assert [name for name in names(Flow.from_json(capsys.readouterr().out)) if "gradients" in name]
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "missing argument 'CKPT'"),
        (["{}/none", "x"], 1, "does not exist, expected the folder of a saved model"),
        (["{}/features/config.toml", "x"], 1, "is a file, expected the folder of a saved model"),
        (["{}", "x"], 1, "is not the folder of a saved model"),
        (["{}/features", "{}/none.png"], 1, "does not exist, expected an image"),
        (["{}/features", "1,2"], 1, "INPUT has 2 numbers, expected 5"),
        (["{}/features", "1,2,3,4,5", "--out", "{}/run.pdf"], 2, "expected a name that ends in .html, .json or .mmd"),
        (["{}/features", "1,2,3,4,5", "--out", "{}/none/run.html"], 1, "and there is no folder"),
        (["{}/text", "x", "--row", "1"], 2, "--row works only for classifiers"),
        (["{}/text", "{}"], 1, "is a folder, expected a file of text"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], code: int, sentence: str, folder: Path, capsys: Capture) -> None:
    given = ["flow", *(each.format(folder) for each in arguments)]
    assert main(given) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert main([*given, "--json"]) == code
    assert sentence in json.loads(capsys.readouterr().out)["error"]["message"]
    assert sorted(os.listdir(folder)) == ["features", "text"]


def test_a_disk_that_takes_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    assert main(["flow", str(folder / "features"), "1,2,3,4,5", "--out", str(tmp_path / "a.html")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'a.html'} cannot be written: No space left on device\n"
    assert os.listdir(tmp_path) == []


def test_a_truncated_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    LUTClassifier(input_shape=(5,), n_classes=3, layers=(), seed=0).save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:50])
    assert main(["flow", str(tmp_path / "model"), "1,2,3,4,5", "--json"]) == 1
    assert "it is damaged" in json.loads(capsys.readouterr().out)["error"]["message"]
