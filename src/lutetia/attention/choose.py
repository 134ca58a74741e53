"""How a call is divided: over cores by batch or by sequence, over the programs of a GPU by splits.

    cost = bytes of the busiest core / bandwidth + messages · latency + bytes sent / link + combining

`policy="neuron"` is the rule of the kernel that this design started from: two cores, and lengths that are not known in advance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from lutetia._shared.numbers import cdiv
from lutetia.attention.arguments import LARGEST, MAX_CORES, POLICIES, SYNCS, DecodeCall, check_int, first_seen
from lutetia.errors import ArgumentError, check_choice, fail

FLASH_TILE = 8192  # keys of a tile, when a core holds more
SMALL_ROWS, SMALL_KEYS = 128, 256  # of the neuron rule


class Machine(NamedTuple):
    """What a core can do; the defaults are those of one of two cores that share a chip."""

    bandwidth: float = 400e9  # bytes a second that a core reads of its cache
    link: float = 100e9  # bytes a second between two cores
    latency: float = 2e-6  # seconds per exchange, of any size
    combine: float = 100e9  # bytes a second of partial results that a core adds up


MACHINE = Machine()


class Candidate(NamedTuple):
    """One row of the table: a way to divide the work, and its cost."""

    shard: str
    cores: int  # that have work
    keys: int  # of the busiest core, over its rows
    tiles: int  # of the busiest core
    messages: int  # exchanges of each core
    message_bytes: int  # that each core sends
    read: float  # seconds, as are all below
    talk: float
    combine: float

    @property
    def seconds(self) -> float:
        """The total."""
        return self.read + self.talk + self.combine


@dataclass(frozen=True)
class Choice:
    """What was chosen, and the table it was chosen from."""

    shard: str  # "none", "batch" or "sequence"
    cores: int
    tile: int  # keys of a tile
    policy: str
    why: str
    candidates: tuple[Candidate, ...]


_last: Choice | None = None


def choose_shard(
    lengths: Sequence[int],
    *,
    cores: int,
    n_q_heads: int,
    n_kv_heads: int,
    head_dim: int,
    s_active: int = 1,
    element_bytes: int = 2,
    capacity: int | None = None,
    shard: str = "auto",
    sync: str = "lse",
    policy: str = "cost",
    out_in_sb: bool = False,
    machine: Machine = MACHINE,
) -> Choice:
    """How `cores` cores share rows of these live lengths [B].

    `capacity` is S_max, which the neuron rule needs; by default the longest row. With `shard` "batch" or "sequence" only the tile
    is chosen. With `out_in_sb` every core must hold the whole result.
    """
    global _last
    check_int("cores", cores, 1, MAX_CORES)
    sizes = {"n_q_heads": n_q_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim, "s_active": s_active}
    for name, size in {**sizes, "element_bytes": element_bytes}.items():
        check_int(name, size, 1, LARGEST)
    if not isinstance(out_in_sb, bool):
        fail("out_in_sb", out_in_sb, "True or False")
    if capacity is not None:
        check_int("capacity", capacity, 0)
    check_choice("policy", policy, POLICIES)
    check_choice("sync", sync, SYNCS)
    check_choice("shard", shard, ("auto", "batch", "sequence"))
    if not isinstance(lengths, Sequence) or isinstance(lengths, str | bytes):
        fail("lengths", lengths, "a list of lengths")
    for length in lengths:
        check_int("each of lengths", length, 0)
    if capacity is None:
        capacity = max(lengths, default=0)
    rows = n_q_heads * s_active
    workload = Workload(tuple(lengths), cores, rows, n_kv_heads, head_dim, element_bytes, sync, out_in_sb, capacity, machine)
    candidates = (alone(workload), by_batch(workload), by_sequence(workload))
    if shard != "auto":
        chosen, why = shard, f"shard is {shard!r}"
    elif policy == "neuron":
        chosen, why = neuron_rule(len(lengths), rows, capacity)
    else:
        best = min(candidates, key=lambda each: each.seconds)  # the first of equals: less talk
        chosen, why = best.shard, "the least seconds"
    if cores == 1:
        chosen, why = "none", "there is one core"
    held = cdiv(capacity, cores) if chosen == "sequence" else capacity
    _last = Choice(chosen, 1 if chosen == "none" else cores, tile_of(held), policy, why, candidates)
    return _last


def choose_for(call: DecodeCall, cores: int, shard: str, sync: str, policy: str) -> Choice:
    """`choose_shard` for a call, whose lengths are read."""
    lengths = call.seq_lens.tolist()
    return choose_shard(
        [length - first_seen(call, length) for length in lengths],
        cores=cores,
        n_q_heads=call.n_q_heads,
        n_kv_heads=call.n_kv_heads,
        head_dim=call.head_dim,
        s_active=call.s_active,
        element_bytes=call.k_cache.element_size(),
        capacity=call.capacity,
        shard=shard,
        sync=sync,
        policy=policy,
    )


def neuron_rule(batch: int, rows: int, capacity: int) -> tuple[str, str]:
    """The original's choice for two cores, and why: rows is H · s_active, capacity S."""
    if batch % 2 == 0 and (batch * rows > SMALL_ROWS or capacity < SMALL_KEYS):
        why = f"{batch * rows} rows > {SMALL_ROWS}" if batch * rows > SMALL_ROWS else f"{capacity} keys < {SMALL_KEYS}"
        return "batch", f"B {batch} is even and {why}"
    if capacity >= SMALL_KEYS:
        return "sequence", f"{capacity} keys >= {SMALL_KEYS}"
    return "none", f"B {batch} is odd and {capacity} keys < {SMALL_KEYS}"


def tile_of(held: int) -> int:
    """Keys per tile for a core that holds `held` keys: all of them, or flash tiles."""
    return FLASH_TILE if held > FLASH_TILE else max(held, 1)


# ---- what each way costs ---------------------------------------------------------------------------------------------


class Workload(NamedTuple):
    """What the candidates are worked out from."""

    lengths: tuple[int, ...]
    cores: int
    rows: int  # query heads × new tokens, of one row of the batch
    n_kv_heads: int
    head_dim: int
    element_bytes: int
    sync: str
    out_in_sb: bool
    capacity: int
    machine: Machine

    def read(self, keys: int) -> float:
        """Seconds to read `keys` keys and their values, for all heads."""
        return 2 * keys * self.n_kv_heads * self.head_dim * self.element_bytes / self.machine.bandwidth


def alone(workload: Workload) -> Candidate:
    """One core does everything."""
    keys = sum(workload.lengths)
    tiles = cdiv(max(workload.lengths, default=0), tile_of(workload.capacity))
    return Candidate("none", 1, keys, tiles, 0, 0, workload.read(keys), 0.0, 0.0)


def by_batch(workload: Workload) -> Candidate:
    """Core c owns rows [c·B/N, (c+1)·B/N) of the batch."""
    batch, cores = len(workload.lengths), workload.cores
    shares = [workload.lengths[c * batch // cores : (c + 1) * batch // cores] for c in range(cores)]
    keys = max(map(sum, shares))
    tiles = max((cdiv(max(share, default=0), tile_of(workload.capacity)) for share in shares), default=0)
    messages = int(workload.out_in_sb and cores > 1)
    sent = messages * max(map(len, shares)) * workload.rows * workload.head_dim * 4
    talk = messages * workload.machine.latency + sent * (cores - 1) / workload.machine.link
    return Candidate("batch", sum(map(bool, shares)), keys, tiles, messages, sent, workload.read(keys), talk, 0.0)


def by_sequence(workload: Workload) -> Candidate:
    """Each core owns its part of the keys of every row; `sync` says how often the cores communicate."""
    cores = workload.cores
    parts = [cdiv(length, cores) for length in workload.lengths]  # of the core that has most
    keys, tile = sum(parts), tile_of(cdiv(workload.capacity, cores))
    tiles = max((cdiv(part, tile) for part in parts), default=0)
    messages = exchanges(workload.sync, tiles) if cores > 1 else 0
    numbers = len(workload.lengths) * workload.rows * 4  # bytes of one number per row of queries
    once = numbers * (workload.head_dim + 2)  # the output, and m and l along with it or each on its own
    sent = (once if workload.sync != "lockstep" else numbers * (workload.head_dim + 2 * tiles)) if cores > 1 else 0
    talk = messages * workload.machine.latency + sent * (cores - 1) / workload.machine.link
    combine = cores * once / workload.machine.combine if cores > 1 else 0.0
    busy = min(cores, max(workload.lengths, default=0))
    return Candidate("sequence", busy, keys, tiles, messages, sent, workload.read(keys), talk, combine)


def exchanges(sync: str, tiles: int) -> int:
    """How often each core communicates when the sequence is divided; `tiles`: of the core with the most tiles."""
    check_choice("sync", sync, SYNCS)
    return {"lockstep": 2 * tiles + 1, "deferred": 3, "lse": 1}[sync]


# ---- explained -------------------------------------------------------------------------------------------------------

HEADINGS = ("", "shard", "cores", "keys", "tiles", "messages", "bytes sent", "read µs", "talk µs", "combine µs", "total µs")


def explain_choice(choice: Choice | None = None) -> str:
    """Print, and return, the table that a choice was made from: by default the last one made in this process."""
    choice = _last if choice is None else choice
    if choice is None:
        raise ArgumentError("no choice was made yet: call decode_attention with cores > 1, or choose_shard")
    lines: list[tuple[str, ...]] = [HEADINGS]
    for each in choice.candidates:
        mark = "→" if each.shard == choice.shard else ""
        numbers = (each.cores, each.keys, each.tiles, each.messages, each.message_bytes)
        times = (each.read, each.talk, each.combine, each.seconds)
        lines.append((mark, each.shard, *map(str, numbers), *(f"{1e6 * seconds:.2f}" for seconds in times)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = [
        "  ".join(
            cell.ljust(width) if k < 2 else cell.rjust(width) for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    head = f"{choice.shard} over {choice.cores} core{'s' * (choice.cores > 1)}, tiles of {choice.tile} keys"
    text = "\n".join([f"{head} (policy {choice.policy}: {choice.why})", *table])
    print(text)
    return text


# ---- splits on a GPU -------------------------------------------------------------------------------------------------

LEAST_KEYS = 128  # of a split: fewer are not worth adding up
LATER_WAVE = 0.05  # what each wave of programs after the first costs, of all time: on an H200 splits that need none are ahead


@lru_cache(maxsize=4096)
def choose_splits(owners: int, keys: int, at_once: int) -> int:
    """How many splits to cut each owner's keys into, when a device runs `at_once` programs: all busy, in few waves."""

    def cost(splits: int) -> float:
        waves = cdiv(owners * splits, at_once)
        return waves / splits * (1 + LATER_WAVE * (waves - 1))

    most = max(1, min(keys // LEAST_KEYS, 2 * at_once // max(owners, 1) + 8))
    return min(range(1, most + 1), key=cost)  # the least of equals
