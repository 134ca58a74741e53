"""The compiler of warm processes makes the code that numba makes."""

from __future__ import annotations

from pathlib import Path

import warm
from tools import require_module

require_module("numba")
CODE = """
import sys
if sys.argv[2] == "quick":
    sys.path.insert(0, sys.argv[1])
    import compiler
    compiler.quicken()
import numpy
from lutetia._shared import compiled

@compiled.jit(inner=True, nogil=True)
def share(x, n):
    if n == 0:
        raise ValueError("no shares")
    return x / n

@compiled.jit(nogil=True)
def mean(values):
    total = share(0.0, len(values))
    for each in values:
        total += share(each, len(values))
    return total

assert mean(numpy.arange(6.0)) == 2.5
try:
    mean(numpy.empty(0))
except ValueError as error:
    print(error)
print(*(result.library.get_asm_str() for loop in (mean, share) for result in loop.overloads.values()))
"""


def test_the_code_is_the_same() -> None:
    folder = str(Path(__file__).parent)
    plain, quick = (warm.run(["-c", CODE, folder, how], warm.Plain) for how in ("plain", "quick"))
    assert plain.stderr == quick.stderr == ""
    assert plain.stdout == quick.stdout
    assert plain.stdout.startswith("no shares\n")
    assert "divsd" in plain.stdout
