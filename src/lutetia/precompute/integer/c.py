"""A whole-number model as one C file and its header, and the memory they need."""

from __future__ import annotations

from lutetia.precompute.integer import c_classifier, c_columns, c_language
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.language import IntegerTransformer


def c_files(model: IntegerTransformer | IntegerClassifier) -> dict[str, str]:
    """model.c and model.h: `cc -std=c99 -O3 model.c -o run` makes a program that writes, or classifies. Of a model of columns
    also columns.c, columns.h and rows.c, which take values in their own units."""
    if isinstance(model, IntegerTransformer):
        return c_language.language_files(model)
    return c_classifier.classifier_files(model) | (c_columns.columns_files(model) if c_columns.has_columns(model) else {})


def c_memory(model: IntegerTransformer | IntegerClassifier) -> dict[str, int]:
    """`flash_table_bytes` of constants and `ram_bytes` of state, by count; `flash_encoding_bytes` of columns.c."""
    if isinstance(model, IntegerTransformer):
        return c_language.memory(model)
    extra = {"flash_encoding_bytes": c_columns.encoding_bytes(model)} if c_columns.has_columns(model) else {}
    return c_classifier.memory(model) | extra
