"""A circuit as yosys elaborated it: a flat list of cells in the order they are computed, and a compiled loop that computes them.

This is the simulator for machines without one: yosys, which comes with `pip install "lutetia[hardware]"`, reads the Verilog, and
its word-level cells are evaluated here, cycle by cycle. Bits have two values: where Verilog says x, registers start as noise and
the rest is 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lutetia._shared import compiled
from lutetia.errors import DataError

NamedCell: TypeAlias = tuple[str, dict[str, Any]]
jit: Any = compiled.jit(inner=True, nogil=True)

# The yosys commands between reading the Verilog and writing JSON: processes to cells, one module, memories to registers.
ELABORATE = ("proc -norom", "opt_clean", "flatten", "memory_collect", "memory_map", "opt_clean", "delete t:$scopeinfo")

UNARY = ("$not", "$pos", "$neg", "$reduce_and", "$reduce_or", "$reduce_bool", "$reduce_xor", "$reduce_xnor", "$logic_not")
BINARY = ("$and", "$or", "$xor", "$xnor", "$add", "$sub", "$mul", "$lt", "$le", "$gt", "$ge", "$eq", "$ne", "$eqx", "$nex",
          "$logic_and", "$logic_or", "$shl", "$shr", "$sshl", "$shiftx", "$mux", "$pmux")  # fmt: skip
KINDS = {name: number for number, name in enumerate((*UNARY, *BINARY))}
PORTS = ("A", "B", "S", "Y")
INDEX_BITS = 40  # of the operand that says how far to shift
NOT, POS, NEG, R_AND, R_OR, R_BOOL, R_XOR, R_XNOR, L_NOT = (KINDS[name] for name in UNARY)
AND, OR, XOR, XNOR, ADD, SUB, MUL, LT, LE, GT, GE, EQ, NE, EQX, NEX, L_AND, L_OR, SHL, SHR, SSHL, SHIFTX, MUX, PMUX = (
    KINDS[name] for name in BINARY
)
ZERO, ONE = 0, 1  # the two bits that never change


@dataclass(frozen=True)
class FlatCircuit:
    """Bits by number, 0 and 1 being the constants.

    cells   int64 [n, 10]: kind, signed, then first pin and width of A, B, S and Y
    pins    int64: the bits that cells are connected to
    state   int64 [2, n]: the bit that each register takes at a clock edge, and the one it drives
    ports   the bits of each port of the top module, lowest first
    """

    n_bits: int
    cells: np.ndarray
    pins: np.ndarray
    state: np.ndarray
    ports: dict[str, np.ndarray]

    def start(self, rng: np.random.Generator) -> np.ndarray:
        """Values before a reset, registers full of noise: uint8 [n_bits]."""
        values = np.zeros(self.n_bits, dtype=np.uint8)
        values[ONE] = 1
        values[self.state[1]] = rng.integers(0, 2, self.state.shape[1], dtype=np.uint8)
        return values

    def settle(self, values: np.ndarray) -> None:
        """Compute every cell."""
        settle(values, self.pins, self.cells)

    def clock(self, values: np.ndarray) -> None:
        """One rising edge: all registers at once."""
        values[self.state[1]] = values[self.state[0]]


def read_circuit(path: Path, top: str) -> FlatCircuit:
    """The top module of a file that `write_json` wrote behind `ELABORATE`."""
    return read_module(json.loads(path.read_text())["modules"][top])


def read_module(module: dict[str, Any]) -> FlatCircuit:
    """One flat module of such a file."""
    numbers: dict[Any, int] = {"0": ZERO, "x": ZERO, "z": ZERO, "1": ONE}
    ports = {name: _numbered(port["bits"], numbers) for name, port in module["ports"].items()}
    registers: list[NamedCell] = []
    rest: list[NamedCell] = []
    for name, cell in module["cells"].items():
        if cell["type"] != "$scopeinfo":
            (registers if cell["type"] == "$dff" else rest).append((name, cell))
    state = _state(registers, numbers, module["ports"].get("clk", {"bits": []})["bits"])
    rows: list[list[int]] = []
    pins: list[int] = []
    for name, cell in ordered_cells(rest):
        if cell["type"] not in KINDS:
            raise DataError(f"yosys made a {cell['type']} of {name}, which the built-in simulator does not know")
        rows.append(_row(cell, numbers, pins))
    cells = np.array(rows, dtype=np.int64).reshape(-1, 10)
    return FlatCircuit(max(numbers.values()) + 1, cells, np.array(pins, dtype=np.int64), state, ports)


def _numbered(bits: Iterable[Any], numbers: dict[Any, int]) -> np.ndarray:
    """Bits of yosys (net numbers, or constants as text) as ours."""
    return np.array([numbers.setdefault(bit, len(numbers)) for bit in bits], dtype=np.int64)


def _state(registers: list[NamedCell], numbers: dict[Any, int], clk: list[Any]) -> np.ndarray:
    ends: list[np.ndarray] = []
    for name, cell in registers:
        pins = cell["connections"]
        if pins["CLK"] != clk or int(str(cell["parameters"]["CLK_POLARITY"]), 2) != 1:
            raise DataError(f"the register {name} is not clocked by the rising edge of clk")
        ends.append(np.stack([_numbered(pins["D"], numbers), _numbered(pins["Q"], numbers)]))
    return np.concatenate(ends, axis=1) if ends else np.zeros((2, 0), dtype=np.int64)


def _row(cell: dict[str, Any], numbers: dict[Any, int], pins: list[int]) -> list[int]:
    kind, settings = cell["type"], {name: int(str(value), 2) for name, value in cell["parameters"].items()}
    signed = settings.get("B_SIGNED", 0) if kind == "$shiftx" else settings.get("A_SIGNED", 0) & settings.get("B_SIGNED", 1)
    if kind in ("$shl", "$shr", "$sshl", "$shiftx") and settings["B_WIDTH"] > INDEX_BITS:
        raise DataError(f"a shift by a number of {settings['B_WIDTH']} bits, expected at most {INDEX_BITS}")
    row = [KINDS[kind], signed]
    for port in PORTS:
        bits = cell["connections"].get(port, ())
        row += [len(pins), len(bits)]
        pins += _numbered(bits, numbers).tolist()
    return row


def ordered_cells(cells: list[NamedCell]) -> Iterator[NamedCell]:
    """Each cell behind those that drive it."""
    driver = {bit: number for number, (_, cell) in enumerate(cells) for bit in cell["connections"]["Y"]}
    before = [
        {driver[bit] for port in "ABS" for bit in set(cell["connections"].get(port, ())) if bit in driver} for _, cell in cells
    ]
    readers: list[list[int]] = [[] for _ in cells]
    for number, sources in enumerate(before):
        for source in sources:
            readers[source].append(number)
    waiting = [len(sources) for sources in before]
    ready = [number for number, count in enumerate(waiting) if not count]
    for number in ready:  # grows while it is read
        yield cells[number]
        for reader in readers[number]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if len(ready) < len(cells):
        raise DataError("the circuit has a loop without a register")


# ---- the cells -------------------------------------------------------------------------------------------------------


@jit
def _bit(values: np.ndarray, pins: np.ndarray, first: int, width: int, place: int, signed: bool) -> int:
    """A bit of an operand that is extended by its sign or by zeros."""
    if place < width:
        return values[pins[first + place]]
    return values[pins[first + width - 1]] if signed and width else 0


@jit
def _number(values: np.ndarray, pins: np.ndarray, first: int, width: int, signed: bool) -> int:
    total = 0
    for place in range(width):
        total |= values[pins[first + place]] << place
    if signed and width and values[pins[first + width - 1]]:
        total -= 1 << width
    return total


@jit
def _count(values: np.ndarray, pins: np.ndarray, first: int, width: int) -> int:
    """How many bits are one."""
    total = 0
    for place in range(width):
        total += values[pins[first + place]]
    return total


@jit
def _compare(values: np.ndarray, pins: np.ndarray, cell: np.ndarray) -> int:
    """-1, 0 or 1: A against B, as signed numbers or not."""
    signed = cell[1] != 0
    width = max(cell[3], cell[5])
    for place in range(width - 1, -1, -1):
        a = _bit(values, pins, cell[2], cell[3], place, signed)
        b = _bit(values, pins, cell[4], cell[5], place, signed)
        if a != b:
            greater = a > b
            if signed and place == width - 1:
                greater = not greater
            return 1 if greater else -1
    return 0


@jit
def _add(values: np.ndarray, pins: np.ndarray, cell: np.ndarray, subtract: bool) -> None:
    signed, carry = cell[1] != 0, 1 if subtract else 0
    for place in range(cell[9]):
        b = _bit(values, pins, cell[4], cell[5], place, signed)
        total = _bit(values, pins, cell[2], cell[3], place, signed) + (1 - b if subtract else b) + carry
        values[pins[cell[8] + place]] = total & 1
        carry = total >> 1


@jit
def _multiply(values: np.ndarray, pins: np.ndarray, cell: np.ndarray) -> None:
    signed, width = cell[1] != 0, cell[9]
    total = np.zeros(width, dtype=np.uint8)
    for shift in range(width):
        if not _bit(values, pins, cell[4], cell[5], shift, signed):
            continue
        carry = 0
        for place in range(shift, width):
            column = total[place] + _bit(values, pins, cell[2], cell[3], place - shift, signed) + carry
            total[place] = column & 1
            carry = column >> 1
    for place in range(width):
        values[pins[cell[8] + place]] = total[place]


@jit
def _bitwise(values: np.ndarray, pins: np.ndarray, cell: np.ndarray, place: int) -> int:
    kind, signed = cell[0], cell[1] != 0
    a = _bit(values, pins, cell[2], cell[3], place, signed)
    if kind == NOT:
        return 1 - a
    if kind == POS:
        return a
    b = _bit(values, pins, cell[4], cell[5], place, signed)
    if kind == AND:
        return a & b
    if kind == OR:
        return a | b
    return a ^ b if kind == XOR else 1 - (a ^ b)


@jit
def _truth(values: np.ndarray, pins: np.ndarray, cell: np.ndarray) -> int:
    """Cells with one answer."""
    kind = cell[0]
    if kind >= LT and kind <= NEX:
        order = _compare(values, pins, cell)
        if kind == LT:
            return order < 0
        if kind == LE:
            return order <= 0
        if kind == GT:
            return order > 0
        if kind == GE:
            return order >= 0
        return (order == 0) == (kind in (EQ, EQX))
    ones = _count(values, pins, cell[2], cell[3])
    if kind == R_AND:
        return ones == cell[3]
    if kind == R_XOR:
        return ones & 1
    if kind == R_XNOR:
        return 1 - (ones & 1)
    if kind == L_NOT:
        return ones == 0
    if kind == L_AND:
        return ones > 0 and _count(values, pins, cell[4], cell[5]) > 0
    if kind == L_OR:
        return ones > 0 or _count(values, pins, cell[4], cell[5]) > 0
    return ones > 0


@jit
def _shift(values: np.ndarray, pins: np.ndarray, cell: np.ndarray) -> None:
    """Bit i of Y is bit i ± B of A; beyond its end the sign (of $shr with a signed A), or 0."""
    kind = cell[0]
    by = _number(values, pins, cell[4], cell[5], kind == SHIFTX and cell[1] != 0)
    if kind in (SHL, SSHL):
        by = -by
    for place in range(cell[9]):
        source = place + by
        inside = 0 <= source < cell[3]
        values[pins[cell[8] + place]] = values[pins[cell[2] + source]] if inside else 0


@jit
def _choose(values: np.ndarray, pins: np.ndarray, cell: np.ndarray) -> None:
    """A, or the part of B whose bit of S is set."""
    first = cell[2]
    for choice in range(cell[7]):
        if values[pins[cell[6] + choice]]:
            first = cell[4] + choice * cell[9]
    for place in range(cell[9]):
        values[pins[cell[8] + place]] = values[pins[first + place]]


@compiled.jit(nogil=True)
def settle(values: np.ndarray, pins: np.ndarray, cells: np.ndarray) -> None:
    """Compute all cells in order: values uint8 [n_bits], changed in place."""
    for number in range(cells.shape[0]):
        cell = cells[number]
        kind = cell[0]
        if kind in (MUX, PMUX):
            _choose(values, pins, cell)
        elif kind >= SHL and kind <= SHIFTX:
            _shift(values, pins, cell)
        elif kind in (ADD, SUB):
            _add(values, pins, cell, kind == SUB)
        elif kind == NEG:
            carry = 1
            for place in range(cell[9]):
                total = 1 - _bit(values, pins, cell[2], cell[3], place, cell[1] != 0) + carry
                values[pins[cell[8] + place]] = total & 1
                carry = total >> 1
        elif kind == MUL:
            _multiply(values, pins, cell)
        elif kind <= POS or (kind >= AND and kind <= XNOR):
            for place in range(cell[9]):
                values[pins[cell[8] + place]] = _bitwise(values, pins, cell, place)
        else:
            for place in range(1, cell[9]):
                values[pins[cell[8] + place]] = 0
            values[pins[cell[8]]] = _truth(values, pins, cell)


def exhaust(circuit: FlatCircuit, rows: np.ndarray) -> np.ndarray:
    """The port `y` of a circuit without registers for each word on its port `a`: rows int64 [n] -> uint8 [n, bits of y]."""
    values = circuit.start(np.random.default_rng(0))
    answers = np.empty((len(rows), len(circuit.ports["y"])), dtype=np.uint8)
    _exhaust(values, circuit.pins, circuit.cells, rows, circuit.ports["a"], circuit.ports["y"], answers)
    return answers


@compiled.jit(nogil=True)
def _exhaust(
    values: np.ndarray,
    pins: np.ndarray,
    cells: np.ndarray,
    rows: np.ndarray,
    a: np.ndarray,
    y: np.ndarray,
    answers: np.ndarray,
) -> None:
    for number in range(len(rows)):
        for place in range(len(a)):
            values[a[place]] = rows[number] >> place & 1
        settle(values, pins, cells)
        for place in range(len(y)):
            answers[number, place] = values[y[place]]
