"""VHDL-2008: the same modules as in Verilog, as entities of the library `work`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lutetia.precompute.hdl.design import Slice
from lutetia.precompute.hdl.dialect import BusPiece, Dialect, Pin

LIBRARIES = "library ieee;\nuse ieee.std_logic_1164.all;\nuse ieee.numeric_std.all;\n"
PIECE = 1024  # hexadecimal digits of one literal


def vector(bits: int) -> str:
    """The type of a bus; of a wire where `bits` is 0."""
    return f"std_logic_vector({bits - 1} downto 0)" if bits else "std_logic"


class VHDL(Dialect):
    """One entity in VHDL."""

    language, ending, zero, one, longest = "vhdl", ".vhd", "'0'", "'1'", 64

    def part(self, bus: str, channel: Slice, width: int) -> str:
        return f"{bus}({channel.high} downto {channel.low})"

    def bit(self, bus: str, place: int, width: int) -> str:
        return f"{bus}({place})"

    def literal(self, value: int, bits: int) -> str:
        return f'"{value % 2**bits:0{bits}b}"'  # integers of VHDL end at 32 bits

    def joined(self, bits: Sequence[str]) -> str:
        return " & ".join(bits) if len(bits) > 1 else f"(0 => {bits[0]})"

    def inverted(self, bit: str) -> str:
        return f"(not {bit})"

    def number(self, bus: str, channel: Slice, width: int, bits: int) -> str:
        if channel.bits >= bits:
            return f"unsigned({self.part(bus, Slice(channel.low, bits, False), width)})"
        text = self.part(bus, channel, width)
        return f"unsigned(resize(signed({text}), {bits}))" if channel.signed else f"resize(unsigned({text}), {bits})"

    def constant(self, value: int, bits: int) -> str:
        return f"unsigned'({self.literal(value, bits)})"

    def times(self, factor: int, number: str, bits: int) -> str:
        return f"resize({self.constant(factor, bits)} * {number}, {bits})"

    def as_bus(self, number: str) -> str:
        return f"std_logic_vector({number})"

    def greater(self, left: str, right: str) -> str:
        return f"signed({left}) > signed({right})"

    def greater_bus(self, left: str, right: str, signed: bool) -> str:
        kind = "signed" if signed else "unsigned"
        return f"{kind}({left}) > {kind}({right})"

    def truth(self, condition: str) -> str:
        return self.choice(condition, '"1"', '"0"')

    def choice(self, condition: str, yes: str, no: str) -> str:
        return f"{yes} when {condition} else {no}"

    def all_of(self, bits: Sequence[str]) -> str:
        return " and ".join(bits)

    def signal(self, bits: int, *names: str) -> None:
        self.declared.append(f"signal {', '.join(names)} : {vector(bits)};")

    def let(self, name: str, bits: int, text: str, *, number: bool = False) -> None:
        self.declared.append(f"signal {name} : {f'unsigned({bits - 1} downto 0)' if number else vector(bits)};")
        self.assign(name, text)

    def pin(self, name: str, bits: int, text: str) -> str:
        self.let(name, bits, text)
        return name

    def assign(self, target: str, text: str) -> None:
        self.lines.append(f"{target} <= {text};")

    def assign_bits(self, target: str, bits: Sequence[str]) -> None:
        for place, text in enumerate(reversed(bits)):
            self.assign(self.bit(target, place, len(bits)), text)

    def integers(self, values: Sequence[int]) -> str:
        return f"({', '.join(f'{place} => {value}' for place, value in enumerate(values))})"

    def set_bus(self, width: int, pieces: Sequence[BusPiece], *, constant: bool = False) -> None:
        for piece in pieces:
            self.assign(self.part("out_data", piece.target, width), piece.text)

    def instance(self, module: str, label: str, pins: Mapping[str, str], generics: Mapping[str, str] | None = None) -> None:
        head = f"{label} : entity work.{module}" + (f" generic map ({_named(generics)})" if generics else "")
        self.lines.append(f"{head} port map ({_named(pins)});")

    def unused(self, *buses: str) -> None:
        pass

    def table(self, columns: Sequence[str], k: int, memory: str | None) -> None:
        rows = 2**k
        for bit, digits in enumerate(columns):
            pieces = [f'x"{digits[at : at + PIECE]}"' for at in range(0, len(digits), PIECE)]
            text = " & ".join(pieces) if rows >= 4 else self.literal(int(digits, 16), rows)
            self.declared.append(f"constant Y{bit} : {vector(rows)} := {text};")
            self.assign(f"y({bit})", f"Y{bit}(to_integer(unsigned(a)))")

    def module(self, name: str, ports: Sequence[Pin], title: str = "") -> str:
        listed = ";\n".join(f"        {port.name} : {port.way} {vector(port.bits)}" for port in ports)
        lines = [LIBRARIES, f"entity {name} is", f"    port (\n{listed}\n    );", "end entity;", ""]
        lines += [f"architecture behaviour of {name} is", *(f"    {line}" for line in self.declared), "begin"]
        return "\n".join([*lines, *(f"    {line}" for line in self.lines), "end architecture;", ""])

    def file(self, *modules: str) -> str:
        return "\n".join([*modules[1:], modules[0]])  # what is used comes first


def _named(pairs: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name} => {text}" for name, text in (pairs or {}).items())
