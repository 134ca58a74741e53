"""Pieces of C: arrays of numbers in the smallest type that holds them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import numpy as np

from lutetia._version import __version__

LINE = 130
# Around what a header declares, so that C++ finds it.
BEGIN = """#ifdef __cplusplus
extern "C" {
#endif
"""
END = """
#ifdef __cplusplus
}
#endif
#endif
"""
TYPES = [(-(2**7), 2**7, "int8_t"), (-(2**15), 2**15, "int16_t"), (-(2**31), 2**31, "int32_t"), (-(2**63), 2**63, "int64_t")]
# On AVR constants would be copied to RAM. Elsewhere the word is nothing.
FLASH = """#ifndef LUTETIA_FLASH
#ifndef __AVR__
#define LUTETIA_FLASH
#elif defined(__FLASH) && !defined(__STRICT_ANSI__)
#define LUTETIA_FLASH __flash
#else
#error "avr-gcc keeps tables in flash with -std=gnu99, expected that option"
#endif
#endif

"""
# A compiler without a C library has no <string.h>; the caller then brings these functions.
INCLUDES = f"""#include "model.h"

{FLASH}#ifndef LUTETIA_NO_MAIN
#include <stdio.h>
#endif
#if __STDC_HOSTED__
#include <string.h>
#else
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int value, size_t n);
#endif

"""
UNSIGNED = [(0, 2**8, "uint8_t"), (0, 2**16, "uint16_t"), (0, 2**32, "uint32_t"), (0, 2**63, "int64_t")]


def smallest(low: int, high: int) -> str:
    """The smallest integer type that holds both ends, without a sign where none is needed."""
    return next(name for least, past, name in (UNSIGNED if low >= 0 else TYPES) if least <= low and high < past)


def n_bytes(kind: str) -> int:
    """The size of a type."""
    return int(kind.strip("uint_")) // 8


def type_of(values: np.ndarray[Any, Any]) -> str:
    """The smallest type of an array."""
    return smallest(int(values.min(initial=0)), int(values.max(initial=0)))


def array(name: str, values: np.ndarray[Any, Any], kind: str | None = None) -> str:
    """`static const` of an array, in flash, of its own smallest type by default; an empty one gets one zero, as C requires."""
    values = values if values.size else np.zeros((1,) * values.ndim, dtype=np.int64)
    sizes = "".join(f"[{size}]" for size in values.shape)
    return f"static const LUTETIA_FLASH {kind or type_of(values)} {name}{sizes} = {_braces(values)};\n"


def define(**values: int) -> str:
    """`#define` lines."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def strings(texts: Iterable[object]) -> str:
    """Strings of C, with commas between them."""
    return ", ".join(string(str(text)) for text in texts)


def string(text: str) -> str:
    """A string of C in UTF-8; what is not plain is written as octal numbers of three digits."""
    plain = (chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode())
    return '"' + "".join(plain) + '"'


def plain(text: str) -> str:
    """A text in a comment."""
    return "".join(letter if letter.isprintable() else "?" for letter in text).replace("*/", "* /").replace("??/", "?? /")


def source(name: str) -> str:
    """A file of C of this package."""
    return files("lutetia.precompute.integer").joinpath("c", name).read_text(encoding="utf-8")


def title(about: str) -> str:
    """The first lines of a file."""
    return f"/* {about}\n   Made by lutetia {__version__}. C99, no floating point, no heap. */\n"


def _braces(values: np.ndarray[Any, Any]) -> str:
    if values.ndim > 1:
        return "{" + ",\n".join(_braces(part) for part in values) + "}"
    lines, line = [], ""
    for number in values.tolist():
        text = f"{number},"
        if len(line) + len(text) > LINE:
            lines.append(line)
            line = ""
        line += text
    return "{" + "\n".join([*lines, line.rstrip(",")]) + "}"
