"""Why an estimator predicts what it does: the share of each column, and the comparisons that mattered most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lutetia._shared.numbers import short_number
from lutetia.models import Tabular, Votes
from lutetia.report import DEFAULT_RULE, Comparison, attribute_class, contrast_weights, table_comparisons

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Explanation:
    """For each sample: `relevance` float64 [n, columns] of the columns named `features`, and `comparisons`, the most effective
    first. What is explained is how far class number `targets[i]` is above its rivals; in a regression, the sum of the tables,
    which is the logarithm of the prediction with loss="poisson"."""

    features: list[str]
    targets: list[int]
    relevance: Array
    comparisons: list[list[Comparison]]

    def __len__(self) -> int:
        return len(self.targets)

    def to_text(self, sample: int = 0, most: int = 5) -> str:
        """The columns and the comparisons that mattered most for one sample, a line each."""
        row = self.relevance[sample]
        order = np.argsort(-np.abs(row), kind="stable")[:most]
        lines = [f"{self.features[at]}: {short_number(row[at], 3, sign=True)}" for at in order]
        return "\n".join([*lines, *(str(each) for each in self.comparisons[sample][:most])])


def explain_rows(model: Tabular, x: Array, target: int | None, rule: str | None) -> Explanation:
    """Explain a model's predictions for rows x float64 [n, columns]."""
    is_gates = isinstance(model.core, Votes)
    rule = rule or ("occlusion" if is_gates else DEFAULT_RULE)
    given = torch.from_numpy(x)
    with torch.no_grad():
        scores = model(given)
    targets = [target if target is not None else each for each in scores.argmax(1).tolist()]
    rows = [
        attribute_class(model, row, wanted, rule).relevance.double().numpy() for row, wanted in zip(given, targets, strict=True)
    ]
    relevance = np.stack(rows) if rows else np.empty(x.shape)
    names = list(model.metadata.get("features") or [f"x{number}" for number in range(x.shape[1])])
    codes = model.encoding.codes(x)
    asked: list[list[Comparison]] = [[] for _ in targets]
    for row, wanted in enumerate(() if is_gates else targets):
        weights = contrast_weights(scores[row], wanted).double().numpy()
        asked[row] = table_comparisons(model, codes[:, row], weights, names)
    return Explanation(names, targets, relevance, asked)
