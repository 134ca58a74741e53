"""A C program on an AVR, the chip of an Arduino Uno: run in simavr, its answers compared with the model's, its cycles counted."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lutetia.precompute.integer.c_text import array, define, source
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.language import IntegerTransformer
from lutetia.precompute.integer.samples import Samples

CHIPS = ("atmega328p", "atmega1284p")  # an Arduino Uno, and a larger one for what does not fit
OPTIONS = ("-std=gnu99", "-Os")
CLOCK = "16000000"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SECONDS = 120
PROMPT = b"\n"
COUNT = 2  # bytes that a language model writes


class AvrRun(NamedTuple):
    """The chip that a program ran on, and of each answer its numbers: the answer, the half width if there is one, the cycles."""

    chip: str
    lines: list[list[int]]


def run_avr(folder: Path, compiler: str, simulator: str, samples: Samples | None) -> AvrRun:
    """Compile model.c of a folder for the smallest chip that holds it, with samples or a prompt, and run it."""
    signals = '#include "signals.h"\n' if (folder / "signals.h").exists() else ""
    (folder / "samples.h").write_text(signals + _samples_text(samples), encoding="utf-8")
    (folder / "avr.c").write_text(source("avr.c"), encoding="utf-8")
    sources = [name for name in ("model.c", "signals.c") if (folder / name).exists()]
    for number, chip in enumerate(CHIPS):
        command = [compiler, *OPTIONS, f"-mmcu={chip}", "-DLUTETIA_NO_MAIN", "avr.c", *sources, "-o", "avr.elf"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode == 0:
            return AvrRun(chip, _lines(folder, simulator, chip))
        if number + 1 == len(CHIPS):
            raise OSError(done.stderr.strip().splitlines()[-1])
    raise AssertionError


def wanted_answers(model: IntegerTransformer | IntegerClassifier, samples: Samples | None) -> list[list[int]]:
    """What the lines should begin with."""
    if isinstance(model, IntegerTransformer):
        return [[byte] for byte in model.generate(PROMPT, COUNT)]
    assert samples is not None
    return samples.answers(model).tolist()


def _samples_text(samples: Samples | None) -> str:
    if samples is None:
        return f"{array('PROMPT', np.frombuffer(PROMPT, np.uint8).astype(np.int64))}{define(COUNT=COUNT)}".replace(
            "LUTETIA_FLASH", "PROGMEM"
        )
    given = array("SAMPLES", samples.given, samples.kind).replace("LUTETIA_FLASH", "PROGMEM")
    return define(N_SAMPLES=len(samples.given)) + given


def _lines(folder: Path, simulator: str, chip: str) -> list[list[int]]:
    command = [simulator, "-m", chip, "-f", CLOCK, "avr.elf"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    lines = [COLOURS.sub("", line).rstrip(".").strip() for line in (done.stdout + done.stderr).splitlines()]
    return [[int(each) for each in line.split()] for line in lines if re.fullmatch(r"-?\d+( -?\d+)+", line)]
