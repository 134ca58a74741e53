"""Which columns a model of a table depends on: how much worse it gets when the values of one are shuffled among the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia.models import Tabular

Array = np.ndarray[Any, Any]
MOST_ROWS = 2000  # that are shuffled
TIMES = 3  # that each column is shuffled


@torch.no_grad()
def column_importance(
    model: Tabular, x: Array, y: Array, weight: Array | None = None, seed: int = 0, query: Array | None = None
) -> list[float]:
    """By how much the loss of classes, or what numbers are measured by, rises on rows x [n, *input_shape] when each column is
    shuffled, [columns]; of a ranking by how much NDCG@10 falls, by the query of each row. Rows count by their weights [n]."""
    random = np.random.default_rng(seed)
    rows = random.permutation(len(y))[:MOST_ROWS]
    if query is not None:  # query by query; the last may be cut
        rows = np.argsort(random.permutation(query.max() + 1)[query], kind="stable")[:MOST_ROWS]
        query = query[rows]
    codes, target = model.encode(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])
    held = None if weight is None or not weight[rows].sum() > 0 else weight[rows]
    source, before = model.encoding.source, _loss(model, codes, target, held, query)
    orders = [torch.from_numpy(random.permutation(len(rows))) for _ in range(TIMES)]
    rises = []
    for column in range(model.n_columns):
        own, changed = source == column, codes.clone()
        rise = 0.0
        for order in orders:
            changed[:, own] = codes[order][:, own]
            rise += _loss(model, changed, target, held, query) - before  # exactly 0 for a column that no table reads
        rises.append(rise / TIMES)
    return rises


def _loss(model: Tabular, codes: Tensor, target: Tensor, weight: Array | None, query: Array | None) -> float:
    scores = model.core(codes).double()
    if model.loss.is_ranking:
        return 1 - model.loss.measure(scores[:, 0].numpy(), target.numpy(), weight, query)
    if model.is_regression:
        return model.loss.measure(model.loss.numbers(scores[:, 0].numpy()), target.numpy(), weight)
    losses = torch.nn.functional.cross_entropy(scores, target, reduction="none").numpy()
    return float(np.average(losses, weights=weight))
