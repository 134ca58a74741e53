"""Windows of sensor signals on a page: see `page/features.js`, `recordings.js`, `windows.js`, `plots.js` and `signals.js`.

All is in whole numbers, as in C: an edge of an input becomes the largest whole number below it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared.markup import tag
from lutetia._shared.pages import Section, asset
from lutetia.errors import ArgumentError, fail
from lutetia.models import MISSING_WORDS, SHAPE_KERNELS, SignalFeature, SignalWindows
from lutetia.precompute.integer.c_columns import asked_edges
from lutetia.precompute.integer.c_windows import whole_edge, windows_of
from lutetia.precompute.integer.classifier import IntegerClassifier, TableStage
from lutetia.precompute.integer.page_numbers import packed_numbers
from lutetia.precompute.integer.page_reasons import reasons_said

Array = np.ndarray[Any, Any]
PACKAGE = "lutetia.precompute.integer"
COMPUTING = ("arrays.js", "classifier.js", "told.js", "reasons.js", "features.js")
WINDOWS = (*COMPUTING, "csv.js", "recordings.js", "windows.js", "plots.js", "signals.js")
STYLE = "signals.css"
BITS = 54  # of two's complement: whole numbers that a script counts with exactly
FEATURE = re.compile(r'^"(.+?)": \{ of:', re.MULTILINE)  # a line of features.js
ENDS = ("minimum", "maximum")
LISTED = 6  # signals that are named in the hint


@dataclass(frozen=True, eq=False)
class ExampleRecording:
    """What the page shows first: samples int64 [rows, signals], in the units of the model; the rows where its parts begin, and
    what each is called; and where it is from."""

    samples: Array
    begins: Sequence[int]
    names: Sequence[str]
    said: str


class _Input(NamedTuple):
    """An input: the number of its signal, what is made of that, and what the sum is divided by."""

    signal: int
    feature: SignalFeature
    divisor: float


def page_kinds() -> set[str]:
    """The kinds of features that the page can compute: the lines of a table in its script."""
    return set(FEATURE.findall(asset("features.js", PACKAGE)))


def window_data(model: IntegerClassifier, example: ExampleRecording | None) -> dict[str, Any]:
    """What the scripts compute with, besides the tables."""
    windows, known = windows_of(model), model.model.metadata
    assert windows is not None
    asked, inputs = asked_edges(model), _inputs(model, windows)
    kinds = {each.feature.kind for each, (codes, _) in zip(inputs, asked, strict=True) if len(codes)}
    if unknown := sorted(kinds - page_kinds()):
        why = f"the model asks for the {unknown[0]!r} of windows, which a page cannot compute"
        raise ArgumentError(f"{why}: lutetia build --target c makes a program")
    features = list(dict.fromkeys([*windows.features, *(each.feature for each in inputs)]))
    numbers = {feature: number for number, feature in enumerate(features)}
    low, high = windows.ends
    return {
        "windows": {
            "length": windows.length,
            "step": windows.step,
            "series": windows.series,
            "least": low,
            "most": high,
            "signals": [
                {"name": each.name, "scale": 10.0**each.decimals, "ends": ends}
                for each, ends in zip(windows.signals, _ends(model, windows, inputs), strict=True)
            ],
            "shapes": [
                [*(place * own.apart for place in SHAPE_KERNELS[own.kernel]), own.apart, own.above] for own in windows.shapes
            ],
            "features": [
                {"kind": each.kind, "at": each.at, "title": each.title, "divisor": each.n_samples, "hasUnit": each.has_unit}
                for each in features
            ],
            "signal": packed_numbers(np.array([each.signal for each in inputs])),
            "feature": packed_numbers(np.array([numbers[each.feature] for each in inputs])),
            "starts": packed_numbers(np.cumsum([0, *(len(codes) for codes, _ in asked)])),
            "codes": packed_numbers(np.concatenate([codes for codes, _ in asked])),
            "edges": [
                whole_edge(edge, each.divisor, BITS)
                for each, (_, own) in zip(inputs, asked, strict=True)
                for edge in own.tolist()
            ],
            "thresholds": _thresholds(model),
            "trained": _trained(model, asked),
            "unit": known.get("target_unit"),
            "missing": sorted(MISSING_WORDS),
            "words": [word.lower() for word in known.get("missing", ())],
            "example": None if example is None else _example(example),
        }
    }


def _inputs(model: IntegerClassifier, windows: SignalWindows) -> list[_Input]:
    """What each input of the tables is made of."""
    columns, source_of = windows.columns, model.model.encoding.source.tolist()
    if not all(0 <= column < len(columns) for column in source_of):
        fail("encoding.source", source_of, f"columns from 0 to {len(columns) - 1}")
    places = [columns[column] for column in source_of]
    return [_Input(signal, feature, windows.divisor(signal, feature)) for signal, feature in places]


def _trained(model: IntegerClassifier, asked: Sequence[tuple[Array, Array]]) -> dict[int, list[float]]:
    """What was fitted, the least and the greatest, of each input that tables ask for; empty where that is not known."""
    known, sources = model.model.metadata, model.model.encoding.source.tolist()
    if "input_low" not in known:
        return {}
    low, high = (np.broadcast_to(known[key], model.model.n_columns).tolist() for key in ("input_low", "input_high"))
    wanted = [number for number, (codes, _) in enumerate(asked) if len(codes)]
    return {number: [low[sources[number]], high[sources[number]]] for number in wanted}


def _thresholds(model: IntegerClassifier) -> list[str]:
    """What each comparison of the tables compares an input with; empty where that is another input."""
    stage = model.stages[0]
    assert isinstance(stage, TableStage)
    parts = (stage.left.tolist(), stage.right.tolist(), stage.constant.tolist())
    return [model.model.threshold_text(left, constant) if right < 0 else "" for left, right, constant in zip(*parts, strict=True)]


def _ends(model: IntegerClassifier, windows: SignalWindows, inputs: Sequence[_Input]) -> list[list[float]]:
    """What samples of each signal are between, as a rule: half of the windows that were fitted had a smaller minimum, or
    maximum."""
    found = [[-1.0, 1.0] for _ in windows.signals]
    for each, row in zip(inputs, model.model.encoding.edges, strict=True):
        edges = row[row.isfinite()]
        if each.feature.kind in ENDS and len(edges):
            found[each.signal][ENDS.index(each.feature.kind)] = float(edges.median())
    return found


def _example(example: ExampleRecording) -> dict[str, Any]:
    samples = [packed_numbers(np.ascontiguousarray(own)) for own in example.samples.T]
    return {"samples": samples, "begins": list(example.begins), "names": list(example.names), "said": example.said}


# ---- what a reader sees ----------------------------------------------------------------------------------------------


def window_section(model: IntegerClassifier) -> Section:
    """A recording to choose, its picture, the answer to a window of it, and the reasons."""
    windows, known, is_number = windows_of(model), model.model.metadata, model.n_outputs == 1
    assert windows is not None
    target, unit = model.model.title, known.get("target_unit")
    asked = "Answer" + (f": {target}" if target else "") + (f" in {unit}" if target and unit else "")
    buttons = {"before": "Window before", "after": "Window after", "closer": "Closer", "wider": "Wider", "whole": "Whole"}
    recording = [
        tag("label", "Open a recording, or drop it here", for_="file"),
        tag("div", tag("input", type="file", id="file", accept=".csv,.tsv,.txt,text/csv"),
            tag("button", "Show the example", type="button", id="example", hidden="hidden"), class_="row"),
        tag("p", _expected(windows), class_="small"),
        tag("p", id="opened", aria_live="polite"),
        tag("p", id="warned", class_="small bad"),
        tag("div", id="chart", tabindex=0, role="group", aria_label="The recording: arrow keys choose a window"),
        tag("div", [tag("button", title, type="button", id=name) for name, title in buttons.items()],
            tag("label", tag("input", type="range", id="place", min=0, max=1000, value=0), "place", hidden="hidden"),
            tag("label", "part", tag("select", id="part"), hidden="hidden"), class_="row"),
        tag("ul", id="legend", class_="legend"),
        tag("details", tag("summary", id="shown"), tag("ul", id="lanes", class_="lanes"), hidden="hidden"),
    ]  # fmt: skip
    answer = [
        tag("h3", asked),
        tag("p", id="which", class_="small", aria_live="polite"),
        tag("p", id="answer"),
        tag("p", id="interval") if is_number else None,
        tag("ul", id="scores", class_="bars", aria_label="Probability of each class"),
    ]
    reasons = [
        tag("h3", "Why"),
        tag("p", reasons_said(model) + " Choose one to see where it looks.", class_="small"),
        tag("div", id="detail"),
        tag("p", id="looked", class_="small"),
        tag("p", "None makes a difference.", id="quiet", class_="small", hidden="hidden"),
        tag("ul", id="loud", class_="bars loud"),
    ]
    cards = tag("div", [tag("div", part, class_="card") for part in (answer, reasons)], class_="columns narrow")
    return Section("try", "Signals", tag("div", tag("div", recording, class_="card", id="drop"), cards))


def _expected(windows: SignalWindows) -> str:
    """What a file has to hold."""
    names = [f"“{each.name}”" for each in windows.signals[:LISTED]]
    more = f" and {len(windows.signals) - LISTED:,} more" if len(windows.signals) > LISTED else ""
    columns = f"the column{'s' * (len(windows.signals) > 1)} {', '.join(names)}{more}"
    by = f"; “{windows.series}” names recordings, if it is there" if windows.series is not None else ""
    every = f"A window is {windows.length:,} rows, and one begins every {windows.step:,}."
    return f"A CSV file with {columns}, and a row for each sample{by}. {every} The file stays on your machine."
