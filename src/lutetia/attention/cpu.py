"""Decode attention on the CPU, compiled: the live keys are divided over the threads that torch already has.

float32 and bfloat16 caches run in `numba_kernels`, compiled on first use and kept on disk; other types in plain torch.
"""

from __future__ import annotations

from functools import cache, lru_cache
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.threads import launch, openmp, pool
from lutetia.attention import reference
from lutetia.attention.arguments import DecodeCall
from lutetia.attention.rotary import turned

COMPILED = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
LOG2_E = 1.4426950408889634
INVARIANT_KEYS = 1024  # keys of an item when its size must not depend on the batch
SMALLEST_SHARE = 256  # keys of an item: less is not worth adding up
ITEMS_PER_THREAD = 4  # so that one that is late leaves little to wait for
SMALLEST_WORK = 1 << 16  # numbers of the cache: fewer are read before a second thread has woken up


def decode_on_cpu(call: DecodeCall, cores: int = 1, shard: str = "auto", batch_invariant: bool = False) -> tuple[Tensor, Tensor]:
    """out [B, H_q, s_active, d] in the dtype of q, and lse [B, H_q, s_active]."""
    call = turned(call)
    if not compiles(call):
        return reference.decode(call)
    reference.write_new(call)
    seq_lens, n_kv_heads = call.seq_lens.contiguous(), call.n_kv_heads
    keys = sum(seq_lens.tolist()) * n_kv_heads
    threads = 1 if 2 * keys * call.head_dim < SMALLEST_WORK else torch.get_num_threads()
    cut = 0 if cores == 1 or batch_invariant else 1 if shard == "batch" else cores
    share = INVARIANT_KEYS if batch_invariant else keys_of_item(keys, threads)
    kernels = compiled()
    starts = first_positions(call.batch) if call.starts is None else call.starts.contiguous().numpy()
    sizes = (call.s_active, call.window or 0, n_kv_heads, share, cut)
    items, items_at, n_partial = kernels.make_items(seq_lens.numpy(), starts, *sizes)
    work = DecodeWork(call, seq_lens, len(items), items_at, n_partial)
    run(COMPILED[call.k_cache.dtype], work.plan, min(threads, len(items)))
    if work.partial is not None:
        kernels.combine(work.plan, items, work.partial)
    return work.out if work.out.dtype == call.q.dtype else work.out.to(call.q.dtype), work.lse


def run(dtype: str, plan: np.ndarray, threads: int) -> None:
    """The loop for caches of this dtype, on several threads at once: plan is int64 [SIZE]."""
    work = getattr(compiled(), f"work_{dtype}")
    if threads <= 1:
        work(plan)
    elif openmp():
        launch(getattr(compiled(), f"body_{dtype}")().address, plan.ctypes.data, threads)
    else:
        work(np.where(np.arange(len(plan)) == 0, 0, plan))  # no items: should it need compiling, then here
        for future in [pool().submit(work, plan) for _ in range(threads)]:
            future.result()


def compiles(call: DecodeCall) -> bool:
    """Whether the compiled loops take this call: caches of their types whose heads lie in one piece."""
    if call.q.dtype == torch.float64 or call.k_cache.dtype not in COMPILED:
        return False
    return call.head_dim == call.value_dim == 1 or call.k_cache.stride(-1) == call.v_cache.stride(-1) == 1


def keys_of_item(keys: int, threads: int) -> int:
    """The most keys that an item may have, of all live keys; with one thread there is no reason to split."""
    return max(keys, 1) if threads == 1 else max(SMALLEST_SHARE, -(-keys // (threads * ITEMS_PER_THREAD)))


class DecodeWork:
    """The arrays of one call, and the plan that holds their addresses: int64 [SIZE], in the order of `numba_kernels.NAMES`."""

    def __init__(self, call: DecodeCall, seq_lens: Tensor, n_items: int, items: int, n_partial: int) -> None:
        k, v, table = call.k_cache, call.v_cache, call.page_table
        (batch, n_q_heads, s_active, d), n_kv_heads = call.q.shape, call.n_kv_heads
        rows, d_v = n_q_heads // n_kv_heads * s_active, call.value_dim
        self.q = call.q.float().contiguous()  # [B, H_q, s_active, d] is [B, H_kv, rows, d]
        self.out, self.lse = self.q.new_empty(call.out_shape), self.q.new_empty(batch, n_q_heads, s_active)
        self.partial = np.empty((n_partial, rows * (d_v + 2)), np.float32) if n_partial else None
        # The scale, and the base of the exponential, go into the queries.
        scale = call.scale * LOG2_E
        self.q_factor = equal_factors(n_kv_heads, scale) if call.k_scale is None else call.k_scale * scale
        self.v_factor = None if call.v_scale is None else call.v_scale.contiguous()
        self.softcap = None if call.softcap is None else equal_factors(1, call.softcap * LOG2_E)
        self.alibi = None if call.alibi is None else call.alibi.float() * LOG2_E
        self.tree = call.tree
        self.sink = None if call.sink is None else call.sink.float().contiguous()
        self.table = None if table is None else table.contiguous()
        (k_outer, k_1, k_2, _), (v_outer, v_1, v_2, _) = k.stride(), v.stride()
        if table is not None:  # [pages, slots, heads, d]
            k_1, k_2, v_1, v_2 = k_2, k_1, v_2, v_1
        sizes = (
            n_items, rows, s_active, d, d_v, n_kv_heads, call.page_len if table is not None or call.ring else 0, call.window or 0,
            0 if table is None else table.shape[1], k_outer, k_1, k_2, v_outer, v_1, v_2,
        )  # fmt: skip
        arrays = (
            self.q,
            k,
            v,
            seq_lens,
            self.table,
            self.q_factor,
            self.v_factor,
            self.softcap,
            self.sink,
            self.alibi,
            self.tree,
        )
        results = (address(self.out), address(self.lse), items, address(self.partial), 0)
        self.plan = np.array([*sizes, *map(address, arrays), *results], np.int64)


@lru_cache(maxsize=64)
def equal_factors(n: int, factor: float) -> Tensor:
    """The same number n times, as in most calls."""
    return torch.full((n,), factor, dtype=torch.float32, device="cpu")


@lru_cache(maxsize=64)
def first_positions(n: int) -> np.ndarray:
    """Where n rows begin that have no padding."""
    return np.zeros(n, np.int32)


def address(array: Tensor | np.ndarray | None) -> int:
    """Where an array begins; 0 for none."""
    if array is None:
        return 0
    return array.data_ptr() if isinstance(array, Tensor) else int(array.__array_interface__["data"][0])


@cache
def compiled() -> ModuleType:
    """The compiled loops; numba is first imported here."""
    from lutetia.attention import numba_kernels

    return numba_kernels
