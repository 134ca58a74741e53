"""The report as one page that needs nothing else: no network, no fonts, no library.

The template lives in `page/`. The Content-Security-Policy names the hashes of the page's own style and scripts, and of those of
the flow pages that it shows in frames: nothing else can run or load, whatever the texts of a story hold.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from lutetia._version import __version__
from lutetia.errors import DataError, fail
from lutetia.files import write_atomically
from lutetia.flow import Flow
from lutetia.flow.html import html as flow_page
from lutetia.report.markup import Html, facts, tag, text
from lutetia.report.sections import said, sections
from lutetia.report.story import Decision, Decisions, PartFlow, Story, Strip

SCRIPTS = ("base.js", "heat.js", "why.js", "detector.js", "strip.js", "flows.js")
FLOW_DATA = re.compile(r'(?<=<script type="application/json" id="flow">)[^<]*')
DIGITS = 5  # of the numbers in the page's data


def write(path: str | os.PathLike[str], story: Story) -> None:
    """Write a story as a page; the file appears whole or not at all."""
    target = Path(path)
    if target.is_dir():
        raise DataError(f"{target} is a folder, expected a name for the page")
    if not target.parent.is_dir():
        raise DataError(f"{target.parent} is not there, expected a folder for the page {target.name}")
    content = html(story).encode("utf-8", errors="replace")
    with write_atomically(target) as file:
        file.write(content)


def html(story: Story) -> str:
    """The whole page, to be written as UTF-8."""
    if not isinstance(story, Story):
        fail("story", story, "a Story")
    _check_lengths(story)
    style, script = _part("page.css"), "\n".join(_part(name) for name in SCRIPTS)
    shell = flow_page(Flow()) if story.flows else ""
    hashes = re.findall(r"(style|script)-src ('sha256-[^']+')", shell)
    allowed = {
        kind: " ".join([_digest(own), *(each for of, each in hashes if of == kind)])
        for kind, own in (("style", style), ("script", script))
    }
    policy = (
        f"default-src 'none'; style-src {allowed['style']}; script-src {allowed['script']}; base-uri 'none'; form-action 'none'"
    )
    told = sections(story)
    # One pass over the template: what is put in is never searched again.
    return Template(_part("page.html")).substitute(
        policy=policy,
        title=text(story.title),
        style=style,
        links=text([tag("li", tag("a", title, href=f"#{name}")) for name, title, _ in told if len(told) > 1]),
        head=text(tag("h1", story.title), said(story.said, "lead"), facts(story.figures, "facts big")),
        sections=text([_section(*each) for each in told]) or tag("p", "There is nothing to tell yet.", class_="said"),
        foot=text(f"Made by lutetia {__version__}."),
        data=_json(_data(story, shell)),
        script=script,
    )


def _section(name: str, title: str, content: Html) -> Html:
    return tag("section", tag("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title")


def _part(name: str) -> str:
    """One file of the template, without comment lines and indents: no string in it spans lines."""
    lines = files("lutetia.report").joinpath("page", name).read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in map(str.strip, lines) if line and not line.startswith("//"))


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# ---- data for the script ---------------------------------------------------------------------------------------------


def _json(data: Any) -> str:
    """ASCII JSON that cannot end the script element it stands in."""
    packed = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return packed.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _data(story: Story, shell: str) -> dict[str, Any]:
    return {
        "why": _decisions(story.decided) if story.decided and story.decided.items else None,
        "strips": [_strip(strip) for strip in story.strips],
        "shell": FLOW_DATA.split(shell) if shell else None,
        "flows": [_flow(each) for each in story.flows],
    }


def _decisions(decisions: Decisions) -> dict[str, Any]:
    n_classes = len(decisions.items[0].scores)
    return {
        "shape": list(decisions.shape),
        "labels": list(decisions.labels) or [str(at) for at in range(n_classes)],
        "rules": [[name, decisions.rules.get(name, "")] for name in decisions.items[0].heat],
        "items": [_decision(each) for each in decisions.items],
    }


def _decision(decision: Decision) -> dict[str, Any]:
    return {
        "values": _rounded(decision.values),
        "prediction": decision.prediction,
        "target": decision.prediction if decision.target is None else decision.target,
        "label": decision.label,
        "scores": _rounded(decision.scores),
        "heat": {name: _rounded(values) for name, values in decision.heat.items()},
        "detectors": [
            {
                "number": each.number,
                "anchors": [list(pair) for pair in each.anchors],
                "bits": [int(bit) for bit in each.bits],
                "row": each.row,
                "values": _rounded(each.values),
                "outputs": list(each.outputs) or [str(at) for at in range(len(each.values))],
                "contribution": _rounded([each.contribution])[0],
            }
            for each in decision.detectors
        ],
    }


def _strip(strip: Strip) -> dict[str, Any]:
    return {"tokens": list(strip.tokens), "relevance": {str(at): _rounded(row) for at, row in strip.relevance.items()}}


def _flow(part: PartFlow) -> list[str]:
    found = FLOW_DATA.search(flow_page(part.flow))
    assert found is not None
    return [part.title, found[0]]


def _rounded(values: Iterable[float]) -> list[float]:
    """Five digits say enough; what is no number is 0, which JSON can hold."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else 0.0 for value in map(float, values)]


# ---- a story that does not fit ---------------------------------------------------------------------------------------


def _check_lengths(story: Story) -> None:
    """Refuse a story whose numbers do not belong together, before anything is written."""
    for training in story.trained:
        for curve in training.curves:
            _same("a curve's values", curve.values, len(curve.steps))
        for row in training.confusion:
            _same("a row of the confusion matrix", row, len(training.confusion))
        if training.labels and len(training.confusion):
            _same("the labels of a confusion matrix", training.labels, len(training.confusion))
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
    tables = [*story.speed, *([story.circuit.costs] if story.circuit and story.circuit.costs else [])]
    for table in tables:
        for cells in table.rows:
            _same("a row of a table", cells, len(table.columns))
    for number, part in enumerate(story.circuit.parts if story.circuit else ()):
        if any(not 0 <= source < number for source in part.sources):
            fail(f"the sources of part {number}", tuple(part.sources), "numbers of earlier parts")


def _same(name: str, values: Sequence[Any], length: int) -> None:
    if len(values) != length:
        fail(name, f"{len(values)} long", f"a length of {length}")
