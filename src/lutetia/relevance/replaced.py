"""Functions and settings of torch that are replaced while a model is watched.

They belong to all threads. So they are replaced once, however many threads watch, and put back when the last one is done; what
stands in for a function asks `watching()`, and acts only in threads that watch.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_LOCK = threading.Lock()
_USERS: Counter[Hashable] = Counter()
_OPEN: dict[Hashable, AbstractContextManager[Any]] = {}
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
def shared(key: Hashable, make: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """A context for all threads that are in it at once: the first one enters what `make` gives, and the last one leaves it."""
    with _LOCK:
        if not _USERS[key]:
            context = make()
            context.__enter__()
            _OPEN[key] = context
        _USERS[key] += 1
    try:
        yield
    finally:
        with _LOCK:
            _USERS[key] -= 1
            if not _USERS[key]:
                _OPEN.pop(key).__exit__(None, None, None)


def replaced(holder: Any, name: str, make: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """While active, `make` of what a module or class holds under a name is there in its place."""
    return shared((holder, name), lambda: _replacing(holder, name, make))


@contextmanager
def _replacing(holder: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    before = vars(holder).get(name, _ABSENT)
    setattr(holder, name, make(getattr(holder, name)))
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(holder, name)
        else:
            setattr(holder, name, before)
