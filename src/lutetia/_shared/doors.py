"""Package front doors that import a module when one of its names is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_door(package: str, rooms: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package: `rooms` has the names of each module, `name=own` where the module calls it `own`.

    The same names stand in the package under TYPE_CHECKING, for readers and checkers; `tests/test_house.py` compares the two.
    """
    homes = {}
    for room, names in rooms.items():
        for word in names.split():
            name, _, own = word.partition("=")
            homes[name] = (f"{package}.{room}", own or name)

    def touch(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"{package} has no {name!r}")
        module, own = homes[name]
        return getattr(importlib.import_module(module), own)

    return touch, lambda: sorted({*vars(sys.modules[package]), *homes})
