"""Quantised building blocks: values against plain formulas, gradients against the straight-through rule, and that they learn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lutetia.errors import ArgumentError
from lutetia.precompute import Binary, Int, PlusMinus, Quantise, SparseLinear, Ternary, UInt, quantise, quantise_weights
from lutetia.precompute.tables.domains import Domain


@pytest.mark.parametrize("domain", [Binary(), Ternary(), UInt(3), Int(4)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.3])
def test_rounding(domain: Domain, scale: float) -> None:
    x = torch.linspace(-12, 20, 999, dtype=torch.float64, requires_grad=True)
    y = quantise(x, domain, scale)
    # Slow and plain: Python's own round, half to even.
    expected = [min(max(round(value / scale), domain.low), domain.high) * scale for value in x.tolist()]
    assert y.tolist() == expected
    y.sum().backward()
    within = [(domain.low - 0.5) * scale <= value <= (domain.high + 0.5) * scale for value in x.tolist()]
    assert x.grad is not None
    assert x.grad.tolist() == [float(each) for each in within]
    assert torch.equal(quantise(x.detach(), domain, scale), y)


def test_signs() -> None:
    x = torch.tensor([-3.0, -0.5, -0.0, 0.0, 0.5, 3.0], requires_grad=True)
    y = Quantise(PlusMinus(), 0.5)(x)
    assert y.tolist() == [-0.5, -0.5, 0.5, 0.5, 0.5, 0.5]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 0]


def test_halves_go_to_the_even_number() -> None:
    assert quantise(torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]), Int(3)).tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize("domain", [PlusMinus(), Ternary(), Int(3), Int(8)], ids=str)
def test_weights_lie_on_a_grid_of_a_power_of_two_and_go_on_learning(domain: Domain) -> None:
    layer = quantise_weights(nn.Linear(30, 20), domain)
    weight = layer.weight.detach()
    step = weight.abs()[weight != 0].min().item() if domain.radix <= 3 else None
    if step is not None:
        assert torch.tensor(step).frexp().mantissa == 0.5
        assert set((weight / step).unique().tolist()) <= set(map(float, domain.values().tolist()))
    else:
        assert len(weight.unique()) <= domain.radix
        assert weight.abs().max() <= layer.parametrizations.weight.original.abs().max() * 2  # type: ignore[union-attr, operator]
    before = layer.parametrizations.weight.original.clone()  # type: ignore[union-attr, operator]
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.randn(8, 30)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(before, layer.parametrizations.weight.original)  # type: ignore[union-attr, arg-type]


def test_a_sparse_layer_is_a_masked_one() -> None:
    layer = SparseLinear(11, 7, 4, seed=3)
    assert torch.equal(layer.inputs, SparseLinear(11, 7, 4, seed=3).inputs)
    assert all(len(set(row)) == 4 and row == sorted(row) for row in layer.inputs.tolist())
    dense = torch.zeros(7, 11).scatter(1, layer.inputs, layer.weight.detach())
    x = torch.randn(5, 3, 11)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, dense, layer.bias))
    used = torch.zeros(11).index_add(0, layer.inputs.flatten(), torch.ones(28))
    assert used.min() >= 1  # every input is read by someone


def test_a_quantised_network_learns() -> None:
    x = torch.randint(0, 2, (256, 8)).float()
    y = ((x[:, 0] + x[:, 1] * 2 + x[:, 2]) > 1.5).long()
    layers = [quantise_weights(nn.Linear(8, 16), Int(4)), nn.BatchNorm1d(16), Quantise(UInt(2), 0.5), nn.Linear(16, 2)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (model.eval()(x).argmax(1) == y).float().mean() > 0.97


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match="domain is 4, expected a domain"):
        Quantise(4)  # type: ignore[arg-type]
    for scale in (0.0, -1.0, float("inf")):
        with pytest.raises(ArgumentError, match="scale is"):
            Quantise(Binary(), scale)
    with pytest.raises(ArgumentError, match="expected one with negative values"):
        quantise_weights(nn.Linear(2, 2), UInt(2))
    with pytest.raises(ArgumentError, match="a layer with a weight"):
        quantise_weights(nn.ReLU(), Int(2))
    with pytest.raises(ArgumentError, match="fan_in is 9"):
        SparseLinear(8, 2, 9)
