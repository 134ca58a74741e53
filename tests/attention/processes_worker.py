"""What each rank runs in the tests of `lutetia.attention.processes`: `python processes_worker.py JOB`."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

sys.path.insert(0, str(Path(__file__).parents[1]))

import lutetia
from attention.decode_oracle import Case, expected, make, with_token_scales
from lutetia import flow
from lutetia.attention import processes
from lutetia.attention.messages import MessageError
from lutetia.errors import ArgumentError

SMALL: dict[str, Any] = {"batch": 3, "head_dim": 8, "capacity": 30, "lengths": (29, 7, 0)}
CASES: list[dict[str, Any]] = [
    {},
    {"batch": 1, "lengths": (1,)},
    {"s_active": 3, "new": True, "lengths": (29, 2, 30)},
    {"window": 6, "s_active": 2, "new": True},
    {"window": 1, "sink": 100.0},
    {"sink": 100.0, "n_kv_heads": 4},
    {"page_len": 5, "sink": 1.0, "new": True},
    {"spread": 50.0, "scale": 1.0},
    {"starts": (12, 7, 0), "softcap": 2.0, "new": True},
    {"starts": (25, 2, 0), "window": 6, "page_len": 5},
    {"dtype": torch.bfloat16},
    {"alibi": 0.3, "turned": 3, "new": True, "s_active": 2, "lengths": (29, 7, 0)},
    {"tree": 3, "s_active": 4, "new": True, "lengths": (29, 17, 0)},
    {"s_active": 11, "new": True, "lengths": (29, 17, 0)},
    {"value_dim": 5, "new": True},
    {"eight": torch.int8, "page_len": 5, "new": True, "sink": 1.0},
    {"prefix": 12, "lengths": (15, 29, 0), "new": True, "sink": 1.0, "s_active": 2, "level": True},
    {"prefix": 25, "lengths": (29, 25, 30), "page_len": 5, "softcap": 2.0},
    {"window": 6, "capacity": 9, "lengths": (29, 9, 3), "new": True, "shards": ("batch",)},
]
NOT_MADE = ("shards", "level", "eight")  # what a case says to this file alone
WAYS = [("batch", "lse"), *(("sequence", sync) for sync in ("lse", "deferred", "lockstep"))]


def local(case: Case, rank: int, n: int, shard: str, cuts: bool) -> dict[str, Any]:
    """The part of a rank: with `cuts`, stretches of uneven lengths, some empty; otherwise chunks."""
    table, lengths = case.arguments.get("page_table"), case.arguments["seq_lens"]
    batch = case.q.shape[0]
    if shard == "batch":
        rows = slice(rank * batch // n, (rank + 1) * batch // n)
        shared = case.arguments.get("prefix", 0)  # the first row of each rank has it
        if table is not None:
            own = table[rows].clone()
            own[:1, : -(-shared // case.k.shape[1])] = table[0, : -(-shared // case.k.shape[1])]
            return {"local_k": case.k, "local_v": case.v, "page_table": own}
        k, v = (cache[rows].clone() for cache in (case.k, case.v))
        k[:1, :, :shared], v[:1, :, :shared] = case.k[0, :, :shared], case.v[0, :, :shared]
        return {"local_k": k, "local_v": v}
    if table is not None:
        width = -(-table.shape[1] // n)
        padded = torch.nn.functional.pad(table, (0, n * width - table.shape[1]), value=-1)
        return {"local_k": case.k, "local_v": case.v, "page_table": padded[:, rank * width : (rank + 1) * width]}
    if not cuts:
        return dict(zip(("local_k", "local_v"), (chunk(cache, rank, n) for cache in (case.k, case.v)), strict=True))
    ends = torch.stack([torch.zeros_like(lengths), *(lengths * r * r // (n * n) for r in range(1, n)), lengths])  # [n + 1, B]
    first, held = ends[rank], ends[rank + 1] - ends[rank]
    parts = []
    for cache in (case.k, case.v):
        part = torch.full((batch, cache.shape[1], 30, cache.shape[3]), float("nan"), dtype=cache.dtype)
        for b in range(batch):
            part[b, :, : held[b]] = cache[b, :, first[b] : first[b] + held[b]]
        parts.append(part)
    return {"local_k": parts[0], "local_v": parts[1], "local_first": first, "local_held": held}


def chunk(cache: Tensor, rank: int, n: int) -> Tensor:
    width = -(-cache.shape[2] // n)
    padded = torch.nn.functional.pad(cache, (0, 0, 0, n * width - cache.shape[2]), value=float("nan"))
    return padded[:, :, rank * width : (rank + 1) * width]


def check_all(rank: int, n: int, cases: list[dict[str, Any]]) -> int:
    """Every one of these cases, shard and sync against float64, and how often each talks."""
    count = fast = 0
    for options in cases:
        case = make(**{**SMALL, **{name: value for name, value in options.items() if name not in NOT_MADE}})
        case = with_token_scales(case, options["eight"]) if "eight" in options else case
        wanted = expected(case)
        for (shard, sync), cuts, tile in itertools.product(WAYS, (False, True), (4, None)):
            if shard in options.get("shards", (shard,)) and not (
                cuts and (shard == "batch" or "page_table" in case.arguments or options.get("level"))
            ):
                whole = shard == "sequence" or count % 3 != 0
                fresh = case.to("cpu")  # no new keys in it yet
                given = {**case.arguments, **local(fresh, rank, n, shard, cuts), "shard": shard, "sync": sync, "tile": tile}
                run = check(case, given, wanted, whole, options.get("spread", 1.0))
                alone = any(step.name == "decode_attention" and step.parent is not None for step in run.steps)
                assert not (tile and alone)
                fast, count = fast + alone, count + 1
    assert fast * len(CASES) >= 15 * len(cases), fast  # how often no steps were needed
    return count


def check(case: Case, given: dict[str, Any], wanted: tuple[Tensor, Tensor], whole: bool, spread: float) -> flow.Flow:
    """One call: its result, and how often it talks."""
    out, lse = wanted
    shard, sync = given["shard"], given["sync"]
    with flow.record() as run:
        found = processes.decode_attention(case.q, **given, out_in_sb=shard == "batch" and whole, timeout=30.0)
    if not whole:
        rank, n, batch = distributed.get_rank(), distributed.get_world_size(), len(out)
        rows = slice(rank * batch // n, (rank + 1) * batch // n)
        out, lse = out[rows], lse[rows]
    tolerance = 1e-2 if case.q.dtype == torch.bfloat16 else 1e-5
    assert found[0].dtype == case.q.dtype
    torch.testing.assert_close(found[0].double(), out, rtol=0, atol=tolerance * spread)
    torch.testing.assert_close(found[1].double(), lse, rtol=1e-6, atol=1e-5)
    sent = [step.attributes["tag"] for step in run.steps if step.name == "all_gather"]
    tiles = 1 + max((int(step.attributes["tile"]) for step in run.steps if "tile" in step.attributes), default=-1)
    messages = {"lse": 1, "deferred": 3, "lockstep": 2 * tiles + 2}[sync] if shard == "sequence" else int(whole)
    assert len(sent) == messages, (sent, messages)
    return run


def check_errors(rank: int) -> None:
    case = make(**SMALL)
    part = {**case.arguments, "local_k": case.k, "local_v": case.v}
    for change, message in (
        ({"sync": "x"}, "sync is 'x'"),
        ({"shard": "auto"}, "shard is 'auto'"),
        ({"timeout": 0}, "timeout is 0"),
        ({"seq_lens": torch.tensor([1, 2, 30 * distributed.get_world_size() + 1])}, "what the ranks have room for"),
        ({"prefix": 8}, "seq_lens has 7 in row 1, expected 0, or 8 or more for the prefix to be seen"),
        ({"prefix": 3, "local_first": torch.tensor([0, 1, 0])}, "local_first has 2 values, expected the same in all rows"),
        ({"local_held": torch.tensor([31, 0, 0])}, "this rank holds 31 positions of row 0, expected 0 to 30"),
        ({"local_first": torch.tensor([25, 0, 0]), "local_held": torch.tensor([5, 0, 0])}, "holds positions 25 to 29 of row 0"),
        ({"shard": "batch", "local_first": torch.tensor([0, 0, 0])}, "local_k|k_cache|local_first and local_held are given"),
    ):
        with pytest.raises(ArgumentError, match=message):
            processes.decode_attention(case.q, **{**part, **change})
    disagree(rank, case)


def disagree(rank: int, case: Case) -> None:
    """Ranks that mean different calls hear of it, all of them, and can go on after that."""
    lengths = case.arguments["seq_lens"]
    plain: dict[str, Any] = {"q": case.q, "local_k": case.k, "local_v": case.v, "seq_lens": lengths, "timeout": 30.0}
    two = {"q": case.q[:2], "local_k": case.k[:2], "local_v": case.v[:2], "seq_lens": lengths[:2]}
    others: list[dict[str, Any]] = [
        two,
        {"q": case.q.bfloat16()},  # messages of one size, which mean something else
        {"q": case.q.double(), "local_k": case.k.double(), "local_v": case.v.double()},
        {"q": case.q[:, :2]},
        {"q": case.q.repeat(1, 1, 2, 1)},
        {"seq_lens": torch.tensor([28, 7, 0])},
        {"window": 3},
        {"scale": 2.0},
        {"sync": "deferred"},
        {"sink": torch.zeros(case.q.shape[1])},
    ]
    for debug, change in [(False, change) for change in others] + [(True, two)]:
        lutetia.debug = debug
        mine = plain if rank == 0 else plain | change
        with pytest.raises(MessageError, match=rf"rank {rank} sends '.*, but rank \d sends '"):
            processes.decode_attention(**mine)
    lutetia.debug = False
    with pytest.raises(MessageError, match=rf"rank {rank} sends '.*, but rank \d sends '"):
        processes.decode_attention(**plain, sync="lockstep" if rank == 0 else "lse")


def lose(rank: int, how: str) -> None:
    """The last rank ends, or stays away; the others say so in time."""
    case = make(**SMALL)
    n = distributed.get_world_size()
    part = {**case.arguments, **local(case, rank, n, "sequence", False), "tile": 4}  # nothing that is compiled first
    processes.decode_attention(case.q, **part)
    if rank == n - 1:
        if how == "stays away":
            time.sleep(20)
        os._exit(0)
    began = time.monotonic()
    try:
        processes.decode_attention(case.q, **part, timeout=2.0)
    except processes.RankError as error:
        print(f"after {time.monotonic() - began:.1f} s: {error}", flush=True)
    distributed.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    where: dict[str, Any] = {}
    if "MEET" in os.environ:
        where = {
            "init_method": f"file://{os.environ['MEET']}",
            "rank": int(os.environ["RANK"]),
            "world_size": int(os.environ["WORLD_SIZE"]),
        }
    distributed.init_process_group("gloo", **where)
    rank, n = distributed.get_rank(), distributed.get_world_size()
    if sys.argv[1] in ("check", "check some"):
        count = check_all(rank, n, CASES if sys.argv[1] == "check" else CASES[::5])
        check_errors(rank)
        print(f"rank {rank} of {n}: {count} calls agree", flush=True)
        distributed.destroy_process_group()
    else:
        lose(rank, sys.argv[1])


if __name__ == "__main__":
    main()
