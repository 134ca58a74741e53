"""`interaction_cst` of the estimators, as scikit-learn has it, and `fit.interactions` of `lutetia train`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor

from lutetia.sklearn import LUTClassifier, LUTRanker, LUTRegressor
from said import error, told

Capture = pytest.CaptureFixture[str]


def frame(n: int = 300) -> tuple[pandas.DataFrame, np.ndarray]:
    random = np.random.default_rng(0)
    x = pandas.DataFrame({name: random.integers(0, 20, n).astype(float) for name in ("age", "price", "rooms", "floor")})
    return x, np.sign(x.age - 9.5) * x.price + np.sign(x.rooms - 9.5) * x.floor + random.normal(size=n)


def together(predict: Any, x: pandas.DataFrame, one: str, other: str) -> float:
    """What two changes do together beyond what each does alone, at most."""
    last = x.iloc[::-1].reset_index(drop=True)
    first, second = x.assign(**{one: last[one]}), x.assign(**{other: last[other]})
    both = first.assign(**{other: last[other]})
    return float(np.abs(predict(both) - predict(first) - predict(second) + predict(x)).max())


@pytest.mark.parametrize(
    ("given", "free"),
    [
        ("no_interactions", ()),
        ([{0, 1}, {2, 3}], (("age", "price"), ("rooms", "floor"))),
        ([("age", "price")], (("age", "price"), ("rooms", "floor"))),
        ([[0], [1], [2]], ()),
        ([["rooms", 3], ["floor", "age"]], (("rooms", "floor"), ("floor", "age"))),
    ],
)
def test_a_regressor_lets_columns_meet_as_scikit_learn_does(given: Any, free: Any, tmp_path: Path) -> None:
    x, y = frame()
    model = LUTRegressor(n_tables=40, interaction_cst=given, random_state=0).fit(x, y)
    numbered = (
        given if isinstance(given, str) else [{x.columns.get_loc(c) if isinstance(c, str) else c for c in g} for g in given]
    )
    peer = HistGradientBoostingRegressor(max_iter=20, interaction_cst=numbered, random_state=0).fit(x, y)
    names = list(x.columns)
    for one in names:
        for other in names[: names.index(one)]:
            pair = {one, other} in map(set, free)
            for each in (model, peer):
                assert together(each.predict, x, one, other) < 1e-4 * np.abs(y).max() or pair
    for one, other in free[:1]:
        assert together(model.predict, x, one, other) > 1
    np.testing.assert_array_equal(clone(model).fit(x, y).predict(x), model.predict(x))
    model.save(tmp_path / "model")
    again = LUTRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(again.fit(x, y).predict(x), model.predict(x))


def test_classifiers_and_rankers_have_limits_too() -> None:
    x, y = frame()
    ranked = pandas.Series(np.digitize(y, [-10, 0, 10]))
    models = {
        "decision_function": LUTClassifier(30, interaction_cst="no_interactions", random_state=0).fit(x, ranked),
        "predict": LUTRanker(30, interaction_cst="no_interactions", random_state=0).fit(x, ranked, group=[100, 100, 100]),
    }
    for name, model in models.items():
        assert together(getattr(model, name), x, "age", "price") < 1e-4
        assert model.model_.config.most_columns == 1
    pairs = LUTClassifier(30, interaction_cst="pairwise", random_state=0).fit(x, ranked)
    assert together(pairs.decision_function, x, "age", "price") > 0.1


def test_limits_and_constraints_hold_together() -> None:
    x, y = frame()
    model = LUTRegressor(60, monotonic_cst={"price": 1}, interaction_cst="no_interactions", random_state=0).fit(x, y)
    assert together(model.predict, x, "age", "price") < 1e-4
    prices = np.arange(0.0, 20.0)
    walked = x[:20].loc[np.repeat(np.arange(20), 20)].reset_index(drop=True).assign(price=np.tile(prices, 20))
    assert (np.diff(model.predict(walked).reshape(20, -1), axis=1) >= 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("none", r"expected one of 'no_interactions', 'pairwise', or a list"),
        ([], "expected a list of sets of columns"),
        ([[]], "each of one column at least"),
        ([0, 1], "expected a list of sets of columns"),
        ([{0, 4}], "4, expected names of columns, or numbers from 0 to 3"),
        ([{-1}], "-1, expected names"),
        ([{True}], "True, expected names"),
        ([{"prise"}], r"'prise', which is not a column of the training data: did you mean price\?"),
        (3, "expected a list"),
    ],
)
def test_what_cannot_be_a_limit(given: Any, message: str) -> None:
    x, y = frame(40)
    with pytest.raises(ValueError, match=message):
        LUTRegressor(n_tables=2, interaction_cst=given).fit(x, y)
    with pytest.raises(ValueError, match="its columns have no names"):
        LUTRegressor(n_tables=2, interaction_cst=[["age"]]).fit(x.to_numpy(), y)


def test_of_several_targets_each_has_its_curves() -> None:
    x, y = frame()
    model = LUTRegressor(20, random_state=0).fit(x, np.stack([y, -y], 1))
    with pytest.raises(ValueError, match="curves is for one target"):
        model.curves(x)
    one, other = (model.one_target(name).curves(x) for name in model.target_names_)
    assert {curve.name for curve in one.curves} == set(x.columns)
    np.testing.assert_allclose(one.average, y.mean(), atol=2)
    np.testing.assert_allclose(other.average, -y.mean(), atol=2)


# ---- lutetia train ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    x, y = frame()
    path = tmp_path_factory.mktemp("homes") / "homes.csv"
    x.assign(kind=np.array(list("abc"))[x.rooms.astype(int) % 3], rent=y.round(3)).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("given", "kept", "params"),
    [
        ("1", "no_interactions", (2, 8)),
        ("2", "pairwise", (3, 64)),
        ('[["price", "age"], ["kind"]]', [[0, 1], [4]], (6, 64)),
    ],
)
def test_a_run_keeps_its_limits(homes: Path, tmp_path: Path, capsys: Capture, given: str, kept: Any, params: Any) -> None:
    out = tmp_path / "run"
    summary = told(capsys, "train", homes, "--out", out, "--set", "fit.n_tables=30", "--set", f"fit.interactions={given}")
    fit = tomllib.loads((out / "config.toml").read_text())["fit"]
    assert (fit["n_tables"], fit["n_anchors"], fit["candidates"]) == (30, *params)
    assert fit["interactions"] == summary["interactions"]
    again = told(capsys, "train", out / "config.toml")
    assert again["test"] == summary["test"]
    model = LUTRegressor.load(out)
    assert model.interaction_cst == kept
    x, _ = frame()
    x = x.assign(kind="a")
    assert together(model.predict, x, "price", "floor") < 1e-3 or given == "2"
    assert "monotone" not in told(capsys, "info", out)["metadata"]


def test_the_command_says_which_columns_meet(homes: Path, tmp_path: Path, capsys: Capture) -> None:
    from lutetia.cli import main

    command = ["train", str(homes), "--set", "fit.n_tables=3", "--set"]
    assert main([*command, "fit.interactions=1", "--out", str(tmp_path / "one")]) == 0
    assert "  a table compares one column (fit.interactions)\n" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "one")]) == 0
    assert "meet       a table compares one column\n" in capsys.readouterr().out
    assert main([*command, 'fit.interactions=[["age", "price"]]', "--out", str(tmp_path / "two")]) == 0
    said = "a table compares columns of one group: age, price; or of those in no group"
    assert f"  {said} (fit.interactions)\n" in capsys.readouterr().out
    assert main(["info", str(tmp_path / "two")]) == 0
    assert f"meet       {said}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("fit.interactions=0", "fit.interactions is 0, expected 1, 2, or a list of lists"),
        ("fit.interactions=3", "is 3, expected 1, 2"),
        ("fit.interactions=true", "fit.interactions is True, expected an integer or a list"),
        ('fit.interactions="pairwise"', "expected an integer or a list"),
        ("fit.interactions=[]", "expected 1, 2, or a list of lists of columns"),
        ('fit.interactions=["age"]', "expected 1, 2, or a list of lists of columns"),
        ('fit.interactions=[["prise"]]', "'prise', which is not an input of"),
        ('fit.interactions=[["prise"]]', "homes.csv: did you mean price?"),
    ],
)
def test_what_a_config_cannot_ask_for(homes: Path, tmp_path: Path, capsys: Capture, setting: str, message: str) -> None:
    assert message in error(capsys, "train", homes, "--out", tmp_path / "run", "--set", setting)
    assert not (tmp_path / "run" / "config.toml").exists()
