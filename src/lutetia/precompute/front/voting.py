"""How a circuit of votes came to its answer: the votes of each class, and the inputs that the winning votes read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from lutetia.errors import fail
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.interpret import trace_values
from lutetia.precompute.ir.stream import Argmax, Compare, Input, Register, Sum, Table


class Voting(NamedTuple):
    """For each sample: its answer [n], the count of each class [n, n_classes], and for each input the number of tables that voted
    for the answer and read it, directly or through other tables [n, n_inputs]. All int64."""

    answers: np.ndarray
    counts: np.ndarray
    reads: np.ndarray


def voting(graph: Graph, x: Tensor) -> Voting:
    """Send x [n, n_inputs], whole numbers, through the graph of a `Votes` or a `Gates`."""
    _check(graph)
    values = trace_values(graph, x)
    reads = np.eye(graph.input_edge.channels, dtype=bool)  # [channels, n_inputs]: which inputs a channel depends on
    for number, node in enumerate(graph.nodes):
        if isinstance(node, Compare):
            reads = reads[node.left]
        elif isinstance(node, Table):
            reads = _read(node, reads)
        elif isinstance(node, Sum):
            votes, counts = values[node.sources[0]], values[number]
            answers = counts.argmax(1)
            owners = [node.index[begin:end] for begin, end in zip(node.start, node.start[1:], strict=False)]
            winners = [owners[answer] for answer in answers]
            read = [reads[own].astype(np.int64).T @ given[own] for own, given in zip(winners, votes, strict=True)]
            return Voting(answers, counts, np.stack(read))
    fail("graph", graph, "a sum of votes")


def wiring(graph: Graph) -> dict[str, Any]:
    """A circuit of votes as plain data, so that a page can run it.

    bits     for each bit (input, constant): it is set where the input is greater
    layers   for each layer [name, tables]; a table is the bits that it reads of the layer before, the highest place first, and
             its rows as a text of zeros and ones
    classes  for each class [its first count, (bits of the last layer), (what each is worth)]
    """
    _check(graph)
    bits: list[tuple[int, int]] = []
    layers: list[tuple[str, list[tuple[list[int], str]]]] = []
    for node in graph.nodes:
        if isinstance(node, Compare):
            bits = list(zip(node.left.tolist(), node.constant.tolist(), strict=True))
        elif isinstance(node, Table):
            layers.append((node.name, _tables(node)))
        elif isinstance(node, Sum):
            ends = zip(node.start.tolist(), node.start.tolist()[1:], node.bias.tolist(), strict=False)
            classes = [(bias, node.index[a:b].tolist(), node.coefficient[a:b].tolist()) for a, b, bias in ends]
            return {"bits": bits, "layers": layers, "classes": classes}
    fail("graph", graph, "a sum of votes")


def _tables(node: Table) -> list[tuple[list[int], str]]:
    """What each output of a layer reads, and its rows, flipped as its lookup is."""
    tables: list[tuple[list[int], str]] = [([], "0")] * node.edge.channels
    for lookup in node.lookups:
        contents = node.tables[lookup.table].contents
        rows = contents[np.arange(len(contents)) ^ lookup.flip]
        for column, output in enumerate(lookup.outputs):
            tables[output] = list(lookup.inputs), "".join(map(str, rows[:, column].tolist()))
    return tables


def _check(graph: Graph) -> None:
    if any(not isinstance(node, Input | Compare | Register | Table | Sum | Argmax) for node in graph.nodes):
        fail("graph", graph, "comparisons, tables, one sum of votes and an argmax: that of Votes or Gates")


def _read(node: Table, reads: np.ndarray) -> np.ndarray:
    """The inputs behind each output of a layer of tables: bool [channels, n_inputs]."""
    outputs = np.zeros((node.edge.channels, reads.shape[1]), dtype=bool)
    for lookup in node.lookups:
        outputs[list(lookup.outputs)] = reads[list(lookup.inputs)].any(0)
    return outputs
