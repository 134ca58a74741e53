"""Tracing: frames, rates, skips, layouts, what is refused; values are in test_random_nets."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.flow import record
from lutetia.precompute import (
    Binary,
    Graph,
    Int,
    PlusMinus,
    Quantise,
    Stream,
    Ternary,
    UInt,
    precomputable,
    quantise_weights,
    trace,
)
from lutetia.precompute.ir.stream import Argmax, Layer, Pool, Register, Sum, Table, Window, Wire


def exact(model: nn.Module, net: Graph, x: Tensor) -> None:
    """The graph, before and after it became tables, gives what PyTorch gives in float64."""
    with torch.no_grad():
        expected = model.double().eval()(x.double())
    for graph in (net, net.precompute(max_bits=10)):
        assert torch.equal(graph.real(x), expected)


class Residual(nn.Module):
    """x + layer(x), quantised."""

    def __init__(self, layer: nn.Module, domain=UInt(2)) -> None:  # type: ignore[no-untyped-def]  # noqa: B008
        super().__init__()
        self.layer, self.inner, self.outer = layer, Quantise(Int(2)), Quantise(domain)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x + self.inner(self.layer(x)))


def test_the_example_of_the_design() -> None:
    model = nn.Sequential(nn.Conv1d(4, 6, 3, groups=2), nn.BatchNorm1d(6), Quantise(UInt(2)))
    net = trace(model, input=Stream(channels=4, dtype=UInt(2)))
    assert [type(node) for node in net.nodes[1:]] == [Window, Layer, Register]
    assert not net.is_hardware
    with pytest.raises(ArgumentError, match=r"call precompute\(\) first"):
        net.emit("verilog")
    x = torch.randint(0, 4, (3, 4, 13))
    exact(model, net, x)
    net = net.precompute(max_bits=16)
    assert net.is_hardware
    assert torch.equal(net.dedupe().fuse(budget=12)(x), net(x))


def test_rate_phase_and_frames() -> None:
    model = nn.Sequential(
        nn.Conv1d(1, 1, 3, padding=1), Quantise(UInt(2)), nn.MaxPool1d(2), nn.Conv1d(1, 1, 2), Quantise(UInt(2))
    )
    net = trace(model, input=Stream(1, UInt(2), length=12))
    windows = [node.edge for node in net.nodes if isinstance(node, Window)]
    assert [edge.shape for edge in windows] == [(12,), (6,), (5,)]
    assert [edge.rate for edge in windows] == [1, Fraction(1, 2), Fraction(5, 12)]
    assert [edge.phase for edge in windows] == [1, 2, 4]  # padded by one; two of these; two of those
    endless = trace(model, input=Stream(1, UInt(2)))
    assert [node.edge.rate for node in endless.nodes if isinstance(node, Window)] == [1, Fraction(1, 2), Fraction(1, 2)]
    assert endless.output_edge.samples is None
    for length in (4, 7, 12):
        exact(model, endless, torch.randint(0, 4, (2, 1, length)))


@pytest.mark.parametrize(
    ("layer", "stream", "waiting"),
    [
        (nn.Conv1d(2, 2, 5, padding=2), Stream(2, UInt(2)), 2),
        (nn.Conv1d(2, 2, 3, padding=3, dilation=3), Stream(2, UInt(2), length=20), 3),
        (nn.Conv1d(2, 2, 1), Stream(2, UInt(2), length=5), 0),
        (nn.Conv2d(2, 2, 3, padding=1), Stream(2, UInt(2), height=6, width=10), 11),  # one row and one pixel
        (nn.Conv2d(2, 2, (1, 3), padding=(0, 1)), Stream(2, UInt(2), height=6, width=10), 1),
    ],
)
def test_a_skip_waits_for_the_long_path(layer: nn.Module, stream: Stream, waiting: int) -> None:
    net = trace(Residual(layer), input=stream)
    (join,) = (node for node in net.nodes if isinstance(node, Wire))
    short = net.nodes[join.sources[0]]
    assert isinstance(short, Register)
    assert short.balance
    stages = 1 if layer.kernel_size in ((1,), (1, 1)) else 2  # a window and the register behind the layer
    assert short.depth == waiting + stages
    assert not (isinstance(net.nodes[join.sources[1]], Register) and net.nodes[join.sources[1]].balance)
    shape = [size for size in (stream.height, stream.width) if size] or [stream.length or 9]
    exact(Residual(layer), net, torch.randint(0, 4, (2, 2, *shape)))


def test_images() -> None:
    body = [nn.Conv2d(1, 2, 3, stride=2, padding=1), nn.BatchNorm2d(2), nn.ReLU(), Quantise(UInt(2), 0.5), nn.AvgPool2d(2)]
    tail = [Quantise(UInt(3), 0.25), nn.Flatten(), quantise_weights(nn.Linear(2 * 3 * 2, 3, bias=False), Ternary())]
    model = nn.Sequential(*body, *tail)
    net = trace(model, input=Stream(1, Int(2), height=12, width=9))
    assert net.output_edge.layout == "vector"
    exact(model, net, torch.randint(-2, 2, (5, 1, 12, 9)))


def test_a_classifier_ends_in_an_argmax() -> None:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), quantise_weights(nn.Linear(3, 4), Int(3)))
            self.body[2].bias = None

        def forward(self, x: Tensor) -> Tensor:
            return torch.argmax(self.body(x), dim=1)

    model = Classifier()
    net = trace(model, input=Stream(3, Binary(), length=8))
    assert isinstance(net.nodes[-1], Argmax)
    x = torch.randint(0, 2, (40, 3, 8))
    assert torch.equal(net.precompute(max_bits=4)(x)[:, 0], model.double()(x.double()))


@pytest.mark.parametrize(
    "flat",
    [lambda x: x.view(x.size(0), -1), lambda x: x.reshape(x.shape[0], -1), lambda x: x.flatten(1), lambda x: torch.flatten(x, 1)],
)
def test_ways_to_flatten(flat) -> None:  # type: ignore[no-untyped-def]
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.quantise, self.linear = nn.Conv1d(2, 2, 2), Quantise(Binary()), nn.Linear(6, 2)
            self.last = Quantise(Int(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.linear(flat(self.quantise(self.conv(x)))))

    model = Net()
    exact(model, trace(model, Stream(2, Binary(), length=4)), torch.randint(0, 2, (20, 2, 4)))


def test_a_layer_that_lies_about_its_mask_is_found_out() -> None:
    layer = nn.Linear(4, 2)
    layer.register_buffer("mask", torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]))
    with pytest.raises(ArgumentError, match="does not fall apart as its weights"):
        trace(nn.Sequential(layer, Quantise(Int(4), 0.125)), Stream(4, UInt(2))).precompute()


def test_joined_channels_and_functions() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv1d(2, 2, 1), nn.Conv1d(2, 1, 3, padding=1)
            self.qa, self.qb = Quantise(Int(2), 0.5), Quantise(PlusMinus())

        def forward(self, x: Tensor) -> Tensor:
            a = self.qa(torch.relu(self.a(x)) * 2 - 1)
            return torch.cat([a, x, self.qb(self.b(-x))], 1)

    net = trace(Net(), input=Stream(2, Int(2), length=7))
    assert [str(domain) for domain in net.output_edge.domains] == ["Int(2)"] * 4 + ["PlusMinus"]
    model = Net()
    exact(model, trace(model, input=Stream(2, Int(2))), torch.randint(-2, 2, (3, 2, 7)))


def test_sums_are_exact_or_refused() -> None:
    wide = nn.Sequential(nn.Linear(40, 3), Quantise(Int(4), 0.5))
    net = trace(wide, input=Stream(40, UInt(2))).precompute()
    assert any(isinstance(node, Sum) for node in net.nodes)
    exact(wide, trace(wide, input=Stream(40, UInt(2))), torch.randint(0, 4, (200, 40)))
    with pytest.raises(ArgumentError, match="only powers of two keep sums exact"):
        trace(wide, input=Stream(40, UInt(2), scale=0.1)).precompute()
    with torch.no_grad():
        wide.double()[0].weight[0, 0] = 2.0**-60
    with pytest.raises(ArgumentError, match="span more than 53 bits"):
        trace(wide, input=Stream(40, UInt(2))).precompute()


def test_inner_values_without_a_grid() -> None:
    exact(model := nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), Quantise(Int(3))), trace(model, Stream(3, Int(2))),
          torch.randint(-2, 2, (30, 3)))  # fmt: skip
    with pytest.raises(ArgumentError, match=r"has no grid of integers.*Put a quantiser after it"):
        trace(nn.Sequential(nn.Conv1d(1, 1, 2), nn.Tanh(), nn.MaxPool1d(2)), Stream(1, Binary()))
    pooled = nn.Sequential(
        quantise_weights(nn.Conv1d(2, 2, 3, bias=False), Int(3)), nn.MaxPool1d(2), nn.BatchNorm1d(2), Quantise(Binary())
    )
    net = trace(pooled, Stream(2, UInt(2)))
    assert any(isinstance(node, Pool) for node in net.nodes)
    exact(pooled, net, torch.randint(0, 4, (9, 2, 11)))


def test_a_claimed_module_is_traced() -> None:
    @precomputable(groups=((2, 1), (1, 1)))
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([(x[:, 0] * x[:, 1]) % 3, x[:, 2].square()], 1)

    model = nn.Sequential(Odd(), Quantise(UInt(4)))
    net = trace(model, Stream(3, UInt(2)))
    exact(model, net, torch.randint(0, 4, (50, 3)))
    (table,) = (node for node in net.precompute().nodes if isinstance(node, Table))
    assert sorted(len(lookup.inputs) for lookup in table.lookups) == [2, 4]


@pytest.mark.parametrize(
    ("model", "stream", "message"),
    [
        (nn.Conv2d(1, 1, 3), Stream(1, Binary()), "a Stream with height and width"),
        (nn.Sequential(nn.Conv1d(2, 2, 1), nn.Linear(2, 2)), Stream(2, Binary()), "flatten it first"),
        (nn.Sequential(nn.Conv1d(2, 2, 1), nn.Flatten()), Stream(2, Binary()), "a Stream with a length"),
        (nn.Sequential(nn.Conv1d(1, 1, 9)), Stream(1, Binary(), length=4), "does not fit into 4 samples"),
        (nn.MaxPool1d(2, ceil_mode=True), Stream(1, Binary()), "ceil_mode"),
        (nn.Conv1d(1, 1, 3, padding=1, padding_mode="reflect"), Stream(1, Binary()), "padding_mode"),
        (nn.LSTM(2, 2), Stream(2, Binary()), "LSTM"),
        (nn.Conv1d(3, 1, 1), Stream(2, Binary()), "3 input channels, expected 2"),
        (nn.BatchNorm1d(2, track_running_stats=False), Stream(2, Binary()), "track_running_stats"),
    ],
)
def test_what_is_refused(model: nn.Module, stream: Stream, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        trace(model, input=stream)


def test_bad_streams_and_inputs() -> None:
    with pytest.raises(ArgumentError, match="dtype has 1 domains, expected 2"):
        Stream(2, [Binary()])
    with pytest.raises(ArgumentError, match="expected both or neither"):
        Stream(2, Binary(), height=3)
    with pytest.raises(ArgumentError, match="input is 3, expected a Stream"):
        trace(nn.Linear(1, 1), input=3)  # type: ignore[arg-type]
    net = trace(nn.Sequential(nn.Linear(2, 1), Quantise(Binary())), Stream(2, [Binary(), PlusMinus()]))
    with pytest.raises(ArgumentError, match="channel 1 of x holds 0, expected values of PlusMinus"):
        net(torch.tensor([[0, 0]]))
    with pytest.raises(ArgumentError, match="not whole"):
        net(torch.tensor([[0.5, 1]]))
    with pytest.raises(ArgumentError, match=r"expected shape \[batch, 2\]"):
        net(torch.zeros(3))


def test_steps_are_recorded() -> None:
    with record() as flow:
        net = trace(nn.Sequential(nn.Linear(2, 1), Quantise(Binary())), Stream(2, Binary())).precompute().dedupe()
        net(torch.zeros(3, 2))
    names = [step.name for step in flow.part("precompute")]
    assert names == ["trace", "precompute", "dedupe", "interpret"]
    assert flow.steps[1].attributes["tables"] == 1
    assert "flowchart" in net.mermaid()
