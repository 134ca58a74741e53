"""The report as one self-contained page, made by `lutetia._shared.pages` from the sections of a story.

Its scripts and style are in `page/`. The flow pages that it shows in frames bring their own, which the page's policy allows
by hash.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lutetia._shared.pages import Article, article, asset
from lutetia.errors import DataError, fail
from lutetia.files import write_atomically
from lutetia.flow import page_script, page_style
from lutetia.report.data import script_data
from lutetia.report.sections import sections
from lutetia.report.story import Story

SCRIPTS = ("numbers.js", "base.js", "heat.js", "outline.js", "why.js", "detector.js", "votes.js", "strip.js", "flows.js")
PACKAGE = "lutetia.report"
NO_SCRIPT = "Heat maps, token strips and flows are drawn by the page's own script: please allow JavaScript for it."


def write(path: str | os.PathLike[str], story: Story) -> None:
    """Write a story as a page; the file appears whole or not at all."""
    target = Path(path)
    if target.is_dir():
        raise DataError(f"{target} is a folder, expected a name for the page")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent} does not exist, expected a folder for the page {target.name}")
    content = html(story).encode("utf-8", errors="replace")
    with write_atomically(target) as file:
        file.write(content)


def html(story: Story) -> str:
    """The whole page, to be written as UTF-8."""
    if not isinstance(story, Story):
        fail("story", story, "a Story")
    _check_lengths(story)
    content = Article(story.title, story.said, story.figures, sections(story), "There is nothing to show yet.", NO_SCRIPT)
    frames = {"framed_styles": [page_style()], "framed_scripts": [page_script()]} if story.flows else {}
    scripts = [asset("elements.js"), *(asset(name, PACKAGE) for name in SCRIPTS)]
    return article(content, [asset("page.css", PACKAGE)], scripts, data={"story": script_data(story)}, **frames)


# ---- a story that does not fit ---------------------------------------------------------------------------------------


def _check_lengths(story: Story) -> None:
    """Refuse a story whose numbers do not belong together, before anything is written."""
    for training in story.trained:
        for curve in training.curves:
            _same("a curve's values", curve.values, len(curve.steps))
    for judged in (*story.trained, *((story.evaluated,) if story.evaluated else ())):
        for row in judged.confusion:
            _same("a row of the confusion matrix", row, len(judged.confusion))
        if judged.labels and len(judged.confusion):
            _same("the labels of a confusion matrix", judged.labels, len(judged.confusion))
    if story.decided:
        size = math.prod(story.decided.shape)
        for item in story.decided.items:
            _same("the values of a decision", item.values, size)
            for name, values in item.heat.items():
                _same(f"the heat of the rule {name}", values, size)
            _same("the scores of a decision", item.scores, len(story.decided.labels or item.scores))
    for strip in story.strips:
        for at, before in strip.relevance.items():
            if not 0 < at < len(strip.tokens):
                fail("a place of a strip", at, f"1 to {len(strip.tokens) - 1}")
            _same(f"the relevance for the token at {at}", before, at)
    tables = [*story.speed, *story.data, *([story.circuit.costs] if story.circuit and story.circuit.costs else [])]
    for table in tables:
        for cells in table.rows:
            _same("a row of a table", cells, len(table.columns))
    for number, part in enumerate(story.circuit.parts if story.circuit else ()):
        if any(not 0 <= source < number for source in part.sources):
            fail(f"the sources of part {number}", tuple(part.sources), "numbers of earlier parts")


def _same(name: str, values: Sequence[Any], length: int) -> None:
    if len(values) != length:
        fail(name, f"{len(values)} long", f"a length of {length}")
