"""`lutetia train` with rows of dates and of groups: what it says, writes, and what `evaluate` and `build` measure on."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from lutetia.cli import build_tables, main
from lutetia.training import RefitTrial, TabularRows
from said import error, told

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def stays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Patients whose rows are alike, and whose diagnosis is a coin; four rows of each, on days of all the year."""
    random = np.random.default_rng(3)
    traits, coins = random.normal(size=(80, 2)).round(3), random.integers(0, 2, 80)
    days = (np.datetime64("2023-01-01") + np.arange(320)).astype(str)
    lines = [
        f"{days[n]},P{n % 80},{traits[n % 80][0]},{traits[n % 80][1]},{'ill' if coins[n % 80] else 'well'}\n" for n in range(320)
    ]
    path = tmp_path_factory.mktemp("stays") / "stays.csv"
    path.write_text("seen on,patient,a,b,state\n" + "".join(random.permutation(lines)))
    return path


def train(stays: Path, out: Path, *settings: str) -> list[str]:
    given = ("fit.n_tables=40", "fit.candidates=16", *settings)
    return ["train", str(stays), "--out", str(out), *(word for each in given for word in ("--set", each))]


def test_groups_show_what_rows_drawn_at_random_hide(stays: Path, tmp_path: Path, capsys: Capture) -> None:
    leave = 'data.leave_out=["seen on","patient"]'
    loose = told(capsys, *train(stays, tmp_path / "loose", leave))
    assert (loose["held_out"], loose["held_out_by"]) == ("random", None)
    assert loose["test"]["accuracy"] > 0.9
    assert loose["temperature"] < 1.5
    assert main(train(stays, tmp_path / "run", 'data.leave_out=["seen on"]', "data.split=groups", "data.split_by=patient")) == 0
    shown = capsys.readouterr().out
    assert "rows to test, whole groups by patient\n" in shown
    assert "patient  left out: its rows are held out together, as data.split_by says" in shown
    assert "probabilities were too high" in shown  # the trial of calibration sees other patients, too
    measured = told(capsys, "evaluate", tmp_path / "run")
    assert measured["accuracy"] < 0.75
    assert (measured["held_out"], measured["held_out_by"]) == ("groups", "patient")
    config = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["data"]
    assert (config["split"], config["split_by"]) == ("groups", "patient")
    assert told(capsys, "train", tmp_path / "run" / "config.toml")["test"]["accuracy"] == measured["accuracy"]


def test_dates_and_a_random_split_are_said_with_what_to_type(stays: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(train(stays, tmp_path / "a")) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "drawn at random" in line]
    asked = "--set data.split=latest --set 'data.split_by=\"seen on\"'"
    assert line == f"rows to test are drawn at random, not the latest; to test on the latest: {asked}"
    assert main(train(stays, tmp_path / "b", "data.split=latest", 'data.split_by="seen on"')) == 0
    shown = capsys.readouterr().out
    assert "256 rows to fit, 64 rows to test, the latest by seen on\n" in shown
    assert "drawn at random" not in shown
    assert main(train(stays, tmp_path / "last", "data.split=latest")) == 0
    shown = capsys.readouterr().out
    assert "rows to test, the last of the file\n" in shown
    assert "the file is not in the order of seen on; to test on its latest rows: --set 'data.split_by=\"seen on\"'\n" in shown
    head, *rows = stays.read_text().splitlines(keepends=True)
    (tmp_path / "sorted.csv").write_text(head + "".join(sorted(rows)))
    assert main(train(tmp_path / "sorted.csv", tmp_path / "d", "data.split=latest")) == 0
    assert "in the order of" not in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "b")]) == 0
    assert "64 samples of the test split, the latest by seen on\n" in capsys.readouterr().out
    assert "data.split is 'newest', expected one of 'random', 'latest', 'groups'" in error(
        capsys, *train(stays, tmp_path / "c", "data.split=newest")
    )
    assert not (tmp_path / "c").exists()


def test_the_trial_for_a_circuit_holds_out_whole_groups(
    stays: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[TabularRows] = []

    def watched(model: object, rows: TabularRows, n_tables: int, settings: object) -> RefitTrial:
        seen.append(rows)
        return RefitTrial(1, 1.0, 0.0, "accuracy")

    monkeypatch.setattr(build_tables, "try_refit", watched)
    asked = ("data.split=groups", "data.split_by=patient", 'data.leave_out=["seen on"]', "data.weight=b")
    data = tmp_path / "weighed.csv"
    data.write_text(stays.read_text().replace(",-", ","))
    told(capsys, *train(data, tmp_path / "run", *asked))
    told(capsys, "build", tmp_path / "run", "--tables", "10", "--out", tmp_path / "built", "--target", "c")
    assert seen
    assert seen[0].split.kind == "groups"
    assert len(np.unique(seen[0].split.key)) < 80
    assert np.ptp(seen[0].weight) > 0


def test_rows_without_a_weight_or_a_date_are_not_said_to_lack_a_target(tmp_path: Path, capsys: Capture) -> None:
    rows = [f"2023-01-{1 + n % 28:02},{n % 7},{'' if n == 5 else 1 + n % 3},{n % 2}\n" for n in range(60)]
    (tmp_path / "a.csv").write_text("seen,a,share,y\n" + "".join(rows))
    asked = ("data.skip_unusable=true", "data.weight=share", "fit.n_tables=3", "fit.monotone={seen=1}")
    assert main(train(tmp_path / "a.csv", tmp_path / "run", *asked)) == 0
    shown = capsys.readouterr().out
    assert "skipped 1 row without a target or without share: line 7 (data.skip_unusable in the config)\n" in shown
    assert "  seen is compared as a date, not by its month or weekday\n" in shown
