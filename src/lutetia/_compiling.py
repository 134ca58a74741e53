"""What the three parts that compile with numba share."""

from __future__ import annotations

from functools import cache

from lutetia.errors import require


@cache
def can_keep() -> bool:
    """Whether numba finds a folder it may write to; without one it would refuse to compile at all, rather than recompile."""
    numba = require("numba", "compiled loops")
    try:
        numba.njit(cache=True)(_nothing)
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    """A function of this package, for numba to look for a folder beside."""
