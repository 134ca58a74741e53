"""Facts on the machine, for the end of a report; never the name of a user or a host."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from lutetia._version import __version__

PACKAGES = ("torch", "numpy", "numba", "triton")


def machine() -> dict[str, str]:
    """The processor, its cores and memory, the GPU where there is one, and the versions in use."""
    found = {"Processor": _processor(), "Cores": f"{_cores()}, torch uses {torch.get_num_threads()}", "Memory": _memory()}
    if torch.cuda.is_available():
        found["GPU"] = torch.cuda.get_device_name()
    found["System"] = f"{platform.system()} {platform.release()}, {platform.machine()}"
    found["Python"] = platform.python_version()
    for package in PACKAGES:
        try:
            found[package] = torch.__version__ if package == "torch" else version(package)  # torch's own names the build
        except PackageNotFoundError:
            continue
    found["lutetia"] = __version__
    return {name: value for name, value in found.items() if value}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # only on Linux
        return os.cpu_count() or 1


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return ""
    return f"{total / 2**30:.0f} GiB"
