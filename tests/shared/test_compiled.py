"""What is kept of compiled loops: found again, never stale, and never in the way."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lutetia
import warm
from tools import require_module

require_module("numba")
from lutetia._shared import compiled, notices  # noqa: E402

HERE = Path(lutetia.__file__).parent


def test_a_file_of_loops_depends_on_what_it_imports() -> None:
    names = {path.relative_to(HERE).as_posix() for path in compiled.sources(HERE / "attention" / "numba_kernels.py")}
    assert {"attention/numba_kernels.py", "attention/numba_memory.py", "_shared/compiled.py"} <= names
    assert "attention/cpu.py" not in names


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A package like ours, with two files of loops of which one uses the other."""
    package = tmp_path / "lutetia"
    (package / "_shared").mkdir(parents=True)
    for name in ("errors.py", "_shared/__init__.py", "_shared/compiled.py", "_shared/notices.py"):
        shutil.copy(HERE / name, package / name)
    (package / "__init__.py").write_text("")
    (package / "numbers.py").write_text("STEP = 1.0\n")
    (package / "basics.py").write_text(
        "from lutetia._shared import compiled, notices\nfrom lutetia.numbers import (\n    STEP,\n)\n"
        "jit = compiled.jit(nogil=True)\n@jit\ndef add(x):\n    return x + STEP\n"
    )
    (package / "loops.py").write_text(
        "import sys\nfrom lutetia.basics import add, jit\n@jit\ndef twice(x):\n    return add(add(x))\n"
        "if __name__ == '__main__':\n    result = twice(1.0)\n    print(result, sum(twice.stats.cache_hits.values()))\n"
    )
    return tmp_path


# In a process that has numba already; ours gives way to the package of the house.
LOOPS = """
import runpy, sys
for name in [name for name in sys.modules if name.split(".")[0] == "lutetia"]:
    del sys.modules[name]
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
runpy.run_module("lutetia.loops", run_name="__main__", alter_sys=True)
"""


def run(house: Path, **environment: str) -> str:
    done = warm.run(["-c", LOOPS, str(house)], env={**os.environ, **environment}, cwd=house)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def kept(house: Path) -> list[Path]:
    return sorted((house / "lutetia" / "__pycache__").glob("*.nbc"))


def test_a_change_in_a_shared_file_compiles_anew(house: Path) -> None:
    assert [run(house), run(house)] == ["3.0 0", "3.0 1"]
    first = kept(house)
    for name, old, new, value in (("numbers.py", "1.0", "5.0", "11.0"), ("basics.py", "x + STEP", "x - STEP", "-9.0")):
        path = house / "lutetia" / name
        times = path.stat()
        path.write_text(path.read_text().replace(old, new))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a checkout may leave it: nothing but the content tells
        assert [run(house), run(house)] == [f"{value} 0", f"{value} 1"]
    assert len(kept(house)) == len(first)  # nothing is left of what came before
    assert not set(kept(house)) & set(first)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "one bit": lambda path: path.write_bytes(
        bytes([*path.read_bytes()[:-9], path.read_bytes()[-9] ^ 4, *path.read_bytes()[-8:]])
    ),
    "something else": lambda path: path.write_bytes(b"no" * 100),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


def test_a_damaged_file_costs_a_compilation_and_no_call(house: Path) -> None:
    assert run(house) == "3.0 0"
    for path in kept(house):
        DAMAGES["truncated"](path)
    assert [run(house), run(house)] == ["3.0 0", "3.0 1"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_not_read(damage: str, tmp_path: Path) -> None:
    files = compiled.CacheFiles(tmp_path, "name", "stamp")
    files.save(("key", 1), {"a": np.arange(3)})
    assert files.load(("key", 1))["a"].tolist() == [0, 1, 2]
    assert files.load(("key", 2)) is None
    (path,) = tmp_path.iterdir()
    DAMAGES[damage](path)
    assert files.load(("key", 1)) is None
    assert compiled.CacheFiles(tmp_path, "name", "other").load(("key", 1)) is None


def test_a_folder_that_cannot_be_written_costs_a_compilation_and_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiled.CacheFiles, "save", refuse)

    def one_more(x: float) -> float:
        return x + 1

    assert compiled.jit(nogil=True)(one_more)(2.0) == 3.0


def test_without_any_folder_loops_compile(house: Path) -> None:
    (house / "lutetia" / "__pycache__").write_text("not a folder")
    (house / "file").write_text("")
    options = {"HOME": str(house / "file"), "XDG_CACHE_HOME": str(house / "file")}
    assert run(house, **options) == "3.0 0"


def test_two_processes_with_a_cold_cache(house: Path) -> None:
    """One of them compiles, the other waits and loads."""
    both = [warm.Process(["-c", LOOPS, str(house)], cwd=house, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0].strip() for process in both) == ["3.0 0", "3.0 1"]
    assert run(house) == "3.0 1"
    assert not list((house / "lutetia" / "__pycache__").glob(".*.part"))


TAKE = "import pathlib, sys; from lutetia._shared import compiled, notices; compiled.PATIENCE = float(sys.argv[2]); "
TAKE += "turn = compiled.Turn(pathlib.Path(sys.argv[1])); turn.take(); print('taken'); sys.stdout.flush(); sys.stdin.read()"


def test_a_turn_ends_with_its_process_and_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, waits = tmp_path / "loop.nbc", list[float]()
    monkeypatch.setattr(time, "sleep", lambda seconds: (waits.append(seconds), holder.kill(), holder.wait()))
    with warm.Process(["-c", TAKE, str(path), "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        compiled.Turn(tmp_path / "another.nbc").take()
        assert waits == []
        turn = compiled.Turn(path)
        turn.take()
        assert len(waits) == 1  # until the other process was gone
    assert warm.run(["-c", TAKE, str(path), "0"], stdin=subprocess.DEVNULL).stdout == "taken\n"  # no patience
    turn.end()


def test_without_a_folder_for_its_lock_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits, path = list[float](), tmp_path / "missing" / "loop.nbc"
    monkeypatch.setattr(time, "sleep", lambda seconds: (waits.append(seconds), holder.kill(), holder.wait()))
    with warm.Process(["-c", TAKE, str(path), "60"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        turn = compiled.Turn(path)
        turn.take()
        turn.end()
        assert waits == []
        holder.kill()


def test_a_failed_compilation_ends_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr(compiled.Turn, "end", lambda turn: ended.append(turn))

    def add(x: Any) -> Any:
        return x + 1

    loop = compiled.jit(nogil=True)(add)
    with pytest.raises(compiled.numba.core.errors.TypingError):
        loop("text")
    assert len(ended) == 1
    assert loop._cache.turns == []


def test_who_waits_for_compiled_loops_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled.numba.core.config, "CACHE_DIR", str(tmp_path))
    said: list[str] = []
    monkeypatch.setattr(notices, "screens", [said.append])
    monkeypatch.setattr(notices, "_said", set())

    def add(x: Any) -> Any:
        return x + 1

    assert compiled.jit(nogil=True)(add)(1) == 2
    assert compiled.jit(nogil=True)(add)(1.5) == 2.5
    assert said == [compiled.COMPILING]
    monkeypatch.setattr(notices, "_said", set())
    assert compiled.jit(nogil=True)(add)(2) == 3
    assert said == [compiled.COMPILING]  # it was ready
