"""Regressions from the command line: intervals, and large numbers as people write them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pandas
import pytest

from cli.test_train_table import Capture, told
from lutetia._shared.numbers import short_number
from lutetia.cli import build, main
from lutetia.models import load
from lutetia.sklearn import LUTRegressor
from lutetia.training import table_files

TABLES = ("--set", "fit.n_tables=60")


def test_intervals_fit_the_row(tmp_path: Path, capsys: Capture) -> None:
    """Noise of 1/2 and of 2, by the sign of a column: 1.645 times that is the ideal reach, 1.2816 · 2 = 2.563 where all are
    equal, which always holds the quiet half and four in five of the other."""
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (6000, 2))
    loud = x[:, 1] > 0
    frame = pandas.DataFrame(
        {"a": x[:, 0], "b": x[:, 1], "size": 3 * x[:, 0] + np.where(loud, 2, 0.5) * random.normal(size=6000)}
    )
    frame[:3000].to_csv(tmp_path / "known.csv", index=False)
    frame[3000:].to_csv(tmp_path / "new.csv", index=False)
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "known.csv"), "--out", str(run), *TABLES]) == 0
    shown = capsys.readouterr().out
    assert "2,400 rows to fit, 600 rows to test\n" in shown
    assert tomllib.loads((run / "config.toml").read_text())["fit"]["intervals"] is True
    known = load(run).metadata
    rows = told(capsys, "predict", run, tmp_path / "new.csv")["predictions"]
    size, quiet = frame["size"][3000:].to_numpy(), ~loud[3000:]
    low, high = (np.array([each[end] for each in rows]) for end in ("low", "high"))
    inside, reach = (low <= size) & (size <= high), (high - low) / 2
    assert 0.87 < inside.mean() < 0.93
    assert 0.85 < inside[quiet].mean() < 0.97  # of equally wide intervals all
    assert 0.83 < inside[~quiet].mean() < 0.95  # of those 0.8
    assert 0.9 * 2.056 < reach.mean() < 1.1 * 2.056
    assert known["error_90"] == pytest.approx(2.563, rel=0.1)
    assert reach.mean() < 0.87 * known["error_90"]
    assert reach[quiet].mean() == pytest.approx(1.645 / 2, rel=0.3)
    found = told(capsys, "evaluate", run, tmp_path / "new.csv")
    assert found["inside_90"] == pytest.approx(inside.mean(), abs=1e-3)
    assert found["width_90"] == pytest.approx(2 * reach.mean(), rel=1e-5)
    test = json.loads((run / "summary.json").read_text())["test"]
    assert test["inside_90"] >= 0.9
    assert f"{test['inside_90']:.1%} in their intervals of ±{short_number(test['width_90'] / 2)} on average" in shown
    model = LUTRegressor.load(run)
    np.testing.assert_allclose(model.predict_interval(frame[["a", "b"]][3000:]), np.stack([low, high], 1), atol=1e-4)


def test_numbers_have_intervals(tmp_path: Path, capsys: Capture) -> None:
    """Nine in ten new rows lie inside, whatever the noise; errors of the test rows say how wide that is."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 2))
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "size": 3 * x[:, 0] + random.laplace(0, 2, 3000)})
    frame[:1500].to_csv(tmp_path / "known.csv", index=False)
    frame[1500:].to_csv(tmp_path / "new.csv", index=False)
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "known.csv"), "--out", str(run), *TABLES, "--set", "fit.intervals=false"]) == 0
    error_90 = load(run).metadata["error_90"]
    assert f", 9 of 10 rows within ±{error_90:.4g}" in capsys.readouterr().out
    rows = told(capsys, "predict", run, tmp_path / "new.csv", "--csv", tmp_path / "out.csv")["predictions"]
    inside = np.mean([each["low"] <= size <= each["high"] for each, size in zip(rows, frame["size"][1500:], strict=True)])
    assert 0.86 < inside < 0.94
    written = pandas.read_csv(tmp_path / "out.csv")
    assert list(written.columns) == ["input", "size", "size low", "size high"]
    np.testing.assert_allclose(written["size high"] - written["size"], error_90)
    (typed,) = told(capsys, "predict", run, "0.5,0.5")["predictions"]
    assert main(["predict", str(run), "0.5,0.5"]) == 0
    between = f"size {typed['value']:.6g}, {typed['low']:.6g} to {typed['high']:.6g} in 9 of 10 cases"
    assert between in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "digits", "sign", "text"),
    [
        (29147.3, 4, False, "29,150"), (-29147.3, 3, True, "-29,100"), (9999.4, 4, True, "+9999"),
        (0.001234, 3, True, "+0.00123"),
        (1234567.8, 6, False, "1,234,570"), (270549.2, 6, False, "270549"), (2e20, 4, False, "2e+20"), (0.0, 4, False, "0"),
        (float("nan"), 4, False, "nan"),
    ],
)  # fmt: skip
def test_numbers_on_a_screen(value: float, digits: int, sign: bool, text: str) -> None:
    assert short_number(value, digits, sign) == text


def test_large_numbers_are_written_out(tmp_path: Path, capsys: Capture) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2))
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "price": 3e6 + 1e6 * x[:, 0] + 1e5 * random.normal(size=200)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    run = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "a.csv"), "--out", run, "--set", "fit.n_tables=60"]) == 0
    for command in (["predict", "0.5,0.5"], ["explain", "0.5,0.5"], ["evaluate"], ["info"]):
        assert main([command[0], run, *command[1:]]) == 0
    screen = capsys.readouterr().out
    assert "e+0" not in screen
    assert "predicts   price, 9 of 10 test rows within ±" in screen
    assert "classes" not in screen


def test_large_numbers_are_written_out_on_pages(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a regression on the page of a build, and thresholds and values of columns on that of an explanation."""
    monkeypatch.setattr(build, "CHECK", ())
    random = np.random.default_rng(0)
    income = random.integers(1_000_000, 9_000_000, size=300)
    price = 3 * income + random.integers(0, 5_000_000, size=300)
    pandas.DataFrame({"income": income, "b": random.random(300), "price": price}).to_csv(tmp_path / "a.csv", index=False)
    run, circuit = str(tmp_path / "run"), tmp_path / "circuit"
    told(capsys, "train", tmp_path / "a.csv", "--out", run, "--set", "fit.n_tables=20")
    assert main(["build", run, "--out", str(circuit), "--tables", "8"]) == 0
    rmse = short_number(json.loads((circuit / "report.json").read_text())["accuracy"]["float_rmse"])
    assert "," in rmse
    screen, page = capsys.readouterr().out, (circuit / "summary.html").read_text()
    assert f"model {rmse}, " in screen
    assert "e+0" not in screen
    assert rmse in page
    assert "e+0" not in page[page.index("<body") :]
    kinds = np.where(income > 5_000_000, "high", "low")
    pandas.DataFrame({"income": income, "b": random.random(300), "kind": kinds}).to_csv(tmp_path / "b.csv", index=False)
    told(capsys, "train", tmp_path / "b.csv", "--out", tmp_path / "kinds", "--set", "fit.n_tables=20")
    assert main(["explain", str(tmp_path / "kinds"), str(tmp_path / "b.csv"), "--html", str(tmp_path / "why.html")]) == 0
    screen, page = capsys.readouterr().out, (tmp_path / "why.html").read_text()
    value = f"income = {short_number(income[0], 6)}"
    for shown in (screen, page[page.index("<body") :]):
        assert value in shown
        assert "e+0" not in shown


def test_a_table_is_read_once(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guess, the screen and the fit share what was read; another file named by --set is read as well."""
    text = "a,y\n" + "".join(f"{row % 7},{row % 2}\n" for row in range(40))
    for name in ("one.csv", "other.csv"):
        (tmp_path / name).write_text(text)
    seen: list[str] = []
    read = table_files.read_cells
    monkeypatch.setattr(table_files, "read_cells", lambda path: (seen.append(path.name), read(path))[1])
    fit = ["train", str(tmp_path / "one.csv"), "--set", "fit.n_tables=2"]
    assert main([*fit, "--out", str(tmp_path / "a")]) == 0
    assert seen == ["one.csv"]
    seen.clear()
    assert main([*fit, "--out", str(tmp_path / "b"), "--set", f"data.path={tmp_path / 'other.csv'}"]) == 0
    assert seen == ["one.csv", "other.csv"]
    capsys.readouterr()


def test_info_quotes_names_with_commas(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.csv").write_text('a,"b, c",y\n' + "".join(f"{row % 7},{row % 5},{row % 2}\n" for row in range(40)))
    run = str(tmp_path / "run")
    assert main(["train", str(tmp_path / "a.csv"), "--set", "fit.n_tables=2", "--out", run]) == 0
    capsys.readouterr()
    assert main(["info", run]) == 0
    assert 'features   a, "b, c"\n' in capsys.readouterr().out
