"""From a row of data to the inputs of a program: `columns.c` turns values into codes, `rows.c` reads a CSV file.

The program compares codes only with a few constants, so only the edges at these are written; where two inputs are compared with
each other, all edges of both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lutetia.models import DATE_ORDERS as ORDERS
from lutetia.models import DATE_PARTS, MISSING_WORDS, text_columns
from lutetia.precompute.integer.c_text import BEGIN, END, FLASH, array, define, n_bytes, source, strings, title, type_of
from lutetia.precompute.integer.c_texts import HEADER as TEXTS
from lutetia.precompute.integer.c_texts import texts_bytes, texts_source
from lutetia.precompute.integer.classifier import IntegerClassifier, TableStage

Array = np.ndarray[Any, Any]

HEADER = """{title}#ifndef LUTETIA_COLUMNS_H
#define LUTETIA_COLUMNS_H

#include "model.h"

{begin}
{sizes}
extern const char *const lutetia_columns[LUTETIA_COLUMNS]; /* their names, in UTF-8 */
extern const char *const lutetia_units[LUTETIA_COLUMNS];   /* "" where there is none */
extern const char *const *const lutetia_categories[LUTETIA_COLUMNS]; /* their names, then 0; 0 for a column of numbers */
extern const char *const lutetia_missing[]; /* words for no value, in small letters, then 0 */
extern const char *const lutetia_classes[LUTETIA_OUTPUTS];

{encode}
{more}{unit}{end}"""
ENCODES = """/* A row of values as the inputs of lutetia_answer. A category is its number in lutetia_categories; NAN is
 * missing. */
void lutetia_encode(const double values[LUTETIA_{values}], input_t x[LUTETIA_INPUTS]);"""
NUMBERS = """/* A row of values as the numbers that lutetia_encode takes, the nearest. A category is its number in
 * lutetia_categories; NAN is missing. Returns -1, or the column that has to have a value, and has none. */
#define LUTETIA_READINGS
int lutetia_numbers(const double values[LUTETIA_COLUMNS], sample_t numbers[LUTETIA_COLUMNS]);"""
DATES = """
/* Columns of dates: 0 for another, 1 where the year comes first in a file, 2 the day, 3 the month. Their values are seconds since
 * the beginning of 1970, as lutetia_date gives them; NAN for a day that does not exist. */
#define LUTETIA_DATES
#define LUTETIA_FIRST_SECOND -62135596800.0 /* of the year 1 */
#define LUTETIA_LAST_SECOND 253402300799.0  /* of the year 9999 */
extern const int lutetia_dates[LUTETIA_COLUMNS];
double lutetia_date(int year, int month, int day, int hour, int minute, double second);
"""
UNIT = """
/* The {what} is the sum of lutetia_answer, times this. */
#define LUTETIA_UNIT {unit}
"""

PRECISION = """#include <float.h>
#if DBL_MANT_DIG < 53
#error "values are compared as doubles of 64 bits: build the model with --reading auto, which needs none"
#endif
"""
ENCODE = """
void lutetia_encode(const double values[LUTETIA_COLUMNS], input_t x[LUTETIA_INPUTS])
{
    int i;
    for (i = 0; i < LUTETIA_INPUTS; i++) {
        double value = values[SOURCE[i]];
        int first = START[i], count = START[i + 1] - first;
        x[i] = 0; /* missing, or a category that was never seen */
        if (value != value)
            continue;PART_OF
        if (IS_CATEGORY[i]) {
            if (value >= 0 && value < count && value == (int)value)
                x[i] = CODE[first + (int)value];
            continue;
        }
        x[i] = code_of(i, value);
    }
}
"""
PART_OF = """
        if (PART[i])
            value = part_of(value, PART[i]);"""


def has_columns(model: IntegerClassifier) -> bool:
    """Whether a model is of columns of data, whose values have to be encoded."""
    return hasattr(model.model, "encoding") and len(model.model.config.input_shape) == 1


def columns_files(model: IntegerClassifier) -> dict[str, str]:
    """The texts of columns.h, columns.c and rows.c."""
    parts, known = {} if model.columns else _codes(model), model.model.metadata
    texts = text_columns(known)
    n_plain = min((each.first for each in texts), default=model.model.n_columns)
    n = n_plain + len(texts)
    names = [*known.get("features", (f"x{number}" for number in range(n)))][:n_plain] + [each.name for each in texts]
    classes = [*known.get("classes", map(str, range(model.n_outputs)))] if model.n_outputs > 1 else [model.model.title or "value"]
    units = [known.get("units", {}).get(str(number), "") for number in range(n)]
    lists, categories = "", []
    for number in range(n):
        values = known.get("categories", {}).get(str(number))
        categories.append("0" if values is None else f"CATEGORIES{number}")
        lists += "" if values is None else f"static const char *const {categories[-1]}[] = {{{strings(values)}, 0}};\n"
    words = words_for_no_value(known)
    where = "floating point for columns.c alone" if model.columns else "floating point in comparisons only"
    about = title("A row of data as inputs of the program.").replace("no floating point", where)
    codes = "".join(array(name, values) for name, values in parts.items() if name != "EDGE")
    orders = [known.get("dates", {}).get(str(number), {}).get("order") for number in range(n)]
    numbers = ", ".join(str(0 if order is None else 1 + ORDERS.index(order)) for order in orders)
    dates = f"const int lutetia_dates[LUTETIA_COLUMNS] = {{{numbers}}};\n" + source("dates.c") if any(orders) else ""
    unit = "" if model.n_outputs > 1 else unit_text(model)
    encode = numbers_of_values(model) if model.columns else _encode_text(parts, bool(texts))
    program = "".join([
        about, '#include "columns.h"\n\n', PRECISION, "#include <math.h>\n\n" if dates or texts else "\n", FLASH, codes,
        lists,
        f"const char *const lutetia_columns[LUTETIA_COLUMNS] = {{{strings(names)}}};\n",
        f"const char *const lutetia_units[LUTETIA_COLUMNS] = {{{strings(units)}}};\n",
        f"const char *const *const lutetia_categories[LUTETIA_COLUMNS] = {{{', '.join(categories)}}};\n",
        f"const char *const lutetia_missing[] = {{{strings(words)}, 0}};\n",
        f"const char *const lutetia_classes[LUTETIA_OUTPUTS] = {{{strings(classes)}}};\n",
        dates,
        texts_source(texts) if texts else "",
        encode,
    ])  # fmt: skip
    sizes = "" if model.columns else define(LUTETIA_COLUMNS=n)
    sizes += define(LUTETIA_UNKNOWN_IS_MISSING=int(known.get("unknown") == "missing"))
    sizes += define(LUTETIA_VALUES=model.model.n_columns) if texts else ""
    told = (DATES if dates else "") + (TEXTS.format(count=len(texts)) if texts else "")
    encodes = NUMBERS if model.columns else ENCODES.format(values="VALUES" if texts else "COLUMNS")
    header = HEADER.format(begin=BEGIN, end=END, title=about, sizes=sizes, encode=encodes, more=told, unit=unit)
    rows = "".join(map(source, ("reading.c", "cells.c", *(["date_cells.c"] if dates else []), "values.c", "rows.c")))
    return {"columns.h": header, "columns.c": program, "rows.c": rows}


def _encode_text(parts: Mapping[str, Array], has_texts: bool) -> str:
    """The edges of values, and lutetia_encode."""
    edges = ", ".join(map(double, parts["EDGE"])) or "0"
    array_of_edges = f"static const double EDGE[{max(1, len(parts['EDGE']))}] = {{{edges}}};\n"
    code = ENCODE.replace("PART_OF", PART_OF if "PART" in parts else "").replace("COLUMNS", "VALUES" if has_texts else "COLUMNS")
    return "".join(["typedef double value_t;\n", array_of_edges, source("codes.c"), code])


def numbers_of_values(model: IntegerClassifier) -> str:
    """What a number of each column stands for, and lutetia_numbers."""
    readings = [column.reading for column in model.columns]
    ends = [(0, 2**column.bits - 1) if each is None else (each.domain.low, each.domain.high)
            for column, each in zip(model.columns, readings, strict=True)]  # fmt: skip
    numbers = {
        "ZERO": [0.0 if each is None else float(each.zero) for each in readings],
        "STEP": [1.0 if each is None else float(each.step) for each in readings],
        "LEAST": [float(low) for low, _ in ends],
        "MOST": [float(high) for _, high in ends],
    }
    texts = [f"static const double {name}[] = {{{', '.join(map(double, own))}}};\n" for name, own in numbers.items()]
    may_miss = np.array([int(column.valid) for column in model.columns])
    return "".join([*texts, array("MAY_MISS", may_miss) if may_miss.any() else "", source("numbers.c")])


def words_for_no_value(metadata: Mapping[str, Any]) -> list[str]:
    """The words that stand for no value, in small letters."""
    return [*sorted(MISSING_WORDS), *(word.lower() for word in metadata.get("missing", ()))]


def unit_text(model: IntegerClassifier) -> str:
    """What the number of a regression is multiplied by, and whether that is a logarithm."""
    is_log = model.model.loss.is_log
    what = "logarithm of the number that is predicted" if is_log else "number that is predicted"
    what = "score to sort by" if model.model.loss.is_ranking else what
    unit = UNIT.format(what=what, unit=double(float(model.graph.output_edge.scale[0])))
    return unit + "#define LUTETIA_LOG\n" if is_log else unit


def encoding_bytes(model: IntegerClassifier) -> int:
    """Bytes of the constants of lutetia_encode in columns.c; names can be left out by the linker."""
    parts, texts = _codes(model), text_columns(model.model.metadata)
    return (
        (texts_bytes(texts) if texts else 0)
        + 8 * len(parts["EDGE"])
        + sum(values.size * n_bytes(type_of(values)) for name, values in parts.items() if name != "EDGE")
    )


def _codes(model: IntegerClassifier) -> dict[str, Array]:
    """SOURCE, IS_CATEGORY [n_inputs], START [n_inputs + 1], EDGE and CODE: of an input of numbers its edges, and the code above
    each; of categories the code of each. Where there are dates, PART [n_inputs] is that which an input is."""
    encoding = model.model.encoding
    ranks, source_of = encoding.ranks.cpu().numpy(), encoding.source.cpu().numpy()
    asked = asked_edges(model)
    starts: list[int] = [0]
    edges: list[float] = []
    codes: list[int] = []
    for number, source_column in enumerate(source_of.tolist()):
        if ranks[number].any():
            names = model.model.metadata.get("categories", {}).get(str(source_column))
            kept = ranks[number] if names is None else ranks[number, : len(names)]
            codes += kept.tolist()
            edges += [0.0] * len(kept)
        else:
            codes += asked[number][0].tolist()
            edges += asked[number][1].tolist()
        starts.append(len(codes))
    parts = np.array([("", *DATE_PARTS).index(part) for part in encoding.parts])
    return {
        **({"PART": parts} if parts.any() else {}),
        "SOURCE": source_of,
        "IS_CATEGORY": ranks.any(1).astype(np.int64),
        "START": np.array(starts),
        "CODE": np.array(codes, np.int64),
        "EDGE": np.array(edges),
    }


def asked_edges(model: IntegerClassifier) -> list[tuple[Array, Array]]:
    """Of each input of numbers the edges that make a difference, float64 [edges], and before them the code above each, int64
    [edges]: all of one that is compared with another, else those of the constants that it is compared with."""
    left, right, constant = comparisons(model)
    compared = {*left[right >= 0].tolist(), *right[right >= 0].tolist()}
    found = []
    for number, edges in enumerate(model.model.encoding.edges.cpu().numpy()):
        own = edges[np.isfinite(edges)]
        wanted = np.arange(1, len(own) + 1) if number in compared else np.unique(constant[(left == number) & (right < 0)])
        wanted = wanted[(wanted >= 1) & (wanted <= len(own))]  # code > c: the value is above edge c - 1
        found.append((wanted + 1, own[wanted - 1]))
    return found


def comparisons(model: IntegerClassifier) -> list[Array]:
    """Left, right and constant of all comparisons of inputs, int64 [n] each: those of the tables, and of the intervals."""
    first, width = model.stages[0], model.half_width
    assert isinstance(first, TableStage)
    stages = [first] if width is None or width.stage is None else [first, width.stage]
    return [np.concatenate(parts) for parts in zip(*((each.left, each.right, each.constant) for each in stages), strict=True)]


def double(value: float) -> str:
    """A number that C reads as the same bits."""
    assert math.isfinite(value)
    return repr(float(value))
