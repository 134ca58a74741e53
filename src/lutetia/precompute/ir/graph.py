"""`Graph`: a network as a stream graph, and the passes that turn it into small tables.

    net = trace(model, input=Stream(channels=4, dtype=UInt(2)))
    net = net.precompute(max_bits=16).dedupe().fuse(budget=12).minimise(k=6)

Graphs are values: a pass returns a new one. `net(x)` runs the integer interpreter, which defines what a graph means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lutetia import flow
from lutetia.errors import ArgumentError, check_choice
from lutetia.precompute.ir.stream import Input, Layer, StreamEdge, StreamNode, Table
from lutetia.precompute.tables.domains import check_whole

if TYPE_CHECKING:
    from lutetia.precompute.ir.cost import CostTable
    from lutetia.precompute.tables.table import IOTable
    from lutetia.precompute.tools.cycles import Cycles
    from lutetia.precompute.tools.hardware import Hardware


class Graph:
    """Nodes in topological order; node 0 is the input, `output` the number of the node that gives the result."""

    def __init__(self, nodes: Iterable[StreamNode], output: int | None = None, reports: Sequence[dict[str, Any]] = ()) -> None:
        self.nodes: tuple[StreamNode, ...] = tuple(nodes)
        self.output = len(self.nodes) - 1 if output is None else output
        self.reports: tuple[dict[str, Any], ...] = tuple(reports)  # what passes found worth telling
        if not self.nodes or not isinstance(self.nodes[0], Input):
            raise ArgumentError("the first node of a graph is its Input")
        for number, node in enumerate(self.nodes):
            if any(not 0 <= source < number for source in node.sources):
                raise ArgumentError(f"node {number} reads nodes {node.sources}, expected earlier ones")

    # ---- what it is ---------------------------------------------------------------------------------------------------

    @property
    def input_edge(self) -> StreamEdge:
        return self.nodes[0].edge

    @property
    def output_edge(self) -> StreamEdge:
        return self.nodes[self.output].edge

    def readers(self) -> list[list[int]]:
        """For each node, the nodes that read it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.sources):
                found[source].append(number)
        return found

    def of_kind(self, kind: type[StreamNode]) -> list[int]:
        """The numbers of all nodes of a kind."""
        return [number for number, node in enumerate(self.nodes) if isinstance(node, kind)]

    @property
    def is_hardware(self) -> bool:
        """Whether no layer of PyTorch is left."""
        return not self.of_kind(Layer)

    @property
    def n_tables(self) -> int:
        """How many different tables there are."""
        return len({id(table) for node in self.nodes if isinstance(node, Table) for table in node.tables})

    @property
    def n_lookups(self) -> int:
        """How many times a table is built."""
        return sum(len(node.lookups) for node in self.nodes if isinstance(node, Table))

    def __repr__(self) -> str:
        kinds: dict[str, int] = {}
        for node in self.nodes:
            kinds[node.kind] = kinds.get(node.kind, 0) + 1
        listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        return f"Graph({self.input_edge.channels} -> {self.output_edge.channels} channels; {listed})"

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart."""
        from lutetia.flow import mermaid_label

        lines = ["flowchart TD"]
        for number, node in enumerate(self.nodes):
            label = mermaid_label(f"{node.kind} {node.name}")
            lines.append(f'    n{number}["{label}<br>{node.edge.channels} channels, {node.edge.width} bits"]')
            lines += [f"    n{source} --> n{number}" for source in node.sources]
        return "\n".join(lines) + "\n"

    def io_tables(self) -> tuple[IOTable, ...]:
        """Every different table, from its address bits to the codes of its outputs; rows that cannot be read are left out."""
        from lutetia.precompute.tables.domains import Binary, enumerate_rows
        from lutetia.precompute.tables.table import IOTable

        made = {}
        for table in (table for node in self.nodes if isinstance(node, Table) for table in node.tables):
            if id(table) not in made:
                bits = [Binary()] * table.k
                outputs = torch.from_numpy(table.contents.astype("int64"))
                rows = None if table.care is None else torch.from_numpy(table.care)
                inputs = None if rows is None else enumerate_rows(bits)[rows]
                made[id(table)] = IOTable(inputs, outputs if rows is None else outputs[rows], domain=bits)
        return tuple(made.values())

    # ---- what it means ------------------------------------------------------------------------------------------------

    def __call__(self, x: Tensor) -> Tensor:
        """Values in, values out, in PyTorch's layout: x [batch, channels, *shape] of whole numbers -> int64."""
        from lutetia.precompute.ir.interpret import run

        with flow.step("interpret", part="precompute", inputs={"x": x}, nodes=len(self.nodes)) as step:
            y = run(self, x)
            step.outputs(y=y)
        return y

    run = __call__

    def real(self, x: Tensor) -> Tensor:
        """The same as real numbers, what the PyTorch model gives in float64: x [batch, channels, *shape] -> float64."""
        y = self(x)
        scale = torch.tensor(self.output_edge.scale, dtype=torch.float64)
        return y * scale.reshape(-1, *(1,) * (y.dim() - 2))

    # ---- passes -------------------------------------------------------------------------------------------------------

    def precompute(self, max_bits: int = 16) -> Graph:
        """Turn every layer into tables of at most `max_bits` address bits, or, where a unit is wider, into exact sums."""
        from lutetia.precompute.passes.lower import precompute

        return self._pass("precompute", precompute, max_bits=max_bits)

    def dedupe(self) -> Graph:
        """Merge equal tables, even if inputs are permuted or negated; drop what nothing reads."""
        from lutetia.precompute.passes.dedupe import dedupe

        return self._pass("dedupe", dedupe)

    def fuse(self, budget: int = 12) -> Graph:
        """Merge tables into the tables that read them, where the result has at most `budget` address bits and is no larger."""
        from lutetia.precompute.passes.fuse import fuse

        return self._pass("fuse", fuse, budget=budget)

    def dont_cares(self, unseen: Tensor | None = None, check: Tensor | None = None, labels: Tensor | None = None) -> Graph:
        """Find the addresses that cannot occur and use them to drop address bits. Sound; `precompute` and `fuse` end with it.

        With `unseen`, inputs as for `net(x)`, addresses that do not occur in these data are dropped too, which may change
        answers. The last of `reports` gives the cost on `check` (other inputs; by default the same): the fraction of answers that
        stayed the same and, where `labels` [batch] are given, the accuracy.
        """
        from lutetia.precompute.passes.dontcare import dont_cares

        return self._pass("dont_cares", dont_cares, unseen=unseen, check=check, labels=labels)

    def minimise(self, k: int = 6) -> Graph:
        """Find for each table the cheapest form in LUTs of k inputs, kept in its `form`."""
        from lutetia.precompute.passes.lower import minimise

        return self._pass("minimise", minimise, k=k)

    def retime(self, levels: int) -> Graph:
        """Move the pipeline registers to the narrowest cuts that leave at most about `levels` LUTs one after the other."""
        from lutetia.precompute.passes.retime import retime

        return self._pass("retime", retime, levels=levels)

    def _pass(self, name: str, function: Callable[..., Graph], **options: Any) -> Graph:
        plain = {key: value for key, value in options.items() if isinstance(value, int)}
        with flow.step(name, part="precompute", inputs=None, nodes=len(self.nodes), **plain) as step:
            made = function(self, **options)
            step.note(tables=made.n_tables, lookups=made.n_lookups)
        return made

    def cost(self, k: int = 6) -> CostTable:
        """What the graph needs: tables, bits, an upper bound on LUTs, flip-flops, cycles of latency."""
        from lutetia.precompute.ir.cost import cost

        check_whole("k", k, 2, 16)
        return cost(self, k)

    def cycles(self) -> Cycles:
        """Clock cycles without stalls: to the first answer, and for each frame. `hardware.cycles()` measures the same."""
        from lutetia.precompute.tools.cycles import count_cycles

        self._check_hardware()
        return count_cycles(self)

    def emit(self, language: str = "verilog", **options: Any) -> Hardware:
        """The graph as hardware: modules, a test bench and a manifest, in "verilog" or "vhdl".

        `name` is that of the top module; `last=True` adds an output `out_last`, high beside the last answer of each frame.
        """
        check_choice("language", language, ("verilog", "vhdl"))
        self._check_hardware()
        from lutetia.precompute.hdl.emit import emit

        with flow.step("emit", part="precompute", language=language, lookups=self.n_lookups):
            return emit(self, language, **options)

    def _check_hardware(self) -> None:
        if not self.is_hardware:
            raise ArgumentError("the graph still holds layers of PyTorch: call precompute() first")

    # ---- for passes ---------------------------------------------------------------------------------------------------

    def replaced(self, nodes: Sequence[StreamNode], output: int | None = None) -> Graph:
        """Another set of nodes with the same reports."""
        return Graph(nodes, output, self.reports)

    def reported(self, **report: Any) -> Graph:
        """The same graph with one more report."""
        return Graph(self.nodes, self.output, (*self.reports, report))


class Builder:
    """A list of nodes that grows; `add` gives the number of the new one."""

    def __init__(self) -> None:
        self.nodes: list[StreamNode] = []

    def add(self, node: StreamNode) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def edge(self, number: int) -> StreamEdge:
        return self.nodes[number].edge


def without_dead_nodes(graph: Graph) -> Graph:
    """The graph without the nodes that nothing reads; the input stays."""
    alive = {0, graph.output}
    for number in reversed(range(len(graph.nodes))):
        if number in alive:
            alive.update(graph.nodes[number].sources)
    order = sorted(alive)
    place = {number: at for at, number in enumerate(order)}
    nodes = [
        replace(graph.nodes[number], sources=tuple(place[source] for source in graph.nodes[number].sources)) for number in order
    ]
    return graph.replaced(nodes, place[graph.output])
