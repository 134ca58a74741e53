"""The steps of decode attention on one core, with the names and in the order of the kernel that this design started from.

    S = scale · Q Kᵀ, masked to -inf
    m' = max(m, rowmax S)      α = exp(m - m')
    P  = exp(S - m')           l = α·l + ΣP            O = α·O + P V
    end: out = O / l

A core works on rows of queries: R = G · s_active of them share a key head, so m and l are [B, H_kv, R] and O is [B, H_kv, R, d].
Steps that may communicate are generators: they yield an `Exchange` and are sent the parts of all cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from lutetia.attention.arguments import DecodeCall
from lutetia.attention.messages import Core, Exchange, Program
from lutetia.attention.reference import biases, fetch, put, seen_range, visible

INFINITY = float("inf")


class TileParams(NamedTuple):
    """What a core owns, and how many tiles it takes."""

    first: Tensor  # int64 [B]: the first position of each row that it reads
    stop: Tensor  # int64 [B]: the one after the last
    base: Tensor  # int64 [B]: the position that slot 0 of a row of its cache holds
    tile: int  # keys of a tile
    num_fa_tiles: int

    @property
    def use_fa(self) -> bool:
        """Whether it takes more than one tile, as flash attention."""
        return self.num_fa_tiles > 1


class FATileContext(NamedTuple):
    """One tile of each row."""

    fa_tile_idx: int
    tile_s_prior: int  # keys of the tile, those of the longest row; one dead key where no row has any
    position: Tensor  # int64 [B, tile_s_prior]
    live: Tensor  # bool [B, tile_s_prior]: whether the row has that key


@dataclass
class FABuffers:
    """Buffers that last for all tiles."""

    q: Tensor  # [B, H_kv, R, d], scaled
    running_max: Tensor  # m [B, H_kv, R]
    running_sum: Tensor  # l [B, H_kv, R]
    running_output: Tensor  # O [B, H_kv, R, d]
    rescale: Tensor  # α [B, H_kv, R], of the present tile


class QKBuffers(NamedTuple):
    """Buffers that last for one tile."""

    k: Tensor  # [B, H_kv, tile_s_prior, d]
    v: Tensor  # [B, H_kv, tile_s_prior, d]
    mask: Tensor  # bool [B, s_active, tile_s_prior]: what each query sees
    qk: Tensor  # S, and then P [B, H_kv, R, tile_s_prior]


# ---- before the loop -------------------------------------------------------------------------------------------------


def compute_tile_params(call: DecodeCall, core: Core, shard: str, sync: str, tile: int) -> TileParams:
    """The part of this core: with `shard` "sequence" a range of the keys of every row, otherwise all of them. In lockstep every
    core does as many tiles as the core with the most: the others add empty tiles.
    """
    with core.step("compute_tile_params", {"seq_lens": call.seq_lens}) as step:
        low, high = seen_range(call)
        held = most = high - low
        first, stop = low, high
        if shard == "sequence":
            first, stop = (low + (core.index + end) * held // core.cores for end in (0, 1))
            most = -(-held // core.cores) if sync == "lockstep" else stop - first
        params = TileParams(first, stop, torch.zeros_like(low), tile, count_tiles(most, tile))
        step.note(use_fa=params.use_fa, num_fa_tiles=params.num_fa_tiles)
    return params


def count_tiles(keys: Tensor, tile: int) -> int:
    """Tiles of the row that has the most keys; keys [B]."""
    return -(-int(keys.max()) // tile) if keys.numel() else 0


def store_new_keys(core: Core, call: DecodeCall, params: TileParams) -> None:
    """Write k_new and v_new [B, H_kv, s_active, d] into this core's slots for them."""
    if call.k_new is None or call.v_new is None:
        return
    with core.step("store_new_keys", {"k_new": call.k_new, "v_new": call.v_new}) as step:
        position = call.seq_lens[:, None] - call.s_active + torch.arange(call.s_active, device=call.q.device)
        mine = (position >= params.first[:, None]) & (position < params.stop[:, None])
        row, a = torch.nonzero(mine, as_tuple=True)
        put(call, row, a, position[row, a] - params.base[row])
        step.outputs(k_cache=call.k_cache, v_cache=call.v_cache)


def allocate_fa_buffers(core: Core, call: DecodeCall) -> FABuffers:
    """m = -inf, l = 0, O = 0, and the queries."""
    rows = (call.batch, call.n_kv_heads, call.group * call.s_active)
    with core.step("allocate_fa_buffers", {"q": call.q}) as step:
        scratch, dtype = core.scratch, call.statistics_dtype
        buffers = FABuffers(
            scratch.allocate("q", (*rows, call.head_dim), dtype),
            scratch.allocate("fa_running_max", rows, dtype).fill_(-INFINITY),
            scratch.allocate("fa_running_sum", rows, dtype).zero_(),
            scratch.allocate("fa_running_output", (*rows, call.value_dim), dtype).zero_(),
            scratch.allocate("fa_rescale", rows, dtype),
        )
        buffers.q.copy_(call.q.reshape(buffers.q.shape)).mul_(call.scale)
        step.outputs(
            q=buffers.q,
            fa_running_max=buffers.running_max,
            fa_running_sum=buffers.running_sum,
            fa_running_output=buffers.running_output,
        )
    return buffers


# ---- one tile --------------------------------------------------------------------------------------------------------


def compute_fa_tile_context(core: Core, params: TileParams, fa_tile_idx: int) -> FATileContext:
    """Where the tile begins in each row, and how long it is."""
    with core.step("compute_fa_tile_context") as step:
        offset = params.first + fa_tile_idx * params.tile
        keys = (params.stop - offset).clamp(min=0, max=params.tile)  # [B]
        width = max(1, int(keys.max())) if keys.numel() else 1
        position = offset[:, None] + torch.arange(width, device=offset.device)
        step.note(tile_s_prior=width)
    return FATileContext(fa_tile_idx, width, position, position < params.stop[:, None])


def allocate_qk_buffers(core: Core, call: DecodeCall, context: FATileContext) -> QKBuffers:
    """The tile of keys, of values, of the mask and of the scores."""
    batch, heads, keys = call.batch, call.n_kv_heads, context.tile_s_prior
    with core.step("allocate_qk_buffers", tile_s_prior=keys) as step:
        scratch, dtype = core.scratch, call.statistics_dtype
        buffers = QKBuffers(
            scratch.allocate("k_tile", (batch, heads, keys, call.head_dim), dtype),
            scratch.allocate("v_tile", (batch, heads, keys, call.value_dim), dtype),
            scratch.allocate("mask", (batch, call.s_active, keys), torch.bool),
            scratch.allocate("qk", (batch, heads, call.group * call.s_active, keys), dtype),
        )
        step.note(scratch_in_use=scratch.in_use)
    return buffers


def load_mask(core: Core, call: DecodeCall, context: FATileContext, tile: QKBuffers) -> None:
    """Which keys of the tile each query sees, where the row has them."""
    with core.step("load_mask", {"seq_lens": call.seq_lens}) as step:
        torch.logical_and(visible(call, context.position), context.live[:, None], out=tile.mask)
        step.outputs(mask=tile.mask)


def compute_qk_matmul(
    core: Core, call: DecodeCall, params: TileParams, context: FATileContext, fa: FABuffers, tile: QKBuffers
) -> None:
    """S = Q Kᵀ, masked to -inf."""
    with core.step("compute_qk_matmul", {"q": fa.q, "k_cache": call.k_cache, "mask": tile.mask}) as step:
        load_tile(call, "k", params, context, tile.k)
        torch.matmul(fa.q, tile.k.transpose(2, 3), out=tile.qk)
        if call.softcap is not None:
            tile.qk.div_(call.softcap).tanh_().mul_(call.softcap)
        scores = tile.qk.unflatten(2, (call.group, call.s_active))
        if call.alibi is not None:
            scores.add_(biases(call, context.position))
        scores.masked_fill_(~tile.mask[:, None, None], -INFINITY)
        step.outputs(qk=tile.qk)


def load_tile(call: DecodeCall, name: str, params: TileParams, context: FATileContext, into: Tensor) -> None:
    """The live keys ("k") or values ("v") of a tile into [B, H_kv, tile_s_prior, d]; elsewhere zero: dead slots may be NaN."""
    row, at = torch.nonzero(context.live, as_tuple=True)
    into.zero_().transpose(1, 2)[row, at] = fetch(call, name, row, context.position[row, at] - params.base[row])


def cascaded_max_reduce(core: Core, fa: FABuffers, tile: QKBuffers, lockstep: bool) -> Program[None]:
    """The row maxima of the tile, those of all cores in lockstep, into the running maximum."""
    with core.step("cascaded_max_reduce"):
        tile_max = transpose_max_psum(core, tile)
        if lockstep:
            parts = yield from exchange(core, tile_max, "qk_max_buf")
            tile_max = reduce(torch.maximum, parts)
        fa_update_running_max(core, fa, tile_max)


def transpose_max_psum(core: Core, tile: QKBuffers) -> Tensor:
    """The largest score of each row of this tile: [B, H_kv, R]."""
    with core.step("transpose_max_psum", {"qk": tile.qk}) as step:
        tile_max = core.scratch.allocate("qk_max_buf", tile.qk.shape[:3], tile.qk.dtype)
        torch.amax(tile.qk, 3, out=tile_max)
        step.outputs(qk_max_buf=tile_max)
    return tile_max


def fa_update_running_max(core: Core, fa: FABuffers, tile_max: Tensor) -> None:
    """m' = max(m, tile_max) and α = exp(m - m'); tile_max [B, H_kv, R]."""
    with core.step("fa_update_running_max", {"tile_max": tile_max, "fa_running_max": fa.running_max}) as step:
        new = torch.maximum(fa.running_max, tile_max)
        torch.exp(fa.running_max - finite(new), out=fa.rescale)
        fa.running_max.copy_(new)
        step.outputs(fa_running_max=fa.running_max, fa_rescale=fa.rescale)


def finite(running_max: Tensor) -> Tensor:
    """m where something was seen, 0 where nothing was: exp(-inf - m) is then 0 and never exp(-inf + inf)."""
    return running_max.masked_fill(running_max == -INFINITY, 0)


def compute_exp_qk(core: Core, fa: FABuffers, tile: QKBuffers) -> None:
    """P = exp(S - m), overwriting S."""
    with core.step("compute_exp_qk", {"qk": tile.qk, "fa_running_max": fa.running_max}) as step:
        tile.qk.sub_(finite(fa.running_max)[..., None]).exp_()
        step.outputs(exp_qk=tile.qk)


def cascaded_sum_reduction(core: Core, fa: FABuffers, tile: QKBuffers, lockstep: bool) -> Program[None]:
    """The row sums of the tile, over all cores in lockstep, into the running sum."""
    with core.step("cascaded_sum_reduction"):
        tile_sum = tile_sum_reduction(core, tile)
        if lockstep:
            parts = yield from exchange(core, tile_sum, "exp_sum")
            tile_sum = reduce(torch.add, parts)
        fa_update_running_sum(core, fa, tile_sum)


def tile_sum_reduction(core: Core, tile: QKBuffers) -> Tensor:
    """ΣP over the keys of this tile: [B, H_kv, R]."""
    with core.step("tile_sum_reduction", {"exp_qk": tile.qk}) as step:
        tile_sum = core.scratch.allocate("exp_sum", tile.qk.shape[:3], tile.qk.dtype)
        torch.sum(tile.qk, 3, out=tile_sum)
        step.outputs(exp_sum=tile_sum)
    return tile_sum


def fa_update_running_sum(core: Core, fa: FABuffers, tile_sum: Tensor) -> None:
    """l = α·l + ΣP; tile_sum [B, H_kv, R]."""
    inputs = {"tile_sum": tile_sum, "fa_rescale": fa.rescale, "fa_running_sum": fa.running_sum}
    with core.step("fa_update_running_sum", inputs) as step:
        fa.running_sum.mul_(fa.rescale).add_(tile_sum)
        step.outputs(fa_running_sum=fa.running_sum)


def compute_pv_matmul_and_store(
    core: Core, call: DecodeCall, params: TileParams, context: FATileContext, fa: FABuffers, tile: QKBuffers
) -> None:
    """P V of this tile, into the running output. No message: it stays local."""
    with core.step("compute_pv_matmul_and_store"):
        pv = core.scratch.allocate("pv", fa.running_output.shape, fa.running_output.dtype)
        with core.step("pv_matmul", {"exp_qk": tile.qk, "v_cache": call.v_cache}) as step:
            load_tile(call, "v", params, context, tile.v)
            torch.matmul(tile.qk, tile.v, out=pv)
            step.outputs(pv=pv)
        fa_accumulate_output(core, fa, pv)


def fa_accumulate_output(core: Core, fa: FABuffers, pv: Tensor) -> None:
    """O = α·O + P V; pv [B, H_kv, R, d]."""
    inputs = {"pv": pv, "fa_rescale": fa.rescale, "fa_running_output": fa.running_output}
    with core.step("fa_accumulate_output", inputs) as step:
        fa.running_output.mul_(fa.rescale[..., None]).add_(pv)
        step.outputs(fa_running_output=fa.running_output)


def exchange(core: Core, part: Tensor, name: str) -> Program[list[Tensor]]:
    """Give this core's part, get the parts of all in core order; all have one shape."""
    tag = name if core.tile is None else f"{name} of tile {core.tile}"
    return (yield Exchange(part, [tuple(part.shape)] * core.cores, tag))
