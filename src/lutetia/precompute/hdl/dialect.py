"""Where the two hardware languages differ. A `Dialect` collects the lines of one module; `nodes` and `emit` say what is in it.

Expressions have types, as VHDL requires: a *bus* (any bits), a *number* (bits to compute with, modulo
their width), a *bit*, and a *condition*. Verilog writes all of them the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import ClassVar, NamedTuple

from lutetia.precompute.hdl.design import Slice


class Pin(NamedTuple):
    """A port of a module: "in" or "out", its bits, and its name."""

    way: str
    bits: int
    name: str


class BusPiece(NamedTuple):
    """What one part of a bus is set to."""

    target: Slice
    text: str


class Dialect(ABC):
    """The inside of one module, in one language."""

    language: ClassVar[str]
    ending: ClassVar[str]
    zero: ClassVar[str]  # a bit
    one: ClassVar[str]
    longest: ClassVar[int]  # address bits of a table whose rows are written in the module; a larger one uses a file

    def __init__(self) -> None:
        self.declared: list[str] = []
        self.lines: list[str] = []

    # ---- texts --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def part(self, bus: str, channel: Slice, width: int) -> str:
        """A channel of a bus that is `width` wide -> bus."""

    @abstractmethod
    def bit(self, bus: str, place: int, width: int) -> str:
        """-> bit."""

    @abstractmethod
    def literal(self, value: int, bits: int) -> str:
        """-> bus."""

    @abstractmethod
    def joined(self, bits: Sequence[str]) -> str:
        """Bits, the highest first -> bus."""

    @abstractmethod
    def inverted(self, bit: str) -> str:
        """-> bit."""

    @abstractmethod
    def number(self, bus: str, channel: Slice, width: int, bits: int) -> str:
        """A channel resized to this many bits: sign-extended, zero-extended or cut -> number."""

    @abstractmethod
    def constant(self, value: int, bits: int) -> str:
        """-> number."""

    @abstractmethod
    def times(self, factor: int, number: str, bits: int) -> str:
        """-> number."""

    @abstractmethod
    def as_bus(self, number: str) -> str:
        """-> bus."""

    @abstractmethod
    def greater(self, left: str, right: str) -> str:
        """Two numbers in two's complement -> condition."""

    @abstractmethod
    def greater_bus(self, left: str, right: str, signed: bool) -> str:
        """Two buses of the same width as numbers -> condition."""

    @abstractmethod
    def truth(self, condition: str) -> str:
        """-> bus of one bit."""

    @abstractmethod
    def choice(self, condition: str, yes: str, no: str) -> str:
        """-> what yes and no are."""

    @abstractmethod
    def all_of(self, bits: Sequence[str]) -> str:
        """-> bit."""

    # ---- lines --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def signal(self, bits: int, *names: str) -> None:
        """Declare buses, or single wires where `bits` is 0."""

    @abstractmethod
    def let(self, name: str, bits: int, text: str, *, number: bool = False) -> None:
        """Declare a bus, or a number in two's complement, and give it its value."""

    @abstractmethod
    def pin(self, name: str, bits: int, text: str) -> str:
        """What connects an input of an instance to an expression: `name` is a separate bus where the language needs one."""

    @abstractmethod
    def assign(self, target: str, text: str) -> None:
        """Set something that is declared."""

    @abstractmethod
    def assign_bits(self, target: str, bits: Sequence[str]) -> None:
        """Set every bit of a bus, the highest first."""

    @abstractmethod
    def integers(self, values: Sequence[int]) -> str:
        """A list of numbers for a generic."""

    @abstractmethod
    def set_bus(self, width: int, pieces: Sequence[BusPiece], *, constant: bool = False) -> None:
        """Set all of `out_data`, `width` bits, from pieces; `constant` where they read nothing."""

    @abstractmethod
    def instance(self, module: str, label: str, pins: Mapping[str, str], generics: Mapping[str, str] | None = None) -> None:
        """Instantiate a module."""

    @abstractmethod
    def unused(self, *buses: str) -> None:
        """Tell linters that parts of buses are not read on purpose."""

    @abstractmethod
    def table(self, columns: Sequence[str], k: int, memory: str | None) -> None:
        """Set `y` from `a`: for each output bit its column as hexadecimal digits; `memory` is a file with the rows."""

    @abstractmethod
    def module(self, name: str, ports: Sequence[Pin], title: str = "") -> str:
        """The whole module around the lines."""

    @abstractmethod
    def file(self, *modules: str) -> str:
        """A file of modules, the first one named by the file."""

    def passed(self) -> None:
        """Pass valid and ready through a node that holds no samples."""
        self.assign("out_valid", "in_valid")
        self.assign("in_ready", "out_ready")

    def fixed(self, kind: str, prefix: str) -> str:
        """A circuit of `rtl/` under a name that begins with `prefix`."""
        text = (files("lutetia.precompute.hdl") / "rtl" / f"{kind}{self.ending}").read_text(encoding="utf-8")
        return text.replace(f"lutetia_{kind}", f"{prefix}_{kind}")
