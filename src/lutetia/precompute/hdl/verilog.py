"""A stream graph as Verilog: one module per node and per table, forks and a top module, in plain Verilog-2001.

A table is a constant per output bit, indexed by the address: Icarus reads such a constant as fast as a memory (5,000 reads of 20
tables of 12 bits take 0.2 s, as a `case` 26 s), and a synthesiser sees a LUT's own contents. Tables of more than 12 address bits
come from a `$readmemh` file in a simulator, whose scanners refuse longer constants, and as constants in pieces in a synthesiser.
A table that has been minimised is written as its LUTs, one instance each.
"""

from __future__ import annotations

from lutetia.precompute.hdl.design import Design, design, truth
from lutetia.precompute.hdl.verilog_nodes import body, span
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.netlist import ONE, ZERO, Form
from lutetia.precompute.ir.stream import Input, Register, TableData, Window, Wire
from lutetia.precompute.tools.hardware import Hardware

LONGEST = 12  # address bits of a table that is one constant
MANY = "// A file for each of thousands of tables would help nobody.\n/* verilator lint_off DECLFILENAME */"
HEADER = "`default_nettype none\n"
FOOTER = "`default_nettype wire\n"


def emit(graph: Graph, name: str = "net") -> Hardware:
    """The Verilog of a graph; `name` is that of the top module and the beginning of all others."""
    plan = design(graph, name)
    files = {f"{name}.v": _file(_top(plan))}
    memories = {
        f"{plan.table(number)}.mem": _memory(table)
        for number, table in enumerate(plan.tables)
        if table.form is None and table.k > LONGEST
    }
    if any(table.form is not None and table.form.cells for table in plan.tables):
        files[f"{name}_lut.v"] = _file(LUT.format(name=name))
    written: set[int] = set()
    for number, node in enumerate(plan.graph.nodes):
        if not isinstance(node, Input):
            own = [each for each in plan.tables_of(node) if each not in written]  # a table stands behind its first reader
            written.update(own)
            tables = [table_module(plan, each, plan.tables[each]) for each in own]
            files[f"{plan.module(number)}.v"] = _file("\n".join([_node(plan, number), *([MANY, *tables] if tables else [])]))
    for size in sorted({count for count in plan.branches if count > 1}):
        files[f"{name}_fork{size}.v"] = _file(_fork(name, size))
    return Hardware(plan.graph, "verilog", name, files | memories)


def _file(text: str) -> str:
    return f"{HEADER}\n{text}\n{FOOTER}"


def _memory(table: TableData) -> str:
    """One row per line; the form that `$readmemh` reads."""
    digits = (table.out_bits + 3) // 4
    rows = [0] * len(table.contents)
    place = 0
    for column, bits in enumerate(table.bits):
        rows = [row | int(value) << place for row, value in zip(rows, table.contents[:, column], strict=True)]
        place += bits
    return "\n".join(f"{row:0{digits}x}" for row in rows) + "\n"


# ---- tables ----------------------------------------------------------------------------------------------------------


LUT = """// A lookup table of K inputs, as a primitive: a synthesiser for such LUTs takes it as it is.
module {name}_lut #(
    parameter K = 6,
    parameter [2**K-1:0] INIT = 0
) (
    input wire [K-1:0] i,
    output wire o
);
    assign o = INIT[i];
endmodule
"""


def table_module(plan: Design, number: int, table: TableData) -> str:
    """The module of one table: address `a`, most significant bit first, to `y`, output 0 in the lowest bits."""
    name, width = plan.table(number), table.out_bits
    lines = [f"module {name} (", f"    input wire {span(table.k)} a,", f"    output wire {span(width)} y", ");"]
    if table.form is not None:
        lines += [f"    {line}" for line in _luts(plan.name, table.form)]
    elif table.k <= LONGEST:
        lines += [f"    {line}" for line in _constants(table)]
    else:
        lines += ["`ifdef SYNTHESIS", *(f"    {line}" for line in _constants(table)), "`else"]
        lines += [f"    reg {span(width)} rows [0:{2**table.k - 1}];", f'    initial $readmemh("{name}.mem", rows);']
        lines += ["    assign y = rows[a];", "`endif"]
    return "\n".join([*lines, "endmodule", ""])


def _constants(table: TableData) -> list[str]:
    """One constant per output bit, and where the address points to."""
    rows, lines = 2**table.k, []
    for bit, digits in enumerate(truth(table)):
        lines.append(f"localparam {span(rows)} Y{bit} = {_literal(digits, rows)};")
    chosen = [f"Y{bit}[a]" for bit in reversed(range(table.out_bits))]
    return [*lines, f"assign y = {chosen[0] if len(chosen) == 1 else '{' + ', '.join(chosen) + '}'};"]


def _literal(digits: str, bits: int) -> str:
    size = 2 ** (LONGEST - 2)
    if len(digits) <= size:
        return f"{bits}'h{digits}"
    pieces = [digits[at : at + size] for at in range(0, len(digits), size)]
    return "{" + ", ".join(f"{4 * size}'h{piece}" for piece in pieces) + "}"


def _luts(name: str, form: Form) -> list[str]:
    signals = {ZERO: "1'b0", ONE: "1'b1"}
    signals |= {at: f"a[{at}]" if form.n_inputs > 1 else "a" for at in range(form.n_inputs)}
    signals |= {form.n_inputs + at: f"s{at}" for at in range(len(form.cells))}
    lines = []
    for number, cell in enumerate(form.cells):
        inputs = [signals[each] for each in reversed(cell.inputs)]
        text = inputs[0] if len(inputs) == 1 else "{" + ", ".join(inputs) + "}"
        rows = 2 ** len(cell.inputs)
        lines.append(f"wire s{number};")
        lines.append(f"{name}_lut #(.K({len(inputs)}), .INIT({rows}'h{cell.init:x})) u{number} (.i({text}), .o(s{number}));")
    outputs = [signals[each] for each in reversed(form.outputs)]
    lines.append(f"assign y = {outputs[0] if len(outputs) == 1 else '{' + ', '.join(outputs) + '}'};")
    read = {each for cell in form.cells for each in cell.inputs} | set(form.outputs)
    return lines if set(range(form.n_inputs)) <= read else [*lines, "wire unused = &{1'b0, a};"]


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _node(plan: Design, number: int) -> str:
    node = plan.graph.nodes[number]
    ports = [("input", 1, "clk"), ("input", 1, "rst")] if isinstance(node, Register | Window) else []
    edges = plan.edges(node)
    for source, edge in enumerate(edges):
        name = "in" if len(edges) == 1 else f"in{source}"
        ports += [("input", edge.width, f"{name}_data"), ("input", 1, f"{name}_valid"), ("output", 1, f"{name}_ready")]
    ports += [("output", node.edge.width, "out_data"), ("output", 1, "out_valid"), ("input", 1, "out_ready")]
    title = f"{node.kind}{f' of {_plain(node.name)}' if node.name else ''}: {node.edge.channels} channels, {node.edge.width} bits"
    return "\n".join([f"// {title}", *_module(plan.module(number), ports, body(plan, number))])


def _plain(text: str) -> str:
    """What may stand in a comment: the name of a layer is the user's."""
    return "".join(each if each.isprintable() and each.isascii() and each not in "*/\\`" else "." for each in text)


def _module(name: str, ports: list[tuple[str, int, str]], lines: list[str]) -> list[str]:
    listed = [f"    {way} wire {span(bits) + ' ' if bits > 1 else ''}{port}" for way, bits, port in ports]
    return [f"module {name} (", ",\n".join(listed), ");", *(f"    {line}" for line in lines), "endmodule", ""]


def _fork(name: str, size: int) -> str:
    """Hands every sample to each of its readers once, in any order."""
    ports = [("input", 1, "clk"), ("input", 1, "rst"), ("input", 1, "in_valid"), ("output", 1, "in_ready")]
    ports += [port for at in range(size) for port in (("output", 1, f"out{at}_valid"), ("input", 1, f"out{at}_ready"))]
    lines = [f"reg {span(size)} done;"]
    lines += [f"assign out{at}_valid = in_valid & !done[{at}];" for at in range(size)]
    lines.append("assign in_ready = " + " & ".join(f"(done[{at}] | out{at}_ready)" for at in range(size)) + ";")
    lines += ["always @(posedge clk)", f"    if (rst | !in_valid | in_ready) done <= {size}'d0;"]
    lines.append("    else done <= done | {" + ", ".join(f"out{at}_ready" for at in reversed(range(size))) + "};")
    return "\n".join([f"// Hands every sample to each of {size} readers once.", *_module(f"{name}_fork{size}", ports, lines)])


def _top(plan: Design) -> str:
    graph = plan.graph
    ports = [("input", 1, "clk"), ("input", 1, "rst")]
    ports += [("input", graph.input_edge.width, "in_data"), ("input", 1, "in_valid"), ("output", 1, "in_ready")]
    ports += [("output", graph.output_edge.width, "out_data"), ("output", 1, "out_valid"), ("input", 1, "out_ready")]
    lines: list[str] = []
    for number, node in enumerate(graph.nodes):
        lines.append(f"wire {span(node.edge.width)} n{number}_data;")
        lines.append(f"wire n{number}_valid, n{number}_ready;")
        lines += _instance(plan, number)
        lines += _branches(plan, number)
    final = f"n{graph.output}" if plan.branches[graph.output] == 1 else f"n{graph.output}_{plan.branches[graph.output] - 1}"
    lines += [f"assign out_data = n{graph.output}_data;", f"assign out_valid = {final}_valid;"]
    lines.append(f"assign {final}_ready = out_ready;")
    if not plan.has_state:
        lines.append("wire unused = &{1'b0, clk, rst};")
    return "\n".join(_module(plan.name, ports, lines))


def _instance(plan: Design, number: int) -> list[str]:
    node = plan.graph.nodes[number]
    if isinstance(node, Input):
        return [f"assign n{number}_data = in_data;", f"assign n{number}_valid = in_valid;", f"assign in_ready = n{number}_ready;"]
    pins = [".clk(clk)", ".rst(rst)"] if isinstance(node, Register | Window) else []
    for at, port in enumerate(plan.ports[number]):
        name = "in" if len(plan.ports[number]) == 1 and not (isinstance(node, Wire) and len(node.sources) > 1) else f"in{at}"
        pins += [f".{name}_data(n{port.source}_data)", f".{name}_valid({port.wires}_valid)", f".{name}_ready({port.wires}_ready)"]
    pins += [f".out_data(n{number}_data)", f".out_valid(n{number}_valid)", f".out_ready(n{number}_ready)"]
    return [f"{plan.module(number)} u{number} ({', '.join(pins)});"]


def _branches(plan: Design, number: int) -> list[str]:
    size = plan.branches[number]
    if size < 2:
        return []
    lines = [f"wire n{number}_{at}_valid, n{number}_{at}_ready;" for at in range(size)]
    pins = [".clk(clk)", ".rst(rst)", f".in_valid(n{number}_valid)", f".in_ready(n{number}_ready)"]
    for at in range(size):
        pins += [f".out{at}_valid(n{number}_{at}_valid)", f".out{at}_ready(n{number}_{at}_ready)"]
    return [*lines, f"{plan.name}_fork{size} f{number} ({', '.join(pins)});"]
