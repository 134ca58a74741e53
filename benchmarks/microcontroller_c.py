"""C that classifies rows of whole numbers, compiled for this machine, an AVR and a Cortex-M0: its accuracy, bytes and steps."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BUDGET = 16_384  # bytes of flash
LIMIT = 60  # seconds of a compiler
LARGEST = 2**20  # bytes of C: more takes gcc minutes
KEYS = ("AVR flash", "AVR RAM", "AVR cycles", "M0 flash", "M0 RAM", "M0 instructions")
CHIP = "atmega1284p"  # 128 KB of flash, 16 KB of RAM
AVR = (
    "avr-gcc",
    "-std=gnu99",
    "-Os",
    f"-mmcu={CHIP}",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wl,--gc-sections",
    "-I.",
    "-w",
)
M0 = ("arm-none-eabi-gcc", "-std=gnu99", "-Os", "-mcpu=cortex-m0", "-mthumb", "-ffunction-sections", "-fdata-sections",
      "-Wl,--gc-sections", "-nostartfiles", "-I.", "-w")  # fmt: skip
_EMPTY: dict[tuple[str, str], tuple[int, int]] = {}  # of an empty program, by machine
EMPTY = {"classify.c": "#include <stdint.h>\nint classify(const int16_t *x)\n{\n    return x[0];\n}\n"}
HOST = """#include <stdint.h>
#include <stdio.h>
int classify(const int16_t *x);
int main(void)
{
    static int16_t x[COLUMNS];
    while (fread(x, sizeof x, 1, stdin) == 1)
        printf("%d\\n", classify(x));
    return 0;
}
"""
ON_AVR = """#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/pgmspace.h>
#include <avr/sleep.h>
#include "rows.h"
int classify(const int16_t *x);
static volatile uint16_t wraps;
ISR(TIMER1_OVF_vect) { wraps++; }
static void put(uint32_t value)
{
    char digits[10];
    uint8_t n = 0;
    do digits[n++] = (char)('0' + value % 10); while (value /= 10);
    digits[n] = 0;
    for (;; n--) {
        while (!(UCSR0A & 1 << UDRE0)) ;
        UDR0 = n ? digits[n - 1] : '\\n';
        if (!n) break;
    }
    while (!(UCSR0A & 1 << UDRE0)) ;
}
int main(void)
{
    uint8_t n;
    UCSR0B = 1 << TXEN0;
    TCCR1B = 1;
    TIMSK1 = 1 << TOIE1;
    for (n = 0; n < ROWS; n++) {
        static int16_t x[COLUMNS];
        int answer;
        memcpy_P(x, DATA[n], sizeof x);
        wraps = 0;
        TCNT1 = 0;
        TIFR1 = 1 << TOV1;
        sei();
        answer = classify(x);
        cli();
        put((uint32_t)wraps << 16 | TCNT1);
        put((uint32_t)answer);
    }
    sleep_mode();
    return 0;
}
"""
ON_M0 = """#include <stdint.h>
#include "rows.h"
int classify(const int16_t *x);
static long call(long number, long first, const void *place, long size)
{
    register long r7 __asm__("r7") = number;
    register long r0 __asm__("r0") = first;
    register const void *r1 __asm__("r1") = place;
    register long r2 __asm__("r2") = size;
    __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
    return r0;
}
void _start(void)
{
    int n;
    for (n = 0; n < ROWS; n++) {
        uint8_t answer = (uint8_t)classify(DATA[n]);
        call(4, 1, &answer, 1);
    }
    call(1, 0, 0, 0);
    for (;;) ;
}
"""


def accuracy(files: dict[str, str], x: Array, y: Array) -> float:
    """How many rows the C answers rightly, on this machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = _written(files, Path(name), HOST.replace("COLUMNS", str(x.shape[1])))
        _run(["cc", "-O1", "-I.", "-w", *_sources(folder), "-o", "run", "-lm"], folder)
        told = subprocess.run([folder / "run"], input=x.astype("<i2").tobytes(), capture_output=True, check=True, timeout=LIMIT)
    return float((np.array(told.stdout.split(), np.int64) == y).mean())


def avr_bytes(files: dict[str, str]) -> dict[str, int | None]:
    """Flash and RAM of an AVR that the C takes."""
    return _bytes(files, AVR, "avr-size", ON_AVR)


def sizes(files: dict[str, str], x: Array) -> dict[str, Any]:
    """Bytes on both machines, and the mean steps of an answer to all rows but the first; None of what is too large."""
    if sum(map(len, files.values())) > LARGEST:
        return dict.fromkeys(KEYS)
    avr, m0 = avr_bytes(files), _bytes(files, M0, "arm-none-eabi-size", ON_M0)
    told = {"AVR flash": avr["flash"], "AVR RAM": avr["ram"], "M0 flash": m0["flash"], "M0 RAM": m0["ram"]}
    return {**told, "AVR cycles": _avr_cycles(files, x), "M0 instructions": _m0_instructions(files, x)}


def _bytes(files: dict[str, str], compiler: tuple[str, ...], size: str, main: str) -> dict[str, int | None]:
    """What a program adds to an empty one."""
    try:
        flash, ram = _linked(files, compiler, size, main)
    except subprocess.SubprocessError:
        return {"flash": None, "ram": None}  # larger than the chip
    if (size, main) not in _EMPTY:
        _EMPTY[size, main] = _linked(EMPTY, compiler, size, main)
    return {"flash": flash - _EMPTY[size, main][0], "ram": ram - _EMPTY[size, main][1]}


def _linked(files: dict[str, str], compiler: tuple[str, ...], size: str, main: str) -> tuple[int, int]:
    """Bytes of flash and of RAM of a whole program."""
    with tempfile.TemporaryDirectory() as name:
        folder = _written(files, Path(name), main)
        (folder / "rows.h").write_text(_rows(np.zeros((1, 64), np.int64), compiler is AVR))
        _run([*compiler, *_sources(folder), "-o", "run", "-lm"], folder)
        text, data, bss = map(int, _run([size, "run"], folder).splitlines()[1].split()[:3])
    return text + data, data + bss


def _avr_cycles(files: dict[str, str], x: Array) -> float | None:
    with tempfile.TemporaryDirectory() as name:
        folder = _written(files, Path(name), ON_AVR)
        (folder / "rows.h").write_text(_rows(x[1:], True))
        try:
            _run([*AVR, *_sources(folder), "-o", "run.elf", "-lm"], folder)
            told = _run(["simavr", "-m", CHIP, "-f", "16000000", "run.elf"], folder)
        except subprocess.SubprocessError:
            return None
    lines = re.sub(r"\x1b\[[0-9;]*m", "", told).splitlines()
    numbers = [int(line.strip(". ")) for line in lines if re.fullmatch(r"\d+[. ]*", line)]
    return float(np.mean(numbers[::2])) if len(numbers) == 2 * (len(x) - 1) else None


def _m0_instructions(files: dict[str, str], x: Array) -> float | None:
    counts = []
    for n in (1, len(x)):
        with tempfile.TemporaryDirectory() as name:
            folder = _written(files, Path(name), ON_M0)
            (folder / "rows.h").write_text(_rows(x[:n], False))
            try:
                _run([*M0, *_sources(folder), "-o", "run", "-lm"], folder)
                with (folder / "log").open("wb") as log:
                    command = ["qemu-arm", "-singlestep", "-d", "exec,nochain", "./run"]
                    subprocess.run(command, cwd=folder, stderr=log, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)
                with (folder / "log").open("rb") as log:
                    counts.append(sum(1 for _ in log))
            except subprocess.SubprocessError:
                return None
    return (counts[1] - counts[0]) / (len(x) - 1)


def _rows(x: Array, is_avr: bool) -> str:
    rows = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in x.tolist())
    flash = "PROGMEM " if is_avr else ""
    sizes_text = f"#define ROWS {len(x)}\n#define COLUMNS {x.shape[1]}\n"
    return f"#include <string.h>\n{sizes_text}static const {flash}int16_t DATA[ROWS][COLUMNS] = {{{rows}}};\n"


def _written(files: dict[str, str], folder: Path, main: str) -> Path:
    for name, text in {**files, "main.c": main}.items():
        text = text.split("/* ---- the program")[0] if name == "model.c" else text
        (folder / name).write_text(text)
    return folder


def _sources(folder: Path) -> list[str]:
    return [each.name for each in sorted(folder.glob("*.c"))]


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, errors="replace", timeout=LIMIT)
    return done.stdout + done.stderr
