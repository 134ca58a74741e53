"""Rows that count more: in what is measured, in intervals, and inside a fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, d2_pinball_score, log_loss, r2_score

from lutetia.cli import main
from lutetia.models import load
from lutetia.sklearn import LUTClassifier, LUTRegressor
from lutetia.training.boosting import Boosting
from lutetia.training.intervals import error_bound
from lutetia.training.table_refit import HELD, SEED, try_refit
from lutetia.training.table_run import measure
from lutetia.training.tabular import Shape, TabularRows, fit_tabular
from said import told

Capture = pytest.CaptureFixture[str]


def test_classes_are_measured_as_scikit_learn_measures_them() -> None:
    random = np.random.default_rng(0)
    x, y, weight = random.normal(size=(200, 3)), random.integers(0, 3, 200), random.integers(0, 4, 200).astype(np.float32)
    model = LUTClassifier(n_tables=5, random_state=0).fit(x, y)
    found = measure(model.model_, x, y, weight)
    assert found["accuracy"] == pytest.approx(model.score(x, y, weight))
    assert found["loss"] == pytest.approx(log_loss(y, model.predict_proba(x), sample_weight=weight), rel=1e-6)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, model.predict(x), sample_weight=weight))
    assert sum(each["samples"] for each in found["classes"]) == 200  # rows, not weights
    assert found["accuracy"] != measure(model.model_, x, y)["accuracy"]


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "quantile", "poisson"])
def test_numbers_are_measured_as_if_rows_came_several_times(loss: str) -> None:
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(200, 3)), random.integers(0, 4, 200)
    y = random.poisson(np.exp(x[:, 0])).astype(np.float64)
    model = LUTRegressor(loss=loss, quantile=0.8 if loss == "quantile" else None, n_tables=20, random_state=0).fit(x, y)
    model.model_.metadata |= {} if loss == "quantile" else {"error_90": 1.0}
    often = np.repeat(np.arange(200), weight)
    found, wanted = measure(model.model_, x, y, weight.astype(np.float32)), measure(model.model_, x[often], y[often])
    assert found.keys() == wanted.keys()
    for key in found.keys() - {"error_90", "d2", "measure"}:
        assert found[key] == pytest.approx(wanted[key], rel=1e-5), key
    if "error_90" in found:  # the new row is as heavy as the heaviest
        errors = np.abs(model.predict(x) - y)
        enough = [each for each in errors if weight[errors <= each].sum() >= 0.9 * (weight.sum() + 3)]
        assert found["error_90"] == pytest.approx(min(enough))
        assert found["error_90"] >= wanted["error_90"]
    assert found["r2"] == pytest.approx(r2_score(y, model.predict(x), sample_weight=weight), rel=1e-5)
    if loss == "quantile":
        wanted_d2 = d2_pinball_score(y, model.predict(x), sample_weight=weight, alpha=0.8)
        assert found["d2"] == pytest.approx(wanted_d2, abs=0.001)


def test_equal_weights_change_no_bound() -> None:
    for n in range(1, 120):
        errors = np.random.default_rng(n).random(n)
        assert error_bound(errors, np.full(n, 3.0, np.float32)) == error_bound(errors)
    assert error_bound(np.arange(100.0), np.array([1000] + [1] * 99)) is None  # one row has most of the weight
    assert error_bound(np.arange(20.0), (np.arange(20) >= 10).astype(np.float32)) == error_bound(np.arange(10.0, 20.0))


def test_nine_in_ten_of_those_that_weights_stand_for_are_inside() -> None:
    """Rows with a large x are rare among those that say how wide, and frequent among new ones: weights make up for it."""
    random, inside, plain = np.random.default_rng(0), [], []
    for _ in range(400):
        x = random.random(150)
        errors, weight = np.abs(random.normal(size=150)) * (1 + 3 * x), (0.2 + x).astype(np.float32)
        new = random.choice(random.random(4000), 400)
        kept = new[random.random(400) * 1.2 < 0.2 + new]
        fresh = np.abs(random.normal(size=len(kept))) * (1 + 3 * kept)
        inside.append((fresh <= error_bound(errors, weight)).mean())
        plain.append((fresh <= error_bound(errors)).mean())
    assert np.mean(inside) == pytest.approx(0.905, abs=0.01)
    assert np.mean(plain) < 0.885


def test_an_eval_set_may_have_weights() -> None:
    """Half of the rows to validate on are nonsense: without weight they do not end the fit."""
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 2))
    y = x[:, 0] + 0.1 * random.normal(size=300)
    wrong = np.concatenate([y[:150], -3 * y[150:]])
    fit = {"n_tables": 200, "random_state": 0, "n_iter_no_change": 2}
    only = (np.arange(300) < 150).astype(float)
    kept = LUTRegressor(**fit).fit(x, y, eval_set=(x[:150], y[:150]))
    weighed = LUTRegressor(**fit).fit(x, y, eval_set=[(x, wrong, only)])
    misled = LUTRegressor(**fit).fit(x, y, eval_set=(x, wrong))
    assert weighed.losses_["valid"] == pytest.approx(kept.losses_["valid"])
    assert weighed.n_tables_ > misled.n_tables_
    with pytest.raises(ValueError, match="sample_weight"):
        LUTRegressor(**fit).fit(x, y, eval_set=(x, y, only, only))


@pytest.mark.parametrize("asked", [{"calibrate": True}, {"early_stopping": True}, {"intervals": True}])
def test_a_sample_of_weight_0_is_as_if_it_were_not_there(asked: dict[str, bool]) -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(240, 2)), random.integers(0, 2, 240).astype(np.float64)
    weight = (np.arange(240) % 2).astype(float)
    kind = LUTRegressor if "intervals" in asked else LUTClassifier
    y = y if kind is LUTClassifier else y + x[:, 0]
    both, half = (kind(n_tables=30, random_state=0, **asked) for _ in range(2))
    both.fit(x, np.where(weight > 0, y, 1 - y), weight)
    half.fit(x[1::2], y[1::2])
    assert both.n_tables_ == half.n_tables_
    np.testing.assert_array_equal(both.predict(x), half.predict(x))
    torch.testing.assert_close(both.model_.tables.weight, half.model_.tables.weight, rtol=0, atol=0)
    for key in ("error_90", "spread_90"):
        assert both.model_.metadata.get(key) == half.model_.metadata.get(key)


def test_the_second_fit_for_a_circuit_counts_samples_by_their_weights() -> None:
    random = np.random.default_rng(2)
    x, y = random.normal(size=(200, 2)), random.integers(0, 2, 200)
    y[:100] = x[:100, 0] > 0
    weight = (np.arange(200) < 100).astype(float)
    model = LUTClassifier(n_tables=60, n_anchors=3, random_state=0).fit(x, y, weight)
    fits = {
        "all": model._refit(x, y, 8, weight),
        "those": model._refit(x[:100], y[:100], 8),
        "alike": model._refit(x, y, 8),
    }
    weights = {name: fit[0].tables.weight for name, fit in fits.items()}
    assert fits["all"][1] == fits["those"][1]
    torch.testing.assert_close(weights["all"], weights["those"], rtol=0, atol=0)
    assert not torch.equal(weights["all"], weights["alike"])


def test_the_trial_for_a_circuit_is_measured_by_weights() -> None:
    random = np.random.default_rng(3)
    x, y = random.normal(size=(200, 2)), random.integers(0, 2, 200)
    rows, shape = TabularRows(x, y, random.uniform(0.1, 9, 200).astype(np.float32)), Shape(2, (0, 0), (2,))
    settings = Boosting(n_tables=60, n_anchors=3, candidates=8)
    trial = try_refit(fit_tabular(rows, shape, settings)[0], rows, 40, settings)
    order = np.random.default_rng(SEED).permutation(200)
    held, own = order[: 200 // HELD], order[200 // HELD :]
    fresh, _ = fit_tabular(rows.at(own), shape, replace(settings, n_tables=40))
    alike, weighted = (measure(fresh, x[held], y[held], each)["accuracy"] for each in (None, rows.weight[held]))
    assert trial is not None
    assert trial.cut == weighted != alike


def people(path: Path, wrong: bool) -> Path:
    """Rows of weight 0 have other targets if they are `wrong`."""
    random = np.random.default_rng(0)
    lines = []
    for number in range(300):
        a, b, w = *random.normal(size=2), number % 3
        y = a > 0 if w else wrong
        lines.append(f"{a:.4f},{b:.4f},{w * 50},{'yes' if y else 'no'}\n")
    path.write_text("a,b,w,y\n" + "".join(lines))
    return path


def test_the_weights_of_a_file(tmp_path: Path, capsys: Capture) -> None:
    runs = []
    for wrong in (False, True):
        data, out = people(tmp_path / f"{wrong}.csv", wrong), tmp_path / f"run {wrong}"
        command = ["train", data, "--out", out, "--set", "fit.n_tables=20", "--set", "data.weight=w"]
        summary = told(capsys, *command)
        assert "as data.weight says" in summary["left_out"]["w"]
        runs.append((out, summary))
    models = [load(out) for out, _ in runs]
    torch.testing.assert_close(*(model.tables.weight for model in models), rtol=0, atol=0)
    right, wrong = (summary["test"] for _, summary in runs)
    assert right["accuracy"] == wrong["accuracy"]
    assert right["weighted_by"] == "w"
    assert right["classes"] != wrong["classes"]
    run = runs[1][0]
    assert models[1].metadata["weight"] == "w"
    assert main(["evaluate", str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"weighted by w: accuracy {wrong['accuracy']:.2%}")
    again = told(capsys, "evaluate", run, tmp_path / "True.csv")
    assert again["weighted_by"] == "w"
    bare = tmp_path / "bare.csv"
    bare.write_text(
        "".join(",".join(cells[:2] + cells[3:]) for cells in (line.split(",") for line in (tmp_path / "True.csv").open()))
    )
    alike = told(capsys, "evaluate", run, bare)
    assert "weighted_by" not in alike
    assert alike["accuracy"] < again["accuracy"]
    assert "rows count alike" in alike["warnings"][0]
    metadata = run / "checkpoints" / "best" / "metadata.json"
    assert json.loads(metadata.read_text())["weight"] == "w"
