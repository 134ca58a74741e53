"""Explanations as a notebook shows them: one sentence in a terminal, coloured tokens or pixels as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lutetia._shared.markup import Html, tag, text
from lutetia.relevance import layer_pictures, pictures

if TYPE_CHECKING:
    from lutetia.integrations.transformers.many_texts import TextClass, TextClasses, WordShare
    from lutetia.integrations.transformers.similarity import SimilarityExplanation

SOURCES = 3  # tokens named beside each token of an answer
MOST_ROWS = 40  # tokens of an answer in a table
MOST_TEXTS = 200  # on a page
MOST_COLUMNS = 64  # tokens of a table on a page


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


def texts_html(found: TextClasses) -> str:
    """Which words spoke for which class, then the texts, each with its words coloured by relevance."""
    classes = [_class_html(name, told) for name, told in found.summary().items()]
    shown = [_text_html(each, found.names) for each in found.texts[:MOST_TEXTS]]
    rest = len(found.texts) - len(shown)
    more = tag("p", f"and {rest:,} more texts, which are in the numbers above") if rest else None
    return text(tag("p", found.said()), classes, tag("h2", "Texts"), shown, more, _skipped_html(found))


def _class_html(name: str, told: dict[str, list[WordShare]]) -> Html:
    head = _row("th", ("word", "relevance in all", "each time", "times", "texts"))
    tables = []
    for way, shares in told.items():
        rows = [
            _row("td", (share.word, f"{share.total:+.3g}", f"{share.mean:+.3g}", f"{share.count:,}", f"{share.n_texts:,}"))
            for share in shares
        ]
        if rows:
            caption = tag("caption", f"What spoke {way} it", style="text-align:left")
            tables.append(
                tag("table", caption, tag("thead", head), tag("tbody", rows), style="width:auto;flex:1 1 22em;margin:0 2em 1em 0")
            )
    return text(tag("h2", name), tag("div", tables, style="display:flex;flex-wrap:wrap;align-items:flex-start"))


def _text_html(each: TextClass, names: Sequence[str]) -> Html:
    rival = "" if each.against is None else f" and not {names[each.against]}"
    number = f"{float(each.logits[each.prediction]):.4g}"
    how = (
        f"{number} for {names[each.prediction]}"
        if each.probability is None
        else f"{names[each.prediction]} ({each.probability:.1%})"
    )
    read = f"Text {each.row + 1:,}, read as {how}"
    cut = f"; its last {each.n_cut:,} tokens were not read" if each.n_cut else ""
    caption = f"{read}: why {names[each.target]}{rival}{cut}."
    return Html(pictures.token_strip(each.words, torch.tensor(each.word_relevance), caption))


def _skipped_html(found: TextClasses) -> Html | None:
    if not found.skipped:
        return None
    listed = ", ".join(f"{row + 1:,}" for row in list(found.skipped)[:MOST_TEXTS])
    return tag("p", f"Skipped, because there are no words in them: {listed}")


def pairs_html(found: SimilarityExplanation) -> str:
    """Two texts coloured by relevance, and the pairs of their tokens: the first text downwards, the second across."""
    limit = max(float(each.abs().max()) for each in found.relevance)
    strips = [
        pictures.token_strip(pieces, relevance, caption, limit)
        for pieces, relevance, caption in zip(found.pieces, found.relevance, (found.said(), ""), strict=True)
    ]
    return "".join(strips) + ("" if found.pairs is None else pairs_table(found.pieces, found.pairs))


def pairs_table(pieces: Sequence[Sequence[str]], pairs: Tensor, limit: float | None = None) -> str:
    """Pairs [S, T] of the pieces of two texts, as a table, or as a picture where that would be too large."""
    caption = "The first text downwards, the second across: what each pair contributed."
    if max(pairs.shape) > MOST_COLUMNS:
        return pictures.heat_map_html(pairs, caption, limit)
    rows = {f"{place} {piece}": row for place, (piece, row) in enumerate(zip(pieces[0], pairs, strict=True), 1)}
    return layer_pictures.layer_strips(pieces[1], rows, caption, limit)
