"""What a classifier gets right and wrong, class by class: recall, precision, and which classes are taken for which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def class_report(truth: Array, predicted: Array, names: Sequence[str], weight: Array | None = None) -> dict[str, Any]:
    """The counts of classes int64 [n], true and predicted, for a JSON document.

    classes             for each class its samples, how many of them are right, and how often it was predicted
    balanced_accuracy   the mean recall of the classes that have samples, which count by their weights [n]
    confused            the pairs of classes that were taken for each other, the most frequent first
    """
    n = len(names)
    samples, answers = np.bincount(truth, minlength=n), np.bincount(predicted, minlength=n)
    right = np.bincount(truth[truth == predicted], minlength=n)
    wrong = truth != predicted
    pairs, counts = np.unique(truth[wrong] * n + predicted[wrong], return_counts=True)
    order = np.argsort(-counts, kind="stable")
    counted = zip(names, samples.tolist(), right.tolist(), answers.tolist(), strict=True)
    confused = ((divmod(pair, n), count) for pair, count in zip(pairs[order].tolist(), counts[order].tolist(), strict=True))
    held, found = np.bincount(truth, weight, n), np.bincount(truth, (truth == predicted) * (1.0 if weight is None else weight), n)
    present = held > 0
    return {
        "balanced_accuracy": float((found[present] / held[present]).mean()) if present.any() else 0.0,
        "classes": [dict(zip(("class", "samples", "right", "predicted"), each, strict=True)) for each in counted],
        "confused": [{"class": names[of], "as": names[to], "samples": count} for (of, to), count in confused],
    }
