"""A stream graph as VHDL-2008: the same modules as in `verilog`, as entities of the library `work`."""

from __future__ import annotations

from lutetia.precompute.hdl.design import Design, design, truth
from lutetia.precompute.hdl.vhdl_nodes import Body, body, clocked, literal, vector
from lutetia.precompute.ir.graph import Graph
from lutetia.precompute.ir.netlist import ONE, ZERO, Form
from lutetia.precompute.ir.stream import Input, Register, TableData, Window
from lutetia.precompute.tools.hardware import Hardware

LIBRARIES = "library ieee;\nuse ieee.std_logic_1164.all;\nuse ieee.numeric_std.all;\n"
PIECE = 1024  # hexadecimal digits of one literal

LUT = """-- A lookup table of K inputs, as a primitive.
{libraries}
entity {name}_lut is
    generic (K : positive := 6; INIT : std_logic_vector);
    port (i : in std_logic_vector(K - 1 downto 0); o : out std_logic);
end entity;

architecture behaviour of {name}_lut is
    constant ROWS : std_logic_vector(2 ** K - 1 downto 0) := INIT;
begin
    o <= ROWS(to_integer(unsigned(i)));
end architecture;
"""


def emit(graph: Graph, name: str = "net") -> Hardware:
    """The VHDL of a graph; `name` is that of the top entity and the beginning of all others."""
    plan = design(graph, name)
    files = {}
    if any(table.form is not None and table.form.cells for table in plan.tables):
        files[f"{name}_lut.vhd"] = LUT.format(name=name, libraries=LIBRARIES)
    for size in sorted({count for count in plan.branches if count > 1}):
        files[f"{name}_fork{size}.vhd"] = _fork(name, size)
    written: set[int] = set()
    for number, node in enumerate(plan.graph.nodes):
        if not isinstance(node, Input):
            own = [each for each in plan.tables_of(node) if each not in written]
            written.update(own)
            tables = [_table(plan, each, plan.tables[each]) for each in own]
            files[f"{plan.module(number)}.vhd"] = "\n".join([*tables, _node(plan, number)])
    files[f"{name}.vhd"] = _top(plan)
    return Hardware(plan.graph, "vhdl", name, files)


def _entity(name: str, ports: list[tuple[str, str, str]], made: Body) -> str:
    listed = ";\n".join(f"        {port} : {way} {kind}" for port, way, kind in ports)
    lines = [LIBRARIES, f"entity {name} is", f"    port (\n{listed}\n    );", "end entity;", ""]
    lines += [f"architecture behaviour of {name} is", *(f"    {line}" for line in made.declarations), "begin"]
    return "\n".join([*lines, *(f"    {line}" for line in made.statements), "end architecture;", ""])


def _table(plan: Design, number: int, table: TableData) -> str:
    made = _constants(table) if table.form is None else _luts(plan.name, table.form)
    ports = [("a", "in", vector(table.k)), ("y", "out", vector(table.out_bits))]
    return _entity(plan.table(number), ports, made)


def _constants(table: TableData) -> Body:
    rows, declared = 2**table.k, []
    for bit, digits in enumerate(truth(table)):
        pieces = [f'x"{digits[at : at + PIECE]}"' for at in range(0, len(digits), PIECE)]
        text = " & ".join(pieces) if rows >= 4 else literal(int(digits, 16), rows)
        declared.append(f"constant Y{bit} : {vector(rows)} := {text};")
    return Body(declared, [f"y({bit}) <= Y{bit}(to_integer(unsigned(a)));" for bit in range(table.out_bits)])


def _luts(name: str, form: Form) -> Body:
    signals = {ZERO: "'0'", ONE: "'1'"} | {at: f"a({at})" for at in range(form.n_inputs)}
    signals |= {form.n_inputs + at: f"s{at}" for at in range(len(form.cells))}
    declared, lines = [], []
    for number, cell in enumerate(form.cells):
        k = len(cell.inputs)
        inputs = [signals[each] for each in reversed(cell.inputs)]
        declared += [f"signal s{number} : std_logic;", f"signal i{number} : {vector(k)};"]
        lines.append(f"i{number} <= {' & '.join(inputs) if k > 1 else f'(0 => {inputs[0]})'};")
        generics = f"K => {k}, INIT => {literal(cell.init, 2**k)}"
        lines.append(f"u{number} : entity work.{name}_lut generic map ({generics}) port map (i => i{number}, o => s{number});")
    lines += [f"y({bit}) <= {signals[signal]};" for bit, signal in enumerate(form.outputs)]
    return Body(declared, lines)


def _node(plan: Design, number: int) -> str:
    node = plan.graph.nodes[number]
    ports = [("clk", "in", "std_logic"), ("rst", "in", "std_logic")] if isinstance(node, Register | Window) else []
    edges = plan.edges(node)
    for source, edge in enumerate(edges):
        name = "in" if len(edges) == 1 else f"in{source}"
        ports += [(f"{name}_data", "in", vector(edge.width)), (f"{name}_valid", "in", "std_logic")]
        ports.append((f"{name}_ready", "out", "std_logic"))
    ports += [("out_data", "out", vector(node.edge.width)), ("out_valid", "out", "std_logic"), ("out_ready", "in", "std_logic")]
    return _entity(plan.module(number), ports, body(plan, number))


def _fork(name: str, size: int) -> str:
    """Hands every sample to each of its readers once, in any order."""
    ports = [("clk", "in", "std_logic"), ("rst", "in", "std_logic"), ("in_valid", "in", "std_logic")]
    ports.append(("in_ready", "out", "std_logic"))
    for at in range(size):
        ports += [(f"out{at}_valid", "out", "std_logic"), (f"out{at}_ready", "in", "std_logic")]
    lines = [f"out{at}_valid <= in_valid and not done({at});" for at in range(size)]
    lines.append("taken <= " + " and ".join(f"(done({at}) or out{at}_ready)" for at in range(size)) + ";")
    lines.append("in_ready <= taken;")
    marks = [f"    done({at}) <= done({at}) or out{at}_ready;" for at in range(size)]
    running = ["if in_valid = '0' or taken = '1' then", "    done <= (others => '0');", "else", *marks, "end if;"]
    lines += clocked(["done <= (others => '0');"], running)
    return _entity(f"{name}_fork{size}", ports, Body([f"signal done : {vector(size)};", "signal taken : std_logic;"], lines))


def _top(plan: Design) -> str:
    graph = plan.graph
    ports = [("clk", "in", "std_logic"), ("rst", "in", "std_logic"), ("in_data", "in", vector(graph.input_edge.width))]
    ports += [("in_valid", "in", "std_logic"), ("in_ready", "out", "std_logic")]
    ports += [("out_data", "out", vector(graph.output_edge.width)), ("out_valid", "out", "std_logic")]
    ports.append(("out_ready", "in", "std_logic"))
    declared, lines = [], []
    for number, node in enumerate(graph.nodes):
        declared += [
            f"signal n{number}_data : {vector(node.edge.width)};",
            f"signal n{number}_valid, n{number}_ready : std_logic;",
        ]
        lines += _instance(plan, number)
        size = plan.branches[number]
        if size > 1:
            declared += [f"signal n{number}_{at}_valid, n{number}_{at}_ready : std_logic;" for at in range(size)]
            lines.append(_fork_instance(plan, number, size))
    size = plan.branches[graph.output]
    final = f"n{graph.output}" if size == 1 else f"n{graph.output}_{size - 1}"
    lines += [f"out_data <= n{graph.output}_data;", f"out_valid <= {final}_valid;", f"{final}_ready <= out_ready;"]
    return _entity(plan.name, ports, Body(declared, lines))


def _instance(plan: Design, number: int) -> list[str]:
    node = plan.graph.nodes[number]
    if isinstance(node, Input):
        return [f"n{number}_data <= in_data;", f"n{number}_valid <= in_valid;", f"in_ready <= n{number}_ready;"]
    pins = ["clk => clk", "rst => rst"] if isinstance(node, Register | Window) else []
    for at, port in enumerate(plan.ports[number]):
        name = "in" if len(node.sources) == 1 else f"in{at}"
        pins += [
            f"{name}_data => n{port.source}_data",
            f"{name}_valid => {port.wires}_valid",
            f"{name}_ready => {port.wires}_ready",
        ]
    pins += [f"out_data => n{number}_data", f"out_valid => n{number}_valid", f"out_ready => n{number}_ready"]
    return [f"u{number} : entity work.{plan.module(number)} port map ({', '.join(pins)});"]


def _fork_instance(plan: Design, number: int, size: int) -> str:
    pins = ["clk => clk", "rst => rst", f"in_valid => n{number}_valid", f"in_ready => n{number}_ready"]
    for at in range(size):
        pins += [f"out{at}_valid => n{number}_{at}_valid", f"out{at}_ready => n{number}_{at}_ready"]
    return f"f{number} : entity work.{plan.name}_fork{size} port map ({', '.join(pins)});"
