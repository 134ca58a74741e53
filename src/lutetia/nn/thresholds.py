"""Comparisons with constants: drawing them, and setting them from data."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.dtypes import FLOATS
from lutetia._shared.sampling import draw_distinct
from lutetia.errors import MAX_INT32, ArgumentError, check_choice, check_int, check_tensor
from lutetia.lut import MAX_ANCHORS, random_anchors

COMPARISONS = ("pairs", "thresholds", "mixed")  # what anchors compare an input with: another, a constant, or both by turns
RANGE = (-1.0, 1.0)  # from which thresholds are drawn


def draw_comparisons(
    kind: str, n_inputs: int, n_detectors: int, n_anchors: int, seed: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """Anchors int32 [n_detectors, n_anchors, 2], and the constants float32 [n_thresholds] that they name, None for "pairs".

    "pairs" are those of `random_anchors`. With "thresholds" each anchor compares an input with a constant of its own, uniform in
    [-1, 1], and the inputs of one detector are distinct until there are no more. "mixed" is every second anchor of each.
    """
    check_choice("anchors", kind, COMPARISONS)
    if seed is None:
        seed = int(torch.randint(MAX_INT32, (), device="cpu"))
    if kind == "pairs":
        return random_anchors(n_inputs, n_detectors, n_anchors, seed), None
    check_int("n_inputs", n_inputs, 1)
    check_int("n_detectors", n_detectors, 1)
    check_int("n_anchors", n_anchors, 1, MAX_ANCHORS)
    check_int("seed", seed, 0, 2**63 - 1)
    rng = np.random.default_rng([seed, COMPARISONS.index(kind)])
    inputs = draw_distinct(rng, np.full(n_detectors, n_inputs), n_anchors)
    constant = np.ones((n_detectors, n_anchors), bool)
    anchors = np.stack([inputs, np.zeros_like(inputs)], 2)
    if kind == "mixed":
        constant.reshape(-1)[::2] = False
        anchors[~constant] = random_anchors(n_inputs, n_detectors, n_anchors, seed).numpy()[~constant]
    n_thresholds = int(constant.sum())
    anchors[constant, 1] = n_inputs + np.arange(n_thresholds)
    thresholds = rng.uniform(*RANGE, n_thresholds).astype(np.float32)
    return torch.from_numpy(anchors.astype(np.int32)), torch.from_numpy(thresholds)


def thresholds_of_data(x: Tensor, anchors: Tensor, thresholds: Tensor) -> Tensor:
    """Thresholds [n] spread over the values that their inputs have in x [..., I], in the order that they have now.

    The k-th smallest of the m thresholds of one input becomes its (k + 1/2) / m quantile, moved half-way to the next value that
    occurs, so that it tells values apart. One that no anchor names stays.
    """
    check_tensor("x", x, ["...", "n_inputs"], FLOATS)
    rows, n_inputs = x.detach().reshape(-1, x.shape[-1]).cpu(), x.shape[-1]
    if not len(rows) or not bool(rows.isfinite().all()):
        what = "no rows" if not len(rows) else "a value that is not finite"
        raise ArgumentError(f"x has {what}, expected at least one row of finite numbers to set thresholds from")
    new = thresholds.detach().double().cpu().clone()
    owner = _inputs_of(anchors.cpu(), n_inputs, len(new))
    for column in owner[owner >= 0].unique().tolist():
        mine = (owner == column).nonzero().squeeze(1)
        order = mine[new[mine].argsort(stable=True)]
        new[order] = _spread(rows[:, column].double(), len(order))
    return new.to(thresholds.device, thresholds.dtype)


def _inputs_of(anchors: Tensor, n_inputs: int, n_thresholds: int) -> Tensor:
    """The input that is compared with each threshold [n], -1 for none."""
    a, b = anchors.flatten(0, 1).long().unbind(-1)
    a, number = a[b >= n_inputs], b[b >= n_inputs] - n_inputs
    owner = torch.full((n_thresholds,), -1)
    owner[number] = a
    clash = (owner[number] != a).nonzero()
    if len(clash):
        first = int(number[clash[0]])
        raise ArgumentError(
            f"threshold {first} is compared with inputs {int(a[clash[0]])} and {int(owner[first])}, expected one input each: "
            "values of different inputs have no quantiles in common"
        )
    return owner


def _spread(column: Tensor, n: int) -> Tensor:
    """n numbers [n] between the values of a column [B], rising; a constant column gives its value."""
    values, at = column.sort().values, torch.arange(n, dtype=torch.float64)
    distinct = values.unique()
    if len(distinct) == 1:
        return distinct.expand(n)
    low = values[((at + 0.5) / n * len(values)).long()].clamp(max=distinct[-2])
    high = distinct[torch.searchsorted(distinct, low) + 1]
    return low + (high - low) / 2
