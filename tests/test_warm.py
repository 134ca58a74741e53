"""Warm processes behave as new ones do: streams, arguments, environment, signals, exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import warm

SHOW = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ.get('COLOUR')); print('wrong', file=sys.stderr)"


@pytest.mark.parametrize("start", [warm.run, lambda words, **how: subprocess.run([sys.executable, *words], text=True, **how)])
def test_arguments_folder_and_environment(start: Any, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SHOW)
    environment = {**os.environ, "COLOUR": "red"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path, "env": environment}
    for words in (["-c", SHOW], ["job.py"], ["-m", "job"], [str(tmp_path / "job.py")]):
        done = start([*words, "a", "b c"], **pipes)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"['a', 'b c'] {tmp_path} red\n", "wrong\n")


@pytest.mark.parametrize(
    ("code", "expected"),
    [("import sys; sys.exit(3)", 3), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", -9), ("pass", 0)],
)
def test_exit_codes(code: str, expected: int) -> None:
    assert warm.run(["-c", code]).returncode == expected


def test_signals_reach_it_and_its_group() -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    for number, to_all in ((signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGKILL, False)):
        with warm.Process(["-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=0.01)
            if to_all:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            assert process.wait(timeout=30) == -number


def test_a_file_as_output_stays_open(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w") as out:
        for _ in range(2):
            assert warm.run(["-c", "print('line')"], stdout=out).returncode == 0
        out.write("end\n")
    assert (tmp_path / "out").read_text() == "line\nline\nend\n"


def test_it_is_warm_and_has_started_no_thread() -> None:
    code = "import sys, threading; from lutetia._shared import threads; "
    code += "kernels = [name for name in sys.modules if 'lutetia' in name and 'triton' in name]; "
    code += "print('torch' in sys.modules, len(kernels), threads.forked, threading.active_count())"
    assert warm.run(["-c", code]).stdout.split() == ["True", "0", "False", "1"]


def test_ranks(tmp_path: Path) -> None:
    warm.spawn(write_rank, (str(tmp_path),), 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2"]
    with pytest.raises(AssertionError, match=r"the ranks ended with \[None, 1\]"):
        warm.spawn(fail_or_wait, (), 2)


def write_rank(rank: int, folder: str) -> None:
    Path(folder, str(rank)).write_text("")


def fail_or_wait(rank: int) -> None:
    if rank:
        raise ValueError("the second rank fails")
    time.sleep(600)
