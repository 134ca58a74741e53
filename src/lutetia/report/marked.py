"""Texts in which the words that spoke for a prediction, or against it, are marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.markup import Html, tag
from lutetia._shared.numbers import short_number
from lutetia.models import Tabular, data_columns, places_of
from lutetia.report.story import Strip

Array = np.ndarray[Any, Any]
FOR, AGAINST = (224, 90, 20), (45, 105, 215)
SIGNAL_LINES = (0, 3, 5)  # of the inputs that are made of a signal those that stand beside its name: mean, range, crossings
SHOWN_WORDS, SHOWN = 8, 40  # words in a line, and characters of a text beside its name


class MarkedText(NamedTuple):
    """A text of a column with the relevance of its words: where each begins and ends, and its share. `rest` is due to words that
    do not occur, and to the number of words."""

    column: str
    text: str
    words: list[tuple[int, int, float]]
    rest: float

    def strongest(self, most: int = SHOWN_WORDS) -> list[tuple[str, float]]:
        """Words as they are written, with the relevance of all places of each, the strongest first."""
        total: dict[str, float] = {}
        for begin, end, value in self.words:
            word = self.text[begin:end]
            total[word] = total.get(word, 0.0) + value
        order = sorted(total.items(), key=lambda each: -abs(each[1]))[:most]
        return [(word, value) for word, value in order if value]

    def told(self, most: int = SHOWN_WORDS) -> str:
        """The strongest words in a line: "in review: dull +0.41, not -0.12, absent words and length +0.03"."""
        words = [f"{word} {short_number(value, 3, sign=True)}" for word, value in self.strongest(most)]
        return f"in {self.column}: {', '.join([*words, f'absent words and length {short_number(self.rest, 3, sign=True)}'])}"

    def pieces(self) -> list[tuple[str, float]]:
        """The text in pieces, each with its relevance: words, and what stands between them."""
        pieces, at = [], 0
        for begin, end, value in self.words:
            pieces += [(self.text[at:begin], 0.0)] * (begin > at) + [(self.text[begin:end], value)]
            at = end
        return pieces + [(self.text[at:], 0.0)] * (len(self.text) > at)

    def strip(self, outcome: str, said: str) -> Strip:
        """The text as a strip of a report: what spoke for an outcome."""
        pieces = self.pieces()
        return Strip(
            f"Words of {self.column}", [*(piece for piece, _ in pieces), f" → {outcome}"],
            {len(pieces): [value for _, value in pieces]}, said,
        )  # fmt: skip

    def to_html(self) -> Html:
        """The text with the words for the prediction in orange, those against it in blue."""
        most = max((abs(value) for _, _, value in self.words), default=0.0) or 1.0
        parts = [
            tag("span", piece, style=f"background:{_tint(value / most)}", title=short_number(value, 3, sign=True))
            if value
            else piece
            for piece, value in self.pieces()
        ]
        return tag("p", tag("b", f"{self.column}: "), parts, style="line-height:1.7;white-space:pre-wrap")


def _tint(share: float) -> str:
    red, green, blue = FOR if share > 0 else AGAINST
    return f"rgba({red},{green},{blue},{0.08 + 0.62 * abs(share):.2f})"


def by_data_column(model: Tabular, relevance: Array) -> Array:
    """Relevance of inputs [..., n_inputs] added up for each column of the data [..., columns]."""
    columns = data_columns(model.metadata, relevance.shape[-1])
    return np.stack([relevance[..., np.array(each.inputs)].sum(-1) for each in columns], -1)


def marked_texts(model: Tabular, relevance: Array, texts: Mapping[str, str | None]) -> list[MarkedText]:
    """The texts of one row, by column, None for a missing one, with the relevance of its inputs [n_inputs] on their words."""
    marked = []
    for column in data_columns(model.metadata, len(relevance)):
        text = None if column.text is None else texts.get(column.name)
        if column.text is None or text is None:
            continue
        shares, rest = column.text.shares(text, relevance)
        places = [(begin, end, float(share)) for (begin, end, _), share in zip(places_of(text), shares, strict=True)]
        marked.append(MarkedText(column.name, text, places, rest))
    return marked


def column_lines(model: Tabular, lines: Sequence[str], texts: Mapping[str, str | None]) -> list[str]:
    """A line for each column of the data, its name and its value, from the lines of all inputs: of a text its beginning."""
    told = []
    for column in data_columns(model.metadata, len(lines)):
        if column.input is not None:
            told.append(lines[column.input])
            continue
        if column.signal is not None:
            own = (lines[column.signal[number]].removeprefix(f"{column.name}: ") for number in SIGNAL_LINES)
            told.append(f"{column.name}, {', '.join(own)}")
            continue
        text = texts.get(column.name)
        told.append(f"{column.name} = {'missing' if text is None else text if len(text) <= SHOWN else text[:SHOWN] + '…'}")
    return told


def column_names(model: Tabular, n_inputs: int) -> list[str]:
    """The names of the columns of the data: those of the inputs, but for texts."""
    return [each.name for each in data_columns(model.metadata, n_inputs)]
