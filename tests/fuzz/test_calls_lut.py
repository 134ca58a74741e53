"""Random calls of every public function of `lutetia.lut` and `lutetia.nn`: none crashes, hangs, or fails with a raw exception.

A few hundred in an ordinary run. By hand: LUTETIA_FUZZ_CALLS=100000 pytest tests/fuzz/test_calls.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from calls import GROUPS, in_child

N_CALLS = int(os.environ.get("LUTETIA_FUZZ_CALLS", "300"))
SEED = int(os.environ.get("LUTETIA_FUZZ_SEED", "0"))


@pytest.mark.parametrize("group", GROUPS)
def test_random_calls_work_or_say_what_was_expected(group: str) -> None:
    result = in_child(group, SEED, N_CALLS, timeout=600 + N_CALLS / 5)
    assert not result["raw"], "\n".join(result["raw"][:20])
    assert result["counts"]["worked"] > N_CALLS / 10
    assert result["counts"]["ArgumentError"] > N_CALLS / 10


def test_a_crash_is_told_from_an_error() -> None:
    with pytest.raises(AssertionError, match="crashes"):
        in_child("crash", 0, 3)
