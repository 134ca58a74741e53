"""The kernel compiles for a GPU, on a machine without one: the interpreter does not see what the compiler refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest

import lutetia
import warm

POINTERS = {
    **dict.fromkeys(("q", "k_cache", "v_cache", "k_new", "v_new", "out"), "*bf16"),
    **dict.fromkeys(
        ("sink", "k_scale", "v_scale", "lse", "partial_acc", "partial_ml", "prior_acc", "prior_ml", "alibi", "rotary"), "*fp32"
    ),
    **dict.fromkeys(("seq_lens", "page_table", "arrived", "starts"), "*i32"),
    "tree": "*i64",
}
SIZES = {"H_KV": 8, "D": 128, "S_ACTIVE": 1, "ROWS": 4, "M_BLOCKS": 1, "PAGE_LEN": 0}
BLOCKS = {"BLOCK_B": 16, "BLOCK_D": 128, "BLOCK_M": 16, "BLOCK_N": 64, "COMBINE_ROWS": 4, "COMBINE_STAGES": 8, "NEW": 16}
FLAGS = dict.fromkeys(("RING", "HAS_WINDOW", "HAS_SINK", "HAS_NEW", "HAS_K_SCALE", "HAS_V_SCALE", "FIXED"), False)
PLAIN = {**SIZES, **BLOCKS, **FLAGS, "PLAIN": True, "EARLY": True, "PRECISION": "tf32"}
OTHERS = {  # what differs from PLAIN; and two stages, as each takes the compiler longer
    "a piece for each row, padding and a soft cap": {"n_splits": 1, "HAS_STARTS": True, "HAS_SOFTCAP": True},
    "four new tokens": {"S_ACTIVE": 4, "ROWS": 16, "HAS_NEW": True, "CAUSAL": True},
    "after a prefix": {"HAS_PREFIX": True, "HAS_ALIBI": True, "TURNED": 64},
    "latent attention": {
        "D": 512,
        "EXTRA": 64,
        "BLOCK_E": 64,
        "SHARED": True,
        "BLOCK_D": 512,
        "BLOCK_N": 32,
        "H_KV": 1,
        "ROWS": 16,
        "COMBINE_ROWS": 16,
        "HAS_NEW": True,
        "warps": 8,
    },
    "a tree of twenty tokens, int8": {
        "S_ACTIVE": 20,
        "ROWS": 80,
        "M_BLOCKS": 2,
        "BLOCK_M": 64,
        "NEW": 64,
        "HAS_NEW": True,
        "HAS_TREE": True,
        "TOKEN_SCALES": True,
        "cache": "*i8",
    },
    "the prefix": {"BLOCK_M": 128, "warps": 8, "PLAIN": False, "PAGE_LEN": 16},
    "a window, sinks, pages": {
        "HAS_WINDOW": True,
        "HAS_SINK": True,
        "PLAIN": False,
        "PAGE_LEN": 16,
        "FIXED": True,
    },
}
NINE = {"plain": {}, **{name: {"COMBINE_STAGES": 2, **case} for name, case in OTHERS.items()}}  # for compute capability 9.0
CASES = {  # the compute capability, times ten
    **{name: (90, constants) for name, constants in NINE.items()},
    "no early launch": (89, {"EARLY": False, "COMBINE_STAGES": 2}),
    "rows of one length": (90, {"BLOCK_B": 0}),
    "three stages": (90, {"BLOCK_B": 0, "COMBINE_STAGES": 3}),
}
COMPILE = """
import json
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lutetia.attention.triton_kernels import decode_kernel
from lutetia.attention.triton_prefix import prefix_kernel
from lutetia.attention.triton_tiles import TileCase, KernelTensors, Strides

pointers, plain, cases = map(json.loads, sys.argv[1:])
aligned = [["tt.divisibility", 16]]
attributes = {(0, pointer): aligned for pointer in range(len(pointers))}
attributes |= {(1, tensor, dimension): aligned for tensor in range(5) for dimension in range(3)}
strides = Strides(*[("i32", "i32", "i32", "constexpr")] * 5, *[("i32", "i32", "i32")] * 2)
for name, (capability, constants) in cases.items():
    kernel = prefix_kernel if "the prefix" in name else decode_kernel
    names, options = kernel.arg_names, {"num_warps": constants.pop("warps", 4), "num_stages": 3, "maxnreg": 255}
    caches = dict.fromkeys(("k_cache", "v_cache"), constants.pop("cache", "*bf16"))
    signature = {"memory": KernelTensors(**pointers | caches), "strides": strides, "scale": "fp32", "softcap": "fp32"}
    known = {(1, tensor, 3): 1 for tensor in range(5)}
    if "n_splits" in constants:
        known[(names.index("n_splits"),)] = constants.pop("n_splits")
        signature["n_splits"] = "constexpr"
    products = triton.language.bfloat16 if caches["k_cache"] == "*bf16" else triton.language.float16
    known[(names.index("CASE"),)] = TileCase(**{**plain, **constants}, PRODUCTS=products)
    signature = {name: "constexpr" if name == "CASE" else signature.get(name, "i32") for name in names}
    source = ASTSource(kernel, signature, known, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = made.asm["ptx"]
    seen = made.metadata.shared, ptx.count("cp.async.cg"), "griddepcontrol.wait" in ptx.partition(" ld.global")[0]
    print(json.dumps([name, seen]))
"""


class Compiled(NamedTuple):
    """What became of the kernel."""

    shared: int  # bytes of shared memory
    ahead: int  # instructions that fetch ahead
    waits: bool  # for the kernel before it, and reads nothing earlier


@pytest.fixture(scope="module")
def compiled() -> dict[str, Compiled]:
    """All cases, by one process: most of its time goes into its imports."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}
    environment.pop("TRITON_INTERPRET", None)
    words = ["-c", COMPILE, *map(json.dumps, (POINTERS, PLAIN, CASES))]
    done = warm.run(words, warm.Plain, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return {name: Compiled(*seen) for name, seen in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", NINE)
def test_for_compute_capability_9(name: str, compiled: dict[str, Compiled]) -> None:
    made = compiled[name]
    assert made.shared < 227 << 10
    assert made.ahead > 0
    assert made.waits == (name != "after a prefix")  # which runs beside the kernel before it, until it needs its result


def test_for_compute_capability_8_9(compiled: dict[str, Compiled]) -> None:
    """Which cannot launch early, and has less shared memory: two tiles of 32 KB, and what else there is."""
    from lutetia.attention.triton import OTHER_BYTES

    made = compiled["no early launch"]
    assert 64 << 10 < made.shared < (64 << 10) + OTHER_BYTES
    assert not made.waits


def test_keys_of_uneven_rows_are_fetched_ahead_too(compiled: dict[str, Compiled]) -> None:
    """The compiler does so only where it can tell how addresses are aligned, and says nothing when it does not."""
    assert PLAIN["BLOCK_B"] == 16
    assert compiled["plain"].ahead == 2 * compiled["rows of one length"].ahead > 0


def test_partial_results_are_fetched_ahead(compiled: dict[str, Compiled]) -> None:
    """Each stage more is one fetch more: four rows are one instruction."""
    assert PLAIN["COMBINE_STAGES"] == 8
    assert compiled["rows of one length"].ahead == compiled["three stages"].ahead + 5
