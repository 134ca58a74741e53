"""A whole-number model as one C file and its header, and the memory they need."""

from __future__ import annotations

from lutetia.precompute.integer import c_classifier, c_language
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.language import IntegerTransformer


def c_files(model: IntegerTransformer | IntegerClassifier) -> dict[str, str]:
    """model.c and model.h: `cc -std=c99 -O3 model.c -o run` makes a program that writes, or classifies."""
    return c_language.language_files(model) if isinstance(model, IntegerTransformer) else c_classifier.classifier_files(model)


def c_memory(model: IntegerTransformer | IntegerClassifier) -> dict[str, int]:
    """`flash_table_bytes` of constants and `ram_bytes` of state, by count."""
    return c_language.memory(model) if isinstance(model, IntegerTransformer) else c_classifier.memory(model)
