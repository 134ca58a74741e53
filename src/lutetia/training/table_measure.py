"""How good a model of a table of data is: on classes, on numbers by its loss, on the order of rows within queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lutetia._shared.losses import Loss
from lutetia.models import Tabular, best_class, finds_unusual, log_chances
from lutetia.training.class_counts import class_report
from lutetia.training.detection import detection_report
from lutetia.training.intervals import error_bound, half_widths
from lutetia.training.ranking import measure_ranking

Array = np.ndarray[Any, Any]


@torch.no_grad()
def measure(model: Tabular, x: Array, y: Array, weight: Array | None = None, query: Array | None = None) -> dict[str, Any]:
    """The accuracy, the loss and the counts of classes, or what `_measure_numbers` says of numbers, `measure_ranking` of scores
    by the query of each row, and `detection_report` of unusual rows; rows count by their weights [n], but in counts of rows."""
    if model.loss.is_ranking:
        assert query is not None
        return measure_ranking(y, model.numbers(torch.from_numpy(x)).numpy(), query, weight)
    if model.is_regression:
        return _measure_numbers(model, x, y, weight)
    scores = torch.cat([model(part) for part in torch.from_numpy(x).split(1 << 14)])
    if finds_unusual(model.metadata):
        return detection_report(y, (scores[:, 1] - scores[:, 0]).double().numpy(), model.metadata["unusual"]["share"])
    target = torch.from_numpy(y)
    losses = torch.nn.functional.nll_loss(log_chances(model, scores), target, reduction="none").numpy()
    predicted = best_class(model, scores)
    names = model.metadata.get("classes", [str(number) for number in range(model.config.n_classes)])
    loss, accuracy = (float(np.average(each, weights=weight)) for each in (losses, (predicted == target).numpy()))
    return {"loss": loss, "accuracy": accuracy, **class_report(y, predicted.numpy(), names, weight)}


def _measure_numbers(model: Tabular, x: Array, y: Array, weight: Array | None) -> dict[str, Any]:
    """The mean loss, the root of the mean squared error and R², what nine in ten errors stay within, and of the model's own
    intervals how many rows are inside, and their mean width. Losses other than the squared error have a `measure`, its value
    under that name, and D²; of a quantile, `below` is the part of the rows at or below the prediction. `unit` is that of the
    numbers, where it is known.
    """
    predicted, loss = model.numbers(torch.from_numpy(x)).numpy(), model.loss.measured
    squared = Loss()
    known: dict[str, Any] = {"loss": loss.mean(predicted, y, weight), "rmse": squared.measure(predicted, y, weight)}
    known["r2"] = squared.explained(predicted, y, weight)
    if "target_unit" in model.metadata:
        known["unit"] = model.metadata["target_unit"]
    if loss != squared:
        known |= {"measure": loss.key, loss.key: known["loss"], "d2": loss.explained(predicted, y, weight)}
    if not loss.has_intervals:
        return known | {"quantile": loss.quantile, "below": float(np.average(y <= predicted, weights=weight))}
    errors = np.abs(predicted - y)
    bound, own = error_bound(errors, weight), half_widths(model, x)
    if own is not None:
        inside, width = (float(np.average(each, weights=weight)) for each in (errors <= own, 2 * own))
        known |= {"inside_90": inside, "width_90": width}
    return known if bound is None else known | {"error_90": bound}
