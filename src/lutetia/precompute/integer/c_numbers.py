"""lutetia_encode in C for readings of a sensor: the numbers of the columns as the inputs of a model, without floating point.

The edge of an input becomes the greatest number whose value is not above it. So the codes are those of the values that the
numbers stand for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia._shared.numbers import short_number, with_unit
from lutetia.errors import ArgumentError
from lutetia.models import value_columns
from lutetia.precompute.integer.c_columns import asked_edges
from lutetia.precompute.integer.c_text import array, define, n_bytes, plain, smallest, source, type_of

if TYPE_CHECKING:
    from lutetia.models import ColumnValues, Reading, Tabular
    from lutetia.precompute.integer.classifier import IntegerClassifier

Array = np.ndarray[Any, Any]
HEADER = """
{sizes}#define LUTETIA_ENCODES
#define LUTETIA_SAMPLE LUTETIA_COLUMNS
typedef {kind} sample_t;

/* A row of numbers as the inputs of lutetia_answer. What the number of each column stands for:
{told} */
void lutetia_encode(const sample_t numbers[LUTETIA_COLUMNS], input_t x[LUTETIA_INPUTS]);
"""
ENCODE = """
void lutetia_encode(const sample_t numbers[LUTETIA_COLUMNS], input_t x[LUTETIA_INPUTS])
{{
    int i;
    for (i = 0; i < LUTETIA_INPUTS; i++) {{
        sample_t number = numbers[SOURCE[i]];
#ifdef LUTETIA_MISSING
        if (number == LUTETIA_MISSING) {{
            x[i] = 0;
            continue;
        }}
#endif
{listed}        x[i] = code_of(i, number);
    }}
}}

"""
LISTED = """        if (IS_LISTED[i]) {{
            x[i] = ({unsigned})number < ({unsigned})(START[i + 1] - START[i]) ? CODE[START[i] + ({unsigned})number] : 0;
            continue;
        }}
"""


def numbers_header(model: IntegerClassifier) -> str:
    """What model.h says of lutetia_encode."""
    kind, missing = numbers_type(model)
    domains = [number_ends(column) for column in model.columns]
    low, high = min(least for least, _ in domains), max(most for _, most in domains)
    sizes = define(LUTETIA_COLUMNS=len(model.columns), LUTETIA_LEAST=low if missing is None else missing, LUTETIA_MOST=high)
    if missing is not None:
        sizes += f"#define LUTETIA_MISSING ({missing}) /* in place of a number that there is not */\n"
    return HEADER.format(sizes=sizes, kind=kind, told="\n".join(_column_lines(model)))


def numbers_text(model: IntegerClassifier) -> str:
    """The tables and the function of lutetia_encode."""
    parts, (kind, _) = _parts(model), numbers_type(model)
    unsigned = "u" + kind.removeprefix("u")
    tables = "".join(array(name, values, kind if name == "EDGE" else None) for name, values in parts.items())
    listed = LISTED.format(unsigned=unsigned) if "IS_LISTED" in parts else ""
    return f"{tables}typedef sample_t value_t;\n{source('codes.c')}{ENCODE.format(listed=listed)}"


def numbers_bytes(model: IntegerClassifier) -> tuple[int, int]:
    """Bytes of constants, and of a row of numbers."""
    kind, _ = numbers_type(model)
    flash = sum(values.size * n_bytes(kind if name == "EDGE" else type_of(values)) for name, values in _parts(model).items())
    return flash, n_bytes(kind) * len(model.columns)


def number_columns(model: Tabular, bits: int | None, readings: Mapping[str, Reading]) -> list[ColumnValues]:
    """How a program is given the columns of a model; an error for a model whose rows are no whole numbers, or that takes them
    already."""
    for kind, why in (
        ("texts", "reads texts, which are no numbers"),
        ("windows", "takes windows of signals, whole numbers already"),
    ):
        if model.metadata.get(kind):
            raise ArgumentError(f"the model {why}: build it for C without readings")
    if model.patches is not None:
        raise ArgumentError(
            "the model counts patterns in images, whose pixels are whole numbers already: build it for C without readings"
        )
    return value_columns(model, bits, readings)


def number_ends(column: ColumnValues) -> tuple[int, int]:
    """The least and the greatest number of a column."""
    if column.reading is None:
        return 0, 2**column.bits - 1
    domain = column.reading.domain
    return domain.low, domain.high


def numbers_type(model: IntegerClassifier) -> tuple[str, int | None]:
    """The type of a number, and the number for a missing one where a column had missing values in training."""
    ends = [number_ends(column) for column in model.columns]
    low = min([least for least, _ in ends] + _parts(model)["EDGE"].tolist())
    missing = low - 1 if any(column.valid for column in model.columns) else None
    return smallest(low if missing is None else missing, max(most for _, most in ends)), missing


def values_of(column: ColumnValues, numbers: Array) -> Array:
    """What numbers of a column stand for, as the nearest float64."""
    if column.reading is None:
        return numbers.astype(np.float64)
    return np.array([float(column.reading.zero + column.reading.step * each) for each in numbers.tolist()])


def _parts(model: IntegerClassifier) -> dict[str, Array]:
    """SOURCE [n_inputs], START [n_inputs + 1], EDGE and CODE: of an input its edges in numbers and the code above each, or where
    it is listed, which IS_LISTED [n_inputs] says, the code of each number."""
    encoding = model.model.encoding
    ranks, source_of = encoding.ranks.cpu().numpy(), encoding.source.cpu().numpy()
    starts, edges, codes, listed = [0], [], [], []
    for number, (at, (asked, own)) in enumerate(zip(source_of.tolist(), asked_edges(model), strict=True)):
        reading = model.columns[at].reading
        listed.append(reading is None or bool(ranks[number].any()))
        if listed[-1]:
            every = _listed(model, number, at)
            codes += every
            edges += [0] * len(every)
        else:
            assert reading is not None
            codes += asked.tolist()
            edges += [reading.last(edge) for edge in own.tolist()]
        starts.append(len(codes))
    more = {"IS_LISTED": np.array(listed, np.int64)} if any(listed) else {}
    return {"SOURCE": source_of, "START": np.array(starts), "EDGE": np.array(edges, np.int64), "CODE": np.array(codes), **more}


def _listed(model: IntegerClassifier, number: int, column: int) -> list[int]:
    """The codes of an input for the numbers of its column, up to the last that has one."""
    own = model.columns[column]
    low, high = number_ends(own)
    values = values_of(own, np.arange(low, high + 1))
    rows = np.repeat(values[:, None], model.model.n_columns, 1)
    codes = model.model.encoding.codes(rows)[number].astype(np.int64)
    return np.trim_zeros(codes, "b").tolist()


def _column_lines(model: IntegerClassifier) -> Sequence[str]:
    if len(model.model.config.input_shape) > 1:
        return [" *   pixels from 0 to 255, channel by channel, row by row"]
    known = model.model.metadata
    lines = []
    for at, column in enumerate(model.columns):
        names = known.get("categories", {}).get(str(at))
        if column.reading is None:
            text = ", ".join(f"{number} {name}" for number, name in enumerate(names or ()))
        else:
            zero, step = float(column.reading.zero), float(column.reading.step)
            low, high = map(float, column.reading.ends)
            text = f"{short_number(zero, 6)} + " if zero else ""
            text += f"{short_number(step, 6)} * number" if step != 1 else "the number"
            text += f", {short_number(low, 6)} to {with_unit(high, known.get('units', {}).get(str(at)))} ({column.reading.text})"
        more = ", LUTETIA_MISSING for no value" if column.valid else ""
        lines.append(f" *   {at} {plain(column.name)}: {plain(text)}{more}")
    return lines
