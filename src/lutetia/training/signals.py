"""Ctrl-C and SIGTERM: the first one asks the loop to end after its step, the second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Caught:
    """Whether a signal has come."""

    signal: int | None = None


@contextmanager
def catch_signals() -> Iterator[Caught]:
    """Catch both signals in the block; outside of the main thread, where Python allows no handlers, none is caught."""
    caught = Caught()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, _: FrameType | None) -> None:
        if caught.signal is not None:
            raise KeyboardInterrupt
        caught.signal = number

    before = {number: signal.signal(number, note) for number in SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
