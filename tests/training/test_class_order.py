"""Runs in steps number their classes in natural order, and keep the order of a model that has another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lutetia import models
from lutetia.errors import DataError
from lutetia.training import data, open_data, tables
from lutetia.training.config import DataConfig
from said import told

Capture = pytest.CaptureFixture[str]
NAMES = [f"type {number}" for number in range(12)]
CONFIG = """
[model]
kind = "classifier"
input_shape = [5]
n_classes = 12
readout = "none"
[[model.layers]]
kind = "lut"
n_outputs = 12
n_detectors = 32
n_anchors = 4
[data]
kind = "KIND"
path = "a.KIND"
test = 0.25
[optimizer.tables]
lr = 0.1
[train]
batch_size = 36
steps = 60
[checkpoint]
every = 30
"""


def write_data(folder: Path, kind: str) -> None:
    """Twelve classes whose bits say which of four columns are above the last one."""
    number = np.arange(240) % 12
    x = np.where(number[:, None] >> np.arange(4) & 1, 1.0, -1.0) * (1 + np.arange(240)[:, None] / 1000)
    x = np.concatenate([x, np.zeros((240, 1))], 1)
    words = [NAMES[each] for each in number]
    if kind == "npz":
        np.savez(folder / "a.npz", x=x, y=np.array(words))
    else:
        lines = [",".join([*(f"{value:.3f}" for value in row), word]) for row, word in zip(x, words, strict=True)]
        (folder / "a.csv").write_text("\n".join(["a,b,c,d,e,kind", *lines]))
    (folder / "a.toml").write_text(CONFIG.replace("KIND", kind))


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_natural_order_and_models_that_have_another(
    kind: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path, kind)
    train = ["train", tmp_path / "a.toml", "--out"]
    with monkeypatch.context() as older:
        for module in (tables, data):
            older.setattr(module, "class_order", str)
        saved = told(capsys, *train, tmp_path / "older")
    new = told(capsys, *train, tmp_path / "new")
    assert models.load(tmp_path / "older").metadata["classes"] == sorted(NAMES) != NAMES
    assert models.load(tmp_path / "new").metadata["classes"] == NAMES
    for summary, run in ((saved, tmp_path / "older"), (new, tmp_path / "new")):
        assert summary["test"]["accuracy"] > 0.9
        assert told(capsys, "evaluate", run)["accuracy"] == summary["test"]["accuracy"]
        program = told(capsys, "build", run, "--target", "c", "--out", tmp_path / "program")
        assert program["accuracy"]["float_accuracy"] == summary["test"]["accuracy"]
        longer = told(capsys, *train, run, "--resume", "--set", "train.steps=90")
        assert (longer["step"], longer["test"]["accuracy"] > 0.9) == (90, True)
    assert models.load(tmp_path / "older").metadata["classes"] == sorted(NAMES)


def test_a_file_with_some_of_the_classes_has_their_numbers(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.array(["type 10", "type 9", "type 10"]))
    wanted = DataConfig("npz", path="a.npz")
    opened = open_data(wanted, tmp_path, NAMES)
    assert (opened.splits["train"].y.tolist(), opened.n_classes) == ([10, 9, 10], 12)
    assert open_data(wanted, tmp_path).splits["train"].y.tolist() == [1, 0, 1]
    with pytest.raises(DataError, match="has the class 'type 9', which the model was not trained on"):
        open_data(wanted, tmp_path, ["type 10", "type 11"])
