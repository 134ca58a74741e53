"""Patterns in images are chosen, tried and used where they help."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lutetia.cli import main
from lutetia.models import load
from lutetia.report import attribute_rows
from lutetia.training import patches
from lutetia.training.boosting import Boosting
from lutetia.training.patches import COUNTS_EACH, choose_patches, try_patches
from lutetia.training.tabular import Shape, TabularRows, fit_tabular
from tools import require_module

Array = np.ndarray[Any, Any]
FEW = Boosting(n_tables=30)
DETECTORS = 24  # a quarter of those of a run


@pytest.fixture(autouse=True)
def _fewer_detectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "N_DETECTORS", DETECTORS)
    monkeypatch.setattr(patches, "N_COUNTS", DETECTORS * patches.COUNTS_EACH)


def strokes(n: int, seed: int, side: int = 12) -> tuple[Array, Array]:
    """A stroke that falls to the right or to the left, anywhere: images float64 [n, side, side], and which it is."""
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 40, (n, side, side)), random.integers(0, 2, n)
    for image, kind in zip(x, y.tolist(), strict=True):
        top, left = random.integers(0, side - 5, 2)
        for step in range(5):
            image[top + step, left + (step if kind else 4 - step)] = 220
    return x / 255, y


def rows_of(x: Array, y: Array) -> TabularRows:
    return TabularRows(x.reshape(len(x), -1), y, np.ones(len(y), np.float32))


def shape_of(x: Array) -> Shape:
    return Shape(2, (0,) * x[0].size, x.shape[1:])


def test_what_lies_anywhere_is_learned_and_a_trial_says_so() -> None:
    (x, y), (more, wanted) = strokes(240, 0), strokes(200, 1)
    trial = try_patches(rows_of(x, y), shape_of(x), FEW)
    assert trial is not None
    assert trial.gains
    assert trial.rows == 48
    accuracy = {}
    for used in (False, True):
        model, _ = fit_tabular(rows_of(x, y), shape_of(x), replace(FEW, patches=used))
        assert (model.patches is not None) is used
        accuracy[used] = (model(torch.from_numpy(more)).argmax(1).numpy() == wanted).mean()
    assert accuracy[True] > 0.95
    assert accuracy[False] < 0.8


def test_what_single_pixels_say_needs_no_patterns() -> None:
    x = np.random.default_rng(0).random((240, 12, 12))
    y = (x[:, 3, 4] > 0.5).astype(np.int64)
    trial = try_patches(rows_of(x, y), shape_of(x), FEW)
    assert trial is not None
    assert not trial.gains


def test_too_few_images_are_not_tried() -> None:
    x, y = strokes(99, 0)
    assert try_patches(rows_of(x, y), shape_of(x), FEW) is None


def test_counts_without_an_effect_are_left_out_of_a_model() -> None:
    """The tables give the same answers with all counts, and with those they ask for."""
    x, y = strokes(160, 0)
    rows, shape = rows_of(x, y), shape_of(x)
    chosen = choose_patches(rows, shape, FEW.seed)
    assert chosen.n_counts == DETECTORS * COUNTS_EACH
    model, fitted = fit_tabular(rows, shape, replace(FEW, patches=True))
    assert model.patches is not None
    assert 0 < model.patches.n_counts < chosen.n_counts
    asked = np.unique(fitted.anchors[fitted.anchors < len(model.encoding.source)])
    assert set(range(144, len(model.encoding.source))) <= set(asked.tolist())
    places = {tuple(each): number for number, each in enumerate(_counts_of(chosen))}
    all_counts = chosen.counts(rows.x)
    own = model.patches.counts(rows.x)
    for number, each in enumerate(_counts_of(model.patches)):
        assert np.array_equal(own[:, number], all_counts[:, places[tuple(each)]])


def _counts_of(own: Any) -> list[list[Any]]:
    """Each count by what its detector is, not by its number."""
    return [[str(own.pairs[d].tolist()), int(own.plane[d]), int(own.threshold[d]), a, r] for d, a, r in own.counted.tolist()]


def test_numbers_are_predicted_from_patterns() -> None:
    x, _ = strokes(200, 0)
    y = np.random.default_rng(3).uniform(0, 1, 200)
    for image, number in zip(x, y.tolist(), strict=True):  # the darker the stroke, the smaller
        image[image > 0.5] = 0.3 + 0.7 * number
    shape = replace(shape_of(x), n_classes=1)
    model, _ = fit_tabular(rows_of(x, y), shape, replace(FEW, n_tables=80, patches=True, intervals=True))
    assert model.patches is not None
    predicted = model.numbers(torch.from_numpy(x)).numpy()
    assert np.corrcoef(predicted, y)[0, 1] > 0.9
    assert model.spreads(torch.from_numpy(x[:5])).shape == (5,)


def test_relevance_of_images_adds_up() -> None:
    x, y = strokes(120, 0)
    model, _ = fit_tabular(rows_of(x, y), shape_of(x), replace(FEW, patches=True))
    given = torch.from_numpy(x[:6])
    codes = model.encode(given)
    found = attribute_rows(model, given, torch.from_numpy(y[:6]), "decisive")
    assert found.shape == (6, 12, 12)
    single = torch.stack(
        [attribute_rows(model, given[i : i + 1], torch.from_numpy(y[i : i + 1]), "decisive")[0] for i in range(6)]
    )
    assert torch.allclose(found, single, atol=1e-5)
    # What tables give to inputs is shared among pixels, and nothing is lost.
    random = torch.randn(codes.shape, dtype=torch.float64)
    assert torch.allclose(model.by_column(random, given).sum(1), random.sum(1))


def test_the_command_decides_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("typer")
    x, y = strokes(200, 0)
    np.savez(tmp_path / "x.npz", x=(x * 255).round().astype(np.uint8), y=y)
    few = ["--set", "fit.n_tables=20", "--set", "data.shift=0", "--set", "fit.calibrate=false"]
    assert main(["train", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), *few]) == 0
    assert "patterns are counted in each image" in capsys.readouterr().out
    assert 'patches = "auto"' in (tmp_path / "run" / "config.toml").read_text()
    told = json.loads((tmp_path / "run" / "summary.json").read_text())["patches"]
    model: Any = load(tmp_path / "run")
    assert told["counts"] == model.patches.n_counts > 0
    assert told["trial"]["patches"] < told["trial"]["pixels"]
    again = ["train", str(tmp_path / "run" / "config.toml"), "--out", str(tmp_path / "plain"), "--set", "data.patches=false"]
    assert main(again) == 0
    assert load(tmp_path / "plain").patches is None  # type: ignore[attr-defined]
    assert "patterns" not in capsys.readouterr().out
    np.save(tmp_path / "one.npy", x[0])
    assert main(["explain", str(tmp_path / "run"), str(tmp_path / "one.npy"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["relevance"]) in (12, 144)


@pytest.mark.parametrize(("value", "message"), [("'maybe'", "one of 'auto', True, False"), ("1", "one of 'auto', True, False")])
def test_other_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str, message: str) -> None:
    require_module("typer")
    x, y = strokes(20, 0)
    np.savez(tmp_path / "x.npz", x=x, y=y)
    assert main(["train", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), "--set", f"data.patches={value}"]) != 0
    assert message in capsys.readouterr().err


def test_tables_of_columns_and_tiny_images_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("typer")
    x = np.random.default_rng(0).random((40, 7, 9))
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(40) % 2)
    assert main(["train", str(tmp_path / "x.npz"), "--out", str(tmp_path / "run"), "--set", "data.patches=true"]) != 0
    assert "too small" in capsys.readouterr().err
