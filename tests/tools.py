"""Ask for what a test needs beyond torch: it is skipped, by name, where the thing is missing.

The reasons start with "missing tool:", which makes a run under CI fail: there, nothing may be missing.
"""

from __future__ import annotations

import importlib
import shutil
from types import ModuleType

import pytest

MISSING = "missing tool:"


def require_tool(name: str, *others: str) -> str:
    """The path of a program, under the first of its names that is there; skips the test, or the whole module, without one."""
    for each in (name, *others):
        path = shutil.which(each)
        if path is not None:
            return path
    pytest.skip(f"{MISSING} {name}", allow_module_level=True)


def require_module(name: str) -> ModuleType:
    """An optional Python module; skips the test, or the whole module, without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{MISSING} Python module {name}", allow_module_level=True)


def is_missing_tool(reason: str) -> bool:
    """Whether a test was skipped for want of a tool."""
    return reason.startswith((MISSING, "could not import"))  # the latter is what pytest.importorskip says
