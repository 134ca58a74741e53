"""Latent attention of many query rows on CUDA, compute capability 9.x: one launch of `latent.cu`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lutetia._shared import nvrtc
from lutetia._shared.numbers import cdiv
from lutetia.attention.arguments import DecodeCall
from lutetia.attention.choose import choose_splits
from lutetia.attention.triton import INVARIANT_KEYS, device_of, workspace

SOURCES = Path(__file__).parent
KEY, VALUE = 576, 512  # numbers of a key, and of a value
ROWS, KEYS = 64, 64  # query rows of a block, keys of a tile
FEW_ROWS = 16  # query rows that the Triton kernel is as fast for
MANY_KEYS = 2**19  # of a whole batch: with fewer, the Triton kernel is faster for less than a block of query rows
FEW_KEYS = 2**10  # the same for more query rows
THREADS = 384
SHARED_BYTES = (3 * 8 + 2 + 2) * 8192 + 3072  # tiles, weights, queries, and what else `Shared` of latent.cu has
LOG2_E = 1.4426950408889634
EXTRAS = ("window", "sink", "k_scale", "softcap", "prefix", "alibi", "rotary", "tree")  # what a call must not have
WIDEST = 2**31  # stride


def fits(call: DecodeCall, cores: int = 1) -> bool:
    """Whether a call is one for this kernel, and its GPU has it."""
    return call.q.is_cuda and is_latent(call, cores) and is_large(call) and available(call.q.get_device())


def is_large(call: DecodeCall) -> bool:
    """Whether the kernel is faster than Triton's, as measured on an H200."""
    rows, keys = call.group * call.s_active, call.batch * call.capacity
    return keys > FEW_KEYS if rows >= ROWS else rows > FEW_ROWS and keys >= MANY_KEYS


def is_latent(call: DecodeCall, cores: int = 1) -> bool:
    """Whether a call is latent attention in 16 bits, without extras."""
    q, k, new = call.q, call.k_cache, call.k_new
    if not call.shared or (call.head_dim, call.value_dim, call.n_kv_heads) != (KEY, VALUE, 1):
        return False
    if q.dtype not in (torch.bfloat16, torch.float16) or k.dtype != q.dtype:
        return False
    if cores > 1 or any(getattr(call, name) is not None for name in EXTRAS) or call.scale == 0:
        return False
    if new is not None and (new.dtype != k.dtype or call.starts is not None or not is_aligned(new, 16)):
        return False
    if call.page_table is not None and call.page_table.stride(1) != 1:
        return False
    return is_aligned(q, 4) and is_aligned(k, 16)


def is_aligned(tensor: Tensor, n_bytes: int) -> bool:
    """Whether every row of a tensor is contiguous and begins at a multiple of n_bytes, in reach of 32-bit strides."""
    *steps, last = tensor.stride()
    whole = all(step * tensor.element_size() % n_bytes == 0 and 0 <= step < WIDEST for step in steps)
    return last == 1 and whole and tensor.data_ptr() % n_bytes == 0


@cache
def available(device: int) -> bool:
    """Whether the kernel can be compiled and launched on this GPU."""
    if torch.cuda.get_device_capability(device)[0] != 9:
        return False
    return nvrtc.available(SOURCES / "trial.cu", (9, 0), "latent attention runs on a slower Triton kernel")


class LatentPlan(NamedTuple):
    """A launch without its tensors."""

    kernel: nvrtc.Kernel
    grid: tuple[int, int, int]  # blocks of query rows, and groups of blocks that share the keys
    numbers: list[int]
    counters: int
    partials: int  # results of pieces that there may be

    def start(self, call: DecodeCall) -> tuple[Tensor, Tensor]:
        """out [B, H_q, s_active, 512] and lse [B, H_q, s_active]."""
        q = call.q
        if q.is_cuda and torch._C._cuda_getDevice() != q.get_device():
            with torch.cuda.device(q.device):
                return self.start(call)
        sums = self.partials * ROWS * VALUE
        arrived, scratch = workspace(self.counters, sums + self.partials * ROWS * 2, q.device)
        out, lse = q.new_empty(call.out_shape), scratch.new_empty(q.shape[:-1])
        tensors = (q, call.k_cache, call.seq_lens, call.starts, call.page_table, call.k_new, out, lse, scratch)
        if lse.numel():
            addresses = [nvrtc.bits_of(each) for each in tensors]
            self.kernel.launch(self.grid, [*addresses, addresses[-1] + 4 * sums, arrived.data_ptr(), *self.numbers])
        return out, lse


def plan_of(call: DecodeCall, batch_invariant: bool = False) -> LatentPlan:
    """The plan of all calls with tensors like these."""
    q, k, new = call.q, call.k_cache, call.k_new
    rows, batch = call.group * call.s_active, call.batch
    blocks, multiprocessors = cdiv(rows, ROWS), device_of(q).multiprocessors
    groups = max(choose_splits(blocks, batch * call.capacity, multiprocessors), min(batch, multiprocessors // blocks), 1)
    pieces = batch * cdiv(max(call.capacity, 1), INVARIANT_KEYS) if batch_invariant else max(groups, batch)
    split = call.capacity > INVARIANT_KEYS if batch_invariant else groups > 1
    fixed = INVARIANT_KEYS // KEYS if batch_invariant else 0
    constants = {"BF16": int(q.dtype == torch.bfloat16), "PAGED": int(call.page_table is not None), "FIXED": fixed}
    launch = (THREADS, SHARED_BYTES)
    kernel = nvrtc.kernel(SOURCES / "latent.cu", "attend_latent", tuple(constants.items()), launch, q.get_device(), "a")
    q_b, q_h, q_a, _ = q.stride()
    k_o, k_s = k.stride()[0], k.stride()[1 if call.page_table is not None else 2]
    new_b, _, new_a, _ = (0, 0, 0, 0) if new is None else new.stride()
    table = 0 if call.page_table is None else call.page_table.stride(0)
    sizes = (batch, rows, call.s_active, call.capacity, q_b, q_h, q_a, k_o, k_s, new_b, new_a, call.page_len, table)
    numbers = [nvrtc.bits_of(each) for each in (call.scale * LOG2_E, *sizes)]
    slots = (pieces + batch) * blocks
    return LatentPlan(kernel, (blocks, groups, 1), numbers, slots + batch * blocks, slots if split else 0)
