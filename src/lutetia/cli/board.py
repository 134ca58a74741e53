"""`lutetia board`: asks a board that holds a circuit, and compares its answers with the integer model."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lutetia._shared import folders
from lutetia._shared.numbers import short_number, with_unit
from lutetia.cli.board_model import CIRCUIT, Asked, questions
from lutetia.cli.build import FORMAT as BUILD
from lutetia.cli.build_board import FACTS, FOLDER, FORMAT, MODEL
from lutetia.cli.build_patches import PATCHES
from lutetia.cli.build_signals import SIGNALS
from lutetia.cli.guard import UsageError
from lutetia.cli.naming import class_names
from lutetia.cli.predict import SHOWN
from lutetia.cli.show import Progress, console, one_line
from lutetia.errors import DataError, JobError
from lutetia.files import read_json
from lutetia.models import Tabular, load
from lutetia.precompute import Talk, ask_board, open_port, serial_ports, who_answers

# What board.json has to hold, and of which type each is; an object may be anything, which is checked where it is used.
_TALK = {"identity": str, "question_bytes": int, "answer_bytes": int, "streams": bool, "seconds": float}
_RECIPES: dict[str, dict[str, Any]] = {
    CIRCUIT: {"weight_bits": int, "bits": int, "readings": list, "reading_bits": object, "low": object, "high": object},
    PATCHES.name: {"weight_bits": int, "reuse": int},
    SIGNALS.name: {"weight_bits": int, "reuse": int},
}
_HELD = {"board": {"title": str, "port": str}, "talk": _TALK, "baud": int, "flash": str, "recipe": {"kind": str}}
IDENTITY = re.compile(r"0x[0-9a-f]{8}")
MOST = 1 << 26  # bytes of a frame, baud, seconds


class BoardRequest(NamedTuple):
    """What was asked for: the folder of a build, the inputs, and the port."""

    build: Path
    given: Sequence[str]
    port: str | None


def ask(request: BoardRequest, show: bool) -> dict[str, Any]:
    """Ask a board, and return what `--json` prints."""
    if not request.given:
        raise UsageError("board got no INPUT, expected rows, files or images, as predict takes them")
    facts = read_facts(request.build)
    port = _port(request.port, facts)
    talk = talk_of(facts)
    model: Any = load(request.build / MODEL)
    asked = questions(model, facts["recipe"], request.given, talk.identity)
    with open_port(port, facts["baud"]) as opened:
        _check_board(who_answers(opened), talk.identity, port, facts)
        began = time.perf_counter()
        with Progress("asking", len(asked.questions), show) as progress:
            replies = ask_board(opened, talk, asked.questions, progress.advance)
        seconds = time.perf_counter() - began
    answers = asked.read(replies)
    equal = (answers == asked.expected).tolist()
    listed = _listed(model, asked, answers.tolist(), equal)
    return {
        "kind": model.kind,
        "model": str(request.build / MODEL),
        "board": facts["board"]["title"],
        "port": port,
        "identity": facts["talk"]["identity"],
        "predictions": listed,
        "equal": sum(equal),
        "questions": len(equal),
        "seconds": round(seconds, 3),
        "answers_per_second": round(len(equal) / seconds, 1),
    }


def show_answers(told: dict[str, Any]) -> None:
    """The answers, as `predict` prints them, and how many are those of the model."""
    screen, listed = console(), told["predictions"]
    width = min(60, max(len(one_line(each["input"])) for each in listed[:SHOWN]))
    for each in listed[:SHOWN]:
        text = each["class"] if "class" in each else one_line(f"{each['title']} {with_unit(each['value'], each['unit'])}")
        wrong = "" if each["equal"] else f"  (the model: {each['expected']})"
        screen.print(f"{one_line(each['input']):<{width}}  {text}{wrong}", soft_wrap=True, markup=False)
    if len(listed) > SHOWN:
        screen.print(f"and {len(listed) - SHOWN:,} more: --json has all of them")
    equal = f"{told['equal']:,} of {told['questions']:,} answers of the {told['board']} are those of the integer model"
    screen.print(f"{equal}; {short_number(told['answers_per_second'], 3)} answers per second", soft_wrap=True, markup=False)


def read_facts(build: Path) -> dict[str, Any]:
    """What board.json of a build says."""
    if not (build / FOLDER / FACTS).is_file():
        hint = "lutetia build CKPT --board NAME makes one" if build.is_dir() else "there is no such folder"
        raise DataError(f"{build} is no build for a board: {hint}")
    folders.verify(build, BUILD, needed=(f"{FOLDER}/{FACTS}",), what="build")
    facts = read_json(build / FOLDER / FACTS, "what a board holds")
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise DataError(f"{build / FOLDER / FACTS} is not of the format {FORMAT}: build it again")
    if not _holds(facts, _HELD) or not _holds(facts["recipe"], _RECIPES.get(facts["recipe"]["kind"], {"kind": None})):
        raise DataError(f"{build / FOLDER / FACTS} is not what lutetia build --board writes: build it again")
    talk = facts["talk"]
    sizes = talk["question_bytes"], talk["answer_bytes"], facts["baud"]
    if not IDENTITY.fullmatch(talk["identity"]) or min(sizes) < 1 or max(sizes) > MOST or not 0 <= talk["seconds"] < MOST:
        raise DataError(f"{build / FOLDER / FACTS} has no circuit to talk to: build it again")
    return facts


def talk_of(facts: dict[str, Any]) -> Talk:
    """What both sides of the serial line know."""
    known = {name: facts["talk"][name] for name in _TALK}
    return Talk(**{**known, "identity": int(known["identity"], 16)})


def _holds(facts: Any, wanted: dict[str, Any]) -> bool:
    """Whether facts have all that is wanted, each of its type."""
    if not isinstance(facts, dict) or not wanted.keys() <= facts.keys():
        return False
    return all(
        _holds(facts[name], kind) if isinstance(kind, dict) else kind in (object, type(facts[name]))
        for name, kind in wanted.items()
    )


def _port(port: str | None, facts: dict[str, Any]) -> str:
    if port is not None:
        return port
    found = serial_ports()
    raise UsageError(
        f"--port is missing, expected {'one of ' + ', '.join(found) if found else 'a serial port, and none is there'}; that of "
        f"the {facts['board']['title']} is usually {facts['board']['port']}"
    )


def _check_board(found: int | None, wanted: int, port: str, facts: dict[str, Any]) -> None:
    """Refuse a board that says nothing, or holds something else."""
    if found is None:
        raise JobError(
            f"nobody answers on {port} at {facts['baud']:,} baud: is it the port of the {facts['board']['title']}, and is the "
            f"board loaded ({facts['flash']})?"
        )
    if found != wanted:
        raise JobError(
            f"the board holds the circuit {found:#010x}, and the build is {wanted:#010x}: load it ({facts['flash']}), or name "
            "the build that is on it"
        )


def _listed(model: Any, asked: Asked, answers: list[int], equal: list[bool]) -> list[dict[str, Any]]:
    """Each answer, as `predict` lists it."""
    if asked.unit is None:
        names = class_names(model)
        return [
            {"input": name, "number": answer, "class": _named(names, answer), "equal": same, "expected": names[wanted]}
            for name, answer, same, wanted in zip(asked.names, answers, equal, asked.expected.tolist(), strict=True)
        ]
    assert isinstance(model, Tabular)
    title, unit, step = model.metadata.get("target") or "value", model.metadata.get("target_unit"), asked.unit
    return [
        {"input": name, "title": title, "value": _value(model, step * answer), "unit": unit, "equal": same,
         "expected": short_number(_value(model, step * wanted), 6)}
        for name, answer, same, wanted in zip(asked.names, answers, equal, asked.expected.tolist(), strict=True)
    ]  # fmt: skip


def _value(model: Tabular, number: float) -> float:
    """What a regression predicts, of the number that its tables add up to."""
    return float(model.loss.numbers(np.array([number]))[0])


def _named(names: Sequence[str], answer: int) -> str:
    return names[answer] if answer < len(names) else f"{answer}, which is no class"
