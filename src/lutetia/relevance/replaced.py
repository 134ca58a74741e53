"""Functions of torch that are replaced while a model is watched.

They belong to all threads. So they are replaced once, however many threads watch, and put back when the last one is done; what
stands in for them asks `watching()`, and acts only in threads that watch.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LOCK = threading.Lock()
_USERS: Counter[tuple[Any, str]] = Counter()
_BEFORE: dict[tuple[Any, str], Any] = {}
_ABSENT = object()


class _Here(threading.local):
    depth = 0  # of watches around each other


_HERE = _Here()


def watching() -> bool:
    """Whether this thread watches a model."""
    return _HERE.depth > 0


@contextmanager
def watching_here() -> Iterator[None]:
    """While active, `watching()` holds in this thread."""
    _HERE.depth += 1
    try:
        yield
    finally:
        _HERE.depth -= 1


@contextmanager
def replaced(holder: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """While active, `make` of what a module or class holds under a name is there in its place."""
    key = holder, name
    with _LOCK:
        if not _USERS[key]:
            _BEFORE[key] = vars(holder).get(name, _ABSENT)
            setattr(holder, name, make(getattr(holder, name)))
        _USERS[key] += 1
    try:
        yield
    finally:
        with _LOCK:
            _USERS[key] -= 1
            if not _USERS[key]:
                before = _BEFORE.pop(key)
                if before is _ABSENT:
                    delattr(holder, name)
                else:
                    setattr(holder, name, before)
