"""A whole-number model as one C file and its header, and the memory they need."""

from __future__ import annotations

from lutetia.precompute.integer import c_classifier, c_columns, c_language, c_windows
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.language import IntegerTransformer


def c_files(model: IntegerTransformer | IntegerClassifier) -> dict[str, str]:
    """model.c and model.h: `cc -std=c99 -O3 model.c -o run` makes a program that writes, or classifies. Of a model of columns
    also columns.c, columns.h and rows.c, which take values in their own units, or make numbers of these where model.c takes
    numbers; of windows of signals signals.c, signals.h and
    recording.c, which take samples."""
    if isinstance(model, IntegerTransformer):
        return c_language.language_files(model)
    if c_windows.windows_of(model) is not None:
        return c_classifier.classifier_files(model) | c_windows.windows_files(model)
    return c_classifier.classifier_files(model) | (c_columns.columns_files(model) if c_columns.has_columns(model) else {})


def c_memory(model: IntegerTransformer | IntegerClassifier) -> dict[str, int]:
    """`flash_table_bytes` of constants and `ram_bytes` of state, by count; `flash_encoding_bytes` of columns.c, or of
    signals.c with `ram_window_bytes` of samples."""
    if isinstance(model, IntegerTransformer):
        return c_language.memory(model)
    if c_windows.windows_of(model) is not None:
        return c_classifier.memory(model) | c_windows.windows_memory(model)
    is_apart = c_columns.has_columns(model) and not model.columns
    extra = {"flash_encoding_bytes": c_columns.encoding_bytes(model)} if is_apart else {}
    return c_classifier.memory(model) | extra
