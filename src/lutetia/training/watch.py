"""Which ranks are alive: each writes to the shared store once a second, so that an error can name the rank that is missing.

A process that was killed, was stopped or hangs no longer writes. A rank checks only after it has waited too long.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import distributed

from lutetia.errors import RankError

BEAT = 1.0  # seconds between two signs of life
LISTEN = 3.0  # seconds after which a rank that says nothing new is taken for gone
WARN = 30.0  # seconds without a step after which the first rank looks for the others, and says which are silent
STORE = 5.0  # seconds that the store has to answer in
LOST = re.compile(r"gloo|connection (closed|reset|refused)|timed out|NCCL|socket|broken pipe", re.IGNORECASE)


class Watch:
    """The heartbeats of this rank, and those of the others."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        """`timeout` is how many seconds a rank waits for the others in one exchange."""
        self.rank, self.size, self.timeout = rank, size, timeout
        self.say: Callable[[str], None] | None = None  # where to say who is silent
        self._store = store.clone()  # whose own connection no other thread waits on
        self._store.set_timeout(timedelta(seconds=STORE))
        self._step, self._moved = 0, time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lutetia-watch", daemon=True)
        self._thread.start()

    def moved(self, step: int) -> None:
        """The run has reached a step."""
        self._step, self._moved = step, time.monotonic()

    def stop(self) -> None:
        """Stop the heartbeats: the run has ended normally."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        count, warned = 0, self._moved
        while True:
            count += 1
            try:
                self._store.set(f"beat-{self.rank}", f"{count} {self._step}")
            except RuntimeError:
                return  # waiting ranks will see it
            waited = time.monotonic() - max(self._moved, warned)
            if self.say is not None and waited > WARN:
                warned = time.monotonic()
                who = self._missing()
                if who:
                    self.say(f"step {self._step + 1} waits for the other ranks: {who}; it waits for {self.timeout:g} s in all")
            if self._ended.wait(BEAT):
                return

    def _missing(self) -> str:
        """The ranks without a heartbeat, in words; empty if all have one."""
        before = self._signs()
        if before is not None and not self._ended.wait(LISTEN):
            after = self._signs()
            if after is not None:
                silent = [rank for rank in range(self.size) if rank != self.rank and before[rank] == after[rank]]
                names = ", ".join(f"rank {rank}" for rank in silent)
                return f"{names} does not respond: it was stopped, killed or cut off" if silent else ""
        return "the store does not answer, so the rank or the agent that keeps it (rank 0 or torchrun) is gone or stopped"

    def _signs(self) -> list[bytes] | None:
        """The last heartbeat of each rank; None where the store does not answer."""
        keys = [f"beat-{rank}" for rank in range(self.size)]
        try:
            return [self._store.get(key) if self._store.check([key]) else b"" for key in keys]
        except RuntimeError:
            return None

    def lost(self, error: RuntimeError) -> RankError:
        """What to raise for an exchange that failed with this error."""
        who = self._missing()
        if not who:
            steps = {rank: sign.split()[-1].decode() for rank, sign in enumerate(self._signs() or []) if sign}
            behind = [f"rank {rank} at step {step}" for rank, step in steps.items() if step != str(self._step)]
            who = f"all ranks respond ({', '.join(behind) or 'all at this step'})"
        reason = re.sub(r"^\[[^]]*\] ", "", " ".join(str(error).split())).split(". ")[0]
        return RankError(
            f"rank {self.rank} of {self.size} did not hear from every other rank after step {self._step}, expected that within "
            f"{self.timeout:g} s (parallel.timeout): {who}; torch says: {reason}"
        )


def is_lost(error: RuntimeError) -> bool:
    """Whether an error is that of an exchange between ranks."""
    return isinstance(error, distributed.DistError) or bool(LOST.search(str(error)))
