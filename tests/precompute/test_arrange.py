"""Ordinary models: pooling before the activation, padding of any kind, slices, shuffles, and tables written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.precompute import (
    Binary,
    Int,
    IOTable,
    MissingRowError,
    PlusMinus,
    Quantise,
    Stream,
    UInt,
    decompose,
    precomputable,
    table_graph,
    trace,
)
from lutetia.precompute.front.samples import random_input
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.stream import Window


class Function(nn.Module):
    """A model that is a function of its layers and x."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


def norm(channels: int, kind: Any = nn.BatchNorm1d) -> nn.Module:
    """Batch norm whose scales have both signs."""
    made = kind(channels)
    with torch.no_grad():
        made.weight.copy_(torch.linspace(-1.3, 1.1, channels))
        made.bias.copy_(torch.randn(channels) / 2)
        made.running_mean.copy_(torch.randn(channels) / 3)
    return made


def quantiser() -> nn.Module:
    return Quantise(Int(3), 0.3)


SEQUENCE, IMAGE = Stream(2, UInt(2), length=9), Stream(1, UInt(2), height=5, width=6)
MODELS: dict[str, tuple[Stream, Callable[[], nn.Module]]] = {
    "pool, norm, relu": (
        SEQUENCE,
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.MaxPool1d(2), norm(4), nn.ReLU(), Quantise(UInt(2), 0.3)),
    ),
    "a padded pool of an image": (
        IMAGE,
        lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.MaxPool2d(3, 2, 1), norm(3, nn.BatchNorm2d), nn.Tanh(), quantiser()),
    ),
    "pool, and a function that turns": (
        SEQUENCE,
        lambda: nn.Sequential(nn.Conv1d(2, 2, 1), quantiser(), nn.ReLU(), nn.MaxPool1d(2), nn.GELU(), quantiser()),
    ),
    "pool, then signs": (
        SEQUENCE,
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 2), nn.MaxPool1d(3, 1), norm(3), Quantise(PlusMinus()), nn.Conv1d(3, 1, 2), quantiser()
        ),
    ),
    "causal": (
        SEQUENCE,
        lambda: nn.Sequential(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(2, 3, 3, dilation=2), quantiser()),
    ),
    "padding in front and behind": (IMAGE, lambda: nn.Sequential(nn.ZeroPad2d((2, 0, 1, 3)), nn.Conv2d(1, 2, 3), quantiser())),
    "padded and padded again": (
        SEQUENCE,
        lambda: Function(lambda x, conv, q: q(conv(F.pad(x, (0, 2)))), nn.Conv1d(2, 2, 3, padding=1, stride=2), quantiser()),
    ),
    "same, of an even window": (IMAGE, lambda: nn.Sequential(nn.Conv2d(1, 2, (2, 4), padding="same"), quantiser())),
    "zeros before a maximum": (
        Stream(2, Int(3), length=6),
        lambda: Function(lambda x: F.max_pool1d(F.pad(x, (1, 0)), 2)),
    ),
    "zeros before a mean": (
        SEQUENCE,
        lambda: Function(lambda x, q: q(F.avg_pool1d(F.pad(x, (1, 0)), 2, stride=1)), quantiser()),
    ),
    "functional maxima": (IMAGE, lambda: Function(lambda x: F.max_pool2d(x, 2, stride=1, ceil_mode=False))),
    "a shuffle": (
        Stream(6, UInt(2), length=4),
        lambda: nn.Sequential(nn.ChannelShuffle(3), nn.Conv1d(6, 2, 1, groups=2), quantiser()),
    ),
    "slices": (
        Stream(5, Int(2)),
        lambda: Function(lambda x: torch.cat([x[:, 3:], x[:, [0, 0]], x[:, ::2]], 1)),
    ),
    "parts": (
        Stream(4, UInt(2), length=3),
        lambda: Function(lambda x: (lambda a, b: torch.cat([b, a], 1))(*[torch.chunk(x, 2, 1)[i] for i in (0, 1)])),
    ),
    "a domain of a Sequential": (
        Stream(3, UInt(2)),
        lambda: precomputable(domain=UInt(2))(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), quantiser())),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_computes_what_the_model_does(name: str) -> None:
    stream, make = MODELS[name]
    torch.manual_seed(len(name))
    model = make().eval()
    net = trace(model, input=stream).precompute()
    x = random_input(net, 40, seed=0)
    assert torch.equal(net.real(x), model.double()(x.double()))
    assert torch.equal(net.fuse(10).dedupe()(x), net(x))


@pytest.mark.parametrize("tool", ["builtin", pytest.param("ghdl", marks=pytest.mark.slow)])
def test_asymmetric_padding_in_hardware(tool: str) -> None:
    from lutetia.precompute import find_tool

    if find_tool("yosys" if tool == "builtin" else tool) is None:
        pytest.skip(f"{tool} is not installed")
    torch.manual_seed(0)
    net = trace(MODELS["padding in front and behind"][1]().eval(), input=IMAGE).precompute()
    assert any(isinstance(node, Window) and node.ends != node.padding for node in net.nodes)
    hardware = net.emit("verilog" if tool == "builtin" else "vhdl")
    hardware.simulate(random_input(net, 3, seed=1), tool=tool)
    if tool == "builtin":
        assert hardware.prove(whole=True).whole


def test_what_is_refused_by_trace() -> None:
    conv = nn.Conv1d(2, 3, 3)
    for layers, message in (
        ((nn.ConstantPad1d(1, 0.0), nn.ReLU()), "follows padding, expected a convolution"),
        ((nn.ConstantPad1d(1, 0.0),), "follows padding"),
        ((nn.ConstantPad1d(1, 2.0), conv, quantiser()), "expected 0: other padding"),
        ((nn.ConstantPad1d(1, 0.0), nn.MaxPool1d(3, 1, 1)), "expected padding once"),
    ):
        with pytest.raises(ArgumentError, match=message):
            trace(nn.Sequential(*layers), input=SEQUENCE)
    for function, message in (
        (lambda x: x[:, :, 1:], "expected all samples"),
        (lambda x: x[:, 2:], "keeps none of 2 channels"),
        (lambda x: x[1:], "expected channels"),
        (lambda x: torch.chunk(x, 2, 2)[0], "expected 1, the channels"),
    ):
        with pytest.raises(ArgumentError, match=message):
            trace(Function(function), input=SEQUENCE)


def test_a_claimed_domain_of_a_sequential_is_used_by_decompose() -> None:
    model = precomputable(domain=UInt(2))(nn.Sequential(nn.Linear(2, 1), Quantise(Int(3))))
    (table,) = decompose(model).tables()
    assert table == IOTable.of(model)
    assert len(table) == 16


# ---- tables written by hand ------------------------------------------------------------------------------------------

XOR = IOTable.from_pairs([((0, 0), (0,)), ((0, 1), (1,)), ((1, 0), (1,)), ((1, 1), (0,))], domain=Binary())


def test_a_graph_of_tables_written_by_hand(tmp_path: Any) -> None:
    XOR.save(tmp_path / "xor.json")
    net = table_graph([[XOR, IOTable.load(tmp_path / "xor.json")], XOR])
    assert isinstance(net, Graph)
    x = random_input(net, 30, seed=0)
    assert torch.equal(net(x)[:, 0], x.sum(1) % 2)
    assert net.emit("verilog").manifest["tables"] >= 1


def test_tables_read_any_channels() -> None:
    difference = IOTable.of(lambda rows: rows[:, :1] - rows[:, 1:], domain=Int(2), n_inputs=2)
    net = table_graph([[(difference, (2, 0)), (difference, (1, 1))]], input=Stream(3, Int(2)))
    x = random_input(net, 50, seed=0)
    assert torch.equal(net(x), torch.stack([x[:, 2] - x[:, 0], torch.zeros(50, dtype=torch.int64)], 1))


def test_partial_tables_need_a_default() -> None:
    rows = [((0, 0), (0,)), ((1, 1), (1,))]
    with pytest.raises(MissingRowError, match="no row for"):
        table_graph([IOTable.from_pairs(rows, domain=Binary())])
    net = table_graph([IOTable.from_pairs(rows, domain=Binary(), default=(-1,))])
    assert net(torch.tensor([[0, 1], [1, 1]])).tolist() == [[-1], [1]]


def test_tables_that_do_not_fit_are_refused() -> None:
    for layers, options, message in (
        ([], {}, "layers is"),
        ([[]], {}, "layer 0 is"),
        (["x"], {}, "a table of layer 0|layer 0 is"),
        ([[(XOR, (0,))]], {}, "2 whole numbers"),
        ([[(XOR, (0, 2))]], {}, "expected all of 0 to 2"),
        ([XOR, XOR], {}, "reads channels"),
        ([XOR], {"input": Stream(1, Binary())}, "reads channels"),
        ([XOR], {"input": 3}, "a Stream"),
    ):
        with pytest.raises(ArgumentError, match=message):
            table_graph(layers, **options)  # type: ignore[arg-type]


# ---- IOTable as a sequence -------------------------------------------------------------------------------------------


def test_a_table_is_a_sequence_of_pairs() -> None:
    pairs = XOR.pairs()
    assert XOR[0] == ((0, 0), (0,)) == pairs[0]
    assert XOR[-1] == pairs[3]
    assert XOR[1:3] == pairs[1:3]
    assert XOR[::-1] == pairs[::-1] == tuple(reversed(XOR))
    assert XOR[(1, 0)] == (1,)
    assert pairs[2] in XOR
    assert XOR.index(pairs[2]) == 2
    assert XOR.count(pairs[0]) == 1
    with pytest.raises(IndexError, match="row 4 of a table of 4 rows"):
        XOR[4]
    with pytest.raises(ArgumentError, match="expected 2 numbers"):
        XOR["ab"]  # type: ignore[call-overload]


def test_rows_of_a_partial_table() -> None:
    table = IOTable.from_pairs([((3, -1), (5,)), ((1, 0), (2,))], domain=Int(3))
    assert [table[place] for place in range(2)] == list(table)
    assert table[-1:] == (table.pairs()[-1],)


@pytest.mark.parametrize("name", ["end", "table", "always_comb", "architecture", "register", "std_logic", "resize", "uwire"])
@pytest.mark.parametrize("language", ["verilog", "vhdl"])
def test_words_of_either_language_are_refused_as_names(name: str, language: str) -> None:
    with pytest.raises(ArgumentError, match=r"it is a reserved word of (VHDL|Verilog|SystemVerilog)"):
        table_graph([XOR]).emit(language, name=name)
