"""How a table reads an image, as values for the report's first picture, taken from a real network."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia.models import LUTClassifier, as_floats
from lutetia.nn import LUT
from lutetia.report.reasons import as_in_use, class_names, decide, first_tables
from lutetia.report.story import Reading

MOST_ROWS, MOST_CLASSES = 64, 16  # that a picture of a whole table still shows


def reading(model: LUTClassifier, x: Tensor, *, said: str = "") -> Reading | None:
    """How the most important table of a network reads x [H, W] or [1, H, W], floats or uint8.

    None where no single picture can show it: rows that are not added to the scores of the classes directly, or too large a table.
    """
    layer = _only_tables(model)
    if layer is None or layer.weight.shape[1] > MOST_ROWS or model.config.n_classes > MOST_CLASSES:
        return None
    decision = decide(model, x, rules=(), n_detectors=1)
    if not decision.detectors:
        return None
    detector = decision.detectors[0]
    weight = layer.weight if layer.synapses is None else layer.synapses.expand(layer.weight)
    with as_in_use(model), torch.no_grad():
        totals = model(as_floats(model, x)[None])[0].tolist()
    return Reading(
        tuple(model.config.input_shape)[-2:],
        decision.values,
        detector,
        weight[detector.number].detach().tolist(),
        totals,
        layer.n_detectors,
        class_names(model),
        said,
    )


def _only_tables(model: LUTClassifier) -> LUT | None:
    """The one layer of tables, which reads pixels and adds up to the scores; None if there are other layers."""
    shape = model.config.input_shape
    is_image = len(shape) == 2 or (len(shape) == 3 and shape[0] == 1)
    is_single = (len(model.layers) == 1 and model.config.readout == "none") or (
        not len(model.layers) and model.config.readout == "lut"
    )
    layer = first_tables(model)[1]
    return layer if is_image and is_single and layer is not None and layer.read == "hard" else None
