"""Why an estimator predicts what it does: the share of each column, and the comparisons that made most of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from lutetia.models import Tabular
from lutetia.models.votes import Votes
from lutetia.report.attribution import DEFAULT_RULE, attribute_class, contrast

Array = np.ndarray[Any, Any]


class Comparison(NamedTuple):
    """A question that tables ask, its answer for one sample, and what the score loses with the other answer."""

    feature: str
    operator: str  # ">" or "<="
    other: str  # the threshold, in the unit of the column, or another column
    effect: float

    def __str__(self) -> str:
        return f"{self.feature} {self.operator} {self.other} ({self.effect:+.3g})"


@dataclass(frozen=True, eq=False)
class Explanation:
    """For each sample: `relevance` float64 [n, columns] of the columns named `features`, and `comparisons`, the most effective
    first. What is explained is how far class number `targets[i]` is above its rivals; in a regression, the score."""

    features: list[str]
    targets: list[int]
    relevance: Array
    comparisons: list[list[Comparison]]

    def __len__(self) -> int:
        return len(self.targets)

    def to_text(self, sample: int = 0, most: int = 5) -> str:
        """The columns and the comparisons that did most for one sample, a line each."""
        row = self.relevance[sample]
        order = np.argsort(-np.abs(row), kind="stable")[:most]
        lines = [f"{self.features[at]}: {row[at]:+.3g}" for at in order]
        return "\n".join([*lines, *(str(each) for each in self.comparisons[sample][:most])])


def explain_rows(model: Tabular, x: Array, target: int | None, rule: str | None) -> Explanation:
    """Explain what a model makes of rows x float64 [n, columns]."""
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
    comparisons: list[list[Comparison]] = [[] for _ in targets]
    for row, wanted in enumerate(() if is_gates else targets):
        weights = contrast(scores[row], wanted).double().numpy()
        comparisons[row] = _comparisons(model, codes[:, row], weights, names)
    return Explanation(names, targets, relevance, comparisons)


def _comparisons(model: Tabular, codes: Array, contrast: Array, names: list[str]) -> list[Comparison]:
    """All comparisons of one sample, codes uint8 [n_encoded], equal ones together, the most effective first.

    `contrast` [outputs] says with which weights the outputs are explained.
    """
    anchors = model.tables.anchors.numpy().astype(np.int64)
    weight = model.tables.weight.detach().double().numpy()
    led = weight @ contrast  # [T, 2**A]
    n_encoded, (n_tables, n_anchors, _) = len(codes), anchors.shape
    known = np.concatenate([codes.astype(np.int64), np.arange(256)])
    bits = known[anchors[..., 0]] > known[anchors[..., 1]]
    cells = (bits << np.arange(n_anchors)).sum(1)
    own = led[np.arange(n_tables), cells]
    flipped = led[np.arange(n_tables)[:, None], cells[:, None] ^ (1 << np.arange(n_anchors))]
    effects: dict[tuple[int, int], float] = {}
    for anchor, effect in zip(anchors.reshape(-1, 2).tolist(), (own[:, None] - flipped).ravel().tolist(), strict=True):
        key = (anchor[0], anchor[1])
        effects[key] = effects.get(key, 0.0) + effect
    told = []
    for (left, right), effect in sorted(effects.items(), key=lambda item: -abs(item[1])):
        operator = ">" if known[left] > known[right] else "<="
        other = model.threshold_text(left, right - n_encoded) if right >= n_encoded else f"{_input(model, right, names)} by rank"
        told.append(Comparison(_input(model, left, names), operator, other, effect))
    return told


def _input(model: Tabular, number: int, names: list[str]) -> str:
    return names[int(model.encoding.source[number])]
