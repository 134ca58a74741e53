"""Values to whole numbers: one map for all inputs that never falls, so that comparisons stay what was trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutetia.errors import ArgumentError
from lutetia.models import LUTClassifier, LUTLayer
from lutetia.precompute import fit_bits, lut_network
from lutetia.precompute.front.encoder import encoder

numbers = st.floats(-1000, 1000, allow_nan=False, width=32)


@settings(deadline=None)
@given(
    st.lists(st.tuples(numbers, numbers), min_size=2, max_size=6), st.integers(1, 16), st.lists(numbers, min_size=2, max_size=40)
)
def test_the_map_never_falls(ends: list[tuple[float, float]], bits: int, values: list[float]) -> None:
    low, high = [min(pair) for pair in ends], [max(pair) for pair in ends]
    if min(low) == max(high):
        return
    for affine in (True, False, None):
        if affine is False and not any(pair[0] != pair[1] for pair in ends):
            continue
        coded = encoder(bits, low, high, len(ends), affine=affine)
        x = torch.tensor(sorted(values), dtype=torch.float64)[:, None]
        codes = coded(x)[:, 0]
        assert (codes.diff() >= 0).all()
        assert codes.min() >= 0
        assert codes.max() < 2**bits


def test_equal_ranges_are_the_plain_map() -> None:
    coded = encoder(4, 0.0, 1.0, 3)
    assert coded.affine
    x = torch.rand(50, 3, dtype=torch.float64)
    assert torch.equal(coded(x), (x * 15).round().long())
    ramps = encoder(4, [0.0] * 3, [1.0] * 3, 3, affine=False)
    assert torch.equal(ramps(x), coded(x))
    assert torch.equal(coded(torch.tensor([[0, 128, 255]], dtype=torch.uint8)), torch.tensor([[0, 8, 15]]))


def test_features_of_other_units_keep_numbers_of_their_own() -> None:
    """One from 0 to 0.01, one from 0 to 1000: half of the numbers each; the plain map has two for the small one."""
    coded = encoder(6, [0.0, 0.0], [0.01, 1000.0], 2)
    assert not coded.affine
    small = torch.linspace(0, 0.01, 200, dtype=torch.float64)
    assert len(coded(torch.stack([small, small], 1))[:, 0].unique()) >= 32
    assert len(encoder(6, [0.0, 0.0], [0.01, 1000.0], 2, affine=True)(torch.stack([small, small], 1))[:, 0].unique()) == 1


def test_the_ramps_are_the_mean_of_each_input_s_ramp() -> None:
    low, high = np.array([0.0, 5.0, 2.0]), np.array([1.0, 9.0, 2.0])  # the last one never changes
    coded = encoder(8, low, high, 3, affine=False)
    for value in np.linspace(-1.03, 11.07, 37):
        share = np.mean([np.clip((value - a) / (b - a), 0, 1) for a, b in zip(low[:2], high[:2], strict=True)])
        assert coded(torch.full((1, 3), value))[0, 0] == round(float(share) * 255)


def _trained(x: torch.Tensor, labels: torch.Tensor) -> LUTClassifier:
    layers = (LUTLayer(n_outputs=2, n_detectors=48, n_anchors=4),)
    model = LUTClassifier(input_shape=(x.shape[1],), n_classes=2, readout="none", seed=0, layers=layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(80):
        loss = torch.nn.functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_network_on_medical_data_keeps_its_accuracy(scaled: bool) -> None:
    """Raw values, from 0.001 to 4,000, and z-scores: with inputs taken to lie in 0..1 this lost up to seven points."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    values, labels = data.data[order], torch.tensor(data.target[order])
    if scaled:
        values = (values - values[:400].mean(0)) / values[:400].std(0)
    x = torch.tensor(values, dtype=torch.float32)
    model = _trained(x[:400], labels[:400])
    low, high = x[:400].min(0).values, x[:400].max(0).values
    choice = fit_bits(model, x[:400], labels[:400], low, high)
    assert choice.tried[-1].accuracy >= choice.float_accuracy - 0.002
    assert choice.tried[-1].agreement >= 0.995
    measured = lut_network(model, bits=choice.bits, low=low, high=high).report(x, labels)
    assert measured["agreement"] >= 0.985
    assert measured["integer_accuracy"] >= measured["float_accuracy"] - 0.01
    plain = lut_network(model, bits=8).report(x, labels)
    assert plain["integer_accuracy"] < measured["integer_accuracy"] - 0.02  # what it was


def test_ranges_that_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"low is 1\.0 and high is 1\.0, expected low < high"):
        encoder(4, 1.0, 1.0, 3)
    with pytest.raises(ArgumentError, match="low is a list and high is a list, expected low < high"):
        encoder(4, [0.0, 2.0], [1.0, 1.0], 2)
    with pytest.raises(ArgumentError, match="a number, or 3 of them, one for each input"):
        encoder(4, [0.0, 1.0], 2.0, 3)
    with pytest.raises(ArgumentError, match="low is nan"):
        encoder(4, float("nan"), 2.0, 3)
