"""The top module of a board: a serial line around a circuit, or around a core that takes a sample word by word."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from lutetia.errors import ArgumentError
from lutetia.precompute.boards.serial import RATES, Talk
from lutetia.precompute.boards.table import Board
from lutetia.precompute.hdl.axi import in_bytes, padded
from lutetia.precompute.integer.hardware import TOP as CORE
from lutetia.precompute.integer.verilog_core import Core
from lutetia.precompute.integer.verilog_signals import SignalCore
from lutetia.precompute.tools.hardware import Hardware

TOP, MODULE, BENCH = "top.v", "lutetia_board", "bench.v"
OFF = 0.02  # of a bit's time: how far the board's rate may be from the one that was asked for
FEWEST = 8  # cycles of a bit
BYTE = 10  # bits of it on the line
POWER = 300  # cycles until a board is out of its reset


@dataclass(frozen=True)
class Wrapped:
    """What is put on a board: a module with data, valid and ready on both sides.

    A question is `words` words of `word_bits` bits, the answer one of `out_bits`. `cycles` pass from the last word to the answer.
    """

    files: dict[str, str] = field(repr=False)
    sources: list[str]
    module: str
    identity: int
    words: int
    word_bits: int
    out_bits: int
    is_signed: bool  # an answer that is one number in two's complement
    cycles: int
    pins: str = ""  # more pins of the module

    @property
    def word_bytes(self) -> int:
        return padded(self.word_bits) // 8

    @property
    def question_bytes(self) -> int:
        return self.words * self.word_bytes

    @property
    def answer_bytes(self) -> int:
        return padded(self.out_bits) // 8


@dataclass(frozen=True)
class Line:
    """The clock of a board, halved so many times, and the serial line at it: cycles of a bit, bits per second."""

    halvings: int
    hz: float
    divisor: int
    baud: int

    def talk(self, wrapped: Wrapped) -> Talk:
        """What the side that asks must know."""
        bits = BYTE * 2 * (wrapped.question_bytes + wrapped.answer_bytes + 20)  # every byte with an escape, at worst
        seconds = bits / self.baud + (wrapped.cycles + POWER) / self.hz
        return Talk(wrapped.identity, wrapped.question_bytes, wrapped.answer_bytes, wrapped.words == 1, seconds)


def wrapped_circuit(hardware: Hardware) -> Wrapped:
    """A circuit that takes a sample at once."""
    graph = hardware.graph
    given, answer = graph.input_edge, graph.output_edge
    if given.samples != 1 or answer.samples != 1:
        raise ArgumentError(
            f"the circuit takes {given.samples} samples of a frame and gives {answer.samples}, expected one of each: a board is "
            "asked for one answer at a time"
        )
    is_signed = len(answer.domains) == 1 and answer.domains[0].signed
    sizes = (1, given.width, answer.width, is_signed, graph.cycles().first)
    return Wrapped(dict(hardware.files), list(hardware.sources), hardware.name, hardware.identity, *sizes)


def wrapped_core(core: Core) -> Wrapped:
    """A core that takes the pixels of an image, or the samples of a window."""
    size, pins = core.program.sizes, ""
    if isinstance(core, SignalCore):
        words, bits, pins = size["LENGTH"], size["SIGNALS"] * size["BITS"], ", .in_last(in_last)"
    else:
        words, bits = size["PIXELS"], 8 * size["CHANNELS"]
    sizes = (words, bits, core.out_bits, core.model.n_outputs == 1, core.cycles)
    return Wrapped(dict(core.files), core.sources, CORE, core.identity, *sizes, pins)


def line_of(board: Board, halvings: int = 0) -> Line:
    """The fastest serial line of a board, at its clock or a half of it, a quarter and so on."""
    hz = board.clock_hz / 2**halvings
    for baud in sorted((rate for rate in RATES if rate <= board.baud), reverse=True):
        divisor = round(hz / baud)
        if divisor >= FEWEST and abs(hz / divisor / baud - 1) <= OFF:
            return Line(halvings, hz, divisor, baud)
    raise ArgumentError(
        f"a clock of {hz / 1e6:g} MHz makes no serial line of {board.baud:,} baud or less, expected {FEWEST} cycles or more in a "
        f"bit, and at most {OFF:.0%} off"
    )


def top_text(wrapped: Wrapped, line: Line, board: Board) -> str:
    """The Verilog of the top module."""
    answer, last = wrapped.answer_bytes, 6 + wrapped.answer_bytes + 2
    sizes = {
        "DIVISOR": line.divisor, "DIVISOR_BITS": line.divisor.bit_length(), "WORDS": wrapped.words,
        "WORD_BYTES": wrapped.word_bytes, "COUNT_BITS": wrapped.words.bit_length(), "OUT_BITS": wrapped.out_bits,
        "PLACE_BITS": max(3, wrapped.word_bytes.bit_length()), "ANSWER_BYTES": answer, "AT_BITS": last.bit_length(),
        "IDENTITY": f"{wrapped.identity:08x}",
    }  # fmt: skip
    pins = (
        f".clk(clock), .rst(rst || drop), .in_data(given[{wrapped.word_bits - 1}:0]), .in_valid(in_valid), .in_ready(in_ready),\n"
        f"        .out_data(out_data), .out_valid(out_valid), .out_ready(1'b1){wrapped.pins}"
    )
    halved = (
        line.halvings and f"    reg [{line.halvings - 1}:0] halved = 0;\n    always @(posedge clk) halved <= halved + 1'b1;\n"
    )
    texts = {
        "TITLE": wrapped.module,
        "CLOCK": f"{halved}    wire clock = halved[{line.halvings - 1}];" if halved else "    wire clock = clk;",
        "CIRCUIT": f"    {wrapped.module} circuit (\n        {pins});",
        "ANSWER": in_bytes("answer", wrapped.out_bits, wrapped.is_signed),
        "LED": "!lit" if board.led_is_low else "lit",
    }
    return filled("board.v", sizes | texts)


def bench_text(line: Line) -> str:
    """A bench that feeds the top module at its serial pins."""
    times = 2**line.halvings
    return filled("board_bench.v", {"BIT": line.divisor * times, "START": POWER * times})


def filled(name: str, places: dict[str, Any]) -> str:
    """A file of Verilog whose places are filled."""
    text = files("lutetia.precompute.boards").joinpath("verilog", name).read_text(encoding="utf-8")
    for place, value in places.items():
        text = text.replace(f"@{place}@", str(value))
    return text
