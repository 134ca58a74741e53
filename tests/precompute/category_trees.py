"""A model of imported trees that ask for sets of categories: words, and whole numbers."""

from __future__ import annotations

import numpy as np

from lutetia.integrations.trees import Ensemble, to_tabular
from lutetia.integrations.trees.ensemble import Tree, choice, numbers
from lutetia.models import Tabular

WORDS, CODES = ["red", "dark, blue", "green", "grey"], [0, 2, 5, 6]


def category_trees() -> Tabular:
    """Two trees of a number, words, and codes. Words that are not known go where missing ones go; other codes go left, missing
    ones right."""
    words = choice(1, [0, 2], len(WORDS), goes_right=False, others=(True, True))
    codes = choice(2, [1, 3], len(CODES), goes_right=True, others=(True, False))
    trees = [
        Tree([words, codes, None, None, None], [1, 2, 0, 0, 0], [4, 3, 0, 0, 0], _leaves([0, 0, 2, -3, 5]), 0),
        Tree([numbers(0, 1.5, True), words, None, None, None], [1, 2, 0, 0, 0], [4, 3, 0, 0, 0], _leaves([0, 0, 1, 4, -2]), 0),
    ]
    categories = {1: WORDS, 2: CODES}
    spans = [(0.0, 7.0), (0.0, 3.0), (0.0, 6.0)]
    ensemble = Ensemble("any", trees, 3, np.array([0.25]), "regression", spans=spans, categories=categories)
    model = to_tabular(ensemble, ["size", "colour", "code"], missing="exact").model
    model.metadata |= {"decimals": {"0": 0, "1": 0, "2": 0}, "empty": [0, 1, 2]}
    return model


def by_hand(size: float, colour: str | None, code: float) -> float:
    """What the trees say."""
    left = colour in ("red", "green")
    first = (-3 if np.isnan(code) or code in (2, 6) else 2) if left else 5
    return 0.25 + first + (-2 if np.isnan(size) or size > 1.5 else 1 if left else 4)


def every_row() -> list[tuple[float, str | None, float]]:
    """All kinds of values of the columns."""
    return [
        (size, colour, code)
        for size in (0.0, 1.0, 2.0, 7.0, np.nan)
        for colour in (*WORDS, None)
        for code in (*map(float, CODES), 1.0, 7.0, np.nan)
    ]


def as_inputs(rows: list[tuple[float, str | None, float]]) -> np.ndarray:
    """Rows as inputs of the model, float64 [n, 3]."""
    return np.array([(size, np.nan if word is None else WORDS.index(word), code) for size, word, code in rows])


def _leaves(values: list[float]) -> np.ndarray:
    return np.array(values, float)[:, None]
