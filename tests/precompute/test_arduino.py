"""Arduino libraries: a sketch of a folder compiles as C++, and answers lines from Serial as the model does."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from patterns import fit as fit_images
from whole import classifiers, language, regression

from lutetia.cli import main
from lutetia.cli.build_uno import uno_facts, uno_text
from lutetia.models.windows import SignalColumn, SignalWindows
from lutetia.precompute import IntegerClassifier, arduino_files, c_memory, integer_model, library_name
from lutetia.precompute.integer.samples import Samples, random_samples
from lutetia.sklearn import LUTClassifier
from precompute.test_integer_windows import tiny
from said import told
from tools import optional_tool, require_tool

CORE = Path("/usr/share/arduino/hardware/arduino/avr")  # of Debian's arduino-core-avr
# What a sketch needs of an Arduino: a Serial that is a file, and flash that is memory.
ARDUINO = """#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
struct __FlashStringHelper;
#define F(text) reinterpret_cast<const __FlashStringHelper *>(text)
struct Port {
    int next = EOF;
    void begin(long) { next = getchar(); }
    explicit operator bool() const { return true; }
    int available() const { return next != EOF; }
    int read() { int was = next; next = getchar(); return was; }
    void print(const __FlashStringHelper *text) { fputs(reinterpret_cast<const char *>(text), stdout); }
    void print(double value, int digits) { printf("%.*f", digits, value); }
    void print(long value) { printf("%ld", value); }
    void print(int value) { printf("%d", value); }
    template <typename... Values> void println(Values... values) { print(values...); putchar('\\n'); }
};
static Port Serial;
using std::exp;
"""
MAIN = "\nint main() { setup(); while (Serial.available()) loop(); return 0; }\n"
STRICT = ("-std=c++11", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined")
# Runs a program in simavr, gives it the lines of a file, with time for an answer after each, and writes what it says.
FEED = """#include <stdio.h>
#include <stdlib.h>
#include <simavr/sim_avr.h>
#include <simavr/sim_elf.h>
#include <simavr/avr_uart.h>
static void said(struct avr_irq_t *irq, uint32_t value, void *param) { (void)irq; (void)param; putchar((int)value); }
int main(int argc, char **argv)
{
    elf_firmware_t firmware = {0};
    avr_t *avr = avr_make_mcu_by_name("atmega328p");
    FILE *file = fopen(argv[2], "r");
    int c = 0;
    uint32_t flags = 0;
    long wait = 500000;
    if (argc != 3 || !avr || !file || elf_read_firmware(argv[1], &firmware))
        return 2;
    avr_init(avr);
    avr->frequency = 16000000;
    avr_load_firmware(avr, &firmware);
    avr_ioctl(avr, AVR_IOCTL_UART_SET_FLAGS('0'), &flags);
    avr_irq_register_notify(avr_io_getirq(avr, AVR_IOCTL_UART_GETIRQ('0'), UART_IRQ_OUTPUT), said, NULL);
    while (c != EOF) {
        int state;
        for (; wait > 0; wait--) {
            state = avr_run(avr);
            if (state == cpu_Done || state == cpu_Crashed)
                return 3;
        }
        c = fgetc(file);
        if (c != EOF)
            avr_raise_irq(avr_io_getirq(avr, AVR_IOCTL_UART_GETIRQ('0'), UART_IRQ_INPUT), (uint32_t)c);
        wait = c == '\\n' ? 300000 : 3000;
    }
    return 0;
}
"""


def write(files: dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def sketch_of(folder: Path) -> str:
    (path,) = folder.glob("examples/*/*.ino")
    assert path.stem == path.parent.name
    return path.read_text(encoding="utf-8")


def on_this_machine(folder: Path, lines: str) -> list[str]:
    """What the sketch of a library answers, beside a stand-in of Arduino.h."""
    compiler, cc = require_tool("g++", "c++"), require_tool("gcc", "cc")
    write({"Arduino.h": ARDUINO, "main.cpp": f'#include "Arduino.h"\n{sketch_of(folder)}{MAIN}'}, folder)
    sources = [each.name for each in (folder / "src").glob("*.c")]
    for name in sources:
        options = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", STRICT[-1])
        subprocess.run([cc, *options, "-c", f"src/{name}", "-o", f"{name}.o"], cwd=folder, check=True, timeout=60)
    command = [compiler, *STRICT, "-I.", "-Isrc", "main.cpp", *(f"{name}.o" for name in sources), "-o", "run"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    done = subprocess.run([folder / "run"], input=lines, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def text_of(samples: Samples) -> str:
    return "".join(" ".join(map(str, row)) + "\n" for row in samples.given.tolist())


@pytest.mark.parametrize("kind", ["stacked", "windows", "patterns"])
def test_the_sketch_answers_as_the_model_does(kind: str, tmp_path: Path) -> None:
    if kind == "windows":
        model: Any = tiny(SignalWindows(13, 5, (SignalColumn("a", 2), SignalColumn("b"))))
    else:
        model = integer_model(fit_images("grey")[0] if kind == "patterns" else classifiers()["stacked"])
    write(arduino_files(model, "lutetia_x"), tmp_path)
    samples = random_samples(model, 5 if kind == "patterns" else 40)
    names = [str(each) for each in model.model.metadata.get("classes", range(model.n_outputs))]
    found = on_this_machine(tmp_path, text_of(samples))
    assert found[0].startswith("send ")
    assert found[1:] == [names[number] for number in model(samples.x).tolist()]


def test_a_number_comes_with_its_unit_and_its_interval(tmp_path: Path) -> None:
    model: Any = integer_model(regression(error_90=12.5, input_low=[0.0] * 4, input_high=[1.0] * 4), readings="1/256*u8")
    assert len(model.columns) == 4
    write(arduino_files(model, "lutetia_x"), tmp_path)
    samples = random_samples(model, 20)
    unit = float(model.graph.output_edge.scale[0])
    found = [line.split(" +- ") for line in on_this_machine(tmp_path, text_of(samples))[1:]]
    wanted = samples.answers(model) * unit
    np.testing.assert_allclose(np.array(found, float), wanted, atol=1e-4)


def test_bad_lines_are_told_of_and_the_next_is_answered(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"heat": np.round(np.linspace(-20, 50, 60), 1), "mic": np.arange(60.0)})
    frame.loc[::7, "mic"] = np.nan
    names = np.array(['"cold"??/', "mild \\", "hot é"])[np.digitize(frame["heat"], [0, 30])]
    estimator = LUTClassifier(n_tables=6, n_anchors=3, random_state=0).fit(frame, names)
    files = arduino_files(integer_model(estimator.model_, readings="auto"), library_name("oven 2, é"))
    write(files, tmp_path)
    assert "src/lutetia_oven_2.h" in files
    good, answer = "-200, ?\r\n", str(estimator.predict(pandas.DataFrame({"heat": [-20.0], "mic": [np.nan]}))[0])
    bad = ["1\n", "1 2 3\n", "1 x\n", "99999999999999999999 1\n", "- 1\n", "1 -\n", "1 2.5\n", "? ? ?\n", "--1 2\n"]
    found = on_this_machine(tmp_path, good + "".join(line + "\n" + good for line in bad) + "\n \n")
    expected = f"expected {found[0].removeprefix('send ')}"
    assert "or ? for none" in expected
    assert found[1:] == [answer, *[line for _ in bad for line in (expected, answer)]]


def test_build_writes_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": random.integers(0, 99, 200), "b": np.round(random.random(200), 2)})
    frame["c"] = np.where(frame["a"] > 60 * frame["b"], "on", "off")
    frame.to_csv(tmp_path / "switch.csv", index=False)
    settings = [f"--set=fit.{name}" for name in ("n_tables=4", "n_anchors=3")]
    assert main(["train", str(tmp_path / "switch.csv"), "--target", "c", "--out", str(tmp_path / "my run"), *settings]) == 0
    capsys.readouterr()
    report = told(capsys, "build", tmp_path / "my run", "--target", "arduino", "--out", tmp_path / "library")
    assert report["library"] == "lutetia_my_run"
    properties = dict(line.split("=", 1) for line in (tmp_path / "library/library.properties").read_text().splitlines())
    needed = {"name", "version", "author", "maintainer", "sentence", "paragraph", "category", "url", "architectures"}
    assert needed <= set(properties)
    assert re.fullmatch(r"\d+\.\d+\.\d+", properties["version"])
    assert (tmp_path / "library/src" / properties["includes"]).is_file()
    assert json.loads((tmp_path / "library/library.json").read_text())["name"] == properties["name"]
    assert "main(" not in (tmp_path / "library/src/model.c").read_text()
    rows = "".join(f"{a} {round(100 * b)}\n" for a, b in zip(frame["a"], frame["b"], strict=True))
    answers = told(capsys, "predict", tmp_path / "my run", tmp_path / "switch.csv")["predictions"]
    assert on_this_machine(tmp_path / "library", rows)[1:] == [each["class"] for each in answers]
    language(n_layers=1).save_pretrained(tmp_path / "text")
    assert main(["build", str(tmp_path / "text"), "--target", "arduino", "--out", str(tmp_path / "no")]) == 2
    assert "a language model takes more memory" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_model_that_does_not_fit_is_told_with_what_would() -> None:
    x = np.random.default_rng(0).integers(0, 400, (300, 5)) / 10
    y = (x[:, 0] + x[:, 1] > x[:, 2] + 20).astype(int) + (x[:, 3] > x[:, 4])
    model = LUTClassifier(n_tables=300, n_anchors=6, random_state=0).fit(x, y).model_
    whole: Any = integer_model(model, readings="auto")
    report = {**c_memory(whole), "weight_bits": 8, "compiled": {"AVR": {"left_out": "size of array 'ROWS0' is too large"}}}
    uno = uno_facts(whole, report)
    assert uno is not None
    assert not uno["fits"]
    eight, four = (each["tables"] for each in uno["smaller"])
    assert uno_text(uno, 8).endswith(f"; --tables {eight} or --tables {four} --weight-bits 4 would")
    assert 20 < eight < four
    room = uno["room"]["flash"]
    for bits, count in ((8, eight), (4, four)):
        taken = [
            c_memory(IntegerClassifier(model.network(bits, n), None, whole.columns))["flash_table_bytes"]
            for n in (count, min(2 * count, 300))
        ]
        assert taken[0] < room < taken[1]
    small: Any = integer_model(model, readings="auto", n_tables=10)
    told_of = uno_facts(small, {**c_memory(small), "weight_bits": 8, "compiled": {"AVR": {"left_out": "", "flash": 4000}}})
    assert told_of is not None
    assert uno_text(told_of, 8).startswith("fits: 4,000 of the 29,256 bytes of flash and ")
    assert uno_facts(small, {**c_memory(small), "compiled": {}}) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [("wine", "lutetia_wine"), ("a b-c.d", "lutetia_a_b_c_d"), ("", "lutetia_model"), ("é", "lutetia_model"),
     ("x" * 90, "lutetia_" + "x" * 55)],
)  # fmt: skip
def test_names_are_those_that_arduino_takes(text: str, name: str) -> None:
    assert library_name(text) == name
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", name)


def real_core(folder: Path) -> None:
    """The library and its sketch with Arduino's own core, as the IDE compiles them: sketch.elf."""
    defines = ("-DF_CPU=16000000L", "-DARDUINO=10819", "-DARDUINO_AVR_UNO", "-DARDUINO_ARCH_AVR")
    places = (f"-I{CORE}/cores/arduino", f"-I{CORE}/variants/standard", "-Isrc")
    options = ("-mmcu=atmega328p", *defines, "-Os", "-w", "-ffunction-sections", "-fdata-sections", *places)
    plus = ("-std=gnu++11", "-fpermissive", "-fno-exceptions", "-fno-threadsafe-statics", "-DDECIMAL_DIG=17")
    write({"sketch.cpp": f"#include <Arduino.h>\n{sketch_of(folder)}"}, folder)
    core = [each for each in (CORE / "cores/arduino").iterdir() if each.suffix in (".c", ".cpp", ".S")]
    objects = []
    for source in [*core, *(folder / "src").glob("*.c"), folder / "sketch.cpp"]:
        is_plus = source.suffix == ".cpp"
        compiler = [optional_tool("avr-g++" if is_plus else "avr-gcc"), *(plus if is_plus else ("-std=gnu11",))]
        if source.suffix == ".S":
            compiler = [optional_tool("avr-gcc"), "-x", "assembler-with-cpp"]
        objects.append(f"{source.name}.o")
        subprocess.run([*compiler, *options, "-c", source, "-o", objects[-1]], cwd=folder, check=True, timeout=60)
    command = ["avr-gcc", "-Os", "-Wl,--gc-sections", "-mmcu=atmega328p", *objects, "-lm", "-o", "sketch.elf"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["columns", "windows"])
def test_the_sketch_answers_on_an_uno(kind: str, tmp_path: Path) -> None:
    optional_tool("simavr")
    compiler = require_tool("gcc", "cc")
    if not CORE.is_dir() or not Path("/usr/include/simavr").is_dir():
        pytest.skip("optional tool: arduino-core-avr and libsimavr-dev")
    if kind == "windows":
        model: Any = tiny(SignalWindows(13, 5, (SignalColumn("a", 2), SignalColumn("b"))), 12)
    else:
        x = np.random.default_rng(0).integers(0, 400, (300, 3)) / 10
        y = (x[:, 0] + x[:, 1] > x[:, 2] + 20).astype(int)
        estimator = LUTClassifier(n_tables=20, n_anchors=4, random_state=0).fit(x, y)
        model = integer_model(estimator.model_, readings="auto")
    write(arduino_files(model, "lutetia_x"), tmp_path)
    real_core(tmp_path)
    samples = random_samples(model, 12)
    write({"feed.c": FEED, "lines": text_of(samples)}, tmp_path)
    subprocess.run([compiler, "feed.c", "-o", "feed", "-lsimavr", "-lelf"], cwd=tmp_path, check=True, timeout=60)
    done = subprocess.run([tmp_path / "feed", "sketch.elf", "lines"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [line.strip() for line in done.stdout.splitlines()]
    begin = next(number for number, line in enumerate(found) if line.startswith("send "))  # simavr speaks first
    assert found[begin + 1 :] == [str(each) for each in model(samples.x).tolist()]
