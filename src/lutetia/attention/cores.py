"""The core model: decode attention over N cores, step by step, in plain torch.

    attention_tkg
      compute_tile_params, store_new_keys, allocate_fa_buffers
      for each tile: compute_fa_tile_context, open_scope, allocate_qk_buffers, load_mask, compute_qk_matmul, cascaded_max_reduce,
                     compute_exp_qk, cascaded_sum_reduction, compute_pv_matmul_and_store, close_scope
      fa_finalize_and_store

Every core is a coroutine that runs `attention_tkg`; they meet in `messages.rendezvous`. This executor is for study: it counts
messages and bytes, and plans scratch memory. It is not fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia import flow
from lutetia._shared.numbers import cdiv
from lutetia.attention.arguments import SYNCS, DecodeCall, check_call, check_int, check_values
from lutetia.attention.choose import tile_of
from lutetia.attention.finalize import fa_finalize_and_store
from lutetia.attention.messages import Core, Message, Program, on_ring, rendezvous
from lutetia.attention.rotary import turned
from lutetia.attention.scratch import ScratchManager
from lutetia.attention.steps import (
    TileParams,
    allocate_fa_buffers,
    allocate_qk_buffers,
    cascaded_max_reduce,
    cascaded_sum_reduction,
    compute_exp_qk,
    compute_fa_tile_context,
    compute_pv_matmul_and_store,
    compute_qk_matmul,
    compute_tile_params,
    load_mask,
    store_new_keys,
)
from lutetia.errors import check_choice, fail


class CoresPlan(NamedTuple):
    """How the cores share a call."""

    shard: str  # "batch" or "sequence"
    sync: str  # "lockstep", "deferred" or "lse"
    tile: int  # keys
    out_in_sb: bool = False  # every core is to hold the whole output
    buffers: int = 1  # tiles whose scratch exists at once


@dataclass(frozen=True)
class CoresRun:
    """What N cores did."""

    out: Tensor  # [B, H_q, s_active, d], as stored
    lse: Tensor  # [B, H_q, s_active]
    held: list[Tensor | None]  # with out_in_sb, the whole output as each core holds it; otherwise None
    messages: list[Message]
    scratch_peaks: list[int]  # bytes, of each core
    num_fa_tiles: list[int]  # of each core

    def exchanges(self, core: int) -> int:
        """How many exchanges a core took part in; in each it sends N - 1 messages."""
        return len({message.tag for message in self.messages if message.sender == core})

    def bytes_sent(self, core: int) -> int:
        """Bytes of all messages that a core sent."""
        return sum(message.bytes for message in self.messages if message.sender == core)


def simulate(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    seq_lens: Tensor,
    cores: int = 2,
    shard: str = "sequence",
    sync: str = "lse",
    tile: int | None = None,
    out_in_sb: bool = False,
    scratch_bytes: int | None = None,
    buffers: int = 1,
    **rest: Any,
) -> CoresRun:
    """`decode_attention` on the core model, and what the cores did; tensors, and `rest`, are those of `decode_attention`.

    `tile` is the number of keys in a flash tile: by default all that a core holds, at most 8192. With `out_in_sb` every core
    ends with the whole output. `scratch_bytes` is the scratch memory of each core, unlimited where None; `buffers` is how many
    tiles may be in it at once.
    """
    call = check_call(q, k_cache, v_cache, seq_lens, **rest)
    check_values(call)
    check_int("cores", cores, 1)
    check_choice("shard", shard, ("batch", "sequence"))
    check_choice("sync", sync, SYNCS)
    if tile is None:
        tile = tile_of(cdiv(call.capacity, cores) if shard == "sequence" else call.capacity)
    check_int("tile", tile, 1)
    check_int("buffers", buffers, 1)
    if not isinstance(out_in_sb, bool):
        fail("out_in_sb", out_in_sb, "True or False")
    return run_cores(call, cores, CoresPlan(shard, sync, tile, out_in_sb, buffers), scratch_bytes)


def decode_on_cores(call: DecodeCall, *, cores: int, shard: str, sync: str, tile: int) -> tuple[Tensor, Tensor]:
    """`decode_attention(backend="cores")`: out [B, H_q, s_active, d] and lse [B, H_q, s_active]."""
    run = run_cores(call, cores, CoresPlan(shard, sync, tile))
    return run.out, run.lse


@torch.no_grad()
def run_cores(call: DecodeCall, cores: int, plan: CoresPlan, scratch_bytes: int | None = None) -> CoresRun:
    """Start a coroutine for each core, and let them meet."""
    call = turned(call)
    out = call.q.new_empty(call.out_shape)
    lse = call.q.new_empty(call.q.shape[:-1], dtype=call.statistics_dtype)
    device = call.q.device
    team = [Core(c, cores, ScratchManager(scratch_bytes, f"core {c}", device)) for c in range(cores)]
    names = ("q", "k_cache", "v_cache", "seq_lens", "k_new", "v_new", "sink", "page_table", "starts", "alibi", "rotary", "tree")
    inputs = {name: getattr(call, name) for name in names}
    notes = {"backend": "cores", "cores": cores, "shard": plan.shard, "sync": plan.sync, "fa_tile": plan.tile}
    with flow.step("attention_tkg", part="attention", inputs=inputs, **notes) as step:
        shares = [share(call, core, plan) for core in team]
        programs = [
            on_ring(
                core, attention_tkg(core, own, params, plan, batch_parts(call, cores, plan), *stored(core, plan, call, out, lse))
            )
            for core, (own, params) in zip(team, shares, strict=True)
        ]
        held, messages = rendezvous(programs)
        step.outputs(out=out, lse=lse)
        step.note(messages=len(messages), message_bytes=sum(message.bytes for message in messages))
    tiles = [params.num_fa_tiles for _, params in shares]
    return CoresRun(out, lse, held if plan.out_in_sb else [None] * cores, messages, [core.scratch.peak for core in team], tiles)


def attention_tkg(
    core: Core,
    call: DecodeCall,
    params: TileParams,
    plan: CoresPlan,
    batch_parts: list[int] | None,
    out: Tensor | None,
    lse: Tensor | None,
) -> Program[Tensor | None]:
    """One core: its rows of the call, from the first tile to the result, which is stored in out and lse if they are given.

    A program for `messages.rendezvous` or for a process: it yields exchanges. Returns the output that the core holds at its end.
    """
    talks = plan.shard == "sequence" and core.cores > 1
    lockstep = talks and plan.sync == "lockstep"
    sbm = core.scratch
    store_new_keys(core, call, params)
    fa = allocate_fa_buffers(core, call)
    for fa_tile_idx in range(params.num_fa_tiles):
        core.tile = fa_tile_idx
        context = compute_fa_tile_context(core, params, fa_tile_idx)
        sbm.open_scope("fa_tile", plan.buffers)
        tile = allocate_qk_buffers(core, call, context)
        load_mask(core, call, context, tile)
        compute_qk_matmul(core, call, params, context, fa, tile)
        yield from cascaded_max_reduce(core, fa, tile, lockstep)
        compute_exp_qk(core, fa, tile)
        yield from cascaded_sum_reduction(core, fa, tile, lockstep)
        compute_pv_matmul_and_store(core, call, params, context, fa, tile)
        sbm.close_scope()
    core.tile = None
    return (yield from fa_finalize_and_store(core, call, fa, plan.sync if talks else None, batch_parts, out, lse))


# ---- who owns what ---------------------------------------------------------------------------------------------------


def rows_of(core: int, cores: int, batch: int) -> slice:
    """The rows of a batch that a core owns when they share it by batch."""
    return slice(core * batch // cores, (core + 1) * batch // cores)


def share(call: DecodeCall, core: Core, plan: CoresPlan) -> tuple[DecodeCall, TileParams]:
    """What a core works on."""
    if plan.shard == "batch":
        call = take_rows(call, rows_of(core.index, core.cores, call.batch))
    return call, compute_tile_params(call, core, plan.shard, plan.sync, plan.tile)


def take_rows(call: DecodeCall, rows: slice) -> DecodeCall:
    """Some rows of the batch, as views."""

    def part(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[rows]

    paged = call.page_table is not None

    def of_tokens(factor: Tensor | None) -> Tensor | None:
        return factor if factor is None or paged or factor.dim() == 1 else factor[rows]

    return call._replace(
        q=call.q[rows],
        k_cache=call.k_cache if paged else call.k_cache[rows],
        v_cache=call.v_cache if paged else call.v_cache[rows],
        seq_lens=call.seq_lens[rows],
        k_new=part(call.k_new),
        v_new=part(call.v_new),
        page_table=part(call.page_table),
        starts=part(call.starts),
        tree=part(call.tree),
        k_scale=of_tokens(call.k_scale),
        v_scale=of_tokens(call.v_scale),
    )


def batch_parts(call: DecodeCall, cores: int, plan: CoresPlan) -> list[int] | None:
    """Rows of each core, where they exchange their outputs at the end."""
    if plan.shard != "batch" or not plan.out_in_sb or cores == 1:
        return None
    rows = [rows_of(core, cores, call.batch) for core in range(cores)]
    return [each.stop - each.start for each in rows]


def stored(core: Core, plan: CoresPlan, call: DecodeCall, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Where a core stores its result: each core its own rows, or core 0 everything."""
    if plan.shard == "batch":
        rows = rows_of(core.index, core.cores, call.batch)
        return out[rows], lse[rows]
    return (out, lse) if core.index == 0 else (None, None)
