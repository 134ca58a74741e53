"""How well scores find unusual rows: by the order of all rows, and by those that are flagged."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def detection_report(y: Array, scores: Array, share: float) -> dict[str, Any]:
    """What is flagged of rows with these scores [n], those above 0, and the part `share` that is wanted of usual ones.

    Where some rows are known to be unusual, y int64 [n] is 1 for them, and this says how well they are found: the average
    precision, the area under the ROC curve, the precision and the recall of what is flagged, and the part of usual rows that is.
    """
    flagged, is_unusual = scores > 0, y == 1
    counts = {"flagged_rows": int(flagged.sum()), "unusual": int(is_unusual.sum())}
    told = {"flagged": float(flagged.mean()), "wanted": share, **counts}
    if not is_unusual.any() or is_unusual.all():
        return told
    found = int((flagged & is_unusual).sum())
    return told | {
        "average_precision": average_precision(is_unusual, scores),
        "roc_auc": roc_auc(is_unusual, scores),
        "found": found,
        "precision": found / counts["flagged_rows"] if counts["flagged_rows"] else None,
        "recall": found / counts["unusual"],
        "false_alarms": float(flagged[~is_unusual].mean()),
    }


def average_precision(is_unusual: Array, scores: Array) -> float:
    """The mean precision over the unusual rows, bool [n], each flagged with all rows of at least its score [n]."""
    values, place = np.unique(-scores, return_inverse=True)
    rows = np.cumsum(np.bincount(place, minlength=len(values)))
    own = np.bincount(place, is_unusual, len(values))
    return float((own * np.cumsum(own) / rows).sum() / own.sum())


def roc_auc(is_unusual: Array, scores: Array) -> float:
    """How often an unusual row has a greater score than a usual one; equal scores count half."""
    values, place = np.unique(scores, return_inverse=True)
    usual = np.bincount(place, ~is_unusual, len(values))
    below = np.cumsum(usual) - usual / 2
    return float(below[place][is_unusual].mean() / usual.sum())
