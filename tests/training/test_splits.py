"""Rows that tell of each other are not on both sides: what is held out, for testing and inside a fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lutetia.errors import DataError
from lutetia.training.boosting import Boosting
from lutetia.training.data import Samples
from lutetia.training.splits import RANDOM, Split
from lutetia.training.table_parts import HELD, hold_out, learning_rows
from lutetia.training.table_refit import try_refit
from lutetia.training.table_run import TableConfig, TableSettings, guess_config, open_table
from lutetia.training.tabular import Shape, TabularRows, fit_tabular

Array = np.ndarray


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), st.floats(0, 0.9), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_parts_have_all_rows_and_nothing_in_common(keys: list[int], share: float, seed: int) -> None:
    key, order = np.array(keys), np.random.default_rng(seed).permutation(len(keys))
    count = int(len(key) * share)
    for kind in ("latest", "groups"):
        own, held = Split(kind, key).parts(order, count)
        assert sorted([*own, *held]) == list(range(len(key)))
        assert len(own) > 0
        assert (len(held) > 0) == (count > 0 and len(set(keys)) > 1)
        assert not set(key[own]) & set(key[held])
        if kind == "latest" and len(held):
            assert key[own].max() < key[held].min()
            sizes = [int((key >= border).sum()) for border in np.unique(key)[1:]]
            assert abs(len(held) - count) == min(abs(size - count) for size in sizes)


def test_many_groups_come_near_the_share_and_any_may_be_held_out() -> None:
    random = np.random.default_rng(0)
    key, seen = random.integers(0, 50, 1000), set()
    for seed in range(30):
        _, held = Split("groups", key).parts(np.random.default_rng(seed).permutation(1000), 200)
        assert abs(len(held) - 200) <= np.bincount(key).max() / 2
        seen |= set(key[held])
    assert len(seen) == 50


def test_a_group_of_most_rows_is_not_the_one_to_test_on() -> None:
    key = np.array([0] * 90 + [1] * 4 + [2] * 6)
    for seed in range(20):
        _, held = Split("groups", key).parts(np.random.default_rng(seed).permutation(100), 20)
        assert set(key[held]) == {1, 2}


def test_without_a_key_rows_are_the_last_of_an_order() -> None:
    order = np.random.default_rng(0).permutation(10)
    own, held = RANDOM.parts(order, 3)
    np.testing.assert_array_equal(own, order[:7])
    np.testing.assert_array_equal(held, order[7:])
    assert RANDOM.at(np.arange(3)) is RANDOM


# ---- inside a fit ----------------------------------------------------------------------------------------------------


def patients(n_groups: int = 60, size: int = 10) -> TabularRows:
    """Rows of a group are alike, and its class is a coin: only who has seen a group knows it."""
    random = np.random.default_rng(0)
    key = np.repeat(np.arange(n_groups), size)[random.permutation(n_groups * size)]
    x, y = random.normal(size=(n_groups, 3))[key], random.integers(0, 2, n_groups)[key]
    return TabularRows(x, y, np.ones(len(y), np.float32), Split("groups", key))


SHAPE = Shape(2, (0, 0, 0), (3,))
SETTINGS = Boosting(n_tables=60, n_anchors=4, candidates=16)


@pytest.mark.parametrize("kind", ["latest", "groups"])
def test_what_is_held_out_inside_a_fit_is_parted_alike(kind: str) -> None:
    rows = replace(patients(), split=Split(kind, patients().split.key))
    for own, held in (rows.held_out(3), hold_out(rows, "a.csv")):
        assert own.split.key is not None
        assert held.split.key is not None
        assert not set(own.split.key) & set(held.split.key)
        assert len(own.y) + len(held.y) == len(rows.y)
        if kind == "latest":
            assert own.split.key.max() < held.split.key.min()
        for part in (own, held):  # what belongs together stays together
            np.testing.assert_array_equal(part.x, rows.x[[np.flatnonzero(rows.split.key == key)[0] for key in part.split.key]])


def test_calibration_the_end_of_a_fit_and_the_trial_of_circuits_see_what_groups_hide() -> None:
    groups = patients()
    loose = replace(groups, split=RANDOM)
    calibrated = [fit_tabular(rows, SHAPE, replace(SETTINGS, calibrate=True))[1].temperature for rows in (loose, groups)]
    assert calibrated[0] < 1.2
    assert calibrated[1] > 3
    ends = []
    for rows in (loose, groups):
        own, held = hold_out(rows, "a.csv")
        ends.append(len(fit_tabular(own, SHAPE, replace(SETTINGS, patience=2), valid=held)[1].anchors))
    assert ends[0] > 2 * ends[1]
    model, _ = fit_tabular(groups, SHAPE, SETTINGS)
    trials = [try_refit(model, rows, 40, SETTINGS) for rows in (loose, groups)]
    assert trials[0] is not None
    assert trials[1] is not None
    assert trials[0].cut > 0.9
    assert trials[1].cut < 0.75


def test_samples_of_weight_0_are_not_held_out_in_place_of_others() -> None:
    rows = patients()
    rows = replace(rows, split=RANDOM, weight=(np.arange(len(rows.y)) % 3 == 0).astype(np.float32))
    for own, held in (rows.held_out(0), hold_out(rows, "a.csv")):
        assert (held.weight > 0).all()
        assert len(own.y) + len(held.y) == 200


# ---- from a file -----------------------------------------------------------------------------------------------------


def opened(path: Path, target: str, **asked: object) -> tuple[Samples, Samples, TableConfig]:
    config, _ = guess_config(path, target, None)
    config = replace(config, data=replace(config.data, **asked))
    _, data = open_table(config, Path())
    train, test = data.splits["train"], data.splits["test"]
    assert isinstance(train, Samples)
    assert isinstance(test, Samples)
    return train, test, config


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """Visits of patients, in no order; `number` is the row in the order of the dates."""
    random = np.random.default_rng(0)
    lines = []
    for number in random.permutation(100):
        day, who = f"{1 + number % 28}/{1 + number // 28}/2024", f"P{number * 7 % 23}"
        lines.append(f"{day},{who},{number},{random.integers(9)},{number % 5},{number + 0.5}\n")
    path = tmp_path / "visits.csv"
    path.write_text("seen,patient,number,dose,share,pressure\n" + "".join(lines))
    return path


def test_the_latest_by_dates_by_numbers_and_by_the_order_of_the_file(visits: Path) -> None:
    for by in ("seen", "number"):
        train, test, _ = opened(visits, "pressure", split="latest", split_by=by)
        assert train.y.max() < test.y.min()
        assert len(test.y) == 20
    lines = visits.read_text().splitlines()[1:]
    _, test, _ = opened(visits, "pressure", split="latest")
    assert sorted(test.y) == sorted(float(line.rsplit(",", 1)[1]) for line in lines[80:])


def test_a_column_that_is_left_out_parts_rows_all_the_same(visits: Path) -> None:
    train, test, config = opened(visits, "pressure", split="latest", split_by="number", leave_out=["number", "seen"])
    assert train.y.max() < test.y.min()
    assert open_table(config, Path())[0].features == ["patient", "dose", "share"]


def test_groups_are_no_input_unless_they_are_asked_for(visits: Path) -> None:
    train, test, config = opened(visits, "pressure", split="groups", split_by="patient")
    who = [{(n * 7) % 23 for n in (part.y - 0.5).astype(int)} for part in (train, test)]
    assert not who[0] & who[1]
    assert 15 <= len(test.y) <= 25
    table, _ = open_table(config, Path())
    assert "patient" not in table.features
    assert "data.split_by" in table.left_out["patient"]
    asked = replace(config, data=replace(config.data, categorical=["patient"]))
    assert "patient" in open_table(asked, Path())[0].features


def test_a_rare_class_takes_its_group_along_and_a_late_one_stays_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for rare in range(10):
        lines = [f"{n % 7},g{n % 10},{'rare' if n % 10 == rare else 'ab'[n % 2]}\n" for n in range(60)]
        path.write_text("x,group,y\n" + "".join(lines))
        train, test, _ = opened(path, "y", split="groups", split_by="group")
        assert set(test.y) <= set(train.y)
        assert not set(train.split.key) & set(test.split.key)
    path.write_text("x,y\n" + "".join(f"{n % 7},{'new' if n > 55 else 'ab'[n % 2]}\n" for n in range(60)))
    train, test, _ = opened(path, "y", split="latest")
    assert 2 not in train.y
    assert (test.y == 2).sum() == 4


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"split_by": "seen"}, r"data\.split_by is 'seen' and data\.split is \"random\""),
        ({"split": "groups"}, "expected data.split_by to name the column"),
        ({"split": "groups", "split_by": "nobody"}, "'nobody', which is not a column of .*: expected one of seen, patient"),
        ({"split": "groups", "split_by": "pacient"}, r"which is not a column of .*: did you mean patient\?"),
        ({"split": "latest", "split_by": "pressure"}, "the column to predict"),
        ({"split": "latest", "split_by": "patient"}, "column 'patient', line 2: 'P.*expected a number or a date$"),
        ({"split": "groups", "split_by": "constant"}, "more groups than one"),
        ({"split": "latest", "split_by": "constant"}, "all rows are of one time"),
        ({"split": "groups", "split_by": "hole"}, "column 'hole' has no value in line 2"),
        ({"split": "latest", "split_by": "hole"}, "column 'hole' has no value in line 2"),
        ({"split": "latest", "split_by": "unclear"}, "may have the day or the month first"),
        ({"weight": "nobody"}, r"data\.weight is 'nobody', which is not a column"),
        ({"weight": "pressure"}, "the column to predict"),
        ({"weight": "hole"}, "has no value in line 2"),
        ({"weight": "patient"}, "expected a number$"),
        ({"weight": "negative"}, "line 2: -1, expected a weight of at least 0"),
        ({"weight": "nothing"}, "is 0 in every row"),
        ({"weight": "late", "split": "latest"}, "0 in all 80 rows to fit"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, asked: dict[str, str], message: str) -> None:
    path = tmp_path / "a.csv"
    names = "seen,patient,constant,hole,unclear,negative,nothing,late,pressure\n"
    rows = [
        f"2024-01-{1 + n % 28:02},P{n % 9},1,{n or ''},{1 + n % 12}/{1 + n % 11}/2024,{n - 1},0,{n // 80},{n * n}\n"
        for n in range(100)
    ]
    path.write_text(names + "".join(rows))
    config = TableConfig(TableSettings(str(path), "pressure", "regression", dates=None, **asked))
    with pytest.raises(DataError, match=message):
        open_table(config, Path())


def test_rows_without_a_time_or_a_weight_are_skipped_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "a,when,w,y\n" + "".join(f"{n % 9},{n if n != 3 else ''},{n % 4 if n != 5 else '-'},{n / 2}\n" for n in range(60))
    )
    settings = TableSettings(str(path), "y", skip_unusable=True, split="latest", split_by="when", weight="w", missing=["-"])
    table, data = open_table(TableConfig(settings), Path())
    assert table.skipped == ["line 5", "line 7"]
    assert len(table.y) == len(table.weight) == 58
    assert data.splits["test"].y.min() > data.splits["train"].y.max()


def test_images_have_no_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((20, 3, 3)), y=np.arange(20) % 2)
    config, _ = guess_config(tmp_path / "a.npz", None, None)
    _, data = open_table(replace(config, data=replace(config.data, split="latest")), Path())
    np.testing.assert_array_equal(np.sort(data.splits["test"].split.key), np.arange(16, 20))
    with pytest.raises(DataError, match="not a column"):
        open_table(replace(config, data=replace(config.data, weight="w")), Path())
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((8, 8), 40 * number, np.uint8)).save(tmp_path / "images" / name / f"{number}.png")
    config, _ = guess_config(tmp_path / "images", None, None)
    with pytest.raises(DataError, match="the images of a folder have no order"):
        open_table(replace(config, data=replace(config.data, split="latest")), Path())


def test_the_end_of_a_fit_needs_two_times(tmp_path: Path) -> None:
    rows = TabularRows(np.zeros((30, 1)), np.zeros(30), np.ones(30, np.float32), Split("groups", np.zeros(30, np.int64)))
    with pytest.raises(DataError, match="30 rows to fit, expected 10 of more than one group"):
        hold_out(rows, "a.csv")
    assert len(hold_out(replace(rows, split=RANDOM), "a.csv")[1].y) == 30 // HELD
    assert learning_rows(Samples(np.zeros((2, 3, 3)), np.zeros(2))).x.shape == (2, 9)
