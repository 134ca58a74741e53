"""Why an estimator predicts what it does: the share of each column, and the comparisons that mattered most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lutetia._shared.markup import Html, tag
from lutetia._shared.numbers import short_number
from lutetia.errors import check_choice
from lutetia.models import Tabular, Votes, best_class
from lutetia.report import (
    DEFAULT_RULE,
    RULES,
    SHAPLEY,
    Comparison,
    MarkedText,
    Questions,
    attribute_from_average,
    attribute_rows,
    by_data_column,
    column_names,
    contrast_weights,
    marked_texts,
    reason_bars,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Explanation:
    """For each sample: `relevance` float64 [n, columns] of the columns named `features`, and `comparisons`, the most effective
    first. What is explained is how far class number `targets[i]` is above its rivals; in a regression, the sum of the tables,
    which is the logarithm of the prediction with loss="poisson". With rule="shapley" the relevance of a sample and its `average`
    add up to that."""

    features: list[str]
    targets: list[int]
    relevance: Array
    comparisons: list[list[Comparison]]
    classes: list[str] = field(default_factory=list)  # their names; none in a regression
    average: Array | None = None  # with rule="shapley", what relevance adds to: that of the rows compared with, float64 [n]
    texts: list[list[MarkedText]] = field(default_factory=list)  # those of each sample, with the relevance of their words

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        count = len(self)
        return f"<Explanation of {count:,} sample{'s' * (count != 1)} by {len(self.features)} columns: to_text(0) for the first>"

    def to_text(self, sample: int = 0, most: int = 5) -> str:
        """The class that is explained, then the columns and the comparisons that mattered most for one sample, a line each."""
        row = self.relevance[sample]
        order = np.argsort(-np.abs(row), kind="stable")[:most]
        lines = [f"{self.features[at]}: {short_number(row[at], 3, sign=True)}" for at in order]
        head = [f"for {self.classes[self.targets[sample]]}:"] if self.classes else []
        if self.average is not None:
            head.append(f"on average: {short_number(self.average[sample], 3, sign=True)}")
        lines += [each.told(most) for each in self.texts[sample]] if self.texts else []
        return "\n".join([*head, *lines, *(str(each) for each in self.comparisons[sample][:most])])

    def to_html(self, most: int = 5) -> str:
        """The first samples as tables with bars, a piece of HTML; `lutetia.relevance.pictures.page(piece, path="why.html")` makes
        a page of it. A notebook shows it by itself."""
        shown = [_sample(self, sample) for sample in range(min(len(self), most))]
        rest = len(self) - len(shown)
        more = tag("p", f"and {rest:,} more: to_text({len(shown)}) is the next") if rest else None
        return tag("div", shown, more)

    def _repr_html_(self) -> str:
        return self.to_html()


def _sample(explained: Explanation, sample: int) -> Html:
    """One sample: its columns beside its comparisons."""
    said = f": {explained.classes[explained.targets[sample]]}" if explained.classes else ""
    columns = list(zip(explained.features, explained.relevance[sample].tolist(), strict=True))
    marked = explained.texts[sample] if explained.texts else ()
    return tag("div", tag("p", tag("b", f"sample {sample}{said}")), reason_bars(columns, explained.comparisons[sample], marked))


def explain_rows(
    model: Tabular,
    x: Array,
    target: int | None,
    rule: str | None,
    texts: Mapping[str, Sequence[str | None]] | None = None,
    background: Array | None = None,
) -> Explanation:
    """Explain a model's predictions for rows x float64 [n, inputs], and the texts of its columns of text. Rule "shapley" compares
    with the rows `background` float64 [m, inputs]."""
    is_gates = isinstance(model.core, Votes)
    rule = rule or ("occlusion" if is_gates else DEFAULT_RULE)
    check_choice("rule", rule, tuple(RULES))
    names = list(model.metadata.get("features") or [f"x{number}" for number in range(x.shape[1])])
    given = torch.from_numpy(x)
    with torch.no_grad():
        scores = model(given)
    targets = best_class(model, scores) if target is None else torch.full((len(x),), target)
    average = None
    if rule == SHAPLEY:
        values, base = attribute_from_average(model, given, targets, None if background is None else torch.from_numpy(background))
        relevance, average = values.numpy(), base.numpy()
    else:
        relevance = attribute_rows(model, given, targets, rule).double().numpy()
    asked: list[list[Comparison]] = [[] for _ in targets]
    if not is_gates:
        ask, weights = Questions(model, names), contrast_weights(scores, targets).double().numpy()
        asked = [ask(codes, own) for codes, own in zip(model.encoding.codes(x).T, weights, strict=True)]
    classes = [str(name) for name in model.metadata.get("classes", ())]
    if not texts:
        return Explanation(names, targets.tolist(), relevance, asked, classes, average)
    rows = [{name: own[row] for name, own in texts.items()} for row in range(len(x))]
    marked = [marked_texts(model, own, row) for own, row in zip(relevance, rows, strict=True)]
    columns = column_names(model, len(names))
    return Explanation(columns, targets.tolist(), by_data_column(model, relevance), asked, classes, average, marked)
