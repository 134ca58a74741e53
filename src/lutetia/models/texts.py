"""Texts as numbers: the words that stand in them, and tallies of words that speak for an answer.

A text is a row of words: letters and digits that stand together, each sign that is no letter, each character of a script without
spaces; capital letters become small ones. Two words next to each other are a pair. Of each text column a model has three kinds of
inputs: tallies, the sums of whole numbers by which words and pairs speak for a class; the number of words; and for some words and
pairs whether they occur, 0 or 1. All of them are missing where the text is.

What is a letter is a short list of ranges, and what is its small letter a table, so that C and a web page read the same words.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import ArgumentError, check_int, fail

Array = np.ndarray[Any, Any]
SPACE, WORD, ALONE, SKIPPED, APOSTROPHE = range(5)
# Where ranges of characters begin, and what they are: between words, of a word, a word each, as if not there, or "'", which is of
# a word between two characters of one.
RANGES = (
    (0x00, SPACE), (0x21, ALONE), (0x27, APOSTROPHE), (0x28, ALONE), (0x30, WORD), (0x3A, ALONE), (0x41, WORD), (0x5B, ALONE),
    (0x5F, WORD), (0x60, ALONE), (0x61, WORD), (0x7B, ALONE), (0x7F, SPACE), (0xA1, ALONE), (0xAA, WORD), (0xAB, ALONE),
    (0xAD, SKIPPED), (0xAE, ALONE), (0xB5, WORD), (0xB6, ALONE), (0xBA, WORD), (0xBB, ALONE), (0xC0, WORD), (0xD7, ALONE),
    (0xD8, WORD), (0xF7, ALONE), (0xF8, WORD), (0x60C, ALONE), (0x60E, WORD), (0x61B, ALONE), (0x620, WORD), (0x6D4, ALONE),
    (0x6D5, WORD), (0x964, ALONE), (0x966, WORD), (0xE01, ALONE), (0xF00, WORD), (0x1000, ALONE), (0x10A0, WORD),
    (0x1780, ALONE), (0x1800, WORD), (0x2000, SPACE), (0x200B, SKIPPED), (0x2010, ALONE), (0x2019, APOSTROPHE), (0x201A, ALONE),
    (0x2028, SPACE), (0x202A, SKIPPED), (0x202F, SPACE), (0x2030, ALONE), (0x205F, SPACE), (0x2060, SKIPPED), (0x2070, WORD),
    (0x20A0, ALONE), (0x20D0, SKIPPED), (0x2100, ALONE), (0x2C00, WORD), (0x2E00, ALONE), (0x3000, SPACE), (0x3001, ALONE),
    (0xA000, WORD), (0xD800, ALONE), (0xFB00, WORD), (0xFE00, SKIPPED), (0xFE10, ALONE), (0xFE70, WORD), (0xFEFF, SKIPPED),
    (0xFF00, ALONE), (0xFF10, WORD), (0xFF1A, ALONE), (0xFF21, WORD), (0xFF3B, ALONE), (0xFF41, WORD), (0xFF5B, ALONE),
    (0x10000, WORD), (0x1F000, ALONE), (0x1F3FB, SKIPPED), (0x1F400, ALONE), (0xE0000, SKIPPED), (0xF0000, ALONE),
)  # fmt: skip
LAST = 0x10FFFF
LONG_NUMBER = 5  # digits of which nearly every number is another: one of a telephone, or of a parcel
LONGEST_GRAM = 200  # characters of a word or a pair that a model keeps
MOST_GRAMS, MOST_WEIGHT, MOST_TALLIES = 100_000, 10_000, 256  # of a text column that is read from a file
TALLIED = ("words", "pairs")  # what a tally is a sum over


def _class(kind: int) -> str:
    """The characters of a kind, as they stand between the brackets of a regular expression."""
    ends = [begin - 1 for begin, _ in RANGES[1:]] + [LAST]
    return "".join(f"\\U{begin:08x}-\\U{end:08x}" for (begin, own), end in zip(RANGES, ends, strict=True) if own == kind)


FORM = re.compile("[{w}][{w}{s}]*(?:'[{w}][{w}{s}]*)*|[{a}]".format(w=_class(WORD), s=_class(SKIPPED), a=_class(ALONE)))
SKIPS = re.compile(f"[{_class(SKIPPED)}]")


class _Folds(dict[int, int]):
    """The small letter of each character, where it is one character; the plain apostrophe for a curly one."""

    def __missing__(self, code: int) -> int:
        folded = chr(code).casefold()
        folded = folded if len(folded) == 1 else chr(code).lower()
        small = 0x27 if code == 0x2019 else ord(folded) if len(folded) == 1 else code
        self[code] = small if _kind(small) == _kind(code) else code  # the sign of kelvin is no letter
        return self[code]


def _kind(code: int) -> int:
    return RANGES[bisect.bisect(RANGES, (code, LAST)) - 1][1]


FOLDS = _Folds()


@cache
def folded_letters() -> dict[int, int]:
    """All characters that have a small letter, and that."""
    return {code: FOLDS[code] for code in range(LAST + 1) if chr(code).isupper() or chr(code).casefold() != chr(code)} | {
        0x2019: 0x27
    }


def words_in(text: str) -> list[str]:
    """The words of a text, in order."""
    return [_plain(word) for word in FORM.findall(text.translate(FOLDS))]


def places_of(text: str) -> list[tuple[int, int, str]]:
    """Where each word of a text begins and ends, and the word."""
    return [(*match.span(), _plain(match[0])) for match in FORM.finditer(text.translate(FOLDS))]


def _plain(word: str) -> str:
    """A word without what is skipped; a long number stands for all of as many digits."""
    word = word if word.isascii() else SKIPS.sub("", word)
    return "0" * len(word) if len(word) >= LONG_NUMBER and word.isascii() and word.isdigit() else word


def gram_text(gram: str) -> str:
    """A word or a pair as it is shown: what stands for all long numbers says so."""
    words = (f"[{len(word)} digits]" if len(word) >= LONG_NUMBER and not word.strip("0") else word for word in gram.split(" "))
    return " ".join(words)


def grams_of(words: Sequence[str]) -> list[str]:
    """Words, and pairs of those next to each other."""
    return [*words, *map(" ".join, pairwise(words))]


@dataclass(frozen=True, eq=False)
class Grams:
    """What stands in the texts of a column, by its name and its place in the data: those of text i are known[n] for the numbers n
    from starts[i] to starts[i + 1], int32, each once. `lengths` float64 [n] are their numbers of words, NaN where one is missing.
    """

    name: str
    place: int
    known: Sequence[str]
    numbers: Array
    starts: Array
    lengths: Array

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def rows(self) -> Array:
        """The text in which each of the numbers stands, int64."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def at(self, rows: Array | slice) -> Grams:
        """Some of the texts."""
        chosen = np.arange(len(self))[rows]
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[:-1][chosen] - starts[:-1], sizes)
        return Grams(self.name, self.place, self.known, self.numbers[places], starts, self.lengths[chosen])


def find_grams(texts: Iterable[str | None], name: str, place: int, known: Sequence[str] | None = None, fewest: int = 1) -> Grams:
    """What stands in texts, None for a missing one: of some words and pairs, or of all that stand in `fewest` texts at least."""
    order: dict[str, int] = {} if known is None else {gram: number for number, gram in enumerate(known)}
    numbers: list[Array] = []
    sizes, lengths = [0], []
    for text in texts:
        words = [] if text is None else words_in(text)
        if known is None:
            own = {order.setdefault(gram, len(order)) for gram in grams_of(words)}
        else:
            own = {order[gram] for gram in grams_of(words) if gram in order}
        numbers.append(np.fromiter(own, np.int32, len(own)))
        sizes.append(len(own))
        lengths.append(np.nan if text is None else len(words))
    found = np.concatenate([np.empty(0, np.int32), *numbers])
    starts, all_known = np.cumsum(sizes), list(order)
    if known is None:  # most pairs stand in one text alone
        is_short = np.array([len(gram) <= LONGEST_GRAM for gram in all_known], bool)
        often = (np.bincount(found, minlength=len(all_known)) >= fewest) & is_short
        kept = often[found]
        starts = np.concatenate([[0], np.cumsum(kept)])[starts]
        found = (np.cumsum(often) - 1).astype(np.int32)[found[kept]]
        all_known = [gram for gram, own in zip(all_known, often.tolist(), strict=True) if own]
    return Grams(name, place, all_known, found, starts, np.array(lengths, np.float64))


class Tally(NamedTuple):
    """A sum over the words or the pairs of a text, that speak for a class, its number, or for numbers above a group."""

    group: float
    over: str  # one of TALLIED


@dataclass(frozen=True, eq=False)
class TextColumn:
    """The inputs that are made of a text column.

    place    where it stands among the columns of the data
    first    the input that is its first tally; the number of words comes after the tallies
    asked    the input that says whether its first word occurs
    tallies  what it has sums of
    grams    the words and pairs that are weighed, and `weights` int64 [tallies, grams]
    words    those that are looked for
    """

    name: str
    place: int
    first: int
    asked: int
    tallies: tuple[Tally, ...]
    grams: Sequence[str]
    weights: Array
    words: Sequence[str]

    @property
    def sums(self) -> slice:
        """The inputs that are tallies, and the number of words."""
        return slice(self.first, self.first + len(self.tallies) + 1)

    @property
    def looked_for(self) -> slice:
        """The inputs that are words and pairs."""
        return slice(self.asked, self.asked + len(self.words))

    @property
    def inputs(self) -> list[int]:
        """All of its inputs."""
        return [*range(self.sums.start, self.sums.stop), *range(self.looked_for.start, self.looked_for.stop)]

    def read(self, texts: Iterable[str | None]) -> Grams:
        """The words of texts that this column knows."""
        return find_grams(texts, self.name, self.place, list(dict.fromkeys([*self.grams, *self.words])))

    def tallied(self, grams: Grams, weights: Array | None = None) -> Array:
        """Tallies and the number of words, float64 [n, tallies + 1]."""
        own = _numbered(self.grams, grams.known)
        known, rows = own[grams.numbers] >= 0, grams.rows
        places, rows = own[grams.numbers][known], rows[known]
        sums = [np.bincount(rows, each[places], len(grams)) for each in (self.weights if weights is None else weights)]
        return np.stack([*(np.where(np.isnan(grams.lengths), np.nan, each) for each in sums), grams.lengths], 1)

    def found(self, grams: Grams) -> Array:
        """Whether each word that is looked for occurs, float64 [n, words]."""
        own = _numbered(self.words, grams.known)[grams.numbers]
        found = np.zeros((len(grams), len(self.words)))
        found[grams.rows[own >= 0], own[own >= 0]] = 1
        found[np.isnan(grams.lengths)] = np.nan
        return found

    def titles(self, classes: Sequence[str]) -> dict[int, str]:
        """The names of its inputs, by their numbers."""
        named = dict(enumerate((f"{self.name}: {tally_text(each, classes)}" for each in self.tallies), self.first))
        named[self.sums.stop - 1] = f"{self.name}: number of words"
        return named | dict(enumerate((f'{self.name}: "{gram_text(word)}"' for word in self.words), self.asked))

    def shares(self, text: str, relevance: Array) -> tuple[Array, float]:
        """Relevance of inputs [n_inputs] as that of the words of a text, float64 [words], and the rest.

        What is due to a word goes to the places where it stands; what is due to a tally to the words that bear its sign, by their
        weights. What is due to a word that does not occur, and to the number of words, is the rest.
        """
        words = [word for _, _, word in places_of(text)]
        where: dict[str, list[int]] = {}
        for at, word in enumerate(words):
            where.setdefault(word, []).append(at)
        for at, pair in enumerate(map(" ".join, pairwise(words))):
            where.setdefault(pair, []).extend((at, at + 1))
        shares, rest = np.zeros(len(words)), float(relevance[self.sums.stop - 1])

        def give(gram: str, value: float) -> None:
            np.add.at(shares, where[gram], value / len(where[gram]))

        for word, value in zip(self.words, relevance[self.looked_for].tolist(), strict=True):
            if word in where:
                give(word, value)
            else:
                rest += value
        held = [number for number, gram in enumerate(self.grams) if gram in where]
        for weights, value in zip(self.weights[:, held], relevance[self.sums].tolist(), strict=False):
            bearing = np.where(np.sign(weights) == np.sign(weights.sum()), np.abs(weights), 0)
            if not bearing.any():
                rest += value
                continue
            for number, part in zip(held, (value * bearing / bearing.sum()).tolist(), strict=True):
                give(self.grams[number], part)
        return shares, rest

    def to_dict(self) -> dict[str, Any]:
        """As the metadata of a model holds it, less its name."""
        return {
            "place": self.place,
            "first": self.first,
            "asked": self.asked,
            "tallies": [list(each) for each in self.tallies],
            "grams": list(self.grams),
            "weights": self.weights.tolist(),
            "words": list(self.words),
        }


def _numbered(known: Sequence[str], asked: Sequence[str]) -> Array:
    """Where each of some words stands among the known ones, -1 for others, int64."""
    order = {gram: number for number, gram in enumerate(known)}
    return np.array([order.get(gram, -1) for gram in asked] or [-1], np.int64)


def tally_text(tally: Tally, classes: Sequence[str]) -> str:
    """What a tally is, in words: "words for spam", "pairs for more than 12"."""
    return f"{tally.over} for {classes[int(tally.group)] if classes else f'more than {tally.group:.6g}'}"


def text_columns(metadata: Mapping[str, Any]) -> list[TextColumn]:
    """The text columns of a model, in the order of their inputs."""
    return [
        TextColumn(
            name,
            known["place"],
            known["first"],
            known["asked"],
            tuple(Tally(float(group), over) for group, over in known["tallies"]),
            known["grams"],
            np.array(known["weights"], np.int64).reshape(len(known["tallies"]), len(known["grams"])),
            known["words"],
        )
        for name, known in metadata.get("texts", {}).items()
    ]


def check_text_columns(known: object, n_inputs: int | None, n_classes: int | None) -> None:
    """Refuse what a file says of text columns where it does not fit the inputs of its model, or is no such thing."""
    if not isinstance(known, Mapping) or not known or not all(isinstance(each, Mapping) for each in known.values()):
        fail("metadata.texts", known, "what is known of text columns, by their names")
    for name, own in known.items():
        _check_text(f"metadata.texts[{name!r}]", own, n_classes)
    first = n_plain = min(own["first"] for own in known.values())
    asked = first + sum(len(own["tallies"]) + 1 for own in known.values())
    for name, own in known.items():  # tallies of all columns, then their words
        if (own["first"], own["asked"]) != (first, asked):
            raise ArgumentError(
                f"metadata.texts[{name!r}] begins at inputs {own['first']} and {own['asked']}, expected {first} and {asked}"
            )
        first, asked = first + len(own["tallies"]) + 1, asked + len(own["words"])
    if asked != n_inputs:
        raise ArgumentError(f"metadata.texts has {asked - n_plain} inputs after {n_plain} others, expected {n_inputs} in all")
    places = [own["place"] for own in known.values()]
    if len(set(places)) < len(places) or max(places) >= n_plain + len(known):
        fail("metadata.texts", places, f"a place of its own for each column, below {n_plain + len(known)}")


def _check_text(where: str, own: Mapping[str, Any], n_classes: int | None) -> None:
    for key in ("place", "first", "asked"):
        check_int(f"{where}.{key}", own.get(key), 0)
    tallies: Any = own.get("tallies")
    weights: Any = own.get("weights")
    if (
        not isinstance(tallies, list | tuple)
        or len(tallies) > MOST_TALLIES
        or not all(_is_tally(each, n_classes) for each in tallies)
    ):
        fail(f"{where}.tallies", tallies, "a list of classes, or of numbers, each with one of " + ", ".join(map(repr, TALLIED)))
    for key in ("grams", "words"):
        words = own.get(key)
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
            fail(f"{where}.{key}", words, "a list of words")
        bad = next((word for word in words if not 0 < len(word) <= LONGEST_GRAM), None)
        if bad is not None or len(set(words)) < len(words) or len(words) > MOST_GRAMS:
            fail(f"{where}.{key}", words if bad is None else bad, f"different words of 1 to {LONGEST_GRAM} characters")
    is_list = isinstance(weights, list | tuple) and all(isinstance(row, list | tuple) for row in weights)
    if not is_list or [len(row) for row in weights] != [len(own["grams"])] * len(tallies):
        fail(f"{where}.weights", weights, f"{len(tallies)} lists of {len(own['grams'])} whole numbers")
    for row in weights:
        if not all(type(weight) is int and abs(weight) <= MOST_WEIGHT for weight in row):
            fail(f"{where}.weights", row, f"whole numbers from -{MOST_WEIGHT} to {MOST_WEIGHT}")


def _is_tally(given: object, n_classes: int | None) -> bool:
    """Whether this is a class, or a number, and what is summed for it."""
    if not isinstance(given, list | tuple) or len(given) != 2 or given[1] not in TALLIED:
        return False
    group = given[0]
    if isinstance(group, bool) or not isinstance(group, int | float) or not abs(group) <= sys.float_info.max:
        return False
    return (n_classes or 1) == 1 or (group == int(group) and 0 <= group < (n_classes or 1))


def text_inputs(columns: Sequence[TextColumn], grams: Sequence[Grams]) -> Array:
    """All inputs that are made of texts, float64 [n, inputs]: the tallies of all columns, then their words."""
    parts = [column.tallied(own) for column, own in zip(columns, grams, strict=True)]
    parts += [column.found(own) for column, own in zip(columns, grams, strict=True)]
    return np.concatenate(parts, 1)


def column_owners(columns: Sequence[TextColumn], n_inputs: int) -> Array:
    """The number of the column of the data that each input is, or is made of: int64 [n_inputs]."""
    owners = np.empty(n_inputs, np.int64)
    n_plain = min((each.first for each in columns), default=n_inputs)
    owners[:n_plain] = np.setdiff1d(np.arange(n_plain + len(columns)), [each.place for each in columns])
    for each in columns:
        owners[each.inputs] = each.place
    return owners


class DataColumn(NamedTuple):
    """A column of the data: its name, and the input that it is, or the text or the signal that inputs are made of."""

    name: str
    input: int | None
    text: TextColumn | None = None
    signal: tuple[int, ...] | None = None  # the inputs

    @property
    def inputs(self) -> list[int]:
        """The inputs that it is, or that are made of it."""
        if self.text is not None:
            return self.text.inputs
        return list(self.signal) if self.signal is not None else [] if self.input is None else [self.input]


def data_columns(metadata: Mapping[str, Any], n_inputs: int, by_signal: bool = True) -> list[DataColumn]:
    """The columns of the data that a model was trained on, in their order; other than its inputs where some are texts, or with
    `by_signal` where they are made of windows of signals."""
    if by_signal and "windows" in metadata:
        names, shapes = [signal["name"] for signal in metadata["windows"]["signals"]], metadata["windows"].get("shapes", ())
        n_plain = n_inputs - len(shapes)
        owners = np.concatenate([np.arange(n_plain) * len(names) // n_plain, [own[0] for own in shapes]])
        return [DataColumn(name, None, None, tuple(np.flatnonzero(owners == at).tolist())) for at, name in enumerate(names)]
    texts = text_columns(metadata)
    n_plain = min((each.first for each in texts), default=n_inputs)
    names = list(metadata.get("features", ())) or [f"x{number}" for number in range(n_inputs)]
    columns = [DataColumn(names[number], number) for number in range(n_plain)]
    for text in sorted(texts, key=lambda each: each.place):
        columns.insert(text.place, DataColumn(text.name, None, text))
    return columns
