"""The report: one page of HTML on what was trained, what it wrote, why it decided, and what circuit came of it.

    report.write("report.html", report.Story(decided=report.decisions(model, images, labels)))

The values of a story may be made by hand, or from models and graphs by the functions here.
"""

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
