"""Dates as people write them: their numbers and parts are those of Python's datetime, and nothing is read in two ways."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lutetia.errors import DataError
from lutetia.models.dates import EPOCH, PARTS, date_text, part_of
from lutetia.training.date_columns import dated, find_dates
from lutetia.training.dates import date_seconds, find_order, looks_like_date
from lutetia.training.table_files import Reading, make_table, read_table_file
from lutetia.training.table_run import guess_config, make_table_config, open_table

MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # the zone is added to some
ZONES = st.none() | st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
WAYS = {
    "%Y-%m-%d": "year first", "%Y-%m-%dT%H:%M:%S": "year first", "%Y-%m-%d %H:%M:%S.%f": "year first", "%Y/%m/%d": "year first",
    "%Y%m%dT%H%M%S": "year first", "%Y%m%d": "year first", "%d %b %Y": "year first", "%d-%B-%Y": "year first",
    "%b %d, %Y %H:%M": "year first", "%A, %d %B %Y": "year first",
    "%d/%m/%Y %H:%M": "day first", "%d.%m.%Y": "day first", "%d-%m-%Y": "day first", "%Y-%m-%d %H:%M": "day first",
    "%m/%d/%Y %I:%M:%S %p": "month first", "%m/%d/%Y": "month first", "%m-%d-%Y %H:%M": "month first",
}  # fmt: skip


def written(moment: datetime, way: str) -> str:
    """strftime, which leaves out the zeros of early years."""
    return moment.strftime(way.replace("%Y", f"{moment.year:04}"))


def python_parts(moment: datetime) -> list[int]:
    return [moment.year, moment.month, moment.day, moment.isoweekday(), moment.hour]


@given(MOMENTS, ZONES)
def test_iso_texts_are_what_python_reads(moment: datetime, zone: timezone | None) -> None:
    text = moment.replace(tzinfo=zone).isoformat()
    known = datetime.fromisoformat(text)
    known = known.replace(tzinfo=UTC) if known.tzinfo is None else known.astimezone(UTC)
    seconds = date_seconds(text, "year first")
    assert seconds is not None
    assert looks_like_date(text)
    assert seconds == (known - EPOCH) // timedelta(seconds=1) + known.microsecond / 1_000_000
    assert [int(part_of(np.array([seconds]), part)[0]) for part in PARTS] == python_parts(known)


@given(MOMENTS, st.sampled_from(list(WAYS)))
def test_other_ways_are_what_python_reads(moment: datetime, way: str) -> None:
    text = written(moment, way)
    known = datetime.strptime(text, way).replace(tzinfo=UTC)  # with what the way keeps of it
    assert date_seconds(text, WAYS[way]) == pytest.approx((known - EPOCH).total_seconds(), abs=1e-5)
    assert date_seconds(text.upper(), WAYS[way]) == date_seconds(text, WAYS[way])


@given(st.lists(MOMENTS, min_size=1, max_size=20), st.sampled_from(["%d/%m/%Y", "%m/%d/%Y"]))
def test_a_day_above_twelve_decides(moments: list[datetime], way: str) -> None:
    order = find_order([written(moment, way) for moment in moments])
    decides = any(moment.day > 12 for moment in moments)
    assert order == (("day first" if way == "%d/%m/%Y" else "month first") if decides else "")


def test_orders() -> None:
    assert find_order(["2024-02-29", "Feb 3, 2024"]) == "year first"
    assert find_order(["01.02.2024"]) == "day first"  # with points, always
    assert find_order(["13/01/2024", "01/13/2024"]) is None
    assert find_order(["01/02/24", "31/12/49"]) == "day first"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("31/12/49", datetime(2049, 12, 31, tzinfo=UTC)), ("1/1/50", datetime(1950, 1, 1, tzinfo=UTC)),
        ("2024-2-9", datetime(2024, 2, 9, tzinfo=UTC)), ("9 Sept 2024 12:05 am", datetime(2024, 9, 9, 0, 5, tzinfo=UTC)),
        ("2024-02-29T23:30-05", datetime(2024, 3, 1, 4, 30, tzinfo=UTC)), ("2024-03", datetime(2024, 3, 1, tzinfo=UTC)),
        ("2024-02-29 12:00:00.123456789", datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)),
        ("Thu, 29 Feb 2024 16:30:00 GMT", datetime(2024, 2, 29, 16, 30, tzinfo=UTC)),
        ("2 May 2024", datetime(2024, 5, 2, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_texts_worth_naming(text: str, moment: datetime) -> None:
    assert date_seconds(text, "day first") == moment.timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "2023-02-29", "2024-13-01", "0000-00-00", "2024-02-29 24:00", "2024-02-29 12:60", "13:00 pm", "2024-02-29 13:00 pm",
        "2024-02-29T10:00+24:00", "9999-12-31T23:00-05:00", "0001-01-01T00:00+01:00", "2024-02/29", "1.2.10", "10:30", "soon",
        "2009-2010", "", "٢٠٢٤-٠٢-٢٩", "29/02/2024 ", "2024-02-29T10:00+0:30", "Foo 3, 2024", "Jan 32, 2024",
    ],
)  # fmt: skip
def test_what_is_no_date(text: str) -> None:
    assert date_seconds(text, "day first") is None


def test_texts_of_dates() -> None:
    noon = datetime(987, 6, 5, 12, 0, 1, tzinfo=UTC)
    seconds = (noon - EPOCH).total_seconds()
    assert [date_text(seconds, times) for times in (False, True)] == ["0987-06-05", "0987-06-05 12:00:01"]
    assert [date_text(end, False) for end in (np.nan, -1e300, 1e300)] == ["missing", "0001-01-01", "9999-12-31"]
    assert np.isnan(part_of(np.array([np.nan]), "month")).all()
    assert part_of(np.array([1e300]), "year") == 9999


# ---- columns ---------------------------------------------------------------------------------------------------------

ISO = [f"2024-01-{day:02}" for day in range(1, 31)]
OPEN = [f"0{n % 9 + 1}/0{n % 7 + 1}/2024" for n in range(30)]
CLOSED = [f"{n + 1}/6/2024" for n in range(30)]


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    columns = columns | {"y": [n % 2 for n in range(30)]}
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_a_file_decides_which_comes_first(tmp_path: Path) -> None:
    config, table = guess_config(write(tmp_path / "a.csv", {"a": CLOSED, "b": OPEN}), None, None)
    assert config.data.dates == ["a", "b"]
    assert [column.order for column in table.dates.values()] == ["day first"] * 2
    assert date_text(table.x[0, 1], False) == "2024-01-01"
    assert date_text(table.x[1, 1], False) == "2024-02-02"
    kind = dict(table.types)
    assert kind["a"] == "dates, day first, 2024-06-01 to 2024-06-30, with day, weekday"


def test_dates_that_may_be_two_things_are_left_out_until_someone_says(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"a": ISO, "b": OPEN})
    config, table = guess_config(path, None, None)
    why = "dates such as '01/01/2024' may have the day or the month first: data.day_first is true or false"
    assert table.left_out == {"b": why}
    assert open_table(config, Path())[0].left_out == {"b": why}
    for day_first, order in ((True, "day first"), (False, "month first")):
        config, table = guess_config(path, None, None, day_first=day_first)
        assert table.dates[1].order == order
        assert config.data.dates == ["a", "b"]
        again = open_table(make_table_config(config.to_dict(), "config"), Path())[0]
        np.testing.assert_array_equal(again.x, table.x)
    columns = {"a": ["13.02.2024"], "b": ["01.02.2024"], "c": ["2/13/2024"], "d": ["1/2/2024"]}
    for day_first, order in ((None, ""), (True, "day first"), (False, "month first")):
        orders = find_dates(columns, None, day_first, None).orders
        assert [orders.get(name, "") for name in columns] == ["day first", "day first", "month first", order]  # only d is open
    file = read_table_file(path)
    with pytest.raises(DataError, match=r"data\.dates has 'b': dates such as"):
        make_table(file, None, None, Reading(dates=["a", "b"]))


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ([*ISO[:-1], "2024-02-30"], "'2024-02-30' in line 31 is not a date such as 2024-02-29: data.missing may name it"),
        (["1/13/2024", "13/1/2024"] * 15, "some of its dates have the day first, others the month"),
    ],
)
def test_unreadable_dates(tmp_path: Path, column: list[str], why: str) -> None:
    path = write(tmp_path / "a.csv", {"a": column, "b": list(range(0, 60, 2))})
    config, table = guess_config(path, None, None)
    assert table.left_out == {"a": why}
    assert config.data.leave_out == ["a"]
    with pytest.raises(DataError, match=r"a.csv, column 'a', line \d+: '.*', expected a date"):
        make_table(read_table_file(path), None, None, Reading(dates=["a"]))


def test_what_is_missing_is_nan(tmp_path: Path) -> None:
    column = [*ISO[:24], "", "NaT", "unknown", "NA", "2024-02-30", "?"]
    path = write(tmp_path / "a.csv", {"a": column})
    table = make_table(read_table_file(path), None, None, Reading(missing=["unknown", "2024-02-30"]))
    assert np.isnan(table.x[:, 0]).tolist() == [False] * 24 + [True] * 6
    assert dict(table.types)["a"].endswith(", with day, weekday, 6 missing")
    config, _ = guess_config(write(tmp_path / "b.csv", {"a": [*ISO[:27], "unknown", "-", "-"]}), None, None)
    assert config.data.missing == ["-", "unknown"]
    assert config.data.dates == ["a"]


def test_settings_overrule_what_columns_look_like(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"day": ISO, "packed": [day.replace("-", "") for day in ISO], "b": list(range(0, 60, 2))})
    file = read_table_file(path)
    assert list(make_table(file, None, None).dates) == [0]
    listed = make_table(file, None, None, Reading(dates=["day", "packed"]))
    np.testing.assert_array_equal(listed.x[:, 0], listed.x[:, 1])
    other = make_table(file, None, None, Reading(dates=["packed"]))
    assert other.left_out == {"day": "dates that data.dates does not list"}
    assert list(other.dates) == [0]
    as_categories = make_table(file, None, None, Reading(categorical=["day"]))
    assert as_categories.categories[0] == ISO
    assert not as_categories.dates
    assert make_table(file, None, None, Reading(leave_out=["day"])).left_out == {"day": "as data.leave_out says"}
    for wanted, message in (
        (Reading(dates=["no"]), "data.dates has 'no', which is not a column"),
        (Reading(dates=["day"], categorical=["day"]), "data.dates and data.categorical both have 'day'"),
        (Reading(dates=["b"]), "column 'b', line 2: '0', expected a date such as 2024-02-29"),
    ):
        with pytest.raises(DataError, match=message):
            make_table(file, None, None, wanted)


def test_one_date_teaches_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", {"a": ["2024-01-02T10:00"] * 30, "day": ISO})
    table = make_table(read_table_file(path), None, None)
    assert table.left_out == {"a": "all its values are 2024-01-02 10:00"}
    assert list(table.dates) == [0]


def test_seasons_and_versions_are_not_dates() -> None:
    columns = {"season": ["2009-10", "2010-11"] * 9, "version": ["1.2.10", "1.3.11"] * 9, "time": ["10:30", "11:00"] * 9}
    found = find_dates(columns, None, None, None)
    assert found.orders == {}
    assert found.unused == {}


def test_parquet_has_dates_of_its_own(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    moments = [datetime(2024, 1, 1, 9, tzinfo=UTC) + timedelta(hours=30 * n) for n in range(30)]
    ticks = [int(moment.timestamp()) * 10**9 + 1 for moment in moments]  # a nanosecond that Python cannot hold
    arrays = {
        "naive": pyarrow.array(ticks, pyarrow.timestamp("ns")),
        "zoned": pyarrow.array(ticks, pyarrow.timestamp("ns", "Asia/Tokyo")),
        "day": pyarrow.array([moment.date() for moment in moments], pyarrow.date32()),
        "y": list(range(30)),
    }
    parquet.write_table(pyarrow.table(arrays), tmp_path / "a.parquet")
    table = make_table(read_table_file(tmp_path / "a.parquet"), "y", "regression")
    assert [column.times for column in table.dates.values()] == [True, True, False]
    np.testing.assert_array_equal(table.x[:, 0], [moment.timestamp() for moment in moments])
    np.testing.assert_array_equal(table.x[:, 1], table.x[:, 0])
    np.testing.assert_array_equal(table.x[:, 2], [table.x[row, 0] // 86400 * 86400 for row in range(30)])
    np.testing.assert_array_equal(dated([date(2024, 1, 1), None], "year first", "x"), [1704067200.0, np.nan])
