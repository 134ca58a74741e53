"""Random calls of every public function of `lutetia.lut` and `lutetia.nn`: none crashes, hangs, or fails with a raw exception."""

from __future__ import annotations

import sys
import time

import pytest
from calls import GROUPS, in_child

from tools import require_module

require_module("numba")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system cannot limit the memory of a process")
N_CALLS = 300  # by default


@pytest.mark.parametrize("group", GROUPS)
def test_random_calls_work_or_say_what_was_expected(group: str, request: pytest.FixtureRequest) -> None:
    n_calls, seed = request.config.getoption("--fuzz-count") or N_CALLS, request.config.getoption("--fuzz-seed")
    until = time.monotonic() + request.config.getoption("--fuzz-seconds")
    while True:
        result = in_child(group, seed, n_calls, timeout=600 + n_calls / 5)
        print(f"{group}: {result['counts']}, {result['functions']}")
        assert not result["raw"], "\n".join(result["raw"][:20])
        assert min(result["counts"]["worked"], result["counts"]["ArgumentError"]) > n_calls / 10
        seed += 1
        if time.monotonic() >= until:
            break


def test_a_crash_is_told_from_an_error() -> None:
    with pytest.raises(AssertionError, match="crashes"):
        in_child("crash", 0, 3)
