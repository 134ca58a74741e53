"""Shapes that are chosen for windows of signals, the trial that says whether they help, and runs that count them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lutetia.cli.evaluate import EvaluateRequest, evaluate
from lutetia.errors import DataError
from lutetia.models import SHAPE_KERNELS, load, most_apart, shape_counts, signal_windows
from lutetia.models.windows import SignalColumn, SignalWindows
from lutetia.training import (
    Boosting,
    LabelledWindows,
    choose_shapes,
    guess_windows,
    make_table_config,
    read_table_file,
    train_table,
    try_shapes,
)
from lutetia.training import signal_shapes as chosen

FAST = Boosting(n_tables=60, n_anchors=2, pairs=0.0)
LENGTH = 40


def pulses(n: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Windows one after another, samples int64 [rows, 2]: in one class the first signal rises slowly and falls at once, in the
    other it rises at once; the second is noise."""
    random, y = np.random.default_rng(seed), np.arange(n) % 2
    saw = (np.arange(LENGTH) + random.integers(0, 10, (n, 1))) % 10 * 20
    x = np.where(y[:, None], 180 - saw, saw) + random.normal(0, 15, (n, LENGTH))
    return np.stack([x.round(), random.normal(0, 50, x.shape).round()], 2).reshape(-1, 2).astype(np.int64), y


def labelled(n: int, seed: int = 0) -> LabelledWindows:
    samples, y = pulses(n, seed)
    windows = SignalWindows(LENGTH, LENGTH, (SignalColumn("a"), SignalColumn("b")))
    return LabelledWindows(windows, samples, np.arange(n) * LENGTH, y, 2)


def test_chosen_shapes_tell_classes_apart_and_differ() -> None:
    given = labelled(80)
    shapes = choose_shapes(given)
    assert len(set(shapes)) == len(shapes) == chosen.N_SHAPES
    assert choose_shapes(given) == shapes
    assert {own.signal for own in shapes} <= {0, 1}
    assert all(1 <= own.apart <= most_apart(LENGTH) and 0 <= own.kernel < len(SHAPE_KERNELS) for own in shapes)
    counts = shape_counts(given.samples, given.starts, shapes, LENGTH).astype(float)
    alike = np.corrcoef(counts.T) - np.eye(len(shapes))
    assert np.abs(alike).max() <= chosen.MOST_ALIKE + 1e-4
    means = [counts[given.y == label].mean(0) for label in (0, 1)]
    assert (np.abs(means[0] - means[1]) / (counts.std(0) + 1e-9)).max() > 1.5
    first = sum(own.signal == 0 for own in shapes)
    assert first > len(shapes) / 2  # the other is noise


def test_of_shapes_that_are_alike_one_is_kept() -> None:
    given = labelled(80)
    twice = replace(given, samples=given.samples[:, [0, 0]] // 20 * 20)
    shapes = choose_shapes(twice)
    counts = shape_counts(twice.samples, twice.starts, shapes, LENGTH).astype(float)
    assert np.abs(np.corrcoef(counts.T) - np.eye(len(shapes))).max() <= chosen.MOST_ALIKE + 1e-4


def test_a_trial_says_whether_shapes_help() -> None:
    given = labelled(80)
    trial = try_shapes(given, FAST)
    assert trial is not None
    assert trial.gains
    assert trial.rows == chosen.TURNS * 16
    assert (trial.least, replace(trial, shapes=trial.plain - 0.004).gains) == (0.005, False)
    level = replace(given, samples=given.samples + np.repeat(given.y, LENGTH)[:, None] * 1000)
    assert not getattr(try_shapes(level, FAST), "gains", True)
    by_number = replace(given, y=given.y + 0.5, n_classes=1)
    numbers = try_shapes(by_number, FAST)
    assert numbers is not None
    assert numbers.gains
    assert numbers.least == 0.005 * numbers.plain
    assert try_shapes(given.at(slice(chosen.FEWEST_TRIED - 1)), FAST) is None
    assert try_shapes(replace(given, y=np.zeros(80, np.int64)), FAST) is None


def test_few_windows_of_many_classes_can_be_tried() -> None:
    given = labelled(40)
    trial = try_shapes(replace(given, y=np.arange(40) // 2, n_classes=20), FAST)
    assert trial is not None
    assert np.isfinite([trial.plain, trial.shapes]).all()
    assert trial.rows < chosen.TURNS * 8  # those whose class was held out whole say nothing


def test_windows_that_no_shape_fits_or_that_do_not_vary_have_none() -> None:
    given = labelled(40)
    short = replace(given, windows=SignalWindows(8, 8, given.windows.signals))
    assert choose_shapes(short) == ()
    assert choose_shapes(replace(given, samples=np.ones_like(given.samples))) == ()
    assert len(choose_shapes(replace(given, windows=SignalWindows(9, 9, given.windows.signals)))) > 0


def test_many_signals_share_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen, "MOST_CANDIDATES", 400)
    shapes = choose_shapes(labelled(80))
    assert 0 < len(shapes) <= 200
    assert len({own.kernel for own in shapes}) > 20


def write(path: Path, n: int) -> Path:
    samples, y = pulses(n)
    lines = ["trial,a,b,label"]
    lines += [
        f"{row // (4 * LENGTH)},{a},{b},{'up' if y[row // LENGTH] else 'down'}" for row, (a, b) in enumerate(samples.tolist())
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(("wanted", "gains"), [("auto", True), ("true", True), ("false", False)])
def test_a_run_counts_shapes_chosen_by_what_is_fitted(
    wanted: str, gains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fitted = write(tmp_path / "pulses.csv", 120), []
    monkeypatch.setattr(
        "lutetia.training.shape_run.choose_shapes", lambda own, seed: fitted.append(own) or choose_shapes(own, seed)
    )
    settings = [f"data.window={LENGTH}", f"data.step={LENGTH}", "data.series=trial"]
    values = guess_windows(path, read_table_file(path), "label", None, settings).to_dict()
    assert values["data"]["shapes"] == "auto"
    assert (values["fit"]["n_tables"], values["fit"]["n_anchors"]) == (1500, 2)
    values["data"]["shapes"] = {"auto": "auto", "true": True, "false": False}[wanted]
    values["fit"] |= {"n_tables": 60, "calibrate": False, "enough_tables": False}
    summary = train_table(make_table_config(values, "config"), Path(), tmp_path / "run")
    windows = signal_windows(load(tmp_path / "run").metadata)
    assert windows is not None
    assert bool(windows.shapes) == gains
    assert (summary["test"]["accuracy"] > 0.95) == gains
    if not gains:
        assert "shapes" not in summary
        return
    assert [len(own.y) for own in fitted] == [summary["rows"]["train"]]
    assert summary["shapes"]["counts"] == len(windows.shapes)
    assert (summary["shapes"]["trial"] is not None) == (wanted == "auto")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["shapes"] == summary["shapes"]
    request = EvaluateRequest(None, None, None, None)
    assert evaluate(tmp_path / "run", request, show=False)["accuracy"] == summary["test"]["accuracy"]


def test_settings_of_shapes_that_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "pulses.csv", 40)
    values = guess_windows(path, read_table_file(path), "label", None, ["data.window=8"]).to_dict()
    assert "shapes" not in values["data"]
    values["data"]["shapes"] = True
    with pytest.raises(DataError, match="expected windows of 9 rows"):
        train_table(make_table_config(values, "config"), Path(), tmp_path / "run")
    del values["data"]["window"], values["data"]["step"], values["data"]["signals"]
    with pytest.raises(DataError, match=r"expected false without data\.window"):
        train_table(make_table_config(values, "config"), Path(), tmp_path / "run")
    assert not (tmp_path / "run" / "config.toml").exists()
