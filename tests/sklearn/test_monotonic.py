"""`monotonic_cst` of the estimators, as scikit-learn has it, and `fit.monotone` of `lutetia train`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor

from lutetia.sklearn import LUTClassifier, LUTRegressor
from said import error, told

Capture = pytest.CaptureFixture[str]


def frame(n: int = 300) -> tuple[pandas.DataFrame, np.ndarray]:
    random = np.random.default_rng(0)
    x = pandas.DataFrame(
        {"age": random.integers(18, 80, n), "price": random.integers(0, 60, n), "kind": random.integers(0, 3, n)}
    )
    return x, np.sin(x.age / 9) - np.cos(x.price / 7) + 0.2 * random.normal(size=n)


def walks(x: pandas.DataFrame, column: str) -> pandas.DataFrame:
    """Twenty rows, each with all values of a column."""
    values = np.arange(x[column].min() - 1, x[column].max() + 2)
    walked = x[:20].loc[np.repeat(np.arange(20), len(values))].reset_index(drop=True)
    return walked.assign(**{column: np.tile(values, 20)})


def steps(predict: Any, x: pandas.DataFrame, column: str) -> np.ndarray:
    return np.diff(predict(walks(x, column)).reshape(20, -1), axis=1)


@pytest.mark.parametrize("given", [{"age": 1, "price": -1}, [1, -1, 0], np.array([1, -1, 0])])
def test_a_regressor_follows_names_and_numbers_alike(given: Any, tmp_path: Path) -> None:
    x, y = frame()
    model = LUTRegressor(n_tables=40, monotonic_cst=given, random_state=0).fit(x, y)
    peer = HistGradientBoostingRegressor(max_iter=20, monotonic_cst=given, random_state=0).fit(x, y)
    for each in (model, peer):
        assert (steps(each.predict, x, "age") >= 0).all()
        assert (steps(each.predict, x, "price") <= 0).all()
    assert (steps(LUTRegressor(n_tables=40, random_state=0).fit(x, y).predict, x, "age") < 0).any()
    assert model.model_.config.monotone == (1, -1, 0)
    np.testing.assert_array_equal(clone(model).fit(x, y).predict(x), model.predict(x))
    model.save(tmp_path / "model")
    again = LUTRegressor.load(tmp_path / "model")
    assert dict(again.monotonic_cst) == given if isinstance(given, dict) else list(again.monotonic_cst) == list(given)
    np.testing.assert_array_equal(again.fit(x, y).predict(x), model.predict(x))


def test_a_classifier_constrains_the_second_class() -> None:
    x, y = frame()
    words = np.where(y > 0, "yes", "no")
    model = LUTClassifier(n_tables=40, monotonic_cst={"age": -1}, calibrate=True, random_state=0).fit(x, words)
    assert (steps(model.decision_function, x, "age") <= 0).all()
    assert (steps(lambda rows: model.predict_proba(rows)[:, 1], x, "age") <= 0).all()
    assert (steps(lambda rows: (model.predict(rows) == "yes").astype(int), x, "age") <= 0).all()


def test_nothing_constrained_is_no_constraint() -> None:
    x, y = frame()
    free, none = (LUTRegressor(n_tables=10, monotonic_cst=each, random_state=0).fit(x, y) for each in (None, [0, 0, 0]))
    np.testing.assert_array_equal(free.predict(x), none.predict(x))
    assert none.model_.config.monotone == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 0], r"shape \(2,\), expected \(3,\)"),
        ([1, 0, 2], "expected -1, 0 or 1"),
        ([1, 0, "up"], "expected -1, 0 or 1"),
        ([True, False, False], "expected -1, 0 or 1"),
        ({"weight": 1}, "'weight', which is not a column of the training data: expected one of age, price"),
        ({"prise": 1}, r"did you mean price\?"),
        ({"age": "up"}, "expected -1, 0 or 1"),
        (1, r"shape \(\)"),
    ],
)
def test_what_cannot_be_a_constraint(given: Any, message: str) -> None:
    x, y = frame(40)
    with pytest.raises(ValueError, match=message):
        LUTRegressor(n_tables=2, monotonic_cst=given).fit(x, y)


def test_constraints_need_names_numbers_and_two_classes() -> None:
    x, y = frame(60)
    with pytest.raises(ValueError, match="needs a table whose columns have names"):
        LUTRegressor(n_tables=2, monotonic_cst={"age": 1}).fit(x.to_numpy(), y)
    with pytest.raises(ValueError, match="not supported for multiclass"):
        LUTClassifier(n_tables=2, monotonic_cst=[1, 0, 0]).fit(x, x.kind)
    with pytest.raises(ValueError, match="Categorical features cannot have monotonic constraints: 'kind'"):
        LUTRegressor(n_tables=2, monotonic_cst=[0, 0, 1], categorical_features=["kind"]).fit(x, y)


# ---- lutetia train ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y = frame()
    path = tmp_path_factory.mktemp("people") / "people.csv"
    x.assign(kind=np.array(list("abc"))[x.kind], answer=np.where(y > 0, "9", "10")).to_csv(path, index=False)
    return path


def test_a_run_keeps_its_constraint_to_the_circuit(people: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    ask = ["--set", "fit.n_tables=40", "--set", "fit.monotone={age=1}", "--set", "fit.monotone.price=-1"]
    summary = told(capsys, "train", people, "--out", out, *ask)
    assert summary["monotone"] == {"age": 1, "price": -1}
    assert tomllib.loads((out / "config.toml").read_text())["fit"]["monotone"] == {"age": 1, "price": -1}
    again = told(capsys, "train", out / "config.toml")
    assert again["test"]["loss"] == summary["test"]["loss"]
    x, _ = frame()
    x = x.assign(kind=np.array(list("abc"))[x.kind])
    model = LUTClassifier.load(out)  # its classes are "10" and "9", those of the run 9 and 10
    assert model.classes_.tolist() == ["10", "9"]
    assert list(model.monotonic_cst) == [-1, 1, 0]
    assert (steps(model.decision_function, x, "age") <= 0).all()
    assert (steps(model.decision_function, x, "price") >= 0).all()
    assert (steps(model.decision_function, x, "age") < 0).any()
    kept = told(capsys, "build", out, "--target", "c", "--tables", 12, "--refit", "--out", tmp_path / "c")
    assert kept
    assert "would break fit.monotone of this model: build without it" in error(
        capsys, "build", out, "--drop-unseen", "--out", tmp_path / "built"
    )
    assert not (tmp_path / "built").exists()


def test_the_command_says_what_is_constrained(people: Path, tmp_path: Path, capsys: Capture) -> None:
    from lutetia.cli import main

    command = ["train", str(people), "--out", str(tmp_path / "run"), "--set", "fit.n_tables=3"]
    assert main([*command, "--set", "fit.monotone={age=1, price=-1}"]) == 0
    said = "the probability of 10 never falls as age rises, and never rises as price rises"
    assert f"  {said} (fit.monotone)\n" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "run")]) == 0
    assert f"monotone   {said}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("fit.monotone={age=2}", "'age' is 2, expected -1, 0 or 1"),
        ("fit.monotone={age=true}", "'age' is True, expected -1, 0 or 1"),
        ("fit.monotone={nobody=1}", "people.csv: expected one of age, price, kind"),
        ("fit.monotone={prise=1}", "'prise', which is not an input of"),
        ("fit.monotone={prise=1}", "people.csv: did you mean price?"),
        ("fit.monotone={kind=1}", "'kind', which holds categories"),
        ("fit.monotone=[1]", "fit.monotone is [1], expected a table"),
        ('data.leave_out=["age"]', "'age', which is not an input of"),
        ("data.target=kind", "is for numbers and two classes"),
    ],
)
def test_what_a_config_cannot_ask_for(people: Path, tmp_path: Path, capsys: Capture, setting: str, message: str) -> None:
    ask = () if "monotone" in setting else ("--set", "fit.monotone={age=1}")
    said = error(capsys, "train", people, "--out", tmp_path / "run", *ask, "--set", setting)
    assert message in said
    assert not (tmp_path / "run" / "config.toml").exists()


def test_a_wrong_constraint_is_refused_before_the_screen_says_that_it_holds(
    people: Path, tmp_path: Path, capsys: Capture
) -> None:
    from lutetia.cli import main

    assert main(["train", str(people), "--out", str(tmp_path / "run"), "--set", "fit.monotone={prise=1}"]) == 1
    assert capsys.readouterr().out == ""
