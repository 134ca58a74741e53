"""The VHDL of each kind of node: declarations and statements of its architecture. The same design as `verilog_nodes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from lutetia.precompute.hdl.design import Design, Lane, Slice, Term, Walk, common_width, lanes, slices, totals, tournament, walk
from lutetia.precompute.ir.stream import Argmax, Compare, Lookup, Node, Pool, Register, Sum, Table, Window, Wire

PASS = ["out_valid <= in_valid;", "in_ready <= out_ready;"]


class Body(NamedTuple):
    """What an architecture holds."""

    declarations: list[str]
    statements: list[str]


def vector(bits: int) -> str:
    """The type of a bus."""
    return f"std_logic_vector({bits - 1} downto 0)"


def part(bus: str, channel: Slice) -> str:
    return f"{bus}({channel.high} downto {channel.low})"


def literal(value: int, bits: int) -> str:
    """A number as a string of bits, since integers of VHDL end at 32."""
    return f'"{value % 2**bits:0{bits}b}"'


def extended(bus: str, channel: Slice, bits: int) -> str:
    """A channel as `unsigned` of so many bits: by its sign, by zeros, or cut."""
    if channel.bits >= bits:
        return f"unsigned({part(bus, Slice(channel.low, bits, False))})"
    if channel.signed:
        return f"unsigned(resize(signed({part(bus, channel)}), {bits}))"
    return f"resize(unsigned({part(bus, channel)}), {bits})"


def body(design: Design, number: int) -> Body:
    """The inside of one node."""
    return RULES[type(design.graph.nodes[number])](design, design.graph.nodes[number])


def _wire(design: Design, node: Wire) -> Body:
    edges = design.edges(node)
    owner = [(source, channel) for source, edge in enumerate(edges) for channel in range(edge.channels)]
    parts = [slices(edge) for edge in edges]
    names = ["in_data"] if len(edges) == 1 else [f"in{source}_data" for source in range(len(edges))]
    lines = []
    for target, place in zip(slices(node.edge), node.index.tolist(), strict=True):
        source, channel = owner[place]
        lines.append(f"{part('out_data', target)} <= {part(names[source], parts[source][channel])};")
    if len(edges) == 1:
        return Body([], [*PASS, *lines])
    valids = " and ".join(f"in{source}_valid" for source in range(len(edges)))
    lines += [f"all_valid <= {valids};", "out_valid <= all_valid;", "taken <= all_valid and out_ready;"]
    lines += [f"in{source}_ready <= taken;" for source in range(len(edges))]
    return Body(["signal all_valid, taken : std_logic;"], lines)


def _table(design: Design, node: Table) -> Body:
    targets = slices(node.edge)
    declared: list[str] = []
    lines = list(PASS)
    for number, lookup in enumerate(node.lookups):
        own, made = _lookup(design, node, number, lookup, targets)
        declared += own
        lines += made
    return Body(declared, lines)


def _lookup(design: Design, node: Table, number: int, lookup: Lookup, targets: list[Slice]) -> Body:
    table, k = node.tables[lookup.table], len(lookup.inputs)
    if not k:
        codes = zip(lookup.outputs, table.contents[0].tolist(), table.bits, strict=True)
        return Body([], [f"{part('out_data', targets[output])} <= {literal(value, bits)};" for output, value, bits in codes])
    address = [
        ("not " if lookup.flip >> (k - 1 - place) & 1 else "") + f"in_data({source})"
        for place, source in enumerate(lookup.inputs)
    ]
    joined = " & ".join(f"({each})" if each.startswith("not") else each for each in address) if k > 1 else f"(0 => {address[0]})"
    lines = [f"a{number} <= {joined};"]
    lines.append(f"u{number} : entity work.{design.table(design.table_number(table))} port map (a => a{number}, y => y{number});")
    low = 0
    for output, bits in zip(lookup.outputs, table.bits, strict=True):
        lines.append(f"{part('out_data', targets[output])} <= {part(f'y{number}', Slice(low, bits, False))};")
        low += bits
    return Body([f"signal a{number} : {vector(k)};", f"signal y{number} : {vector(table.out_bits)};"], lines)


def _compare(design: Design, node: Compare) -> Body:
    (edge,) = design.edges(node)
    lines = [f"out_data({number}) <= '1' when {_greater(lane)} else '0';" for number, lane in enumerate(lanes(node, edge))]
    return Body([], [*PASS, *lines])


def _greater(lane: Lane) -> str:
    left = f"signed({extended('in_data', lane.left, lane.bits)})"
    if isinstance(lane.right, Slice):
        return f"{left} > signed({extended('in_data', lane.right, lane.bits)})"
    return f"{left} > signed'({literal(lane.right, lane.bits)})"


def _sum(design: Design, node: Sum) -> Body:
    (edge,) = design.edges(node)
    lines = list(PASS)
    for total in totals(node, edge):
        bits = total.target.bits
        text = f"unsigned'({literal(total.bias, bits)})"
        for term in [*total.terms, *(Term(channel, 1) for channel in total.bits)]:
            text += _term(term, bits)
        lines.append(f"{part('out_data', total.target)} <= std_logic_vector({text});")
    return Body([], lines)


def _term(term: Term, bits: int) -> str:
    text, size = extended("in_data", term.channel, bits), abs(term.coefficient)
    if size != 1:
        text = f"resize(unsigned'({literal(size, bits)}) * {text}, {bits})"
    return f" {'-' if term.coefficient < 0 else '+'} {text}"


def _pool(design: Design, node: Pool) -> Body:
    (edge,) = design.edges(node)
    channels, declared, lines = slices(edge), [], list(PASS)
    for number, target in enumerate(slices(node.edge)):
        own = channels[number * node.taps : (number + 1) * node.taps]
        best = part("in_data", own[0])
        for tap, channel in enumerate(own[1:], 1):
            name, other = f"m{number}_{tap}", part("in_data", channel)
            kind = "signed" if channel.signed else "unsigned"
            declared.append(f"signal {name} : {vector(channel.bits)};")
            lines.append(f"{name} <= {other} when {kind}({other}) > {kind}({best}) else {best};")
            best = name
        lines.append(f"{part('out_data', target)} <= {best};")
    return Body(declared, lines)


def _argmax(design: Design, node: Argmax) -> Body:
    (edge,) = design.edges(node)
    bits, places = common_width(node, edge), node.edge.width
    declared, lines = [], list(PASS)
    for number, channel in enumerate(slices(edge)):
        declared += [f"signal v{number} : signed({bits - 1} downto 0);", f"signal p{number} : {vector(places)};"]
        lines += [f"v{number} <= signed({extended('in_data', channel, bits)});", f"p{number} <= {literal(number, places)};"]
    matches = tournament(edge.channels)
    for number, (first, second) in enumerate(matches, edge.channels):
        declared += [f"signal v{number} : signed({bits - 1} downto 0);", f"signal p{number} : {vector(places)};"]
        lines.append(f"v{number} <= v{second} when v{second} > v{first} else v{first};")
        lines.append(f"p{number} <= p{second} when v{second} > v{first} else p{first};")
    return Body(declared, [*lines, f"out_data <= p{edge.channels + len(matches) - 1};"])


def clocked(reset: list[str], running: list[str]) -> list[str]:
    """A process with a synchronous reset."""
    lines = ["process (clk) begin", "    if rising_edge(clk) then", "        if rst = '1' then"]
    lines += [f"            {line}" for line in reset]
    lines += ["        else", *(f"            {line}" for line in running), "        end if;", "    end if;", "end process;"]
    return lines


def _register(design: Design, node: Register) -> Body:
    width, depth = node.edge.width, node.depth
    if depth == 1:
        lines = ["ready <= out_ready or not full;", "in_ready <= ready;", "out_valid <= full;", "out_data <= data;"]
        running = ["if ready = '1' then", "    full <= in_valid;", "    if in_valid = '1' then", "        data <= in_data;"]
        lines += clocked(["full <= '0';", "data <= (others => '0');"], [*running, "    end if;", "end if;"])
        return Body([f"signal data : {vector(width)};", "signal full, ready : std_logic;"], lines)
    declared = [
        f"type queue is array (0 to {depth - 1}) of {vector(width)};",
        "signal data : queue;",
        f"signal first, last : natural range 0 to {depth - 1};",
        f"signal held : natural range 0 to {depth};",
        "signal push, pop, ready, some : std_logic;",
    ]
    lines = [
        f"ready <= '1' when held /= {depth} else out_ready;",
        "some <= '1' when held /= 0 else '0';",
        "push <= in_valid and ready;",
        "pop <= some and out_ready;",
        "in_ready <= ready;",
        "out_valid <= some;",
        "out_data <= data(first);",
    ]
    running = [
        f"if push = '1' then data(last) <= in_data; last <= (last + 1) mod {depth}; end if;",
        f"if pop = '1' then first <= (first + 1) mod {depth}; end if;",
        "if push = '1' and pop = '0' then held <= held + 1; end if;",
        "if pop = '1' and push = '0' then held <= held - 1; end if;",
    ]
    return Body(declared, [*lines, *clocked(["first <= 0;", "last <= 0;", "held <= 0;"], running)])


def _window(design: Design, node: Window) -> Body:
    (edge,) = design.edges(node)
    plan, width = walk(node, edge), edge.width
    kept = plan.depth * width
    inside = [f"{axis} >= {pad} and {axis} < {pad + size}" for axis, pad, size in _padded(plan)]
    declared = [
        f"signal line : {vector(kept)};",
        f"signal sample : {vector(width)};",
        "signal full, free, in_frame, move, due : std_logic;",
        f"signal x : natural range 0 to {max(plan.columns - 1, 0)} := 0;",
        f"signal y : natural range 0 to {plan.rows - 1} := 0;",
        f"signal wait_x : natural range 0 to {max(plan.field_x, plan.stride_x - 1)} := 0;",
        f"signal wait_y : natural range 0 to {max(plan.field_y, plan.stride_y - 1)} := 0;",
    ]
    lines = [
        "free <= out_ready or not full;",
        f"in_frame <= '1' when {' and '.join(inside) or 'true'} else '0';",
        "move <= free and (in_valid or not in_frame);",
        "due <= '1' when wait_x = 0 and wait_y = 0 else '0';",
        f"sample <= in_data when in_frame = '1' else {literal(plan.fill, width)};",
        "in_ready <= free and in_frame;",
        "out_valid <= full;",
    ]
    for channel, own in enumerate(slices(edge)):
        for tap, offset in enumerate(plan.offsets):
            target = Slice(own.bits * tap + int(node.edge.offsets[channel * node.taps]), own.bits, False)
            lines.append(f"{part('out_data', target)} <= {part('line', Slice(offset * width + own.low, own.bits, False))};")
    start = [f"wait_x <= {plan.field_x};", *(["x <= 0;"] if plan.width is not None else [])]
    reset = ["full <= '0';", "line <= (others => '0');", *start, "y <= 0;", f"wait_y <= {plan.field_y};"]
    shifted = "sample" if plan.depth == 1 else f"line({kept - width - 1} downto 0) & sample"
    running = ["full <= (move and due) or (full and not out_ready);", "if move = '1' then", f"    line <= {shifted};"]
    running += [f"    {line}" for line in _advance(plan)]
    return Body(declared, [*lines, *clocked(reset, [*running, "end if;"])])


def _padded(plan: Walk) -> list[tuple[str, int, int]]:
    axes = [("x", plan.pad_x, plan.width or 0), ("y", plan.pad_y, plan.height)]
    return [axis for axis in axes if axis[1]]


def _onward(axis: str, stride: int) -> list[str]:
    return [f"if wait_{axis} = 0 then wait_{axis} <= {stride - 1}; else wait_{axis} <= wait_{axis} - 1; end if;"]


def _advance(plan: Walk) -> list[str]:
    """One place on; the same walk as in Verilog."""
    on = _onward("x", plan.stride_x)
    if plan.width is None:
        return on
    down = [f"if y = {plan.rows - 1} then", f"    y <= 0; wait_y <= {plan.field_y};", "else", "    y <= y + 1;"]
    down += [*(f"    {line}" for line in _onward("y", plan.stride_y)), "end if;"]
    over = [f"x <= 0; wait_x <= {plan.field_x};", *down]
    lines = [f"if x = {plan.columns - 1} then", *(f"    {line}" for line in over), "else", "    x <= x + 1;"]
    return [*lines, *(f"    {line}" for line in on), "end if;"]


RULES: dict[type[Node], Callable[..., Body]] = {
    Wire: _wire, Table: _table, Compare: _compare, Sum: _sum, Pool: _pool, Argmax: _argmax, Register: _register, Window: _window,
}  # fmt: skip
