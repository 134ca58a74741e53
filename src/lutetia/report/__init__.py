"""The report: one HTML page on what was trained, what it wrote, why it decided, and the circuit built from it.

    report.write("report.html", report.Story(decided=report.decisions(model, images, labels)))

The values of a story may be made by hand, or from models and graphs by the functions here. Each is imported on first use: a
command that explains needs few of them. `__all__` is for users, the other names for commands and estimators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutetia._shared.doors import lazy_door

if TYPE_CHECKING:
    from lutetia.report.attribution import BLANK as BLANK_BYTE
    from lutetia.report.attribution import (
        DEFAULT_RULE,
        PRESETS,
        RULES,
        SHAPLEY,
        attribute_class,
        attribute_from_average,
        attribute_rows,
        attribute_token,
    )
    from lutetia.report.attribution import contrast as contrast_weights
    from lutetia.report.attribution import lead as lead_over_rivals
    from lutetia.report.bars import reasons as reason_bars
    from lutetia.report.circuits import circuit, waveform
    from lutetia.report.comparisons import Comparison, Questions
    from lutetia.report.curve_pictures import write_curves
    from lutetia.report.curves import Curves, find_curves
    from lutetia.report.machines import machine
    from lutetia.report.marked import MarkedText, by_data_column, column_lines, column_names, marked_texts
    from lutetia.report.pages import html, write
    from lutetia.report.readings import reading
    from lutetia.report.reasons import by_columns as decisions_by_columns
    from lutetia.report.reasons import compared as compared_inputs
    from lutetia.report.reasons import decide, decisions, first_tables, input_texts, strip, token_names
    from lutetia.report.reasons import detectors as deciding_detectors
    from lutetia.report.standings import Gap, Standings, write_standings
    from lutetia.report.story import (
        CellTable,
        Check,
        Circuit,
        Curve,
        Decision,
        Decisions,
        Detector,
        Evaluation,
        Part,
        PartFlow,
        Reading,
        Story,
        Strip,
        Training,
        VotingCircuit,
        Waveform,
        WaveLine,
        Writing,
    )

__all__ = [
    "CellTable",
    "Check",
    "Circuit",
    "Curve",
    "Curves",
    "Decision",
    "Decisions",
    "Detector",
    "Evaluation",
    "Part",
    "PartFlow",
    "Reading",
    "Story",
    "Strip",
    "Training",
    "VotingCircuit",
    "WaveLine",
    "Waveform",
    "Writing",
    "circuit",
    "decide",
    "decisions",
    "find_curves",
    "html",
    "machine",
    "reading",
    "strip",
    "waveform",
    "write",
    "write_curves",
]

__getattr__, __dir__ = lazy_door(
    __name__,
    {
        "attribution": "BLANK_BYTE=BLANK DEFAULT_RULE PRESETS RULES SHAPLEY"
        " attribute_class attribute_from_average attribute_rows attribute_token contrast_weights=contrast lead_over_rivals=lead",
        "bars": "reason_bars=reasons",
        "circuits": "circuit waveform",
        "comparisons": "Comparison Questions",
        "curve_pictures": "write_curves",
        "curves": "Curves find_curves",
        "machines": "machine",
        "marked": "MarkedText by_data_column column_lines column_names marked_texts",
        "pages": "html write",
        "readings": "reading",
        "reasons": "compared_inputs=compared decisions_by_columns=by_columns decide deciding_detectors=detectors"
        " decisions first_tables input_texts strip token_names",
        "standings": "Gap Standings write_standings",
        "story": "Check Circuit Curve Decision Decisions Detector Evaluation Part PartFlow"
        " Reading WaveLine Story Strip CellTable Training VotingCircuit Waveform Writing",
    },
)
