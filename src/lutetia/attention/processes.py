"""The cores as processes: ranks of torch.distributed, each with its own part of the cache.

Every rank runs the same coroutine as a core of the core model (`cores.attention_tkg`); an exchange is one `all_gather`, over gloo
on CPUs and NCCL on GPUs. So a cache may be larger than the memory of one machine. Where the ranks communicate only at the end,
the fast executors of `lutetia.attention.decode_attention` do the work before.

Which part a rank holds:

    shard="sequence"   a stretch of the positions of every row: `local_first[b]` .. `local_first[b] + local_held[b] - 1`
    shard="batch"      rows [r·B/N, (r+1)·B/N), all their positions
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

import lutetia
from lutetia import flow
from lutetia.attention.arguments import (
    INTEGERS,
    OPTIONS,
    SYNCS,
    DecodeCall,
    check_call,
    check_int,
    check_prefix,
    check_values,
    prefix_of,
)
from lutetia.attention.choose import tile_of
from lutetia.attention.cores import CoresPlan, attention_tkg, rows_of
from lutetia.attention.decode import decode_attention as decode_alone
from lutetia.attention.finalize import fa_finalize_and_store
from lutetia.attention.messages import Core, MessageError, Program, nbytes
from lutetia.attention.reference import seen_range
from lutetia.attention.rotary import turned
from lutetia.attention.scratch import ScratchManager
from lutetia.attention.steps import TileParams, allocate_fa_buffers, count_tiles, store_new_keys
from lutetia.errors import ArgumentError, RankError, check_choice, check_range, check_tensor, describe, fail

Result = TypeVar("Result")
TIMEOUT = 60.0  # seconds that a rank waits for the others in one exchange
TERMS = 480  # bytes of text that ranks compare, besides a checksum of the whole


@torch.no_grad()
def decode_attention(
    q: Tensor,
    local_k: Tensor,
    local_v: Tensor,
    *,
    seq_lens: Tensor,
    k_new: Tensor | None = None,
    v_new: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    sink: Tensor | None = None,
    page_table: Tensor | None = None,
    k_scale: Any = None,
    v_scale: Any = None,
    starts: Tensor | None = None,
    softcap: float | None = None,
    prefix: int | None = None,
    alibi: Tensor | None = None,
    rotary: Tensor | None = None,
    tree: Tensor | None = None,
    shard: str = "sequence",
    sync: str = "lse",
    local_first: Tensor | None = None,
    local_held: Tensor | None = None,
    out_in_sb: bool = False,
    tile: int | None = None,
    group: distributed.ProcessGroup | None = None,
    timeout: float = TIMEOUT,
) -> tuple[Tensor, Tensor]:
    """Decode attention over the ranks of a group, all of which call it: out [B, H_q, s_active, d] and lse [B, H_q, s_active].

    q [B, H_q, s_active, d], seq_lens [B], k_new, v_new [B, H_kv, s_active, d] and sink [H_q] are of the whole batch and the same
    on every rank, as are the options. The caches, and their page_table, are this rank's own part.

    `shard` "sequence": local_k, local_v [B, H_kv, S_local, d], or pages with a page_table [B, max_pages]. Slot 0 of row b holds
    position local_first[b], and local_held[b] slots are live, the new tokens included; both are integers [B]. By default rank r
    holds positions r·S_local to (r+1)·S_local - 1: the whole cache cut into N chunks. Together the ranks must hold every position
    exactly once. New keys are written by the rank that holds their positions. Every rank gets the whole result. With a `prefix`
    local_first is the same in all rows.

    `shard` "batch": local_k, local_v [B_r, H_kv, S_max, d], or pages with a page_table [B_r, max_pages], of the rows
    [r·B/N, (r+1)·B/N); a `prefix` is read from the first of them. Every rank gets out and lse of its own rows without a message,
    or with `out_in_sb` of all rows with one.

    `sync` is when the ranks communicate: "lse" once, "deferred" three times, "lockstep" twice for each tile, once at the end, and
    once before to agree on the number of tiles. Before the first message of a call the ranks compare shapes and options: where
    they differ, every rank raises MessageError. A rank that waits longer than `timeout` seconds for the others, or loses one of
    them, raises RankError; the group can then no longer be used.

    `tile` asks for the steps of the core model in tiles of this many keys. By default these steps run only where they are needed:
    in "deferred" and "lockstep", and where the queries of a row see different keys of this rank. Elsewhere Triton or compiled
    code runs.
    """
    given = dict(locals())
    call, params, core, plan = _prepare(given)
    meeting = Meeting(group, timeout, _terms(given))
    inputs = {"q": q, "local_k": local_k, "local_v": local_v, "seq_lens": seq_lens}
    notes = {"backend": "processes", "rank": core.index, "cores": core.cores, "shard": shard, "sync": sync}
    with flow.step("decode_attention", part="attention", inputs=inputs, **notes) as step:
        out = call.q.new_empty(call.out_shape)
        lse = call.q.new_empty(call.q.shape[:-1], dtype=call.statistics_dtype)
        if plan.sync == "lockstep" and shard == "sequence" and core.cores > 1:
            params = params._replace(num_fa_tiles=_most(core, params.num_fa_tiles, call.q.device, meeting))
        if tile is None and shard == "batch":
            out, lse = _decode(call, call.q, call.seq_lens)
        elif tile is None and sync == "lse" and _all_see_all(call, params):
            drive(decode_and_combine(core, call, params, out, lse), core, meeting)
        else:
            drive(attention_tkg(core, call, params, plan, None, out, lse), core, meeting)
        if shard == "batch" and out_in_sb and core.cores > 1:
            out, lse = _all_rows(core, q, out, lse, meeting)
        step.outputs(out=out, lse=lse)
    return out, lse


# ---- the fast way ----------------------------------------------------------------------------------------------------


def decode_and_combine(core: Core, call: DecodeCall, params: TileParams, out: Tensor, lse: Tensor) -> Program[Tensor | None]:
    """`attention_tkg` with sync "lse" where every query sees all live keys of this rank, which one call then reads: no tiles."""
    store_new_keys(core, call, params)
    fa = allocate_fa_buffers(core, call)
    held = torch.where(params.stop > params.first, params.stop - params.base, 0)
    with core.step("decode_attention", {"q": call.q}) as step:
        # New tokens are handled like heads: each is a query that sees everything, from the last position of this rank.
        q = call.q.to(call.statistics_dtype).reshape(call.batch, -1, 1, call.head_dim)
        begin = (params.first - params.base).clamp(min=0).int()
        starts = torch.minimum(begin, held.int()) if call.prefix is None else None  # a prefix begins at the beginning
        seen = call._replace(k_new=None, v_new=None, sink=None, window=None, starts=starts, tree=None)
        if call.alibi is not None:
            seen = seen._replace(alibi=call.alibi.repeat_interleave(call.s_active))
        part, part_lse = _decode(seen, q, held)
        part_lse = part_lse.reshape(call.q.shape[:-1])
        if call.alibi is not None:
            first = call.seq_lens - call.s_active - params.base - held + 1
            beyond = first[:, None] + torch.arange(call.s_active, device=q.device)  # [B, s_active]
            part_lse = part_lse - call.alibi.to(part_lse.dtype)[:, None] * beyond[:, None]
        fa.running_output.copy_(part.reshape(fa.running_output.shape))
        fa.running_max.copy_(part_lse.reshape(fa.running_max.shape))
        fa.running_sum.copy_(fa.running_max != -torch.inf)  # O is divided already: l is 1 where anything was seen
        step.outputs(fa_running_output=fa.running_output, fa_running_max=fa.running_max, fa_running_sum=fa.running_sum)
    return (yield from fa_finalize_and_store(core, call, fa, "lse" if core.cores > 1 else None, None, out, lse))


def _decode(call: DecodeCall, q: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
    """The call with these queries and lengths, on this rank alone."""
    rest = {name: getattr(call, name) for name in OPTIONS}
    rest["prefix"] = None if call.prefix is None else call.prefix.length
    return decode_alone(q, call.k_cache, call.v_cache, seq_lens=seq_lens, **rest)


def _all_see_all(call: DecodeCall, params: TileParams) -> bool:
    """Whether every query of a row sees every key that this rank has to read."""
    last = call.seq_lens.long() - call.s_active  # the position of the first query, which sees no further
    fits = params.stop <= last + 1
    if call.tree is not None:
        fits = params.stop <= last
    if call.window is not None:
        fits &= params.first >= call.seq_lens - call.window
    return bool((fits | (params.stop <= params.first)).all())


# ---- what a rank holds -----------------------------------------------------------------------------------------------


def _prepare(given: dict[str, Any]) -> tuple[DecodeCall, TileParams, Core, CoresPlan]:
    """The arguments of `decode_attention`, checked: this rank's call and its part."""
    shard, sync, tile, group = (given[name] for name in ("shard", "sync", "tile", "group"))
    check_choice("shard", shard, ("batch", "sequence"))
    check_choice("sync", sync, SYNCS)
    check_range("timeout", given["timeout"], 1e-3)
    if not isinstance(given["out_in_sb"], bool):
        fail("out_in_sb", given["out_in_sb"], "True or False")
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ArgumentError("torch.distributed has no process group; call init_process_group first, as under torchrun")
    scratch = ScratchManager(device=getattr(given["q"], "device", None))
    core = Core(distributed.get_rank(group), distributed.get_world_size(group), scratch)
    q, k, v, seq_lens = (given[name] for name in ("q", "local_k", "local_v", "seq_lens"))
    rest = {name: given[name] for name in OPTIONS}
    if shard == "batch":
        call = _own_rows(core, q, k, v, seq_lens, rest)
    else:
        call = check_call(q, k, v, seq_lens, **{**rest, "prefix": None if rest["prefix"] is None else 0})
    if tile is None:
        tile = tile_of(call.capacity)
    check_int("tile", tile, 1)
    params = _part(call, core, shard, tile, given["local_first"], given["local_held"])
    if shard == "sequence" and rest["prefix"] is not None:
        call = _own_prefix(call, params, core.cores, rest["prefix"])
    if shard == "sequence" and call.page_table is not None:
        _check_pages(call, call.page_table, params)
    return turned(call), params, core, CoresPlan(shard, sync, tile)


def _own_prefix(call: DecodeCall, params: TileParams, ranks: int, length: Any) -> DecodeCall:
    """The call with the part of the prefix that this rank holds, counted from its first position."""
    check_int("prefix", length, 0, ranks * call.capacity)
    base = set(params.base.tolist())
    if len(base) > 1:
        raise ArgumentError(f"prefix is given and local_first has {len(base)} values, expected the same in all rows")
    own = min(max(length - base.pop(), 0), call.capacity) if base else 0
    check_prefix(call, length)
    return call._replace(prefix=prefix_of(call, own))


def _own_rows(core: Core, q: Any, k: Any, v: Any, seq_lens: Any, rest: dict[str, Any]) -> DecodeCall:
    """The call of the rows of this rank; the caches and the page table are of these rows already."""
    check_tensor("q", q, ["B", "H_q", "s_active", "d"])
    batch = q.shape[0]
    check_tensor("seq_lens", seq_lens, [batch], INTEGERS)
    rows = rows_of(core.index, core.cores, batch)
    new = {}
    for name in ("k_new", "v_new"):
        if rest[name] is not None:
            check_tensor(name, rest[name], [batch, "H_kv", "s_active", "d"])
            new[name] = rest[name][rows]
    if rest["starts"] is not None:
        check_tensor("starts", rest["starts"], [batch], INTEGERS)
        new["starts"] = rest["starts"][rows]
    if isinstance(rest["tree"], Tensor) and (rest["tree"].dim() == 3 or rest["tree"].dtype == torch.int64):
        new["tree"] = rest["tree"][rows]
    return check_call(q[rows], k, v, seq_lens[rows], **{**rest, **new})


def _part(call: DecodeCall, core: Core, shard: str, tile: int, local_first: Any, local_held: Any) -> TileParams:
    """The positions of this rank, checked against its cache."""
    low, high = seen_range(call)
    if shard == "batch":
        if not (local_first is None and local_held is None):
            raise ArgumentError("local_first and local_held are given with shard 'batch', expected them with 'sequence' only")
        check_values(call)
        return TileParams(low, high, torch.zeros_like(low), tile, count_tiles(high - low, tile))
    for name, value in (("local_first", local_first), ("local_held", local_held)):
        if value is not None:
            check_tensor(name, value, [call.batch], INTEGERS, call.q.device)
    base = torch.full_like(low, core.index * call.capacity) if local_first is None else local_first.long()
    held = (high - base).clamp(min=0, max=call.capacity) if local_held is None else local_held.long()
    _check_part(call, base, held, core.cores * call.capacity if local_first is None else None)
    first = torch.maximum(low, base)
    stop = torch.maximum(first, torch.minimum(high, base + held))
    return TileParams(first, stop, base, tile, count_tiles(stop - first, tile))


def _check_part(call: DecodeCall, base: Tensor, held: Tensor, room: int | None) -> None:
    lengths = call.seq_lens.tolist()
    for row, (length, at, count) in enumerate(zip(lengths, base.tolist(), held.tolist(), strict=True)):
        if length < 0 or (room is not None and length > room):
            expected = "at least 0" if room is None else f"0 to {room}, what the ranks have room for"
            raise ArgumentError(f"seq_lens has {length} in row {row}, expected {expected}")
        if not 0 <= count <= call.capacity:
            raise ArgumentError(f"this rank holds {count} positions of row {row}, expected 0 to {call.capacity}, its capacity")
        if at < 0 or (count and at + count > length):
            raise ArgumentError(
                f"this rank holds positions {at} to {at + count - 1} of row {row}, expected them in 0 to {length - 1}"
            )


def _check_pages(call: DecodeCall, page_table: Tensor, params: TileParams) -> None:
    """Every page with a position that this rank reads must exist."""
    shared = 0 if call.prefix is None else call.prefix.length
    first, stop = (params.first - params.base).tolist(), (params.stop - params.base).tolist()
    for row, (start, end) in enumerate(zip(first, stop, strict=True)):
        start, end = (max(start, shared), end) if row else (start, max(end, shared))
        used = page_table[row, start // call.page_len : -(-end // call.page_len)]
        if bool(((used < 0) | (used >= call.k_cache.shape[0])).any()):
            raise ArgumentError(f"page_table has {used.tolist()} in row {row}, expected pages 0 to {call.k_cache.shape[0] - 1}")


# ---- messages --------------------------------------------------------------------------------------------------------


@dataclass
class Meeting:
    """The ranks that communicate in one call, and whether they have checked that it is the same call."""

    group: distributed.ProcessGroup | None
    timeout: float
    terms: str = ""  # what must be the same on every rank
    agreed: bool = False


def _terms(given: dict[str, Any]) -> str:
    """The arguments that must be equal on every rank, as text; the lengths as a checksum."""
    lengths, starts = (None if given[name] is None else given[name].tolist() for name in ("seq_lens", "starts"))
    known = {
        "q": describe(given["q"]).rpartition(" on ")[0],
        "H_kv": given["local_k"].shape[1 if given["page_table"] is None else 2],
        **{name: given[name] for name in ("shard", "sync", "out_in_sb", "window", "scale", "softcap", "prefix")},
        **{name: given[name] is not None for name in ("k_new", "sink", "alibi", "rotary", "tree")},
        **{name: _short(values) for name, values in (("seq_lens", lengths), ("starts", starts))},
    }
    return ", ".join(f"{name} {value}" for name, value in known.items())


def _short(positions: list[int] | None) -> Any:
    """Positions [B] themselves, or a checksum if there are many."""
    return positions if positions is None or len(positions) <= 8 else hashlib.sha256(str(positions).encode()).hexdigest()[:16]


def drive(program: Program[Result], core: Core, meeting: Meeting) -> Result:
    """Run the program of a core to its end in this process; every exchange is a message to the other ranks."""
    try:
        exchange = next(program)
        while True:
            exchange = program.send(all_gather(core, exchange.payload, exchange.shapes, exchange.tag, meeting))
    except StopIteration as done:
        return done.value
    finally:
        program.close()


def all_gather(core: Core, payload: Tensor, shapes: Sequence[tuple[int, ...]], tag: str, meeting: Meeting) -> list[Tensor]:
    """The payloads of all ranks, in rank order; shapes are those of each. One collective call, of the size of the largest.

    Before the first one of a call the ranks compare their arguments, in a message that always has the same size: tensors of
    different sizes would abort a rank, or give it a wrong result. With `lutetia.debug` they do so before every one.
    """
    with core.step("all_gather", {"sent": payload}, tag=tag, bytes=nbytes(payload)) as step:
        most = max(map(math.prod, shapes))
        sent = payload.new_zeros(most)
        sent[: payload.numel()] = payload.reshape(-1)
        try:
            if not meeting.agreed or lutetia.debug:
                _agree(core, f"{tag} {[list(shape) for shape in shapes]}, {meeting.terms}", payload.device, meeting)
                meeting.agreed = True
            received = _gather(sent, core.cores, meeting)
        except RuntimeError as error:
            reason = re.sub(r"^\[\S*\] ", "", str(error).strip()).split(". ")[0]
            raise RankError(
                f"rank {core.index} of {core.cores} (at {core.position}) did not get {tag!r} from every other rank, "
                f"expected them within {meeting.timeout:g} s: {reason}"
            ) from error
        parts = [flat[: math.prod(shape)].reshape(shape) for flat, shape in zip(received, shapes, strict=True)]
        step.outputs(received=parts)
    return parts


def _gather(sent: Tensor, ranks: int, meeting: Meeting) -> list[Tensor]:
    """sent [n], of the same n on every rank -> those of all ranks."""
    from torch.distributed.distributed_c10d import AllgatherOptions  # type: ignore[attr-defined]

    # The time-out is the operation's own: one that the wait alone has leaves gloo's thread behind, and the process cannot end.
    options = AllgatherOptions()
    options.timeout = timedelta(seconds=meeting.timeout)
    everyone = distributed.group.WORLD if meeting.group is None else meeting.group
    assert everyone is not None
    received = [torch.empty_like(sent) for _ in range(ranks)]
    everyone.allgather([received], [sent], options).wait(options.timeout)
    return received


def _agree(core: Core, said: str, device: torch.device, meeting: Meeting) -> None:
    """Compare a text with those of the other ranks; MessageError, on every rank, where one differs."""
    text = said.encode()
    message = (hashlib.sha256(text).digest() + text[:TERMS].ljust(TERMS, b"\0"))[: 32 + TERMS]
    mine = torch.frombuffer(bytearray(message), dtype=torch.uint8).to(device)
    heard = [bytes(part.tolist()) for part in _gather(mine, core.cores, meeting)]
    for rank, theirs in enumerate(heard):
        if theirs != message:
            texts = [each[32:].rstrip(b"\0").decode(errors="replace") for each in (message, theirs)]
            raise MessageError(f"rank {core.index} sends {texts[0]!r}, but rank {rank} sends {texts[1]!r}")


def _most(core: Core, tiles: int, device: torch.device, meeting: Meeting) -> int:
    """The most tiles of any rank."""
    mine = torch.tensor([tiles], device=device)
    return max(int(part) for part in all_gather(core, mine, [(1,)] * core.cores, "num_fa_tiles", meeting))


def _all_rows(core: Core, q: Tensor, out: Tensor, lse: Tensor, meeting: Meeting) -> tuple[Tensor, Tensor]:
    """out and lse of all rows from those of each rank: one message that holds both."""
    rows = [rows_of(rank, core.cores, q.shape[0]) for rank in range(core.cores)]
    shapes = [(each.stop - each.start, *q.shape[1:3], out.shape[3] + 1) for each in rows]
    packed = torch.cat([out.to(lse.dtype), lse[..., None]], -1)
    whole = torch.cat(all_gather(core, packed, shapes, "out", meeting))
    return whole[..., :-1].to(q.dtype), whole[..., -1].contiguous()
