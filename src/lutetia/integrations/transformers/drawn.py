"""Explanations as a notebook shows them: one sentence in a terminal, coloured tokens or pixels as HTML."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lutetia._shared.markup import Html, tag, text

SOURCES = 3  # tokens named beside each token of an answer
MOST_ROWS = 40  # tokens of an answer in a table


class Drawn:
    """What all explanations here share: subclasses give the sentence and the piece of HTML."""

    def said(self) -> str:
        """What is explained, in a sentence."""
        raise NotImplementedError

    def to_html(self) -> str:
        """A piece of HTML; `lutetia.relevance.pictures.page(piece, path="why.html")` makes a page of it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.said()}>"

    def _repr_html_(self) -> str:
        return self.to_html()


def sources_html(pieces: Sequence[str], relevance: Tensor, facts: Sequence[tuple[str, float, str]]) -> str:
    """A row for each of T tokens of an answer: its text, probability and rival, as in `facts`, and the pieces that did most for
    it, by relevance [T, S + T]."""
    rows = []
    for own, (token, chance, rival) in zip(relevance, facts[:MOST_ROWS], strict=False):
        order = own.argsort(descending=True, stable=True)[:SOURCES].tolist()
        sources = ", ".join(f"{pieces[place]!r} {value:+.3g}" for place in order if (value := float(own[place])) > 0)
        rows.append(_row("td", (repr(token), f"{chance:.1%}", repr(rival), sources)))
    rest = len(facts) - len(rows)
    head = _row("th", ("token", "probability", "instead of", "made from"))
    more = tag("p", f"and {rest:,} more tokens") if rest else None
    return text(tag("table", tag("thead", head), tag("tbody", rows)), more)


def _row(cell: str, texts: Sequence[str]) -> Html:
    return tag("tr", [tag(cell, each, style="text-align:left") for each in texts])
