"""Random calls of the public functions of every package: an answer, or an error of Lutetia's, and never a crash or a hang."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
from runner import Fuzz, Runner

from tools import require_module

require_module("numba")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system cannot limit the memory of a process")


@pytest.mark.parametrize("package", ["attention", "lut", "models", "nn", "precompute"])
def test_random_calls(package: str, fuzz: Fuzz) -> None:
    from wild_calls import GROUPS

    total = sum((fuzz("calls", f"{package}.{function}") for function in GROUPS[package]), Counter[str]())
    assert min(total["accepted"], total["refused"]) > total.total() / 10, total


def test_a_crash_is_told_from_an_error(runner: Runner) -> None:
    counts, failures = runner.run("calls", "crash.string_at", 0, 2)
    assert (counts["crashed, exit code -11"], len(failures)) == (2, 2)
