"""Work in a process of its own, which is ended when it takes too long: a fit in compiled code hears no signal."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lutetia.cli.guard import stop_if_interrupted
from lutetia.errors import in_one_line

LOOK = 0.1  # seconds from one look for Ctrl-C to the next


class Overtime(Exception):
    """The work took longer than it may."""


class Ended(Exception):
    """The process ended without a word, or said what failed."""


def apart(work: Callable[..., Iterator[Any]], arguments: Sequence[Any], seconds: float, modules: Sequence[str]) -> Iterator[Any]:
    """What work(*arguments) yields, in a process that is ended after so many seconds. The `modules` are imported once, by the
    process from which all such processes are forked."""
    kinds = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in kinds else "spawn")
    if "forkserver" in kinds:
        context.set_forkserver_preload([*modules])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, work, arguments), daemon=True)  # type: ignore[attr-defined]
    process.start()
    sender.close()
    until = float("inf")
    try:
        while True:
            while not receiver.poll(LOOK):
                stop_if_interrupted()
                if time.monotonic() > until:
                    raise Overtime
            kind, value = receiver.recv()
            if kind == "ready":
                until = time.monotonic() + seconds
                continue
            if kind == "end":
                return
            if kind == "failed":
                raise Ended(value)
            yield value
    except EOFError as error:
        process.join()
        code = process.exitcode or 0
        why = " (out of memory?)" if code == -signal.SIGKILL else ""
        raise Ended(f"its process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}{why}") from error
    finally:
        process.kill()
        process.join()
        receiver.close()


def _serve(sender: Any, work: Callable[..., Iterator[Any]], arguments: Sequence[Any]) -> None:
    """Send what the work yields. What it prints is nobody's: it would stand in the middle of a JSON document."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it ends it
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sender.send(("ready", None))  # by now its modules are imported
    try:
        for value in work(*arguments):
            sender.send(("value", value))
        sender.send(("end", None))
    except Exception as error:
        sender.send(("failed", f"it failed: {in_one_line(error)}"))
