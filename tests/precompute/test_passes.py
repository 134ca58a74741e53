"""Passes: each keeps what the graph computes, and does what it is for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.precompute import Binary, Graph, Int, PlusMinus, Quantise, SparseLinear, Stream, Ternary, UInt, trace
from lutetia.precompute.front.support import reduce_table
from lutetia.precompute.ir.cost import table_luts
from lutetia.precompute.ir.stream import Compare, Input, Layer, Lookup, StreamEdge, Table, TableData, Wire
from lutetia.precompute.passes import lower
from lutetia.precompute.passes.dedupe import canonical
from lutetia.precompute.tables.domains import enumerate_rows


def tables_of(graph: Graph) -> list[Table]:
    return [node for node in graph.nodes if isinstance(node, Table)]


def bank(lookups: list[Lookup], tables: list[TableData], n_bits: int) -> Graph:
    """A graph of one bank of tables over single bits."""
    channels = sum(len(lookup.outputs) for lookup in lookups)
    domains = [UInt(bits) for lookup in lookups for bits in tables[lookup.table].bits]
    edge = StreamEdge((Binary(),) * n_bits)
    assert len(domains) == channels
    return Graph([Input((), edge), Table((0,), edge.carrying(domains), tuple(tables), tuple(lookups))])


def everything(n_bits: int) -> Tensor:
    return torch.cartesian_prod(*[torch.arange(2)] * n_bits).reshape(-1, n_bits)


def lively(*sizes: int, seed: int) -> SparseLinear:
    """A layer whose outputs depend on all they read."""
    layer = SparseLinear(*sizes, seed=seed)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed)).sign() * 0.75)
        layer.bias.fill_(0.125)
    return layer


# ---- dedupe ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(1, 5), st.randoms(use_true_random=False))
def test_permuted_and_negated_tables_become_one(k: int, random) -> None:  # type: ignore[no-untyped-def]
    contents = np.array([[random.randrange(4)] for _ in range(2**k)])
    order = random.sample(range(k), k)
    flip = random.randrange(2**k)
    # Row by row: the second table at address a is the first one with its bits permuted and flipped.
    other = np.zeros_like(contents)
    for address in range(2**k):
        bits = [(address >> (k - 1 - place)) & 1 for place in range(k)]
        moved = sum(bits[order[place]] << (k - 1 - place) for place in range(k)) ^ flip
        other[address] = contents[moved]
    inputs = tuple(range(k))
    graph = bank([Lookup(0, inputs, (0,)), Lookup(1, inputs, (1,))], [TableData(contents, (2,)), TableData(other, (2,))], k)
    made = graph.dedupe()
    assert torch.equal(made(everything(k)), graph(everything(k)))
    signatures = canonical(TableData(contents, (2,)))[0].key, canonical(TableData(other, (2,)))[0].key
    assert made.n_tables == (1 if signatures[0] == signatures[1] else 2)


def test_merging_under_permutation_and_negation_happens() -> None:
    rows = np.array([[0], [1], [2], [3], [0], [0], [1], [2]])
    orders = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 4, 1, 5, 2, 6, 3, 7], [7, 6, 5, 4, 3, 2, 1, 0], [1, 0, 5, 4, 3, 2, 7, 6]]
    tables = [TableData(rows[order], (2,)) for order in orders]
    graph = bank([Lookup(number, (0, 1, 2), (number,)) for number in range(4)], tables, 3)
    made = graph.dedupe()
    assert (graph.n_tables, made.n_tables, made.n_lookups) == (4, 1, 4)
    assert torch.equal(made(everything(3)), graph(everything(3)))


def test_equal_lookups_comparisons_and_dead_channels_go() -> None:
    rows = TableData(np.array([[0, 1], [1, 0], [1, 1], [0, 0]]), (1, 1))
    lookups = [Lookup(0, (0, 1), (0, 1)), Lookup(1, (0, 1), (2, 3)), Lookup(1, (1, 2), (4, 5)), Lookup(0, (2, 1), (6, 7))]
    graph = bank(lookups, [rows, replace(rows)], 4)
    edge = graph.output_edge
    lanes = Compare((1,), edge.carrying([Binary()] * 3), np.array([0, 2, 5]), np.array([1, 3, -1]), np.array([0, 9, 0]))
    whole = Graph([*graph.nodes, lanes])
    made = whole.dedupe()
    assert torch.equal(made(everything(4)), whole(everything(4)))
    (table,) = tables_of(made)
    assert len(table.lookups) == 2  # the first two are the same, and nothing reads the last one
    assert sum(isinstance(node, Compare) and len(node.left) for node in made.nodes) == 2
    assert any(isinstance(node, Wire) for node in made.nodes)


# ---- don't-cares -----------------------------------------------------------------------------------------------------


def test_address_bits_that_decide_nothing_go() -> None:
    contents = np.array([[3], [3], [5], [5], [3], [3], [5], [5]])
    table, kept = reduce_table(TableData(contents, (3,)))
    assert (kept, table.contents.tolist()) == ((1,), [[3], [5]])
    care = np.array([True, False, True, False, False, True, False, False])
    contents = np.array([[1], [9], [1], [9], [9], [2], [9], [9]])
    table, kept = reduce_table(TableData(contents, (4,), care))
    assert (kept, table.contents.tolist(), table.care) == ((0,), [[1], [2]], None)


def test_codes_that_cannot_occur_are_used() -> None:
    # The first layer only ever gives 0 and 3, so the second one needs one bit of each of its inputs.
    first = nn.Sequential(lively(3, 4, 2, seed=0), Quantise(PlusMinus(), 1.0))
    model = nn.Sequential(first, nn.Hardtanh(0, 1), Quantise(UInt(2), 1 / 3), lively(4, 2, 3, seed=1), Quantise(Int(3), 0.25))
    net = trace(model, Stream(3, Ternary())).precompute()
    assert max(len(lookup.inputs) for lookup in tables_of(net)[-1].lookups) == 3
    assert max(len(lookup.inputs) for lookup in tables_of(net)[0].lookups) == 4
    x = Ternary().values()[torch.randint(3, (100, 3))]
    assert torch.equal(net.real(x), model.double()(x.double()))


@pytest.mark.parametrize("level", [0, 1])
def test_a_sum_half_way_between_two_levels_may_fall_on_either(level: int) -> None:
    layer = nn.Linear(4, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.75, 0.75, -0.75, -0.75]]))
        layer.bias.fill_(0.125)
    model = nn.Sequential(nn.Linear(2, 4), Quantise(UInt(2), 1 / 3), layer, Quantise(Int(4), 0.25))
    graph = trace(model, Stream(2, UInt(1)))
    node = next(node for node in graph.nodes if isinstance(node, Layer) and node.edge.channels == 1)
    edge = graph.nodes[node.sources[0]].edge
    table = lower._table(node, 0, edge)
    rows = enumerate_rows(edge.domains)
    half_way = (rows[:, :2].sum(1) == rows[:, 2:].sum(1)).numpy()  # 3/4 · 0 + 1/8 is half a step
    contents = table.tables[0].contents.copy()
    contents[half_way] = level
    lower._probe(node, replace(table, tables=(TableData(contents, (4,)),)), edge)
    contents[~half_way] ^= 1
    with pytest.raises(ArgumentError, match="does not split"):
        lower._probe(node, replace(table, tables=(TableData(contents, (4,)),)), edge)


def test_unseen_addresses_are_dropped_only_when_asked_and_at_a_price() -> None:
    model = nn.Sequential(nn.Linear(6, 8), Quantise(PlusMinus()), nn.Linear(8, 3), Quantise(Int(4), 0.25))
    net = trace(model, Stream(6, UInt(2))).precompute()
    x, other = torch.randint(0, 4, (40, 6)), torch.randint(0, 4, (400, 6))
    assert torch.equal(net.dont_cares()(other), net(other))
    assert net.reports == ()
    labels = net(other).argmax(1)
    cut = net.dont_cares(unseen=x, check=other, labels=labels)
    assert torch.equal(cut(x), net(x))
    assert cut.cost().luts < net.cost().luts
    (report,) = cut.reports
    unchanged = (cut(other) == net(other)).all(1).double().mean().item()
    assert report["unchanged"] == unchanged < 1
    assert report["accuracy_before"] == 1
    assert report["accuracy_after"] == (cut(other).argmax(1) == labels).double().mean().item()
    assert report["accuracy_cost"] == 1 - report["accuracy_after"]
    with pytest.raises(ArgumentError, match="go with unseen=x"):
        net.dont_cares(labels=labels)


# ---- fuse ------------------------------------------------------------------------------------------------------------


def test_tables_behind_tables_become_one_within_the_budget() -> None:
    model = nn.Sequential(lively(6, 4, 2, seed=0), Quantise(Int(2)), nn.Hardtanh(-1, 1), Quantise(Ternary()),
                          lively(4, 2, 2, seed=1), Quantise(Binary()))  # fmt: skip
    net = trace(model, Stream(6, UInt(1))).precompute()
    fused = net.fuse(budget=4)
    assert (len(tables_of(net)), len(tables_of(fused))) == (3, 1)
    assert fused.cost().luts <= net.cost().luts
    assert fused.cost().latency < net.cost().latency
    x = everything(6)
    assert torch.equal(fused(x), net(x))
    assert torch.equal(fused.real(x), model.double()(x.double()))
    assert len(tables_of(net.fuse(budget=1))) == 3


def test_what_would_cost_more_is_not_fused() -> None:
    model = nn.Sequential(lively(40, 8, 5, seed=0), Quantise(Binary()), lively(8, 6, 4, seed=1), Quantise(Binary()))
    net = trace(model, Stream(40, Binary())).precompute()
    assert len(tables_of(net.fuse(budget=20))) == len(tables_of(net)) == 2


# ---- cost ------------------------------------------------------------------------------------------------------------


def test_cost_of_tables() -> None:
    def luts(k: int, bits: int = 1) -> int:
        rows = np.random.default_rng(0).integers(0, 2**bits, (2**k, 1))
        return table_luts(TableData(rows, (bits,)))

    assert [luts(k) for k in (0, 6, 7, 8, 9, 10, 12)] == [0, 1, 3, 5, 13, 21, 85]
    assert luts(6, 4) == 4
    parity = np.array([[bin(number).count("1") % 2] for number in range(256)])
    assert table_luts(TableData(parity, (1,))) == 5
    wire = np.array([[number >> 3 & 1] for number in range(256)])
    assert table_luts(TableData(wire, (1,))) == 0


def test_the_cost_table_adds_up() -> None:
    model = nn.Sequential(
        nn.Conv1d(2, 2, 3, padding=1, groups=2), Quantise(Binary()), nn.Flatten(), nn.Linear(20, 3), Quantise(Int(3))
    )
    cost = trace(model, Stream(2, UInt(2), length=10)).precompute(max_bits=8).cost()
    assert cost.luts == sum(row["luts"] for row in cost.to_dicts()) > 0
    windows = [row for row in cost.rows if row.kind == "window"]
    assert [row.flip_flops for row in windows] == [3 * 4, 10 * 2]
    assert str(cost).splitlines()[-2].split()[-2:] == [str(cost.luts), str(cost.flip_flops)]
    assert cost.latency == 4


def test_the_tables_of_a_graph_as_io_tables() -> None:
    model = nn.Sequential(lively(3, 4, 2, seed=0), Quantise(Ternary()))
    net = trace(model, Stream(3, Ternary())).precompute().dedupe()
    (node,) = tables_of(net)
    tables = net.io_tables()
    assert len(tables) == net.n_tables
    for table, data in zip(tables, node.tables, strict=True):
        assert not table.is_complete  # the code 0b10 of an input does not occur
        for bits, codes in table.pairs():
            address = int("".join(map(str, bits)), 2)
            assert tuple(data.contents[address]) == codes
