"""Ask for what a test needs beyond torch: it is skipped, by name, where the thing is missing.

The reasons start with "missing tool:", which makes a run under CI fail: there, nothing may be missing but what is optional.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import shutil
import tempfile
from fnmatch import translate
from types import ModuleType

import pytest

MISSING, OPTIONAL = "missing tool:", "optional tool:"
MODULE = "Python module"
# What a bare machine lacks: all that Lutetia or its tests may call and that does not come from PyPI.
TOOLS = (
    *("iverilog*", "vvp", "verilator*", "ghdl*", "nextpnr-*", "icepack", "ecppack", "yosys*", "chromium*", "google-chrome*"),
    *("cc", "c++", "gcc*", "g++*", "c89*", "c99*", "clang*", "cpp*", "ld", "ld.*", "*-linux-gnu-*"),
    *("arm-none-eabi-*", "riscv64-*", "qemu-*", "avr-*", "simavr*"),
)


def require_tool(name: str, *others: str, why: str = MISSING) -> str:
    """The path of a program, under the first of its names that is there; skips the test, or the whole module, without one."""
    for each in (name, *others):
        path = shutil.which(each)
        if path is not None:
            return path
    pytest.skip(f"{why} {name}", allow_module_level=True)


def optional_tool(name: str) -> str:
    """The same for a program that CI does not install: a test that needs it is skipped where it is missing, on CI too."""
    return require_tool(name, why=OPTIONAL)


def require_module(name: str) -> ModuleType:
    """An optional Python module; skips the test, or the whole module, without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{MISSING} {MODULE} {name}", allow_module_level=True)


def optional_module(name: str) -> ModuleType:
    """The module of a package that `make` does not install; a test that needs it is skipped where it is missing, on CI too."""
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is optional", allow_module_level=True)


def is_missing_tool(reason: str) -> bool:
    """Whether a test was skipped for want of a tool."""
    return reason.startswith((MISSING, "could not import"))  # the latter is what pytest.importorskip says


def is_missing_program(reason: str) -> bool:
    """Whether that tool is a program, which `path_without_tools` may have hidden."""
    return reason.startswith((MISSING, OPTIONAL)) and not reason.startswith(f"{MISSING} {MODULE}")


def path_without_tools() -> str:
    """A PATH of one new folder, removed at exit, that links to every program of the present PATH except the `TOOLS`."""
    folder = tempfile.mkdtemp(prefix="lutetia-bare-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    is_tool, programs = re.compile("|".join(map(translate, TOOLS))).match, dict[str, str]()
    for place in filter(os.path.isdir, os.environ["PATH"].split(os.pathsep)):
        for program in os.scandir(place):
            programs.setdefault(program.name, program.path)  # the first place counts
    for name, path in programs.items():
        if not is_tool(name):
            os.symlink(path, os.path.join(folder, name))
    return folder
