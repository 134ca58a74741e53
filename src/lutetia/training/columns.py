"""Columns of a table of data: which cells are numbers, which hold no value, and what a whole column is taken for."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from types import NoneType
from typing import Any

import numpy as np

from lutetia.errors import DataError
from lutetia.models import MISSING_WORDS
from lutetia.training.dates import looks_like_date
from lutetia.training.formats import Array
from lutetia.training.tables import is_number

MOST_CLASSES = 20  # distinct whole numbers that are still taken for classes
MOST_CATEGORIES = 1000
SELDOM_EQUAL = 0.7  # of the texts of a column: where more of them differ, they are names of rows, and not their kinds
MOST_WORDS = 5  # distinct words in a column of numbers that are still taken for missing values
FEW_WORDS = 0.1  # of its cells that they fill, at most
# How names say that a column identifies its rows: customer_id, userid, product key, order number. A number of passengers is a
# count, and not one of theirs, so that fewer things have a number than have an id.
IDENTIFIERS = frozenset({"id", "uuid", "guid", "identifier"})
NUMBERS = frozenset({"number", "num", "no", "nr"})
NUMBERED = frozenset(
    {"account", "card", "contract", "document", "invoice", "order", "phone", "policy", "record", "row", "serial", "ticket"}
)
THINGS = NUMBERED | {
    "client", "customer", "device", "employee", "household", "item", "member", "passenger", "patient", "person", "primary",
    "product", "sample", "session", "student", "subject", "transaction", "user", "vehicle",
}  # fmt: skip
ROW_NAMES = frozenset({"rownames", "row.names", "row names", "row_names", "unnamed: 0"})  # as R and pandas write them
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
IDENTIFIES = "an identifier, with another number in each row"
AS_ASKED = "as data.leave_out says"
SHOWN = 40  # characters of a cell in a message
# Numbers as people write them: 1,234.5 or 1.234,5 with a currency before or a percent sign behind.
WRITTEN = re.compile(r"(?P<sign>[-+]?)[$€£]?\s?(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?P<rest>\.\d+)?\s?[%€]?")
WRITTEN_COMMA = re.compile(r"(?P<sign>[-+]?)[€]?\s?(?P<whole>\d{1,3}(?:\.\d{3})+)(?P<rest>,\d+)\s?[%€]?")


PLAIN = {str, float, int, NoneType}  # types of cells that float() reads as number_of() does


class Column(list[Any]):
    """The cells of a column, whose numbers are read once."""

    @cached_property
    def numbers(self) -> Array | None:
        """As `plain_numbers` gives them."""
        return _plain(self)


def plain_numbers(values: Sequence[Any]) -> Array | None:
    """A column as float64 [n], NaN for missing, where every other cell is a plain number; None for other columns.

    Most columns of large files are like that, and are read here without a step of Python for each cell.
    """
    return values.numbers if isinstance(values, Column) else _plain(values)


def _plain(values: Sequence[Any]) -> Array | None:
    first = next((value for value in values if not is_missing(value)), None)
    if first is None or not set(map(type, values)) <= PLAIN:
        return None
    try:
        float(first)  # a column of words is not searched for missing cells
        try:
            numbers = np.fromiter(map(float, values), np.float64, len(values))
        except (ValueError, TypeError):
            numbers = np.fromiter((math.nan if is_missing(value) else float(value) for value in values), np.float64, len(values))
    except (ValueError, OverflowError):
        return None
    if "_" in "".join(value for value in values if type(value) is str):
        return None
    empty = np.flatnonzero(np.isnan(numbers))
    return numbers if not np.isinf(numbers).any() and all(is_missing(values[row]) for row in empty.tolist()) else None


def numbered(
    values: Sequence[Any],
    known: Sequence[str] | None,
    where: str,
    lines: Sequence[int] | None = None,
    unknown: str | None = None,
    expected: str = "a number",
) -> Array:
    """A column as float64 [n], NaN for missing: numbers, or the numbers of categories that are known.

    A category that is not known is missing with unknown="missing", else an error, which with unknown="error" says so. `expected`
    is what else an error asks for.
    """
    if known is None and (plain := plain_numbers(values)) is not None:
        return plain
    texts = [None if is_missing(value) else text_of(value) for value in values]
    find = None if known is None else in_any_case(known)
    numbers = np.full(len(texts), np.nan)
    for row, text in enumerate(texts):
        if text is None:
            continue
        if find is None and (number := number_of(text)) is not None:
            numbers[row] = number
        elif find is not None and (place := find(text)) is not None:
            numbers[row] = place
        elif find is None or unknown != "missing":
            wanted = expected if known is None else f"one of the categories {', '.join(known[:20])}"
            wanted += " (--unknown missing takes others for missing)" if known and unknown == "error" else ""
            raise DataError(f"{where}, {row_name(row, lines)}: {shown_text(text)}, expected {wanted}")
    return numbers


def in_any_case(names: Sequence[str]) -> Callable[[str], int | None]:
    """Finds the number of a name, in any case where no two names have the same letters; None for another."""
    order = {name: number for number, name in enumerate(names)}
    counts = Counter(name.lower() for name in order)
    lower = {name.lower(): number for name, number in order.items() if counts[name.lower()] == 1}
    return lambda text: order.get(text, lower.get(text.lower()))


def unknown_categories(values: Sequence[Any], known: Sequence[str]) -> list[str]:
    """The values of a column that are neither missing nor known, once for each row."""
    find = in_any_case(known)
    texts = (text_of(value) for value in values if not is_missing(value))
    return [text for text in texts if find(text) is None]


def row_name(row: int, lines: Sequence[int] | None) -> str:
    """The name of a row in messages: its line in a text file, or its number from 1."""
    return f"row {row + 1}" if lines is None else f"line {lines[row]}"


def shown_text(text: str) -> str:
    """A cell in a message: the beginning of a long one."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r}…"


def why_left_out(name: str, values: Sequence[Any], categorical: bool = False) -> str:
    """Why a column that a config leaves out was left out."""
    why = read_column(values, categorical)[0] or ("it numbers the rows" if numbers_rows(values) else "")
    return why or (IDENTIFIES if identifies_rows(name, values) else AS_ASKED)


def numbers_rows(values: Sequence[Any]) -> bool:
    """Whether a column numbers the rows: each value is one more than the last, for more rows than a rating scale has steps."""
    if len(values) <= MOST_CLASSES:
        return False
    numbers = plain_numbers(values)
    if numbers is None:  # as people write them: 1,001
        written = [None if is_missing(value) else number_of(text_of(value)) for value in values]
        numbers = np.array(written, np.float64)  # None becomes NaN, which is no next number
    return bool((numbers == numbers[0] + np.arange(len(numbers))).all())


def identifies_rows(name: str, values: Sequence[Any]) -> bool:
    """Whether a column holds an identifier, such as `customer_id`: its name says so, and each row has another whole number."""
    if not names_identifier(name) or len(values) <= MOST_CLASSES or any(map(is_missing, values)):
        return False
    texts = [text_of(value) for value in values]
    numbers = [number_of(text) for text in texts]
    return len(set(texts)) == len(texts) and all(number is not None and number.is_integer() for number in numbers)


def names_identifier(name: str) -> bool:
    """Whether the name of a column says that it holds identifiers: user_id, PassengerId, orderid, account number."""
    if name.lower() in ROW_NAMES:
        return True
    *before, last = ["", *(word.lower() for word in WORD.findall(name))]
    of = before[-1] if before else ""
    if last in IDENTIFIERS or (last.endswith("id") and last[:-2] in THINGS):
        return True
    return (last == "key" and (of in THINGS or of == "")) or (last in NUMBERS and of in NUMBERED)


def missing_words(values: Sequence[Any]) -> list[str]:
    """The words for no value in a column that otherwise holds numbers or dates: "-", "unknown"; few of them, in few cells, no
    digits."""
    if plain_numbers(values) is not None:
        return []
    texts = [text_of(value).lower() for value in values if not is_missing(value)]
    different = set(texts)
    words = {text for text in different if number_of(text) is None and not looks_like_date(text)}
    if not 0 < len(words) <= MOST_WORDS or len(different) - len(words) <= MOST_CLASSES:
        return []
    is_few = sum(text in words for text in texts) <= FEW_WORDS * len(texts)
    return sorted(words) if is_few and not any(map(str.isdigit, "".join(words))) else []


def without_words(values: Sequence[Any], words: Sequence[str]) -> Sequence[Any]:
    """The values of a column, None for the words that stand for no value, in any case."""
    if not words:
        return values
    known = {word.lower() for word in words}
    if plain_numbers(values) is not None and not any(map(is_number, known)):
        return values
    return [None if isinstance(value, str) and value.lower() in known else value for value in values]


def read_column(values: Sequence[Any], categorical: bool) -> tuple[str, Array, list[str]]:
    """Why a column is not used; or its numbers and its categories."""
    plain = None if categorical else plain_numbers(values)
    if plain is not None and len(plain) and (plain != plain[0]).any():  # NaN is not equal to itself: some are missing
        return "", plain, []
    texts = [text_of(value) for value in values if not is_missing(value)]
    if not texts:
        return "all its values are missing", np.empty(0), []
    known = sorted(set(texts))
    by_text = {text: number_of(text) for text in known}
    numeric = not categorical and None not in by_text.values()
    if len(texts) == len(values) and len(set(by_text.values()) if numeric else known) == 1:
        return f"all its values are {known[0][:SHOWN]}", np.empty(0), []
    if numeric:
        return "", numbered(values, None, ""), []
    is_naming = len(known) > SELDOM_EQUAL * len(texts) and len(values) > MOST_CLASSES
    if not categorical and (len(known) > MOST_CATEGORIES or is_naming):
        words = [text for text in known if by_text[text] is None]
        kind = f"{words[0][:SHOWN]!r} is not a number, and it has" if 2 * len(words) < len(known) else "text with"
        return f"{kind} {len(known):,} different values", np.empty(0), []
    return "", numbered(values, known, ""), known


def number_of(text: str) -> float | None:
    """A cell as a finite number, also 1,234.5 and 1.234,5, $5 and 5%, which is 5; None for other texts, of which 1_2 is one."""
    if "_" in text:
        return None  # which Python takes for 12
    try:
        value = float(text)
        return value if math.isfinite(value) else None
    except ValueError:
        match = WRITTEN.fullmatch(text) or WRITTEN_COMMA.fullmatch(text)
    if match is None:
        return None
    whole = match["whole"].replace(",", "").replace(".", "")
    value = float(match["sign"] + whole + (match["rest"] or "").replace(",", "."))
    return value if math.isfinite(value) else None


def is_missing(value: object) -> bool:
    return (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and value.lower() in MISSING_WORDS)
    )


def text_of(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
