"""The core model: every way to share a call over N cores gives softmax attention, with the messages and bytes of the design."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attention.decode_oracle import Case, expected, make
from lutetia import flow
from lutetia.attention import choose_shard, cores, decode_attention, finalize, messages, steps
from lutetia.attention.cores import CoresRun, simulate
from lutetia.attention.messages import MessageError
from lutetia.attention.scratch import ScratchError
from lutetia.errors import ArgumentError

CORES = (1, 2, 3, 5)
WAYS = [("batch", "lse"), *(("sequence", sync) for sync in ("lse", "deferred", "lockstep"))]
SMALL: dict[str, Any] = {"head_dim": 16, "capacity": 47, "lengths": (47, 11)}
CASES: dict[str, dict[str, Any]] = {
    "prime lengths": {},
    "a key head for every query head": {"n_kv_heads": 4},
    "one key head, five query heads": {"n_q_heads": 5, "n_kv_heads": 1, "s_active": 2},
    "a batch of one": {"batch": 1, "lengths": (43,)},
    "fewer keys than cores": {"lengths": (2, 1)},
    "an empty row": {"lengths": (0, 37)},
    "nothing but empty rows": {"lengths": (0, 0)},
    "no rows": {"batch": 0, "lengths": ()},
    "three new tokens": {"s_active": 3},
    "fewer live than new tokens": {"s_active": 5, "lengths": (3, 20)},
    "new keys": {"new": True, "s_active": 3, "lengths": (46, 3)},
    "new keys, fewer live": {"new": True, "s_active": 5, "lengths": (2, 20)},
    "new keys, an empty row": {"new": True, "lengths": (0, 1)},
    "a window of one": {"window": 1, "s_active": 2},
    "a window": {"window": 7, "s_active": 3, "new": True},
    "a window past the beginning": {"window": 1000},
    "a window that wraps": {"window": 20, "capacity": 30, "lengths": (145, 29), "new": True, "s_active": 3},
    "a window that just fits its ring": {"window": 28, "capacity": 30, "lengths": (61, 90), "new": True, "s_active": 3},
    "sinks": {"sink": 1.0, "s_active": 2},
    "large sinks": {"sink": 100.0},
    "sinks and empty rows": {"sink": 100.0, "lengths": (0, 3), "s_active": 2},
    "pages": {"page_len": 8, "lengths": (45, 17), "capacity": 48},
    "pages, new keys": {"page_len": 7, "lengths": (45, 0), "capacity": 49, "new": True, "s_active": 2},
    "pages of one": {"page_len": 1},
    "d 1": {"head_dim": 1},
    "d 33": {"head_dim": 33},
    "scores of ten thousand": {"spread": 50.0, "scale": 1.0, "s_active": 2},
    "padding on the left": {"starts": (30, 5)},
    "padding up to the new keys": {"starts": (46, 9), "new": True, "s_active": 3},
    "padding, a soft cap and sinks": {"starts": (30, 16), "softcap": 2.0, "sink": 1.0, "new": True},
    "slopes": {"alibi": 0.3, "s_active": 3, "new": True},
    "turned": {"turned": 5, "s_active": 3, "new": True},
    "a tree": {"tree": 3, "s_active": 5, "new": True},
    "twenty new tokens": {"s_active": 20, "lengths": (47, 20), "new": True},
    "values in the keys": {"shared": 9, "s_active": 3, "new": True},
    "a prefix": {"prefix": 9, "lengths": (47, 12), "s_active": 3, "new": True, "sink": 1.0},
    "a prefix of pages, an empty row": {"prefix": 18, "page_len": 8, "lengths": (0, 18), "capacity": 48},
    "everything": {"window": 20, "s_active": 3, "new": True, "sink": 2.0, "page_len": 4, "n_q_heads": 6, "capacity": 48},
}  # fmt: skip


@cache
def solved(name: str) -> tuple[Case, tuple[Tensor, Tensor]]:
    case = make(**{**SMALL, **CASES[name]})
    return case, expected(case)


def run(case: Case, **options: Any) -> CoresRun:
    case = case.to("cpu")
    return simulate(case.q, case.k, case.v, **case.arguments, **options)


def agree(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], spread: float = 1.0) -> None:
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=0, atol=1e-5 * max(1.0, spread))
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    """N cores, each shard, each sync, tiles that do not divide the keys."""
    case, wanted = solved(name)
    for n, (shard, sync), tile in itertools.product(CORES, WAYS, (4, 100)):
        found = run(case, cores=n, shard=shard, sync=sync, tile=tile)
        agree((found.out, found.lse), wanted, CASES[name].get("spread", 1.0))


@pytest.mark.parametrize("name", ["prime lengths", "fewer keys than cores", "everything", "no rows"])
@pytest.mark.parametrize("n", CORES)
def test_exchanges_and_bytes(name: str, n: int) -> None:
    """lockstep 2T + 1, deferred 3, lse 1; batch none, or one with out_in_sb. An exchange is N - 1 messages of each core."""
    case, wanted = solved(name)
    batch, heads, active, dim = case.q.shape
    numbers = batch * heads * active * 4  # bytes of one number for each query
    for (shard, sync), out_in_sb in itertools.product(WAYS, (False, True)):
        found = run(case, cores=n, shard=shard, sync=sync, tile=3, out_in_sb=out_in_sb)
        tiles = max(found.num_fa_tiles)
        if shard == "batch":
            exchanges, size = int(out_in_sb), None
        else:
            exchanges = {"lockstep": 2 * tiles + 1, "deferred": 3, "lse": 1}[sync]
            size = numbers * {"lockstep": dim + 2 * tiles, "deferred": dim + 2, "lse": dim + 2}[sync]
        exchanges *= n > 1
        for core in range(n):
            assert found.exchanges(core) == exchanges
            assert sum(message.sender == core for message in found.messages) == exchanges * (n - 1)
            if size is not None:
                assert found.bytes_sent(core) == size * (n - 1)
        if shard == "batch" and out_in_sb:  # every part goes over every link but one
            assert sum(message.bytes for message in found.messages) == (n - 1) * numbers * dim
        for held in found.held:
            assert (held is None) == (not out_in_sb)
            if held is not None:
                agree((held, found.lse), wanted)


def test_what_is_counted_is_what_choose_reckons_with() -> None:
    case, _ = solved("prime lengths")
    for n, (shard, sync), out_in_sb in itertools.product((2, 5), WAYS, (False, True)):
        reckoned = choose_shard(
            case.arguments["seq_lens"].tolist(), cores=n, n_q_heads=4, n_kv_heads=2, head_dim=16, capacity=47, shard=shard,
            sync=sync, out_in_sb=out_in_sb,
        )  # fmt: skip
        (line,) = (line for line in reckoned.candidates if line.shard == shard)
        found = run(case, cores=n, shard=shard, sync=sync, tile=reckoned.tile, out_in_sb=out_in_sb)
        assert max(found.exchanges(core) for core in range(n)) == line.messages
        if shard == "sequence":
            assert found.bytes_sent(0) == line.message_bytes * (n - 1)


def test_two_cores_exchange_in_one_sendrecv() -> None:
    case, _ = solved("prime lengths")
    found = run(case, cores=2, sync="lockstep", tile=8)
    tags = [message.tag for message in found.messages]
    of_tiles = [[f"qk_max_buf of tile {t}"] * 2 + [f"exp_sum of tile {t}"] * 2 for t in range(3)]
    assert tags == [*itertools.chain(*of_tiles), "fa_running_output", "fa_running_output"]
    assert [(m.sender, m.receiver) for m in found.messages] == [(0, 1), (1, 0)] * 7
    assert found.messages[0].place == "fa_tile 0, cascaded_max_reduce"
    assert all(one.at == other.at for one, other in zip(found.messages[::2], found.messages[1::2], strict=True))


def test_lockstep_pads_and_the_others_do_not() -> None:
    """Five keys over three cores are 1 + 2 + 2: in tiles of one the first core has a tile less."""
    case = make(batch=1, lengths=(5,), capacity=5, head_dim=4)
    assert run(case, cores=3, sync="lse", tile=1).num_fa_tiles == [1, 2, 2]
    assert run(case, cores=3, sync="lockstep", tile=1).num_fa_tiles == [2, 2, 2]
    assert run(case, cores=7, sync="deferred", tile=1).num_fa_tiles == [0, 1, 1, 0, 1, 1, 1]


def test_many_leading_tiles_that_nobody_may_see() -> None:
    """A window leaves the first query's tiles to it alone: for the last query they are masked, one after the other."""
    case = make(batch=1, s_active=8, window=2, lengths=(40,), capacity=40, head_dim=8)
    for n, (shard, sync) in itertools.product(CORES, WAYS):
        found = run(case, cores=n, shard=shard, sync=sync, tile=1)
        agree((found.out, found.lse), expected(case))


def test_strides() -> None:
    case, wanted = solved("three new tokens")
    layouts = {
        "slots first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        "every second": lambda t: torch.stack([t, torch.full_like(t, float("nan"))], 3).flatten(2, 3)[:, :, ::2],
        "d outside": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    }
    for layout, (shard, sync) in itertools.product(layouts.values(), WAYS):
        moved = Case(layouts["slots first"](case.q), layout(case.k), layout(case.v), case.arguments)
        found = simulate(moved.q, moved.k, moved.v, **moved.arguments, cores=3, shard=shard, sync=sync, tile=5)
        agree((found.out, found.lse), wanted)


def test_new_keys_are_written_where_they_belong() -> None:
    case = make(**{**SMALL, "new": True, "s_active": 3, "dead": 0.0})
    wanted = case.to("cpu")
    for b, length in enumerate((47, 11)):
        wanted.k[b, :, length - 3 : length] = case.arguments["k_new"][b]
        wanted.v[b, :, length - 3 : length] = case.arguments["v_new"][b]
    assert not torch.equal(wanted.k, case.k)
    for shard, n in itertools.product(("batch", "sequence"), CORES):
        found = case.to("cpu")
        simulate(found.q, found.k, found.v, **found.arguments, cores=n, shard=shard)
        assert torch.equal(found.k, wanted.k)
        assert torch.equal(found.v, wanted.v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_number_types(dtype: torch.dtype) -> None:
    case = make(**SMALL, dtype=dtype)
    wanted = expected(case)
    unit = max(torch.finfo(dtype).eps, 1e-12)
    for shard, sync in WAYS:
        found = run(case, cores=3, shard=shard, sync=sync, tile=8)
        assert found.out.dtype == dtype
        torch.testing.assert_close(found.out.double(), wanted[0], rtol=unit, atol=unit)
        assert found.lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_fp8_caches() -> None:
    case = make(**SMALL, cache_dtype=torch.float8_e4m3fn, new=True)
    case.arguments |= {"k_scale": torch.tensor([0.25, 2.0]), "v_scale": 0.5}
    for name in ("k_new", "v_new"):  # on the grid of fp8, so that dividing and rounding lose nothing
        case.arguments[name] = case.arguments[name].to(torch.float8_e4m3fn).float()
    for shard, sync in WAYS:
        found = run(case, cores=2, shard=shard, sync=sync, tile=8)
        agree((found.out, found.lse), expected(case))


def test_through_decode_attention() -> None:
    case, wanted = solved("everything")
    for n, shard, sync in itertools.product((1, 3), ("auto", "batch", "sequence"), ("lse", "lockstep")):
        copy = case.to("cpu")
        agree(
            decode_attention(copy.q, copy.k, copy.v, **copy.arguments, backend="cores", cores=n, shard=shard, sync=sync), wanted
        )


def test_flash_tiles_of_8192() -> None:
    case = make(batch=1, n_q_heads=1, n_kv_heads=1, head_dim=1, capacity=20_000, lengths=(1,))
    case.arguments["seq_lens"][0] = 20_000
    k, v = torch.randn_like(case.k), torch.randn_like(case.v)
    with flow.record() as recorded:
        out, _ = decode_attention(case.q, k, v, seq_lens=case.arguments["seq_lens"], backend="cores", cores=2, shard="sequence")
    sizes = [(step.lane, step.attributes["tile_s_prior"]) for step in recorded.steps if step.name == "allocate_qk_buffers"]
    assert sorted(sizes) == [("core 0", 1808), ("core 0", 8192), ("core 1", 1808), ("core 1", 8192)]
    weights = torch.softmax(case.q.double() * k.double(), 2)
    torch.testing.assert_close(out.double(), (weights * v.double()).sum(2, keepdim=True), rtol=0, atol=1e-5)


# ---- scratch ---------------------------------------------------------------------------------------------------------


def test_a_budget_that_fits_exactly_and_one_byte_less() -> None:
    case, _ = solved("prime lengths")
    options = {"cores": 2, "sync": "lockstep", "tile": 8}
    peak = max(run(case, **options).scratch_peaks)
    run(case, **options, scratch_bytes=peak)
    with pytest.raises(
        ScratchError, match=r"core \d has no scratch for 'pv' \(float32 \[2, 2, 2, 16\], 512 bytes\) in scope 'fa_tile'"
    ):
        run(case, **options, scratch_bytes=peak - 1)


def test_double_buffers_cost_a_second_tile() -> None:
    case, wanted = solved("prime lengths")
    one, two, three, many = (run(case, cores=1, tile=8, buffers=buffers).scratch_peaks[0] for buffers in (1, 2, 3, 99))
    assert two - one == three - two == tile_bytes(8)
    assert many - one == 4 * tile_bytes(8) + tile_bytes(7)  # 47 keys are five tiles of 8 and one of 7
    found = run(case, cores=2, sync="lockstep", tile=8, buffers=2)
    agree((found.out, found.lse), wanted)


def tile_bytes(keys: int) -> int:
    """A tile of so many keys in the case above: k and v, mask, qk, max and sum, pv."""
    rows = 2 * 4 * 4  # bytes of a number for each of B · H_q rows
    return 2 * (2 * 2 * keys * 16 * 4) + 2 * keys + keys * rows + 2 * rows + 16 * rows


# ---- messages that go wrong ------------------------------------------------------------------------------------------


def spoil(monkeypatch: pytest.MonkeyPatch, core: int, name: str, how: str) -> None:
    """One core drops, doubles or misshapes one message."""
    honest = steps.exchange

    def exchange(me: messages.Core, part: Tensor, what: str) -> Iterator[Any]:
        hit = me.index == core and what == name and me.tile in (None, 1)
        if hit and how == "drop":
            return [part] * me.cores
        if hit and how == "double":
            yield from honest(me, part, what)
        if hit and how == "shape":
            return (yield messages.Exchange(part[..., :1].clone(), [tuple(part.shape)] * me.cores, f"{what} of tile {me.tile}"))
        if hit and how == "dtype":
            part = part.double()
        return (yield from honest(me, part, what))

    monkeypatch.setattr(steps, "exchange", exchange)
    monkeypatch.setattr(finalize, "exchange", exchange)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", ["qk_max_buf", "exp_sum"])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("drop", "a message was dropped or duplicated"),
        ("double", "a message was dropped or duplicated"),
        ("shape", r"sends float32 \[2, 2, 1\] on cpu, but core \d .* expects float32 \[2, 2, 2\]"),
        ("dtype", r"sends float64 .* but core \d .* expects float32|sends float32 .* but core \d .* expects float64"),
    ],
)
def test_a_spoilt_message_in_the_loop(monkeypatch: pytest.MonkeyPatch, n: int, name: str, how: str, message: str) -> None:
    spoil(monkeypatch, 1, name, how)
    case, _ = solved("prime lengths")
    with pytest.raises(MessageError, match=message) as caught:
        run(case, cores=n, sync="lockstep", tile=4)
    step = {"qk_max_buf": "cascaded_max_reduce", "exp_sum": "cascaded_sum_reduction"}[name]
    assert str(caught.value).count("(at fa_tile ") == 2  # both sides
    assert f"fa_tile 1, {step}" in str(caught.value)


@pytest.mark.parametrize("how", ["drop", "double"])
def test_a_spoilt_message_at_the_end(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    spoil(monkeypatch, 1, "partial", how)
    case, _ = solved("prime lengths")
    waits, done = (0, 1) if how == "drop" else (1, 0)
    where = rf"core {waits} \(at fa_finalize_and_store: sendrecv 'partial' with core {done}\)"
    with pytest.raises(MessageError, match=rf"{where} waits for core {done}, but core {done} has finished"):
        run(case, cores=2, sync="lse")


# ---- the recording ---------------------------------------------------------------------------------------------------

GRAPH = [
    "compute_tile_params", "allocate_fa_buffers",
    "compute_fa_tile_context", "allocate_qk_buffers", "load_mask", "compute_qk_matmul",
    "cascaded_max_reduce", "transpose_max_psum", "sendrecv", "fa_update_running_max",
    "compute_exp_qk",
    "cascaded_sum_reduction", "tile_sum_reduction", "sendrecv", "fa_update_running_sum",
    "compute_pv_matmul_and_store", "pv_matmul", "fa_accumulate_output",
    "fa_finalize_and_store", "reciprocal", "sendrecv", "add_partial_outputs", "dma_copy",
]  # fmt: skip


def test_the_call_graph_by_name() -> None:
    case, _ = solved("prime lengths")
    with flow.record() as recorded:
        run(case, cores=2, sync="lockstep", tile=100)
    root, *inside = recorded.steps
    assert (root.name, root.attributes["backend"], root.attributes["shard"]) == ("attention_tkg", "cores", "sequence")
    assert [step.name for step in inside if step.lane == "core 0"] == GRAPH
    assert [step.name for step in inside if step.lane == "core 1"] == GRAPH[:-1]  # core 0 stores
    parents = {
        "sendrecv": {"cascaded_max_reduce", "cascaded_sum_reduction", "fa_finalize_and_store"},
        "transpose_max_psum": {"cascaded_max_reduce"},
        "fa_accumulate_output": {"compute_pv_matmul_and_store"},
        "dma_copy": {"fa_finalize_and_store"},
        "load_mask": {"attention_tkg"},
    }
    for name, wanted in parents.items():
        found = [recorded.steps[step.parent] for step in inside if step.name == name and step.parent is not None]
        assert {step.name for step in found} == wanted
    for step in inside:  # a step is never inside a step of another core
        assert recorded.steps[step.parent or 0].lane in (None, step.lane)


def test_a_message_is_an_edge_between_cores() -> None:
    case, _ = solved("prime lengths")
    with flow.record() as recorded:
        found = run(case, cores=2, sync="lse")
    by_lane = {(step.lane, step.name): step for step in recorded.steps}
    crossing = [(recorded.steps[edge.source], recorded.steps[edge.target]) for edge in recorded.edges]
    assert (by_lane["core 0", "pack_partial"], by_lane["core 1", "sendrecv"]) in crossing
    assert (by_lane["core 1", "pack_partial"], by_lane["core 0", "sendrecv"]) in crossing
    assert by_lane["core 0", "sendrecv"].attributes["bytes"] == found.bytes_sent(0)
    assert recorded.steps[0].attributes["message_bytes"] == found.bytes_sent(0) + found.bytes_sent(1)


def test_bad_arguments() -> None:
    case, _ = solved("prime lengths")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"cores": 0}, "cores is 0"),
        ({"shard": "auto"}, "shard is 'auto', expected one of 'batch', 'sequence'"),
        ({"sync": "never"}, "sync is 'never'"),
        ({"tile": 0}, "tile is 0"),
        ({"buffers": 0}, "buffers is 0"),
        ({"out_in_sb": 1}, "out_in_sb is 1, expected True or False"),
        ({"scratch_bytes": -1}, "budget is -1"),
    ]
    for options, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            run(case, **options)


def test_every_step_has_the_name_it_had() -> None:
    names = set(GRAPH) - {"sendrecv", "pv_matmul", "reciprocal", "add_partial_outputs"}
    for name in names | {"attention_tkg"}:
        assert any(callable(getattr(module, name, None)) for module in (cores, steps, finalize))
    assert callable(messages.sendrecv)
