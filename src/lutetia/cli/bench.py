"""Find the benchmarks of a checkout, and run one in a process of its own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import lutetia
from lutetia.errors import DataError

PACKAGE = Path(lutetia.__file__).resolve().parent
# Imported, not run as a script: what a benchmark sends to its own processes must be found again by its module's name.
RUN = """
import importlib, sys
folder, name, *rest = sys.argv[1:]
sys.path.insert(0, folder)
try:
    raise SystemExit(importlib.import_module(name).main(rest))
except KeyboardInterrupt:
    raise SystemExit(130)  # we are told too, and say the word
"""


@dataclass(frozen=True)
class Benchmark:
    name: str
    about: str  # the first line of its docstring
    path: Path


def benchmarks_folder() -> Path:
    """The benchmarks beside the sources in use, else those of the checkout that we stand in."""
    for root in (PACKAGE.parent.parent, Path.cwd(), *Path.cwd().parents):
        if is_checkout(root):
            return root / "benchmarks"
    raise DataError(
        "there are no benchmarks here: they come with the source checkout, not with the installed package, "
        "so run `lutetia bench` inside a checkout"
    )


def is_checkout(root: Path) -> bool:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return project.get("project", {}).get("name") == "lutetia"


def find_benchmarks(folder: Path) -> dict[str, Benchmark]:
    """Every file with a docstring and a function `main`, read but not run."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        about = first_line(path)
        if about is not None:
            found[path.stem] = Benchmark(path.stem, about, path)
    return found


def first_line(path: Path) -> str | None:
    """The first line of a benchmark's docstring; None when the file is not a benchmark."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        return f"cannot be read: {error}"
    docstring = ast.get_docstring(tree)
    has_main = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
    return docstring.splitlines()[0] if docstring and has_main else None


def run_benchmark(benchmark: Benchmark, arguments: Sequence[str], capture: bool) -> tuple[int, str]:
    """Run it with this Python; return its exit code and, when captured, what it printed."""
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(benchmark.path.parent), benchmark.name, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE if capture else None,
        text=True,
    )
    return done.returncode, done.stdout or ""
