"""A C program on machines without an operating system or a multiplier: its memory, and its instructions per answer.

Compilers are used where they are installed (Debian: gcc-arm-none-eabi, gcc-riscv64-unknown-elf, gcc-avr with avr-libc). With
qemu-user or simavr the program also runs, its answers are compared with the model's, and its instructions or cycles are counted.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutetia.precompute.integer.avr import run_avr, wanted_answers
from lutetia.precompute.integer.c_text import source
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.language import IntegerTransformer
from lutetia.precompute.integer.samples import random_samples
from lutetia.precompute.tools.hardware import EquivalenceError

SECONDS = 120
SAMPLES = 3  # that an AVR answers
PARTS = ("model", "signals")  # signals.c is there where the model takes windows of them
FREESTANDING = ("-ffreestanding", "-fomit-frame-pointer")
COUNTED = ("-singlestep", "-d", "exec,nochain")  # qemu then writes a line for each instruction


@dataclass(frozen=True)
class BareMachine:
    """A compiler, a size tool, options for compiling and linking, and an emulator."""

    compiler: str
    size: str
    options: tuple[str, ...] = ()
    emulator: str | None = None


AVR = "AVR"
MACHINES = {
    "this machine": BareMachine("cc", "size"),
    "Cortex-M0": BareMachine(
        "arm-none-eabi-gcc", "arm-none-eabi-size", ("-mcpu=cortex-m0", "-mthumb", *FREESTANDING), "qemu-arm"
    ),
    "RISC-V rv32i": BareMachine(
        "riscv64-unknown-elf-gcc", "riscv64-unknown-elf-size", ("-march=rv32i", "-mabi=ilp32", *FREESTANDING), "qemu-riscv32"
    ),
    AVR: BareMachine("avr-gcc", "avr-size", ("-mmcu=atmega328p", "-std=gnu99"), "simavr"),
}


def measured(model: IntegerTransformer | IntegerClassifier, texts: dict[str, str]) -> dict[str, Any]:
    """For each machine whose compiler is installed: bytes of `flash` (code and constants) and of `ram` (variables). If its
    emulator is installed, too: `instructions` per answer, or `cycles` of an AVR, once the answers equal the model's.
    """
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in {**texts, "bare.c": source("bare.c")}.items():
            (folder / file).write_text(text, encoding="utf-8")
        for title, machine in MACHINES.items():
            if shutil.which(machine.compiler) and shutil.which(machine.size):
                told[title] = _sizes(folder, machine)
                if machine.emulator and shutil.which(machine.emulator) and not told[title]["left_out"]:
                    emulated = _simulated if title == AVR else _emulated
                    told[title] |= emulated(folder, title, machine, model)
    return told


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=SECONDS)
    return done.stdout


def _sizes(folder: Path, machine: BareMachine) -> dict[str, Any]:
    compiled = [machine.compiler, "-std=c99", "-Os", "-DLUTETIA_NO_MAIN", *machine.options]
    try:
        numbers = [0, 0, 0]
        for part in PARTS:
            if (folder / f"{part}.c").exists():
                _run([*compiled, "-c", f"{part}.c", "-o", f"{part}.o"], folder)
                own = _run([machine.size, f"{part}.o"], folder).splitlines()[1].split()
                numbers = [total + int(each) for total, each in zip(numbers, own, strict=False)]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return {"left_out": f"{machine.compiler} did not compile the program: {_why(error)}"}
    return {"left_out": "", "flash": numbers[0] + numbers[1], "ram": numbers[1] + numbers[2]}


def _why(error: Exception) -> str:
    """What a compiler said first, or else the error."""
    lines = error.stderr.splitlines() if isinstance(error, subprocess.CalledProcessError) and error.stderr else []
    return next((line.split("error: ", 1)[1] for line in lines if "error: " in line), str(error))


def _emulated(folder: Path, title: str, machine: BareMachine, model: IntegerTransformer | IntegerClassifier) -> dict[str, Any]:
    """Compare answers, and count the instructions of one more; linked without a library, so nothing multiplies."""
    assert machine.emulator is not None
    # Relaxed RISC-V code needs a global pointer, which a C library would set.
    linked = [
        machine.compiler,
        "-std=gnu99",
        "-Os",
        *machine.options,
        "-nostdlib",
        "-Wl,--no-relax",
        "bare.c",
        "model.o",
        *(["-include", "signals.h", "signals.o", "-lgcc"] if (folder / "signals.o").exists() else []),  # which divides
        "-o",
        "bare",
    ]
    try:
        _run(linked, folder)
        answers = [_answers(folder, machine.emulator, model, count) for count in (1, 2)]
    except (OSError, subprocess.SubprocessError) as error:
        return {"not_run": f"{machine.emulator} did not run the program: {error}"}
    for given, wanted, _ in answers:
        if given != wanted:
            raise EquivalenceError(f"on {title} the program answers {given.hex()}, expected {wanted.hex()}")
    return {"instructions": answers[1][2] - answers[0][2], "emulator": machine.emulator}


def _simulated(folder: Path, title: str, machine: BareMachine, model: IntegerTransformer | IntegerClassifier) -> dict[str, Any]:
    """The same of an AVR."""
    assert machine.emulator is not None
    samples = None if isinstance(model, IntegerTransformer) else random_samples(model, SAMPLES)
    wanted = wanted_answers(model, samples)
    try:
        made = run_avr(folder, machine.compiler, machine.emulator, samples)
    except (OSError, subprocess.SubprocessError) as error:
        return {"not_run": f"{machine.emulator} did not run the program: {error}"}
    given = [line[:-1] for line in made.lines]
    if given != wanted:
        raise EquivalenceError(f"on {title} the program answers {given}, expected {wanted}")
    return {"cycles": made.lines[-1][-1], "chip": made.chip, "emulator": machine.emulator}


def _answers(folder: Path, emulator: str, model: IntegerTransformer | IntegerClassifier, count: int) -> tuple[bytes, bytes, int]:
    """What the program writes, what it should write, and the instructions it takes."""
    if isinstance(model, IntegerTransformer):
        prompt = bytes(min(value, model.vocab - 1) for value in b"\n")
        given, wanted = bytes([count]) + prompt, model.generate(prompt, count)
    else:
        samples = random_samples(model, count)
        given, wanted = samples.to_bytes(), samples.answers(model).astype("<i4").tobytes()
    done = subprocess.run(
        [emulator, *COUNTED, "./bare"], cwd=folder, input=given, check=True, capture_output=True, timeout=SECONDS
    )
    return done.stdout, wanted, done.stderr.count(b"\n")
