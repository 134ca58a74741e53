"""The sections of the page, each from its part of the story; what reacts to the reader is filled in by the page's script."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from lutetia._shared.markup import Html, facts, number, tag, text
from lutetia._shared.pages import Section
from lutetia.report import drawing, reading_picture
from lutetia.report.data import has_votes
from lutetia.report.story import CellTable, Check, Circuit, Decisions, Evaluation, PartFlow, Story, Strip, Training, Writing

MOST_NARROW = 10  # classes of a confusion matrix that fit side by side


def sections(story: Story) -> list[Section]:
    """The sections of the story, in order."""
    contents: list[tuple[str, str, Html | None]] = [
        ("reading", "How a lookup table reads", reading_picture.section(story.reading) if story.reading else None),
        ("trained", "Training", _trained(story.trained) if story.trained else None),
        ("evaluated", "Right and wrong", _evaluated(story.evaluated) if story.evaluated else None),
        ("wrote", "Generated text", _writings(story.wrote) if story.wrote else None),
        ("decided", "Why it decided", _why(story.decided, story.strips)),
        ("data", "A table of data", text([table(each) for each in story.data]) if story.data else None),
        ("voting", "From pixels to votes", _votes() if has_votes(story) else None),
        ("circuit", "The circuit", _circuit(story.circuit) if story.circuit else None),
        ("flow", "Data flow", _flows(story.flows) if story.flows else None),
        ("speed", "Speed", text([table(each) for each in story.speed]) if story.speed else None),
        ("machine", "This machine", facts(story.machine, "facts lines")),
    ]
    return [Section(name, title, content) for name, title, content in contents if content is not None]


def said(sentence: str, class_: str = "said") -> Html | None:
    return tag("p", sentence, class_=class_) if sentence else None


# ---- trained, wrote --------------------------------------------------------------------------------------------------


def _trained(trainings: Sequence[Training]) -> Html:
    """A card for each; those with only a chart go side by side."""
    rows: list[Html] = []
    for wide, group in groupby(trainings, key=lambda each: len(each.confusion) > 0):
        cards = [_training(each) for each in group]
        rows += cards if wide or len(cards) == 1 else [tag("div", cards, class_="columns")]
    return text(rows)


def _training(training: Training) -> Html:
    curves = drawing.chart(training.curves, training.unit, training.log, training.title) if training.curves else None
    matrix = _confusion(training.confusion, training.labels) if len(training.confusion) else None
    both = tag("div", curves, matrix, class_="columns") if curves or matrix else None
    return tag("article", tag("h3", training.title), said(training.said), facts(training.facts), both, class_="card")


def _evaluated(evaluation: Evaluation) -> Html:
    """What was read as what, and below it a table of the classes."""
    matrix = _confusion(evaluation.confusion, evaluation.labels)
    return text([tag("article", said(evaluation.said), matrix, class_="card"), table(evaluation.classes)])


def _confusion(confusion: Sequence[Sequence[int]], labels: Sequence[str]) -> Html:
    """The confusion matrix: the shade of a cell is its share of the row."""
    labels = labels or [str(at) for at in range(len(confusion))]
    head = tag(
        "tr",
        tag("th", tag("span", "true class", class_="hidden"), scope="col"),
        [tag("th", label, scope="col") for label in labels],
    )
    rows = []
    for at, row in enumerate(confusion):
        total = sum(row) or 1
        cells = []
        for to, count in enumerate(row):
            kind = "yes" if at == to else "no"
            cells.append(tag("td", count or "", class_=f"{kind} s{_shade(count / total)}" if count else None))
        rows.append(tag("tr", tag("th", labels[at], scope="row"), cells))
    right = sum(row[at] for at, row in enumerate(confusion))
    count = sum(map(sum, confusion))
    caption = f"{right:,} of {count:,} correct. Each row is a true class, each column what it was read as."
    size = "confusion wide" if len(labels) > MOST_NARROW else "confusion"
    grid = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", rows), class_=size)
    return tag("div", grid, class_="scroll", tabindex=0, role="region", aria_label="Confusion matrix")


def _shade(share: float) -> int:
    """A share as one of ten shades; the smallest share is still visible."""
    return max(1, min(9, round(share * 9)))


def _writings(writings: Sequence[Writing]) -> Html:
    cards = []
    for each in writings:
        written = tag("pre", tag("b", each.prompt), each.text, tabindex=0, role="region", aria_label=f"Text: {each.title}")
        cards.append(tag("article", tag("h3", each.title), facts(each.facts), written, class_="card"))
    note = tag("p", "The prompt is in bold; the model generated the rest, byte by byte.", class_="said")
    return text(note, tag("div", cards, class_="columns"))


# ---- why -------------------------------------------------------------------------------------------------------------

HOW_TO_ASK = "Click or tap any underlined letter, or move with the arrow keys: the letters that led the model to it light up."


def _why(decisions: Decisions | None, strips: Sequence[Strip]) -> Html | None:
    if not (decisions and decisions.items) and not strips:
        return None
    parts = []
    if decisions and decisions.items:
        parts += [said(decisions.said), tag("div", id="why", class_="card")]
    for at, each in enumerate(strips):
        body = tag("div", class_="strip", data_strip=at)
        many = tag("p", HOW_TO_ASK, class_="said") if len(each.relevance) > 1 else None
        parts.append(tag("article", tag("h3", each.title), said(each.said), many, body, class_="card"))
    return text(parts)


def _votes() -> Html:
    sentence = "The page runs the circuit itself. Click a pixel to change it; click a square to see what that table reads."
    return text(said(sentence), tag("div", id="votes", class_="card"))


# ---- circuit ---------------------------------------------------------------------------------------------------------


HOW_TO_READ = "Data flows down. The number beside an arrow counts its bits."


def _circuit(circuit: Circuit) -> Html:
    drawn = drawing.graph(circuit.parts) if circuit.parts else None
    scrolled = drawn and tag("div", drawn, class_="scroll tall", tabindex=0, role="region", aria_label="Graph of the circuit")
    left = scrolled and tag("article", tag("h3", "Graph"), said(HOW_TO_READ, "small"), scrolled, class_="card")
    checks = _checks(circuit.checks) if circuit.checks else None
    right = (
        tag("div", checks, table(circuit.costs) if circuit.costs else None, class_="stack") if checks or circuit.costs else None
    )
    both = tag("div", left, right, class_="columns narrow") if left or right else None
    wave = None
    if circuit.waveform:
        wave = tag("article", tag("h3", "Waveform"), said(circuit.waveform.said), drawing.wave(circuit.waveform), class_="card")
    more = [table(each) for each in circuit.tables]
    return text(said(circuit.said), facts(circuit.facts, "facts big"), both, more, wave)


def _checks(checks: Sequence[Check]) -> Html:
    marks = {True: ("pass", "✓", "passed"), False: ("fail", "✗", "failed"), None: ("none", "–", "not run")}
    items = []
    for check in checks:
        class_, mark, word = marks[check.passed]
        sign = tag("span", mark, class_="mark", aria_hidden="true")
        detail = tag("span", check.said or word, class_="small")
        items.append(
            tag(
                "li",
                sign,
                tag("div", tag("strong", check.name), tag("span", f" {word}. ", class_="hidden"), detail),
                class_=class_,
            )
        )
    return tag("article", tag("h3", "Checks"), tag("ul", items, class_="checks"), class_="card")


# ---- flow, tables ----------------------------------------------------------------------------------------------------


def _flows(flows: Sequence[PartFlow]) -> Html:
    buttons, panels = [], []
    for at, each in enumerate(flows):
        first = at == 0
        buttons.append(
            tag(
                "button",
                each.title,
                type="button",
                role="tab",
                id=f"tab-{at}",
                aria_selected="true" if first else "false",
                aria_controls=f"flow-{at}",
                tabindex=0 if first else -1,
            )
        )
        frame = tag("div", class_="frame", data_flow=at)
        panels.append(
            tag(
                "div",
                said(each.said),
                frame,
                role="tabpanel",
                id=f"flow-{at}",
                aria_labelledby=f"tab-{at}",
                hidden=not first,
            )
        )
    return tag("div", tag("div", buttons, role="tablist", aria_label="Parts", class_="tabs"), panels, id="flows", class_="card")


def table(given: CellTable) -> Html:
    """A table; columns of numbers are right-aligned."""
    numeric = [all(isinstance(row[at], int | float) for row in given.rows) for at in range(len(given.columns))]
    head = [
        tag("th", name, scope="col", class_="number" if right else None)
        for name, right in zip(given.columns, numeric, strict=True)
    ]
    rows = [
        tag("tr", [tag("td", _cell(cell), class_="number" if right else None) for cell, right in zip(row, numeric, strict=True)])
        for row in given.rows
    ]
    grid = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows))
    name = given.title or "Table"
    scrolled = tag("div", grid, class_="scroll", tabindex=0, role="region", aria_label=name)
    return tag("article", tag("h3", given.title) if given.title else None, scrolled, said(given.said, "small"), class_="card")


def _cell(value: str | int | float) -> str:
    return value if isinstance(value, str) else number(float(value))
