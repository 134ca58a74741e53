"""The CUDA sources of lutetia.lut run on a CPU, compiled by a C++ compiler with `on_host.h` in place of CUDA."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from lutetia._shared import nvrtc

HERE = Path(__file__).parent
KERNELS = {
    "reads": ("read_detectors", "send_slopes"),
    "rows": ("fill_rows", "row_gains"),
    "gather": ("gather_rows",),
    "pairs": ("gather_pairs", "sort_places"),
    "slopes": ("slopes_of_pairs",),
}


@cache
def library(source: Path, constants: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """One source with these constants as a shared library."""
    text = f'#include "{source}"\n'
    for name in KERNELS[source.stem]:
        text += (
            f'extern "C" int host_{name}(const unsigned* grid, int threads, int shared, void** arguments) '
            f"{{ return launch({name}, grid, threads, shared, arguments); }}\n"
        )
    defined = [f"-D{key}={value}" for key, value in constants]
    options = ["-O1", "-w", "-shared", "-fPIC", "-std=c++17", "-include", str(HERE / "on_host.h"), *defined]
    with tempfile.TemporaryDirectory() as folder:  # once loaded, the library needs no file
        code, compiled = Path(folder, "host.cpp"), Path(folder, "host.so")
        code.write_text(text)
        subprocess.run(["g++", *options, "-o", str(compiled), str(code)], check=True)
        return ctypes.CDLL(str(compiled))


class HostKernel:
    """What `nvrtc.Kernel` is on a GPU."""

    def __init__(self, source: Path, name: str, constants: tuple[tuple[str, int], ...], launch: tuple[int, int], device: Any):
        self.run, (self.threads, self.shared), self.name = getattr(library(source, constants), f"host_{name}"), launch, name

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        _values, pointers = nvrtc.packed(arguments)  # the first must live until the kernel has run
        stuck = self.run((ctypes.c_uint * 3)(*grid), self.threads, self.shared, pointers)
        assert not stuck, f"{self.name}: the threads of a block wait for each other"
