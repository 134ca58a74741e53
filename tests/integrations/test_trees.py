"""Imported trees predict what their library predicts: files that libraries wrote, models of scikit-learn, and any trees."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutetia._shared.losses import Loss
from lutetia.errors import ArgumentError, DataError
from lutetia.integrations.trees import Ensemble, from_trees, read_ensemble, read_trees, to_tabular
from lutetia.integrations.trees.ensemble import Choice, Split, Tree, numbers
from lutetia.integrations.trees.files import parse
from lutetia.integrations.trees.single import cut_above, cut_from
from lutetia.integrations.trees.ubjson import read_ubjson
from lutetia.models import Tabular, load, save
from tools import require_module

FILES = Path(__file__).parent / "trees"
ANSWERS = json.loads((FILES / "answers.json").read_text("utf-8"))
NAMES = sorted(name for name in ANSWERS if name != "versions")
CLOSE = 2e-6  # of an answer: sums of a few 32-bit floats


def answers(model: Tabular, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers [n], or probabilities [n, classes], float64."""
    with torch.no_grad():
        given = torch.from_numpy(x)
        return (model.numbers(given) if model.is_regression else model(given).double().softmax(1)).numpy()


# ---- files -----------------------------------------------------------------------------------------------------------


def rows_of(name: str, model: Tabular) -> np.ndarray[Any, Any]:
    """The rows of a file as inputs of its model: words by their numbers, NaN for those that it does not know."""
    known = {int(column): {word: place for place, word in enumerate(words)} for column, words in
             model.metadata.get("categories", {}).items()}  # fmt: skip
    rows = [[known[column].get(cell) if column in known else cell for column, cell in enumerate(row)] for row in
            ANSWERS[name]["rows"]]  # fmt: skip
    return np.array(rows, np.float64)


@pytest.mark.parametrize("name", NAMES)
def test_files_predict_what_their_libraries_said(name: str) -> None:
    model = read_trees(FILES / name, missing="exact").model
    rows = rows_of(name, model)
    np.testing.assert_allclose(answers(model, rows), np.array(ANSWERS[name]["answers"]), rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("name", ["lightgbm_whole.txt", "xgboost_binary.json"])
def test_rows_without_missing_values_need_no_exact_way_for_them(name: str) -> None:
    rows = np.array(ANSWERS[name]["rows"], np.float64)
    known = ~np.isnan(rows).any(1)
    model = read_trees(FILES / name, missing="none").model
    np.testing.assert_allclose(answers(model, rows[known]), np.array(ANSWERS[name]["answers"])[known], rtol=CLOSE, atol=CLOSE)
    exact = read_trees(FILES / name, missing="exact").model
    assert model.tables.weight.numel() <= exact.tables.weight.numel()


def test_columns_that_missed_nothing_are_known_where_the_library_says_so() -> None:
    assert read_ensemble(FILES / "lightgbm_whole.txt").whole == {0, 1, 2}
    assert read_ensemble(FILES / "lightgbm_binary.txt").whole == set()
    assert read_ensemble(FILES / "xgboost_binary.json").whole == set()


def test_a_category_that_reads_as_missing_is_what_is_missing() -> None:
    """CatBoost takes no missing category, so that people write one: nan."""
    ensemble = parse(changed("catboost_words.json", '"value": "red"', '"value": "nan"'))
    model = to_tabular(ensemble).model
    words = model.metadata["categories"]["1"]
    assert model.metadata["unknown"] == ensemble.unknown == "error"
    sizes, codes = np.repeat(np.linspace(-2, 2, 9), 4), np.tile([0.0, 3.0, 7.0, 9.0], 9)
    said, missing, other = (answers(model, np.stack([sizes, np.full(36, word), codes], 1)) for word in
                            (words.index("nan"), np.nan, words.index("violet")))  # fmt: skip
    np.testing.assert_array_equal(missing, said)
    assert (missing != other).any()
    assert parse((FILES / "catboost_words.json").read_bytes()).unknown == "missing"


def test_the_level_of_a_quantile_is_known() -> None:
    data = changed("lightgbm_whole.txt", "objective=regression", "objective=quantile")
    assert parse(data).loss == Loss("quantile", 0.9)
    assert parse(data + b"\nparameters:\n[alpha: 0.25]\n").loss == Loss("quantile", 0.25)


def test_a_folder_keeps_what_was_imported(tmp_path: Path) -> None:
    made = read_trees(FILES / "lightgbm_classes.txt", ["a", "b", "c"], ["low", "middle", "high"])
    save(made.model, tmp_path / "model")
    model = load(tmp_path / "model")
    assert model.metadata["features"] == ["a", "b", "c"]
    assert model.metadata["classes"] == ["low", "middle", "high"]
    assert model.metadata["input_low"][0] < -2  # LightGBM tells the ranges
    rows = torch.randn(20, 3, dtype=torch.float64)
    assert torch.equal(model(rows), made.model(rows))


# ---- scikit-learn ----------------------------------------------------------------------------------------------------


def near(model: Tabular, rng: np.random.Generator, n: int, n_columns: int) -> np.ndarray[Any, Any]:
    """Rows on the cuts of a model and next to them, in 64 and in 32 bits."""
    x = rng.normal(size=(n, n_columns))
    for column in range(n_columns):
        edges = model.encoding.edges[model.encoding.source == column].numpy()
        cuts = edges[np.isfinite(edges) & (np.abs(edges) < 1e30)]
        if len(cuts):
            own = rng.choice(cuts, n)
            ways = [x[:, column], own, np.nextafter(own, np.inf), np.nextafter(own, -np.inf), own.astype(np.float32)]
            x[:, column] = np.choose(rng.integers(0, len(ways), n), ways)
    return x


def scikit_models() -> dict[str, tuple[Any, str, bool]]:
    """Models by name, the kind of target, and whether they take missing values."""
    from sklearn import ensemble, tree

    own: dict[str, Any] = {"random_state": 0}
    few = {"n_estimators": 5, **own}
    return {
        "histograms, two classes": (ensemble.HistGradientBoostingClassifier(max_iter=5, **own), "two", True),
        "histograms, classes": (ensemble.HistGradientBoostingClassifier(max_iter=3, max_leaf_nodes=6, **own), "three", True),
        "histograms, counts": (ensemble.HistGradientBoostingRegressor(max_iter=5, loss="poisson", **own), "counts", True),
        "histograms, numbers": (ensemble.HistGradientBoostingRegressor(max_iter=5, max_leaf_nodes=9, **own), "number", False),
        "boosting, two classes": (ensemble.GradientBoostingClassifier(**few), "two", False),
        "boosting, exponential": (ensemble.GradientBoostingClassifier(loss="exponential", **few), "two", False),
        "boosting, classes": (ensemble.GradientBoostingClassifier(**few, init="zero"), "three", False),
        "boosting, numbers": (ensemble.GradientBoostingRegressor(loss="huber", **few), "number", False),
        "forest": (ensemble.RandomForestRegressor(max_depth=6, **few), "number", True),
        "deep forest": (ensemble.RandomForestRegressor(n_estimators=3, **own), "number", False),
        "forest of classes": (ensemble.RandomForestClassifier(max_depth=6, class_weight="balanced", **few), "three", True),
        "forest of two classes": (ensemble.RandomForestClassifier(n_estimators=6, **own), "two", False),
        "extra trees of classes": (ensemble.ExtraTreesClassifier(max_depth=5, **few), "three", False),
        "tree of classes": (tree.DecisionTreeClassifier(max_depth=6, **own), "three", True),
        "bag": (ensemble.BaggingRegressor(tree.DecisionTreeRegressor(max_depth=5), 4, max_features=3, **own), "number", True),
        "extra trees": (ensemble.ExtraTreesRegressor(max_depth=5, **few), "number", False),
        "tree": (tree.DecisionTreeRegressor(max_depth=7, **own), "number", True),
    }


@pytest.fixture(scope="module")
def fitted() -> dict[str, tuple[Any, bool]]:
    """The models, fitted to a few rows; about 254 thresholds in a column need several inputs."""
    require_module("sklearn")
    rng = np.random.default_rng(1)
    x = rng.normal(size=(700, 4))
    y = x[:, 0] + x[:, 1] * (x[:, 2] > 0) + 0.3 * rng.normal(size=700)
    targets = {
        "number": y,
        "two": y > 0,
        "three": np.array(["a", "b", "c"])[np.digitize(y, [-0.7, 0.7])],
        "counts": np.exp(y) // 1,
    }
    holes = np.where(rng.random(x.shape) < 0.1, np.nan, x)
    models = scikit_models()
    return {name: (model.fit(holes if gaps else x, targets[kind]), gaps) for name, (model, kind, gaps) in models.items()}


@pytest.mark.parametrize("name", scikit_models() if require_module("sklearn") else [])
def test_estimators_predict_what_scikit_learn_says(name: str, fitted: dict[str, tuple[Any, bool]]) -> None:
    model, gaps = fitted[name]
    estimator = from_trees(model)
    rng = np.random.default_rng(2)
    x = near(estimator.model_, rng, 600, 4)
    if gaps:
        x[rng.random(x.shape) < 0.1] = np.nan
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(estimator.predict_proba(x), model.predict_proba(x), atol=CLOSE)
        assert (estimator.predict(x) == model.predict(x)).all()
    else:
        np.testing.assert_allclose(estimator.predict(x), model.predict(x), rtol=CLOSE, atol=CLOSE)


def test_columns_of_many_thresholds_are_several_inputs(fitted: dict[str, tuple[Any, bool]]) -> None:
    model = from_trees(fitted["deep forest"][0]).model_
    cuts = np.isfinite(model.encoding.edges.numpy()).sum(1)
    assert cuts.max() == 254
    assert (model.encoding.source == 0).sum() > 1


def test_a_forest_of_classes_becomes_the_probability_of_one() -> None:
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier

    iris = load_iris(as_frame=True)
    forest = RandomForestClassifier(5, random_state=0).fit(iris.data, iris.target_names[iris.target])
    with pytest.raises(ArgumentError, match="'rose', expected one of"):
        from_trees(forest, probability_of="rose")
    estimator = from_trees(forest, probability_of="virginica")
    np.testing.assert_allclose(estimator.predict(iris.data), forest.predict_proba(iris.data)[:, 2], atol=CLOSE)
    assert list(estimator.feature_names_in_) == list(iris.data.columns)


def test_equal_votes_are_equal_sums(fitted: dict[str, tuple[Any, bool]]) -> None:
    """Trees without a limit vote with whole votes, which six trees often divide equally: the first class wins, as there."""
    forest, _ = fitted["forest of two classes"]
    estimator = from_trees(forest)
    x = near(estimator.model_, np.random.default_rng(5), 3000, 4)
    wanted = forest.predict_proba(x)
    ties = wanted[:, 0] == wanted[:, 1]
    assert ties.sum() > 100
    np.testing.assert_array_equal(estimator.predict_proba(x), wanted)
    np.testing.assert_array_equal(estimator.predict(x), forest.predict(x))


def test_a_bag_may_hold_trees_that_know_some_classes_and_columns() -> None:
    from sklearn.ensemble import BaggingClassifier, RandomForestClassifier
    from sklearn.tree import DecisionTreeClassifier

    from sklearn import config_context

    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(200, 5)), np.repeat(["a", "b", "c", "d"], [150, 30, 15, 5])
    bag = BaggingClassifier(DecisionTreeClassifier(max_depth=4), 9, max_samples=0.05, max_features=2, random_state=0)
    with config_context(enable_metadata_routing=True):  # without sample weights: each tree sees its own rows alone
        bag.fit(x + np.digitize(np.arange(200), [150, 180, 195])[:, None], y)
    assert min(len(each.classes_) for each in bag.estimators_) < 4
    more = rng.normal(size=(500, 5)) + 1
    np.testing.assert_allclose(from_trees(bag).predict_proba(more), bag.predict_proba(more), atol=CLOSE)
    with pytest.raises(ArgumentError, match="holds a RandomForestClassifier, expected one of DecisionTreeRegressor"):
        from_trees(BaggingClassifier(RandomForestClassifier(2), 2, random_state=0).fit(x, y))
    with pytest.raises(ArgumentError, match="one class, 'a', expected two classes"):
        from_trees(DecisionTreeClassifier().fit(x[:9], y[:9]))
    with pytest.raises(ArgumentError, match="predicts several targets"):
        from_trees(DecisionTreeClassifier().fit(x, np.stack([y, y], 1)))


def test_a_folder_says_that_sums_are_probabilities(tmp_path: Path, fitted: dict[str, tuple[Any, bool]]) -> None:
    from lutetia.sklearn import LUTClassifier

    estimator = from_trees(fitted["forest of classes"][0])
    estimator.save(tmp_path / "model")
    again = LUTClassifier.load(tmp_path / "model")
    x = np.random.default_rng(7).normal(size=(50, 4))
    assert (again.predict_proba(x) == estimator.predict_proba(x)).all()
    with torch.no_grad():
        sums = again.model_(torch.from_numpy(x))
    np.testing.assert_allclose(sums.sum(1).numpy(), 1, atol=CLOSE)
    again.model_.tables.weight.data[0, 0, 0] = -0.25
    save(again.model_, tmp_path / "broken")
    with pytest.raises(DataError, match=r"core.weight is -0.25, expected numbers of at least 0"):
        load(tmp_path / "broken")
    with pytest.raises(ArgumentError, match="sums is 'probabilities', expected 'scores'"):
        Tabular(n_classes=1, sums="probabilities")


def test_shapley_values_of_a_forest_add_up_to_its_probabilities(fitted: dict[str, tuple[Any, bool]]) -> None:
    forest = fitted["forest of two classes"][0]
    rng = np.random.default_rng(8)
    rows, others = rng.normal(size=(6, 4)), rng.normal(size=(9, 4))
    told = from_trees(forest).explain(rows, rule="shapley", background=others, target=True)
    lead, average = (np.diff(forest.predict_proba(each), axis=1)[:, 0] for each in (rows, others))
    assert told.average is not None
    np.testing.assert_allclose(told.average, average.mean(), atol=CLOSE)
    np.testing.assert_allclose(told.relevance.sum(1), lead - average.mean(), atol=CLOSE)


def test_an_estimator_is_saved_and_loaded(tmp_path: Path, fitted: dict[str, tuple[Any, bool]]) -> None:
    from lutetia.sklearn import LUTClassifier

    estimator = from_trees(fitted["boosting, two classes"][0])
    estimator.save(tmp_path / "model")
    again = LUTClassifier.load(tmp_path / "model")
    x = np.random.default_rng(3).normal(size=(30, 4))
    assert again.predict(x).dtype == bool
    assert (again.predict_proba(x) == estimator.predict_proba(x)).all()


def test_histograms_take_categories_as_scikit_learn_does() -> None:
    """Numbers, which stay numbers, and of a frame words; unseen and missing ones go by the largest part of the rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    rng = np.random.default_rng(9)
    x = np.stack([rng.choice([0, 2, 3, 9, np.nan], 600), rng.normal(size=600), rng.choice([-1.5, 4, 7], 600)], 1)
    y = np.isin(x[:, 0], [0, 9]) * x[:, 1] + (x[:, 2] > 0) + 0.1 * rng.normal(size=600)
    settings: dict[str, Any] = {"max_iter": 4, "min_samples_leaf": 5, "categorical_features": [0, 2]}
    trees = HistGradientBoostingRegressor(**settings).fit(x, y)
    estimator = from_trees(trees)
    more = np.stack(
        [rng.choice([0, 1, 2, 3, 9, 40, np.nan], 900), rng.normal(size=900), rng.choice([-1.5, 4, 7, 5, np.nan], 900)], 1
    )
    np.testing.assert_allclose(estimator.predict(more), trees.predict(more), atol=CLOSE)
    assert list(estimator.model_.metadata["categories"]) == ["2"]
    pandas = require_module("pandas")
    names = np.array(["red", "green", "blue", "grey"])
    frame = pandas.DataFrame({"size": x[:, 1], "colour": pandas.Categorical(names[rng.integers(0, 3, 600)], names)})
    trees = HistGradientBoostingClassifier(**settings | {"categorical_features": "from_dtype"})
    trees.fit(frame, (y > 0.5) ^ (frame["colour"] == "blue"))
    frame = frame.assign(colour=frame["colour"].where(rng.random(600) < 0.8, rng.choice(["grey", None], 600)))
    estimator = from_trees(trees)
    np.testing.assert_allclose(estimator.predict_proba(frame), trees.predict_proba(frame), atol=CLOSE)
    strange = frame.assign(colour=frame["colour"].cat.add_categories("violet").fillna("violet"))
    np.testing.assert_array_equal(estimator.predict(strange), estimator.predict(frame))


def test_shapley_values_are_those_of_the_trees(fitted: dict[str, tuple[Any, bool]]) -> None:
    """Against all orders of the columns, by the library's own predictions."""
    from itertools import permutations

    model = fitted["boosting, numbers"][0]
    rng = np.random.default_rng(4)
    row, others = rng.normal(size=4), rng.normal(size=(5, 4))
    found = from_trees(model).explain(row[None], rule="shapley", background=others).relevance[0]
    wanted = np.zeros(4)
    for order in permutations(range(4)):
        mixed = others.copy()
        before = model.predict(mixed).mean()
        for column in order:
            mixed[:, column] = row[column]
            after = model.predict(mixed).mean()
            wanted[column] += (after - before) / math.factorial(4)
            before = after
    np.testing.assert_allclose(found, wanted, atol=1e-5)


# ---- any trees -------------------------------------------------------------------------------------------------------


WORDS, CODES = ["a", "b", "c"], [0, 2, 5]  # of columns 3 and 4


def code_of(test: Split | Choice, value: float) -> int:
    """The code of a value, by which a test decides."""
    if math.isnan(value):
        return 0
    if isinstance(test, Split):
        return 1 + sum(cut < value for cut in test.cuts)
    known = range(len(WORDS)) if test.column == 3 else CODES
    return 2 + list(known).index(int(value)) if value in known else 1


def slow(ensemble: Ensemble, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The sums of the trees, one node after the other."""
    total = ensemble.base.copy()
    for tree in ensemble.trees:
        node = 0
        while (test := tree.tests[node]) is not None:
            code = code_of(test, row[test.column])
            goes = test.right[code] if isinstance(test, Split) else test.right >> code & 1
            node = (tree.right if goes else tree.left)[node]
        total[[tree.output] if tree.output is not None else slice(None)] += tree.values[node]
    return total


VALUES = st.sampled_from([-3.0, -1.0, -0.0, 0.0, 5e-324, 1.0, 1.0 + 2**-52, 2.0, 1e300, math.inf])


@st.composite
def split_tests(draw: Any) -> Split | Choice:
    """A test of one of five columns, of any pattern of codes."""
    column = draw(st.integers(0, 4))
    if column > 2:
        return Choice(column, draw(st.integers(0, 31)))
    cuts = sorted({each + 0.0 for each in draw(st.lists(VALUES, max_size=3)) if math.isfinite(each)})
    codes = draw(st.lists(st.booleans(), min_size=len(cuts) + 2, max_size=len(cuts) + 2))
    return Split(column, tuple(cuts), tuple(codes))


@st.composite
def trees(draw: Any) -> Tree:
    """A tree of up to six tests."""
    tests: list[Any] = [None]
    left, right = [0], [0]
    for _ in range(draw(st.integers(0, 6))):
        node = draw(st.sampled_from([number for number, test in enumerate(tests) if test is None]))
        tests[node] = draw(split_tests())
        left[node], right[node] = len(tests), len(tests) + 1
        tests += [None, None]
        left += [0, 0]
        right += [0, 0]
    output = draw(st.sampled_from([None, 0, 1]))
    values = draw(st.lists(st.integers(-8, 8), min_size=2 * len(tests), max_size=2 * len(tests)))
    return Tree(tests, left, right, np.array(values, float).reshape(-1, 2)[:, : 2 if output is None else 1], output)


@settings(max_examples=100, deadline=None)
@given(given_trees=st.lists(trees(), max_size=4), n_anchors=st.sampled_from([None, 12]))
def test_tables_add_up_to_what_trees_add_up_to(given_trees: list[Tree], n_anchors: int | None) -> None:
    categories: dict[int, list[Any]] = {3: WORDS, 4: CODES}
    given_ensemble = Ensemble("any", given_trees, 5, np.array([0.5, -2.0]), "classification", Loss(), categories=categories)
    model = to_tabular(given_ensemble, n_anchors=n_anchors).model
    assert model.metadata["categories"] == {"3": WORDS}
    levels = [math.nan, -4.0, -1.0, -5e-324, 0.0, 5e-324, 1.0, 1.0 + 2**-52, 1.5, 2.0, 5.0, 1e308]
    rows = np.random.default_rng(0).choice(levels, (60, 5))
    wanted = np.stack([slow(given_ensemble, row) for row in rows])
    found = model(torch.from_numpy(rows)).detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)


# ---- comparisons -----------------------------------------------------------------------------------------------------

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=200, deadline=None)
@given(
    threshold=st.one_of(FLOATS, st.floats(allow_nan=False, allow_infinity=False)),
    x=st.floats(allow_nan=False),
    nearby=st.booleans(),
)
def test_cuts_are_those_of_32_bit_floats(threshold: float, x: float, nearby: bool) -> None:
    cut = cut_above(threshold)
    if nearby:
        x = {0: cut, 1: math.nextafter(cut, math.inf), 2: math.nextafter(cut, -math.inf)}[
            int(abs(x)) % 3 if math.isfinite(x) else 0
        ]
    with np.errstate(over="ignore"):
        assert (x > cut) == bool(float(np.float32(x)) > threshold)
        single = np.float32(threshold)
        if np.isfinite(single) and np.isfinite(np.nextafter(single, np.float32(-np.inf))):
            assert (x > cut_from(threshold)) == bool(np.float32(x) >= single)


# ---- refusals --------------------------------------------------------------------------------------------------------


def split(tests: list[Any], left: list[int], right: list[int], n: int = 3) -> Ensemble:
    values = np.zeros((n, 1))
    return Ensemble("any", [Tree(tests, left, right, values, 0)], 2, np.zeros(1), "regression")


@pytest.mark.parametrize(
    ("tests", "left", "right", "error"),
    [
        ([numbers(0, 1.0, False), None, None], [0, 0, 0], [2, 0, 0], "node 0 twice"),
        ([numbers(0, 1.0, False), None, None], [1, 0, 0], [1, 0, 0], "node 1 twice"),
        ([numbers(0, 1.0, False), None, None], [1, 0, 0], [7, 0, 0], "node 7, expected 0 to 2"),
        ([numbers(9, 1.0, False), None, None], [1, 0, 0], [2, 0, 0], "column 9, expected 0 to 1"),
        ([None, None], [0, 0], [0, 0], "2 nodes, but not each"),
    ],
)
def test_trees_that_are_none_are_refused(tests: list[Any], left: list[int], right: list[int], error: str) -> None:
    with pytest.raises(DataError, match=error):
        split(tests, left, right)


def test_trees_that_are_too_deep_are_refused_with_their_depth() -> None:
    depth = 15
    tests = [numbers(at, 0.0, False) for at in range(depth)] + [None] * (depth + 1)
    left = [depth + at for at in range(depth)] + [0] * (depth + 1)
    right = [at + 1 for at in range(depth - 1)] + [2 * depth] + [0] * (depth + 1)
    values = np.arange(len(tests), dtype=float)[:, None]
    deep = Ensemble("any", [Tree(tests, left, right, values, 0)], depth, np.zeros(1), "regression")
    with pytest.raises(ArgumentError, match=r"takes 15 comparisons, expected at most 14.* 2 of 16 leaves take more"):
        to_tabular(deep)


def changed(name: str, old: str, new: str) -> bytes:
    text = (FILES / name).read_text("utf-8")
    assert old in text
    return text.replace(old, new, 1).encode()


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (changed("lightgbm_binary.txt", "objective=binary", "objective=multiclassova"), "'multiclassova'.*expected binary"),
        (changed("lightgbm_binary.txt", "end of trees", ""), "cut off"),
        (changed("lightgbm_binary.txt", "max_feature_idx=2", "max_feature_idx=2000000000"), "max_feature_idx is 2,000,000,000"),
        (changed("lightgbm_binary.txt", "is_linear=0", "is_linear=1"), "linear_tree"),
        (changed("lightgbm_binary.txt", "decision_type=10", "decision_type=9"), "set .* of categories, expected one of its 0"),
        (changed("lightgbm_words.txt", "cat_boundaries=0 1", "cat_boundaries=0 2"), "sets that end at .0, 2., expected"),
        (changed("lightgbm_words.txt", "cat_boundaries=0 1", "cat_boundaries=0 x"), "no whole numbers in its sets"),
        (changed("lightgbm_words.txt", "cat_threshold=5", "cat_threshold=4294967296"), "beyond 32 bits"),
        (changed("lightgbm_words.txt", "cat_threshold=5", "cat_threshold=261"), "category 8 of column 1, which the model"),
        (changed("lightgbm_words.txt", "-1:0:1:2:3:4", "[0:4]"), "names the categories of 1 columns and tells of 0"),
        (changed("lightgbm_words.txt", '"green"', '"red"'), "column 1 has two categories of one name"),
        (changed("lightgbm_words.txt", '"green"', 'Infinity'), "column 1 has the category 'inf', expected words or numbers"),
        (changed("lightgbm_words.txt", '[["red"', '["red"'), "pandas_categorical is"),
        (changed("lightgbm_words.txt", "split_feature=0 1", "split_feature=0 0"), "category 0 of column 0, which the model"),
        (changed("lightgbm_words.txt", "decision_type=2 9", "decision_type=2 10"), "column 1 as categories and as numbers"),
        (changed("xgboost_words.json", '"categories_sizes":[', '"categories_sizes":[9'), "node . has the categories from"),
        (changed("xgboost_words.json", '"categories_nodes":[', '"categories_nodes":[77,'), "categories_segments, expected"),
        (changed("xgboost_words.json", '"categories":[', '"categories":[77777,'), "has the categories from|beyond"),
        (changed("xgboost_words.json", '"offsets":[0,3', '"offsets":[0,99'), "end at .0, 99, .*rising numbers to 24"),
        (changed("xgboost_words.json", '"values":[114', '"values":[-61'), "not UTF-8: XGBoost cuts words"),
        (changed("catboost_words.json", '"cat_features_hash"', '"some"'), 'name its categories, expected .*pool=POOL'),
        (changed("catboost_words.json", '"features_info": {', '"features_info": {"ctrs": [1],'), "statistics.*one_hot_max_size"),
        (changed("catboost_words.json", '"OneHotFeature", "value"', '"OneHotFeature", "value": 1, "x"'), "for category 1, which"),
        (changed("catboost_words.json", '"OneHotFeature"', '"OnlineCtr"'), "kind OnlineCtr, expected FloatFeature or OneHot"),
        (changed("lightgbm_binary.txt", "num_leaves=6", "num_leaves=99"), "6 numbers in leaf_value, expected 99"),
        (changed("lightgbm_binary.txt", "leaf_value=", "leaf_value=nan "), "7 numbers in leaf_value, expected 6"),
        (changed("xgboost_binary.json", "binary:logistic", "binary:hinge"), "binary:hinge"),
        (changed("xgboost_binary.json", '"split_type":[', '"split_type":[1,'), "split_type, expected"),
        (changed("xgboost_binary.json", '"name":"gbtree"', '"name":"gblinear"'), "gblinear"),
        (changed("xgboost_binary.json", '"learner":{', '"learner":{"objective":1,'), "'objective' twice"),
        (changed("catboost_binary.json", "Logloss", "MultiClassOneVsAll"), "MultiClassOneVsAll"),
        (changed("catboost_binary.json", '"features_info": {', '"features_info": {"text_features": [1],'), "columns of texts"),
        ((FILES / "xgboost_classes.ubj").read_bytes()[:-9], "asks for|expected"),
        (b"CBM1\x00", "format=\"json\""),
        (b"\x80\x04\x95", "pickle.*from_trees"),
        (b"[1, 2]", "no model that is known here"),
        (b"[" * 100_000, "nested too deeply|no JSON"),
    ],
)  # fmt: skip
def test_files_that_tables_cannot_equal_are_refused(data: bytes, error: str) -> None:
    with pytest.raises((ArgumentError, DataError), match=error):
        parse(data)


def test_ubjson_is_the_json() -> None:
    document = read_ubjson(b"{i\x01aSi\x02hii\x01b[$d#i\x02\x3f\x80\x00\x00\xc0\x00\x00\x00i\x01c[Ti\x07N]}".replace(b"N]", b"]"))
    assert document["a"] == "hi"
    assert document["b"].tolist() == [1.0, -2.0]
    assert document["c"] == [True, 7]
    with pytest.raises(DataError, match="asks for"):
        read_ubjson(b"{i\x01b[$D#L\x7f\xff\xff\xff\xff\xff\xff\xff")


def test_objects_of_other_kinds_are_refused() -> None:
    from sklearn.ensemble import AdaBoostClassifier, HistGradientBoostingClassifier

    with pytest.raises(ArgumentError, match="AdaBoostClassifier, expected one of LightGBM"):
        from_trees(AdaBoostClassifier())
    with pytest.raises(ArgumentError, match="not fitted"):
        from_trees(HistGradientBoostingClassifier())
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = HistGradientBoostingClassifier(max_iter=2).fit(x, x[:, 0] > 0)
    with pytest.raises(ArgumentError, match="feature_names holds 3 names, expected 2"):
        from_trees(model, ["a", "b", "c"])
    with pytest.raises(ArgumentError, match="class_names holds 1 names, expected 2"):
        from_trees(model, class_names=["no"])
    with pytest.raises(ArgumentError, match=r"n_anchors is 15, expected \d+ to 14"):
        from_trees(model, n_anchors=15)
    named = from_trees(model, class_names=["yes", "no"])
    assert (named.predict(x) == model.predict(x)).all()
    assert named.explain(x[:1]).classes == ["yes", "no"]
