"""LUT layers among other layers: what `trace` makes of them equals PyTorch in float64, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.nn import LUT, LUTProjection2d
from lutetia.precompute import Graph, Int, PlusMinus, Quantise, Stream, UInt, quantise_weights, trace


def tables(*sizes: int, **options: object) -> nn.Module:
    """A layer of tables on a grid, with weights of many levels."""
    layer = LUT(*sizes, n_detectors=9, n_anchors=3, seed=0, **options)
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
    return quantise_weights(layer, Int(5))


class Mixed(nn.Module):
    """A convolution, tables, and tables after them, with a forward of its own."""

    def __init__(self, scale: float, anchors: str | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = quantise_weights(nn.Conv2d(1, 3, 3, stride=2, bias=False), Int(3))
        self.round = Quantise(Int(4), scale)
        self.first = tables(27, 8, anchors=anchors)
        self.again = Quantise(Int(3), 0.75)
        self.last = tables(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.round(self.conv(x))
        return self.last(self.again(self.first(torch.flatten(x, 1))))


def traced(model: nn.Module) -> Graph:
    return trace(model, Stream(channels=1, dtype=UInt(2), height=8, width=8)).precompute(max_bits=10).dedupe()


@pytest.mark.parametrize("anchors", [None, "thresholds", "mixed"])
@pytest.mark.parametrize("scale", [0.5, 0.7])
def test_tables_after_a_convolution_equal_pytorch(scale: float, anchors: str | None) -> None:
    model = Mixed(scale, anchors).double().eval()
    x = torch.randint(0, 4, (300, 1, 8, 8), generator=torch.Generator().manual_seed(2))
    wanted = model(x.double())
    assert torch.equal(traced(model).real(x), wanted)
    assert wanted.unique().numel() > 40


@pytest.mark.parametrize("scale", [0.5, 0.7, 1 / 3])
def test_a_threshold_beside_a_value_is_compared_as_in_pytorch(scale: float) -> None:
    """At each value, and at the next number below and above it; quotients of such numbers are rounded across it."""
    levels = torch.arange(-8, 8).double() * scale
    near = torch.cat([levels, torch.nextafter(levels, levels - 1), torch.nextafter(levels, levels + 1)])
    anchors = torch.stack([torch.arange(48) % 2, torch.arange(48) + 2], 1).reshape(48, 1, 2)
    layer = LUT(2, 48, n_detectors=48, n_anchors=1, anchors=anchors, thresholds=near).double()
    layer.weight.data = torch.eye(48).double()[:, None] * torch.arange(2).double()[:, None]  # output t is bit t
    layer.thresholds = near
    x = torch.cartesian_prod(torch.arange(-8, 8), torch.arange(-8, 8))
    graph = trace(nn.Sequential(layer), Stream(channels=2, dtype=Int(4), scale=scale))
    assert torch.equal(graph.real(x), layer(x.double() * scale))


def test_a_mixed_network_is_simulated() -> None:
    graph = traced(Mixed(0.5, None))
    x = torch.randint(0, 4, (4, 1, 8, 8), generator=torch.Generator().manual_seed(3))
    assert torch.equal(graph.emit("verilog").simulate(x), graph(x))


def test_signs_and_the_greatest_score() -> None:
    class Signs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = tables(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.tables(x).argmax(1)

    model = Signs().eval()
    graph = trace(model, Stream(channels=6, dtype=PlusMinus()))
    x = 2 * torch.cartesian_prod(*[torch.arange(2)] * 6) - 1
    assert torch.equal(graph(x)[:, 0], model.double()(x.double()))


def test_tables_on_a_grid_learn() -> None:
    layer = tables(6, 2)
    x = torch.randn(128, 6, generator=torch.Generator().manual_seed(0))
    wanted = (x[:, :2] > x[:, 2:4]).float()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        loss = nn.functional.mse_loss(layer(x), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10
    levels = layer.weight.detach() / layer.weight.detach().abs()[layer.weight != 0].min()
    assert layer.weight.unique().numel() <= 32
    assert torch.equal(levels, levels.round())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            nn.Sequential(nn.Flatten(), LUT(64, 2, n_detectors=9, n_anchors=3, seed=0)),
            "the weights of 1 lie on no grid of integers",
        ),
        (nn.Sequential(tables(64, 2)), r"0 reads \[64\] inputs, the layout is 'image', expected nn.LUT after a vector"),
        (nn.Sequential(nn.Flatten(), tables(63, 2)), "1 reads 63 inputs and is given 64"),
        (nn.Sequential(nn.Flatten(), tables(64, 2, read="confidence2")), "read is 'confidence2', expected 'hard'"),
        (
            LUTProjection2d((8, 8), (4, 4), receptive_field=4, projection=3, n_anchors=3, grid=3),
            r"0 reads \[8, 8\] inputs, the layout is 'image'",
        ),
    ],
)
def test_what_has_no_integers_is_refused(model: nn.Module, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        traced(model)


def test_channels_of_different_scales_are_not_compared() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Quantise(UInt(2), 0.5), Quantise(UInt(2), 0.25)
            self.tables = tables(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.tables(torch.cat([self.one(x), self.two(x)], 1))

    with pytest.raises(ArgumentError, match=r"tables compares channels with the scales \[0.25, 0.5\], expected one scale"):
        trace(Joined(), Stream(channels=3, dtype=UInt(2)))
