"""A whole-number model as an Arduino library: its C, the names of its classes, and a sketch that answers rows from Serial."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from lutetia._version import __version__
from lutetia.precompute.integer.c import c_files
from lutetia.precompute.integer.c_columns import unit_text
from lutetia.precompute.integer.c_numbers import number_ends, numbers_type
from lutetia.precompute.integer.c_text import plain, source, string
from lutetia.precompute.integer.c_windows import windows_of
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.pixels import has_patches

LONGEST_NAME = 63  # of a library
EXAMPLE = "AnswerRows"
PROPERTIES = """name={name}
version=1.0.0
author=Lutetia {lutetia}
maintainer=Lutetia {lutetia}
sentence={sentence}
paragraph={paragraph}
category=Data Processing
url=
architectures=*
includes={name}.h
"""
SENTENCE = "A model of lookup tables, in whole numbers."
PARAGRAPH = "No floating point, no heap, no multiplications in tables of data. On an AVR tables stay in flash."
HEADER = """/* {name}: {sentence}
   Made by lutetia {lutetia}. */
#ifndef LUTETIA_{upper}_H
#define LUTETIA_{upper}_H

#include <Arduino.h>

#include "{model}"
{unit}{names}
#endif
"""
NAMES = """
/* The name of a class, in flash. */
static inline const __FlashStringHelper *lutetia_class_name(int32_t answer)
{{
    switch (answer) {{
{cases}    default:
        return F("?");
    }}
}}
"""
README = """# {name}

An Arduino library, made by lutetia {lutetia}. {paragraph}

- Arduino IDE: put this folder into the `libraries` folder of your sketches, or install a .zip of it. Then open File,
  Examples, {name}, {example}.
- arduino-cli: `arduino-cli compile --library {name} --fqbn arduino:avr:uno {name}/examples/{example}`
- PlatformIO: put this folder into `lib`.

The example answers rows that come from Serial at 115200 baud: {expected}.
Wait for an answer before you send the next line: an Uno keeps 64 bytes.

## Licence

The tables in `src/model.c` are made of your data, and are yours. The program around them, the sketch and this text are parts of
Lutetia, under the Apache License 2.0: https://www.apache.org/licenses/LICENSE-2.0
"""
SKETCH = """/* Answers rows from Serial at 115200 baud: {expected}.
{told} */
#include <{name}.h>

typedef {kind} values_t;
typedef {number} number_t;
#define VALUES {count}
#define SMALLEST {low}
#define LARGEST {high}
#define EXPECTED {text}

"""
MISSING = """        if (c == '?' && !isNumber && !isNegative && count < VALUES) { /* no value */
            row[count++] = LUTETIA_MISSING;
            continue;
        }
"""


class Rows(NamedTuple):
    """What a sketch reads: the type of a value in C, how many there are, their ends, whether one may be missing, and in words."""

    kind: str
    n: int
    low: int
    high: int
    may_miss: bool
    text: str


def library_name(text: str) -> str:
    """A name that Arduino takes, of letters, digits and underscores."""
    plain_text = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "model"
    return f"lutetia_{plain_text}"[:LONGEST_NAME].rstrip("_")


def arduino_files(model: IntegerClassifier, name: str) -> dict[str, str]:
    """The files of a library of this name, by their places in its folder."""
    files, rows = c_files(model), _rows(model)
    known = {"name": name, "lutetia": __version__, "sentence": SENTENCE, "paragraph": PARAGRAPH, "example": EXAMPLE}
    has_signals = "signals.h" in files
    kept = ("model.c", "model.h", *(("signals.c", "signals.h") if has_signals else ()))
    sources = {f"src/{each}": files[each].replace(source("classifier.c"), "") for each in kept}
    unit = "" if has_signals or model.n_outputs > 1 or not hasattr(model.model, "loss") else unit_text(model)
    header = HEADER.format(
        **known, upper=name.upper(), model="signals.h" if has_signals else "model.h", unit=unit, names=_names(model)
    )
    manifest = {
        "name": name, "version": "1.0.0", "description": SENTENCE, "license": "Apache-2.0", "frameworks": "arduino",
        "platforms": "*", "headers": f"{name}.h",
    }  # fmt: skip
    return {
        "library.properties": PROPERTIES.format(**known),
        "library.json": json.dumps(manifest, indent=2) + "\n",
        "README.md": README.format(**known, expected=rows.text),
        f"src/{name}.h": header,
        **sources,
        f"examples/{EXAMPLE}/{EXAMPLE}.ino": _sketch(model, name, rows),
    }


def _names(model: IntegerClassifier) -> str:
    if model.n_outputs < 2:
        return ""
    classes = model.model.metadata.get("classes", map(str, range(model.n_outputs)))
    cases = "".join(f"    case {number}:\n        return F({string(str(each))});\n" for number, each in enumerate(classes))
    return NAMES.format(cases=cases)


def _rows(model: IntegerClassifier) -> Rows:
    """The rows of a model: pixels, samples of signals, numbers of columns, or its inputs as they are."""
    if has_patches(model):
        return Rows("sample_t", model.model.n_columns, 0, 255, False, _line(model.model.n_columns, "pixels", 0, 255))
    if (windows := windows_of(model)) is not None:
        low, high = windows.ends
        text = _line(len(windows.signals), "samples", low, high)
        return Rows("int32_t", len(windows.signals), low, high, False, f"{text}, and after {windows.length:,} lines answers")
    if model.columns:
        ends = [number_ends(column) for column in model.columns]
        low, high = min(least for least, _ in ends), max(most for _, most in ends)
        missing = numbers_type(model)[1]
        text = _line(len(ends), "numbers", low, high) + ("" if missing is None else ", or ? for none")
        return Rows("sample_t", len(ends), low, high, missing is not None, text)
    high = 2**model.input_bits - 1
    return Rows("input_t", model.n_inputs, 0, high, False, _line(model.n_inputs, "inputs", 0, high))


def _line(count: int, what: str, low: int, high: int) -> str:
    return f"{count:,} {what} a line, whole numbers from {low} to {high}"


def _sketch(model: IntegerClassifier, name: str, rows: Rows) -> str:
    told = "Put readings of your own sensor in their place."
    if model.columns or windows_of(model) is not None:
        told = f"What the numbers stand for is in {'model.h' if model.columns else 'signals.h'}."
    begin = SKETCH.format(
        name=name, expected=plain(rows.text), told=f"   {told}", kind=rows.kind, count=rows.n, text=string(rows.text),
        number="int32_t" if rows.high < 2**27 and rows.low > -(2**27) else "int64_t",
        low=f"({rows.low + 1} - 1)", high=rows.high,
    )  # fmt: skip
    body = source("sketch.ino").replace("MISSING", MISSING if rows.may_miss else "").replace("ANSWER", _answer(model))
    return begin + body


def _answer(model: IntegerClassifier) -> str:
    """What the sketch does with a row."""
    lines, x = [], "x"
    if windows_of(model) is not None:
        x = "lutetia_window"
        lines += ["if (!lutetia_push(values))", "    return; /* the window is not full */"]
    elif model.columns or has_patches(model):
        lines += ["static input_t x[LUTETIA_INPUTS];", "lutetia_encode(values, x);"]
    else:
        x = "values"
    lines += [f"const int32_t answer = lutetia_answer({x});"]
    if model.n_outputs > 1:
        lines += ["Serial.println(lutetia_class_name(answer));"]
    elif not hasattr(model.model, "loss"):
        lines += ["Serial.println(answer);"]
    elif model.model.loss.is_log:
        lines += ["Serial.println(exp(answer * LUTETIA_UNIT), 4);"]
    elif model.half_width is None:
        lines += ["Serial.println(answer * LUTETIA_UNIT, 4);"]
    else:
        lines += [
            f"const int32_t width = lutetia_half_width({x}); /* nine in ten numbers are as near as this */",
            "Serial.print(answer * LUTETIA_UNIT, 4);", 'Serial.print(F(" +- "));', "Serial.println(width * LUTETIA_UNIT, 4);",
        ]  # fmt: skip
    return "".join(f"    {line}\n" for line in lines)
