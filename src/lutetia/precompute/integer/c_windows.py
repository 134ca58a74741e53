"""Windows of sensor signals in C: `signals.c` takes samples one after another, `recording.c` reads them from a CSV file.

All is in whole numbers: an edge of an input, a number in the unit of its signal, becomes the largest whole number below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lutetia.errors import fail
from lutetia.models import SHAPE_KERNELS, WINDOW_KINDS, SignalShape, SignalWindows, signal_windows
from lutetia.precompute.integer.c_columns import asked_edges, double, unit_text, words_for_no_value
from lutetia.precompute.integer.c_text import BEGIN, END, FLASH, array, define, n_bytes, plain, source, strings, title, type_of
from lutetia.precompute.integer.classifier import IntegerClassifier

Array = np.ndarray[Any, Any]

HEADER = """{title}#ifndef LUTETIA_SIGNALS_H
#define LUTETIA_SIGNALS_H

#include "model.h"

{begin}
{sizes}
/* The signals, in the order of a sample, and what 1 of a sample is in the unit of each: beyond the ends it becomes the end.
{signals} */

/* Takes one sample of every signal. Returns 1 when a window is full: its answer is then lutetia_answer(lutetia_window).
 * The first is full after LUTETIA_WINDOW samples, then one every LUTETIA_STEP. */
int lutetia_push(const int32_t sample[LUTETIA_SIGNALS]);

extern input_t lutetia_window[LUTETIA_INPUTS]; /* the last full window, as lutetia_answer takes it */

/* Forgets all samples: the next is the first of a new recording. */
void lutetia_restart(void);

extern const char *const lutetia_classes[LUTETIA_OUTPUTS];
{unit}{end}"""
PROGRAM = """/* What value_of needs of columns. */
#define LUTETIA_COLUMNS LUTETIA_SIGNALS
#define LUTETIA_UNKNOWN_IS_MISSING 0
static const char *const lutetia_columns[LUTETIA_COLUMNS] = {{{names}}};
static const char *const lutetia_units[LUTETIA_COLUMNS] = {{{units}}};
static const char *const *const lutetia_categories[LUTETIA_COLUMNS] = {{{none}}};
static const char *const lutetia_missing[] = {{{words}, 0}};
static const char SERIES[] = {series}; /* the column that names recordings */
static const double STEPS[LUTETIA_COLUMNS] = {{{steps}}}; /* of a sample, in 1 of its unit */
"""


def windows_of(model: IntegerClassifier) -> SignalWindows | None:
    """The windows of a model of signals."""
    return signal_windows(getattr(model.model, "metadata", {}))


def windows_files(model: IntegerClassifier) -> dict[str, str]:
    """The texts of signals.h, signals.c and recording.c."""
    windows, known = windows_of(model), model.model.metadata
    assert windows is not None
    parts, sample, total = _parts(model, windows), f"int{windows.bits}_t", f"int{2 * windows.bits}_t"
    about = title("Windows of sensor signals as inputs of the program.")
    told = [f" *   {plain(each.name)}: {10.0**-each.decimals:.{each.decimals}f}" for each in windows.signals]
    sizes = define(LUTETIA_WINDOW=windows.length, LUTETIA_STEP=windows.step, LUTETIA_SIGNALS=len(windows.signals))
    low, high = windows.ends
    sizes += f"#define LUTETIA_LEAST ({low + 1} - 1)\n#define LUTETIA_MOST {high}\n"
    unit = "" if model.n_outputs > 1 else unit_text(model)
    classes = known.get("classes", map(str, range(model.n_outputs))) if model.n_outputs > 1 else [model.model.title or "value"]
    kinds = ", ".join(kind.upper().replace(" ", "_") for kind in WINDOW_KINDS)
    program = "".join([
        about, '#include "signals.h"\n\n', FLASH,
        f"typedef {sample} sample_t;\ntypedef {total} total_t, value_t; /* of the samples of a window */\n\n",
        f"enum {{ {kinds} }};\n",
        define(LUTETIA_SHAPES=len(parts["APART"])) if "APART" in parts else "",
        "/* Of each input its signal, what is made of it, and the lag, the part or the shape; where its edges begin. */\n",
        *(array(name, values, total if name == "EDGE" else None) for name, values in parts.items()),
        f"const char *const lutetia_classes[LUTETIA_OUTPUTS] = {{{strings(classes)}}};\n",
        source("codes.c"), source("windows.c"),
    ])  # fmt: skip
    own = PROGRAM.format(
        names=strings(each.name for each in windows.signals), units=strings("" for _ in windows.signals),
        none=", ".join("0" for _ in windows.signals), words=strings(words_for_no_value(known)),
        series=strings([windows.series or ""]), steps=", ".join(double(10.0**each.decimals) for each in windows.signals),
    )  # fmt: skip
    reading = source("reading.c").replace("columns.h", "signals.h").replace("for each row", "for each window")
    return {
        "signals.h": HEADER.format(begin=BEGIN, end=END, title=about, sizes=sizes, signals="\n".join(told), unit=unit),
        "signals.c": program,
        "recording.c": reading + "\n" + own + "".join(map(source, ("cells.c", "values.c", "recording.c"))),
    }


def windows_memory(model: IntegerClassifier) -> dict[str, int]:
    """Bytes of the constants of signals.c, and of the samples that it keeps and the inputs that it makes."""
    windows = windows_of(model)
    assert windows is not None
    parts = _parts(model, windows)
    flash = sum(values.size * n_bytes(type_of(values)) for name, values in parts.items() if name != "EDGE")
    held = windows.length * len(windows.signals) * windows.bits // 8
    return {"flash_encoding_bytes": flash + parts["EDGE"].size * windows.bits // 4, "ram_window_bytes": held + model.n_inputs}


def _parts(model: IntegerClassifier, windows: SignalWindows) -> dict[str, Array]:
    """SIGNAL, KIND, NUMBER [n_inputs], START [n_inputs + 1], CODE and EDGE: the code of an input above each of its edges. Where
    shapes are asked for RAISED [n_shapes, 3], APART and ABOVE, too: the three samples of each, how far its nine are apart, and
    what their sum is above."""
    asked, columns, source_of = asked_edges(model), windows.columns, model.model.encoding.source.tolist()
    if not all(0 <= column < len(columns) for column in source_of):
        fail("encoding.source", source_of, f"columns from 0 to {len(columns) - 1}")
    places = [columns[column] for column in source_of]
    features = [feature for _, feature in places]
    shapes = sorted({each.at for each, (codes, _) in zip(features, asked, strict=True) if each.kind == "shape" and len(codes)})
    number_of = {each: number for number, each in enumerate(shapes)}
    edges = [
        whole_edge(edge, windows.divisor(*place), 2 * windows.bits)
        for place, (_, own) in zip(places, asked, strict=True)
        for edge in own.tolist()
    ]
    return {
        "SIGNAL": np.array([signal for signal, _ in places]),
        "KIND": np.array([WINDOW_KINDS.index(feature.kind) for feature in features]),
        "NUMBER": np.array([number_of.get(each.at, 0) if each.kind == "shape" else each.at for each in features]),
        "START": np.cumsum([0, *(len(codes) for codes, _ in asked)]),
        "CODE": np.concatenate([codes for codes, _ in asked]),
        "EDGE": np.array(edges, np.int64),
        **(_shape_parts([windows.shapes[number] for number in shapes]) if shapes else {}),
    }


def _shape_parts(shapes: Sequence[SignalShape]) -> dict[str, Array]:
    return {
        "RAISED": np.array([SHAPE_KERNELS[own.kernel] for own in shapes]) * np.array([[own.apart] for own in shapes]),
        "APART": np.array([own.apart for own in shapes]),
        "ABOVE": np.array([own.above for own in shapes]),
    }


def whole_edge(edge: float, divisor: float, bits: int) -> int:
    """The largest whole number that divided by `divisor` is not above an edge, of so many bits."""
    low, high = -(1 << bits - 1) + 1, (1 << bits - 1) - 1
    if not low / divisor <= edge < high / divisor:
        return low if edge < low / divisor else high
    whole = math.floor(edge * divisor)
    while whole / divisor > edge:
        whole -= 1
    while (whole + 1) / divisor <= edge:
        whole += 1
    return whole
