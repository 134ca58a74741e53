"""A whole-number classifier as C99: for each stage its tables and one function, then the fixed program `c/classifier.c`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.precompute.integer.c_numbers import numbers_bytes, numbers_header, numbers_text
from lutetia.precompute.integer.c_pixels import pixels_bytes, pixels_header, pixels_text
from lutetia.precompute.integer.c_text import BEGIN, END, INCLUDES, array, define, n_bytes, smallest, source, title, type_of
from lutetia.precompute.integer.classifier import IntegerClassifier, LinearStage, TableStage
from lutetia.precompute.integer.pixels import has_patches
from lutetia.precompute.integer.scales import signed_bits

Array = np.ndarray[Any, Any]

HEADER = """{title}#ifndef LUTETIA_MODEL_H
#define LUTETIA_MODEL_H

#include <stdint.h>

{begin}
{sizes}
typedef {kind} input_t; /* 0 to LUTETIA_LARGEST */

/* {says} */
int32_t lutetia_answer(const input_t x[LUTETIA_INPUTS]);
{width}{pixels}{end}"""

WIDTH_HEADER = """
/* How far the truth is from lutetia_answer(x) at most, in nine of ten cases, in the same units. */
#define LUTETIA_INTERVALS
int32_t lutetia_half_width(const input_t x[LUTETIA_INPUTS]);
"""
LOG_WIDTH_HEADER = """
/* lutetia_answer(x) is the logarithm of a number, in units of the tables. In nine of ten cases the truth is within this of the
 * number, times LUTETIA_WIDTH_UNIT, and never below 0. */
#define LUTETIA_INTERVALS
#define LUTETIA_WIDTH_UNIT {unit}
int32_t lutetia_half_width(const input_t x[LUTETIA_INPUTS]);
"""
WIDTH = """int32_t lutetia_half_width(const input_t x[LUTETIA_INPUTS])
{{
    static int32_t y[1];
    stage{number}(x, y);
    return ((y[0] < {least} ? {least} : y[0]) + {half}) >> {shift};
}}

"""
SAME_WIDTH = """int32_t lutetia_half_width(const input_t x[LUTETIA_INPUTS])
{{
    (void)x;
    return {least};
}}

"""

TIMES = """/* A product by doubling and adding. */
static {sum} times({sum} x, int32_t weight)
{{
    {sum} product = 0;
    uint32_t left = weight < 0 ? 0u - (uint32_t)weight : (uint32_t)weight;
    while (left) {{
        if (left & 1)
            product += x;
        left >>= 1;
        if (left)
            x += x;
    }}
    return weight < 0 ? -product : product;
}}

"""


@dataclass(frozen=True)
class StageText:
    """A stage in C: its arrays and its function, the bytes of the arrays, and the bytes the function needs while it runs."""

    text: str
    flash: int
    ram: int
    out: str  # the type of its sums


def classifier_files(model: IntegerClassifier) -> dict[str, str]:
    """The text of model.c and model.h."""
    parts, width = _stages(model), _width(model)
    _check_number(model, parts)
    n_outputs = [len(stage.bias) for stage in model.stages]
    steps = []
    for number, (part, count) in enumerate(zip(parts, n_outputs, strict=True)):
        before = f"y{number - 1}" if number else "x"
        steps.append(f"    static {part.out} y{number}[{count}];\n    stage{number}({before}, y{number});\n")
    declared = "".join(step.split("\n")[0] + "\n" for step in steps)
    called = "".join(step.split("\n")[1] + "\n" for step in steps)
    last = f"y{len(parts) - 1}"
    if n_outputs[-1] > 1:
        declared += "    int c, best = 0;\n"
        called += (
            f"    for (c = 1; c < {n_outputs[-1]}; c++)\n        best = {last}[c] > {last}[best] ? c : best;\n    return best;\n"
        )
    else:
        called += f"    return {last}[0];\n"
    linear = [part.out for part, stage in zip(parts, model.stages, strict=True) if isinstance(stage, LinearStage)]
    widest = "int64_t" if "int64_t" in linear else "int32_t"
    program = "".join([
        title("A classifier of lookup tables: the tables, the network, a program that answers."),
        INCLUDES,
        TIMES.format(sum=widest) if linear else "",
        *(part.text for part in parts),
        "int32_t lutetia_answer(const input_t x[LUTETIA_INPUTS])\n{\n", declared, called, "}\n\n",
        width.text if width else "",
        pixels_text(model) if has_patches(model) else numbers_text(model) if model.columns else "",
        source("classifier.c"),
    ])  # fmt: skip
    return {"model.c": program, "model.h": _header(model)}


def memory(model: IntegerClassifier) -> dict[str, int]:
    """Bytes of constant tables, and of memory used to answer a sample, the sample included."""
    parts, width = _stages(model), _width(model)
    sums = sum(n_bytes(part.out) * len(stage.bias) for part, stage in zip(parts, model.stages, strict=True))
    given = model.n_inputs * n_bytes(_input_type(model))
    more = [] if width is None else [width]
    flash, ram = pixels_bytes(model) if has_patches(model) else numbers_bytes(model) if model.columns else (0, 0)
    return {
        "flash_table_bytes": flash + sum(part.flash for part in [*parts, *more]),
        "ram_bytes": ram + given + sums + sum(n_bytes(part.out) for part in more) + max(part.ram for part in [*parts, *more]),
    }


def _input_type(model: IntegerClassifier) -> str:
    return smallest(0, 2**model.input_bits - 1)


def _header(model: IntegerClassifier) -> str:
    sizes = define(LUTETIA_INPUTS=model.n_inputs, LUTETIA_LARGEST=2**model.input_bits - 1, LUTETIA_OUTPUTS=model.n_outputs)
    says = (
        "The class of a sample, the lowest of equals." if model.n_outputs > 1 else "The sum of a sample, in units of the tables."
    )
    about = title("A classifier of lookup tables: whole numbers in, a class out.")
    width = "" if (own := model.half_width) is None else WIDTH_HEADER
    width = LOG_WIDTH_HEADER.format(unit=repr(own.unit)) if own is not None and own.is_log else width
    pixels = pixels_header(model) if has_patches(model) else numbers_header(model) if model.columns else ""
    return HEADER.format(
        begin=BEGIN, end=END, title=about, sizes=sizes, kind=_input_type(model), says=says, width=width, pixels=pixels
    )


def _check_number(model: IntegerClassifier, parts: list[StageText]) -> None:
    """Refuse numbers and intervals that do not fit what the functions return."""
    if model.n_outputs == 1 and parts[-1].out == "int64_t":
        bits = model.stages[-1].bits
        raise ArgumentError(f"the sum of the tables takes {bits} bits, expected at most 32 in C: use fewer weight bits")
    if (width := model.half_width) is not None:
        reach = width.least if width.stage is None else int(_reach(width.stage)[0])
        if width.shift < 0 or signed_bits(reach) > 32:
            raise ArgumentError("the intervals of the model are too wide for its unit in C: use fewer weight bits")


def _width(model: IntegerClassifier) -> StageText | None:
    """The half width of intervals in C: a stage of its own, or one number."""
    width, number = model.half_width, len(model.stages)
    if width is None:
        return None
    if width.stage is None:
        return StageText(SAME_WIDTH.format(least=width.least), 0, 0, "int32_t")
    stage = _tables(number, width.stage, _input_type(model), "int32_t")
    text = stage.text + WIDTH.format(number=number, least=width.least, half=width.half, shift=width.shift)
    return replace(stage, text=text)


def _stages(model: IntegerClassifier) -> list[StageText]:
    made = []
    kind, largest = _input_type(model), np.full(model.n_inputs, 2**model.input_bits - 1, dtype=np.int64)
    for number, stage in enumerate(model.stages):
        if isinstance(stage, LinearStage):
            largest = np.abs(stage.bias) + np.abs(stage.weight) @ largest
            text = _linear(number, stage, kind, _sum_type(largest))
        else:
            largest = _reach(stage)
            text = _tables(number, stage, kind, _sum_type(largest, 16))
        made.append(text)
        kind = text.out
    return made


def _sum_type(largest: Array, least: int = 32) -> str:
    bits = signed_bits(int(largest.max()))
    return next(f"int{size}_t" for size in (16, 32, 64) if max(bits, least) <= size)


def _reach(stage: TableStage) -> Array:
    """The largest magnitude of each sum, partial sums included: int64 [n_outputs]."""
    total = np.abs(stage.bias)
    for contents, targets in zip(stage.contents, stage.targets, strict=True):
        np.add.at(total, targets, contents.max(0))
    return total


def _linear(number: int, stage: LinearStage, kind: str, out: str) -> StageText:
    n, m = stage.weight.shape
    arrays = {f"WEIGHT{number}": stage.weight, f"BIAS{number}": stage.bias}
    code = f"""static void stage{number}(const {kind} *x, {out} *y)
{{
    int o, i;
    for (o = 0; o < {n}; o++) {{
        y[o] = BIAS{number}[o];
        for (i = 0; i < {m}; i++)
            y[o] += ({out})times(x[i], WEIGHT{number}[o][i]);
    }}
}}

"""
    return _stage_text(arrays, code, 0, out)


def _tables(number: int, stage: TableStage, kind: str, out: str) -> StageText:
    """A lookup compares as it goes, or reads comparisons that were made before: whichever takes less flash."""
    shared, direct = _shared_bits(number, stage), _own_bits(number, stage)
    bits = shared if _flash(shared.arrays) < _flash(direct.arrays) else direct
    rows, more = _rows(number, stage, out)
    n_lookups, k = stage.lanes.shape
    arrays = bits.arrays | more
    flip = ""
    if stage.flip.any():
        arrays[f"FLIP{number}"] = stage.flip
        flip = f"        index ^= FLIP{number}[u];\n"
    arrays[f"BIAS{number}"] = stage.bias
    index = "unsigned" if k <= 16 else "unsigned long"  # which has 16 bits at least
    code = f"""static void stage{number}(const {kind} *x, {out} *y)
{{
{bits.start}{rows.start}    int {bits.counters}o, u, r;
{bits.before}    for (o = 0; o < {len(stage.bias)}; o++)
        y[o] = ({out})BIAS{number}[o];
    for (u = 0; u < {n_lookups}; u++) {{
        {index} index = 0;
{bits.first}        for (r = 0; r < {k}; r++{bits.step})
            index = index << 1 | ({index})({bits.bit});
{flip}{rows.body}    }}
}}

"""
    return _stage_text(arrays, code, bits.ram, out)


@dataclass(frozen=True)
class _Bits:
    """Where the bits of an index come from: arrays, declarations, what is done before all lookups, before each, and for a bit."""

    arrays: dict[str, Array]
    start: str
    counters: str
    before: str
    first: str
    step: str
    bit: str
    ram: int


def _flash(arrays: dict[str, Array]) -> int:
    return sum(values.size * n_bytes(type_of(values)) for values in arrays.values())


def _own_bits(number: int, stage: TableStage) -> _Bits:
    """Every lookup has its comparisons beside each other: an input, and what it is compared with."""
    lanes = stage.lanes
    is_pair = stage.right[lanes] >= 0
    asked = np.stack([stage.left[lanes], np.where(is_pair, stage.right[lanes], stage.constant[lanes])], 2)
    arrays = {f"ASKED{number}": asked.reshape(-1)}
    start = f"    const LUTETIA_FLASH {type_of(asked)} *asked = ASKED{number};\n"
    first, right, step = "", "x[asked[1]]" if is_pair.all() else "asked[1]", ", asked += 2"
    if is_pair.any() and not is_pair.all():
        arrays[f"PAIRS{number}"] = (is_pair << np.arange(lanes.shape[1])).sum(1)
        first = f"        {type_of(arrays[f'PAIRS{number}'])} pairs = PAIRS{number}[u]; /* whether a bit compares two inputs */\n"
        right, step = "(pairs & 1 ? x[asked[1]] : asked[1])", step + ", pairs >>= 1"
    return _Bits(arrays, start, "", "", first, step, f"x[asked[0]] > {right}", 0)


def _shared_bits(number: int, stage: TableStage) -> _Bits:
    """All comparisons are made first, each once: those of inputs with each other, then those with constants."""
    constant = stage.right < 0
    order = np.argsort(constant, kind="stable")
    lanes = np.argsort(order, kind="stable")[stage.lanes]
    pairs, n_bits = int((~constant).sum()), len(order)
    arrays = {
        f"LEFT{number}": stage.left[order], f"RIGHT{number}": stage.right[order[:pairs]],
        f"CONSTANT{number}": stage.constant[order[pairs:]], f"LANES{number}": lanes.reshape(-1),
    }  # fmt: skip
    compare = f"        if (x[LEFT{number}[i]] > %s)\n            bits[i >> 3] = (uint8_t)(bits[i >> 3] | 1 << (i & 7));\n"
    before = "    memset(bits, 0, sizeof bits);\n"
    if pairs:
        before += f"    for (i = 0; i < {pairs}; i++) {{\n{compare % f'x[RIGHT{number}[i]]'}    }}\n"
    if pairs < n_bits:
        before += f"    for (i = {pairs}; i < {n_bits}; i++) {{\n{compare % f'CONSTANT{number}[i - {pairs}]'}    }}\n"
    start = f"    static uint8_t bits[{n_bits // 8 + 1}];\n    const LUTETIA_FLASH {type_of(lanes)} *lane = LANES{number};\n"
    bit = "bits[*lane >> 3] >> (*lane & 7) & 1"
    return _Bits(arrays, start, "i, ", before, "", ", lane++", bit, n_bits // 8 + 1)


@dataclass(frozen=True)
class _Rows:
    """How a row is added: declarations of pointers, and what is done for each lookup."""

    start: str
    body: str


def _rows(number: int, stage: TableStage, out: str) -> tuple[_Rows, dict[str, Array]]:
    """Votes of one bit packed by eight; whole rows where most sums are reached; columns and their targets elsewhere."""
    n, n_outputs = len(stage.contents), len(stage.bias)
    widest = max((int(contents.max()) for contents in stage.contents), default=0)
    reached = sum(len(targets) for targets in stage.targets)
    if widest <= 1 and all(len(targets) == 1 for targets in stage.targets):
        keys, starts = _shared([contents[:, 0] for contents in stage.contents])
        packed = np.stack([np.packbits(contents.astype(np.uint8), bitorder="little") for contents in keys])
        arrays = {f"VOTES{number}": packed, f"TABLE{number}": starts, f"TARGET{number}": np.concatenate(stage.targets)}
        vote = f"VOTES{number}[{_table(number, starts)}][index >> 3] >> (index & 7) & 1"
        return _Rows("", f"        y[TARGET{number}[u]] = ({out})(y[TARGET{number}[u]] + ({vote}));\n"), arrays
    first = min((int(targets.min(initial=n_outputs)) for targets in stage.targets), default=0)
    span = (
        max((int(targets.max(initial=0)) for targets in stage.targets), default=0) + 1 - first
    )  # of two classes only one is added to
    if 2 * reached >= n * span and all(len(set(each.tolist())) == len(each) for each in stage.targets):
        pairs = zip(stage.contents, stage.targets, strict=True)
        keys, starts = _shared([_spread(contents, targets - first, span) for contents, targets in pairs])
        rows = np.stack(keys) if keys else np.zeros((1, 2, span), np.int64)
        return (
            _one_number(number, rows[:, :, 0], starts, f"y[{first}]", out)
            if span == 1
            else (_whole_rows(number, rows, starts, f"y[o + {first}]" if first else "y[o]", out))
        )
    keys, starts = _shared([np.ascontiguousarray(contents.T) for contents in stage.contents])
    offsets = np.cumsum([0, *(each.size for each in keys)])
    arrays = {
        f"COLUMNS{number}": np.concatenate([each.reshape(-1) for each in keys]),
        f"START{number}": offsets[:-1][starts],
        f"COUNT{number}": np.array([len(targets) for targets in stage.targets]),
        f"TARGETS{number}": np.concatenate(stage.targets),
    }
    k, kind = stage.lanes.shape[1], type_of(arrays[f"COLUMNS{number}"])
    body = f"""        const LUTETIA_FLASH {kind} *column = COLUMNS{number} + START{number}[u] + index;
        for (o = 0; o < COUNT{number}[u]; o++, column += {2**k})
            y[*target] = ({out})(y[*target] + *column), target++;
"""
    return _Rows(f"    const LUTETIA_FLASH {type_of(arrays[f'TARGETS{number}'])} *target = TARGETS{number};\n", body), arrays


def _whole_rows(number: int, rows: Array, starts: Array, sum_of: str, out: str) -> tuple[_Rows, dict[str, Array]]:
    """Rows of several numbers [n_tables, 2**k, n], those of four bits two to a byte, the first in the lower half."""
    n, value = rows.shape[2], "row[o]"
    if rows.max(initial=0) < 16:
        even = np.concatenate([rows, np.zeros((*rows.shape[:2], n % 2), dtype=np.int64)], 2)
        rows, value = even[:, :, ::2] | even[:, :, 1::2] << 4, "(row[o >> 1] >> (o & 1 ? 4 : 0) & 15)"
    body = f"""        const LUTETIA_FLASH {type_of(rows)} *row = ROWS{number}[{_table(number, starts)}][index];
        for (o = 0; o < {n}; o++)
            {sum_of} = ({out})({sum_of} + {value});
"""
    return _Rows("", body), {f"ROWS{number}": rows, f"TABLE{number}": starts}


def _one_number(number: int, rows: Array, starts: Array, sum_of: str, out: str) -> tuple[_Rows, dict[str, Array]]:
    """Rows of one number [n_tables, 2**k], the same."""
    table = f"ROWS{number}[{_table(number, starts)}]"
    value = f"{table}[index]"
    if rows.max(initial=0) < 16 and rows.shape[1] > 1:
        rows, value = rows[:, ::2] | rows[:, 1::2] << 4, f"({table}[index >> 1] >> (index & 1 ? 4 : 0) & 15)"
    return _Rows("", f"        {sum_of} = ({out})({sum_of} + {value});\n"), {f"ROWS{number}": rows, f"TABLE{number}": starts}


def _table(number: int, starts: Array) -> str:
    """The table of a lookup: of its own, or one that is shared."""
    return "u" if np.array_equal(starts, np.arange(len(starts))) else f"TABLE{number}[u]"


def _shared(tables: list[Array]) -> tuple[list[Array], Array]:
    """Tables without their equals, and the number of each: int64 [n]."""
    known: dict[tuple[Any, ...], int] = {}
    kept: list[Array] = []
    numbers = []
    for table in tables:
        key = (table.shape, table.tobytes())
        if key not in known:
            known[key] = len(kept)
            kept.append(table)
        numbers.append(known[key])
    return kept, np.array(numbers, dtype=np.int64)


def _spread(contents: Array, targets: Array, n_outputs: int) -> Array:
    rows = np.zeros((len(contents), n_outputs), dtype=np.int64)
    rows[:, targets] = contents
    return rows


def _stage_text(arrays: dict[str, Array], code: str, ram: int, out: str) -> StageText:
    used = {name: values for name, values in arrays.items() if values.size and name in code}
    flash = sum(values.size * n_bytes(type_of(values)) for values in used.values())
    return StageText("".join(array(name, values) for name, values in used.items()) + "\n" + code, flash, ram, out)
