"""Columns of text as a page reads them: see `page/texts.js`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lutetia.models import CHARACTER_RANGES, Tabular, TextColumn, gram_text, text_columns
from lutetia.precompute.integer.c_texts import folds, known_grams
from lutetia.precompute.integer.page_numbers import packed_numbers


def page_text(model: Tabular, text: TextColumn) -> dict[str, Any]:
    """A column of text: its encoded inputs and their edges, the words and pairs that it knows, what they weigh in each tally, and
    the encoded input that says whether each occurs, or -1."""
    encoded = {column: number for number, column in enumerate(model.encoding.source.tolist())}  # texts have one input each
    numbers = [encoded[column] for column in text.inputs]
    grams, weights, asked = known_grams(text)
    asked = np.array([-1 if column < 0 else encoded[column] for column in asked.tolist()], np.int64)
    edges = [[edge for edge in row if math.isfinite(edge)] for row in model.encoding.edges[numbers].tolist()]
    told = {
        "grams": grams,
        "weights": packed_numbers(weights),
        "asked": packed_numbers(asked),
        "tallies": numbers[: len(text.tallies)],
        "count": numbers[len(text.tallies)],
        "edges": edges,
    }
    return {"name": text.name, "inputs": numbers, "categories": [], "dates": None, "text": told}


def page_letters(model: Tabular) -> dict[str, Any]:
    """What characters are, the small letters of those in known words, by encoded input the column and the word that it is."""
    texts = text_columns(model.metadata)
    begins, kinds = np.array(CHARACTER_RANGES).T
    letters = sorted(folds(frozenset("".join({*each.grams, *each.words}) for each in texts)).items())
    codes = np.array(letters, np.int64).reshape(-1, 2).T
    packed = {"begins": begins, "kinds": kinds, "from": codes[0], "to": codes[1]}
    encoded = {column: number for number, column in enumerate(model.encoding.source.tolist())}
    words = {
        str(encoded[each.asked + at]): [each.name, f'"{gram_text(word)}"'] for each in texts for at, word in enumerate(each.words)
    }
    told = {name: packed_numbers(values) for name, values in packed.items()}
    return {"letters": told, "words": words}
