"""Whole-number models on an AVR, whose int has 16 bits: no warning, tables in flash, and answers that equal Python's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from patterns import fit
from whole import classifiers, language, languages, regression

from lutetia.models.windows import SignalColumn, SignalWindows
from lutetia.precompute import c_files, c_memory, integer_model
from lutetia.precompute.integer import bare
from lutetia.precompute.integer.avr import run_avr, wanted_answers
from lutetia.precompute.integer.samples import random_samples
from lutetia.precompute.tools.hardware import EquivalenceError
from precompute.test_integer_windows import tiny
from tools import optional_tool

# gcc 5 calls constants uninitialised whose only reads it has replaced.
STRICT = (
    "-std=gnu99",
    "-mmcu=atmega328p",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wshadow",
    "-Werror",
    "-Wno-uninitialized",
    "-Os",
)
ROWS = 40


def models() -> dict[str, Any]:
    windows = {bits: SignalWindows(13, 5, (SignalColumn("a", 2), SignalColumn("b")), bits) for bits in (16, 32)}
    return {
        **{kind: integer_model(model) for kind, model in classifiers().items()},
        "half bytes": integer_model(classifiers()["stacked"], weight_bits=4),
        "intervals": integer_model(regression(spread_90=40.0)),
        "half bytes of a number": integer_model(regression(error_90=12.5), weight_bits=4),
        "wide": integer_model(regression(error_90=12.5), weight_bits=16),
        "language": integer_model(languages()[1]),
        **{f"windows of {bits} bits": tiny(own) for bits, own in windows.items()},
    }


@pytest.fixture(scope="module")
def every() -> dict[str, Any]:
    return models()


def write(model: Any, folder: Path) -> dict[str, str]:
    files = c_files(model)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return files


def test_compiles_without_a_warning(every: dict[str, Any], tmp_path: Path) -> None:
    compiler, size = optional_tool("avr-gcc"), optional_tool("avr-size")
    patches = {kind: integer_model(fit(kind)[0]) for kind in ("grey", "colour")}
    for kind, model in {**every, **patches, "gains": integer_model(language())}.items():
        (tmp_path / kind).mkdir()
        files = write(model, tmp_path / kind)
        for name in ({"model.c", "signals.c"} & set(files)) - {"columns.c"}:
            command = [compiler, *STRICT, "-DLUTETIA_NO_MAIN", "-c", name, "-o", "own.o"]
            subprocess.run(command, cwd=tmp_path / kind, check=True, timeout=60)
            told = subprocess.run([size, "own.o"], cwd=tmp_path / kind, check=True, capture_output=True, text=True)
            text, data, _ = map(int, told.stdout.splitlines()[1].split()[:3])
            assert data <= 4, kind  # the pointers of two names
            if name == "model.c":
                assert text > c_memory(model)["flash_table_bytes"]


def test_answers_as_python_does(every: dict[str, Any], tmp_path: Path) -> None:
    compiler, simulator = optional_tool("avr-gcc"), optional_tool("simavr")
    for kind, model in every.items():
        (tmp_path / kind).mkdir()
        write(model, tmp_path / kind)
        samples = None if kind == "language" else random_samples(model, ROWS)
        made = run_avr(tmp_path / kind, compiler, simulator, samples)
        wanted = wanted_answers(model, samples)
        assert kind == "language" or len(np.unique(wanted)) > 1
        assert [line[:-1] for line in made.lines] == wanted, kind
        assert all(100 < line[-1] < 1_000_000 for line in made.lines)


def test_counts_patterns_as_python_does(tmp_path: Path) -> None:
    compiler, simulator = optional_tool("avr-gcc"), optional_tool("simavr")
    model = integer_model(fit("grey")[0])
    write(model, tmp_path)
    samples = random_samples(model, 4)
    made = run_avr(tmp_path, compiler, simulator, samples)
    assert [line[:-1] for line in made.lines] == wanted_answers(model, samples)


def test_a_program_that_answers_otherwise_is_refused(every: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bare, "MACHINES", {bare.AVR: bare.MACHINES[bare.AVR]})
    optional_tool("avr-gcc")
    optional_tool("simavr")
    files = c_files(every["tabular"])
    told = bare.measured(every["tabular"], files)[bare.AVR]
    assert (told["left_out"], told["chip"], told["emulator"]) == ("", "atmega328p", "simavr")
    assert told["ram"] < 64
    wrong = files["model.c"].replace("asked[0]] >", "asked[0]] <")
    assert wrong != files["model.c"]
    with pytest.raises(EquivalenceError, match="on AVR the program answers"):
        bare.measured(every["tabular"], {**files, "model.c": wrong})


def test_strict_c_says_which_option_keeps_tables_in_flash(every: dict[str, Any], tmp_path: Path) -> None:
    compiler = optional_tool("avr-gcc")
    write(every["tabular"], tmp_path)
    command = [compiler, "-std=c99", "-mmcu=atmega328p", "-DLUTETIA_NO_MAIN", "-c", "model.c", "-o", "own.o"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert refused.returncode
    assert "with -std=gnu99" in refused.stderr
