"""A whole-number model as one HTML page that runs it: no network access, the tables inside.

`window.lutetia.generate(Uint8Array, n)` writes, `window.lutetia.classify(Int32Array)` classifies. The scripts and the style are
in `page/`; `language.js` and `classifier.js` are the models, the other files what a reader sees.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from lutetia._shared.markup import Html, tag
from lutetia._shared.pages import Article, Section, article, asset, packed
from lutetia.models import REGION_CELLS, Tabular, has_times, region_name, text_columns
from lutetia.precompute.integer.c_columns import comparisons, words_for_no_value
from lutetia.precompute.integer.c_windows import windows_of
from lutetia.precompute.integer.classifier import IntegerClassifier, LinearStage, Stage, TableStage
from lutetia.precompute.integer.intervals import HalfWidth
from lutetia.precompute.integer.language import IntegerTransformer, TableLayer
from lutetia.precompute.integer.page_numbers import packed_numbers
from lutetia.precompute.integer.page_reasons import reason_data, reasons_said
from lutetia.precompute.integer.page_texts import page_letters, page_text
from lutetia.precompute.integer.page_windows import STYLE, WINDOWS, ExampleRecording, window_data, window_section
from lutetia.precompute.integer.pixels import has_patches, whole_edges
from lutetia.precompute.integer.sampling import weights

PACKAGE = "lutetia.precompute.integer"
LANGUAGE = ("arrays.js", "language.js", "writing.js")
IMAGE = ("arrays.js", "classifier.js", "patches.js", "told.js", "reasons.js", "answers.js", "drawing.js")
COLUMNS = ("csv.js", "cells.js", "answers.js", "texts.js", "sliders.js", "rows.js")
NUMBERS = ("arrays.js", "classifier.js", "told.js", "reasons.js", *COLUMNS)
SIGNALS = "Open a recording, or look at the one that is there, and choose a window."
NO_SCRIPT = "The page's own script runs the model: please allow JavaScript for it."
CHOOSE = "Choose a byte, with a pointer or the arrow keys. The stronger an earlier byte's colour, the more attention used it."
LOGARITHM = (
    "How far the logarithm of the answer would fall if a table gave its average row instead: orange raises it, blue lowers it."
)
NUMBER = "How far the answer would fall if a table gave its average row instead: orange raises it, blue lowers it."
LEAD = "How far the answer's lead would fall if a table gave its average row instead: orange for the answer, blue against it."
COMPARED = " Choose a table to see it alone. A line joins two pixels that it compares; a circle alone is compared with a number; "
COMPARED += "filled means greater."
FOUND = " Boxes are where a pattern of a chosen table was found."
MOST_LABELS = 1 << 10  # values of an input that are shown in the unit of the data
Array = np.ndarray[Any, Any]


def page(
    model: IntegerTransformer | IntegerClassifier,
    title: str,
    figures: dict[str, str] | None = None,
    example: ExampleRecording | None = None,
) -> str:
    """The whole page as text, to be written as UTF-8. `example` is what one for windows of signals shows first."""
    if isinstance(model, IntegerTransformer):
        lead = "It runs on this page, in whole numbers: every layer compares, looks up and adds. Type, and it writes on."
        return _document(Article(title, lead, figures or {}, [_writing()], no_script=NO_SCRIPT), LANGUAGE, _language(model))
    lead = "It runs on this page, in whole numbers: every layer compares, looks up and adds. "
    if windows_of(model) is not None:
        content = Article(title, lead + SIGNALS, figures or {}, [window_section(model)], no_script=NO_SCRIPT)
        return _document(content, WINDOWS, _classifier(model) | window_data(model, example), STYLE)
    is_image = len(_shape(model)) > 1
    has_texts = "texts" in getattr(model.model, "metadata", {})
    has_columns = isinstance(model.model, Tabular)
    told = "Type a text, and it answers." if has_texts else "Move a slider, and it answers."
    told = "Type values, or open a file of rows, and it answers." if has_columns and not has_texts else told
    lead += "Draw or open an image, and it answers." if is_image else told
    sections = [_answering(model)]
    return _document(
        Article(title, lead, figures or {}, sections, no_script=NO_SCRIPT),
        IMAGE if is_image else NUMBERS,
        _classifier(model) | _inputs(model, getattr(model.model, "metadata", {})),
    )


def n_detectors(model: IntegerTransformer | IntegerClassifier) -> int:
    """Detectors of all layers."""
    if isinstance(model, IntegerTransformer):
        return sum(len(layer.numbers) for layer in model.layers.values())
    return sum(len(stage.contents) for stage in model.stages if isinstance(stage, TableStage))


def title_of(path: Path) -> str:
    """A title for the page of a checkpoint."""
    name = path.resolve().name
    return name if name.strip() else "A model of tables"


def _document(content: Article, scripts: tuple[str, ...], data: dict[str, Any], *styles: str) -> str:
    assets = [asset("elements.js"), *(asset(name, PACKAGE) for name in scripts)]
    return article(content, [asset(name, PACKAGE) for name in ("page.css", *styles)], assets, data={"model": packed(data)})


# ---- what a reader sees ----------------------------------------------------------------------------------------------


def _writing() -> Section:
    def choice(name: str, label: str, checked: bool) -> Html:
        return tag("label", tag("input", type="radio", name="how", id=name, checked=checked or None), label)

    content = tag(
        "div",
        tag("label", "Text to continue", for_="prompt"),
        tag("textarea", "def ", id="prompt", rows=3, spellcheck="false", autocapitalize="off"),
        tag(
            "fieldset",
            tag("legend", "How the next byte is chosen", class_="hidden"),
            tag("div", choice("best", "the best byte each time", True), choice("drawn", "drawn by chance", False),
                tag("button", "Draw again", type="button", id="again"), class_="row"),
        ),
        tag("div", id="text", tabindex=0, role="group", aria_label="The text that the model writes"),
        tag("p", id="said", class_="small", aria_live="polite"),
        tag("p", id="looked", aria_live="polite"),
        tag("p", CHOOSE, class_="small"),
        class_="card",
    )  # fmt: skip
    return Section("write", "Write", content)


def _effects(model: IntegerClassifier) -> str:
    """What the effects of tables are."""
    if model.n_outputs > 1:
        return LEAD
    return LOGARITHM if _is_log(model) else NUMBER


def _is_log(model: IntegerClassifier) -> bool:
    return isinstance(model.model, Tabular) and model.model.loss.is_log


def _answering(model: IntegerClassifier) -> Section:
    """What a classifier, or a regression, is given and what it answers; an image of three planes is drawn in colour."""
    shape, is_number, known = _shape(model), model.n_outputs == 1, getattr(model.model, "metadata", {})
    target, unit = model.model.title if isinstance(model.model, Tabular) else known.get("target"), known.get("target_unit")
    asked = "Answer" + (f": {target}" if target else "") + (f" in {unit}" if target and unit else "")
    is_image, has_colours = len(shape) > 1, len(shape) == 3 and shape[0] == 3
    keys = "Draw with a finger, a pen or a mouse; or by keys: arrows move, space draws, shift and an arrow draw a line."
    tint = tag("label", tag("input", type="color", id="tint", value="#ffffff"), "colour") if has_colours else None
    given = [
        tag("canvas", id="image", tabindex=0, role="img", aria_label="An image to draw on", aria_describedby="keys"),
        tag("div", tag("button", "Clear", type="button", id="clear"),
            tag("label", tag("input", type="checkbox", id="erase"), "erase"), tint, class_="row"),
        tag("label", "Open an image", for_="file"),
        tag("input", type="file", id="file", accept="image/*"),
        tag("p", id="opened", class_="small", aria_live="polite"),
        tag("p", keys, id="keys", class_="small"),
    ] if is_image else [*_file(model), tag("ul", id="sliders", class_="sliders")]  # fmt: skip
    told = [
        tag("h3", asked),
        tag("p", id="answer", aria_live="polite"),
        tag("p", id="interval", aria_live="polite") if is_number else None,
        tag("ul", id="scores", class_="bars", aria_label="Probability of each class"),
    ]
    why = [
        tag("h3", "Why"),
        tag("p", reasons_said(model), class_="small"),
        tag("ul", id="reasons", class_="bars reasons"),
    ] if len(model.stages) == 1 and isinstance(model.stages[0], TableStage) and not is_image else []  # fmt: skip
    tables = [
        tag("h3", "Tables that counted most"),
        tag("p", _effects(model) + (COMPARED if is_image else "") + (FOUND if has_patches(model) else ""), class_="small"),
        tag("p", "None makes a difference.", id="quiet", class_="small", hidden="hidden"),
        tag("ul", id="loud", class_="bars loud"),
    ]  # fmt: skip
    first, *others = [tag("div", part, class_="card") for part in (given, told, why, tables) if part]
    return Section("try", "Draw" if is_image else "Try", tag("div", first, tag("div", others, class_="stack"), class_="columns"))


def _file(model: IntegerClassifier) -> list[Html]:
    """What opens a file of rows, of a model of columns."""
    if not isinstance(model.model, Tabular):
        return []
    buttons = [
        tag("button", title, type="button", id=name) for name, title in (("earlier", "Row before"), ("later", "Row after"))
    ]
    return [
        tag("label", "Open a file of rows, or drop it here", for_="table"),
        tag("input", type="file", id="table", accept=".csv,.tsv,.txt,text/csv"),
        tag("p", "A CSV file with the columns below. It stays on your machine.", class_="small"),
        tag("p", id="opened", aria_live="polite"),
        tag("div", tag("label", "row", tag("input", type="number", id="row", min=0, value=0)), buttons,
            tag("button", "Save all answers", type="button", id="save"), class_="row", id="rows", hidden="hidden"),
    ]  # fmt: skip


# ---- what the scripts compute with -----------------------------------------------------------------------------------


def _language(model: IntegerTransformer) -> dict[str, Any]:
    drop, table = weights(1.0, model.unembedding.fraction)
    return {
        "context": model.context,
        "width": model.width,
        "vocab": model.vocab,
        "embedding": packed_numbers(model.embedding),
        "embeddingUnit": 2**model.embedding_shift,
        "blocks": [{"attention": _layer(each.attention), "feedForward": _layer(each.feed_forward)} for each in model.blocks],
        "unembedding": _layer(model.unembedding),
        "drop": drop,
        "weights": packed_numbers(table),
    }


def _layer(layer: TableLayer) -> dict[str, Any]:
    n_detectors, n_rows, n_outputs = layer.numbers.shape
    return {
        "nDetectors": n_detectors,
        "nRows": n_rows,
        "nOutputs": n_outputs,
        "nAnchors": layer.anchors.shape[1],
        "numbers": packed_numbers(layer.numbers),
        "anchors": packed_numbers(layer.anchors),
        "gains": None if layer.gains is None else packed_numbers(layer.gains),
        "unit": 2**layer.shift,
        "positionBits": layer.position_bits,
        "positions": None if layer.positions is None else packed_numbers(layer.positions),
    }


def _classifier(model: IntegerClassifier) -> dict[str, Any]:
    metadata = getattr(model.model, "metadata", {})
    return {
        "nInputs": model.n_inputs,
        "largest": 2**model.input_bits - 1,
        "shape": _shape(model),
        "classes": list(metadata.get("classes", ())),
        "stages": [_stage(stage) for stage in model.stages],
        "unit": float(model.graph.nodes[model.graph.output].edge.scale[0]),
        "halfWidth": _half_width(model.half_width),
        "isLog": _is_log(model),
        "patches": _patches(model) if has_patches(model) else None,
        "missing": words_for_no_value(metadata),
        "target": model.model.title if isinstance(model.model, Tabular) else None,
        "targetUnit": metadata.get("target_unit", ""),
        "unknownIsMissing": metadata.get("unknown") == "missing",
        **reason_data(model),
    }


def _patches(model: IntegerClassifier) -> dict[str, Any]:
    """What is counted in images: see `lutetia.models.patches`."""
    patches = model.model.patches
    pairs, plane, threshold, counted = patches.arrays()
    left, right, _ = comparisons(model)
    is_compared = np.isin(np.arange(model.n_inputs), [left, right])
    edges = [own if used else own[:0] for own, used in zip(whole_edges(model), is_compared, strict=True)]
    return {
        "shape": list(patches.shape), "nPairs": pairs.shape[1], "pairs": packed_numbers(pairs), "plane": packed_numbers(plane),
        "threshold": packed_numbers(threshold), "counted": packed_numbers(counted), "regions": list(REGION_CELLS),
        "names": [region_name(region) for region in range(len(REGION_CELLS))],
        "edges": packed_numbers(np.concatenate(edges)), "starts": packed_numbers(np.cumsum([0, *map(len, edges)])),
    }  # fmt: skip


def _half_width(width: HalfWidth | None) -> dict[str, Any] | None:
    if width is None:
        return None
    stage = None if width.stage is None else _stage(width.stage)
    return {"least": width.least, "half": width.half, "fine": 2.0**width.shift, "stage": stage, "unit": width.unit}


def _stage(stage: Stage) -> dict[str, Any]:
    bias = stage.bias.tolist()  # these alone may take more than 32 bits
    if isinstance(stage, LinearStage):
        return {"weight": packed_numbers(stage.weight), "bias": bias}
    tables: dict[int, int] = {}  # where each array of contents starts, which several lookups may share
    parts: list[Array] = []
    size = 0
    for contents in stage.contents:
        if id(contents) not in tables:
            tables[id(contents)] = size
            parts.append(contents.reshape(-1))
            size += contents.size
    count = np.array([len(targets) for targets in stage.targets])
    return {
        "left": packed_numbers(stage.left), "right": packed_numbers(stage.right), "constant": packed_numbers(stage.constant),
        "lanes": packed_numbers(stage.lanes), "k": stage.lanes.shape[1], "flip": packed_numbers(stage.flip),
        "contents": packed_numbers(np.concatenate(parts)),
        "start": packed_numbers(np.array([tables[id(each)] for each in stage.contents])),
        "count": packed_numbers(count), "targets": packed_numbers(np.concatenate(stage.targets)),
        "firstTarget": packed_numbers(np.cumsum([0, *count])[:-1]), "bias": bias,
    }  # fmt: skip


def _shape(model: IntegerClassifier) -> list[int]:
    """The shape of an image, or one size: an encoding of columns may make inputs of its own."""
    shape = list(getattr(getattr(model.model, "config", None), "input_shape", ()))
    pixels = list(range(math.prod(shape)))
    is_whole = len(pixels) == model.n_inputs
    if isinstance(model.model, Tabular):
        is_whole = model.model.encoding.source.tolist()[: len(pixels)] == pixels
        is_whole &= model.model.patches is not None or len(pixels) == model.n_inputs
    return shape if is_whole else [model.n_inputs]


def _inputs(model: IntegerClassifier, metadata: dict[str, Any]) -> dict[str, Any]:
    """Names of the inputs, and what their numbers mean: one list for all, or one for each."""
    names = list(metadata.get("features", ()))
    if isinstance(model.model, Tabular):
        encoding = model.model.encoding
        source = encoding.source.tolist()
        is_image = len(_shape(model)) > 1
        titles = names or [f"x{column}" for column in range(model.model.n_columns)]
        features = [] if is_image else [model.model.input_name(number, titles) for number in range(len(source))]
        span = [float(metadata.get(key, end)) for key, end in (("input_low", 0.0), ("input_high", 1.0))] if is_image else []
        n_told = model.model.n_columns if is_image else len(source)  # counts are told as the whole numbers that they are
        edges: list[list[float | str]] | dict[int, dict[int, float | str]]
        edges = [_edges(model.model, number) for number in range(n_told)] if not has_patches(model) else _compared_edges(model)
        columns = [] if is_image else _columns(model.model, titles)
        told = {"features": features, "labels": None, "edges": edges, "span": span, "columns": columns}
        return told | (page_letters(model.model) if "texts" in metadata else {})
    values = getattr(model.network.encoder, "values", None)
    known = values is not None and 2**model.input_bits <= MOST_LABELS and len(_shape(model)) == 1
    labels = [f"{value:.4g}" for value in values()] if known and values else None
    return {"features": names, "labels": labels, "edges": [], "span": [], "columns": []}


def _edges(model: Tabular, number: int) -> list[float | str]:
    """The thresholds of an input: numbers, or dates as they are shown."""
    edges = [edge for edge in model.encoding.edges[number].tolist() if math.isfinite(edge)]
    if str(int(model.encoding.source[number])) in model.metadata.get("dates", {}):
        return [model.threshold_text(number, code + 1) for code in range(len(edges))]
    return [float(f"{edge:.7g}") for edge in edges] if len(model.config.input_shape) > 1 else edges  # images have many


def _compared_edges(model: IntegerClassifier) -> dict[int, dict[int, float | str]]:
    """The thresholds of pixels that something is compared with, by input and place: all of a large image would take megabytes."""
    left, right, constant = comparisons(model)
    told: dict[int, dict[int, float | str]] = {}
    for number in np.unique(left[(right < 0) & (left < model.model.n_columns)]).tolist():
        own = _edges(model.model, number)
        places = np.unique(constant[(left == number) & (right < 0)]) - 1
        told[number] = {place: own[place] for place in places.tolist() if 0 <= place < len(own)}
    return told


def _columns(model: Tabular, names: list[str]) -> list[dict[str, Any]]:
    """For each column its name, the inputs made of it, and their codes for each of its categories, what is missing first; for a
    column of dates the part and the edges of each input."""
    inputs: dict[int, list[int]] = {}
    for number, column in enumerate(model.encoding.source.tolist()):
        inputs.setdefault(column, []).append(number)
    columns = []
    n_plain = min((each.first for each in text_columns(model.metadata)), default=model.n_columns)
    for column, numbers in inputs.items():
        if column >= n_plain:  # made of texts
            continue
        ranked = model.encoding.ranks[numbers].any(0).tolist()  # [n_categories]
        words = model.metadata.get("categories", {}).get(str(column), range(len(ranked)))
        values = np.repeat(np.arange(len(ranked), dtype=np.float64)[:, None], model.n_columns, 1)
        every = model.encoding.codes(values)[numbers].T.tolist() if any(ranked) else []
        known = [(str(name), codes) for name, codes, is_one in zip(words, every, ranked, strict=False) if is_one]
        categories = [("missing", [0] * len(numbers)), *known] if known else []
        told: dict[str, Any] = {"name": names[column], "inputs": numbers, "categories": categories, "dates": None, "cuts": None}
        if str(column) in model.metadata.get("dates", {}):
            edges = [[edge for edge in row if math.isfinite(edge)] for row in model.encoding.edges[numbers].tolist()]
            parts = [model.encoding.parts[number] for number in numbers]
            order = model.metadata["dates"][str(column)]["order"]
            told["dates"] = {"times": has_times(model.metadata, column), "order": order, "parts": parts, "edges": edges}
        elif not categories:
            told["cuts"] = [[edge for edge in row if math.isfinite(edge)] for row in model.encoding.edges[numbers].tolist()]
            told |= {"unit": model.metadata.get("units", {}).get(str(column), ""), "trained": _trained(model, column)}
        columns.append(told)
    for text in sorted(text_columns(model.metadata), key=lambda each: each.place):
        columns.insert(text.place, page_text(model, text))
    return columns


def _trained(model: Tabular, column: int) -> list[float] | None:
    """The least and the greatest value of a column that was fitted; None where they are not known."""
    if "input_low" not in model.metadata:
        return None
    return [float(np.broadcast_to(model.metadata[key], model.n_columns)[column]) for key in ("input_low", "input_high")]
