"""Models that count patterns in images: C and the page make the same of an image as Python, bit for bit."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from patterns import fit

from lutetia.models import Tabular
from lutetia.precompute import c_files, c_memory, integer_model
from lutetia.precompute.integer.bare import MACHINES, measured
from lutetia.precompute.integer.pages import page
from lutetia.precompute.integer.pixels import pixel_inputs
from tools import optional_tool, require_module, require_tool

if TYPE_CHECKING:
    from browser import OpenPage

pytest_plugins = ["browser"]
Array = np.ndarray[Any, Any]
ENCODE = "(images) => images.map((image) => Array.from(lutetia.encode(Uint8Array.from(image))))"
ANSWER = "(images) => images.map((image) => lutetia.classify(lutetia.encode(Uint8Array.from(image))))"


@pytest.fixture(params=["colour", "grey"])
def fitted(request: pytest.FixtureRequest) -> tuple[Tabular, Array]:
    return fit(request.param)


def lines(x: Array) -> bytes:
    return "".join(" ".join(map(str, image)) + "\n" for image in x.reshape(len(x), -1).tolist()).encode()


def test_c_counts_and_answers_as_python_does(fitted: tuple[Tabular, Array], tmp_path: Path) -> None:
    compiler = require_tool("gcc", "cc")
    model, x = fitted
    whole = integer_model(model)
    wanted = pixel_inputs(whole, x.reshape(len(x), -1))
    assert np.array_equal(wanted, model.encode(torch.from_numpy(x.astype(np.uint8))).numpy())
    main_c = """#include <stdio.h>
#include "model.h"
int main(void)
{
    static uint8_t pixels[LUTETIA_PIXELS];
    static input_t x[LUTETIA_INPUTS];
    int i;
    while (fread(pixels, 1, sizeof pixels, stdin) == sizeof pixels) {
        lutetia_encode(pixels, x);
        for (i = 0; i < LUTETIA_INPUTS; i++)
            printf("%d ", (int)x[i]);
    }
    return 0;
}
"""
    files = {**c_files(whole), "main.c": main_c}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    strict = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-fsanitize=address,undefined"]
    for out, more in (("run", ["model.c"]), ("codes", ["model.c", "main.c", "-DLUTETIA_NO_MAIN"])):
        subprocess.run([compiler, *strict, *more, "-o", out], cwd=tmp_path, check=True, timeout=120)
    told = subprocess.run([tmp_path / "run"], input=lines(x), capture_output=True, check=True, timeout=60)
    assert [int(word) for word in told.stdout.split()] == whole(wanted).tolist()
    told = subprocess.run([tmp_path / "codes"], input=x.astype(np.uint8).tobytes(), capture_output=True, check=True, timeout=60)
    assert_same_answers(whole, np.array(told.stdout.split(), int).reshape(wanted.shape), wanted)
    bad = subprocess.run([tmp_path / "run"], input=lines(x[:1, ..., :-1]), capture_output=True, timeout=60)
    assert (bad.returncode, b"expected" in bad.stderr) == (1, True)


def assert_same_answers(whole: Any, codes: Array, wanted: Array) -> None:
    """C keeps only the edges that are compared with: each comparison of the tables comes out the same."""
    stage = whole.stages[0]
    for x in (codes, wanted):
        assert x.min() >= 1
    bits = [x[:, stage.left] > np.where(stage.right < 0, stage.constant, x[:, stage.right]) for x in (codes, wanted)]
    assert np.array_equal(*bits)
    assert bits[0].any(0).mean() > 0.5


def test_nothing_is_multiplied(fitted: tuple[Tabular, Array]) -> None:
    text = c_files(integer_model(fitted[0]))["model.c"]
    code = text[text.index("static int apart") : text.index("/* ---- the program")]
    pointers = re.sub(r"uint\d+_t \*\w+|, \*second", "", code)
    assert not re.search(r"[*%/]", re.sub(r"/\*.*?\*/", "", pointers))


def test_the_memory_of_c_is_counted(fitted: tuple[Tabular, Array]) -> None:
    require_tool("gcc", "cc")
    require_tool("size")
    whole = integer_model(fitted[0])
    counted, found = c_memory(whole), measured(whole, c_files(whole))["this machine"]
    assert 0 <= found["flash"] - counted["flash_table_bytes"] < 8000  # the code


@pytest.mark.parametrize("name", ["Cortex-M0", "RISC-V rv32i"])
def test_it_runs_on_machines_without_a_multiplier(name: str, fitted: tuple[Tabular, Array]) -> None:
    optional_tool(MACHINES[name].compiler)
    optional_tool(str(MACHINES[name].emulator))
    whole = integer_model(fitted[0])
    told = measured(whole, c_files(whole))[name]  # raises where an answer differs
    assert not told["left_out"]
    assert "instructions" in told


def test_the_page_counts_and_answers_as_python_does(fitted: tuple[Tabular, Array], open_page: OpenPage, tmp_path: Path) -> None:
    image = require_module("PIL.Image")
    model, x = fitted
    whole = integer_model(model)
    flat = x.reshape(len(x), -1)
    wanted = pixel_inputs(whole, flat)
    opened = open_page(page(whole, "images"))
    used = np.unique([each for each in (*whole.stages[0].left, *whole.stages[0].right) if each >= 0])
    assert np.array_equal(np.array(opened.page.evaluate(ENCODE, flat[:40].tolist()))[:, used], wanted[:40, used])
    assert opened.page.evaluate(ANSWER, flat.tolist()) == whole(wanted).tolist()
    pixels = x[3].astype(np.uint8)
    image.fromarray(np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 else pixels).save(tmp_path / "one.png")
    opened.page.set_input_files("#file", tmp_path / "one.png")
    opened.page.get_by_text("one.png, as the model sees it").wait_for()
    assert np.array_equal(np.array(opened.page.evaluate("lutetia.sample()"))[used], wanted[3, used])
    opened.page.locator("#loud button").first.click()
    assert "pattern" in " ".join(opened.page.locator("#loud p").all_text_contents())
    (tmp_path / "none.png").write_bytes(b"no image")
    opened.page.set_input_files("#file", tmp_path / "none.png")
    opened.page.get_by_text("none.png is not an image").wait_for()
    assert opened.problems == []
