"""What `lutetia train` says of data that may hold mistakes: copies of rows, totals, columns that give the target away."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from typing import Any

import numpy as np

from lutetia.cli.show import one_line
from lutetia.training import Data, LearningTable, Samples, TableConfig

Array = np.ndarray[Any, Any]
MOST_COMPARED, MOSTLY_DIFFERENT = 10_000_000, 0.5  # cells that are looked at, and rows that differ where copies are a mistake
FEWEST_REPEATED = 10  # different rows of a file that repeats all of them
FEWEST_ADDED = 10  # rows above a line of totals
FEWEST_TELLING, FEWEST_OF_CLASS, FEWEST_NUMBERS = 50, 5, 20  # rows, rows of each class, and numbers that chance does not order
FEWEST_ALIKE = 5  # rows of a value, on average, where values stand in no order
SHOWN = 3  # columns in a message


def data_warnings(config: TableConfig, table: LearningTable, data: Data) -> list[str]:
    """Sentences about what may be wrong with a table of data; none about images and windows, or without a
    target."""
    if len(table.input_shape) > 1 or table.windows is not None or table.forecast is not None or table.x.size > MOST_COMPARED:
        return []
    if table.is_unusual:
        return []
    told = (_copies_text(data), _totals_text(config, table), _telling_text(config, table))
    return [sentence for sentence in told if sentence]


def alike_texts(table: LearningTable) -> list[str]:
    """That classes, or the categories of a column, differ in capital letters alone: a sentence for each list of names."""
    lists = {"classes": table.classes} | {
        f"categories of {table.features[number]}": known for number, known in table.categories.items()
    }
    sentences = []
    for kind, names in lists.items():
        alike: dict[str, list[str]] = {}
        for name in names:
            alike.setdefault(name.lower(), []).append(name)
        if twice := next((own for own in alike.values() if len(own) > 1), None):
            told = " and ".join(repr(one_line(each)) for each in twice[:2])
            sentences.append(
                f"{told} differ in capitals alone, and are two {one_line(kind)}: change the file if they mean the same"
            )
    return sentences[:SHOWN]


def rows_text(part: Any, unit: str = "row") -> str:
    """How many rows, or images, a split has, and of a ranking how many queries; `unit` is what a row is."""
    kind = unit if part.x.ndim == 2 else "image"
    rows = f"{len(part):,} {kind}{'' if len(part) == 1 else 's'}"
    if part.query is None:
        return rows
    count = len(np.unique(part.query))
    return f"{rows} of {count:,} quer{'y' if count == 1 else 'ies'}"


def _copies_text(data: Data) -> str:
    """That rows to test are copies of rows to fit, which a file may hold by mistake; empty where there are none, where rows are
    alike by their nature, or where there are texts, of which only frequent words are kept."""
    parts = [part for part in (data.splits.get("train"), data.splits.get("test")) if isinstance(part, Samples)]
    if len(parts) < 2 or parts[0].texts:
        return ""
    fitted, tested = ([(row.tobytes(), y) for row, y in zip(part.x, part.y.tolist(), strict=True)] for part in parts)
    known = Counter(fitted)
    count = sum(row in known for row in tested)
    if not count:
        return ""
    if len(known) < MOSTLY_DIFFERENT * len(fitted):
        every = known + Counter(tested)
        times = math.gcd(*every.values())
        if times == 1 or len(every) < FEWEST_REPEATED:
            return ""
        return f"the file holds every row {times:,} times, so the test looks too good: rows to test are copies of rows to fit"
    what = "is a copy of a row" if count == 1 else "are copies of rows"
    return f"{count:,} of {rows_text(parts[1])} to test {what} to fit, so the test looks too good"


def _totals_text(config: TableConfig, table: LearningTable) -> str:
    """That the last row adds up those above it; empty where it does not."""
    columns = {
        name: table.x[:, number]
        for number, name in enumerate(table.features)
        if number not in table.categories and number not in table.dates
    }
    if not table.classes and config.data.target is not None:
        columns[str(config.data.target)] = table.y
    names = [one_line(name) for name, numbers in columns.items() if _ends_with_sum(numbers)]
    if not names:
        return ""
    what = f"the sum{'s' * (len(names) > 1)} of {_listed(names)}"
    return f"the last row holds {what}: if it is a line of totals, remove it from the file"


def _ends_with_sum(numbers: Array) -> bool:
    """Whether the last number is the sum of the others, of which most are not 0."""
    above = numbers[:-1][np.isfinite(numbers[:-1])]
    if len(above) < FEWEST_ADDED or 2 * np.count_nonzero(above) < len(above):
        return False
    return bool(above.sum() != 0 and math.isclose(numbers[-1], above.sum(), rel_tol=1e-4))


def _telling_text(config: TableConfig, table: LearningTable) -> str:
    """That a column alone says what is to be predicted, as one does that was filled in afterwards; empty where none does."""
    if table.query is not None or len(table.y) < FEWEST_TELLING:
        return ""
    tells = _tells_class if table.classes else _tells_number
    names = [name for number, name in enumerate(table.features) if tells(table.x[:, number], table.y)]
    if not names:
        return ""
    left_out = json.dumps([*config.data.leave_out, *names[:SHOWN]], ensure_ascii=False)
    told, target = _listed([one_line(name) for name in names]), one_line(str(config.data.target or "the target"))
    each = "each alone tell" if len(names) > 1 else "alone tells"
    hint = f"--set {shlex.quote(f'data.leave_out={one_line(left_out)}')}"
    return f"{told} {each} {target} in all rows; if that is known only afterwards, leave it out: {hint}"


def _tells_class(x: Array, y: Array) -> bool:
    """Whether each value has one class: values in order, so that each class has a range of its own, or values that many share."""
    counts = np.bincount(y)
    if (counts[counts > 0] < FEWEST_OF_CLASS).any():
        return False
    values, classes = _sorted(x, y)
    changes = values[1:] != values[:-1]
    if (classes[1:] != classes[:-1])[~changes].any():
        return False
    ranges = 1 + np.count_nonzero(classes[1:] != classes[:-1])
    return bool(ranges == np.count_nonzero(counts) or FEWEST_ALIKE * (1 + np.count_nonzero(changes)) <= len(y))


def _tells_number(x: Array, y: Array) -> bool:
    """Whether each value has one number, and the numbers rise, or fall, with the values."""
    values, numbers = _sorted(x, y)
    changes, steps = values[1:] != values[:-1], np.diff(numbers)
    if np.count_nonzero(changes) < FEWEST_NUMBERS or steps[~changes].any():
        return False
    return bool((steps[changes] > 0).all() or (steps[changes] < 0).all())


def _sorted(x: Array, y: Array) -> tuple[Array, Array]:
    """The values of a column in order, missing ones first, and y in the same order, sorted among equal values."""
    values = np.where(np.isnan(x), -np.inf, x)
    order = np.lexsort((y, values))
    return values[order], y[order]


def _listed(names: list[str]) -> str:
    shown = names[:SHOWN]
    if len(names) > SHOWN:
        return f"{', '.join(shown)} and {len(names) - SHOWN:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
