"""Models of unusual rows: how they are fitted, what they flag, what is made up, and how they are measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from lutetia.errors import ArgumentError
from lutetia.models import Tabular, check_metadata, rarity, rarity_text
from lutetia.training import Shape, fit_unusual, unusual_settings
from lutetia.training.detection import average_precision, detection_report, roc_auc
from lutetia.training.unusual import _counting, _limit, columns_of
from lutetia.training.unusual_rows import Column, made_up, unusual_encoding

NUMBERS = Shape(2, (0, 0), (2,))


def line(n: int, seed: int) -> np.ndarray:
    """Two columns that rise together."""
    random = np.random.default_rng(seed)
    first = random.normal(size=n)
    return np.column_stack([first, first + 0.1 * random.normal(size=n)])


def scores(model: Tabular, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return (model(torch.from_numpy(x)) @ torch.tensor([-1.0, 1.0])).numpy()


@pytest.fixture(scope="module")
def fitted() -> Tabular:
    return fit_unusual(line(600, 0), NUMBERS, unusual_settings(120, 5), 0.05)


def test_what_breaks_a_relation_is_unusual(fitted: Tabular) -> None:
    """Each cell lies where many rows have theirs; together they do not."""
    apart = np.array([[-1.2, 1.2], [1.2, -1.2]])
    far = np.array([[9.0, 9.0], [-9.0, 0.0], [np.nan, 0.0]])
    assert (scores(fitted, apart) > 0).all()
    assert (scores(fitted, far) > 0).all()
    assert (scores(fitted, line(400, 1)) > 0).mean() < 0.1


def test_the_part_of_new_rows_that_is_flagged_is_the_one_asked_for(fitted: Tabular) -> None:
    """Also by the first tables alone, which have a limit of their own."""
    new = line(4000, 2)
    for count in (120, 60, 20):
        assert (scores(fitted.first(count), new) > 0).mean() == pytest.approx(0.05, abs=0.025), count


def test_fitted_rows_are_flagged_as_often_as_asked_for() -> None:
    x = line(300, 0)
    for share in (0.1, 0.05, 0.01):
        model = fit_unusual(x, NUMBERS, unusual_settings(30, 5), share, of_fitted=True)
        assert (scores(model, x) > 0).sum() == round(300 * share)
    few = fit_unusual(x, NUMBERS, unusual_settings(30, 5), 0.1, of_fitted=True).first(15)
    assert (scores(few, x) > 0).sum() == pytest.approx(30, abs=2)  # 45 with an even share of the limit of all tables
    none = fit_unusual(x, NUMBERS, unusual_settings(30, 5), 0.001, of_fitted=True)
    assert not (scores(none, x) > 0).any()


def test_counting_rows_say_how_few_samples_read_them() -> None:
    codes = np.random.default_rng(0).integers(3, 90, (3, 400)).astype(np.uint8)
    anchors, weight = _counting(codes, 4, unusual_settings(4, 6), np.random.default_rng(1))
    assert (anchors[..., 1] - 3 >= 2).all()
    assert (anchors[..., 1] - 3 <= 89).all()
    for own, rows in zip(anchors, weight, strict=True):
        bits = codes[own[:, 0]] > (own[:, 1] - 3)[:, None]
        cells = (bits << np.arange(6)[:, None]).sum(0)
        np.testing.assert_allclose(rows, [1 / (1 + (cells == cell).sum()) for cell in range(64)])


def test_limit_lies_between_the_rows_that_are_flagged_and_the_others() -> None:
    values = np.random.default_rng(0).permutation(np.arange(100.0))
    for share, flagged in ((0.01, 1), (0.05, 5), (0.5, 50), (0.019, 1), (0.29, 29)):
        assert (values > _limit(values, share)).sum() == flagged
    assert _limit(values, 0.005) > 99
    assert 0 < _limit(np.zeros(7), 0.3) < 0.001  # all alike: none is flagged


def test_made_up_rows_keep_a_part_of_a_row_and_take_cells_from_the_columns() -> None:
    random = np.random.default_rng(0)
    x = np.column_stack([random.normal(size=200), random.integers(0, 3, 200), np.full(200, 5.0), random.normal(size=200)])
    x[random.random(200) < 0.3, 0] = np.nan
    columns = (Column(0, False), Column(4, False), Column(0, False), Column(0, False))
    rows = made_up(x, columns, 3000, np.random.default_rng(1))
    same = np.array([(rows[:, each, None] == x[None, :, each]).any(1) | np.isnan(rows[:, each]) for each in range(4)])
    assert np.isin(rows[:, 1], [0, 1, 2, 3]).all()
    assert (rows[:, 1] == 3).any()
    assert 0.2 < np.isnan(rows[:, 0]).mean() < 0.4
    assert not np.isnan(rows[:, 1:]).any()
    width = np.nanmax(x[:, 0]) - np.nanmin(x[:, 0])
    assert np.nanmax(rows[:, 0]) > np.nanmax(x[:, 0])
    assert np.nanmax(rows[:, 0]) <= np.nanmax(x[:, 0]) + 0.25 * width
    assert 0.5 < same[3].mean() < 0.95
    is_row = (rows[:, None] == x[None]).all(2).any(1)
    assert is_row.mean() < 0.1  # by chance alone: a cell at least is replaced


def test_encoding_asks_beyond_the_ends_and_ranks_rare_categories_low() -> None:
    x = np.column_stack([np.linspace(0, 10, 1000), np.repeat([0, 2, 1], [700, 290, 10]), np.full(1000, 3.0)])
    encoding = unusual_encoding(x, (Column(0, False), Column(4, False), Column(0, False)))
    beyond = encoding.codes(np.array([[-2.0, 0, 2.9], [0.0, 1, 3.0], [10.0, 2, 3.1], [12.0, 3, np.nan]]))
    assert (np.diff(beyond[0].astype(int)) > 0).all()
    assert beyond[1].tolist() == [4, 2, 3, 1]
    assert beyond[2, 3] == 0
    assert (np.diff(beyond[2, :3].astype(int)) >= 0).all()
    assert len(set(beyond[2].tolist())) >= 3  # a column of one value: others are seen
    assert encoding.tops().max() <= 255


def test_dates_are_their_parts() -> None:
    days = np.arange(0, 3 * 366, 7) * 86400.0
    encoding = unusual_encoding(days[:, None], (Column(0, True),))
    assert encoding.parts == ("month", "day", "weekday", "hour")
    later = encoding.codes(np.array([[days[10]], [days[10] + 28 * 365.25 * 86400]]))  # weekdays repeat after 28 years
    np.testing.assert_array_equal(later[:, 0], later[:, 1])


@pytest.mark.parametrize("x", [np.zeros((12, 2)), np.array([[1e308, -1e308], [-1e308, 1e308], [0, np.nan]] * 4), np.eye(2)])
def test_odd_rows(x: np.ndarray) -> None:
    model = fit_unusual(x, NUMBERS, unusual_settings(6, 3))
    assert np.isfinite(scores(model, x)).all()


def test_one_table_and_missing_columns() -> None:
    x = line(50, 0)
    x[:, 1] = np.nan
    model = fit_unusual(x, NUMBERS, unusual_settings(1, 2))
    assert model.config.n_tables == 1
    assert np.isfinite(scores(model, x)).all()


def test_measures_are_those_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    y, values = random.random(500) < 0.1, random.normal(size=500).round(1)
    values[y] += 1
    assert average_precision(y, values) == pytest.approx(average_precision_score(y, values))
    assert roc_auc(y, values) == pytest.approx(roc_auc_score(y, values))
    told = detection_report(y.astype(np.int64), values - 1, 0.02)
    assert told["found"] == (y & (values > 1)).sum()
    assert told["flagged_rows"] == (values > 1).sum()
    assert told["precision"] == told["found"] / told["flagged_rows"]
    assert told["recall"] == told["found"] / y.sum()
    assert told["false_alarms"] == (values > 1)[~y].mean()
    assert told["wanted"] == 0.02
    assert "roc_auc" not in detection_report(np.zeros(3, np.int64), np.ones(3), 0.02)


def test_rarity_follows_the_scores_of_rows_that_were_not_fitted(fitted: Tabular) -> None:
    told = fitted.metadata["unusual"]
    assert told["rows"] == 600
    assert told["share"] == 0.05
    new = scores(fitted, line(4000, 3))
    for part in (0.5, 0.9):
        assert (rarity(fitted.metadata, new) <= part).mean() == pytest.approx(part, abs=0.08)
    assert (rarity(fitted.metadata, np.array([-1e9, 1e9])) == [0, 1]).all()
    assert rarity_text(1.0, 600) == "more unusual than all 600 usual rows"
    assert rarity_text(0.9996, 600) == "more unusual than 99.96% of usual rows"
    assert rarity_text(0.9979, 600) == "more unusual than 99.7% of usual rows"
    assert rarity_text(0.5, 600) == "more unusual than 50% of usual rows"


LEVELS = [float(each) for each in range(13)]
GOOD: dict[str, Any] = {"share": 0.01, "rows": 5, "levels": LEVELS}
BAD = [
    ({"task": "classification", "unusual": GOOD}, "metadata.unusual"),
    ({"task": "unusual"}, "metadata.unusual"),
    ({"task": "unusual", "unusual": GOOD, "classes": ["no", "yes"]}, "usual, unusual"),
    ({"task": "unusual", "unusual": {**GOOD, "share": 0}}, "share"),
    ({"task": "unusual", "unusual": {**GOOD, "rows": True}}, "rows"),
    ({"task": "unusual", "unusual": {**GOOD, "levels": LEVELS[::-1]}}, "levels"),
    ({"task": "unusual", "unusual": {**GOOD, "levels": [*LEVELS[:12], "1"]}}, "levels"),
    ({"task": "unusual", "unusual": {**GOOD, "levels": LEVELS[:5]}}, "levels"),
]


@pytest.mark.parametrize(("metadata", "named"), BAD)
def test_metadata_is_checked(fitted: Tabular, metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        check_metadata(metadata, fitted.config)


def test_columns_are_those_of_the_shape() -> None:
    assert columns_of(Shape(2, (0, 3, 0), (3,), frozenset([2]))) == (Column(0, False), Column(3, False), Column(0, True))
