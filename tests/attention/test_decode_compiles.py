"""The kernel compiles for a GPU, on a machine without one: the interpreter does not see what the compiler refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lutetia

POINTERS = {
    **dict.fromkeys(("q", "k_cache", "v_cache", "k_new", "v_new", "out"), "*bf16"),
    **dict.fromkeys(("sink", "k_scale", "v_scale", "lse", "partial_acc", "partial_ml"), "*fp32"),
    **dict.fromkeys(("seq_lens", "page_table", "arrived"), "*i32"),
    "scale": "fp32",
}
SIZES = {"D": 128, "S_ACTIVE": 1, "ROWS": 4, "M_BLOCKS": 1, "BLOCK_D": 128, "BLOCK_M": 16, "BLOCK_N": 64, "COMBINED": 16}
FLAGS = dict.fromkeys(("RING", "HAS_WINDOW", "HAS_SINK", "HAS_NEW", "HAS_K_SCALE", "HAS_V_SCALE", "FIXED"), False)
PLAIN = {**SIZES, **FLAGS, "COMBINE_ROWS": 4, "PAGE_LEN": 0, "PRECISION": "tf32", "BLOCK_B": 16}
CASES = {
    "plain": {},
    "four new tokens": {"S_ACTIVE": 4, "ROWS": 16, "HAS_NEW": True},
    "a window, sinks, pages": {"HAS_WINDOW": True, "HAS_SINK": True, "PAGE_LEN": 16, "FIXED": True},
}
COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lutetia.attention.triton_kernels import decode_kernel as kernel

pointers, constants = map(eval, sys.argv[1:])
constants["PRODUCTS"] = triton.language.bfloat16
constants.update(dict.fromkeys(("q_d", "k_d", "v_d", "kn_d", "vn_d"), 1))
names = kernel.arg_names
signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in pointers and name != "scale"}
source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})
print(len(made.asm["cubin"]))
"""


@pytest.mark.parametrize("name", CASES)
def test_for_compute_capability_9(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", COMPILE, repr(POINTERS), repr({**PLAIN, **CASES[name]})]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000
