"""The kinds of error, and sentences that show the value and what was expected."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lutetia import errors

KINDS = {
    errors.ArgumentError: (ValueError, "argument"),
    errors.MissingFeatureError: (ImportError, "missing_feature"),
    errors.DataError: (Exception, "data"),
    errors.OverflowInSumError: (ArithmeticError, "overflow"),
    errors.JobError: (Exception, "job"),
}


@pytest.mark.parametrize("error", KINDS)
def test_kinds(error: type[errors.LutetiaError]) -> None:
    parent, kind = KINDS[error]
    assert issubclass(error, parent)
    assert issubclass(error, errors.LutetiaError)
    assert error.kind == kind


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.zeros(2, 0, 3, dtype=torch.int32), "int32 [2, 0, 3] on cpu"),
        (torch.tensor(1.0, dtype=torch.bfloat16), "bfloat16 [] on cpu"),
        (torch.empty(4, device="meta"), "float32 [4] on meta"),
        ("text", "'text'"),
        (None, "None"),
    ],
)
def test_describe(value: Any, expected: str) -> None:
    assert errors.describe(value) == expected


def test_describe_cuts_what_is_long() -> None:
    text = errors.describe(list(range(10_000)))
    assert text.startswith("[0, 1, 2")
    assert len(text) == errors.LONGEST_REPR


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((2, 3), [2, 3]),
        ((2, 3), ["batch", 3]),
        ((2, 3), [None, 3]),
        ((), []),
        ((3,), ["...", 3]),
        ((5, 1, 7, 3), ["...", "s", 3]),
        ((0, 3), ["b", 3]),
    ],
)
def test_check_tensor_takes(shape: tuple[int, ...], wanted: list[int | str | None]) -> None:
    errors.check_tensor("x", torch.zeros(shape), wanted, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        ([1.0], {}, "x is [1.0], expected a tensor"),
        (torch.zeros(2, 4), {"shape": ["b", 3]}, "x is float32 [2, 4] on cpu, expected shape [b, 3]"),
        (torch.zeros(2), {"shape": [None, 2]}, "x is float32 [2] on cpu, expected shape [*, 2]"),
        (torch.zeros(2), {"shape": ["...", "s", 2]}, "x is float32 [2] on cpu, expected shape [..., s, 2]"),
        (torch.zeros(1, 1), {"shape": []}, "x is float32 [1, 1] on cpu, expected shape []"),
        (torch.zeros(2), {"dtype": torch.int32}, "x is float32 [2] on cpu, expected dtype int32"),
        (
            torch.zeros(2, dtype=torch.int8),
            {"dtype": (torch.float32, torch.bfloat16)},
            "x is int8 [2] on cpu, expected dtype float32 or bfloat16",
        ),
        (torch.zeros(2), {"device": torch.device("meta")}, "x is float32 [2] on cpu, expected a tensor on meta"),
    ],
)
def test_check_tensor_refuses(value: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        errors.check_tensor("x", value, **options)
    assert str(caught.value) == message


def test_checks_compile_without_a_break() -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def double(x: torch.Tensor) -> torch.Tensor:
        errors.check_tensor("x", x, ["...", 3], torch.float32)
        errors.check_range("n", x.dim(), 1, 4)
        errors.check_choice("mode", "a", ("a", "b"))
        return 2 * x

    assert torch.equal(double(torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_check_choice() -> None:
    errors.check_choice("sums", "fixed", ("float", "fixed"))
    with pytest.raises(errors.ArgumentError, match=r"^sums is 'flaot', expected one of 'float', 'fixed'$"):
        errors.check_choice("sums", "flaot", ("float", "fixed"))


@pytest.mark.parametrize(("value", "low", "high"), [(1, 1, 1), (0.5, 0, 1), (-3, None, 0), (7, 7, None), (np.int64(2), 1, 3)])
def test_check_range_takes(value: Any, low: float | None, high: float | None) -> None:
    errors.check_range("n", value, low, high)


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0, 1, 5, "n is 0, expected a number from 1 to 5"),
        (6, 1, 5, "n is 6, expected a number from 1 to 5"),
        (-1, 0, None, "n is -1, expected a number of at least 0"),
        (1, None, 0, "n is 1, expected a number of at most 0"),
        (True, 0, 1, "n is True, expected a number from 0 to 1"),
        ("3", 0, 5, "n is '3', expected a number from 0 to 5"),
        (float("nan"), None, None, "n is nan, expected a number"),
    ],
)
def test_check_range_refuses(value: Any, low: float | None, high: float | None, expected: str) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        errors.check_range("n", value, low, high)
    assert str(caught.value) == expected


def test_require_gives_the_module() -> None:
    import json.decoder

    assert errors.require("json.decoder", "reading") is json.decoder


def test_require_tells_absent_from_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_thing.py").write_text("import no_such_module_at_all")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.MissingFeatureError) as caught:
        errors.require("absent_thing.inner", "the picture", "absent-thing")
    assert str(caught.value) == "the picture needs absent-thing, which is not installed: pip install absent-thing"
    with pytest.raises(errors.MissingFeatureError) as caught:
        errors.require("broken_thing", "the picture")
    assert "broken_thing, which cannot be imported (No module named 'no_such_module_at_all')" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    assert "broken_thing" not in sys.modules


def test_a_hint_searches_all_names_and_lists_the_first() -> None:
    names = [f"column {n}" for n in range(30)] + ["price"]
    assert errors.did_you_mean("prise", names) == "did you mean price?"
    assert errors.did_you_mean("x", names).endswith("column 18, column 19 and 11 more")
    assert errors.did_you_mean("x", ["a", "b"]) == "expected one of a, b"
    assert errors.did_you_mean("x", []) == "none has a name"
