"""A whole-number model as one C file and its header, and what they take of a machine's memory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from lutetia.precompute.integer import c_classifier, c_language
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.integer.language import IntegerTransformer

# What sizes are measured with, where it is installed.
COMPILERS = {
    "this machine": ("cc", "size", ()),
    "Cortex-M0": ("arm-none-eabi-gcc", "arm-none-eabi-size", ("-mcpu=cortex-m0", "-mthumb")),
    "RISC-V rv32i": ("riscv64-unknown-elf-gcc", "riscv64-unknown-elf-size", ("-march=rv32i", "-mabi=ilp32")),
}
SECONDS = 120


def c_files(model: IntegerTransformer | IntegerClassifier) -> dict[str, str]:
    """model.c and model.h: `cc -std=c99 -O3 model.c -o run` makes a program that writes, or classifies."""
    return c_language.language_files(model) if isinstance(model, IntegerTransformer) else c_classifier.classifier_files(model)


def c_memory(model: IntegerTransformer | IntegerClassifier) -> dict[str, int]:
    """`flash_table_bytes` of constants and `ram_bytes` of state, by count."""
    return c_language.memory(model) if isinstance(model, IntegerTransformer) else c_classifier.memory(model)


def measured_sizes(texts: dict[str, str]) -> dict[str, Any]:
    """Bytes of code and constants (`flash`) and of variables (`ram`) by machine; of the compilers that are installed."""
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
        for machine, (compiler, size, options) in COMPILERS.items():
            if shutil.which(compiler) and shutil.which(size):
                command = [compiler, "-std=c99", "-Os", "-DLUTETIA_NO_MAIN", *options, "-c", "model.c", "-o", "model.o"]
                told[machine] = _size(folder, command, size)
    return told


def _size(folder: Path, command: list[str], size: str) -> dict[str, Any]:
    options: dict[str, Any] = {"cwd": folder, "capture_output": True, "text": True, "timeout": SECONDS}
    try:
        subprocess.run(command, check=True, **options)
        numbers = subprocess.run([size, "model.o"], check=True, **options).stdout.splitlines()[1].split()
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        return {"left_out": f"{command[0]} did not compile it: {error}"}
    return {"left_out": "", "flash": int(numbers[0]) + int(numbers[1]), "ram": int(numbers[1]) + int(numbers[2])}
