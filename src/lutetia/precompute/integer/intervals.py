"""Intervals of a regression in whole numbers: how far the truth may lie from an answer, nine times in ten, in the answer's unit.

One number for all rows, or one more table stage, whose sum is the spread of a row times a bound. Its entries are finer than the
unit by `shift` bits, so that rounding them does not add up; the sum is rounded at the end. Where errors are huge beside the unit,
`shift` is negative and they are coarser.

The answer of a model of counts is a logarithm, its interval is one of counts, from 0 at least: exp(answer · unit) plus or minus a
half width that has a unit of its own. One more in the answer multiplies a count by 1 + unit, so that of the half width is the
bound times that unit: both are rounded by the same part of what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.models import LEAST_SPREAD, Tabular
from lutetia.precompute.integer.classifier import TableStage

Array = np.ndarray[Any, Any]
FINE_BITS, MOST_BITS = 16, 31  # of an entry: two bytes where fine ones are enough, four at most
SUM_BITS = 31  # of a sum, where the entries can be chosen so
MOST = 2.0**52  # units, so that the numbers of a page are exact
FINEST = 2.0**-24  # part of a bound of counts that is a unit, so that half widths fit 32 bits


@dataclass(frozen=True, eq=False)
class HalfWidth:
    """How far an interval reaches to both sides: `least`, or the sum of a stage where that is more; in 2**-shift of a `unit`."""

    least: int
    shift: int = 0
    stage: TableStage | None = None
    unit: float = 1.0
    is_log: bool = False  # whether the answer is a logarithm, and the unit not its own

    def __call__(self, x: Array) -> Array:
        """Codes int64 [n, n_inputs] -> whole numbers of units, int64 [n]."""
        fine = np.full(len(x), self.least)
        if self.stage is not None:
            fine = np.maximum(fine, stage_sums(self.stage, x)[:, 0])
        return (fine + self.half) >> self.shift if self.shift >= 0 else fine << -self.shift

    @property
    def half(self) -> int:
        """Half a unit, which rounds a sum before it is shifted."""
        return 1 << self.shift >> 1 if self.shift > 0 else 0


def half_width(model: Any, unit: float, bounds: Mapping[str, Any]) -> HalfWidth | None:
    """The half width of the intervals of a model whose answers have this unit, or are logarithms in it, by `spread_90` or
    `error_90` of its metadata, or of another dict: None where it predicts classes, or nothing is known of its errors."""
    if not (isinstance(model, Tabular) and model.is_regression):
        return None
    has_rows, is_log = model.spread is not None and "spread_90" in bounds, model.loss.is_log
    bound = bounds.get("spread_90" if has_rows else "error_90")
    if bound is None:
        return None
    if is_log:
        unit = float(bound) * max(unit, FINEST) or 1.0
    if not has_rows:
        return HalfWidth(_whole(float(bound) / unit), unit=unit, is_log=is_log)
    assert model.spread is not None
    about, scale = model.spread.describe(), float(bound) / unit
    rows = about.weight.detach().cpu().double().numpy()[:, :, 0] * scale  # [n_tables, n_rows], in units
    differences = np.ptp(rows, axis=1)
    reach = _whole(abs(float(rows.min(1).sum())) + float(differences.sum()) + LEAST_SPREAD * scale)
    bits = int(differences.max() + 1).bit_length()
    shift = max(min(FINE_BITS - bits, SUM_BITS - 1 - reach.bit_length()), min(0, MOST_BITS - bits))
    assert about.thresholds is not None
    thresholds, anchors = (each.detach().cpu().numpy() for each in (about.thresholds, about.anchors.long()))
    stage = _stage(anchors, np.rint(rows * 2.0**shift).astype(np.int64), thresholds, len(model.encoding.source))
    return HalfWidth(round(LEAST_SPREAD * scale * 2.0**shift), shift, stage, unit, is_log)


def stage_sums(stage: TableStage, x: Array) -> Array:
    """The sums of a stage, by its definition: x int64 [n, n_inputs] -> int64 [n, n_outputs]."""
    bits = x[:, stage.left] > np.where(stage.right < 0, stage.constant, x[:, stage.right])
    places = 1 << np.arange(stage.lanes.shape[1])[::-1]
    sums = np.tile(stage.bias, (len(x), 1))
    for lanes, flip, contents, targets in zip(stage.lanes, stage.flip, stage.contents, stage.targets, strict=True):
        np.add.at(sums.T, targets, contents[(bits[:, lanes] @ places) ^ flip].T)
    return sums


def _stage(anchors: Array, levels: Array, thresholds: Array, n_inputs: int) -> TableStage:
    """Tables of one sum: anchors [n_tables, n_anchors, 2], levels int64 [n_tables, n_rows]; equal comparisons are made once."""
    left, right = anchors.reshape(-1, 2).T
    is_constant = right >= n_inputs
    constant = np.where(is_constant, np.floor(thresholds[np.where(is_constant, right - n_inputs, 0)]).astype(np.int64), 0)
    compared, lanes = np.unique(np.stack([left, np.where(is_constant, -1, right), constant], 1), axis=0, return_inverse=True)
    lowest = levels.min(1)
    return TableStage(
        left=compared[:, 0],
        right=compared[:, 1],
        constant=compared[:, 2],
        lanes=lanes.reshape(anchors.shape[:2])[:, ::-1],  # the last pair is the highest bit
        flip=np.zeros(len(levels), np.int64),
        contents=tuple((levels - lowest[:, None])[:, :, None]),
        targets=(np.zeros(1, np.int64),) * len(levels),
        bias=lowest.sum(keepdims=True),
        bits=int(np.abs(levels).max(1).sum()).bit_length() + 1,
    )


def _whole(width: float) -> int:
    if not width <= MOST:
        raise ArgumentError(
            f"intervals reach {width:.3g} units of the answer to each side, expected at most {MOST:,.0f}: use fewer weight bits"
        )
    return round(width)
