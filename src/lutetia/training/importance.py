"""Which columns a model of a table depends on: how much worse it gets when the values of one are shuffled among the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia.models import Tabular, data_columns, gram_text, log_chances, text_columns

Array = np.ndarray[Any, Any]
MOST_ROWS = 2000  # that are shuffled
AT_ONCE = 1 << 14  # rows that are scored together
TIMES = 3  # that each column is shuffled


@torch.no_grad()
def column_importance(
    model: Tabular, x: Array, y: Array, weight: Array | None = None, seed: int = 0, query: Array | None = None
) -> list[float]:
    """By how much the loss of classes, or what numbers are measured by, rises on rows x [n, *input_shape] when each column of the
    data is shuffled, a text with all that is made of it, [columns]; of a ranking by how much NDCG@10 falls, by the query of each
    row. Rows count by their weights [n]."""
    random = np.random.default_rng(seed)
    rows = random.permutation(len(y))[:MOST_ROWS]
    if query is not None:  # query by query; the last may be cut
        rows = np.argsort(random.permutation(query.max() + 1)[query], kind="stable")[:MOST_ROWS]
        query = query[rows]
    given = torch.from_numpy(x[rows])
    codes, target = model.encode(given), torch.from_numpy(y[rows])
    if model.config.base is not None:  # what tables are to add to it
        target = target - model.base(given)
    held = None if weight is None or not weight[rows].sum() > 0 else weight[rows]
    source, before = model.encoding.source, _loss(model, codes, target, held, query)
    orders = [torch.from_numpy(random.permutation(len(rows))) for _ in range(TIMES)]
    rises = []
    for column in data_columns(model.metadata, model.n_columns):
        own, changed = torch.isin(source, torch.tensor(column.inputs)), codes.clone()
        rise = 0.0
        for order in orders:
            changed[:, own] = codes[order][:, own]
            rise += _loss(model, changed, target, held, query) - before  # exactly 0 for a column that no table reads
        rises.append(rise / TIMES)
    return rises


@torch.no_grad()
def word_importance(
    model: Tabular, x: Array, y: Array, weight: Array | None = None, query: Array | None = None
) -> list[tuple[str, str, float]]:
    """The words of text columns that a model depends on, the most important first: the column, the word, and by how much the loss
    on rows x [n, inputs] rises when it does not occur in any text. Its pairs stay."""
    given, target = torch.from_numpy(x), torch.from_numpy(y)
    scores = torch.cat([model(part) for part in given.split(AT_ONCE)]).double()
    before, found = _score_loss(model, scores, target, weight, query), []
    for text in text_columns(model.metadata):
        place = {gram: number for number, gram in enumerate(text.grams)}
        for number, word in enumerate(text.words):
            rows = np.flatnonzero(x[:, text.asked + number] == 1)
            if not len(rows):
                continue
            changed, without = x[rows], scores.clone()
            changed[:, text.asked + number] = 0
            if word in place:
                changed[:, text.first : text.first + len(text.tallies)] -= text.weights[:, place[word]]
            without[rows] = model(torch.from_numpy(changed)).double()
            found.append((text.name, gram_text(word), _score_loss(model, without, target, weight, query) - before))
    return sorted(found, key=lambda each: -each[2])


def _loss(model: Tabular, codes: Tensor, target: Tensor, weight: Array | None, query: Array | None) -> float:
    return _score_loss(model, model.core(codes).double(), target, weight, query)


def _score_loss(model: Tabular, scores: Tensor, target: Tensor, weight: Array | None, query: Array | None) -> float:
    if model.loss.is_ranking:
        return 1 - model.loss.measure(scores[:, 0].numpy(), target.numpy(), weight, query)
    if model.is_regression:
        return model.loss.measure(model.loss.numbers(scores[:, 0].numpy()), target.numpy(), weight)
    losses = torch.nn.functional.nll_loss(log_chances(model, scores), target, reduction="none").numpy()
    return float(np.average(losses, weights=weight))
