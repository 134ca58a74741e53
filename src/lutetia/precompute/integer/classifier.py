"""A classifier in whole numbers: its stream graph, and the same as a short list of stages for programs and pages.

    table stage    bits:   bit i = x[left[i]] > x[right[i]], or > constant[i] where right[i] is -1
                   index:  of lookup u, its bits lanes[u, 0] (the highest) to lanes[u, k - 1], xor flip[u]
                   sums:   y[targets] += contents[table[u], index], on top of bias
    linear stage   y = bias + weight · x, by shifts and additions

The class is the number of the greatest y of the last stage, the first of equals. A regression has one y and no class, and may
have one more table stage for the width of its intervals.
The interpreter of the graph is the definition; every stage is read off the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_tensor, fail
from lutetia.precompute.front.lutnet import LUTNetwork
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.stream import Argmax, Compare, Input, Lookup, Register, StreamNode, Sum, Table
from lutetia.precompute.tables.domains import NUMBERS

if TYPE_CHECKING:
    from lutetia.models import ColumnValues
    from lutetia.precompute.integer.intervals import HalfWidth
    from lutetia.precompute.integer.verilog_classifier import SharedClassifier
    from lutetia.precompute.integer.verilog_patches import PatchCore
    from lutetia.precompute.integer.verilog_signals import SignalCore

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class TableStage:
    """Comparisons, tables and sums; int64 arrays.

    left, right, constant   [n_bits]
    lanes                   [n_lookups, k]: the bits of each index, the highest first
    flip                    [n_lookups]
    contents                one array [2**k, n] for each lookup, not negative; equal tables are one object
    targets                 one array [n] for each lookup: the sums it adds to
    bias                    [n_outputs]
    bits                    of two's complement, of the widest sum
    """

    left: Array
    right: Array
    constant: Array
    lanes: Array
    flip: Array
    contents: tuple[Array, ...]
    targets: tuple[Array, ...]
    bias: Array
    bits: int


@dataclass(frozen=True, eq=False)
class LinearStage:
    """weight int64 [n_outputs, n_inputs], bias int64 [n_outputs]; `bits` of two's complement, of the widest sum."""

    weight: Array
    bias: Array
    bits: int


Stage: TypeAlias = TableStage | LinearStage


class IntegerClassifier:
    """A classifier in whole numbers. Made by `integer_model`.

    `bounds` are what the metadata of a regression says of its errors, for these tables: `error_90`, `spread_90`. `columns` say
    how a program is given the values of the columns of a `Tabular`: as whole numbers; by default as they are.
    """

    def __init__(
        self, network: LUTNetwork, bounds: Mapping[str, Any] | None = None, columns: Sequence[ColumnValues] = ()
    ) -> None:
        self.network, self.bounds, self.columns = network, bounds or {}, tuple(columns)
        self.stages = stages(network.graph)

    @property
    def graph(self) -> Graph:
        return self.network.graph

    @property
    def model(self) -> Any:
        """The model it was made from."""
        return self.network.model

    @cached_property
    def half_width(self) -> HalfWidth | None:
        """Of a regression how far nine in ten numbers are from its answer at most, row by row; None where that is not known."""
        from lutetia.precompute.integer.intervals import half_width

        return half_width(self.model, float(self.graph.output_edge.scale[0]), self.bounds)

    @property
    def n_inputs(self) -> int:
        return self.graph.nodes[0].edge.channels

    @property
    def input_bits(self) -> int:
        """Bits of each input, which is 0 to 2**input_bits - 1."""
        return self.network.bits

    @property
    def n_outputs(self) -> int:
        """Classes; 1 for a regression."""
        return len(self.stages[-1].bias)

    def quantise(self, x: Tensor) -> Tensor:
        """Inputs of the float model as whole numbers: x [batch, ...] -> int64 [batch, n_inputs]."""
        return self.network.quantise(x)

    def __call__(self, x: object) -> Tensor:
        """Class numbers (the sum, for a regression) of whole numbers: x [batch, n_inputs] -> int64 [batch]."""
        try:
            given = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError):
            fail("x", x, f"whole numbers [batch, {self.n_inputs}]")
        check_tensor("x", given, ["batch", self.n_inputs], NUMBERS)
        top = 2**self.input_bits - 1
        if given.numel() and (given.is_floating_point() and bool((given != given.round()).any())):
            raise ArgumentError("x holds fractions, expected whole numbers: m.quantise(x) makes them")
        if given.numel() and not 0 <= given.min().item() <= given.max().item() <= top:
            bad = given.min().item() if given.min() < 0 else given.max().item()
            raise ArgumentError(f"x holds {bad}, expected whole numbers from 0 to {top}")
        return self.graph(given.to(torch.int64))[:, 0]

    def emit(self, *, reuse: int) -> SharedClassifier:
        """A core in Verilog, for one layer of tables, that uses its comparators and memories `reuse` times for every sample.
        `graph.emit("verilog")` uses everything once, and answers in every cycle.
        """
        from lutetia.precompute.integer.verilog_classifier import emit_shared

        return emit_shared(self, reuse)

    def emit_images(self, *, reuse: int = 1) -> PatchCore:
        """The core in Verilog of a model that counts patterns in images, which takes pixels one after another. Each comparator is
        used `reuse` times at every position: 1 to the number of pairs of a detector.
        """
        from lutetia.precompute.integer.verilog_patches import emit_patches

        return emit_patches(self, reuse)

    def emit_signals(self) -> SignalCore:
        """The core in Verilog of a model of windows of signals, which takes samples one after another."""
        from lutetia.precompute.integer.verilog_signals import emit_signals

        return emit_signals(self)

    def report(self, x: Tensor, labels: Tensor, query: Tensor | None = None) -> dict[str, float]:
        """The accuracy of the float model and of this one, and how often they agree: x as the float model takes it. Of a ranking
        NDCG@10, by the `query` of each row."""
        return self.network.report(x, labels, query=query)


# ---- the stages of a graph -------------------------------------------------------------------------------------------


def stages(graph: Graph) -> list[Stage]:
    """The stages of a graph of comparisons, tables, sums and one argmax."""
    chain = [node for node in _chain(graph) if not isinstance(node, Register | Input)]
    made: list[Stage] = []
    while chain and not isinstance(chain[0], Argmax):
        match chain:
            case [Compare() as compare, Table() as table, Sum() as total, *_]:
                made.append(_table_stage(compare, table, total))
                del chain[:3]
            case [Compare() as compare, Table() as table, Table(), *_]:  # a hidden layer of gates
                made.append(_gate_stage(compare, table))
                chain[:2] = [_is_one(table)]
            case [Sum() as total, *_]:
                made.append(_linear_stage(graph, total))
                del chain[:1]
            case _:
                raise ArgumentError(f"{chain[0].kind} cannot be written as a program, expected comparisons, tables and sums")
    return made


def _chain(graph: Graph) -> list[StreamNode]:
    """The nodes from the input to the output, which must be one after the other."""
    number, reverse = graph.output, [graph.nodes[graph.output]]
    while reverse[-1].sources:
        number = reverse[-1].source
        reverse.append(graph.nodes[number])
    return reverse[::-1]


def _table_stage(compare: Compare, table: Table, total: Sum) -> TableStage:
    if (total.coefficient != 1).any():
        raise ArgumentError(f"{total.name} multiplies the outputs of its tables: it cannot be written as a program")
    outputs = np.repeat(np.arange(len(total.bias)), np.diff(total.start))
    readers: list[list[int]] = [[] for _ in range(table.edge.channels)]  # equal tables are one, which may count twice
    for channel, output in zip(total.index.tolist(), outputs.tolist(), strict=True):
        readers[channel].append(output)
    order = [lookup for lookup in table.lookups if any(readers[channel] for channel in lookup.outputs)]
    lanes, contents = _of_one_size(order, table)
    widest = max((max(abs(domain.low), abs(domain.high + 1)) for domain in total.edge.domains), default=1)
    return TableStage(
        compare.left, compare.right, compare.constant,
        lanes,
        np.array([lookup.flip for lookup in order], dtype=np.int64),
        tuple(_columns(own, [len(readers[to]) for to in each.outputs]) for own, each in zip(contents, order, strict=True)),
        tuple(np.array([to for each in lookup.outputs for to in readers[each]], dtype=np.int64) for lookup in order),
        total.bias, int(widest).bit_length() + 1,
    )  # fmt: skip


def _gate_stage(compare: Compare, table: Table) -> TableStage:
    """A layer of tables that answer with bits, as sums of one row each."""
    lanes, contents = _of_one_size(table.lookups, table)
    return TableStage(
        compare.left, compare.right, compare.constant,
        lanes,
        np.array([lookup.flip for lookup in table.lookups], dtype=np.int64),
        contents,
        tuple(np.array(lookup.outputs, dtype=np.int64) for lookup in table.lookups),
        np.zeros(table.edge.channels, dtype=np.int64), 2,
    )  # fmt: skip


def _of_one_size(lookups: Sequence[Lookup], table: Table) -> tuple[Array, tuple[Array, ...]]:
    """The lanes of lookups [n, k] and their contents; a lookup of fewer bits repeats its rows, and ignores the extra bits."""
    k = max((len(lookup.inputs) for lookup in lookups), default=1)
    lanes = np.zeros((len(lookups), k), dtype=np.int64)
    contents = []
    for row, lookup in zip(lanes, lookups, strict=True):
        missing, own = k - len(lookup.inputs), table.tables[lookup.table].contents
        row[missing:] = lookup.inputs
        contents.append(np.tile(own, (2**missing, 1)) if missing else own)
    return lanes, tuple(contents)


def _is_one(table: Table) -> Compare:
    """The bits of a layer of tables as comparisons with zero."""
    n = table.edge.channels
    return Compare((0,), table.edge, np.arange(n), np.full(n, -1), np.zeros(n, dtype=np.int64), name=table.name)


def _columns(contents: Array, times: list[int]) -> Array:
    """Each column as often as it is read."""
    return contents if set(times) == {1} else np.repeat(contents, times, axis=1)


def _linear_stage(graph: Graph, total: Sum) -> LinearStage:
    weight = np.zeros((len(total.bias), graph.nodes[total.source].edge.channels), dtype=np.int64)
    rows = np.repeat(np.arange(len(total.bias)), np.diff(total.start))
    np.add.at(weight, (rows, total.index), total.coefficient)
    widest = max(max(abs(domain.low), abs(domain.high + 1)) for domain in total.edge.domains)
    return LinearStage(weight, total.bias, int(widest).bit_length() + 1)
