"""The proof of a whole circuit: every module against the graph, cut where a node hands its samples to the next one.

    wiring      each instance of the top module, pin by pin, from the netlist that yosys elaborated
    tables      each different one, row by row over every address that can occur
    nodes       combinational: SAT against a plain specification, with valid and ready; sums by algebra
    states      registers, windows and forks: every reachable state, with data as tokens

Each node then computes what the interpreter says, in the order of its samples; nodes that are joined by ready and valid do so
too, whatever the stalls. That a circuit never stops is not part of it: queues in front of joins are checked by simulation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lutetia.precompute.front.samples import values_of
from lutetia.precompute.hdl.design import Design
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.interpret import evaluate
from lutetia.precompute.ir.stream import Input, Lookup, Register, StreamEdge, StreamNode, Sum, Table, TableData, Unpack, Window
from lutetia.precompute.passes.dontcare import reachable_rows
from lutetia.precompute.tools.elaborated import exhaust, read_module
from lutetia.precompute.tools.explore import (
    WIDEST_FORK,
    Contract,
    Fault,
    ForkContract,
    QueueContract,
    RowContract,
    WindowContract,
    explore,
)
from lutetia.precompute.tools.find import check_time, run_yosys
from lutetia.precompute.tools.linear import LinearModule
from lutetia.precompute.tools.sat import FEATURE, first_false
from lutetia.precompute.tools.specify import specification
from lutetia.precompute.tools.symbolic import SymbolicModule
from lutetia.precompute.tools.unpacked import LastContract, UnpackContract
from lutetia.precompute.tools.wiring import wrong_wire

if TYPE_CHECKING:
    from lutetia.precompute.tools.hardware import Hardware

HOLDING = (Input, Register, Window, Unpack)  # nodes that are not combinational


@dataclass(frozen=True)
class Disproof:
    """Something that is not what the graph says: where, at which input of that part, and what comes out.

    Without `expected`, `found` is a sentence.
    """

    name: str
    input: Any
    found: Any
    expected: Any
    node: int | None = None
    faulty: Graph | None = None  # the graph with the fault in it, where the interpreter can run that
    silent: str = ""  # why no input of the net can show it


@dataclass(frozen=True)
class ProofJob:
    """One part of the proof: what it is, what proves it, and the parts it consists of where these are several."""

    name: str
    run: Callable[[], Disproof | None]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Netlist:
    """The modules of the hardware as yosys elaborated them: with their instances, and flat."""

    modules: dict[str, Any]
    flat: dict[str, Any]


def elaborate(hardware: Hardware, folder: Path) -> Netlist:
    """Let yosys read the Verilog; the sources lie in the folder."""
    script = ["read_verilog -DSYNTHESIS " + " ".join(hardware.sources), "hierarchy", "proc -norom", "opt_clean"]
    script += [
        "memory_collect",
        "memory_map",
        "opt_clean",
        "write_json modules.json",
        "flatten",
        "opt_clean",
        "write_json flat.json",
    ]
    run_yosys(script, folder, FEATURE)
    modules, flat = (json.loads((folder / f"{name}.json").read_text())["modules"] for name in ("modules", "flat"))
    return Netlist(modules, flat)


def wiring_jobs(plan: Design, netlist: Netlist) -> Iterator[ProofJob]:
    """The top module."""

    def run() -> Disproof | None:
        wrong = wrong_wire(plan, netlist.modules)
        return None if wrong is None else Disproof("the wiring", None, wrong.what, None, wrong.node)

    yield ProofJob(f"the wiring of {len(plan.graph.nodes)} nodes", run)


def state_jobs(plan: Design, netlist: Netlist) -> Iterator[ProofJob]:
    """Registers, windows and forks; equal ones once."""
    instances = netlist.modules[plan.name]["cells"]
    done: set[Any] = set()
    for number, node in enumerate(plan.graph.nodes):
        edges = plan.edges(node)
        if isinstance(node, Register):
            module = instances.get(f"u{number}", {}).get("type", "")
            name = f"node {number}, a register of {node.depth} x {node.edge.width} bits"
            if (module, node.depth, node.row) not in done:
                done.add((module, node.depth, node.row))
                yield _explored(name, number, netlist, module, _register_contract(node))
        elif isinstance(node, Window):
            name = f"node {number}, a window of {node.taps} taps of {edges[0].width} bits"
            yield _explored(name, number, netlist, plan.module(number), WindowContract(node, edges[0]))
        elif isinstance(node, Unpack):
            name = f"node {number}, a word of {edges[0].width} bits as {node.parts} samples"
            yield _explored(name, number, netlist, plan.module(number), UnpackContract(node, edges[0]))
        readers = plan.branches[number]
        module = instances.get(f"f{number}", {}).get("type", "")
        if 1 < readers <= WIDEST_FORK and (module, 0) not in done:
            done.add((module, 0))
            yield _explored(f"the fork to {readers} readers after node {number}", number, netlist, module, ForkContract(readers))


def _register_contract(node: Register) -> Contract:
    if node.row in ("first", "middle"):
        return RowContract(node.edge.width, node.row == "first")
    return QueueContract(node.edge.width, node.depth, node.row == "last")


def row_jobs(plan: Design) -> Iterator[ProofJob]:
    """Rows of registers, where there are any: that the queue at the end has room for all samples that are under way.

    There is at most one for each register, and one more when the queue, with two samples in it, says no.
    """
    if any(isinstance(node, Register) and node.row for node in plan.graph.nodes):
        yield ProofJob("the rows of registers", lambda: _broken_row(plan))


def _broken_row(plan: Design) -> Disproof | None:
    """Counts the registers of an unfinished row behind each node. Only nodes that pass valid and ready on may be inside."""
    behind: list[int] = []
    for number, node in enumerate(plan.graph.nodes):
        before = max((behind[source] for source in node.sources), default=0)
        row = node.row if isinstance(node, Register) else ""
        inside = row in ("middle", "last") or (len(node.sources) == 1 and not isinstance(node, HOLDING))
        behind.append({"first": 1, "middle": before + 1, "last": 0}.get(row, before))
        ends = number == plan.graph.output or plan.branches[number] > 1
        if (before and not inside) or (not before and row in ("middle", "last")) or (behind[-1] and ends):
            return Disproof("a row of registers", None, f"it is not whole at node {number}", None, number)
        if isinstance(node, Register) and row == "last" and node.depth != before + 2:
            return Disproof("a row of registers", None, f"{before} of them end in a queue of {node.depth} places", None, number)
    return None


def marker_jobs(plan: Design, netlist: Netlist) -> Iterator[ProofJob]:
    """The frame marker, where there is one."""
    if plan.last:
        module = netlist.modules[plan.name]["cells"].get("last", {}).get("type", "")
        contract = LastContract(plan.graph.output_edge.samples or 1)
        yield _explored(f"the marker of frames of {contract.samples} answers", plan.graph.output, netlist, module, contract)


def too_many_readers(plan: Design) -> list[str]:
    """Forks whose states are not visited."""
    wide = [(number, count) for number, count in enumerate(plan.branches) if count > WIDEST_FORK]
    return [f"the fork to {count} readers after node {number}" for number, count in wide]


def _explored(name: str, number: int, netlist: Netlist, module: str, contract: Contract) -> ProofJob:
    def run() -> Disproof | None:
        if module not in netlist.flat:
            return Disproof(name, None, "the top module does not hold it", None, number)
        fault = explore(SymbolicModule(netlist.flat[module]), contract)
        return None if fault is None else _of_fault(name, number, fault)

    return ProofJob(name, run)


def _of_fault(name: str, number: int, fault: Fault) -> Disproof:
    return Disproof(name, {"cycles": list(fault.inputs)}, fault.what, None, number)


# ---- tables ----------------------------------------------------------------------------------------------------------


def table_jobs(plan: Design, netlist: Netlist, max_bits: int | None = None) -> Iterator[ProofJob | str]:
    """Every different table, over each address that may occur; names of those of more than `max_bits` address bits."""
    counting = reachable_rows(plan.graph)
    for number, table in enumerate(plan.tables):
        if table.k:
            name = f"table {number} ({table.k} -> {table.out_bits} bits)"
            if max_bits is not None and table.k > max_bits:
                yield name
                continue
            rows = np.flatnonzero(counting[table.key])
            yield ProofJob(name, lambda name=name, number=number, rows=rows: _table(plan, netlist, name, number, rows))  # type: ignore[misc]


def _table(plan: Design, netlist: Netlist, name: str, number: int, rows: np.ndarray) -> Disproof | None:
    check_time("the proof of tables")
    table = plan.tables[number]
    circuit = read_module(netlist.flat[plan.table(number)])
    bits = exhaust(circuit, rows)
    wanted = row_bits(table)[rows]
    differs = np.flatnonzero((bits != wanted).any(1))
    if not len(differs):
        return None
    lookups = [
        own
        for each in plan.graph.nodes
        if isinstance(each, Table)
        for own in each.lookups
        if each.tables[own.table].key == table.key
    ]
    read = [row for row in differs if any(_can_read(int(rows[row]), lookup) for lookup in lookups)]
    row = int((read or differs)[0])
    node = next(at for at, each in enumerate(plan.graph.nodes) if table.key in {own.key for own in getattr(each, "tables", ())})
    faulty = _with_rows(plan.graph, table, rows, bits)
    silent = "" if read else "no lookup reads this row, as one bit would have to be both 0 and 1"
    return Disproof(name, first_use(plan, table)(int(rows[row])), _word(bits[row]), _word(wanted[row]), node, faulty, silent)


def _can_read(address: int, lookup: Lookup) -> bool:
    """Whether a lookup reads this address for some bits: not where it reads a bit twice and the address has two values for it."""
    address ^= lookup.flip
    places = reversed(range(len(lookup.inputs)))
    return len({(bit, address >> place & 1) for bit, place in zip(lookup.inputs, places, strict=True)}) == len(set(lookup.inputs))


def _with_rows(graph: Graph, table: TableData, rows: np.ndarray, bits: np.ndarray) -> Graph:
    """The graph with other rows in a table, wherever it is read: rows [n], their bits uint8 [n, out_bits]."""
    contents, low = table.contents.copy(), 0
    for column, width in enumerate(table.bits):
        contents[rows, column] = sum(bits[:, low + bit].astype(contents.dtype) << bit for bit in range(width))
        low += width
    other = replace(table, contents=contents)
    nodes = [
        replace(node, tables=tuple(other if own.key == table.key else own for own in node.tables))
        if isinstance(node, Table)
        else node
        for node in graph.nodes
    ]
    return Graph(nodes, graph.output)


def first_use(plan: Design, table: TableData) -> Callable[[int], Any]:
    """An address of a table as the bits of the bus that its first reader reads."""

    def decoded(address: int) -> Any:
        for node in plan.graph.nodes:
            for lookup in node.lookups if isinstance(node, Table) else ():
                assert isinstance(node, Table)
                if node.tables[lookup.table].key == table.key and _can_read(address, lookup):
                    read = address ^ lookup.flip
                    bits = {bit: read >> (table.k - 1 - at) & 1 for at, bit in enumerate(lookup.inputs)}
                    return {"address": address, "bits": bits, "channels": _channels(plan.edges(node)[0], bits)}
        return {"address": address}

    return decoded


def _channels(edge: StreamEdge, bits: dict[int, int]) -> dict[int, int]:
    """Channels of which every bit is known, as values."""
    values = {}
    for channel, domain in enumerate(edge.domains):
        own = list(range(int(edge.offsets[channel]), int(edge.offsets[channel + 1])))
        if all(bit in bits for bit in own):
            code = sum(bits[bit] << at for at, bit in enumerate(own))
            values[channel] = int(domain.decode(torch.tensor(code)))
    return values


def row_bits(table: TableData) -> np.ndarray:
    """Each row as bits, output 0 lowest: uint8 [2**k, out_bits]."""
    columns = [(table.contents[:, column] >> bit) & 1 for column, bits in enumerate(table.bits) for bit in range(bits)]
    return np.stack(columns, 1).astype(np.uint8) if columns else np.zeros((len(table.contents), 0), dtype=np.uint8)


def _word(bits: np.ndarray) -> int:
    return sum(int(bit) << place for place, bit in enumerate(bits))


# ---- combinational nodes ---------------------------------------------------------------------------------------------


def combinational(plan: Design) -> list[int]:
    """The nodes that hold no samples."""
    return [number for number, node in enumerate(plan.graph.nodes) if not isinstance(node, HOLDING)]


def sum_jobs(plan: Design, netlist: Netlist) -> Iterator[ProofJob]:
    """Sums, by algebra."""
    for number in combinational(plan):
        node = plan.graph.nodes[number]
        if isinstance(node, Sum):
            name = f"node {number}, {len(node.bias)} sums"
            yield ProofJob(name, lambda name=name, number=number, node=node: _sum(plan, netlist, name, number, node))  # type: ignore[misc]


def _sum(plan: Design, netlist: Netlist, name: str, number: int, node: Sum) -> Disproof | None:
    (edge,) = plan.edges(node)
    module = netlist.flat[plan.module(number)]
    algebra = LinearModule(module)
    pins, outputs = module["ports"]["in_data"]["bits"], module["ports"]["out_data"]["bits"]
    for output, domain in enumerate(node.edge.domains):
        bits = outputs[int(node.edge.offsets[output]) : int(node.edge.offsets[output + 1])]
        low = high = int(node.bias[output])
        wanted: dict[Any, int] = {}
        for place in range(int(node.start[output]), int(node.start[output + 1])):
            channel, coefficient = int(node.index[place]), int(node.coefficient[place])
            source = edge.domains[channel]
            ends = sorted((coefficient * source.low, coefficient * source.high))
            low, high = low + ends[0], high + ends[1]
            for bit in range(source.bits):
                net = pins[int(edge.offsets[channel]) + bit]
                sign = -1 if source.signed and bit == source.bits - 1 else 1
                wanted[net] = wanted.get(net, 0) + sign * coefficient * 2**bit
        if low < domain.low or high > domain.high:
            reason = f"sum {output} lies in {low} to {high}, beyond {domain.low} to {domain.high}"
            return Disproof(name, None, reason, None, number)
        form = algebra.form(bits)
        if isinstance(form, str):
            return Disproof(name, None, f"sum {output} is not a sum of its inputs: {form}", None, number)
        size = 2 ** len(bits)
        wanted = {net: weight % size for net, weight in wanted.items() if weight % size}
        differs = [net for net in {*wanted, *form.coefficients} if wanted.get(net) != form.coefficients.get(net)]
        if differs or (form.constant - int(node.bias[output])) % size:
            return _wrong_sum(name, number, output, pins, differs, form.constant, node)
    return None


def _wrong_sum(name: str, number: int, output: int, pins: list[Any], differs: list[Any], constant: int, node: Sum) -> Disproof:
    """The input at which a wrong sum shows: all zeros, or one bit."""
    if (constant - int(node.bias[output])) % 2 ** node.edge.domains[output].bits or not differs:
        return Disproof(f"{name}, sum {output}", "all bits zero", constant, int(node.bias[output]), number)
    bit = f"bit {pins.index(differs[0])} of in_data" if differs[0] in pins else "a bit that is not of in_data"
    return Disproof(name, None, f"sum {output} has another coefficient for {bit}", None, number)


def miter(plan: Design, number: int) -> str:
    """The emitted node beside its specification; `ok` where data, valid and ready are right. Sums are proved elsewhere."""
    node = plan.graph.nodes[number]
    edges = plan.edges(node)
    width, out, sources = sum(edge.width for edge in edges), node.edge.width, len(edges)
    pins, low = [], 0
    for source, edge in enumerate(edges):
        prefix = "in" if sources == 1 else f"in{source}"
        pins.append(
            f".{prefix}_data(a[{low + edge.width - 1}:{low}]), .{prefix}_valid(v[{source}]), .{prefix}_ready(q[{source}])"
        )
        low += edge.width
    ready = "r" if sources == 1 else "&{v, r}"
    lines = [
        f"module node{number} (input wire [{width - 1}:0] a, input wire [{sources - 1}:0] v, input wire r,",
        f"    output wire [{out - 1}:0] y, output wire [{sources - 1}:0] q, output wire ok);",
        "    wire o;",
        f"    {plan.module(number)} gate ({', '.join(pins)}, .out_data(y), .out_valid(o), .out_ready(r));",
        f"    wire [{sources - 1}:0] wanted = {{{sources}{{{ready}}}}};",
    ]
    equal = "1'b1"
    spec = ""
    if not isinstance(node, Sum):
        spec = specification(plan, number, f"spec{number}", lambda table: plan.table(plan.table_number(table)))
        lines += [f"    wire [{out - 1}:0] want;", f"    spec{number} spec (.a(a), .y(want));"]
        equal = "y == want"
    return "\n".join([spec, *lines, f"    assign ok = {equal} & o == &v & q == wanted;", "endmodule", ""])


def prove_nodes(hardware: Hardware, plan: Design, folder: Path) -> Disproof | None:
    """All combinational nodes in one run of yosys."""
    numbers = combinational(plan)
    texts = [miter(plan, number) for number in numbers]
    found = first_false(hardware, folder, "\n".join(texts), [f"node{number}" for number in numbers], "a,v,r,y,q")
    return None if found is None else _at_node(plan, numbers[found[0]], found[1])


def _at_node(plan: Design, number: int, seen: dict[str, int]) -> Disproof:
    node = plan.graph.nodes[number]
    edges = plan.edges(node)
    splits, low = [], 0
    for edge in edges:
        bits = np.array([[seen.get("a", 0) >> (low + bit) & 1 for bit in range(edge.width)]], dtype=np.uint8)
        splits.append(values_of(edge, bits, 1, ()).numpy())
        low += edge.width
    wanted = evaluate(node, splits, edges)[0].tolist()
    bits = np.array([[seen.get("y", 0) >> bit & 1 for bit in range(node.edge.width)]], dtype=np.uint8)
    found = values_of(node.edge, bits, 1, ())[0].tolist()
    values: dict[str, Any] = {"values": [value for split in splits for value in split[0].tolist()]}
    if found == wanted:  # the handshake is wrong, not the data
        values |= {"valid": seen.get("v"), "out_ready": seen.get("r")}
        return Disproof(title(plan, number), values, f"in_ready = {seen.get('q')}", "valid and ready passed on", number)
    return Disproof(title(plan, number), values, found, wanted, number)


def title(plan: Design, number: int) -> str:
    """The name of a node in messages."""
    node: StreamNode = plan.graph.nodes[number]
    bits = sum(edge.width for edge in plan.edges(node))
    return f"node {number}, {node.kind}{f' of {node.name}' if node.name else ''} ({bits} -> {node.edge.width} bits)"
