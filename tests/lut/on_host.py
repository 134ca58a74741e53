"""CUDA sources run on a CPU, compiled by a C++ compiler with `on_host.h` in place of CUDA."""

from __future__ import annotations

import ctypes
import hashlib
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
    "latent": ("attend_latent",),
}
HEADERS = {"latent": ("on_host.h", "tensor_cores_on_host.h")}  # of the others: the first


@cache
def library(source: Path, constants: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """One source with these constants as a shared library, compiled once and kept."""
    text = f'#include "{source}"\n'
    for name in KERNELS[source.stem]:
        text += (
            f'extern "C" int host_{name}(const unsigned* grid, int threads, int shared, void** arguments) '
            f"{{ return launch({name}, grid, threads, shared, arguments); }}\n"
        )
    defined = [f"-D{key}={value}" for key, value in constants]
    headers = [HERE / name for name in HEADERS.get(source.stem, ("on_host.h",))]
    included = [word for header in headers for word in ("-include", str(header))]
    options = ["-O1", "-U_FORTIFY_SOURCE", "-w", "-shared", "-fPIC", "-std=c++17", *included, *defined]
    texts = [path.read_bytes() for path in (source, *headers, *sorted(source.parent.glob("*.cuh")))]
    stamp = hashlib.sha256(b"\0".join([*texts, text.encode(), " ".join([version(), *options]).encode()])).hexdigest()[:24]
    kept = nvrtc.cache_folder() / f"{source.stem}-host-{stamp}.so"  # as loops and kernels are
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            code, compiled = Path(folder, "host.cpp"), Path(folder, "host.so")
            code.write_text(text)
            subprocess.run(["g++", *options, "-o", str(compiled), str(code)], check=True)
            compiled.replace(kept)
    return ctypes.CDLL(str(kept))


@cache
def version() -> str:
    """The version of the compiler."""
    return subprocess.run(["g++", "-dumpfullversion"], check=True, capture_output=True, text=True).stdout


class HostKernel:
    """What `nvrtc.Kernel` is on a GPU."""

    def __init__(self, source: Path, name: str, constants: tuple[tuple[str, int], ...], launch: tuple[int, int], *_: Any):
        self.run, (self.threads, self.shared), self.name = getattr(library(source, constants), f"host_{name}"), launch, name

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        self.launch(grid, [nvrtc.bits_of(each) for each in arguments])

    def launch(self, grid: tuple[int, int, int], bits: list[int]) -> None:
        """The same for arguments as `nvrtc.bits_of` gives them."""
        pointers = nvrtc.arguments.of(bits)
        stuck = self.run((ctypes.c_uint * 3)(*grid), self.threads, self.shared, pointers)
        assert not stuck, f"{self.name}: the threads of a block wait for each other"
