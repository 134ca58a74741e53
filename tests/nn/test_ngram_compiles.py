"""The Triton kernels of n-gram tables compile for a GPU, and a step stores nothing before all warps have loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import lutetia

# A driver that says it is an H200, and kernels that are compiled and not launched.
COMPILE = """
import json, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

class Driver:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0

triton.runtime.driver.set_active(Driver())
compiled, run = {}, JITFunction.run

def compile_only(self, *args, grid, warmup, **options):
    compiled[self.fn.__name__] = run(self, *args, grid=grid, warmup=True, **options).asm["ptx"]

JITFunction.run = compile_only
from lutetia.nn import NgramTables
from lutetia.nn.ngram import kernels
from lutetia.nn.ngram.hashing import Hash

layer = NgramTables((2, 3), word=True, n_rows=64, width=8)
tokens = torch.zeros(2, 5, dtype=torch.int64)
hash_ = Hash(*layer.hashed, 64, layer.multipliers)
kernels.addresses(tokens, torch.zeros(2, 15, dtype=torch.int64), hash_, layer.lengths, layer.words)
rows, number = torch.zeros(9, dtype=torch.int64), torch.zeros(192, 1)
table = torch.zeros(192, 8)
memory = (table, table, number, table, torch.zeros(192, dtype=torch.int32), torch.zeros((), dtype=torch.int32), torch.zeros(()))
kernels.step_rows(rows, torch.zeros(9, 8), memory, (0.99, 1e-8, 0.1))
print(json.dumps(compiled))
"""


def test_kernels_compile_and_stores_wait_for_loads() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout)
    assert set(compiled) == {"address_kernel", "add_kernel", "step_kernel"}
    order = re.findall(r"(ld\.global|st\.global|bar\.sync)", compiled["step_kernel"])
    last_load, first_store = len(order) - 1 - order[::-1].index("ld.global"), order.index("st.global")
    assert last_load < first_store
    assert "bar.sync" in order[last_load:first_store]
