"""`lutetia compare`: what it reads, prints and writes, and that nothing hangs."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apart_work import count, fall, linger

from lutetia.cli import compare, main
from lutetia.cli.apart import Ended, Overtime, apart
from lutetia.sklearn import PEER_METHODS, contestants, play
from said import error, told

Capture = pytest.CaptureFixture[str]
FEW = ("--set", "fit.n_tables=8", "--folds", "2")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, which has loaded everything, and two other methods."""
    few = tuple(each for each in PEER_METHODS if each.name in ("constant answer", "linear model"))
    monkeypatch.setattr(compare, "play_apart", lambda contest, fit, seconds: play(contest, fit))
    monkeypatch.setattr(compare, "contestants", partial(contestants, methods=few))


@pytest.fixture
def houses(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    lines = ["size,<b>town</b>,sold,price,kind"]
    for day in range(90):
        size, town = random.uniform(30, 200), ("Rome", "Oslo", "")[random.integers(3)]
        price = 2 * size + 90 * (town == "Oslo")
        kind = "dear" if price > 300 else "cheap"
        lines.append(f"{size:.1f},{town},2024-{1 + day // 28:02}-{1 + day % 28:02},{price:.1f},{kind}")
    path = tmp_path / "houses & more.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_first_fold_is_the_test_of_train(houses: Path, tmp_path: Path, capsys: Capture) -> None:
    cases: dict[str, tuple[str, str, tuple[str, ...]]] = {
        "classes": ("kind", "accuracy", ("--set", 'data.leave_out=["price"]')),
        "numbers": (
            "price",
            "rmse",
            ("--set", 'data.leave_out=["kind"]', "--set", "data.split=groups", "--set", "data.split_by=sold"),
        ),
    }
    for name, (target, key, settings) in cases.items():
        given = ["--target", target, *settings, "--set", "fit.n_tables=8"]
        trained = told(capsys, "train", houses, "--out", tmp_path / name, *given)["test"][key]
        compared = told(capsys, "compare", houses, *given, "--folds", "2")
        (own,) = [row for row in compared["methods"] if row["method"] == "Lutetia"]
        assert own["folds"][0] == pytest.approx(trained, rel=1e-5)
    again = told(capsys, "compare", tmp_path / name / "config.toml", "--folds", "2")  # what train wrote
    (same,) = [row for row in again["methods"] if row["method"] == "Lutetia"]
    assert same["folds"] == own["folds"]


@pytest.mark.parametrize("shapes", ["true", "auto", "false"])
def test_shapes_of_windows_are_chosen_in_each_fold(shapes: str, tmp_path: Path, capsys: Capture) -> None:
    random, lines = np.random.default_rng(0), ["who,x,kind"]
    for person in range(10):
        x = random.normal(0, 0.3, 200)
        for beat in range(5, 190, 20):  # the second peak comes at once, or at any time
            x[beat] += 3
            x[beat + (4 if person % 2 else random.integers(2, 14))] += 1.5
        lines += [f"p{person},{value:.2f},{'even' if person % 2 else 'odd'}" for value in x]
    (tmp_path / "beats.csv").write_text("\n".join(lines) + "\n")
    given = ["--target", "kind", *FEW[:2]]
    for setting in ("data.window=40", "data.series=who", f"data.shapes={shapes}"):
        given += ["--set", setting]
    trained = told(capsys, "train", tmp_path / "beats.csv", *given, "--out", tmp_path / "run")
    compared = told(capsys, "compare", tmp_path / "beats.csv", *given, "--folds", "2")
    (own,) = [row for row in compared["methods"] if row["method"] == "Lutetia"]
    assert own["folds"][0] == pytest.approx(trained["test"]["accuracy"], rel=1e-5)
    assert any("may count shapes" in line for line in compared["given"]) == (shapes != "false")
    assert (trained.get("shapes", {}).get("counts", 0) > 0) == (shapes == "true") or shapes == "auto"


def test_json_says_what_the_guide_lists(houses: Path, capsys: Capture) -> None:
    document = told(capsys, "compare", houses, "--target", "kind", *FEW)
    guide = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    for key in (*document, *{key for row in document["methods"] for key in row}):
        assert f"`{key}`" in guide, key
    assert document["classes"] == ["cheap", "dear"]
    assert [each["fit"] + each["test"] for each in document["folds"]] == [90, 90]
    assert [each.split(":")[0] for each in document["given"]] == ["categories", "missing values", "dates"]
    for row in document["methods"]:
        assert row["score"] == pytest.approx(np.mean(row["folds"]))
        assert row["bytes"] > 100
        assert row["fit_seconds"] > 0


def test_the_screen_says_how_and_what(houses: Path, capsys: Capture) -> None:
    assert main(["compare", str(houses), "--target", "price", *FEW, "--set", 'data.leave_out=["kind"]']) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "regression of price: 72 rows to fit, 18 rows to test"
    assert any(re.search(r"│ linear model +│ +[\d.]+ │", line) for line in lines)
    assert any(line.startswith("means of 2 folds of 90 rows, 72 to fit and 18 to test in the first; 36 rows") for line in lines)
    assert "Lutetia" in lines[-1]
    assert said.err.splitlines()[-1].startswith("next: lutetia train ")


def test_names_are_escaped_on_the_page(tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "page.html"
    rows = "".join(f"{n},{n % 7}\n" for n in range(40))
    (tmp_path / "a<i>.csv").write_text(f"a,<b>price</b>\n{rows}")
    told(capsys, "compare", tmp_path / "a<i>.csv", "--task", "regression", *FEW, "--html", page)
    text = page.read_text()
    assert "a&lt;i&gt;.csv: &lt;b&gt;price&lt;/b&gt;" in text
    assert "<b>price" not in text
    assert "<i>.csv" not in text
    assert text.count('class="curve"') == 1  # the constant answer is far off, and not drawn
    assert "Lutetia is better" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "prize"], "has no column 'prize' to predict (--target): did you mean price?"),
        (["--set", "fit.n_table=3"], "n_table"),
        (["--set", "data.test=0"], "data.test is 0, expected more"),
        (["--folds", "1"], "--folds is 1, expected 2 to 20"),
        (["--minutes", "0"], "--minutes is 0, expected a number above 0"),
        (["--html", "page.txt"], "--html is 'page.txt', expected a name that ends in"),
    ],
)
def test_what_cannot_be_compared_is_refused(words: list[str], said: str, houses: Path, tmp_path: Path, capsys: Capture) -> None:
    found = error(capsys, "compare", houses, *words)
    assert said in found
    if words[0] in ("--target", "--set") and "test" not in words[1]:
        assert found == error(capsys, "train", houses, *words, "--out", tmp_path / "run")


def test_what_takes_too_long_or_ends_is_left_out(houses: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def some(contest: Any, fit: Any, seconds: float) -> Iterator[Any]:
        assert seconds == 30
        first, *_ = play(contest, fit)
        yield first
        raise Overtime

    def none(contest: Any, fit: Any, seconds: float) -> Iterator[Any]:
        raise Ended("its process ended with signal 9")

    turns = [lambda contest, fit, _: play(contest, fit), some, none]
    monkeypatch.setattr(compare, "play_apart", lambda *given: turns.pop(0)(*given))
    document = told(capsys, "compare", houses, "--target", "kind", *FEW, "--minutes", "0.5")
    assert document["left_out"] == {
        "constant answer": "it took longer than 0.5 minutes, 1 of 2 folds were done: --minutes gives more",
        "linear model": "its process ended with signal 9",
    }
    assert document["verdict"] == "There is nothing to say: the other methods were not measured."
    turns[:] = [none]
    assert "the fit of our own model did not end well: its process" in error(capsys, "compare", houses, "--target", "kind", *FEW)


# ---- processes -------------------------------------------------------------------------------------------------------


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow  # it starts a process that imports all of it
def test_a_whole_comparison_runs_apart(houses: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.undo()
    document = told(capsys, "compare", houses, "--target", "kind", *FEW)
    assert {"Lutetia", "random forest", "HistGradientBoosting"} <= {row["method"] for row in document["methods"]}
    assert json.dumps(document)


def test_work_apart_yields_ends_and_fails() -> None:
    seconds = 60.0
    assert [*apart(count, (3,), seconds, ())] == [0, 1, 2]
    work = apart(linger, (), 0.5, ())
    process = next(work)
    with pytest.raises(Overtime):
        next(work)
    assert not is_alive(process)
    with pytest.raises(Ended, match="it failed: ValueError: no such thing"):
        [*apart(fall, (0,), seconds, ())]
    with pytest.raises(Ended, match=rf"its process ended with signal {int(signal.SIGKILL)} \(out of memory\?\)"):
        [*apart(fall, (signal.SIGKILL,), seconds, ())]
