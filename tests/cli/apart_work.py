"""What test_compare_command.py lets a process do: a module of its own, so that the process need not import more."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator


def count(limit: int) -> Iterator[int]:
    print("noise")
    yield from range(limit)


def linger() -> Iterator[int]:
    yield os.getpid()
    time.sleep(20)


def fall(number: int) -> Iterator[int]:
    yield os.getpid()
    if number:
        os.kill(os.getpid(), number)
    raise ValueError("no\nsuch thing")
