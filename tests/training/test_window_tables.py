"""Windows of recordings as tables of data: where they begin, what they are labelled, what is held out, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lutetia.errors import DataError
from lutetia.training import Data, LearningTable, guess_windows, open_table, read_table_file


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


def opened(path: Path, *settings: str, target: str = "label") -> tuple[LearningTable, Data]:
    config = guess_windows(path, read_table_file(path), target, None, list(settings))
    return open_table(config, Path())


def recording(n: int, label: list[str], **more: list[Any]) -> dict[str, list[Any]]:
    """A signal whose samples say where they are: window b of 10 rows has the minimum b, and its row."""
    return {
        "time": [f"{0.5 * t:.1f}" for t in range(n)],
        "a": [*range(n - 1), -1],
        "b": [t % 7 for t in range(n)],
        **more,
        "label": label,
    }


def rows_of(table: LearningTable, data: Data) -> dict[str, list[set[int]]]:
    """The rows of each window of each split, by the minimum of `a`, which rises."""
    place = table.features.index("a: minimum")
    return {
        name: [set(range(int(first), int(first) + 10)) for first in part.x[:, place]]  # type: ignore[union-attr]
        for name, part in data.splits.items()
    }


def test_windows_are_labelled_by_their_rows(tmp_path: Path) -> None:
    label = ["x"] * 23 + ["y"] * 20 + [""] * 1 + ["y"] * 16
    data = recording(60, label)
    data["a"] = [*range(59), 58]  # does not rise in the last step alone: no time
    table, _ = opened(write(tmp_path / "r.csv", data), "data.window=10", "data.step=5", "data.signals={a=0, b=0}")
    firsts = table.x[:, table.features.index("a: minimum")].astype(int).tolist()
    assert table.windows is not None
    block = int(table.windows.held[1].split()[0])
    starts = [
        start for start in range(0, 51, 5) if len({*label[start : start + 10]}) == 1 and "" not in label[start : start + 10]
    ]
    n = 60 // block
    kept = [start for start in starts if start * n // 60 == (start + 9) * n // 60]  # in one block
    assert firsts == kept
    assert [table.classes[each] for each in table.y] == [label[start] for start in kept]


@pytest.mark.parametrize("by", ["series", "blocks", "latest", "groups"])
def test_no_row_is_fitted_and_tested_on(by: str, tmp_path: Path) -> None:
    n = 600
    label = ["xy"[t // 37 % 2] for t in range(n)]
    path = write(tmp_path / "r.csv", recording(n, label, trial=[f"t{t // 60}" for t in range(n)]))
    settings = {
        "series": ["data.series=trial"], "blocks": [], "latest": ["data.split=latest"],
        "groups": ["data.split=groups", "data.split_by=trial"],
    }[by]  # fmt: skip
    table, data = opened(path, "data.window=10", "data.step=3", "data.signals={a=0, b=0}", *settings)
    parts = rows_of(table, data)
    fitted, tested = (set().union(*parts[name]) for name in ("train", "test"))
    assert len(fitted) > len(tested) > 0
    assert not fitted & tested
    assert table.windows is not None
    assert table.windows.held[0] == {"series": "groups", "latest": "latest blocks"}.get(by, by)
    if by in ("series", "groups"):
        assert not {row // 60 for row in fitted} & {row // 60 for row in tested}
    if by == "latest":
        assert max(fitted) < min(tested)


def test_few_recordings_are_held_out_in_blocks(tmp_path: Path) -> None:
    n = 300
    data = recording(n, ["xyz"[t // 100] for t in range(n)], trial=[t // 100 for t in range(n)])
    table, _ = opened(write(tmp_path / "r.csv", data), "data.window=10", "data.series=trial")
    assert table.windows is not None
    assert (table.windows.held[0], table.windows.why) == (
        "blocks",
        "there are 3 recordings, and 5 are needed to hold out whole ones",
    )
    data["trial"] = [t // 50 for t in range(n)]
    data["label"] = ["x" if t < 250 else "y" for t in range(n)]
    table, _ = opened(write(tmp_path / "r.csv", data), "data.window=10", "data.series=trial")
    assert table.windows is not None
    assert table.windows.why == "a class is in one recording only"


def test_what_is_a_signal_and_how_fine(tmp_path: Path) -> None:
    n = 200
    random = np.random.default_rng(0)
    data = {
        "time": [f"{0.01 * (t % 100):.2f}" for t in range(n)],
        "count": list(range(n)),
        "name": ["left", "right"] * (n // 2),
        "same": [3] * n,
        "adc": random.integers(-2000, 2000, n).tolist(),
        "g": [f"{value:.4f}" for value in random.normal(0, 0.5, n)],
        "fine": random.normal(0, 1, n).tolist(),
        "pressure": [f"{101_325 + value:.2f}" for value in random.normal(0, 5, n)],
        "label": ["x", "y"] * (n // 2),
    }
    data["label"] = ["xy"[t // 25 % 2] for t in range(n)]
    table, _ = opened(write(tmp_path / "r.csv", data), "data.window=8")
    assert table.windows is not None
    assert {each.name: each.decimals for each in table.windows.windows.signals} == {"adc": 0, "g": 4, "fine": 3, "pressure": 2}
    assert table.windows.windows.bits == 32  # for the pressure, which varies by less than a thousand steps of 16 bits
    assert table.left_out == {
        "time": "it rises, but for 1 row: a time that begins anew there",
        "count": "it only rises, as a time does",
        "name": "no signal: 'left' is not a number",
        "same": "all its values are 3",
    }


def test_numbers_are_predicted_by_their_mean(tmp_path: Path) -> None:
    n = 200
    data = recording(n, [])
    data["label"] = [f"{t * 0.5:.1f}" for t in range(n)]
    table, _ = opened(write(tmp_path / "r.csv", data), "data.window=10", "data.step=10", "data.signals={b=0, a=0}")
    firsts = table.x[:, table.features.index("a: minimum")]
    np.testing.assert_allclose(table.y[firsts >= 0], (firsts[firsts >= 0] + 4.5) * 0.5)
    assert table.classes == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["data.window=7"], "data.window is 7"),
        (["data.window=300"], "has no window of 300 rows: its longest recording has 200"),
        (["data.window=10", "data.series=trail"], "did you mean trial"),
        (["data.window=10", "data.series=label"], "the column to predict"),
        (["data.window=10", 'data.text=["b"]'], "data.text"),
        (["data.window=10", "data.query=trial"], "data.query"),
        (["data.window=10", "data.weight=b"], "data.weight"),
        (["data.window=10", "data.signals={c=0}"], "data.signals has 'c'"),
        (["data.window=10", 'data.signals={b="x"}'], "its decimal places"),
        (["data.window=10", "data.signals={b=15}"], "more than 32 bits"),
        (["data.window=10", 'data.leave_out=["a", "b", "trial"]'], "has no signal"),
        (["data.window=10", "data.split=groups"], "data.split_by"),
        (["data.window=10", "data.split_by=trial"], 'expected "groups"'),
        (["data.window=100", "data.series=trial"], "its longest recording has 50"),
    ],
)
def test_settings_that_are_refused(settings: list[str], told: str, tmp_path: Path) -> None:
    data = recording(200, ["xy"[t // 30 % 2] for t in range(200)], trial=[t // 50 for t in range(200)])
    with pytest.raises((DataError, ValueError), match=told):
        opened(write(tmp_path / "r.csv", data), *settings)


def test_a_sample_that_lacks_is_refused_or_left_out(tmp_path: Path) -> None:
    data = recording(200, ["xy"[t // 30 % 2] for t in range(200)])
    data["b"][101] = "?"
    path = write(tmp_path / "r.csv", data)
    with pytest.raises(DataError, match="line 103, column 'b' is empty"):
        opened(path, "data.window=10")
    table, _ = opened(path, "data.window=10", "data.step=1", "data.skip_unusable=true")
    assert table.windows is not None
    assert table.windows.counts.lacking == 2  # those that begin in rows 100 and 101, as a block does in row 100
    assert not np.isnan(table.x).any()
