"""A simulated board behind a pseudo-terminal: what is written to it goes to the serial pins of the Verilog, step by step."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import threading
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

IDLE = 0x202  # two bytes of silence
BUSY = 400  # silences in a row after which nothing is expected any more


@contextmanager
def plugged_in(command: Sequence[str], folder: Path) -> Iterator[str]:
    """The name of a serial port, behind which a compiled bench runs."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    process = subprocess.Popen(
        [*command, "+tokens=/dev/stdin"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    unplugged = threading.Event()
    pump = threading.Thread(target=_pump, args=(process, ours, unplugged), daemon=True)
    pump.start()
    try:
        yield os.ttyname(theirs)
    finally:
        unplugged.set()
        pump.join()
        process.kill()
        process.communicate()
        os.close(theirs)
        os.close(ours)


def _pump(process: subprocess.Popen[str], ours: int, unplugged: threading.Event) -> None:
    """Give the bench what comes, or silence, and pass on what it sends."""
    assert process.stdin is not None
    assert process.stdout is not None
    silences = 0
    while not unplugged.is_set():
        tokens = list(os.read(ours, 64)) if select.select([ours], [], [], 0)[0] else []
        silences = 0 if tokens else silences + 1
        if silences > BUSY:
            time.sleep(0.002)
        for token in tokens or [IDLE]:
            process.stdin.write(f"{token:03x}\n")
            process.stdin.flush()
            while (line := process.stdout.readline().strip()) != ".":
                if not line:
                    return
                os.write(ours, bytes.fromhex(line))
