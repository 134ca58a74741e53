"""Starts the child, feeds it jobs, notices when it dies or is silent, and keeps the input that did it."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lutetia
import warm

SILENCE = 1200.0  # seconds without a word after which a child hangs; the time limit on its processor time comes first
SOURCES = os.pathsep.join([str(Path(lutetia.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
MEMORY = "/dev/shm"  # a disk in memory: on another, four fifths of the time of a case went into making and removing its files
Fuzz = Callable[[str, str], Counter[str]]  # takes "loader" or "calls", and the name of one


class Runner:
    """A child process that is started anew whenever it dies; `failures` is the folder that keeps what made it fail."""

    def __init__(self, failures: Path) -> None:
        self.failures = failures
        self._child: subprocess.Popen[bytes] | None = None
        # Where the child works: one that is killed cleans nothing.
        self._scratch = tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        self._rest = b""

    def run(self, what: str, name: str, seed: int, count: int, **more: Any) -> tuple[Counter[str], list[str]]:
        """Run cases, and say how many were accepted, refused, raw, crashed or hung, and where those that failed are kept."""
        total: Counter[str] = Counter()
        found: list[str] = []
        first, folder = 0, Path(self._scratch.name, name)
        while first < count:
            job = {
                "what": what,
                "name": name,
                "seed": seed,
                "first": first,
                "count": count - first,
                "folder": str(folder),
                "keep": str(self.failures / name),
                **more,
            }
            number, end = self._job(job, folder, found)
            if not isinstance(end, str):
                total.update(end)
                break
            total.update({end: 1, "seen": number - first})
            found.append(self._keep(folder, name, number, end))
            first = number + 1
        return total, found

    def close(self) -> None:
        if self._child is not None:
            assert self._child.stdin is not None
            self._child.stdin.close()
            self._child.wait(timeout=60)
            self._child = None
        self._scratch.cleanup()

    def _job(self, job: dict[str, Any], folder: Path, found: list[str]) -> tuple[int, Counter[str] | str]:
        """Follow one job: the last case that began, and the counts at its end, or how the child died."""
        child = self._started()
        assert child.stdin is not None
        child.stdin.write(json.dumps(job).encode() + b"\n")
        child.stdin.flush()
        number = job["first"] - 1
        while True:
            line = self._line(child)
            if line is None:
                how = "hung"
                child.kill()
            elif not line:
                how = ""
            else:
                said = json.loads(line)
                if "done" in said:
                    return number, Counter(said["done"])
                if "raw" in said:
                    found.append(said["raw"])
                number = said.get("begin", number)
                continue
            code = child.wait()
            self._child = None
            return max(number, job["first"]), how or f"crashed, exit code {code}"

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self.failures.mkdir(parents=True, exist_ok=True)
            with open(self.failures / "stderr.txt", "ab") as log:
                self._child = warm.Process(
                    [str(Path(__file__).parent / "child.py")],
                    env={**ENVIRONMENT, "TMPDIR": self._scratch.name},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            self._rest = b""
        return self._child

    def _line(self, child: subprocess.Popen[bytes]) -> bytes | None:
        """The next line; empty at the end of the child, None after too long a silence. Other words than JSON are passed over."""
        assert child.stdout is not None
        while True:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                if line.startswith(b"{"):
                    return line
                continue
            if not select.select([child.stdout], [], [], SILENCE)[0]:
                return None
            block = os.read(child.stdout.fileno(), 1 << 16)
            if not block:
                return b""
            self._rest += block

    def _keep(self, folder: Path, name: str, number: int, how: str) -> str:
        kept = self.failures / f"{name}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        if folder.exists():
            shutil.copytree(folder, kept)
        kept.mkdir(exist_ok=True)
        (kept / "how.txt").write_text(how)
        return f"{kept}: {how}"
