"""A whole-number language model as Verilog: table memories, accumulators, the index cache as RAM, and a sequencer.

The fixed parts are files in `verilog/`. This module writes sizes, the contents of memories, and what depends on a layer.
`detectors` detectors are compared and fetched in a cycle: detector t lies in bank t % detectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from lutetia.errors import check_range
from lutetia.precompute.integer.language import IntegerTransformer, TableLayer
from lutetia.precompute.integer.sampling import weights
from lutetia.precompute.integer.scales import GAIN_BITS

Array = np.ndarray[Any, Any]
GAIN_STEPS = GAIN_BITS // 2  # a digit of a gain in a cycle: -2 to 2, of base 4
DEEPEST = 2048  # rows of a table memory: a block RAM of an ECP5 has so many bytes
TURN_BITS = 2  # cycles in which ranks are counted, as a power of two
DRAW_PORTS = """,
    input wire [31:0] seed, // taken at a reset
    input wire in_draw // answer this byte with a drawn one"""
TO_RANKS = (1 << TURN_BITS) + 1  # cycles between the scaled stream and the first group, which needs two to reach the ranks
TO_STREAM = 7  # from an accepted byte to its row of the embedding, which comes in four parts
TO_CELLS, TO_SUMS = 4, 8  # stages behind the last group, until its cells are known and until its rows are added


@dataclass(frozen=True, eq=False)
class CoreLayout:
    """Where everything is stored: the model, detectors per cycle, and the sampling temperature."""

    model: IntegerTransformer
    detectors: int
    temperature: float | None = None  # of a core that can draw

    def __post_init__(self) -> None:
        check_range("detectors_per_cycle", self.detectors, 1, 64)

    @property
    def attention(self) -> list[TableLayer]:
        return [block.attention for block in self.model.blocks]

    @property
    def feed_forward(self) -> list[TableLayer]:
        return [block.feed_forward for block in self.model.blocks]

    @property
    def layers(self) -> list[TableLayer]:
        """In the order of the memories: all attentions, all feed-forwards, the unembedding."""
        return [*self.attention, *self.feed_forward, self.model.unembedding]

    @property
    def chunks(self) -> int:
        """Rows of `width` numbers that a row of the unembedding takes."""
        return -(-self.model.vocab // self.model.width)

    @property
    def chunk_bits(self) -> int:
        return bits_for(self.chunks)

    @property
    def has_gains(self) -> bool:
        return any(layer.gains is not None for layer in self.layers)

    def groups(self, layer: TableLayer) -> int:
        """Cycles that all detectors of a layer take."""
        return -(-len(layer.numbers) // self.detectors)

    def rows(self, layer: TableLayer) -> int:
        """Rows of a layer in each bank."""
        wide = 1 << self.chunk_bits if layer is self.model.unembedding and self.chunks > 1 else 1
        return self.groups(layer) * layer.numbers.shape[1] * wide

    def row_bases(self) -> list[int]:
        """The first row of each layer, and at the end the depth of a bank."""
        return [0, *np.cumsum([self.rows(layer) for layer in self.layers]).tolist()]

    def anchor_bases(self) -> list[int]:
        """The first word of each layer in the memory of the anchors, and at the end its depth."""
        return [0, *np.cumsum([self.groups(layer) for layer in self.layers]).tolist()]

    # ---- cycles ------------------------------------------------------------------------------------------------------

    def _scale(self, layer: TableLayer) -> int:
        return (1 if layer.gains is None else GAIN_STEPS) + TO_RANKS

    def _block(self, number: int, j: int) -> int:
        attention, feed_forward = self.attention[number], self.feed_forward[number]
        seen = j * self.groups(attention) + TO_SUMS if j else 0
        return self._scale(attention) + self.groups(attention) + TO_CELLS + seen + 1 + self._fed(feed_forward)

    def _fed(self, layer: TableLayer) -> int:
        return self._scale(layer) + self.groups(layer) + TO_SUMS + 1

    def cycles(self, length: int, full: bool = False) -> int:
        """Cycles from an accepted byte to its answer, with `length` bytes in the window; `full`: the oldest byte left for it."""
        first, last, n = self.attention[0], self.model.unembedding, len(self.model.blocks)
        total = TO_STREAM + sum(self._block(number, length - 1) for number in range(n))
        if full and n > 1:
            fresh = 2 * self.groups(first) + TO_SUMS + 1 + self._fed(self.feed_forward[0])
            final = self._scale(self.attention[-1]) + self.groups(
                self.attention[-1]
            )  # the next place begins behind its last group
            for j in range(length - 1):
                total += fresh + final + sum(self._block(number, j) for number in range(1, n - 1))
        return total + self._scale(last) + self.chunks * (self.groups(last) + TO_SUMS + self.model.width)


def bits_for(count: int) -> int:
    """The bits needed to number `count` things, at least one."""
    return max(1, (count - 1).bit_length())


def core_files(layout: CoreLayout) -> dict[str, str]:
    """The Verilog and the contents of its memories."""
    text = template("core.v")
    pieces = {
        "PARAMETERS": _parameters(layout),
        "LAYERS": _layer_choices(layout),
        "MEMORIES": _memories(layout),
        "SHIFTS": _shifts(layout),
        "DIGIT": _digit(layout),
        "SCALED": "scaled_x[COMPARED_BITS:1]" if layout.has_gains else "wide_x",
        "DRAW_PORTS": "" if layout.temperature is None else DRAW_PORTS,
        "DRAW": _draw(layout),
        "CELL": "{asked, key, positions_2[b*P +: P]}" if layout.attention[0].position_bits else "{asked, key}",
    }
    for name, piece in pieces.items():
        text = text.replace(f"@{name}@", piece)
    sources = {"memories.v": template("memories.v"), "core.v": text}
    if layout.temperature is not None:
        sources["draw.v"] = template("draw.v")
    return sources | _contents(layout)


def bench_text(context: int, draws: bool) -> str:
    """The test bench, for prompts of at most `context` bytes; `draws`: of a core that can draw."""
    pins = ", .seed(seed), .in_draw(draw != 0 && sent >= prompt_bytes - 1)" if draws else ""
    return template("bench.v").replace("@CONTEXT@", str(context)).replace("@DRAWS@", pins)


def template(name: str) -> str:
    """A file of Verilog with places to fill."""
    return files("lutetia.precompute.integer").joinpath("verilog", name).read_text(encoding="utf-8")


# ---- pieces of the core ----------------------------------------------------------------------------------------------


def _parameters(layout: CoreLayout) -> str:
    model, attention, last = layout.model, layout.attention[0], layout.model.unembedding
    widths = model.widths()
    cell = 2 * attention.anchors.shape[1] + attention.position_bits
    pairs = max(layer.anchors.shape[1] for layer in layout.layers)
    shown = -(-model.width >> TURN_BITS)  # channels that every channel is compared with in a turn
    groups = [layout.groups(layer) for layer in (attention, layout.feed_forward[0], last)]
    values = {
        "D": layout.detectors, "WIDTH": model.width, "CONTEXT": model.context, "LAYERS": len(model.blocks), "VOCAB": model.vocab,
        "A": attention.anchors.shape[1], "P": attention.position_bits, "PAIRS": pairs, "CELL_BITS": max(cell, pairs),
        "GROUPS": groups[0], "FF_GROUPS": groups[1], "LAST_GROUPS": groups[2], "GROUP_BITS": bits_for(max(groups)),
        "STREAM_BITS": widths["stream"], "COMPARED_BITS": widths["compared"],
        "LANE_BITS": bits_for(widths["compared"]), "RANK_LANE_BITS": bits_for(bits_for(model.width)),
        "TURNS": 1 << TURN_BITS, "TURN_BITS": TURN_BITS, "SHOWN": shown, "FOURS": -(-shown // 4), "QUARTER": -(-model.width // 4),
        "SUM_BITS": max(widths[name] for name in model.layers), "EMBEDDING_SHIFT": model.embedding_shift,
        "WIDTH_BITS": bits_for(model.width), "PLACE_BITS": bits_for(model.context), "LAYER_BITS": bits_for(len(model.blocks) + 1),
        "CHUNK_BITS": layout.chunk_bits, "SHIFT_BITS": bits_for(len(_shift_values(layout))),
        "NUMBER_BITS": bits_for(layout.chunks * model.width) + 1,
        "STEPS": GAIN_STEPS, "STEP_BITS": bits_for(GAIN_STEPS + 1), "ANCHOR_ROWS": layout.anchor_bases()[-1],
        "ANCHOR_ADDRESS": bits_for(layout.anchor_bases()[-1]), "ROWS": layout.row_bases()[-1],
        "ROW_ADDRESS": bits_for(layout.row_bases()[-1]),
    }  # fmt: skip
    sides = _sides(layout)
    bits = bits_for(max(map(len, sides)))
    values |= {"SIDES": len(sides), "CHOICE_BITS": bits}
    lines = [f"    localparam {name} = {value};\n" for name, value in values.items()]
    filled = [channel for side in sides for channel in side + side[:1] * ((1 << bits) - len(side))]
    lines += [
        "    // Of each side of a bank's pairs: the bits that choose its channel, and the channels that its detectors compare.\n",
        _constant("SIDE_BITS", [bits_for(len(side)) for side in sides], 8),
        _constant("CHANNELS", filled, values["WIDTH_BITS"]),
    ]
    return "".join(lines)


def _constant(name: str, numbers: list[int], bits: int) -> str:
    word = words(np.array([numbers]), bits)[0]
    return f"    localparam [{len(numbers) * bits - 1}:0] {name} = {len(numbers) * bits}'h{word:x};\n"


def _sides(layout: CoreLayout) -> list[list[int]]:
    """The channels that each side of a bank's pairs reads, in any layer: few of all, so that choosing one takes few gates."""
    return [sorted(set(side)) for side in _anchor_rows(layout).T.tolist()]


def _layer_choices(layout: CoreLayout) -> str:
    """Bases of memories, shifts and gains, by part and layer."""
    n = len(layout.model.blocks)
    shifts = _shift_values(layout)
    lines = [
        "    // Registers: they are needed cycles after a layer has begun.",
        "    reg [ROW_ADDRESS-1:0] row_base;",
        "    reg [ANCHOR_ADDRESS-1:0] anchor_base;",
        "    reg [SHIFT_BITS-1:0] shift_choice;",
        "    always @(posedge clk) begin",
        "        shift_choice <= 0;",
        "        case ({part, layer})",
    ]
    names = [("ATTENTION", number) for number in range(n)] + [("FEED_FORWARD", number) for number in range(n)] + [("LAST", n)]
    labels = [
        f"{{2'd{['ATTENTION', 'FEED_FORWARD', 'LAST'].index(part)}, {bits_for(n + 1)}'d{number}}}" for part, number in names
    ]
    for at, (label, layer) in enumerate(zip([*labels[:-1], "default"], layout.layers, strict=True)):
        choice = f" shift_choice <= {shifts.index(layer.shift)};" if layer is not layout.model.unembedding else ""
        lines.append(
            f"            {label}: begin row_base <= {layout.row_bases()[at]}; "
            f"anchor_base <= {layout.anchor_bases()[at]};{choice} end"
        )
    plain = " || ".join(
        f"{{part, layer}} == {label}" for label, layer in zip(labels, layout.layers, strict=True) if layer.gains is None
    )
    ends = [
        f"    wire has_gains = !({plain or 0});",
        f"    wire scaled = {'!has_gains || k == STEPS - 1' if layout.has_gains else 1};",
    ]
    return "\n".join([*lines, "        endcase", "    end", *ends, ""])


def _draw(layout: CoreLayout) -> str:
    """The circuit that samples the next byte, or constant wires if there is none."""
    if layout.temperature is None:
        return "    wire wants_draw = 0, drawn = 0;\n    wire [7:0] drawn_byte = 0;"
    drop, table = weights(layout.temperature, layout.model.unembedding.fraction)
    return f"""    wire wants_draw = in_draw;
    wire drawn;
    wire [7:0] drawn_byte;
    lutetia_draw #(.VOCAB(VOCAB), .SUM_BITS(SUM_BITS), .DROP({drop}), .STEPS({len(table)}),
                   .STEP_BITS({bits_for(len(table) + 1)})) draw (
        .clk(clk), .rst(rst), .seed(seed), .write(state == BEST && number < VOCAB), .write_number(number[7:0]),
        .write_score(candidate), .best(best), .go(state == DRAW), .done(drawn), .chosen(drawn_byte));"""


def _shift_values(layout: CoreLayout) -> list[int]:
    return sorted({layer.shift for layer in layout.layers[:-1]})


def _shifts(layout: CoreLayout) -> str:
    shifts = _shift_values(layout)
    labels = [*map(str, range(len(shifts) - 1)), "default"]
    return "\n".join(
        f"                    {label}: joined = wide_sum <<< {shift};" for label, shift in zip(labels, shifts, strict=True)
    )


def _digit(layout: CoreLayout) -> str:
    """One step of a channel's product with its gain, the highest digit first; its three bits: negative, twice, once."""
    if not layout.has_gains:
        return ""
    return """            wire [2:0] digit = gains[c*3 +: 3];
            wire signed [COMPARED_BITS-1:0] times = digit[1] ? wide_x <<< 1 : digit[0] ? wide_x : 0;
            wire [COMPARED_BITS-1:0] raised = s <<< 2;
            wire [COMPARED_BITS:0] scaled_x = {raised, 1'b1} + {times ^ {COMPARED_BITS{digit[2]}}, digit[2]};"""


def _memories(layout: CoreLayout) -> str:
    attention, last = layout.attention[0], layout.model.unembedding
    lines = []
    if attention.position_bits:
        lines += [
            "    wire [D*P-1:0] positions;",
            "    lutetia_rom #(.WIDTH(D * P), .DEPTH(1 << (LAYER_BITS + PLACE_BITS + GROUP_BITS)),",
            '                  .ADDRESS(LAYER_BITS + PLACE_BITS + GROUP_BITS), .FILE("positions.mem")) position_memory (',
            "        .clk(clk), .address({layer, distance, g}), .data(positions));",
            "    reg [D*P-1:0] positions_2;",
            "    always @(posedge clk) positions_2 <= positions;",
        ]
    if layout.has_gains:
        lines += [
            "    wire [WIDTH*3-1:0] gains_1; // asked for two cycles before they are used",
            "    reg [WIDTH*3-1:0] gains;",
            "    reg [LAYER_BITS:0] gain_layer;",
            "    reg [STEP_BITS-1:0] gain_step;",
            "    always @(posedge clk) begin",
            "        gains <= gains_1;",
            "        gain_layer <= state == RUN || state == ADD ? {next_layer, next_part[0]} : {layer, part[0]};",
            "        if (rst) gain_step <= 0;",
            "        else if (add_next || (state == EMBED && step == LAST_STEP - 1)) gain_step <= 1;",
            "        else if (gain_step != 0) gain_step <= gain_step == STEPS - 1 ? 0 : gain_step + 1;",
            "    end",
            "    lutetia_rom #(.WIDTH(WIDTH * 3), .DEPTH(1 << (LAYER_BITS + 1 + STEP_BITS)),",
            '                  .ADDRESS(LAYER_BITS + 1 + STEP_BITS), .FILE("gains.mem")) gain_memory (',
            "        .clk(clk), .address({gain_layer, gain_step}), .data(gains_1));",
        ]
    cell = 2 * attention.anchors.shape[1] + attention.position_bits
    chunk = ", chunk" if layout.chunks > 1 else ""
    lines.append("    wire [D*WIDTH*8-1:0] rows_7;")
    for bank in range(layout.detectors):
        own = f"cell_4[{bank}*CELL_BITS +: %d]"
        offsets = [
            f"{{g_4, {own % cell}}}",
            f"{{g_4, {own % layout.feed_forward[0].anchors.shape[1]}}}",
            f"{{g_4, {own % last.anchors.shape[1]}{chunk}}}",
        ]
        lines += [
            f"    reg [ROW_ADDRESS-1:0] row_address_{bank};",
            f"    always @(posedge clk) row_address_{bank} <= row_base + (part == ATTENTION ? {offsets[0]} :",
            f"        part == FEED_FORWARD ? {offsets[1]} : {offsets[2]});",
            *_bank_memories(layout, bank),
        ]
    return "\n".join([*lines, ""])


def _bank_memories(layout: CoreLayout, bank: int) -> list[str]:
    """The memories of a bank, each with a register behind it, as a block RAM is slow: zeros where another memory was asked."""
    depth = layout.row_bases()[-1]
    names = [f"{bank}_{begin // DEEPEST}" for begin in range(0, depth, DEEPEST)]
    lines = []
    for number, name in enumerate(names):
        rows = min(DEEPEST, depth - number * DEEPEST)
        bits = bits_for(rows)
        asked = f"row_address_{bank}[ROW_ADDRESS-1:{bits_for(DEEPEST)}] == {number}" if len(names) > 1 else "1"
        lines += [
            f"    wire [WIDTH*8-1:0] rows_{name};",
            f"    reg [WIDTH*8-1:0] rows_{name}_7;",
            f"    reg asked_{name}_6;",
            "    always @(posedge clk) begin",
            f"        asked_{name}_6 <= {asked};",
            f"        rows_{name}_7 <= asked_{name}_6 ? rows_{name} : 0;",
            "    end",
            f"    lutetia_rom #(.WIDTH(WIDTH * 8), .DEPTH({rows}), .ADDRESS({bits}), "
            f'.FILE("tables_{name}.mem")) table_memory_{name} (',
            f"        .clk(clk), .address(row_address_{bank}[{bits - 1}:0]), .data(rows_{name}));",
        ]
    chosen = " | ".join(f"rows_{name}_7" for name in names)
    return [*lines, f"    assign rows_7[{bank}*WIDTH*8 +: WIDTH*8] = {chosen};"]


# ---- contents of the memories ----------------------------------------------------------------------------------------


def _contents(layout: CoreLayout) -> dict[str, str]:
    model = layout.model
    made = {
        "embedding.mem": hex_words(words(_quarters(model.embedding.astype(np.int64)), 16)),
        "anchors.mem": hex_words(_anchor_words(layout)),
    }
    for bank in range(layout.detectors):
        rows = [_bank_rows(layout, layer, bank) for layer in layout.layers]
        listed = words(np.concatenate(rows), 8)
        for begin in range(0, len(listed), DEEPEST):
            made[f"tables_{bank}_{begin // DEEPEST}.mem"] = hex_words(listed[begin : begin + DEEPEST])
    if layout.attention[0].position_bits:
        made["positions.mem"] = hex_words(_position_words(layout))
    if layout.temperature is not None:
        made["weights.mem"] = hex_words([*weights(layout.temperature, model.unembedding.fraction)[1].tolist(), 0])
    if layout.has_gains:
        made["gains.mem"] = hex_words(_gain_words(layout))
    return made


def _quarters(rows: Array) -> Array:
    """Each row as four, padded with zeros; the last one first: [n, width] -> [4 * n, width / 4]."""
    size = -(-rows.shape[1] // 4)
    padded = np.pad(rows, ((0, 0), (0, 4 * size - rows.shape[1]))).reshape(len(rows), 4, size)
    return np.roll(padded, 1, axis=1).reshape(-1, size)


def words(values: Array, bits: int) -> list[int]:
    """Each row as one word, the first number in the lowest bits."""
    mask = (1 << bits) - 1
    return [sum((value & mask) << (bits * at) for at, value in enumerate(row)) for row in values.tolist()]


def hex_words(values: list[int]) -> str:
    """The contents of a memory, a word a line."""
    return "".join(f"{word:x}\n" for word in values)


def _bank_rows(layout: CoreLayout, layer: TableLayer, bank: int) -> Array:
    """The rows of every `detectors`-th detector, zeros past the last: [rows, width]."""
    width, n_rows = layout.model.width, layer.numbers.shape[1]
    own = layer.numbers[bank :: layout.detectors].astype(np.int64)
    padded = np.zeros((layout.groups(layer), n_rows, own.shape[2]), dtype=np.int64)
    padded[: len(own)] = own
    if layer is not layout.model.unembedding:
        return padded.reshape(-1, width)
    wide = np.zeros((*padded.shape[:2], width << (layout.chunk_bits if layout.chunks > 1 else 0)), dtype=np.int64)
    wide[:, :, : padded.shape[2]] = padded
    return wide.reshape(-1, width)


def _anchor_rows(layout: CoreLayout) -> Array:
    """The channels of both sides of every pair, by layer and group; 0 where there is no pair: int [anchor rows, sides]."""
    pairs = max(layer.anchors.shape[1] for layer in layout.layers)
    rows = []
    for layer in layout.layers:
        padded = np.zeros((layout.groups(layer) * layout.detectors, pairs, 2), dtype=np.int64)
        padded[: len(layer.anchors), : layer.anchors.shape[1]] = layer.anchors
        rows.append(padded.reshape(layout.groups(layer), -1))
    return np.concatenate(rows)


def _anchor_words(layout: CoreLayout) -> list[int]:
    """Each channel of `_anchor_rows` as its number among those of its side."""
    sides = _sides(layout)
    chosen = [np.searchsorted(side, column) for side, column in zip(sides, _anchor_rows(layout).T, strict=True)]
    return words(np.stack(chosen, 1), bits_for(max(map(len, sides))))


def _position_words(layout: CoreLayout) -> list[int]:
    """PE by layer, distance and group, each padded to a power of two."""
    n, context = len(layout.model.blocks), 1 << bits_for(layout.model.context)
    groups = 1 << _group_bits(layout)
    codes = np.zeros((1 << bits_for(n + 1), context, groups * layout.detectors), dtype=np.int64)
    for number, layer in enumerate(layout.attention):
        assert layer.positions is not None
        codes[number, : len(layer.positions), : layer.positions.shape[1]] = layer.positions
    return words(codes.reshape(-1, layout.detectors), layout.attention[0].position_bits)


def _group_bits(layout: CoreLayout) -> int:
    return bits_for(max(layout.groups(layer) for layer in layout.layers))


def _gain_words(layout: CoreLayout) -> list[int]:
    """By layer, part and step: a digit of every gain, the highest first, as three bits: negative, twice, once."""
    n, width = len(layout.model.blocks), layout.model.width
    rows = np.zeros((1 << bits_for(n + 1), 2, 1 << bits_for(GAIN_STEPS + 1), width), dtype=np.int64)
    places = [(number, 0) for number in range(n)] + [(number, 1) for number in range(n)] + [(n, 0)]
    for (number, part), layer in zip(places, layout.layers, strict=True):
        if layer.gains is None:
            rows[number, part, 0] = 1  # one step, of once
            continue
        for step in range(GAIN_STEPS):
            digit = _digits(layer.gains, GAIN_STEPS - 1 - step)
            rows[number, part, step] = (digit < 0) * 4 + (abs(digit) == 2) * 2 + (abs(digit) == 1)
    return words(rows.reshape(-1, width), 3)


def _digits(numbers: Array, place: int) -> Array:
    """The digit at a place of base 4, from -2 to 2, of numbers of two's complement (Booth's): they sum up to the number."""
    bit = [(numbers << 1) >> (2 * place + at) & 1 for at in range(3)]
    return bit[0] + bit[1] - 2 * bit[2]
