"""Intervals of what `lutetia build` makes of a regression: how far the truth may lie from its answer, nine times in ten."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lutetia._shared.numbers import short_number
from lutetia.cli.build_data import Measured
from lutetia.cli.build_tables import output_unit
from lutetia.models import Tabular
from lutetia.precompute import IntegerClassifier, LUTNetwork
from lutetia.training import error_bounds

BOUNDS = ("error_90", "spread_90")
ENOUGH_BITS = 8  # of a weight, to which rounding adds next to nothing


def built_bounds(
    network: LUTNetwork, data: Measured | str, weight_bits: int, n_tables: int, is_exact: bool = True
) -> dict[str, float]:
    """What the errors of a regression in whole numbers stay within. Of all tables, with bits enough and exact inputs, that is
    what the model says; else the test rows of the run say how far it is off. Empty where nothing is known."""
    model = network.model
    if not (isinstance(model, Tabular) and model.is_regression and model.loss.has_intervals):
        return {}
    if is_exact and n_tables == model.config.n_tables and weight_bits >= ENOUGH_BITS:
        return {key: model.metadata[key] for key in BOUNDS if key in model.metadata}
    if isinstance(data, str) or data.split != "test":
        return {}
    numbers = model.loss.numbers(network(data.x)[:, 0].double().numpy() * network.graph.output_edge.scale[0])
    return error_bounds(model, data.x.numpy(), np.abs(numbers - data.labels.double().numpy()))


def circuit_interval(network: LUTNetwork, bounds: Mapping[str, Any]) -> dict[str, Any] | None:
    """The interval of a circuit, the same for all rows: its half width, and that in units of the circuit's number. Where this is
    the logarithm of a count, the half width is that of exp of it, and the least end is 0."""
    if "error_90" not in bounds or output_unit(network) is None:
        return None
    if isinstance(network.model, Tabular) and network.model.loss.is_log:
        return {"half_width": bounds["error_90"], "whole": None, "least": 0}
    return {"half_width": bounds["error_90"], "whole": math.ceil(bounds["error_90"] / network.graph.output_edge.scale[0])}


def program_interval(model: IntegerClassifier, data: Measured | str) -> dict[str, Any] | None:
    """The intervals of a program: whether they vary with the row, and on the rows that accuracy is measured on their mean half
    width and how many of the numbers are inside."""
    width, unit = model.half_width, float(model.graph.output_edge.scale[0])
    if width is None:
        return None
    told: dict[str, Any] = {"by_row": width.stage is not None}
    if isinstance(data, str):
        return told if width.stage is not None else {**told, "half_width": width.least * width.unit}
    codes = model.quantise(data.x)
    own = width(codes.numpy())
    errors = np.abs(model.model.loss.numbers(model(codes).numpy() * unit) - data.labels.double().numpy())
    return {**told, "half_width": float(own.mean() * width.unit), "inside": float((errors <= own * width.unit).mean())}


def circuit_text(interval: dict[str, Any]) -> str:
    """The interval of a circuit in words."""
    if interval["whole"] is None:
        return f"±{short_number(interval['half_width'])} of the prediction itself, from 0 at least, in 9 of 10 cases"
    return f"±{short_number(interval['half_width'])}, or ±{interval['whole']:,} of these whole numbers, in 9 of 10 cases"


def program_text(interval: dict[str, Any]) -> str:
    """The intervals of a program in words."""
    text = "wide or narrow with the row" if interval["by_row"] else "the same for all rows"
    if "half_width" in interval:
        text += f", ±{short_number(interval['half_width'])}" + (" on average" if interval["by_row"] else "")
    return text + (f", {interval['inside']:.1%} of rows inside" if "inside" in interval else "")
