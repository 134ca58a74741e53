"""Triton kernels compiled for an H200 on a machine without one, in a process of its own: nothing is launched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import lutetia
import warm

# `step` is for the script to set; the result is the PTX of each kernel by step and name.
DRIVER = """
import json
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

class Driver:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

triton.runtime.driver.set_active(Driver())
step, compiled, run = "", {}, JITFunction.run

def compile_only(self, *args, grid, warmup, **options):
    compiled[f"{step} {self.fn.__name__}"] = run(self, *args, grid=grid, warmup=True, **options).asm["ptx"]

JITFunction.run = compile_only
"""


def compile_for_gpu(script: str) -> dict[str, Any]:
    """The PTX of every kernel that a script would launch, by what its `step` was and the kernel's name."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}
    environment.pop("TRITON_INTERPRET", None)
    code = f"{DRIVER}\n{script}\nprint(json.dumps(compiled))"
    done = warm.run(["-c", code], warm.Plain, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
