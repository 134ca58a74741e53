"""Run the quick mode of a GPU benchmark on a CPU: every time is 1, and Triton's kernels are interpreted.

    python pretend_gpu.py NAME

It shows that a benchmark calls what is there and ends in a result of the right form, where there is no GPU to run it on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import importlib

import torch
from torch.overrides import TorchFunctionMode

import gpu_timing


def once(call: Callable[[], Any], *rest: Any, **more: Any) -> float:
    """In the place of a timing: call it, and say 1."""
    call()
    return 1.0


def here(value: Any) -> Any:
    """The CPU in place of a CUDA device."""
    is_cuda = value == "cuda" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "cuda"
    return "cpu" if is_cuda else value


class OnCPU(TorchFunctionMode):
    """Tensors that are asked for on CUDA are made on the CPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*map(here, args), **{name: here(value) for name, value in (kwargs or {}).items()})


def pretend() -> None:
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_name = lambda *rest: "none, pretended"
    for name in ("empty_cache", "synchronize", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *rest: None)
    torch.cuda.max_memory_allocated = lambda *rest: 2**30
    torch.compile = lambda call, **rest: call
    for name in ("replayed", "timed"):
        setattr(gpu_timing, name, once)
    for name in ("captured", "several"):
        setattr(gpu_timing, name, lambda call, calls: call)
    gpu_timing.in_turns = lambda runs, calls, rounds: {key: once(run) for key, run in runs.items()}
    gpu_timing.own_processes, gpu_timing.ROUNDS, gpu_timing.WARM = False, 1, 0.0


def main(name: str) -> int:
    pretend()
    benchmark = importlib.import_module(name)
    benchmark.read_rate = lambda *rest: 1e12  # its kernel takes minutes in the interpreter
    if name == "decode_attention":  # it has graphs and turns of its own
        benchmark.ROTATED = 1
        benchmark.captured = lambda caches, call: (call(*caches[0]), 1)
        benchmark.in_turns = lambda graphs: {each: 1.0 if ways else None for each, ways in graphs.items()}
    with OnCPU():
        return int(benchmark.main(["--quick", "--json"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
