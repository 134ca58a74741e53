"""Decode attention on CUDA, in Triton: the grid, the block sizes, and the counters that tell a split whether it is the last.

Under TRITON_INTERPRET=1 everything here runs on CPU tensors too, which is how it is tested without a GPU.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia._shared.numbers import cdiv, next_power_of_2
from lutetia.attention.arguments import EIGHT_BITS, DecodeCall
from lutetia.attention.choose import LEAST_KEYS, choose_splits
from lutetia.errors import require

triton = require("triton", "the triton backend of lutetia.attention")
from lutetia._shared.launches import Launch  # noqa: E402  (needs triton)
from lutetia.attention import triton_tiles as tiles  # noqa: E402
from lutetia.attention.triton_kernels import decode_kernel  # noqa: E402
from lutetia.attention.triton_prefix import prefix_kernel  # noqa: E402

INVARIANT_KEYS = 512  # keys of a split when its size must not depend on the batch
COMBINE_STAGES = 8  # partial results in flight, and one more, at most
COMBINE_BYTES = 1 << 15  # of those in flight
REGISTERS = 255  # of a thread, at most: by itself the compiler keeps to 128, and fetches wait for each other's address registers
OTHER_BYTES = 8 << 10  # of shared memory, besides tiles of keys and values
PREFIX_ROWS = 128  # query rows of a tile over a prefix: they are of many rows of the batch, and fill the matrix units
PREFIX_KEYS, PREFIX_STAGES = 64, 3  # of such a tile: as swept, with 32 to 128 keys, 64 rows, and two programs at once
PREFIX_REGISTERS = 192  # of eight warps: what is left of a multiprocessor has room for four with FEW_REGISTERS
FAR = 2**31  # offsets from here on need 64 bits
LONG_KEYS = 2048  # of a piece that counts as long
NEW_KEYS = 16  # written at once, where a tile has few query rows
FEW_ROWS = 32  # query rows of a tile, at most, that warps multiply each for itself
MOST_ROWS = 512  # of a batch whose lengths every program looks through for itself
FEW_KEYS, FEW_REGISTERS = 512, 128  # of a short row beside a prefix: four programs share a multiprocessor, and wait less
COUNTERS = 1 << 20


class LaunchConfig(NamedTuple):
    """How the kernel is compiled, and how the keys are cut."""

    block_n: int  # keys of a tile
    warps: int
    stages: int  # tiles in flight, and one more
    keys: int  # minimum per split; exactly this many when `fixed`
    splits: int  # of each owner
    sharers: int = 0  # programs that share the keys of rows that differ in length; 0 for `splits` all the same
    fixed: bool = False


def configure(call: DecodeCall, cores: int = 1, shard: str = "auto", batch_invariant: bool = False) -> LaunchConfig:
    """The configuration of a call; with `batch_invariant`, how keys are split does not depend on B, S_max or the device."""
    rows = min(call.group * call.s_active, _most_rows(call))
    owners = call.batch * call.n_kv_heads * cdiv(call.group * call.s_active, rows)
    multiprocessors = device_of(call.q).multiprocessors
    keys = call.capacity if call.window is None else min(call.capacity, call.window + call.s_active - 1)
    keys -= _shared_keys(call)
    if batch_invariant:
        return LaunchConfig(*_tile(call, rows), INVARIANT_KEYS, splits=cdiv(max(keys, 1), INVARIANT_KEYS), fixed=True)
    if cores > 1:  # what a core owns, a split is: all of a row, or its part of the keys
        return LaunchConfig(*_tile(call, rows), 1, splits=1 if shard == "batch" else cores)
    # As swept on an H200. There a multiprocessor runs one program with more in flight, or two with less.
    together = 2 if owners > multiprocessors else 1
    splits, narrow = choose_splits(owners, keys, together * multiprocessors), call.k_cache.dtype in EIGHT_BITS
    if together == 1 and keys // splits >= LONG_KEYS and (narrow or call.page_table is not None):
        # One program finds places, or turns 8 bits into 16, while another waits for its keys.
        together, splits = 2, choose_splits(owners, keys, 2 * multiprocessors)
    tile = _tile(call, rows, stages=3 if together == 2 or narrow or call.page_table is not None else 4)
    if not 1 < call.batch <= MOST_ROWS:
        return LaunchConfig(*tile, LEAST_KEYS, splits)
    # Of rows that differ, as many programs as run at once read an equal share each.
    return LaunchConfig(*tile, LEAST_KEYS, splits, min(owners * splits, together * multiprocessors))


def _tile(call: DecodeCall, rows: int, stages: int = 3) -> tuple[int, int, int]:
    """block_n, warps, stages: as measured on an H200 for a key and value of 512 bytes together, and scaled for other sizes."""
    large = rows > FEW_ROWS or (call.q.dtype == torch.float32 and call.head_dim > 128)  # more registers than four warps have
    one = (1 if call.shared else 2) * max(16, next_power_of_2(call.value_dim)) * call.k_cache.element_size()
    if call.value_dim > 256:
        return _latent_tile(call, rows, one)
    most = 128 if call.k_cache.dtype in EIGHT_BITS else 64
    block_n = max(16, min(most * 512 // one, most))
    fitting = 1 + (device_of(call.q).shared_bytes - OTHER_BYTES) // (block_n * one)
    return block_n, 8 if large else 4, 2 if large else max(2, min(stages, fitting))


def _latent_tile(call: DecodeCall, rows: int, value_bytes: int) -> tuple[int, int, int]:
    """block_n, warps, stages for wide values: as measured on an H200, smaller where shared memory is."""
    room = device_of(call.q).shared_bytes - OTHER_BYTES
    key_bytes = value_bytes + (call.head_dim - call.value_dim) * call.k_cache.element_size()
    block_n = max(16, min(64, 64 * 1024 // value_bytes))
    while block_n > 16 and room // (block_n * key_bytes) < 2:
        block_n //= 2
    return block_n, 8, 3 if rows <= 16 else 2


class Before(NamedTuple):
    """The launch that reads the prefix, without its tensors."""

    kernel: Launch
    numbers: tuple[Any, ...]
    priors: tuple[int, int]  # numbers that acc and m, l of all its pieces take


class LaunchPlan(NamedTuple):
    """A launch without its tensors."""

    kernel: Launch
    strides: tiles.Strides
    numbers: tuple[Any, ...]
    owners: int
    scratch: tuple[int, ...]  # numbers that acc and m, l of all pieces take, and those of the pieces of the prefix
    like_q: bool  # the output has the shape and the strides of q
    before: Before | None = None

    def start(self, call: DecodeCall) -> tuple[Tensor, Tensor]:
        """Launch it; shapes as in `launch`."""
        q, k, v = call.q, call.k_cache, call.v_cache
        sizes = self.scratch
        arrived, scratch = workspace(self.owners, sum(sizes), q.device)
        out = torch.empty_like(q) if self.like_q else q.new_empty(call.out_shape)  # each half the time of torch.empty
        lse = scratch.new_empty(q.shape[:-1])  # and so is this of one with a dtype
        if not lse.numel():
            return out, lse
        if self.kernel.ready() and (self.before is None or self.before.kernel.ready()):
            memory = addresses(call, (out, lse), (scratch, sizes), arrived)
            if self.before is not None:
                self.before.kernel.again(memory, self.strides, *self.before.numbers)
            self.kernel.again(memory, self.strides, *self.numbers)
            return out, lse
        parts = scratch[: sum(sizes)].split(sizes)
        memory = tiles.KernelTensors(
            q, k, v, call.seq_lens, _or(call.page_table, call.seq_lens), *_new(call),
            _or(call.sink, lse), _or(call.k_scale, lse), _or(call.v_scale, lse),
            out, lse, parts[0], parts[1], arrived, _or(call.starts, call.seq_lens), parts[2], parts[3],
            _or(call.alibi, lse), _or(call.rotary, lse), _or(call.tree, call.seq_lens),
        )  # fmt: skip
        if self.before is not None:
            self.before.kernel(memory, self.strides, *self.before.numbers)
        self.kernel(memory, self.strides, *self.numbers)
        return out, lse


def addresses(
    call: DecodeCall, results: tuple[Tensor, Tensor], scratch: tuple[Tensor, tuple[int, ...]], arrived: Tensor
) -> tiles.KernelTensors:
    """The tensors of a launch by their addresses: Triton would ask the driver about each tensor."""
    q, k, v, seq_lens, k_new, v_new, _, _, sink, table, k_scale, v_scale, starts, _, _, alibi, rotary, tree = call
    (out, lse), (first, sizes) = results, scratch
    k_at, v_at, at = k.data_ptr(), v.data_ptr(), first.data_ptr()
    return tiles.KernelTensors(
        q.data_ptr(), k_at, v_at, seq_lens.data_ptr(), _address(table),
        k_at if k_new is None else k_new.data_ptr(), v_at if v_new is None else v_new.data_ptr(),
        _address(sink), _address(k_scale), _address(v_scale), out.data_ptr(), lse.data_ptr(),
        at, at + 4 * sizes[0], arrived.data_ptr(), _address(starts),
        at + 4 * (sizes[0] + sizes[1]), at + 4 * (sizes[0] + sizes[1] + sizes[2]),
        _address(alibi), _address(rotary), _address(tree),
    )  # fmt: skip


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def launch(call: DecodeCall, config: LaunchConfig) -> tuple[Tensor, Tensor]:
    """out [B, H_q, s_active, d_v] in the dtype of q, and lse float32 [B, H_q, s_active]; one launch."""
    return plan_of(call, config).start(call)


def plan_of(call: DecodeCall, config: LaunchConfig) -> LaunchPlan:
    """The plan of all calls with tensors like these."""
    q, k, v = call.q, call.k_cache, call.v_cache
    rows = call.group * call.s_active
    block_m = max(16, min(next_power_of_2(rows), _most_rows(call)))
    m_blocks, block_d = cdiv(rows, block_m), max(16, next_power_of_2(call.value_dim))
    extra = call.head_dim - call.value_dim
    combine_rows = min(next_power_of_2(rows), block_m)
    combine_stages = max(2, min(COMBINE_STAGES, 1 + COMBINE_BYTES // (4 * combine_rows * block_d)))
    owners = call.batch * call.n_kv_heads * m_blocks
    shared = owners + config.sharers if config.sharers else 0  # an owner and a program have one piece in common, or none
    partials = max(owners * config.splits, shared) if max(config.splits, config.sharers) > 1 else 0
    early = device_of(q).launches_early
    k_new, v_new = _new(call)
    token_scales = call.k_scale is not None and call.k_scale.dim() == 3
    scales = [_strides(each, call) if token_scales and each is not None else (0, 0, 0) for each in (call.k_scale, call.v_scale)]
    strides = tiles.Strides(q.stride(), _strides(k, call), _strides(v, call), k_new.stride(), v_new.stride(), *scales)
    case = tiles.TileCase(
        H_KV=call.n_kv_heads, D=call.value_dim, S_ACTIVE=call.s_active, ROWS=rows, M_BLOCKS=m_blocks,
        BLOCK_B=max(16, next_power_of_2(call.batch)) if config.sharers else 0,
        BLOCK_D=block_d, BLOCK_M=block_m, BLOCK_N=config.block_n, COMBINE_ROWS=combine_rows, COMBINE_STAGES=combine_stages,
        PLAIN=_plain(call, config.block_n), PAGE_LEN=0 if call.page_table is None else call.page_len,
        NARROW=_narrow(call), RING=call.ring,
        HAS_WINDOW=call.window is not None, HAS_SINK=call.sink is not None, HAS_NEW=call.k_new is not None,
        NEW=NEW_KEYS if block_m <= FEW_ROWS else config.block_n,
        HAS_K_SCALE=call.k_scale is not None and not token_scales, HAS_V_SCALE=call.v_scale is not None and not token_scales,
        TOKEN_SCALES=token_scales,
        PRECISION="tf32x3" if q.dtype == torch.float32 else "tf32", PRODUCTS=_products(q, k),
        FIXED=config.fixed, EARLY=early, HAS_STARTS=call.starts is not None, HAS_SOFTCAP=call.softcap is not None,
        HAS_PREFIX=call.prefix is not None, CAUSAL=call.s_active > 1 and call.tree is None, HAS_TREE=call.tree is not None,
        HAS_ALIBI=call.alibi is not None, TURNED=0 if call.rotary is None else call.rotary.shape[2],
        EXTRA=extra, BLOCK_E=max(16, next_power_of_2(extra)), SHARED=call.shared,
    )  # fmt: skip
    before, n_priors = _before(call, config, case)
    numbers = (
        call.scale, call.window or 0, call.capacity, call.batch, config.splits, config.sharers, config.keys,
        _table_stride(call), call.softcap or 0.0, _shared_keys(call), n_priors, _turns(call), case,
    )  # fmt: skip
    few = call.prefix is not None and has_few_keys(call, config, block_m)
    options = {"num_warps": config.warps, "num_stages": config.stages, "maxnreg": FEW_REGISTERS if few else REGISTERS}
    options |= {"launch_pdl": True} if early else {}
    kernel = Launch(decode_kernel, (owners, config.splits), q.device, **options)
    scratch = (partials * block_m * call.value_dim, partials * block_m * 2, *((0, 0) if before is None else before.priors))
    return LaunchPlan(kernel, strides, numbers, owners, scratch, q.is_contiguous() and not extra, before)


def has_few_keys(call: DecodeCall, config: LaunchConfig, block_m: int) -> bool:
    """Whether rows have so few keys of their own beside a prefix that four programs share a multiprocessor."""
    if block_m > FEW_ROWS or call.value_dim > 128 or call.q.dtype == torch.float32 or config.warps != 4:
        return False
    return call.capacity - _shared_keys(call) <= FEW_KEYS


def _before(call: DecodeCall, config: LaunchConfig, case: tiles.TileCase) -> tuple[Before | None, int]:
    """The launch that reads the prefix, and its number of pieces; it has none of the options of the rest of a row."""
    if call.prefix is None:
        return None, 0
    rows, device = call.batch * case.ROWS, device_of(call.q)
    wide = call.value_dim > 128
    most = FEW_ROWS if call.q.dtype == torch.float32 else PREFIX_ROWS // 2 if wide else PREFIX_ROWS
    block_m, block_d = max(16, min(next_power_of_2(rows), most)), case.BLOCK_D
    large = block_m > FEW_ROWS
    blocks = call.n_kv_heads * cdiv(rows, block_m)
    n_pieces = max(1, min(device.multiprocessors // blocks, cdiv(call.prefix.length, LEAST_KEYS)))
    keys = cdiv(cdiv(call.prefix.length, n_pieces), config.block_n) * config.block_n
    n_pieces = cdiv(call.prefix.length, keys)
    block_n = min(config.block_n, PREFIX_KEYS) if large else config.block_n
    case = case._replace(BLOCK_M=block_m, BLOCK_N=block_n, HAS_PREFIX=False, HAS_NEW=False, CAUSAL=False, HAS_TREE=False)
    numbers = (call.scale, call.batch, keys, _table_stride(call), call.softcap or 0.0, call.prefix.length, _turns(call), case)
    warps = 8 if block_m * block_d > 64 * 128 else 4
    options = {"num_warps": warps, "maxnreg": PREFIX_REGISTERS if warps == 8 else REGISTERS}
    options |= {"num_stages": 2 if wide or call.q.dtype == torch.float32 else PREFIX_STAGES if large else config.stages}
    options |= {"launch_pdl": True} if case.EARLY else {}
    sizes = n_pieces * call.batch * call.n_kv_heads * case.ROWS
    kernel = Launch(prefix_kernel, (blocks, n_pieces), call.q.device, **options)
    return Before(kernel, numbers, (sizes * call.value_dim, sizes * 2)), n_pieces


def _turns(call: DecodeCall) -> int:
    return 0 if call.rotary is None else call.rotary.shape[1]


def _table_stride(call: DecodeCall) -> int:
    return 0 if call.page_table is None else call.page_table.stride(0)


def _new(call: DecodeCall) -> tuple[Tensor, Tensor]:
    """New keys and values, or tensors that the kernel will not touch."""
    return (call.k_cache, call.v_cache) if call.k_new is None or call.v_new is None else (call.k_new, call.v_new)


def _or(tensor: Tensor | None, filler: Tensor) -> Tensor:
    """The tensor, or one that the kernel will not touch."""
    return filler if tensor is None else tensor


def _products(q: Tensor, cache: Tensor) -> Any:
    """The type of the products: that of q; for 8-bit caches and 16-bit queries float16, which represents 8-bit numbers exactly
    and is converted from them by one instruction. Triton's interpreter cannot multiply bfloat16.
    """
    if cache.dtype in EIGHT_BITS and q.dtype == torch.bfloat16:
        return triton.language.float16
    names = {torch.bfloat16: "bfloat16" if q.is_cuda else "float32", torch.float16: "float16", torch.float32: "float32"}
    return getattr(triton.language, names[q.dtype])


def _strides(cache: Tensor, call: DecodeCall) -> tuple[int, ...]:
    """(row or page, head, slot, d) of a cache; of scales all but d."""
    one, two, three, *rest = cache.stride()
    return (one, two, three, *rest) if call.page_table is None else (one, three, two, *rest)


def _plain(call: DecodeCall, block_n: int) -> bool:
    """Whether position p is slot p, and offsets within a tile fit in 32 bits."""
    far = max(block_n * cache.stride(2) + call.head_dim * cache.stride(3) for cache in (call.k_cache, call.v_cache))
    return call.page_table is None and not call.ring and far < FAR


def _narrow(call: DecodeCall) -> bool:
    """Whether offsets within a cache of pages fit in 32 bits."""
    caches = (call.k_cache, call.v_cache)
    far = max(sum(n * step for n, step in zip(cache.shape, cache.stride(), strict=True)) for cache in caches)
    return call.page_table is not None and far < FAR


def _shared_keys(call: DecodeCall) -> int:
    return 0 if call.prefix is None else call.prefix.length


def _most_rows(call: DecodeCall) -> int:
    """The most query rows in one tile; more rows are divided over several programs, which then read the same keys.

    Larger tiles are multiplied by a whole warp group. In float32 Triton 3.6 compiles some of these wrongly: on an H200 a tile of
    64 rows that has its values in its keys gave wrong sums, and read outside its memory.
    """
    if call.value_dim > 256 and call.q.dtype != torch.float32:
        return 16 if call.group * call.s_active <= 16 else 64
    if call.head_dim > 128 or call.q.dtype == torch.float32:
        return FEW_ROWS
    return 128 if call.group * call.s_active >= 128 else 64


# ---- counters and scratch --------------------------------------------------------------------------------------------
# A launch needs a zero per owner and leaves zeros behind, so nothing has to be cleared. Launches of one stream follow each other
# and share theirs, and their scratch. A captured graph may run beside anything: each launch in it has its own.


class _Arena:
    def __init__(self, device: torch.device) -> None:
        self.zeros = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
        self.used = 0
        self.of_stream: dict[int, tuple[Tensor, Tensor]] = {}

    def take(self, n: int) -> Tensor:
        """n zeros that nothing else uses."""
        if self.used + n > COUNTERS:
            return torch.zeros(n, dtype=torch.int32, device=self.zeros.device)  # in a graph: cleared in every replay
        self.used += n
        return self.zeros[self.used - n : self.used]


_arenas: dict[torch.device, _Arena] = {}


def workspace(owners: int, numbers: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """int32 [at least `owners`], zero whenever no launch of this stream is running, and float32 [at least `numbers`]."""
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    arena = _arenas.get(device)
    if arena is None:
        if capturing or device.type != "cuda":
            return torch.zeros(owners, dtype=torch.int32, device=device), torch.empty(numbers, device=device, dtype=torch.float32)
        arena = _arenas[device] = _Arena(device)
        torch.cuda.current_stream(device).synchronize()  # other streams will use them too
    if capturing:
        return arena.take(owners), torch.empty(numbers, device=device, dtype=torch.float32)
    stream = torch._C._cuda_getCurrentRawStream(device.index)
    kept = arena.of_stream.get(stream)
    if kept is None or kept[0].numel() < owners or kept[1].numel() < numbers:
        zeros, scratch = (None, None) if kept is None else kept
        if zeros is None or zeros.numel() < owners:
            zeros = arena.take(next_power_of_2(max(owners, 1024)))
        if scratch is None or scratch.numel() < numbers:
            scratch = torch.empty(max(numbers, 1), device=device, dtype=torch.float32)
        kept = arena.of_stream[stream] = (zeros, scratch)
    return kept


# ---- numbers ---------------------------------------------------------------------------------------------------------


class LaunchDevice(NamedTuple):
    """The properties of a device that decide how the kernel is launched."""

    multiprocessors: int
    shared_bytes: int  # of shared memory that a program can have
    launches_early: bool  # a kernel may be launched before the one ahead of it has ended, and wait for it on the device


def device_of(tensor: Tensor) -> LaunchDevice:
    """The device of a tensor; under the interpreter, a small one."""
    if tensor.is_cuda:
        return _device(tensor.device)
    return LaunchDevice(multiprocessors=4, shared_bytes=100 << 10, launches_early=False)


@cache
def _device(device: torch.device) -> LaunchDevice:
    found = triton.runtime.driver.active.utils.get_device_properties(device.index)
    capability = torch.cuda.get_device_capability(device)
    return LaunchDevice(found["multiprocessor_count"], found["max_shared_mem"], launches_early=capability >= (9, 0))
