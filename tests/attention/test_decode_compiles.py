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
SIZES = {"H_KV": 8, "D": 128, "S_ACTIVE": 1, "ROWS": 4, "M_BLOCKS": 1, "PAGE_LEN": 0}
BLOCKS = {"BLOCK_B": 16, "BLOCK_D": 128, "BLOCK_M": 16, "BLOCK_N": 64, "COMBINE_ROWS": 4, "COMBINE_STAGES": 8}
FLAGS = dict.fromkeys(("RING", "HAS_WINDOW", "HAS_SINK", "HAS_NEW", "HAS_K_SCALE", "HAS_V_SCALE", "FIXED"), False)
PLAIN = {**SIZES, **BLOCKS, **FLAGS, "PLAIN": True, "EARLY": True, "PRECISION": "tf32"}
CASES = {
    "plain": {},
    "a piece for each row": {"n_splits": 1},
    "four new tokens": {"S_ACTIVE": 4, "ROWS": 16, "HAS_NEW": True},
    "a window, sinks, pages": {"HAS_WINDOW": True, "HAS_SINK": True, "PLAIN": False, "PAGE_LEN": 16, "FIXED": True},
}
COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lutetia.attention.triton_kernels import decode_kernel as kernel

pointers, constants, capability = map(eval, sys.argv[1:])
constants["PRODUCTS"] = triton.language.bfloat16
constants.update(dict.fromkeys(("q_d", "k_d", "v_d", "kn_d", "vn_d"), 1))
names = kernel.arg_names
signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
strides = [name for name in names if name[:2] in ("q_", "k_", "v_", "kn", "vn") and name[-2] == "_"]
aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in (*pointers, *strides) if name != "scale"}
source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4, "num_stages": 3, "maxnreg": 255})
print(made.metadata.shared, made.asm["ptx"].count("cp.async.cg"))
"""


def compiled(capability: int = 90, **constants: object) -> tuple[int, int]:
    """For a compute capability, times ten: the bytes of shared memory it needs, and how many instructions fetch ahead."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", COMPILE, repr(POINTERS), repr({**PLAIN, **constants}), str(capability)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shared, ahead = map(int, done.stdout.split())
    return shared, ahead


@pytest.mark.parametrize("name", CASES)
def test_for_compute_capability_9(name: str) -> None:
    shared, ahead = compiled(**CASES[name])
    assert shared < 227 << 10
    assert ahead > 0


def test_for_compute_capability_8_9() -> None:
    """Which cannot launch early, and has less shared memory: two tiles of 32 KB, and what else there is."""
    from lutetia.attention.triton import OTHER_BYTES

    assert 64 << 10 < compiled(89, EARLY=False)[0] < (64 << 10) + OTHER_BYTES


def test_keys_of_uneven_rows_are_fetched_ahead_too() -> None:
    """The compiler does so only where it can tell how addresses are aligned, and says nothing when it does not."""
    for_one_row, for_several = compiled(BLOCK_B=0)[1], compiled(BLOCK_B=16)[1]
    assert for_several == 2 * for_one_row > 0


def test_partial_results_are_fetched_ahead() -> None:
    """Each stage more is one fetch more: a row of four is one instruction."""
    few, many = (compiled(BLOCK_B=0, COMBINE_STAGES=stages)[1] for stages in (3, 8))
    assert many == few + 5
