"""Verilog-2005.

A table is a constant per output bit, indexed by the address: Icarus reads such a constant as fast as a memory (5,000 reads of 20
tables of 12 bits take 0.2 s, as a `case` 26 s), and a synthesiser sees a LUT's own contents. Tables of more than 12 address bits
come from a `$readmemh` file in a simulator, whose scanners refuse longer constants, and as constants in pieces in a synthesiser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lutetia.precompute.hdl.design import Slice
from lutetia.precompute.hdl.dialect import BusPiece, Dialect, Pin

LONGEST = 12  # address bits of a table that is one constant
MANY = "// Thousands of tables in a file each would be unreadable.\n/* verilator lint_off DECLFILENAME */"


def span(bits: int) -> str:
    """`[7:0]`."""
    return f"[{bits - 1}:0]"


def joined(parts: Sequence[str]) -> str:
    """`{a, b}`."""
    return parts[0] if len(parts) == 1 else f"{{{', '.join(parts)}}}"


class Verilog(Dialect):
    """One module in Verilog."""

    language, ending, zero, one, longest = "verilog", ".v", "1'b0", "1'b1", LONGEST

    def part(self, bus: str, channel: Slice, width: int) -> str:
        if channel.bits == width:
            return bus
        return f"{bus}[{channel.low}]" if channel.bits == 1 else f"{bus}[{channel.high}:{channel.low}]"

    def bit(self, bus: str, place: int, width: int) -> str:
        return bus if width == 1 else f"{bus}[{place}]"

    def literal(self, value: int, bits: int) -> str:
        return f"{bits}'d{value % 2**bits}" if bits < 8 else f"{bits}'h{value % 2**bits:x}"

    def joined(self, bits: Sequence[str]) -> str:
        return joined(bits)

    def inverted(self, bit: str) -> str:
        return f"~{bit}"

    def number(self, bus: str, channel: Slice, width: int, bits: int) -> str:
        more = bits - channel.bits
        if more <= 0:
            return self.part(bus, Slice(channel.low, bits, False), width)
        text = self.part(bus, channel, width)
        return f"{{{{{more}{{{self.bit(bus, channel.high, width)}}}}}, {text}}}" if channel.signed else f"{{{more}'d0, {text}}}"

    def constant(self, value: int, bits: int) -> str:
        return self.literal(value, bits)

    def times(self, factor: int, number: str, bits: int) -> str:
        return f"{self.literal(factor, bits)} * {number}"

    def as_bus(self, number: str) -> str:
        return number

    def greater(self, left: str, right: str) -> str:
        return f"$signed({left}) > $signed({right})"

    def greater_bus(self, left: str, right: str, signed: bool) -> str:
        return self.greater(left, right) if signed else f"{left} > {right}"

    def truth(self, condition: str) -> str:
        return condition

    def choice(self, condition: str, yes: str, no: str) -> str:
        return f"{condition} ? {yes} : {no}"

    def all_of(self, bits: Sequence[str]) -> str:
        return " & ".join(bits)

    def signal(self, bits: int, *names: str) -> None:
        self.lines.append(f"wire {span(bits) + ' ' if bits else ''}{', '.join(names)};")

    def let(self, name: str, bits: int, text: str, *, number: bool = False) -> None:
        self.lines.append(f"wire {'signed ' if number else ''}{span(bits)} {name} = {text};")

    def pin(self, name: str, bits: int, text: str) -> str:
        return text

    def assign(self, target: str, text: str) -> None:
        self.lines.append(f"assign {target} = {text};")

    def assign_bits(self, target: str, bits: Sequence[str]) -> None:
        self.assign(target, joined(bits))

    def integers(self, values: Sequence[int]) -> str:
        return f"{32 * len(values)}'h{''.join(f'{value:08x}' for value in reversed(values))}"

    def set_bus(self, width: int, pieces: Sequence[BusPiece], *, constant: bool = False) -> None:
        """One process: simulators copy a wide bus for each `assign` to a part of it, so 256 tables with 64 outputs took an hour
        instead of seconds. A process that reads nothing would never start, so constants are assigned.
        """
        whole = joined([piece.text for piece in sorted(pieces, key=lambda piece: -piece.target.low)])
        if constant or len(pieces) == 1:
            self.assign("out_data", whole)
            return
        self.lines += [f"reg {span(width)} result;", "assign out_data = result;", "always @* begin"]
        if all(piece.text.replace("[", "").replace("]", "").replace(":", "").isidentifier() for piece in pieces):
            self.lines.append(f"    result = {whole};")
        else:
            self.lines += [f"    {self.part('result', piece.target, width)} = {piece.text};" for piece in pieces]
        self.lines.append("end")

    def instance(self, module: str, label: str, pins: Mapping[str, str], generics: Mapping[str, str] | None = None) -> None:
        head = f"{module} #({_named(generics)})" if generics else module
        self.lines.append(f"{head} {label} ({_named(pins)});")

    def unused(self, *buses: str) -> None:
        if buses:
            self.lines.append(f"wire unused = &{{1'b0, {', '.join(buses)}}};")

    def table(self, columns: Sequence[str], k: int, memory: str | None) -> None:
        rows, width = 2**k, len(columns)
        constants = [f"localparam {span(rows)} Y{bit} = {_digits(digits, rows)};" for bit, digits in enumerate(columns)]
        constants.append(f"assign y = {joined([f'Y{bit}[a]' for bit in reversed(range(width))])};")
        if memory is None:
            self.lines += constants
            return
        read = [f"reg {span(width)} rows [0:{rows - 1}];", f'initial $readmemh("{memory}", rows);', "assign y = rows[a];"]
        self.lines += ["`ifdef SYNTHESIS", *constants, "`else", *read, "`endif"]

    def module(self, name: str, ports: Sequence[Pin], title: str = "") -> str:
        ways = {"in": "input", "out": "output"}
        listed = [f"    {ways[port.way]} wire {span(port.bits) + ' ' if port.bits > 1 else ''}{port.name}" for port in ports]
        body = [line if line.startswith("`") else f"    {line}" for line in self.lines]
        head = [f"// {_plain(title)}"] if title else []
        return "\n".join([*head, f"module {name} (", ",\n".join(listed), ");", *body, "endmodule", ""])

    def file(self, *modules: str) -> str:
        inside = "\n".join([modules[0], *([MANY, *modules[1:]] if len(modules) > 1 else [])])
        return f"`default_nettype none\n\n{inside}\n`default_nettype wire\n"


def _named(pairs: Mapping[str, str] | None) -> str:
    return ", ".join(f".{name}({text})" for name, text in (pairs or {}).items())


def _digits(digits: str, bits: int) -> str:
    size = 2 ** (LONGEST - 2)
    if len(digits) <= size:
        return f"{bits}'h{digits}"
    return joined([f"{4 * size}'h{digits[at : at + size]}" for at in range(0, len(digits), size)])


def _plain(text: str) -> str:
    """Text that is safe in a comment: the name of a layer comes from the user."""
    return "".join(each if each.isprintable() and each.isascii() and each not in "*/\\`" else "." for each in text)
