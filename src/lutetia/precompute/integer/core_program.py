"""What the cores that work step by step share: memories of words, the codes that tables compare, and the tables: see
`verilog/tables.v`.

    lanes      the comparisons of each table: a code with another code, or with a constant
    rows       the rows of each table, one output after another
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from lutetia.errors import ArgumentError
from lutetia.precompute.integer.classifier import IntegerClassifier, TableStage
from lutetia.precompute.integer.verilog_language import bits_for

Array = np.ndarray[Any, Any]
MOST_CLASSES = 256
ALWAYS, NEVER = 0, 255  # constants: every code is above 0, none above 255
CONSTANT_BITS = 8
ADDED = 6  # cycles behind the last table
# How a device can divide a block RAM: bits of a word, and words.
BLOCK_SHAPES = {
    "ecp5": ((1, 16384), (2, 8192), (4, 4096), (9, 2048), (18, 1024), (36, 512)),
    "ice40": ((2, 2048), (4, 1024), (8, 512), (16, 256)),
}


class Memory(NamedTuple):
    """Equal memories of a core."""

    bits: int  # of a word
    words: int
    copies: int = 1

    @property
    def total_bits(self) -> int:
        return self.bits * self.words * self.copies

    def block_rams(self, device: str) -> int:
        """How many block RAMs they need at most; a small one may become LUTs."""
        return self.copies * min(-(-self.bits // bits) * -(-self.words // words) for bits, words in BLOCK_SHAPES[device])


class Field(NamedTuple):
    """A number in a word of a memory."""

    name: str
    bits: int


class MemoryWords:
    """The words of memories, and the fields of these."""

    def __init__(self) -> None:
        self.words: dict[str, list[int]] = {}
        self.fields: dict[str, list[Field]] = {}

    def add(self, name: str, fields: list[Field], values: Array) -> None:
        """A memory of one word for each row of values [words, fields]."""
        values = np.asarray(values, dtype=np.int64)
        limits = np.array([1 << each.bits for each in fields])
        assert values.shape[1:] == limits.shape
        assert (values >= 0).all(), name
        assert (values < limits).all(), name
        shifts = np.cumsum([0, *(each.bits for each in fields[:-1])]).tolist()
        self.words[name] = [sum(value << shift for value, shift in zip(row, shifts, strict=True)) for row in values.tolist()]
        self.fields[name] = fields


@dataclass(frozen=True, eq=False)
class CoreProgram:
    """The sizes of a core, the words of its memories, and the numbers in each word, the lowest bits first."""

    sizes: dict[str, int]
    words: dict[str, list[int]] = field(repr=False)
    fields: dict[str, list[Field]] = field(repr=False)
    bias: list[int] = field(repr=False)

    @property
    def looked(self) -> int:
        """Cycles from the last code to the answer."""
        size = self.sizes
        return (size["LANES"] // size["K"] - 1) * size["PERIOD"] + size["K"] + 2 * size["OUTPUTS"] + ADDED

    @property
    def memories(self) -> dict[str, Memory]:
        """All memories: those that are filled, those of samples, and the codes."""
        made = {name: Memory(sum(each.bits for each in self.fields[name]), len(words)) for name, words in self.words.items()}
        return {**made, **self.kept, "codes": Memory(8, self.sizes["INPUTS"], 2)}

    @property
    def kept(self) -> dict[str, Memory]:
        """The memories of what comes in, and of what is made of it."""
        raise NotImplementedError

    def block_rams(self, device: str) -> int:
        """How many block RAMs of a device it needs at most."""
        return sum(memory.block_rams(device) for memory in self.memories.values())

    def column(self, memory: str, name: str) -> Array:
        """One number of all words of a memory: int64 [words]."""
        shift = 0
        for each in self.fields[memory]:
            if each.name == name:
                return np.array([word >> shift & (1 << each.bits) - 1 for word in self.words[memory]], dtype=np.int64)
            shift += each.bits
        raise KeyError(name)

    def answers(self, codes: Array) -> Array:
        """What the tables say of codes int64 [n, inputs], in the order of the memories: classes or sums, int64 [n]."""
        size = self.sizes
        left, right, is_constant = (self.column("lanes", name) for name in ("left", "right", "is_constant"))
        others = np.where(is_constant == 1, right, codes[:, np.where(is_constant == 1, 0, right)])
        bits = (codes[:, left] > others).reshape(len(codes), -1, size["K"])
        rows = bits @ (1 << np.arange(size["K"])[::-1])
        numbers = self.column("rows", "number").reshape(-1, size["OUTPUTS"], 1 << size["K"])
        sums = np.array(self.bias) + sum(numbers[table][:, row].T for table, row in enumerate(rows.T))
        return sums[:, 0] if size["OUTPUTS"] == 1 else sums.argmax(1)


def table_stage(model: IntegerClassifier) -> TableStage:
    """The layer of tables of a model that has a core."""
    stage = model.stages[0]
    assert len(model.stages) == 1
    assert isinstance(stage, TableStage)
    if len(stage.bias) > MOST_CLASSES:
        raise ArgumentError(f"the model has {len(stage.bias)} classes, expected {MOST_CLASSES} at most")
    return stage


class Compared(NamedTuple):
    """What the tables ask of an input: the edges that make a difference, and for a constant that it is compared with the
    constant that stands for it."""

    edges: Array
    constants: dict[int, int]


def compared_inputs(stage: TableStage, edges: Sequence[Array]) -> dict[int, Compared]:
    """The inputs that tables compare, by their numbers in the model; `edges` has all edges of each."""
    lanes = np.unique(stage.lanes)
    left, right, constant = stage.left[lanes], stage.right[lanes], stage.constant[lanes]
    paired = {*left[right >= 0].tolist(), *right[right >= 0].tolist()}
    found = {}
    for number in sorted({*left.tolist(), *paired}):
        own = edges[number]
        constants = np.unique(constant[(left == number) & (right < 0)])
        meant = {each: each for each in constants.tolist()}
        if number not in paired:  # only edges that it is compared with, numbered again
            wanted = constants[(constants >= 1) & (constants <= len(own))]
            meant = {each: place + 1 for place, each in enumerate(wanted.tolist())}
            own = own[wanted - 1]
        meant |= {each: ALWAYS if each < 1 else NEVER for each in constants.tolist() if not 1 <= each <= len(edges[number])}
        found[number] = Compared(own, meant)
    return found


def add_tables(made: MemoryWords, stage: TableStage, places: Mapping[int, int], inputs: Mapping[int, Compared]) -> dict[str, int]:
    """Add the memories of tables, whose codes stand at the `places` of their inputs, and return the sizes."""
    input_bits = bits_for(len(places))
    right_bits = max(input_bits, CONSTANT_BITS)
    fields = [Field("left", input_bits), Field("right", right_bits), Field("is_constant", 1)]
    made.add("lanes", fields, _lanes(stage, places, inputs))
    rows = _rows(stage)
    row_bits = max(1, int(rows.max()).bit_length())
    made.add("rows", [Field("number", row_bits)], rows[:, None])
    n_outputs, k = len(stage.bias), stage.lanes.shape[1]
    period = max(k, n_outputs)
    blocks = len(stage.lanes) * n_outputs
    return {
        "INPUTS": len(places), "LANES": stage.lanes.size, "K": k, "PERIOD": period, "OUTPUTS": n_outputs, "BLOCKS": blocks,
        "W": row_bits, "SUM_BITS": stage.bits, "RIGHT_BITS": right_bits, "INPUT_BITS": input_bits,
        "LANE_BITS": bits_for(stage.lanes.size), "BLOCK_BITS": bits_for(blocks), "OUTPUT_BITS": bits_for(n_outputs),
        "TICK_BITS": bits_for(period + 1),  # compared with numbers up to the period
    }  # fmt: skip


TABLE_SIZES = (
    "INPUTS", "LANES", "K", "PERIOD", "OUTPUTS", "BLOCKS", "W", "SUM_BITS", "RIGHT_BITS", "INPUT_BITS", "LANE_BITS",
    "BLOCK_BITS", "OUTPUT_BITS", "TICK_BITS",
)  # fmt: skip


def _lanes(stage: TableStage, places: Mapping[int, int], inputs: Mapping[int, Compared]) -> Array:
    """Left, right and whether right is a constant, of the comparisons of each table, the highest bit first: [lookups · k, 3]."""
    words = []
    for lane in stage.lanes.reshape(-1).tolist():
        left, right, constant = (int(each[lane]) for each in (stage.left, stage.right, stage.constant))
        own = places[left]
        words.append((own, places[right], 0) if right >= 0 else (own, inputs[left].constants[constant], 1))
    return np.array(words, dtype=np.int64)


def _rows(stage: TableStage) -> Array:
    """The number that each row of each table adds to each output: [lookups · outputs · 2**k], in this order."""
    k, n_outputs = stage.lanes.shape[1], len(stage.bias)
    rows = np.zeros((len(stage.lanes), n_outputs, 1 << k), np.int64)
    index = np.arange(1 << k)
    for lookup, (contents, targets) in enumerate(zip(stage.contents, stage.targets, strict=True)):
        for column, target in enumerate(targets.tolist()):
            rows[lookup, target] += contents[index ^ stage.flip[lookup], column]
    return rows.reshape(-1)
