"""Our estimators beside others: the same rows for each, scikit-learn's own numbers, and what may be said of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas
import pytest
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lutetia._shared.losses import Loss
from lutetia.errors import ArgumentError, DataError
from lutetia.models import find_grams
from lutetia.sklearn import LUTClassifier, compare, comparing, contest, peers
from lutetia.sklearn.contest import Contest, Difference, Standing, Turn, difference, document, fit_ours, play
from lutetia.sklearn.peers import METHODS, Given, Method, Problem, contestants, fit_peer
from lutetia.training import Shape, Split, TabularRows, fold_rows

Array = np.ndarray[Any, Any]
BY_NAME = {method.name: method for method in METHODS}


def rows_of(x: Array, y: Array, **others: Any) -> TabularRows:
    return TabularRows(x.astype(np.float64), y, others.pop("weight", np.ones(len(y), np.float32)), **others)


def shape_of(x: Array, n_classes: int, *categories: int) -> Shape:
    counts = (*categories, *(0,) * (x.shape[1] - len(categories)))
    return Shape(n_classes, counts, (x.shape[1],))


def contest_of(rows: TabularRows, problem: Problem, folds: int = 3) -> Contest:
    return Contest(problem, rows, fold_rows(rows, problem.has_classes, 1 / folds, folds, "the file"))


@pytest.fixture
def classes() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    x = random.normal(size=(150, 4))
    return x, (x[:, 0] + x[:, 1] + random.normal(size=150) > 0).astype(np.int64)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two other methods instead of all."""
    own = tuple(BY_NAME[name] for name in (peers.CONSTANT, "linear model"))
    monkeypatch.setattr(comparing, "contestants", partial(contestants, methods=own))


# ---- the numbers are scikit-learn's ----------------------------------------------------------------------------------


def test_accuracies_and_log_losses_are_those_of_cross_validate(classes: tuple[Array, Array]) -> None:
    x, y = classes
    own = contest_of(rows_of(x, y), Problem(shape_of(x, 2)))
    own_estimators = {
        "linear model": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "HistGradientBoosting": HistGradientBoostingClassifier(random_state=0),
    }
    for name, estimator in own_estimators.items():
        turns = list(play(own, partial(fit_peer, BY_NAME[name], own.problem)))
        expected = cross_validate(estimator, x, y, cv=own.folds, scoring=("accuracy", "neg_log_loss"))
        np.testing.assert_allclose([turn.score for turn in turns], expected["test_accuracy"])
        np.testing.assert_allclose([turn.log_loss for turn in turns], -expected["test_neg_log_loss"], rtol=1e-6)


def test_errors_of_numbers_are_those_of_cross_validate(classes: tuple[Array, Array]) -> None:
    x, _ = classes
    y = x[:, 0] * 3 + x[:, 1]
    x = np.where(np.arange(600).reshape(150, 4) % 17 == 0, np.nan, x)
    rows, problem = rows_of(x, y), Problem(shape_of(x, 1))
    own = contest_of(rows, problem, 2)
    turns = list(play(own, partial(fit_peer, BY_NAME["random forest"], problem)))
    scoring = "neg_root_mean_squared_error"
    expected = cross_validate(RandomForestRegressor(random_state=0), x, y, cv=own.folds, scoring=scoring)
    np.testing.assert_allclose([turn.score for turn in turns], -expected["test_score"])
    filled = np.concatenate([np.where(np.isnan(x), np.nanmedian(x, 0), x), np.isnan(x)], 1)  # of all rows: close, not equal
    turns = list(play(own, partial(fit_peer, BY_NAME["linear model"], problem)))
    expected = cross_validate(make_pipeline(StandardScaler(), Ridge()), filled, y, cv=own.folds, scoring=scoring)
    np.testing.assert_allclose([turn.score for turn in turns], -expected["test_score"], rtol=0.05)


def test_ours_are_those_of_the_estimator(few: None, classes: tuple[Array, Array]) -> None:
    x, y = classes
    told = compare(x, np.array(["no", "yes"])[y], folds=2)
    (own,) = [row for row in told["methods"] if row["method"] == "Lutetia"]
    estimator, losses = LUTClassifier(calibrate=True, enough_tables=True, random_state=0), []
    for (train, test), score in zip(fold_rows(rows_of(x, y), True, 0.5, 2, ""), own["folds"], strict=True):
        estimator.fit(x[train], y[train])
        assert estimator.score(x[test], y[test]) == pytest.approx(score)
        losses.append(log_loss(y[test], estimator.predict_proba(x[test])))
    assert own["log_loss"] == pytest.approx(np.mean(losses), rel=1e-4)


# ---- fairness --------------------------------------------------------------------------------------------------------


def test_every_method_gets_the_same_rows(classes: tuple[Array, Array]) -> None:
    x, y = classes
    weight = np.linspace(0.5, 1.5, 150).astype(np.float32)
    own = contest_of(rows_of(x, y, weight=weight), Problem(shape_of(x, 2)))
    seen: dict[str, list[Array]] = {}

    def spy(name: str, fit: Any, rows: TabularRows) -> Any:
        seen.setdefault(name, []).append(np.column_stack([rows.x, rows.y, rows.weight]))
        fitted = fit(rows)

        def predict(others: TabularRows) -> Array:
            seen[name].append(np.column_stack([others.x, others.y, others.weight]))
            return np.asarray(fitted.predict(others))

        return fitted._replace(predict=predict)

    fits, _ = contestants(own.problem, tuple(BY_NAME[name] for name in (peers.CONSTANT, "linear model")))
    model = LUTClassifier(n_tables=3).fit(x, y).model_
    for name, fit in {"Lutetia": partial(fit_ours, lambda rows: model, 1), **fits}.items():
        assert len(list(play(own, partial(spy, name, fit)))) == 3
    first, *others = seen.values()
    for each in others:
        for expected, found in zip(first, each, strict=True):
            np.testing.assert_array_equal(expected, found)
    tested = np.concatenate(first[1::2])
    assert len(np.unique(tested, axis=0)) == len(tested) == 150  # each row once
    for train, test in zip(first[::2], first[1::2], strict=True):
        assert not set(map(bytes, train)) & set(map(bytes, test))


def test_categories_are_given_as_such_and_missing_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of categories whose numbers mean nothing, and one whose missing cells say it all."""
    random = np.random.default_rng(1)
    town, other = random.integers(0, 12, 400), random.normal(size=400)
    y = np.isin(town, (0, 3, 4, 8, 10)).astype(np.int64)
    x = np.column_stack([town.astype(float), other])
    rows, problem = rows_of(x, y), Problem(shape_of(x, 2, 12))
    given: list[Given] = []
    for name in ("linear model", "random forest", "HistGradientBoosting", "LightGBM", "XGBoost"):
        method = BY_NAME[name]
        if method.is_installed:
            spied = method._replace(fit=lambda each, fit=method.fit: (given.append(each), fit(each))[1])
            chances = fit_peer(spied, problem, rows.at(slice(0, 300))).predict(rows.at(slice(300, 400)))
            assert (chances.argmax(1) == y[300:]).mean() > 0.98, name
    assert [each.x.shape[1] for each in given[:3]] == [13, 13, 2]
    gone = np.where(y == 1, np.nan, other)[:, None]
    for name in ("linear model", "random forest", "HistGradientBoosting"):
        fitted = fit_peer(BY_NAME[name], Problem(shape_of(gone, 2)), rows_of(gone, y))
        assert (fitted.predict(rows_of(gone, y)).argmax(1) == y).all(), name


def test_a_class_that_no_row_to_fit_has_is_never_predicted(classes: tuple[Array, Array]) -> None:
    x, y = classes
    problem = Problem(shape_of(x, 4))
    chances = fit_peer(BY_NAME["linear model"], problem, rows_of(x, 1 + 2 * y)).predict(rows_of(x, y))
    assert chances.shape == (150, 4)
    assert not chances[:, [0, 2]].any()
    np.testing.assert_allclose(chances.sum(1), 1)


def test_texts_become_words_and_dates_their_parts() -> None:
    texts = [("good", "bad")[n % 2] + " and some more words" for n in range(60)]
    grams = find_grams(texts, "review", 1, fewest=1)
    day = 86400.0 * np.arange(60)
    y = ((np.arange(60) + 3) % 7 == 0).astype(np.int64)
    rows = TabularRows(day[:, None], y, np.ones(60, np.float32), texts=(grams,))
    shape = Shape(2, (0,), (1,), frozenset([0]))
    columns = peers.NumberColumns(rows, shape)
    assert [part for _, part in columns.parts] == ["month", "day", "weekday"]
    assert columns.made(rows).shape == (60, 4 + 6)  # good, bad, and, some, more, words; no pairs
    of_words = rows_of(np.empty((60, 0)), np.arange(60) % 2, texts=(grams,))
    for name in ("linear model", "random forest"):
        fitted = fit_peer(BY_NAME[name], Problem(Shape(2, (), (0,))), of_words)
        assert (fitted.predict(of_words).argmax(1) == of_words.y).all()


@pytest.mark.parametrize("n_plain", [0, 1])
def test_our_model_of_texts_has_a_size(n_plain: int) -> None:
    """Saved beside a plain column, too, whose range it needs."""
    texts = [("good", "bad")[n % 2] + " and some more words" for n in range(60)]
    rows = rows_of(
        np.arange(60.0)[:, None][:, :n_plain], np.arange(60) % 2, texts=(find_grams(texts, "review", n_plain, fewest=1),)
    )
    own = LUTClassifier(n_tables=4, random_state=0)
    fitted = fit_ours(lambda rows: own.fit_rows(rows, Shape(2, (0,) * n_plain, (n_plain,)))[0], 1, rows)
    assert fitted.size() > 1000
    assert (fitted.predict(rows).argmax(1) == rows.y).all()


def test_losses_and_rankings_reach_the_others(classes: tuple[Array, Array]) -> None:
    x, _ = classes
    y = np.round(np.exp(x[:, 0]))
    for loss in (Loss("quantile", 0.9), Loss("absolute_error"), Loss("poisson")):
        problem = Problem(shape_of(x, 1), loss)
        rows = rows_of(x, y)
        fits, left_out = contestants(problem)
        assert ("linear model" in left_out) is (loss.name != "poisson")
        constant = fits.pop(peers.CONSTANT)(rows).predict(rows)
        best = {"quantile": np.quantile(y, 0.9), "absolute_error": np.median(y), "poisson": y.mean()}[loss.name]
        np.testing.assert_allclose(constant, best)
        for name in ("HistGradientBoosting", "LightGBM", "XGBoost"):
            if name in fits:
                predicted = fits[name](rows).predict(rows)
                assert loss.measure(predicted, y) < 0.8 * loss.measure(constant, y), name
    query = np.arange(150) % 10
    rows = rows_of(x, np.clip(y, 0, 4), query=query, split=Split("groups", query))
    own = contest_of(rows, Problem(shape_of(x, 1), Loss("lambdarank")), 2)
    fits, left_out = contestants(own.problem)
    told = document(own, {name: list(play(own, fit)) for name, fit in fits.items() if name != "random forest"}, left_out)
    assert told["task"] == "ranking"
    assert told["methods"][-1]["method"] == peers.CONSTANT
    assert all(row["score"] > 0.8 for row in told["methods"][:-1])


# ---- the verdict -----------------------------------------------------------------------------------------------------


def test_what_chance_explains_is_a_corrected_t_test() -> None:
    ours, theirs = [0.9, 0.8, 0.85, 0.95], [0.85, 0.8, 0.8, 0.85]
    found = difference(ours, theirs, 0.25)
    apart = np.subtract(ours, theirs)
    assert found.mean == pytest.approx(apart.mean())
    plain = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.chance == pytest.approx((plain.high - plain.low) / 2 * (1 + 4 * 0.25) ** 0.5)  # 1/4 + share instead of 1/4
    assert difference(ours, theirs, 0.25, -1).mean == pytest.approx(-apart.mean())
    assert difference([0.1 + 0.2, 0.7], [0.3, 0.7], 0.25) == (0, 0)  # which differ by rounding alone
    assert difference([0.1 + 0.2, 0.7], [0.2, 0.8], 0.25).mean == 0
    assert [Difference(*each).sign for each in ((0.1, 0.05), (0.1, 0.2), (-0.1, 0.05), (0.0, 0.0))] == [1, 0, -1, 0]


def standing(**scores: list[float]) -> Standing:
    names = {"ours": "Lutetia", "none": peers.CONSTANT}
    turns = {names.get(name, name): [Turn(each, 0.1, 1, 1, 1) for each in own] for name, own in scores.items()}
    return Standing(Problem(Shape(2, (0,), (1,))), turns, 0.25)


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ({"ours": [0.8, 0.81, 0.82], "A": [0.9, 0.91, 0.925]}, "Use A here: Lutetia is behind by 10 points (accuracy), more"),
        ({"ours": [0.9, 0.91, 0.925], "A": [0.8, 0.81, 0.82], "B": [0.7, 0.71, 0.7]}, "it is 10 points ahead of A, the next"),
        ({"ours": [0.8, 0.9, 0.85], "A": [0.9, 0.8, 0.85]}, "Lutetia is level with A: chance explains the differences"),
        ({"ours": [0.8, 0.9, 0.85], "A": [0.9, 0.8, 0.85], "B": [0.2, 0.3, 0.2]}, "It is ahead of B."),
        ({"ours": [0.8, 0.9, 0.85], "A": [0.9, 0.8, 0.85], "none": [0.8, 0.9, 0.86]}, "these columns say little about the"),
        ({"A": [0.9, 0.8, 0.85]}, "nothing to say: Lutetia was not measured"),
        ({"ours": [0.9, 0.8, 0.85]}, "nothing to say: the other methods were not measured"),
    ],
)  # fmt: skip
def test_the_verdict_is_one_honest_sentence(scores: dict[str, list[float]], said: str) -> None:
    assert said in standing(**scores).verdict()


def test_probabilities_may_differ_where_answers_do_not() -> None:
    losses = {"Lutetia": [0.3, 0.31, 0.3], "A": [0.5, 0.51, 0.49], "B": [0.2, 0.21, 0.2], "C": [0.3, 0.32, 0.29]}
    turns = {name: [Turn(0.8 + n / 99, each, 1, 1, 1) for n, each in enumerate(own)] for name, own in losses.items()}
    problem = Problem(Shape(2, (0,), (1,)))
    assert Standing(problem, turns, 0.25).verdict().endswith(" (accuracy). By log loss, Lutetia is ahead of A and behind B.")
    turns[peers.CONSTANT] = [Turn(0.8 + n / 99, 0.7, 1, 1, 1) for n in range(3)]
    verdict = Standing(problem, turns, 0.25).verdict()
    assert verdict.startswith("No method is surely better than one answer for all rows (accuracy), but some have better prob")
    assert verdict.endswith("By log loss, Lutetia is ahead of A and behind B.")


def test_a_linear_target_is_for_the_linear_model(few: None) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 12))
    told = compare(x, x.sum(1), folds=3)
    assert told["verdict"].startswith("Use linear model here: Lutetia is behind by ")
    assert [row["method"] for row in told["methods"]] == ["linear model", "Lutetia", peers.CONSTANT]
    assert told["task"] == "regression"
    assert not told["larger_is_better"]


def test_what_only_pairs_of_columns_say_is_for_tables(few: None) -> None:
    x = np.random.default_rng(0).normal(size=(240, 2))
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "town": np.where(x[:, 0] > 1, "Rome", "Oslo")})
    frame["town"] = frame["town"].astype("category")
    told = compare(frame, (x[:, 0] * x[:, 1] > 0).astype(int), folds=3)
    assert told["verdict"].startswith("Use Lutetia here: it is ")
    assert told["given"][0].startswith("categories: ")


def test_what_fails_or_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch, classes: tuple[Array, Array]) -> None:
    def fail(given: Given) -> Any:
        raise RuntimeError("no\nmemory")

    bad = (Method("bad", "scikit-learn", peers.NumberColumns, fail), Method("absent", "no-such", peers.NumberColumns, fail))
    monkeypatch.setattr(comparing, "contestants", partial(contestants, methods=(*METHODS[:2], *bad)))
    told = compare(*classes, folds=2)
    assert told["left_out"] == {"absent": "not installed: pip install no-such", "bad": "it failed: RuntimeError: no memory"}
    assert {row["method"] for row in told["methods"]} == {"Lutetia", "linear model", peers.CONSTANT}


def test_folds_are_counted(classes: tuple[Array, Array]) -> None:
    with pytest.raises(ArgumentError, match="folds is 1, expected an integer from 2"):
        compare(*classes, folds=1)
    with pytest.raises(DataError, match="X holds too few rows for 100 folds"):
        compare(*(each[:20] for each in classes), folds=100)


def test_balanced_classes_count_alike(classes: tuple[Array, Array]) -> None:
    x, _ = classes
    y = (np.arange(150) % 10 == 0).astype(np.int64)
    own = contest_of(rows_of(x, y), Problem(shape_of(x, 2), balanced=True))
    (always,) = (Standing(own.problem, {"A": list(play(own, partial(fit_peer, METHODS[0], own.problem)))}, 0.5),)
    assert always.measure == "balanced accuracy"
    np.testing.assert_allclose(always.scores("A"), 0.5)
    assert contest.OURS == "Lutetia"
