"""`lutetia build --board`: what lies in board/ of a build. `lutetia board` reads it.

top.v              the circuit, or the core, with a serial line around it; the other modules are in verilog/
pins.pcf, .lpf     the pins of the board
circuit.bin, .bit  the bitstream
README.md          how to load it, and how to ask it
board.json         what the side that asks must know; model/: the model that is on the board
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutetia.cli.build_tables import MOST_LUTS, Room
from lutetia.cli.guard import UsageError
from lutetia.cli.values import BITSTREAMS
from lutetia.errors import ArgumentError, DataError, MissingFeatureError
from lutetia.models import Model, save
from lutetia.precompute import (
    CHIPS,
    Board,
    BoardBuild,
    TimeLimitError,
    TooLargeError,
    Wrapped,
    build_board,
    read_board,
    simulate_board,
)

if TYPE_CHECKING:
    from lutetia.cli.build import BuildRequest
    from lutetia.cli.build_screen import Screen

FOLDER, FACTS, FORMAT = "board", "board.json", "lutetia.board/1"
MODEL = f"{FOLDER}/model"
SIMULATED, CYCLES = 16, 200_000  # questions that are simulated at most, and cycles that take Icarus about half a minute
SERIAL_LUTS, PER_LUT = 350, 1.4  # of the serial line; cells of a device for each LUT of an estimate, with carries and registers
SPARE = 0.95  # of a device, for a guess of what fits it


@dataclass(frozen=True)
class OnBoard:
    """What is put on a board: the circuit, the model that it is from and how it is made of it, and questions with their
    answers."""

    board: Board
    wrapped: Wrapped
    model: Model[Any]
    recipe: Mapping[str, Any]
    questions: Sequence[bytes]
    replies: Sequence[bytes]


def check_board(request: BuildRequest) -> Board | None:
    """The board that was asked for; options that mean nothing for it are refused."""
    if request.board is None:
        return None
    try:
        board = read_board(request.board)
    except DataError as error:
        raise UsageError(f"--board: {error}") from error
    if request.target not in ("lut6", board.family):
        raise UsageError(f"--target is {request.target}, and the {board.title} is an {board.family}: leave --target out")
    without = {
        "--pins": (request.pins, "its pins are those of the board"),
        "--fmax": (request.fmax, "its clock is that of the board"),
        "--speed-grade": (request.speed_grade, "its device is that of the board"),
        "--drop-unseen": (request.drop_unseen or None, "lutetia board compares every answer with the model"),
    }
    for option, (given, why) in without.items():
        if given is not None:
            raise UsageError(f"{option} is not for --board: {why}")
    return board


def circuit_room(board: Board) -> Room:
    """How large a circuit may become that fits a board."""

    def cost(network: Any) -> int:
        graph = network.graph
        return int(graph.cost(4).luts * PER_LUT) + int(graph.input_edge.width) + SERIAL_LUTS

    return Room(min(CHIPS[board.chip].luts, int(MOST_LUTS * PER_LUT)), cost)


# ---- the steps -------------------------------------------------------------------------------------------------------


def run_on_board(job: OnBoard, report: dict[str, Any], screen: Screen, limit: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Simulate the board at its pins and make its bitstream: the files of the folder, and the facts for the report."""
    told: dict[str, Any] = {"name": job.board.name, "title": job.board.title, "chip": job.board.chip}
    told["simulated"] = screen.run("board at its serial pins", lambda: _simulate(job, limit))
    try:
        made = screen.run(f"bitstream for the {job.board.title}", lambda: build_board(job.wrapped, job.board, limit))
    except TooLargeError as error:
        raise ArgumentError(f"{error}: {_smaller(error, report)}") from error
    except TimeLimitError as error:
        raise ArgumentError(f"the circuit was not put on the {job.board.title}: {error} (--time-limit)") from error
    told |= made.to_dict() | {"port": job.board.port, "file": f"{FOLDER}/{BITSTREAMS[job.board.family]}"}
    told["flash"] = _flash(job.board, Path(told["file"]))
    return board_files(job, made), told


def _simulate(job: OnBoard, limit: float) -> dict[str, Any]:
    each = (job.wrapped.question_bytes + job.wrapped.answer_bytes + 20) * 40 + job.wrapped.cycles
    n = max(1, min(SIMULATED, CYCLES // each, len(job.questions)))
    try:
        simulate_board(job.wrapped, job.board, job.questions[:n], job.replies[:n], limit)
    except (MissingFeatureError, TimeLimitError) as error:
        return {"left_out": str(error), "questions": 0}
    return {"left_out": "", "questions": n}


def _smaller(error: TooLargeError, report: dict[str, Any]) -> str:
    """What to do where a circuit does not fit."""
    used = report.get("boosted_tables")
    if not used:
        return "a larger board, or a smaller model"
    fixed = {"LUTs": SERIAL_LUTS, "block RAMs": 0}
    shares = [(has * SPARE - fixed[name]) / (needed - fixed[name]) for name, (needed, has) in error.parts.items() if needed > has]
    return f"--tables {max(1, int(used['used'] * min(shares)))} should fit, {used['used']} do not"


# ---- the folder ------------------------------------------------------------------------------------------------------


def board_files(job: OnBoard, made: BoardBuild) -> dict[str, Any]:
    """The files of board/, by their names in the folder of the build."""
    name, text = job.board.constraints
    talk = made.line.talk(job.wrapped)
    facts = {
        "format": FORMAT,
        "board": {"name": job.board.name, "title": job.board.title, "port": job.board.port},
        "talk": {**asdict(talk), "identity": f"0x{talk.identity:08x}"},
        "baud": made.line.baud,
        "flash": _flash(job.board, Path(BITSTREAMS[job.board.family])),
        "recipe": dict(job.recipe),
    }
    files: dict[str, Any] = {
        "top.v": made.top,
        name: text,
        FACTS: json.dumps(facts, indent=2) + "\n",
        "README.md": _readme(job, made),
    }
    if made.bitstream is not None:
        files[BITSTREAMS[job.board.family]] = made.bitstream
    return {f"{FOLDER}/{name}": content for name, content in files.items()} | _model_files(job.model)


def _model_files(model: Model[Any]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        save(model, folder)
        return {f"{MODEL}/{each.name}": each.read_bytes() for each in folder.iterdir()}


def _flash(board: Board, file: Path) -> str:
    return board.flash.replace("{file}", str(file))


def _readme(job: OnBoard, made: BoardBuild) -> str:
    board, talk = job.board, made.line.talk(job.wrapped)
    bitstream = BITSTREAMS[board.family]
    load = f"    {_flash(board, Path(bitstream))}" if made.bitstream else f"There is no `{bitstream}`: {made.left_out}."
    how = "may follow each other at once" if talk.streams else "wait for the answer to the one before"
    return f"""# {job.wrapped.module} on the {board.title}

Load it, in this folder:

{load}

Ask it, in the folder above:

    lutetia board . INPUT --port {board.port}

INPUT is what `lutetia predict` takes. Other programs can ask it, too: the serial line has {made.line.baud:,} baud, 8 data bits,
no parity, 1 stop bit.

    question  number (1 byte), {talk.identity:08x} (4 bytes), {talk.question_bytes:,} bytes, checksum (2 bytes), C0
    answer    number, status (0: answered), {talk.identity:08x}, {talk.answer_bytes} bytes, checksum, C0

Questions {how}. docs/boards.md of Lutetia says what the bytes are.
"""


# ---- on the screen ---------------------------------------------------------------------------------------------------


def board_lines(told: dict[str, Any], out: Path) -> list[tuple[str, str]]:
    """The outcome in a few lines: the name and the text of each."""
    lines = []
    used = ", ".join(
        f"{each['needed']:,} of {each['available']:,} {name}" for name, each in told["used"].items() if each["needed"]
    )
    clock = told["fmax_mhz"] and f", clocked at {told['clock_mhz']:g} MHz, up to {told['fmax_mhz']:.1f} MHz (nextpnr)"
    lines.append(("board", told["left_out"] or f"{told['title']}: {used}{clock or ''}"))
    seen = told["simulated"]
    lines.append(("serial", seen["left_out"] or f"{seen['questions']} questions simulated at the pins: all answers equal"))
    if told["bitstream_bytes"]:
        lines.append(("flash", told["flash"].replace(told["file"], str(out / told["file"]))))
        lines.append(("ask", f"lutetia board {out} INPUT --port {told['port']}"))
    return lines
