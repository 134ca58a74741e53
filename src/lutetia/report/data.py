"""Input of the page's script: the numbers of a story as JSON, rounded to visible precision."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from lutetia._shared.pages import packed
from lutetia.flow import Flow, flow_page, page_data
from lutetia.report.story import Decision, Decisions, Detector, Story, Strip

DIGITS = 5  # of the numbers in the page's data


def script_data(story: Story) -> str:
    """The story's numbers, as `page/*.js` read them."""
    shell = flow_page(Flow()).split(page_data(Flow())) if story.flows else None
    return packed(
        {
            "why": _decisions(story.decided) if story.decided and story.decided.items else None,
            "votes": asdict(story.decided.votes) if has_votes(story) else None,  # type: ignore[union-attr, arg-type]
            "strips": [_strip(strip) for strip in story.strips],
            "shell": shell,
            "flows": [[part.title, page_data(part.flow)] for part in story.flows],
        }
    )


def has_votes(story: Story) -> bool:
    """Whether there is a circuit of votes to run, and an image to run it on."""
    return bool(story.decided and story.decided.items and story.decided.votes)


def _decisions(decisions: Decisions) -> dict[str, Any]:
    n_classes = len(decisions.items[0].scores)
    return {
        "shape": list(decisions.shape),
        "labels": list(decisions.labels) or [str(number) for number in range(n_classes)],
        "features": list(decisions.features),
        "rules": [[name, decisions.titles.get(name, name), decisions.rules.get(name, "")] for name in decisions.items[0].heat],
        "shares": decisions.shares,
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
        "detectors": [_detector(each) for each in decision.detectors],
        "texts": list(decision.texts),
        "comparisons": [[each.text, *_rounded([each.effect])] for each in decision.comparisons],
    }


def _detector(detector: Detector) -> dict[str, Any]:
    return {
        "number": detector.number,
        "anchors": [list(pair) for pair in detector.anchors],
        "constants": _rounded(detector.constants),
        "bits": [int(bit) for bit in detector.bits],
        "row": detector.row,
        "values": _rounded(detector.values),
        "outputs": list(detector.outputs) or [str(number) for number in range(len(detector.values))],
        "contribution": _rounded([detector.contribution])[0],
    }


def _strip(strip: Strip) -> dict[str, Any]:
    relevance = {str(place): _rounded(row) for place, row in strip.relevance.items()}
    return {"tokens": list(strip.tokens), "relevance": relevance, "opened": strip.opened}


def _rounded(values: Iterable[float]) -> list[float]:
    """Round to five digits; NaN and infinities become 0, which JSON can hold."""
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else 0.0 for value in map(float, values)]
