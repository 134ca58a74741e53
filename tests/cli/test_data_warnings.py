"""`lutetia train` says what may be wrong with a file: copied rows, a line of totals, a column that gives the target away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from lutetia.cli import main
from said import error

SMALL = [f"--set=fit.{each}" for each in ("n_tables=2", "n_anchors=2", "candidates=4")]
Shown = Callable[[pandas.DataFrame], str]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """What `train` prints of a frame, whose last column is the target."""

    def train(frame: pandas.DataFrame) -> str:
        frame.to_csv(tmp_path / "rows.csv", index=False)
        place = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        assert main(["train", str(tmp_path / "rows.csv"), "--target", str(frame.columns[-1]), "--out", str(place), *SMALL]) == 0
        return capsys.readouterr().out

    return train


def sales(n: int = 60) -> pandas.DataFrame:
    random = np.random.default_rng(0)
    units = random.integers(1, 500, n)
    revenue = (units * random.uniform(8, 12, n)).round(2)
    return pandas.DataFrame({"region": random.choice(["north", "south"], n), "units": units, "revenue": revenue})


def test_a_line_of_totals(shown: Shown) -> None:
    frame = sales()
    assert "last row" not in shown(frame)
    total = {"region": "Total", "units": frame["units"].sum(), "revenue": frame["revenue"].sum().round()}
    told = "the last row holds the sums of units and revenue: if it is a line of totals, remove it from the file\n"
    assert told in shown(pandas.concat([frame, pandas.DataFrame([total])]))
    with_one = pandas.concat([frame, pandas.DataFrame([total | {"units": 7}])])
    assert "the last row holds the sum of revenue:" in shown(with_one)
    # Ones that happen to add up among many zeros are no totals.
    rare = frame.assign(returned=[1, 1, *[0] * 57, 2])[["region", "returned", "units", "revenue"]]
    assert "last row" not in shown(rare)


def test_a_file_that_repeats_its_rows(shown: Shown) -> None:
    frame = sales(30).drop(columns="revenue").assign(late=[*"yn" * 15])
    told = "the file holds every row 6 times, so the test looks too good"
    assert told in shown(pandas.concat([frame] * 6))
    assert "every row" not in shown(pandas.concat([*[frame] * 6, frame[:1]]))  # rows that are alike by their nature


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (lambda y, late: np.array([9, 4, 7])[y], True),  # codes, filled in afterwards
        (lambda y, late: y * 10.0 + late, True),  # a range of numbers for each class
        (lambda y, late: np.array(["paid", "open", "void"])[y], True),
        (lambda y, late: np.where(np.arange(len(y)) == np.argmax(y), 9, np.array([9, 4, 7])[y]), False),  # but for one row
        (lambda y, late: np.arange(len(y)) * 7919 % 1000 + 0.5, False),  # another number in each row
    ],
)  # fmt: skip
def test_a_column_that_gives_a_class_away(shown: Shown, values: Callable[..., np.ndarray], told: bool) -> None:
    random = np.random.default_rng(1)
    y, late = random.integers(0, 3, 90), random.random(90)
    frame = pandas.DataFrame({"age": late, "final code": values(y, random.random(90)), "kind": np.array([*"abc"])[y]})
    hint = """final code alone tells kind in all rows; if that is known only afterwards, leave it out: --set 'data.leave_out=["""
    assert (f'{hint}"final code"]' in shown(frame)) == told


def test_a_column_that_gives_a_number_away(shown: Shown) -> None:
    frame = sales()
    euros = frame.assign(euros=(frame["revenue"] * 0.9))[["units", "region", "euros", "revenue"]]
    assert "euros alone tells revenue in all rows" in shown(euros)
    assert "alone tell" not in shown(euros.assign(euros=euros["euros"].round(-2)))
    both = euros.assign(minus=-euros["euros"])[["units", "euros", "minus", "revenue"]]
    assert """euros and minus each alone tell revenue in all rows""" in shown(both)


def test_names_that_differ_in_capitals_in_two_columns(shown: Shown) -> None:
    frame = sales().assign(region=["DE", "de"] * 30, sent=["yes", "Yes", "no"] * 20)[["region", "sent", "units", "revenue"]]
    out = shown(frame)
    assert "'DE' and 'de' differ in capitals alone, and are two categories of region" in out
    assert "'Yes' and 'yes' differ in capitals alone, and are two categories of sent" in out


def test_lines_above_the_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.csv"
    rows = "".join(f"north,{n},{'yes' if n % 2 else 'no'}\n" for n in range(30))
    file.write_text(f"Sales 2024,,\n,,\nregion,units,returned\n{rows}")
    told = "has no column 'returned', but line 3 has a cell of that name: remove the lines above it"
    assert told in error(capsys, "train", file, "--target", "returned")
    file.write_text(f"Sales 2024\nregion,units,returned\n{rows}")
    told = "line 2: 3 columns, expected 1 as in line 1: if that is a title, remove it"
    assert told in error(capsys, "train", file, "--target", "returned")
