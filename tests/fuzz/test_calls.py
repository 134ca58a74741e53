"""Random calls of the public functions of attention, models and precompute: an answer, or an error of Lutetia's."""

from __future__ import annotations

import sys

import pytest
from runner import Fuzz
from wild_calls import GROUPS

from tools import require_module

require_module("numba")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system cannot limit the memory of a process")


@pytest.mark.parametrize("group", GROUPS)
def test_random_calls(group: str, fuzz: Fuzz) -> None:
    fuzz("calls", group)
