"""Every executor of decode attention against float64, on every feature and the shapes that break things.

Triton runs on a GPU where there is one, under its interpreter otherwise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attention.decode_oracle import Case, expected, make
from lutetia import flow
from lutetia.attention import decode_attention, reference
from lutetia.attention.arguments import check_call
from lutetia.errors import ArgumentError, LutetiaError
from tools import require_module

require_module("numba")
require_module("triton")

EXECUTORS = ("reference", "cpu", "triton")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a key head for every query head": {"n_kv_heads": 4},
    "one key head, five query heads": {"n_q_heads": 5, "n_kv_heads": 1},
    "more query rows than a tile": {"n_q_heads": 34, "n_kv_heads": 1, "s_active": 2, "lengths": (40, 33), "capacity": 40},
    "prime lengths": {"capacity": 151, "lengths": (149, 101)},
    "one key": {"capacity": 1, "lengths": (1, 1)},
    "a row of one batch": {"batch": 1, "lengths": (67,)},
    "an empty row": {"lengths": (0, 37)},
    "nothing but empty rows": {"lengths": (0, 0)},
    "three new tokens": {"s_active": 3},
    "eight new tokens": {"s_active": 8, "lengths": (31, 8), "capacity": 31},
    "fewer live than new tokens": {"s_active": 5, "lengths": (3, 20), "capacity": 20},
    "new keys": {"new": True},
    "three new keys": {"new": True, "s_active": 3, "lengths": (148, 3)},
    "new keys, fewer live": {"new": True, "s_active": 5, "lengths": (2, 20), "capacity": 20},
    "new keys, an empty row": {"new": True, "lengths": (0, 1)},
    "a window of one": {"window": 1, "s_active": 2},
    "a window": {"window": 7, "s_active": 3},
    "a window of whole tiles": {"window": 128, "s_active": 2},
    "a window past the beginning": {"window": 1000},
    "a window and new keys": {"window": 20, "new": True, "s_active": 2},
    "a window that wraps": {"window": 20, "capacity": 30, "lengths": (145, 29), "new": True, "s_active": 3},
    "a window that just fits its ring": {"window": 28, "capacity": 30, "lengths": (61, 90), "new": True, "s_active": 3},
    "sinks": {"sink": 1.0, "s_active": 2},
    "large sinks": {"sink": 100.0},
    "sinks and empty rows": {"sink": 100.0, "lengths": (0, 3), "s_active": 2},
    "pages": {"page_len": 16, "lengths": (145, 37)},
    "pages, new keys": {"page_len": 16, "lengths": (145, 0), "new": True, "s_active": 2},
    "pages of one": {"page_len": 1, "capacity": 40, "lengths": (40, 13)},
    "pages of a prime": {"page_len": 7, "capacity": 70, "lengths": (64, 70), "window": 11, "s_active": 2},
    "pages longer than rows": {"page_len": 64, "capacity": 64, "lengths": (3, 50)},
    "d 1": {"head_dim": 1},
    "d 33": {"head_dim": 33},
    "d 40": {"head_dim": 40, "s_active": 2},
    "d 80": {"head_dim": 80, "new": True},
    "d 192": {"head_dim": 192, "lengths": (40, 33), "capacity": 40},
    "d 256": {"head_dim": 256, "lengths": (40, 33), "capacity": 40},
    "a scale": {"scale": 0.05},
    "a scale of zero": {"scale": 0.0},
    "a negative scale": {"scale": -0.3},
    "scores of ten thousand": {"spread": 42.0, "scale": 1.0, "s_active": 2},
    "everything": {"window": 50, "s_active": 3, "new": True, "sink": 2.0, "page_len": 8, "head_dim": 24, "n_q_heads": 6},
}  # fmt: skip


@cache
def solved(name: str) -> tuple[Case, tuple[Tensor, Tensor]]:
    case = make(**CASES[name])
    return case, expected(case)


def device_of(executor: str) -> str:
    return "cuda" if executor == "triton" and torch.cuda.is_available() else "cpu"


def decode(case: Case, executor: str, **options: Any) -> tuple[Tensor, Tensor]:
    """On a copy of the case; results on the CPU."""
    case = case.to(device_of(executor))
    if executor == "reference":
        out, lse = reference.decode(check_call(case.q, case.k, case.v, **case.arguments))
    else:
        out, lse = decode_attention(case.q, case.k, case.v, **case.arguments, backend=executor, **options)
    return out.cpu(), lse.cpu()


def agree(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], tolerance: float = 1e-5, spread: float = 1.0) -> None:
    out, lse = found
    assert out.shape == wanted[0].shape
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), wanted[0], rtol=0, atol=tolerance * max(1.0, spread))
    torch.testing.assert_close(lse.double(), wanted[1], rtol=1e-6, atol=tolerance)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str, executor: str) -> None:
    case, wanted = solved(name)
    agree(decode(case, executor), wanted, spread=CASES[name].get("spread", 1.0))


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_queries_and_blocks_of_a_head_on_a_cpu(rows: int, head_dim: int, cache_dtype: torch.dtype) -> None:
    """Four rows at a time and what is left, blocks of 64 numbers and what is left, more keys than are scored at once."""
    case = make(n_q_heads=rows, n_kv_heads=1, head_dim=head_dim, cache_dtype=cache_dtype, capacity=300, lengths=(300, 37))
    agree(decode(case, "cpu"), expected(case))


@pytest.mark.parametrize("executor", ["cpu", "triton"])
@pytest.mark.parametrize(
    "name", ["plain", "an empty row", "three new keys", "a window that wraps", "pages of a prime", "everything"]
)
@pytest.mark.parametrize("options", [{"batch_invariant": True}, *({"cores": n, "shard": "sequence"} for n in (2, 3, 5))], ids=str)
def test_however_it_is_split(name: str, executor: str, options: dict[str, Any]) -> None:
    case, wanted = solved(name)
    agree(decode(case, executor, **options), wanted)


@pytest.mark.parametrize("lengths", [(150, 7, 0, 71, 40), (150, 150, 149, 150, 148)], ids=["uneven", "even"])
@pytest.mark.parametrize("pieces", [(1, 0), (1, 10), (1, 17), (2, 25), (3, 40), (2, 1000)], ids=str)
def test_pieces_follow_the_lengths(pieces: tuple[int, int], lengths: tuple[int, ...]) -> None:
    """However many there are of each of equal rows, and of all of unequal ones, which the kernel finds out. Owners: ten."""
    from lutetia.attention import triton

    case = make(batch=5, lengths=lengths, capacity=150, s_active=2, new=True, sink=1.0, head_dim=16)
    there = case.to(device_of("triton"))
    out, lse = triton.launch(check_call(there.q, there.k, there.v, **there.arguments), triton.Config(16, 4, 2, 16, *pieces))
    agree((out.cpu(), lse.cpu()), expected(case))


@pytest.mark.parametrize("pieces", [37, 60, 200])
def test_many_uneven_rows(pieces: int) -> None:
    """More than sixteen, the longest first, last and in between; as many pieces as rows, more, and more than keys allow."""
    from lutetia.attention import triton

    lengths = (150, *range(90, 0, -5), 0, 150, *range(5, 80, 5), 150)
    case = make(batch=37, lengths=lengths, capacity=150, head_dim=16, n_q_heads=2, n_kv_heads=1)
    there = case.to(device_of("triton"))
    out, lse = triton.launch(check_call(there.q, there.k, there.v, **there.arguments), triton.Config(16, 4, 2, 16, 1, pieces))
    agree((out.cpu(), lse.cpu()), expected(case))


def test_uneven_rows_are_cut_into_equal_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in the partial results: nobody writes those of pieces that there are not."""
    from lutetia.attention import triton

    partials: list[torch.Tensor] = []
    new_empty = torch.Tensor.new_empty

    def kept(tensor: torch.Tensor, size: int, **options: Any) -> torch.Tensor:
        made = new_empty(tensor, size, **options)
        if size:
            partials.append(made.fill_(float("nan")))
        return made

    monkeypatch.setattr(torch.Tensor, "new_empty", kept)
    written = []
    for lengths in ((150, 150), (150, 80), (20, 150)):
        case = make(batch=2, lengths=lengths, capacity=150, head_dim=16, n_q_heads=2, n_kv_heads=1).to(device_of("triton"))
        triton.launch(check_call(case.q, case.k, case.v, **case.arguments), triton.Config(16, 4, 2, 16, 2, 7))
        ml = partials[-1].cpu().view(7, 2, 16)[:, 0, :2]
        written.append((~ml.isnan()).all(-1).tolist())
    assert written[0] == [True] * 4 + [False] * 3  # two and two
    assert written[1] == [True] * 6 + [False]  # 80 of 230 keys: four pieces to two
    assert written[2] == [False] + [True] * 5 + [False]  # a short row is one piece, no partial result; 150 is five of 32


@pytest.mark.parametrize(
    ("batch", "length", "expected"),
    [  # as swept: keys of a tile, warps, stages, fewest keys, splits; pieces of all owners together, where rows differ
        (1, 8192, (64, 4, 4, 128, 16, 0)),
        (1, 131072, (64, 4, 4, 128, 16, 0)),
        (8, 8192, (64, 4, 4, 128, 2, 128)),
        (32, 4096, (64, 4, 3, 128, 1, 512)),
        (64, 8192, (64, 4, 3, 128, 1, 768)),
        (48, 8192, (64, 4, 3, 128, 2, 1152)),
    ],
)
def test_how_the_keys_are_cut_on_132_multiprocessors(
    batch: int, length: int, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lutetia.attention import triton

    monkeypatch.setattr(triton, "device_of", lambda tensor: triton.Device(132, 227 << 10, True))
    q, cache = (torch.zeros(1, dtype=torch.bfloat16).expand(batch, *shape, 128) for shape in ((32, 1), (8, length)))
    call = check_call(q, cache, cache, torch.full((batch,), length))
    assert triton.configure(call) == triton.Config(*expected)
    assert triton.configure(call, batch_invariant=True)[:5] == (64, 4, 3, triton.INVARIANT_KEYS, length // triton.INVARIANT_KEYS)


@pytest.mark.parametrize(("kilobytes", "stages"), [(227, 4), (163, 4), (99, 3), (64, 2)])
def test_tiles_fit_into_shared_memory(kilobytes: int, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs of compute capability 9.0, 8.0, 8.9 and 7.5 can have; 8 KB for other things."""
    from lutetia.attention import triton

    monkeypatch.setattr(triton, "device_of", lambda tensor: triton.Device(132, kilobytes << 10, False))
    q, cache = (torch.zeros(1, dtype=torch.bfloat16).expand(1, *shape, 128) for shape in ((32, 1), (8, 8192)))
    assert triton.configure(check_call(q, cache, cache, torch.full((1,), 8192))).stages == stages


@pytest.mark.parametrize("name", ["plain", "three new keys", "everything"])
def test_places_in_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the slots of a cache are too far apart for less; the results are the same numbers."""
    from lutetia.attention import triton

    case, wanted = solved(name)
    near = decode(case, "triton")
    monkeypatch.setattr(triton, "_plain", lambda call, block_n: False)
    agree(decode(case, "triton"), wanted)
    assert all(torch.equal(one, other) for one, other in zip(decode(case, "triton"), near, strict=True))


@pytest.mark.parametrize(("slot", "plain"), [(64, True), (2**24 - 64, True), (2**24, False), (2**40, False)])
def test_which_places_need_64_bits(slot: int, plain: bool) -> None:
    from lutetia.attention import triton

    cache = torch.empty_strided((1, 1, 8, 16), (1, 1, slot, 1), dtype=torch.bfloat16, device="meta")
    case = make()
    call = check_call(case.q, case.k, case.v, **case.arguments)._replace(k_cache=cache, v_cache=cache)
    assert triton._plain(call, 128) is plain


def test_more_splits_than_keys() -> None:
    case = make(lengths=(3, 1), capacity=4)
    for executor in ("cpu", "triton"):
        agree(decode(case, executor, cores=7, shard="sequence", sync="lockstep"), expected(case))


def test_the_reference_in_float64() -> None:
    case, wanted = solved("everything")
    double = case.to("cpu")
    double = Case(double.q.double(), double.k.double(), double.v.double(), dict(double.arguments))
    out, lse = reference.decode(check_call(double.q, double.k, double.v, **double.arguments))
    torch.testing.assert_close((out, lse), wanted, rtol=1e-12, atol=1e-12)
    through_the_call = decode_attention(case.q.double(), double.k, double.v, **case.arguments)
    torch.testing.assert_close(through_the_call, wanted, rtol=1e-12, atol=1e-12)


# ---- number types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "three new keys", "d 80", "everything"])
def test_halves(executor: str, dtype: torch.dtype, name: str) -> None:
    """No further from float64 than twice torch's own attention, on the same numbers."""
    case = make(**CASES[name], dtype=dtype)
    wanted = expected(case)
    out, lse = decode(case, executor)
    assert out.dtype == dtype
    unit = torch.finfo(dtype).eps
    if name == "plain" and executor != "triton":  # Triton's interpreter cuts off where the hardware rounds; see the gpu tests
        theirs = sdpa_error(case, wanted[0])
        assert (out.double() - wanted[0]).abs().max() <= 2 * theirs
    torch.testing.assert_close(out.double(), wanted[0], rtol=unit, atol=2 * unit)
    torch.testing.assert_close(lse.double(), wanted[1], rtol=1e-5, atol=1e-5)


def sdpa_error(case: Case, wanted: Tensor) -> float:
    """The largest error of torch's own attention in the dtype of the case, row by row over the live keys."""
    worst = 0.0
    for b, length in enumerate(case.arguments["seq_lens"].tolist()):
        k, v = case.k[b : b + 1, :, :length], case.v[b : b + 1, :, :length]
        out = scaled_dot_product_attention(case.q[b : b + 1], k, v, enable_gqa=True)
        worst = max(worst, float((out[0].double() - wanted[b]).abs().max()))
    return worst


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("factor", "page_len"), [(0.5, 16), (torch.tensor([0.25, 2.0]), 0)], ids=["one, pages", "per head"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fp8_caches(executor: str, factor: Any, page_len: int, dtype: torch.dtype) -> None:
    case = make(cache_dtype=torch.float8_e4m3fn, page_len=page_len, new=True, s_active=2, dtype=dtype)
    per_head = factor[:, None, None] if isinstance(factor, Tensor) else factor
    for name in ("k_new", "v_new"):  # on the grid of fp8: Triton's interpreter cuts off instead of rounding
        case.arguments[name] = ((case.arguments[name] / per_head).to(torch.float8_e4m3fn).to(dtype) * per_head).to(dtype)
    case.arguments |= {"k_scale": factor, "v_scale": factor}
    out, lse = decode(case, executor)
    wanted = expected(case)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), wanted[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), wanted[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("executor", ["cpu", "triton"])
def test_what_is_written_is_what_the_reference_writes(executor: str) -> None:
    for options in ({"page_len": 16}, {}, {"window": 20, "capacity": 30, "lengths": (45, 2)}):
        case = make(new=True, s_active=3, dead=0.0, **options)
        wanted, found = case.to("cpu"), case.to(device_of(executor))
        reference.write_new(check_call(wanted.q, wanted.k, wanted.v, **wanted.arguments))
        assert not torch.equal(wanted.k, case.k)
        decode_attention(found.q, found.k, found.v, **found.arguments, backend=executor)
        assert torch.equal(found.k.cpu(), wanted.k)
        assert torch.equal(found.v.cpu(), wanted.v)


@pytest.mark.parametrize("executor", ["cpu", "triton"])
def test_fp8_new_keys_keep_to_the_range(executor: str) -> None:
    case = make(cache_dtype=torch.float8_e4m3fn, new=True, lengths=(1, 1), capacity=2, dead=0.0).to(device_of(executor))
    case.arguments["k_new"].fill_(1e6)
    decode_attention(case.q, case.k, case.v, **case.arguments, backend=executor)
    assert (case.k[:, :, 0].float() == 448).all()


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", ["cpu", "triton"])
def test_strides(executor: str) -> None:
    """Caches that are views: slots before heads, every second slot, heads in another order, and d not innermost."""
    case, wanted = solved("three new tokens")
    layouts = {
        "slots first": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
        "every second": lambda t: torch.stack([t, torch.full_like(t, float("nan"))], 3).flatten(2, 3)[:, :, ::2],
        "d outside": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
        "a slice": lambda t: torch.cat([t, t], 3)[..., : t.shape[3]],
    }
    for layout in layouts.values():
        moved = case.to(device_of(executor))
        q = layouts["slots first"](moved.q)
        found = decode_attention(q, layout(moved.k), layout(moved.v), **moved.arguments, backend=executor)
        agree((found[0].cpu(), found[1].cpu()), wanted)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_shared_and_wrapped_pages(executor: str) -> None:
    """Rows with a page in common, and a window whose pages are used again and again."""
    shared = make(page_len=8, lengths=(40, 29), capacity=40)
    table = shared.arguments["page_table"]
    table[1, :3] = table[0, :3]
    agree(decode(shared, executor), expected(shared))
    wrapped = make(page_len=8, lengths=(24, 24), capacity=24, window=15, dead=0.5, new=True)
    ring = wrapped.arguments["page_table"]
    wrapped.arguments |= {"page_table": ring.repeat(1, 3), "seq_lens": torch.tensor([61, 47], dtype=torch.int32)}
    agree(decode(wrapped, executor), expected(wrapped))


@pytest.mark.parametrize("executor", ["cpu", "triton"])
def test_many_leading_tiles_that_a_query_does_not_see(executor: str) -> None:
    """With a window the first query of a long block sees tiles that the last does not, and the other way round."""
    case = make(s_active=8, window=3, lengths=(150, 149))
    agree(decode(case, executor, cores=2, shard="sequence"), expected(case))


def test_a_nan_among_live_keys_shows() -> None:
    for executor in EXECUTORS:
        case = make(dead=0.0)
        case.k[0, 0, 5, 0] = float("nan")
        out, _ = decode(case, executor)
        assert out[0, :2].isnan().all()
        assert not out[0, 2:].isnan().any()
        assert not out[1].isnan().any()


@pytest.mark.parametrize("executor", ["cpu", "triton"])
def test_a_row_alone_has_the_bits_it_has_in_a_batch(executor: str) -> None:
    lengths = (700, 1, 150, 513, 0)
    case = make(batch=5, lengths=lengths, capacity=1500 if executor == "cpu" else 700)
    case.arguments["seq_lens"][0] = 1500 if executor == "cpu" else 700
    case.k[0], case.v[0] = torch.randn_like(case.k[0]), torch.randn_like(case.v[0])
    whole = decode(case, executor, batch_invariant=True)
    for b in range(5):
        row = slice(b, b + 1)
        alone = Case(case.q[row], case.k[row], case.v[row], {"seq_lens": case.arguments["seq_lens"][row]})
        out, lse = decode(alone, executor, batch_invariant=True)
        assert torch.equal(out, whole[0][row])
        assert torch.equal(lse, whole[1][row])


# ---- the call --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(2, 4, 9, 32)}, "q is float32 .* expected 1 to 8 new tokens"),
        ({"q": torch.zeros(2, 3, 1, 32)}, "q has 3 heads and the cache 2"),
        ({"q": torch.zeros(2, 4, 1, 32, dtype=torch.int32)}, "expected dtype bfloat16"),
        ({"k": torch.zeros(2, 2, 150, 31)}, "k_cache is .* expected shape"),
        ({"v": torch.zeros(2, 2, 149, 32)}, "v_cache is .* expected shape"),
        ({"v": torch.zeros(2, 2, 150, 32).half()}, "v_cache is float16 .* expected dtype float32"),
        ({"seq_lens": torch.tensor([1, 151])}, "seq_lens has 151 in row 1, expected 0 to 150"),
        ({"seq_lens": torch.tensor([-1, 1])}, "seq_lens has -1 in row 0"),
        ({"seq_lens": torch.tensor([1.0, 1.0])}, "seq_lens is float32"),
        ({"seq_lens": torch.tensor([1])}, r"seq_lens is .* expected shape \[2\]"),
        ({"k_new": torch.zeros(2, 2, 1, 32)}, "v_new is None, expected a tensor"),
        ({"k_new": torch.zeros(2, 2, 2, 32), "v_new": torch.zeros(2, 2, 1, 32)}, "k_new is .* expected shape"),
        ({"window": 0}, "window is 0, expected a number of at least 1"),
        ({"window": 2.5}, "window is 2.5, expected a whole number"),
        ({"window": 151, "seq_lens": torch.tensor([1, 151])}, "seq_lens has 151 in row 1"),
        ({"sink": torch.zeros(2)}, r"sink is .* expected shape \[4\]"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"k_scale": torch.ones(3)}, "k_scale is .* expected one number"),
        ({"page_table": torch.zeros(2, 1, dtype=torch.int64)}, "k_cache is .* expected shape|page_table is int64"),
        ({"cores": 0}, "cores is 0"),
        ({"shard": "rows"}, "shard is 'rows', expected one of"),
        ({"sync": "often"}, "sync is 'often'"),
        ({"backend": "gpu"}, "backend is 'gpu'"),
        ({"policy": "best"}, "policy is 'best'"),
        ({"batch_invariant": 1}, "batch_invariant is 1, expected True or False"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    case, _ = solved("plain")
    case = case.to("cpu")
    arguments = {"q": case.q, "k": case.k, "v": case.v, **case.arguments, **change}
    q, k, v = (arguments.pop(name) for name in ("q", "k", "v"))
    before = case.k.clone()
    with pytest.raises(ArgumentError, match=message):
        decode_attention(q, k, v, **arguments)
    assert torch.equal(case.k.nan_to_num(), before.nan_to_num())


def test_a_live_page_that_does_not_exist() -> None:
    case = make(page_len=16, lengths=(145, 37))
    case.arguments["page_table"][1, 2] = 99
    with pytest.raises(ArgumentError, match="page_table has 99 in row 1, entry 2, which is live, expected 0 to"):
        decode(case, "cpu")
    case.arguments["window"] = 3
    case.arguments["page_table"][1] = torch.tensor([-1, -1, *case.arguments["page_table"][0, 2:]])  # only the last one is seen
    decode(case, "cpu")


def test_what_is_computed_without_a_gradient_says_so() -> None:
    case = make(dead=0.0)
    q = case.q.requires_grad_()
    out, _ = decode_attention(q, case.k, case.v, **case.arguments)
    with pytest.raises(LutetiaError, match="has no gradient"):
        out.sum().backward()
    with torch.no_grad():
        assert not decode_attention(q, case.k, case.v, **case.arguments)[0].requires_grad


@pytest.mark.parametrize("executor", ["cpu", "triton"])
def test_a_recording_shows_the_launch(executor: str) -> None:
    case = make(new=True, sink=1.0).to(device_of(executor))
    with flow.record() as run:
        decode_attention(case.q, case.k, case.v, **case.arguments, backend=executor)
    (step,) = run.steps
    assert (step.name, step.part, step.attributes["backend"]) == ("decode_attention", "attention", executor)
    assert [info.name for info in step.inputs] == ["q", "k_cache", "v_cache", "seq_lens", "k_new", "v_new", "sink"]
    assert [info.name for info in step.outputs] == ["out", "lse", "k_cache", "v_cache"]
    assert step.attributes["bytes_per_key"] == 2 * 2 * 32 * 4
    if executor == "triton":
        assert step.attributes["splits"] >= 1
    else:
        assert step.attributes["cache_bytes_read"] == (150 + 37) * 2 * 2 * 32 * 4
