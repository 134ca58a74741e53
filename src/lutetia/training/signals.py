"""Ctrl-C, SIGTERM and SIGHUP: the first one asks the loop to stop after its step, a second Ctrl-C or SIGTERM stops it at once.

A terminal that is closed sends SIGHUP, often more than once, so a second one changes nothing. Under `nohup` it stays ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

HANG_UP = getattr(signal, "SIGHUP", None)  # Windows has none


@dataclass
class Caught:
    """Whether a signal has come."""

    signal: int | None = None


@contextmanager
def catch_signals() -> Iterator[Caught]:
    """Catch the signals in the block; outside of the main thread, where Python allows no handlers, none is caught."""
    caught = Caught()
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, _: FrameType | None) -> None:
        if caught.signal is not None and number != HANG_UP:
            raise KeyboardInterrupt
        caught.signal = number

    numbers: list[int] = [signal.SIGINT, signal.SIGTERM]
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:
        numbers.append(HANG_UP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
