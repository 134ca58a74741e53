"""The report: one page of HTML on what was trained, what it wrote, why it decided, and what circuit came of it.

    report.write("report.html", report.Story(decided=report.decisions(model, images, labels)))

The values of a story may be made by hand, or from models and graphs by the functions here. Each is imported when it is first
touched: a command that explains needs few of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lutetia.report.circuits import circuit, waveform
    from lutetia.report.machines import machine
    from lutetia.report.pages import html, write
    from lutetia.report.readings import reading
    from lutetia.report.reasons import decide, decisions, strip
    from lutetia.report.story import (
        Check,
        Circuit,
        Curve,
        Decision,
        Decisions,
        Detector,
        Part,
        PartFlow,
        Reading,
        Signal,
        Story,
        Strip,
        Table,
        Training,
        VotingCircuit,
        Waveform,
        Writing,
    )

__all__ = [
    "Check",
    "Circuit",
    "Curve",
    "Decision",
    "Decisions",
    "Detector",
    "Part",
    "PartFlow",
    "Reading",
    "Signal",
    "Story",
    "Strip",
    "Table",
    "Training",
    "VotingCircuit",
    "Waveform",
    "Writing",
    "circuit",
    "decide",
    "decisions",
    "html",
    "machine",
    "reading",
    "strip",
    "waveform",
    "write",
]
_LATER = {
    **dict.fromkeys(("circuit", "waveform"), "circuits"),
    **dict.fromkeys(("html", "write"), "pages"),
    **dict.fromkeys(("decide", "decisions", "strip"), "reasons"),
    "machine": "machines",
    "reading": "readings",
}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"lutetia.report.{_LATER.get(name, 'story')}"), name)
    raise AttributeError(f"lutetia.report has no {name!r}")
