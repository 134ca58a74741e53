"""`import lutetia` is light, and a part comes when it is touched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import lutetia
import warm

SOURCES = str(Path(lutetia.__file__).parent.parent)
HEAVY = {"numba", "triton", "matplotlib", "sklearn", "scipy", "typer", "rich"}
# Whatever imports one of these is told that it is not there.
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"numba", "triton", "matplotlib", "sklearn", "cocotb"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


def python(code: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own."""
    env = {**os.environ, "PYTHONPATH": SOURCES, **environment}
    return subprocess.run([sys.executable, *flags, "-c", code], env=env, capture_output=True, text=True, timeout=120)


def after_torch(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that has imported torch."""
    return warm.run(["-c", code], warm.Plain, env={**os.environ, "PYTHONPATH": SOURCES})


def imported(code: str) -> set[str]:
    """The top-level packages that some code imports, as Python itself reports them."""
    done = python(code, "-X", "importtime")
    assert done.returncode == 0, done.stderr
    names = re.findall(r"^import time:[\d |]+\|\s+([\w.]+)$", done.stderr, re.MULTILINE)
    return {name.split(".")[0] for name in names}


def test_import_is_light() -> None:
    done = after_torch("import sys, torch; before = set(sys.modules); import lutetia; print(*set(sys.modules) - before)")
    ours = {name.split(".")[0] for name in done.stdout.split()}
    assert "lutetia" in ours
    assert not HEAVY & ours


def test_import_and_errors_need_no_torch() -> None:
    names = imported("import lutetia; lutetia.errors.LutetiaError")
    assert "lutetia" in names
    assert "torch" not in names


def test_works_without_what_is_optional() -> None:
    code = """
import lutetia
assert "lutetia.flow" not in sys.modules  # a part comes when it is touched
assert callable(lutetia.flow.record)
from lutetia.cli import main
sys.exit(main(["doctor", "--json"]))
"""
    done = after_torch(BLOCK + code)
    assert done.returncode == 0, done.stderr
    for name in ("numba", "triton", "triton-interpreter", "matplotlib", "scikit-learn", "cocotb"):
        assert re.search(rf'"name": "{name}",\s+"status": "missing"', done.stdout), name


def test_only_the_feature_complains() -> None:
    done = python(BLOCK + "from lutetia.errors import require\nrequire('sklearn', 'the digits data set', 'scikit-learn')")
    said = "the digits data set needs scikit-learn, which is not installed: pip install scikit-learn"
    assert done.stderr.strip().splitlines()[-1] == f"lutetia.errors.MissingFeatureError: {said}"


def test_all_and_dir_name_what_is_there() -> None:
    assert dir(lutetia) == sorted(lutetia.__all__)
    assert {"__version__", "debug", "errors", "flow"} <= set(lutetia.__all__)
    for name in lutetia.__all__:
        value = getattr(lutetia, name)
        if name not in ("__version__", "debug"):
            assert isinstance(value, ModuleType)


def test_a_missing_part_is_an_error_that_lists_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lutetia, "_PARTS", (*lutetia._PARTS, "unwritten"))
    there = ", ".join(lutetia.__all__)
    with pytest.raises(AttributeError) as caught:
        _ = lutetia.unwritten
    assert str(caught.value) == f"lutetia has no 'unwritten' yet, only {there}"
    with pytest.raises(AttributeError) as caught:
        _ = lutetia.nonsense
    assert str(caught.value) == f"lutetia has no 'nonsense', only {there}"
    with pytest.raises(ImportError, match="nonsense"):
        from lutetia import nonsense  # noqa: F401


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", lutetia.__version__)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_debug_is_a_switch_from_the_environment(value: str, expected: bool) -> None:
    done = python("import lutetia; print(lutetia.debug)", LUTETIA_DEBUG=value)
    assert done.stdout.strip() == str(expected)
