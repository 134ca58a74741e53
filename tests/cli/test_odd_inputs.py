"""Inputs that are no names of files: rows of many values, nothing at all, bytes that are no text; and folders of others."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from lutetia.cli import main
from lutetia.cli.pictures import token_strip
from lutetia.models import LUTClassifier, LUTTransformer
from lutetia.relevance import Faithfulness, evaluate

Capture = pytest.CaptureFixture[str]
ROW = ",".join(f"{0.1 + number / 1000:.6f}" for number in range(200))  # 1,799 characters: no file has such a name


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    LUTClassifier(input_shape=(200,), n_classes=3, readout="lut", initial_noise=1.0, seed=0).save_pretrained(place / "row")
    LUTTransformer(width=16, n_layers=1, n_heads=2, context=32, seed=0).save_pretrained(place / "text")
    return place


def test_a_row_of_many_values_is_typed(models: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(models / "row"), ROW, "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["predictions"][0]
    assert main(["explain", str(models / "row"), ROW, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert str(told["prediction"]) == predicted["class"]
    assert len(told["relevance"]) == 200
    for command in ("predict", "explain", "flow"):
        assert main([command, str(models / "row"), ROW]) == 0, capsys.readouterr().err


def test_nothing_is_not_this_folder(models: Path, capsys: Capture) -> None:
    for model in ("row", "text"):
        assert main(["explain", str(models / model), ""]) == 1
        assert "INPUT is empty, expected" in capsys.readouterr().err


def test_a_long_input_that_is_nothing_is_named_by_its_beginning(models: Path, capsys: Capture) -> None:
    assert main(["predict", str(models / "row"), "x" * 3000]) == 1
    assert f"error: {'x' * 80}… does not exist" in capsys.readouterr().err


def test_bytes_that_are_no_text_have_one_backslash() -> None:
    strip = token_strip(Console(no_color=True), ["\\xe9", "\\", "'", "\n"], [4.0, 3.0, 2.0, 1.0]).plain.splitlines()
    assert [line.split()[1] for line in strip] == ["'\\xe9'", "'\\'", '"\'"', "'\\n'"]


def test_special_tokens_are_numbered_and_do_not_set_the_scale() -> None:
    colours = Console(color_system="truecolor", force_terminal=True)
    strip = token_strip(colours, ["<s>", "a", "b"], [50.0, 1.0, -1.0], [0], 1.0)
    assert strip.plain == "<s> +50 ab\n"
    styles = [str(span.style) for span in strip.spans]
    assert styles[0] == styles[1] == "rgb(20,24,18) on rgb(224,90,20)"
    bars = token_strip(Console(no_color=True), ["<s>", "a", "b"], [50.0, 1.0, -0.5], [0], 1.0).plain.splitlines()
    assert [line.count("█") + line.count("#") for line in bars] == [24, 24, 12]


def test_a_folder_of_transformers_is_told_apart(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text("{}")
    for command in (["explain", str(tmp_path), "x"], ["generate", str(tmp_path)]):
        assert main(command) == 1
        assert "which lutetia explain --hf explains" in capsys.readouterr().err


def test_one_input_has_no_spread() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    screen = Console(width=120, record=True, file=io.StringIO())

    def shown(result: Faithfulness) -> str:
        screen.print(result)
        return screen.export_text()

    one = shown(evaluate(model, torch.randn(1, 4), steps=2))
    assert "nan" not in one
    assert "1 input; probability of the decision" in one
    assert " ± 0." in shown(evaluate(model, torch.randn(5, 4), steps=2))
