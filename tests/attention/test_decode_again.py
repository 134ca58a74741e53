"""Calls like one before: launched without new checks, and with the tensors of now."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attention.decode_cases import agree, device_of
from attention.decode_oracle import Case, expected, make
from lutetia.attention import decode_attention
from lutetia.attention.arguments import DecodeCall, RunOptions, check_call
from lutetia.attention.run import KnownCall, signature
from lutetia.errors import ArgumentError
from tools import require_module

require_module("triton")
HOW = RunOptions(1, "auto", "lse", "auto", False, "cost")
ORDER = ("seq_lens", "k_new", "v_new", "scale", "window", "sink", "page_table", "k_scale", "v_scale")


def arguments_of(case: Case, **more: Any) -> tuple[Any, ...]:
    given = {**case.arguments, **more}
    return (case.q, case.k, case.v, *(given.get(name) for name in ORDER))


def more_of(case: Case) -> tuple[Any, ...]:
    """The arguments after the options of how to run."""
    return tuple(case.arguments.get(name) for name in DecodeCall._fields[DecodeCall._fields.index("starts") :])


both = pytest.mark.parametrize("executor", ["triton", "cpu"])


@both
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"new": True, "window": 20, "s_active": 2},
        {"page_len": 16, "lengths": (145, 37), "sink": 1.0},
        {"starts": (131, 5), "softcap": 2.0},
        {"prefix": 30, "new": True},
        {"alibi": 0.3, "turned": 5},
        {"tree": 3, "s_active": 3, "new": True},
    ],
    ids=["plain", "a window and new keys", "pages and sinks", "padding and a soft cap", "a prefix", "slopes, turned", "a tree"],
)
def test_the_second_call_sees_its_own_tensors(options: dict[str, Any], executor: str) -> None:
    cases = [make(**options, seed=seed) for seed in (1, 2)]
    first, second = (case.to(device_of(executor)) for case in cases)
    given = arguments_of(first)
    known = KnownCall.of(check_call(*given, *more_of(first)), given, HOW, executor)
    assert signature((*arguments_of(second), *HOW)) == signature((*given, *HOW))
    for case, there in zip(cases, (first, second), strict=True):
        out, lse = known.start(arguments_of(there), more_of(there))
        agree((out.cpu(), lse.cpu()), expected(case))


@both
def test_numbers_as_scales_and_wide_lengths(executor: str) -> None:
    """A scale that is a number is made a tensor once; lengths of 64 bits are narrowed at every call."""
    case = make(cache_dtype=torch.float8_e4m3fn).to(device_of(executor))
    wide = case.arguments["seq_lens"].long()
    given = arguments_of(case, seq_lens=wide, k_scale=0.5, v_scale=torch.tensor(2.0, device=case.q.device))
    known = KnownCall.of(check_call(*given), given, HOW, executor)
    shorter = arguments_of(case, seq_lens=wide - 5, k_scale=0.5, v_scale=torch.tensor(3.0, device=case.q.device))
    arguments = {**case.arguments, "seq_lens": (wide - 5).int(), "k_scale": None}
    plain = Case(case.q * 0.5, case.k.float(), case.v.float() * 3.0, {key: v for key, v in arguments.items() if v is not None})
    out, lse = known.start(shorter)
    agree((out.cpu(), lse.cpu()), expected(plain.to("cpu")), tolerance=1e-4)


def test_what_makes_a_call_another_one() -> None:
    case = make(batch=1, lengths=(40,), capacity=64)
    base = signature((*arguments_of(case), *HOW))
    apart = torch.empty(case.q.numel() + 1)[1:].view(case.q.shape)  # not aligned to 16 bytes
    others = [
        arguments_of(Case(case.q.double(), case.k, case.v, case.arguments)),
        arguments_of(Case(apart, case.k, case.v, case.arguments)),
        arguments_of(Case(case.q, case.k.transpose(2, 3), case.v, case.arguments)),
        arguments_of(case, window=3),
        arguments_of(case, scale=0.5),
        arguments_of(case, seq_lens=case.arguments["seq_lens"].long()),
    ]
    assert len({base, *(signature((*other, *HOW)) for other in others)}) == 1 + len(others)


@both
def test_queries_beyond_float16_on_an_fp8_cache(executor: str) -> None:
    """Products of 8 bits are taken in float16, which ends at 65,504; queries of bfloat16 do not."""
    case = make(cache_dtype=torch.float8_e4m3fn, dtype=torch.bfloat16)
    large = Case(case.q * 2.0**20, case.k, case.v, {**case.arguments, "scale": 2.0**-22})
    there = large.to(device_of(executor))
    given = arguments_of(there)
    out, lse = KnownCall.of(check_call(*given), given, HOW, executor).start(given)
    agree((out.cpu().float(), lse.cpu()), expected(large), tolerance=2e-2)


@both
def test_values_in_the_keys_are_known_by_their_place(executor: str) -> None:
    """The same shapes and strides with values elsewhere are another call; new values, and scales, follow from the keys'."""
    case = make(shared=13, new=True, cache_dtype=torch.float8_e4m3fn)
    for name in ("k_new", "v_new"):  # on the grid of fp8: Triton's interpreter cuts off instead of rounding
        case.arguments[name] = (case.arguments[name] / 0.5).to(torch.float8_e4m3fn).float() * 0.5
    case.arguments |= {"k_scale": torch.tensor([0.5, 0.5]), "v_scale": torch.tensor([0.5, 0.5])}
    there = case.to(device_of(executor))
    given = arguments_of(there, v_new=None, v_scale=None)
    elsewhere = Case(there.q, there.k, there.k.clone()[..., :13], there.arguments)
    assert signature((*given, *HOW)) != signature((*arguments_of(elsewhere, v_new=None, v_scale=None), *HOW))
    stale = arguments_of(there, v_new=None, v_scale=None, k_scale=torch.tensor([7.0, 7.0], device=there.q.device))
    known = KnownCall.of(check_call(*stale), stale, HOW, executor)
    out, lse = known.start(given)
    agree((out.cpu(), lse.cpu()), expected(case), tolerance=1e-4)


def test_a_known_call_of_the_cpu_checks_its_values() -> None:
    case = make(batch=2, lengths=(40, 9), capacity=64, new=True)
    lengths = case.arguments["seq_lens"]
    for dtype in (torch.int32, torch.int64):
        given = {**case.arguments, "seq_lens": lengths.to(dtype)}
        for _ in range(2):
            cache = (case.k.clone(), case.v.clone())
            agree(decode_attention(case.q, *cache, **given), expected(case))
        for wrong in (65, -1, *([2**32 + 5] if dtype == torch.int64 else [])):
            bad = {**given, "seq_lens": torch.tensor([40, wrong], dtype=dtype)}
            with pytest.raises(ArgumentError, match=f"seq_lens has {wrong} in row 1"):
                decode_attention(case.q, *cache, **bad)


def test_a_known_call_of_the_cpu_has_no_gradient() -> None:
    case = make(batch=2, lengths=(40, 9), capacity=64, new=True)
    new = {name: case.arguments[name].clone().requires_grad_() for name in ("k_new", "v_new")}
    for _ in range(3):
        cache = (case.k.clone(), case.v.clone())
        out, _ = decode_attention(case.q, *cache, **{**case.arguments, **new})
        assert not out.requires_grad
        assert not cache[0].requires_grad
