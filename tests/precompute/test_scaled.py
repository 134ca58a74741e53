"""Quantisers of many levels as multiply, shift and clamp: equal to comparisons at every sum, ties included."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lutetia.precompute import Int, Quantise, Stream, UInt, trace
from lutetia.precompute.front.samples import random_input
from lutetia.precompute.ir.stream import Compare
from lutetia.precompute.passes.scaled import scaling_of
from lutetia.precompute.tables.domains import domain_for


@pytest.mark.parametrize("step", [1.0, 2.0, 3.7, 0.5 * 7, 8.0, 21.3])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("shift", [0.0, 0.37])
def test_a_scaling_is_the_quantiser_at_every_sum(step: float, sign: int, shift: float) -> None:
    sums = np.arange(-900, 1000)
    levels = np.clip(np.rint(sign * sums / step + shift), -20, 41).astype(np.int64)
    changes = np.flatnonzero(np.diff(levels))
    made = scaling_of(sums[changes], np.concatenate([levels[:1], levels[changes + 1]]), domain_for(-900, 999))
    assert made is not None
    scaled = made.factor * sums + made.offset
    assert made.domain.low <= scaled.min()
    assert scaled.max() <= made.domain.high
    high, rest = scaled >> made.shift, scaled % 2**made.shift
    if made.ties:
        high = high - ((rest == 0) & (high % 2 == 1))
    assert np.array_equal(np.clip(high, -20, 41), levels)


def test_uneven_steps_have_no_scaling() -> None:
    thresholds = np.array([0, 10, 11, 30, 90, 91])
    assert scaling_of(thresholds, np.arange(7), domain_for(-50, 120)) is None
    assert scaling_of(thresholds, np.array([0, 1, 2, 4, 5, 6, 7]), domain_for(-50, 120)) is None


@pytest.mark.parametrize(("domain", "scale"), [(UInt(5), 0.25), (UInt(8), 0.3137), (Int(6), 0.5)])
def test_a_layer_of_wide_sums_needs_no_comparisons(domain: UInt, scale: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 3), Quantise(domain, scale))
    with torch.no_grad():
        model[0].weight.copy_((model[0].weight * 16).round() / 4)
        model[0].bias.copy_((model[0].bias * 16).round() / 16)
    net = trace(model, input=Stream(8, UInt(4))).precompute(max_bits=12)
    assert not net.of_kind(Compare)
    x = random_input(net, 3000, seed=0)
    assert torch.equal(net.real(x), model.double()(x.double()))
