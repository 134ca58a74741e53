"""A stream graph as files of a hardware language: one module per node and per table, the fixed circuits, and a top module.

A table that has been minimised is written as its LUTs, one instance each.
"""

from __future__ import annotations

from collections.abc import Sequence

from lutetia.precompute.hdl.design import Design, design, truth
from lutetia.precompute.hdl.dialect import Dialect, Pin
from lutetia.precompute.hdl.nodes import write_node
from lutetia.precompute.hdl.verilog import Verilog
from lutetia.precompute.hdl.vhdl import VHDL
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.netlist import ONE, ZERO, LutForm
from lutetia.precompute.ir.stream import ROWS, Input, Register, StreamNode, TableData, Unpack, Window
from lutetia.precompute.tools.hardware import Hardware

DIALECTS: dict[str, type[Dialect]] = {"verilog": Verilog, "vhdl": VHDL}
CLOCK = (Pin("in", 0, "clk"), Pin("in", 0, "rst"))


def emit(graph: Graph, language: str, name: str = "net", *, last: bool = False) -> Hardware:
    """The files of a graph; `name` is that of the top module and the beginning of all others.

    With `last` the top module has one more output, `out_last`: high with the last answer of each frame.
    """
    plan = design(graph, name, last)
    dialect = DIALECTS[language]
    files = {f"{name}_{kind}{dialect.ending}": dialect().fixed(kind, name) for kind in _fixed(plan)}
    written: set[int] = set()
    for number, node in enumerate(plan.graph.nodes):
        if isinstance(node, Input | Register):
            continue
        own = [each for each in plan.tables_of(node) if each not in written]  # a table is written after its first reader
        written.update(own)
        modules = [_node(plan, number, dialect()), *(_table(plan, each, dialect()) for each in own)]
        files[f"{plan.module(number)}{dialect.ending}"] = dialect().file(*modules)
    files[f"{name}{dialect.ending}"] = dialect().file(_top(plan, dialect()))
    memories = {f"{plan.table(at)}.mem": _memory(table) for at, table in enumerate(plan.tables) if _in_memory(table, dialect())}
    return Hardware(plan.graph, language, name, files | memories, last)


def _fixed(plan: Design) -> list[str]:
    """The circuits of `rtl/` that a design needs."""
    nodes = plan.graph.nodes
    needed = {
        "lut": any(table.form is not None and table.form.cells for table in plan.tables),
        "register": any(isinstance(node, Register) for node in nodes),
        "window": any(isinstance(node, Window) for node in nodes),
        "unpack": any(isinstance(node, Unpack) for node in nodes),
        "fork": any(count > 1 for count in plan.branches),
        "last": plan.last,
    }
    return [kind for kind, is_needed in needed.items() if is_needed]


# ---- tables ----------------------------------------------------------------------------------------------------------


def _in_memory(table: TableData, d: Dialect) -> bool:
    return table.form is None and table.k > d.longest


def _table(plan: Design, number: int, d: Dialect) -> str:
    """The module of one table: address `a`, most significant bit first, to `y`, output 0 in the lowest bits."""
    table = plan.tables[number]
    if table.form is not None:
        _luts(plan.name, table.form, d)
    else:
        d.table(truth(table), table.k, f"{plan.table(number)}.mem" if _in_memory(table, d) else None)
    return d.module(plan.table(number), [Pin("in", table.k, "a"), Pin("out", table.out_bits, "y")])


def _luts(name: str, form: LutForm, d: Dialect) -> None:
    signals = {ZERO: d.zero, ONE: d.one} | {at: d.bit("a", at, form.n_inputs) for at in range(form.n_inputs)}
    signals |= {form.n_inputs + at: f"s{at}" for at in range(len(form.cells))}
    for number, cell in enumerate(form.cells):
        k = len(cell.inputs)
        d.signal(0, f"s{number}")
        inputs = d.pin(f"i{number}", k, d.joined([signals[each] for each in reversed(cell.inputs)]))
        generics = {"K": str(k), "INIT": d.literal(cell.init, 2**k)}
        d.instance(f"{name}_lut", f"u{number}", {"i": inputs, "o": f"s{number}"}, generics)
    d.assign_bits("y", [signals[each] for each in reversed(form.outputs)])
    read = {each for cell in form.cells for each in cell.inputs} | set(form.outputs)
    if not set(range(form.n_inputs)) <= read:
        d.unused("a")


def _memory(table: TableData) -> str:
    """One row per line; the form that `$readmemh` reads."""
    digits = (table.out_bits + 3) // 4
    rows = [0] * len(table.contents)
    place = 0
    for column, bits in enumerate(table.bits):
        rows = [row | int(value) << place for row, value in zip(rows, table.contents[:, column], strict=True)]
        place += bits
    return "\n".join(f"{row:0{digits}x}" for row in rows) + "\n"


# ---- nodes and the top -----------------------------------------------------------------------------------------------


def _stream(prefix: str, bits: int, way: str) -> list[Pin]:
    """Data, valid and ready of a stream that comes in or goes out."""
    back = "out" if way == "in" else "in"
    return [Pin(way, bits, f"{prefix}_data"), Pin(way, 0, f"{prefix}_valid"), Pin(back, 0, f"{prefix}_ready")]


def _inputs(node: StreamNode) -> Sequence[str]:
    """What a module calls its sources."""
    return ["in"] if len(node.sources) == 1 else [f"in{source}" for source in range(len(node.sources))]


def _node(plan: Design, number: int, d: Dialect) -> str:
    node = plan.graph.nodes[number]
    ports = list(CLOCK) if isinstance(node, Window | Unpack) else []
    for prefix, edge in zip(_inputs(node), plan.edges(node), strict=True):
        ports += _stream(prefix, edge.width, "in")
    ports += _stream("out", node.edge.width, "out")
    write_node(d, plan, number)
    title = f"{node.kind}{f' of {node.name}' if node.name else ''}: {node.edge.channels} channels, {node.edge.width} bits"
    return d.module(plan.module(number), ports, title)


def _top(plan: Design, d: Dialect) -> str:
    graph = plan.graph
    for number, node in enumerate(graph.nodes):
        d.signal(node.edge.width, f"n{number}_data")
        d.signal(0, f"n{number}_valid", f"n{number}_ready")
        if isinstance(node, Input):
            d.assign(f"n{number}_data", "in_data")
            d.assign(f"n{number}_valid", "in_valid")
            d.assign("in_ready", f"n{number}_ready")
        else:
            _instance(plan, number, d)
        if plan.branches[number] > 1:
            _fork(plan, number, d)
    valid, ready = _ends(plan, graph.output, plan.branches[graph.output] - 1, d)
    d.assign("out_data", f"n{graph.output}_data")
    d.assign("out_valid", valid)
    d.assign(ready, "out_ready")
    if not plan.has_state:
        d.unused("clk", "rst")
    ports = [*CLOCK, *_stream("in", graph.input_edge.width, "in"), *_stream("out", graph.output_edge.width, "out")]
    if plan.last:
        pins = {"clk": "clk", "rst": "rst", "valid": valid, "ready": "out_ready", "last": "out_last"}
        d.instance(f"{plan.name}_last", "last", pins, {"SAMPLES": str(graph.output_edge.samples)})
        ports.append(Pin("out", 0, "out_last"))
    return d.module(plan.name, ports)


def _ends(plan: Design, source: int, branch: int, d: Dialect) -> tuple[str, str]:
    """The valid and ready wires of one reader of a node."""
    size = plan.branches[source]
    if size == 1:
        return f"n{source}_valid", f"n{source}_ready"
    return d.bit(f"n{source}_valids", branch, size), d.bit(f"n{source}_readies", branch, size)


def _instance(plan: Design, number: int, d: Dialect) -> None:
    node = plan.graph.nodes[number]
    pins = {"clk": "clk", "rst": "rst"} if isinstance(node, Register | Window | Unpack) else {}
    for prefix, reader in zip(_inputs(node), plan.readers[number], strict=True):
        valid, ready = _ends(plan, reader.source, reader.branch, d)
        pins |= {f"{prefix}_data": f"n{reader.source}_data", f"{prefix}_valid": valid, f"{prefix}_ready": ready}
    pins |= {f"out_{name}": f"n{number}_{name}" for name in ("data", "valid", "ready")}
    generics = None
    if isinstance(node, Register):
        generics = {"WIDTH": str(node.edge.width), "DEPTH": str(node.depth), "ROW": str(ROWS.index(node.row))}
    d.instance(plan.module(number), f"u{number}", pins, generics)


def _fork(plan: Design, number: int, d: Dialect) -> None:
    size = plan.branches[number]
    d.signal(size, f"n{number}_valids", f"n{number}_readies")
    pins = {"clk": "clk", "rst": "rst", "in_valid": f"n{number}_valid", "in_ready": f"n{number}_ready"}
    pins |= {"out_valid": f"n{number}_valids", "out_ready": f"n{number}_readies"}
    d.instance(f"{plan.name}_fork", f"f{number}", pins, {"READERS": str(size)})
