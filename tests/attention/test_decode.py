"""Every executor of decode attention against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from attention.decode_cases import CASES, EXECUTORS, agree, decode, device_of, solved
from attention.decode_oracle import Case, expected, make, with_token_scales
from lutetia import flow
from lutetia.attention import decode_attention, reference
from lutetia.attention.arguments import check_call
from lutetia.errors import ArgumentError, LutetiaError
from tools import require_module

require_module("numba")
require_module("triton")


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
    "name",
    ["plain", "an empty row", "three new keys", "a window that wraps", "pages of a prime", "everything"],
)
@pytest.mark.parametrize("options", [{"batch_invariant": True}, *({"cores": n, "shard": "sequence"} for n in (2, 3, 5))], ids=str)
def test_however_it_is_split(name: str, executor: str, options: dict[str, Any]) -> None:
    case, wanted = solved(name)
    agree(decode(case, executor, **options), wanted)


@pytest.mark.parametrize("backend", ["cpu", "cores", "reference"])
def test_a_row_that_is_empty_sees_no_nan_in_the_prefix(backend: str) -> None:
    cache = torch.full((2, 1, 8, 4), torch.nan)
    out, lse = decode_attention(torch.ones(2, 1, 1, 4), cache, cache, seq_lens=torch.tensor([0, 5]), prefix=3, backend=backend)
    assert (out[0].tolist(), lse[0].tolist()) == ([[[0.0] * 4]], [[-math.inf]])
    assert out[1].isnan().all()


@pytest.mark.parametrize("executor", ["cpu", "triton"])
def test_a_prefix_however_the_rest_is_split(executor: str) -> None:
    case, wanted = solved("a prefix of pages")
    agree(decode(case, executor, cores=3, shard="sequence"), wanted)


@pytest.mark.parametrize("new", [torch.zeros(2, 1, 1, 8).to_sparse(), torch.zeros(()), 3])
def test_new_keys_that_hold_values_are_checked_before_they_are_cut(new: Any) -> None:
    k, lens = torch.zeros(2, 1, 4, 8), torch.tensor([1, 2])
    with pytest.raises(ArgumentError, match=r"^k_new is "):
        decode_attention(torch.zeros(2, 1, 1, 8), k, k[..., :5], seq_lens=lens, k_new=new, v_new=torch.zeros(2, 1, 1, 5))


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


class Largest(TorchDispatchMode):
    """The most elements of any tensor that was made in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return made


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.float8_e4m3fn, torch.float32], ids=str)
def test_a_ring_takes_what_its_window_takes_wherever_it_stands(dtype: torch.dtype) -> None:
    """The same ring at position 37 and two billion later gives the same, from tensors of the same size."""
    queries = torch.float32 if dtype == torch.float8_e4m3fn else dtype
    case = make(window=20, capacity=24, lengths=(37, 31), new=True, s_active=3, dtype=queries, cache_dtype=dtype)
    wanted = expected(case)
    later = 24 * ((2**31 - 1) // 24 - 2)
    for shift in (0, later):
        fresh = case.to("cpu")
        fresh.arguments["seq_lens"] = fresh.arguments["seq_lens"].long() + shift
        with Largest() as made:
            out, lse = decode_attention(fresh.q, fresh.k, fresh.v, **fresh.arguments, backend="cpu")
        assert made.elements <= case.k.numel()
        tolerance = 1e-2 if dtype in (torch.float16, torch.float8_e4m3fn) else 1e-5
        torch.testing.assert_close(out.double(), wanted[0], rtol=0, atol=tolerance)
        torch.testing.assert_close(lse.double(), wanted[1], rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", ["auto", "cores", "triton"])
@pytest.mark.parametrize("length", [2**32 + 5, 2**31, -(2**32) + 5])
@pytest.mark.parametrize("options", [{}, {"window": 4}], ids=["cache", "ring"])
def test_lengths_beyond_int32_are_refused_and_not_wrapped(backend: str, length: int, options: dict[str, Any]) -> None:
    """As int32 the first and the last would be 5."""
    case = make(lengths=(5, 3), capacity=8)
    lengths = torch.tensor([3, length])
    with pytest.raises(ArgumentError, match=rf"seq_lens has {length} in row 1, expected 0 to 2147483647"):
        decode_attention(case.q, case.k, case.v, seq_lens=lengths, backend=backend, **options)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_window_larger_than_any_position_is_none(executor: str) -> None:
    case, wanted = solved("three new tokens")
    case = case.to("cpu")
    case.arguments["window"] = 2**70
    agree(decode(case, executor), wanted)


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


@pytest.mark.parametrize("executor", [*EXECUTORS, "cores"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"new": True, "s_active": 3, "softcap": 2.0},
        {"page_len": 16, "prefix": 20, "new": True},
        {"window": 20, "capacity": 30, "lengths": (145, 29), "new": True, "s_active": 2},
    ],
    ids=["new keys", "pages and a prefix", "a ring"],
)
def test_a_scale_for_each_token(executor: str, dtype: torch.dtype, options: dict[str, Any]) -> None:
    case = with_token_scales(make(**options), dtype)
    wanted, found = case.to("cpu"), case.to(device_of(executor))
    how = {"backend": executor} | ({"cores": 2, "shard": "batch"} if executor == "cores" else {})
    out, lse = decode_attention(found.q, found.k, found.v, **found.arguments, **how)
    agree((out.cpu(), lse.cpu()), expected(case), tolerance=2e-5)
    reference.write_new(check_call(wanted.q, wanted.k, wanted.v, **wanted.arguments))
    for name in ("k_scale", "v_scale"):
        torch.testing.assert_close(found.arguments[name].cpu(), wanted.arguments[name], equal_nan=True, rtol=1e-6, atol=0)
    if dtype == torch.int8:
        assert (found.k.cpu().int() - wanted.k.int()).abs().max() <= 1
        assert (found.k.cpu() == wanted.k).float().mean() > 0.999


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
        ({"q": torch.zeros(2, 4, 4097, 32)}, "q is float32 .* expected 1 to 4096 new tokens"),
        ({"q": torch.zeros(2, 3, 1, 32)}, "q has 3 heads and the cache 2"),
        ({"q": torch.zeros(2, 4, 1, 32, dtype=torch.int32)}, "expected dtype bfloat16"),
        ({"k": torch.zeros(2, 2, 150, 31)}, "k_cache is .* expected shape"),
        ({"v": torch.zeros(2, 2, 150, 33)}, "v_cache is .* expected values of 1 to 32 elements, no wider than the keys"),
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
        ({"k_scale": torch.ones(2, 2, 150)}, "k_scale is .* per-token scales are for 8-bit caches"),
        ({"k_scale": torch.ones(2, 2, 149)}, r"k_scale is .* expected shape \[2, 2, 150\]"),
        ({"page_table": torch.zeros(2, 1, dtype=torch.int64)}, "k_cache is .* expected shape|page_table is int64"),
        ({"cores": 0}, "cores is 0"),
        ({"shard": "rows"}, "shard is 'rows', expected one of"),
        ({"sync": "often"}, "sync is 'often'"),
        ({"backend": "gpu"}, "backend is 'gpu'"),
        ({"policy": "best"}, "policy is 'best'"),
        ({"batch_invariant": 1}, "batch_invariant is 1, expected True or False"),
        ({"alibi": torch.zeros(2)}, r"alibi is .* expected shape \[4\]"),
        (
            {"rotary": torch.zeros(2, 150, 17)},
            "rotary is .* expected at least one position, and 1 to 16 pairs of the 32 elements",
        ),
        ({"rotary": torch.zeros(2, 149, 16)}, "rotary has 149 positions and seq_lens 150"),
        ({"rotary": torch.zeros(150, 16)}, "rotary is .* expected shape"),
        ({"tree": torch.ones(2, 2, dtype=torch.bool)}, r"tree is .* expected shape \[1, 1\] or \[2, 1, 1\]"),
        ({"tree": torch.ones(1, 1)}, "tree is float32"),
        ({"tree": torch.ones(1, 1, dtype=torch.bool), "window": 3}, "tree and window are both given, expected one of them"),
        ({"tree": torch.ones(1, 1, dtype=torch.bool), "alibi": torch.ones(4)}, "tree and alibi are both given"),
        (
            {"q": torch.zeros(2, 4, 65, 32), "tree": torch.ones(65, 65, dtype=torch.bool)},
            "expected at most 64 new tokens",
        ),
        ({"prefix": 151}, "prefix is 151, expected a number from 0 to 150"),
        ({"prefix": 2.0}, "prefix is 2.0, expected a whole number"),
        ({"prefix": 38}, "seq_lens has 37 in row 1, expected 0, or 38 or more for the prefix to be seen"),
        (
            {"prefix": 37, "tree": torch.zeros(1, 1, dtype=torch.bool)},
            "seq_lens has 37 in row 1, expected 0, or 38 or more for the prefix to be seen",
        ),
        ({"prefix": 9, "batch_invariant": True}, "prefix and batch_invariant are both given, expected one of them"),
        ({"prefix": 9, "window": 5}, "prefix and window are both given, expected one of them"),
        ({"prefix": 9, "starts": torch.tensor([1, 2])}, "prefix and starts are both given"),
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


@pytest.mark.parametrize("executor", EXECUTORS)
def test_autocast_changes_nothing(executor: str) -> None:
    case, wanted = solved("everything")
    with torch.autocast(device_of(executor), torch.bfloat16):
        agree(decode(case, executor), wanted)


def test_plain_torch_can_be_asked_for() -> None:
    q, k, v = torch.randn(2, 4, 1, 8), torch.randn(2, 2, 20, 8), torch.randn(2, 2, 20, 8)
    lengths = torch.tensor([20, 7])
    with flow.record() as recorded:
        out, lse = decode_attention(q, k, v, seq_lens=lengths, backend="reference")
    assert [step.attributes["backend"] for step in recorded.steps] == ["reference"]
    fast = decode_attention(q, k, v, seq_lens=lengths, backend="cpu")
    torch.testing.assert_close((out, lse), fast)
