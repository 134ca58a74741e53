"""From a wrapped circuit to the bitstream of a board: synthesis, does it fit, place and route."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutetia.errors import ArgumentError, MissingFeatureError
from lutetia.precompute.boards.table import Board
from lutetia.precompute.boards.top import MODULE, TOP, Line, Wrapped, line_of, top_text
from lutetia.precompute.tools.find import find_tool, missing, run_program, run_yosys, time_limit
from lutetia.precompute.tools.place import Placement, PlaceOptions, place_on

MOST_HALVINGS = 3
KINDS = {"ice40": {"LUTs": "ICESTORM_LC", "block RAMs": "ICESTORM_RAM"}, "ecp5": {"LUTs": "TRELLIS_COMB", "block RAMs": "DP16KD"}}


class TooLargeError(ArgumentError):
    """A circuit does not fit a board; by the name of a part how many are needed, and how many there are."""

    def __init__(self, message: str, parts: dict[str, tuple[int, int]]) -> None:
        super().__init__(message)
        self.parts = parts


@dataclass(frozen=True)
class BoardBuild:
    """What was made: the serial line, how full the device is, its clock in MHz as nextpnr found it, the bitstream, or why there
    is none."""

    line: Line
    top: str
    used: dict[str, tuple[int, int]]
    fmax_mhz: float | None = None
    bitstream: bytes | None = None
    left_out: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the bitstream."""
        return {
            "baud": self.line.baud,
            "clock_mhz": self.line.hz / 1e6,
            "fmax_mhz": self.fmax_mhz,
            "used": {name: {"needed": needed, "available": available} for name, (needed, available) in self.used.items()},
            "bitstream_bytes": None if self.bitstream is None else len(self.bitstream),
            "left_out": self.left_out,
        }


def build_board(wrapped: Wrapped, board: Board, limit: float | None = None) -> BoardBuild:
    """Synthesise a circuit for a board, then place and route it. The clock is halved until nextpnr reaches it.

    TooLargeError, before place and route, where it does not fit. Without the programs the Verilog is all there is.
    """
    line = line_of(board)
    try:
        with time_limit(limit):
            return _build(wrapped, board, line)
    except MissingFeatureError as error:
        return BoardBuild(line, top_text(wrapped, line, board), {}, left_out=str(error))


def _build(wrapped: Wrapped, board: Board, line: Line) -> BoardBuild:
    for program in (board.device.nextpnr, board.device.packer):
        if find_tool(program) is None:
            raise missing(program, "a bitstream")
    while True:
        text = top_text(wrapped, line, board)
        with tempfile.TemporaryDirectory() as where:
            folder = Path(where)
            _synthesise(wrapped, text, board.family, folder)
            used = _fit(board, folder)
            placed = _place(wrapped, board, line, folder)
        fmax = placed.fmax_mhz
        if fmax is None or fmax >= line.hz / 1e6:
            return BoardBuild(line, text, used, fmax, placed.bitstream)
        halvings = line.halvings + 1
        while fmax < board.clock_hz / 2**halvings / 1e6:
            halvings += 1
        if halvings > MOST_HALVINGS:
            raise ArgumentError(
                f"the circuit reaches {fmax:.1f} MHz on the {board.title}, expected {board.clock_hz / 2**MOST_HALVINGS / 1e6:g} "
                "or more, an eighth of its clock: fewer --tables"
            )
        line = line_of(board, halvings)


def _synthesise(wrapped: Wrapped, text: str, family: str, folder: Path) -> None:
    for name, each in {**wrapped.files, TOP: text}.items():
        (folder / name).write_text(each)
    script = [f"read_verilog -DSYNTHESIS {' '.join([*wrapped.sources, TOP])}", f"synth_{family} -top {MODULE}"]
    run_yosys([*script, "delete t:$scopeinfo", "write_json placed.json"], folder, "a bitstream")


def _fit(board: Board, folder: Path) -> dict[str, tuple[int, int]]:
    """What the packed design needs and what there is, which takes seconds; TooLargeError where that is less."""
    program = find_tool(board.device.nextpnr)
    assert program is not None
    # What does not fit fails later, when it is placed.
    done = run_program([*program, *board.device.options, "--json", "placed.json", "--pack-only"], folder, check=False)
    found = {name: (int(needed), int(has)) for name, needed, has in re.findall(r"(\w+): +(\d+)/ *(\d+) ", done.stderr)}
    used = {name: found[cell] for name, cell in KINDS[board.family].items() if cell in found}
    lacking = [f"{needed:,} {name}, and there are {has:,}" for name, (needed, has) in used.items() if needed > has]
    if lacking:
        raise TooLargeError(f"the circuit does not fit the {board.title}: it needs {' and '.join(lacking)}", used)
    return used


def _place(wrapped: Wrapped, board: Board, line: Line, folder: Path) -> Placement:
    wanted = PlaceOptions(pins=board.constraints[1], fmax=line.hz / 1e6)
    placed = place_on(board.device, folder, wanted, wrapped.identity)
    if placed.bitstream is None:
        raise ArgumentError(f"the circuit cannot be put on the {board.title}: {placed.placed.removeprefix('not placed: ')}")
    return placed
