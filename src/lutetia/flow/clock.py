"""Duration of a step: wall-clock time on the CPU, CUDA events on a CUDA device."""

from __future__ import annotations

from collections.abc import Collection
from time import perf_counter
from typing import NamedTuple

import torch


class Pending(NamedTuple):
    """A duration that the device has not reported yet."""

    start: torch.cuda.Event
    end: torch.cuda.Event

    def seconds(self) -> float | None:
        """Wait for the device and read the time; None if it is unavailable."""
        try:
            self.end.synchronize()
            return self.start.elapsed_time(self.end) / 1000
        except RuntimeError:  # the device failed: its next use raises the error, and the flow stays readable
            return None


def capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Clock:
    """Starts when created; `stop` returns the elapsed time, minus the time the recorder spent."""

    __slots__ = ("_captured", "_device", "_event", "_spent", "_wall")

    def __init__(self, devices: Collection[str], spent: float) -> None:
        self._device = self._event = None
        self._captured = False
        if torch.cuda.is_initialized():
            # Outputs are not known yet: with no input on a CUDA device, time the device they will most likely be on.
            self._device = next((d for d in devices if d.startswith("cuda")), f"cuda:{torch.cuda.current_device()}")
            self._event = self._mark()
        self._spent = spent
        self._wall = perf_counter()

    def stop(self, devices: Collection[str], spent: float) -> float | Pending | None:
        wall = perf_counter() - self._wall - (spent - self._spent)
        if self._device is None or self._device not in devices:
            return max(wall, 0.0)
        end = self._mark()
        return Pending(self._event, end) if self._event and end and not self._captured else None

    def _mark(self) -> torch.cuda.Event | None:
        """An event on the device's current stream, or None while that is being captured."""
        with torch.cuda.device(self._device):
            if capturing():
                self._captured = True
                return None
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
