"""Models of unusual rows: two classes, "usual" and "unusual", and how rare scores are.

The tables of such a model add up to nothing for the first class; for the second to how unusual a row is, above 0 where it is to
be flagged. `metadata["unusual"]` says what was seen of rows that the fit did not see:

share    the part of such rows that is flagged
rows     how many there were
levels   the scores that the parts `PARTS` of them are at or below
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from lutetia.errors import fail

Array = np.ndarray[Any, Any]
TASK = "unusual"
CLASSES = ("usual", "unusual")
PARTS = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 1.0)
MOST_SHARE = 0.5


def finds_unusual(metadata: Mapping[str, Any]) -> bool:
    """Whether a model finds unusual rows, by its metadata."""
    return metadata.get("task") == TASK


def levels_of(scores: Array, share: float) -> dict[str, Any]:
    """What metadata says of the scores [n] of rows that were not fitted."""
    return {"share": share, "rows": len(scores), "levels": np.quantile(scores, PARTS).tolist()}


def rarity(metadata: Mapping[str, Any], scores: Array) -> Array:
    """The part of usual rows that are less unusual than each score [n], float64 [n], between the levels by straight lines."""
    return np.interp(scores, metadata["unusual"]["levels"], PARTS)


def rarity_text(part: float, rows: int) -> str:
    """How rare a score is: "more unusual than 99.7% of usual rows"."""
    if part >= 1:
        return f"more unusual than all {rows:,} usual rows"
    least = 0 if part < 0.99 else 1 if part < 0.999 else 2
    told = math.floor(100 * part * 10**least) / 10**least  # 99.96% are not 100%
    return f"more unusual than {told:.{least}f}% of usual rows"


def check_unusual(metadata: Mapping[str, Any], n_classes: int | None) -> None:
    """Check what metadata says of a model of unusual rows."""
    told = metadata.get("unusual")
    if not finds_unusual(metadata):
        if told is not None:
            fail("metadata.unusual", told, f'none, as metadata.task is not "{TASK}"')
        return
    if n_classes != len(CLASSES) or tuple(metadata.get("classes", CLASSES)) != CLASSES:
        fail("metadata.classes", metadata.get("classes"), f"{', '.join(CLASSES)}, as metadata.task is {TASK!r}")
    if not isinstance(told, Mapping):
        fail("metadata.unusual", told, "its share, rows and levels")
    share: Any
    rows: Any
    levels: Any
    share, rows, levels = (told.get(key) for key in ("share", "rows", "levels"))
    if not _is_number(share) or not 0 < share <= MOST_SHARE:
        fail("metadata.unusual.share", share, f"a number above 0, {MOST_SHARE:g} at most")
    if type(rows) is not int or rows < 1:
        fail("metadata.unusual.rows", rows, "a whole number above 0")
    is_list = isinstance(levels, list | tuple) and len(levels) == len(PARTS) and all(map(_is_number, levels))
    if not is_list or any(low > high for low, high in pairwise(levels)):
        fail("metadata.unusual.levels", levels, f"{len(PARTS)} numbers, none below the one before")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
