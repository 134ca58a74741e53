"""Whole-number models as C: byte for byte what Python gives, clean under sanitizers, and bad input refused."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from whole import PROMPTS, classifiers, language, languages, numbers, regression

from lutetia.cli import main
from lutetia.models import Tabular
from lutetia.precompute import integer_model
from lutetia.precompute.integer.bare import MACHINES, measured
from lutetia.precompute.integer.c import c_files, c_memory
from precompute.strict_c import STRICT
from tools import optional_tool, require_module, require_tool

KINDS = classifiers()


def compiled(model: Any, folder: Path, *options: str) -> Path:
    """The program of a model, in a folder that holds nothing else."""
    compiler = require_tool("gcc", "cc")
    for name, text in c_files(model).items():
        (folder / name).write_text(text)
    subprocess.run([compiler, *(options or STRICT), "model.c", "-o", "run"], cwd=folder, check=True)
    return folder / "run"


def run(program: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([program, *arguments], input=given, capture_output=True, timeout=60)


@pytest.mark.parametrize("number", range(3))
def test_writes_what_python_writes(number: int, tmp_path: Path) -> None:
    whole = integer_model(languages()[number])
    program = compiled(whole, tmp_path)
    for prompt in PROMPTS:
        wrote = run(program, "60", given=prompt)
        assert (wrote.returncode, wrote.stderr) == (0, b"")
        assert wrote.stdout == whole.generate(prompt, 60)  # far past the context: the window slides
        assert run(program, "30", "9", given=prompt).stdout == whole.generate(prompt, 30, seed=9)


def test_a_wide_stream_is_multiplied_in_wider_halves(tmp_path: Path) -> None:
    model = language()
    with torch.no_grad():
        model.embedding.weight.mul_(1e5)
    whole = integer_model(model)
    assert whole.widths()["stream"] > 26
    assert "typedef int64_t half_t" in c_files(whole)["model.c"]
    assert run(compiled(whole, tmp_path), "60", given=b"ab").stdout == whole.generate(b"ab", 60)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_writes_a_thousand_bytes(number: int, tmp_path: Path) -> None:
    whole = integer_model([language(context=64, width=32), language(n_layers=3, seed=5), language(width=6, seed=6)][number])
    program = compiled(whole, tmp_path, "-std=c99", "-O3")
    for prompt in PROMPTS:
        assert run(program, "1000", given=prompt).stdout == whole.generate(prompt, 1000)
        assert run(program, "1000", "3", given=prompt).stdout == whole.generate(prompt, 1000, seed=3)


def test_a_program_that_cannot_write_says_why(tmp_path: Path) -> None:
    program = compiled(integer_model(language(vocab=100, n_layers=1)), tmp_path)
    for arguments, given, message in (
        ((), b"a", b"usage:"),
        (("x",), b"a", b"usage:"),
        (("-1",), b"a", b"usage:"),
        (("99999999999999999999",), b"a", b"usage:"),
        (("5", "1", "2"), b"a", b"usage:"),
        (("5",), b"", b"the prompt is empty, expected at least one byte"),
        (("5",), b"ab\xc8", b"byte 2 of the prompt is 200, expected 0 to 99"),
    ):
        refused = run(program, *arguments, given=given)
        assert (refused.returncode, refused.stdout) == (2, b"")
        assert message in refused.stderr
    assert run(program, "0", given=b"a").stdout == b""


def test_a_reset_in_the_middle_forgets_everything(tmp_path: Path) -> None:
    whole = integer_model(language())
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "model.h"\nint main(void) { static lutetia_state s; int i; lutetia_reset(&s);\n'
        "if (lutetia_best(&s) != -1 || lutetia_put(&s, 256) != -1 || lutetia_put(&s, -1) != -1) return 1;\n"
        "for (i = 0; i < 20; i++) { if (i == 15 && lutetia_put(&s, 256) != -1) return 1; lutetia_put(&s, i); }\n"
        'printf("%d ", lutetia_best(&s)); lutetia_reset(&s); lutetia_put(&s, 65); printf("%d", lutetia_best(&s)); return 0; }\n'
    )
    program = compiled(whole, tmp_path, *STRICT, "-DLUTETIA_NO_MAIN", "main.c")
    full, reset = whole.generate(bytes(range(20)), 1)[0], whole.generate(b"A", 1)[0]
    assert run(program).stdout == f"{full} {reset}".encode()  # a refused byte leaves a full window as it was


@pytest.mark.parametrize(("kind", "bits"), [*((kind, 8) for kind in KINDS), ("stacked", 4)])
def test_classifies_as_python_does(kind: str, bits: int, tmp_path: Path) -> None:
    whole = integer_model(KINDS[kind], weight_bits=bits)
    program = compiled(whole, tmp_path)
    x = numbers(whole.n_inputs, whole.input_bits, 1000)
    lines = "".join(" ".join(map(str, sample)) + "\n" for sample in x.tolist())
    told = run(program, given=lines.encode())
    assert (told.returncode, told.stderr) == (0, b"")
    assert [int(line) for line in told.stdout.split()] == whole(x).tolist()


def test_bad_lines_are_refused_by_number(tmp_path: Path) -> None:
    whole = integer_model(KINDS["tabular"])
    program = compiled(whole, tmp_path)
    good = [str(each) for each in whole(numbers(3, 8, 2)).tolist()]
    rows = [" ".join(map(str, row)) for row in numbers(3, 8, 2).tolist()]
    assert run(program, given=b"").stdout == b""
    assert run(program, given=(rows[0].replace(" ", ", ") + "\r\n" + rows[1]).encode()).stdout.decode().split() == good
    for line, message in (
        ("1 2", "there are 2 numbers, expected 3"),
        ("", "there are 0 numbers, expected 3"),
        ("1 2 3 4", "there are more than 3 numbers"),
        ("1 2 256", "a number is larger than 255"),
        ("1 2 99999999999999999999", "a number is larger than 255"),
        ("1 2 -3", "the character of code 45 is no part of a whole number"),
        ("1 2 3.5", "the character of code 46 is no part of a whole number"),
        ("a", "the character of code 97"),
    ):
        refused = run(program, given=f"{rows[0]}\n{line}\n".encode())
        assert refused.returncode == 1
        assert refused.stderr.decode().startswith(f"line 2: {message}")
        assert refused.stdout.decode().split() == good[:1]
    assert run(program, "x").returncode == 2


@pytest.mark.parametrize("kind", ["language", *KINDS])
def test_no_multiplication_no_heap_no_floats(kind: str) -> None:
    text = c_files(integer_model(language() if kind == "language" else KINDS[kind]))["model.c"]
    code = re.sub(r"/\*.*?\*/|\"(\\.|[^\"])*\"|#include.*?\n", "", text, flags=re.DOTALL)
    pointers = r"\b\w+_t \*+(const )?\w+|void \*|char \*+\w+|lutetia_state \*|return \*"
    assert "getchar" in code
    assert not re.search(r"[\w\])]\s*\*\s*[\w(]", re.sub(pointers, "", code))
    assert not re.search(r"\b(float|double|malloc|calloc|alloca)\b|%|/", code)


def test_numbers_of_four_bits_take_half_a_byte() -> None:
    one = {bits: c_memory(integer_model(KINDS["tabular"], weight_bits=bits))["flash_table_bytes"] for bits in (4, 8)}
    assert one[8] - one[4] == 9 * 8 * 4 // 2 + 4  # tables, rows, classes; and four offsets of one byte less


def test_of_two_classes_one_is_stored(tmp_path: Path) -> None:
    model = Tabular(input_shape=(3,), n_classes=2, n_tables=9, n_anchors=3, n_encoded=3, n_edges=20, seed=0).eval()
    other = KINDS["tabular"]
    model.encoding.load_state_dict(other.encoding.state_dict())
    rows = torch.randn(9, 8, 2, generator=torch.Generator().manual_seed(0))
    rows[..., 0] = 0
    model.set_tables(other.tables.anchors, rows)
    for bits, row_bytes in ((8, 9 * 8), (4, 9 * 4)):
        whole = integer_model(model, weight_bits=bits)
        assert c_memory(whole)["flash_table_bytes"] == 9 * 3 * 2 + row_bytes + 2 * (bits // 4)  # comparisons, rows, two sums
        (tmp_path / str(bits)).mkdir()
        program = compiled(whole, tmp_path / str(bits))
        x = numbers(3, 8, 300)
        lines = "".join(" ".join(map(str, sample)) + "\n" for sample in x.tolist())
        assert [int(line) for line in run(program, given=lines.encode()).stdout.split()] == whole(x).tolist()


def test_memory_is_what_the_compiler_finds(tmp_path: Path) -> None:
    require_tool("gcc", "cc")
    require_tool("size")
    for model in (integer_model(language()), integer_model(KINDS["votes"])):
        counted, found = c_memory(model), measured(model, c_files(model))["this machine"]
        assert 0 <= found["flash"] - counted["flash_table_bytes"] < 8000  # the code
    state = '#include <stdio.h>\n#include "model.h"\nint main(void) { printf("%d", (int)sizeof(lutetia_state)); return 0; }\n'
    (tmp_path / "main.c").write_text(state)
    whole = integer_model(language())
    program = compiled(whole, tmp_path, *STRICT, "-DLUTETIA_NO_MAIN", "main.c")
    assert 0 <= int(run(program).stdout) - c_memory(whole)["ram_bytes"] < 8  # padding


@pytest.mark.parametrize("name", ["Cortex-M0", "RISC-V rv32i"])
def test_it_runs_on_machines_without_a_multiplier(name: str) -> None:
    machine = MACHINES[name]
    optional_tool(machine.compiler)
    optional_tool(str(machine.emulator))
    for given in (language(), KINDS["linear"], KINDS["tabular"], regression(spread_90=40.0), regression(error_90=12.5)):
        model = integer_model(given)
        told = measured(model, c_files(model))[name]  # raises where an answer differs
        assert not told["left_out"]
        assert 50 < told["instructions"] < 1_000_000


def test_build_writes_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("typer")
    compiler = require_tool("gcc", "cc")
    language().save_pretrained(tmp_path / "text")
    assert main(["build", str(tmp_path / "text"), "--target", "c", "--out", str(tmp_path / "c"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == "language"
    assert report["loss"]["left_out"].startswith("not measured")
    subprocess.run(f"{compiler} -std=c99 -O3 {tmp_path}/c/*.c -o {tmp_path}/run", shell=True, check=True)
    assert run(tmp_path / "run", "20", given=b"x").stdout == integer_model(tmp_path / "text").generate(b"x", 20)
    assert main(["build", str(tmp_path / "text"), "--target", "c", "--out", str(tmp_path / "c")]) == 0  # replaces its own
    assert "bytes of tables" in capsys.readouterr().out
    KINDS["stacked"].save_pretrained(tmp_path / "digits")
    assert main(["build", str(tmp_path / "digits"), "--target", "c", "--out", str(tmp_path / "d"), "--weight-bits", "9"]) == 2
    assert "--weight-bits is 9, expected 2 to 8" in capsys.readouterr().err
    assert main(["build", str(tmp_path / "text"), "--out", str(tmp_path / "e")]) == 1
    assert "is built as a program: --target c or verilog" in capsys.readouterr().err
    assert not (tmp_path / "e").exists()


def test_build_says_what_to_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_module("typer")
    language(gains=False, attention="softmax", n_heads=2).save_pretrained(tmp_path / "soft")
    assert main(["build", str(tmp_path / "soft"), "--target", "c", "--out", str(tmp_path / "c")]) == 1
    assert "blocks.0.attention is softmax attention" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()
