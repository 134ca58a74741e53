"""Counts of right and wrong classes, against scikit-learn's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lutetia.errors import DataError
from lutetia.sklearn import LUTClassifier
from lutetia.training.boosting import Boosting
from lutetia.training.class_counts import class_report
from lutetia.training.table_run import guess_config, make_table_config, train_table
from lutetia.training.tabular import Shape, TabularRows, fit_tabular
from sklearn import metrics


@pytest.mark.parametrize(("n", "n_classes"), [(1, 2), (7, 3), (500, 5), (400, 40)])
def test_the_counts_are_those_of_scikit_learn(n: int, n_classes: int) -> None:
    random = np.random.default_rng(n)
    truth, predicted = random.integers(n_classes, size=(2, n))
    predicted[::2] = truth[::2]
    names = [f"class {number}" for number in range(n_classes)]
    report = class_report(truth, predicted, names)
    matrix = np.diag([each["right"] for each in report["classes"]])
    for pair in report["confused"]:
        matrix[names.index(pair["class"]), names.index(pair["as"])] += pair["samples"]
    expected = metrics.confusion_matrix(truth, predicted, labels=range(n_classes))
    assert np.array_equal(matrix, expected)
    assert [each["samples"] for each in report["classes"]] == expected.sum(1).tolist()
    assert [each["predicted"] for each in report["classes"]] == expected.sum(0).tolist()
    recalls = metrics.recall_score(truth, predicted, labels=np.unique(truth), average=None)
    assert report["balanced_accuracy"] == pytest.approx(recalls.mean())
    counts = [pair["samples"] for pair in report["confused"]]
    assert counts == sorted(counts, reverse=True)


def rare_and_common(n: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(n, 3))
    return x, (random.random(n) < 1 / (1 + np.exp(4 - 2 * x[:, 0]))).astype(np.int64)


def test_balanced_fits_as_the_estimator_does_and_not_as_without_it() -> None:
    x, y = rare_and_common()
    shape, rows = Shape(2, (0, 0, 0), (3,)), TabularRows(x, y, np.ones(len(y), np.float32))
    plain, balanced = (
        fit_tabular(rows, shape, Boosting(n_tables=40, balanced=each))[0].tables.weight.detach().numpy() for each in (False, True)
    )
    expected = LUTClassifier(n_tables=40, class_weight="balanced", random_state=0).fit(x, y)
    assert np.array_equal(balanced, expected.model_.tables.weight.detach().numpy())
    assert not np.array_equal(balanced, plain)


def test_a_config_balances_classes(tmp_path: Path) -> None:
    x, y = rare_and_common()
    lines = [f"{a},{b},{c},{'fault' if fault else 'fine'}\n" for (a, b, c), fault in zip(x.tolist(), y.tolist(), strict=True)]
    (tmp_path / "a.csv").write_text("a,b,c,state\n" + "".join(lines))
    config, _ = guess_config(tmp_path / "a.csv", None, None)
    recalls = []
    for balanced in (False, True):
        tables = config.to_dict()
        tables["fit"] |= {"n_tables": 40, "balanced": balanced}
        summary = train_table(make_table_config(tables, "config"), Path(), tmp_path / f"run {balanced}")
        (rare,) = (each for each in summary["test"]["classes"] if each["class"] == "fault")
        recalls.append(rare["right"] / rare["samples"])
    assert recalls[1] > recalls[0] + 0.2
    numbers = guess_config(tmp_path / "a.csv", "a", None)[0].to_dict()
    numbers["fit"]["balanced"] = True
    with pytest.raises(DataError, match="a regression has no classes"):
        train_table(make_table_config(numbers, "config"), Path(), tmp_path / "numbers")
