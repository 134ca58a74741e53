"""The top module of a board in a simulator, asked at its serial pins."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lutetia.precompute.boards.frames import END, Answer, Frames, padding, question
from lutetia.precompute.boards.table import Board
from lutetia.precompute.boards.top import BENCH, TOP, Line, Wrapped, bench_text, line_of, top_text
from lutetia.precompute.tools.find import require_program, run_program, time_limit
from lutetia.precompute.tools.hardware import EquivalenceError

QUICK = 4  # cycles of a bit: the serial line is what takes the time of a simulator
BYTE = 10  # bits on the line
CUT, PAUSE, LONGEST = 0x300, 0x200, 0xFF  # tokens of the bench: cut the power, send nothing for some bytes, at most so many


def quick_line(board: Board) -> Line:
    """The serial line of a board at a few cycles for each bit."""
    return replace(line_of(board), divisor=QUICK)


def pause(n_bytes: int) -> list[int]:
    """Tokens that send nothing for the time of so many bytes."""
    whole, rest = divmod(n_bytes, LONGEST)
    return [PAUSE + LONGEST] * whole + [PAUSE + rest] * (rest > 0)


def simulate_board(
    wrapped: Wrapped, board: Board, payloads: Sequence[bytes], answers: Sequence[bytes], limit: float | None = None
) -> None:
    """Ask the top module questions in Icarus Verilog, and compare; EquivalenceError where an answer is not the expected one."""
    line = quick_line(board)
    wait = pause(wrapped.answer_bytes * 2 + 20 + wrapped.cycles // (QUICK * BYTE) + 1)
    behind = [END] * padding(wrapped.question_bytes, wrapped.answer_bytes) if wrapped.words == 1 else wait
    tokens = [
        END,
        *(token for row, each in enumerate(payloads) for token in [*question(row % 256, wrapped.identity, each), *behind]),
    ]
    heard = run_bench(wrapped, top_text(wrapped, line, board), bench_text(line), [*tokens, *wait, *wait], limit)
    for row, wanted in enumerate(answers):
        expected = Answer(row % 256, 0, wrapped.identity, wanted)
        if row >= len(heard) or heard[row] != expected:
            found = "nothing" if row >= len(heard) else heard[row].payload.hex()
            raise EquivalenceError(f"the board answers question {row} with {found}, expected {wanted.hex()}")
    if len(heard) > len(answers):
        raise EquivalenceError(f"the board sends {len(heard)} answers, expected {len(answers)}")


def run_bench(wrapped: Wrapped, top: str, bench: str, tokens: Sequence[int], limit: float | None = None) -> list[Answer]:
    """The answers that a simulated board sends while it is given tokens."""
    with tempfile.TemporaryDirectory() as place, time_limit(limit):
        folder = Path(place)
        command = compile_bench(wrapped, top, bench, folder)
        (folder / "tokens.mem").write_text("".join(f"{token:03x}\n" for token in tokens))
        said = run_program(command, folder).stdout.split()
    broken = [each for each in said if len(each) != 2 and each != "."]
    if broken:
        raise EquivalenceError(f"the board sends what is no byte: {broken[0]}")
    try:
        return Frames().take(bytes(int(each, 16) for each in said if each != "."))
    except ValueError as error:
        raise EquivalenceError(f"the board sends undefined bits: {error}") from error


def compile_bench(wrapped: Wrapped, top: str, bench: str, folder: Path) -> list[str]:
    """The command that runs a board in its bench, compiled in a folder."""
    for name, text in {**wrapped.files, TOP: top, BENCH: bench}.items():
        (folder / name).write_text(text)
    sources = [*wrapped.sources, TOP, BENCH]
    command = require_program("iverilog", "simulate")
    run_program([*command, "-g2005-sv", "-s", "lutetia_bench", "-o", "board.vvp", *sources], folder)
    return ["vvp", "-n", "board.vvp"]
