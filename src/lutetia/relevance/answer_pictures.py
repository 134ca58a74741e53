"""A page of an answer: choose one of its tokens, and the tokens before it take the colours of their relevance."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from lutetia._shared.markup import Html, tag, text
from lutetia._shared.pages import Page, asset, document, packed
from lutetia.errors import fail
from lutetia.relevance.pictures import DARK, SCALE, _ink, _limit, _numbers, _write, colours, heat_map_html

STEPS = 127  # a share of the largest relevance in a row is kept as a whole number from -127 to 127
SMALL = 400  # rows and columns up to which the whole is drawn as a picture, too
HOME = "lutetia.relevance"


class AnsweredText(NamedTuple):
    """What a page of an answer shows: S tokens of a prompt, T of an answer."""

    prompt: Sequence[str]
    answer: Sequence[str]
    relevance: Tensor  # [T, S + T]: what each token got for each token of the answer
    notes: Sequence[str]  # T of them: what is said when a token is chosen
    note: str = ""  # what is said of the whole answer
    special: Sequence[int] = ()  # places in S + T of tokens that are shown with their numbers, and do not set the scale


def answer_page(shown: AnsweredText, *, title: str = "The answer", caption: str = "", path: str | Path | None = None) -> str:
    """The page as text, written to `path` if it is given. Without scripts it shows the sum over the answer."""
    n_prompt, n_answer = len(shown.prompt), len(shown.answer)
    if shown.relevance.shape != (n_answer, n_prompt + n_answer) or not n_answer:
        fail("relevance", shown.relevance, f"one row per token of the answer: [{n_answer}, {n_prompt + n_answer}]")
    if len(shown.notes) != n_answer:
        fail("notes", shown.notes, f"{n_answer}, one per token of the answer")
    if any(not isinstance(place, int) or not 0 <= place < n_prompt + n_answer for place in shown.special):
        fail("special", shown.special, f"places from 0 to {n_prompt + n_answer - 1}")
    special = set(shown.special)
    values = _numbers(shown.relevance)
    total = shown.relevance[:, :n_prompt].sum(0)
    rows = [{**_row(row[: n_prompt + at], special), "note": shown.notes[at]} for at, row in enumerate(values)]
    data = {
        "rows": rows,
        "total": {**_row(_numbers(total), special), "note": shown.note},
        "scale": SCALE.tolist(),
        "steps": STEPS,
        "dark": DARK,
    }
    painted = colours(total, _most(_numbers(total), special))
    numbers = [f" {value:+.3g}" if at in special else None for at, value in enumerate(total.tolist())]
    words = [
        tag(
            "span",
            _shown(piece),
            _number(numbers[at]),
            data_at=at,
            style=f"background:rgb({','.join(map(str, each))});color:{_ink(each)}",
        )
        for at, (piece, each) in enumerate(zip(shown.prompt, painted.tolist(), strict=True))
    ]
    written = [
        tag(
            "button",
            _shown(piece),
            _number("" if n_prompt + at in special else None),
            type="button",
            data_at=n_prompt + at,
            data_row=at,
        )
        for at, piece in enumerate(shown.answer)
    ]
    body = text(
        tag("header", tag("h1", title), tag("p", caption, class_="lead") if caption else None),
        tag(
            "main",
            tag("div", tag("h3", "The prompt"), tag("p", words, class_="answer"), class_="card"),
            tag(
                "div",
                tag("h3", "The answer: point at a token, or choose it"),
                tag("p", written, class_="answer"),
                tag("p", shown.note, id="said", class_="said", aria_live="polite"),
                tag("button", "The whole answer", type="button", id="whole", hidden=True),
                class_="card",
            ),
            _overview(shown.relevance, _most(values, special)),
        ),
    )
    styles = [asset("tokens.css"), asset("article.css"), asset("answer.css", HOME)]
    page = Page(title, body, styles, [asset("answer.js", HOME)], {"answer-data": packed(data)}, inline=True)
    whole = document(page)
    if path is not None:
        _write(path, whole.encode())
    return whole


def _most(values: Any, special: set[int]) -> float:
    """The largest magnitude of relevance [..., S] in the places that are not special; of all, where they have none."""
    plain = [place for place in range(values.shape[-1]) if place not in special]
    return _limit(values[..., plain], None) or _limit(values, None)


def _row(values: Any, special: set[int]) -> dict[str, Any]:
    """Relevance as whole shares of the magnitude that has the full colour; special places may have more than that."""
    most = _most(values, special)
    return {"shares": (values * (STEPS / most if most else 0.0)).round().astype(int).tolist(), "most": float(f"{most:.6g}")}


def _number(text: str | None) -> Html | None:
    """The place for a number beside a token."""
    return None if text is None else tag("small", text)


def _overview(relevance: Tensor, limit: float) -> Html | None:
    """Everything in one picture, where it fits."""
    if max(relevance.shape) > SMALL:
        return None
    caption = "All of it. Downwards: the tokens of the answer. Across: the prompt, then the answer."
    return tag("div", Html(heat_map_html(relevance, caption, limit)), class_="card")


def _shown(piece: str) -> str:
    """A token in the text: line ends break lines, other control characters are written out."""
    return "".join("↵\n" if each == "\n" else each if each.isprintable() or each == "\t" else repr(each)[1:-1] for each in piece)
