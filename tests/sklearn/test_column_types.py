"""Columns that are no numbers: what an error says to do about each."""

import re

import numpy as np
import pandas
import polars
import pytest

from lutetia.sklearn import LUTClassifier

DAYS = pandas.Series(pandas.date_range("2024-01-01", periods=40))
Y = [0, 1] * 20


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pandas.Series(["a", "b"] * 20), "list it in categorical_features or text_features, or make it a category"),
        (DAYS.dt.to_period("D"), "make it dates, its .dt.to_timestamp()"),
        (DAYS - DAYS[0], "expected numbers: make it numbers, such as its .dt.total_seconds()"),
    ],
)
def test_the_error_of_fit_says_what_to_do(column, said):
    with pytest.raises((ValueError, TypeError), match=f"column 'odd'.*{re.escape(said)}"):
        LUTClassifier(n_tables=2).fit(pandas.DataFrame({"odd": column}), Y)


def test_durations_of_polars_are_named_too():
    frame = polars.DataFrame({"odd": polars.Series(range(40)).cast(polars.Duration("ms"))})
    with pytest.raises(ValueError, match=r"column 'odd' holds timedelta64.*\.dt\.total_seconds\(\)"):
        LUTClassifier(n_tables=2).fit(frame, Y)
    seconds = frame.with_columns(polars.col("odd").dt.total_milliseconds())
    assert LUTClassifier(n_tables=2).fit(seconds, Y).n_features_in_ == 1


def test_a_category_that_a_list_leaves_out_is_told_as_such():
    frame = pandas.DataFrame({"plan": ["pro", "team"] * 20, "city": pandas.Categorical(["Lyon", "Nice"] * 20)})
    with pytest.raises(ValueError, match="column 'city': it is a category that categorical_features does not list"):
        LUTClassifier(n_tables=2, categorical_features=["plan"]).fit(frame, Y)
    assert set(LUTClassifier(n_tables=2, categorical_features=["plan", "city"]).fit(frame, Y).categories_) == {0, 1}


@pytest.mark.parametrize("library", [pandas, polars])
def test_one_row_or_column_is_no_table(library):
    frame = library.DataFrame({"a": list(range(40)), "b": [1.0] * 40})
    model = LUTClassifier(n_tables=2).fit(frame, Y)
    with pytest.raises(ValueError, match="Expected 2D array, got a Series"):
        model.predict(frame["a"])
    assert len(model.predict(frame[:1])) == 1


def test_two_columns_of_one_name_are_refused():
    frame = pandas.DataFrame([[1.0, 2.0, 3.0]] * 40, columns=["a", "b", "a"])
    with pytest.raises(ValueError, match=r"^X has two columns named 'a', expected every name once"):
        LUTClassifier(n_tables=2).fit(frame, Y)
    with pytest.raises(ValueError, match=r"^X has two columns named 1,"):
        LUTClassifier(n_tables=2).fit(frame.set_axis([1, 2, 1], axis=1), Y)
    model = LUTClassifier(n_tables=2).fit(frame.iloc[:, :2], Y)
    with pytest.raises(ValueError, match=r"^X has two columns named 'a'"):
        model.predict(frame)


def test_a_fit_names_its_columns_as_often_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names were made anew for each column: of 20,000 columns that took most of the time of a fit."""
    made: list[int] = []
    names = LUTClassifier.names
    monkeypatch.setattr(LUTClassifier, "names", lambda self, n=None: (made.append(0), names(self, n))[1])
    counts = []
    for n_columns in (3, 40):
        made.clear()
        x = np.random.default_rng(0).normal(size=(30, n_columns))
        LUTClassifier(n_tables=2, random_state=0, monotonic_cst=[1] + [0] * (n_columns - 1)).fit(x, x[:, 0] > 0)
        counts.append(len(made))
    assert counts[0] == counts[1]
