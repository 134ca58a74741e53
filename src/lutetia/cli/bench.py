"""The benchmarks of a checkout: list them, say which can run here, and run one in its own process."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lutetia
from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.show import console, print_json
from lutetia.errors import DataError, JobError, MissingFeatureError

PACKAGE = Path(lutetia.__file__).resolve().parent
ALONE = ("captum",)  # asks for numpy 1, and works with numpy 2
# Imported, not run as a script: what a benchmark sends to its own processes must be found again by its module's name.
RUN = """
import importlib, sys
folder, name, *rest = sys.argv[1:]
sys.path.insert(0, folder)
try:
    raise SystemExit(importlib.import_module(name).main(rest))
except KeyboardInterrupt:
    raise SystemExit(130)  # the command around this one reports it
except Exception as error:
    if not type(error).__module__.startswith("lutetia."):
        raise  # a bug: with its traceback
    print(f"error: {error}", file=sys.stderr)
    raise SystemExit(1)
"""


@dataclass(frozen=True)
class Benchmark:
    """One file of the folder: what it claims, and what it needs besides Lutetia."""

    name: str
    about: str  # the first line of its docstring
    path: Path
    needs: tuple[str, ...] = ()  # "cuda", a package, or "program:NAME"


@dataclass(frozen=True)
class BenchRequest:
    """What the user asked for, besides the name."""

    arguments: Sequence[str] = ()
    quick: bool = False
    save: bool = False
    out: Path | None = None


def benchmarks_folder(checkout: Path | None = None) -> Path:
    """The benchmarks of the checkout that was named, or else of the one this package runs from."""
    root = PACKAGE.parent.parent if checkout is None else checkout.absolute()
    if checkout is None and not (is_checkout(root) and PACKAGE.parent.name == "src"):
        raise DataError(
            "there are no benchmarks here: they come with the source checkout, not with the installed package; "
            "name a checkout that you trust: lutetia bench --checkout FOLDER"
        )
    if not is_checkout(root):
        raise DataError(f"{checkout} is not a checkout of Lutetia: expected its pyproject.toml there")
    return root / "benchmarks"


def is_checkout(root: Path) -> bool:
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    table = project.get("project")
    return isinstance(table, dict) and table.get("name") == "lutetia"


def find_benchmarks(folder: Path) -> dict[str, Benchmark]:
    """Every file with a docstring and a function `main`, read but not run."""
    benchmarks = (read_benchmark(path) for path in sorted(folder.glob("*.py")))
    return {each.name: each for each in benchmarks if each is not None}


def read_benchmark(path: Path) -> Benchmark | None:
    """A benchmark from its source; None when the file is not one."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        needs = needs_of(tree)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        return Benchmark(path.stem, f"cannot be read: {error}", path)
    docstring = ast.get_docstring(tree)
    has_main = any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body)
    return Benchmark(path.stem, docstring.splitlines()[0], path, needs) if docstring and has_main else None


def needs_of(tree: ast.Module) -> tuple[str, ...]:
    """The value of `NEEDS = (...)`, which a benchmark states at its top level."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "NEEDS" for name in node.targets):
            return tuple(map(str, ast.literal_eval(node.value)))
    return ()


def missing(needs: Sequence[str]) -> list[str]:
    """What a benchmark needs that this machine lacks."""
    return [words for words in map(missing_one, needs) if words]


def missing_one(need: str) -> str:
    from lutetia._shared.programs import find_tool
    from lutetia.doctor import can_import, look_for_cuda

    if need == "cuda":
        return "" if look_for_cuda().status == "found" else "a CUDA device"
    if need.startswith("program:"):
        name = need.removeprefix("program:")
        return "" if find_tool(name) else name
    return "" if can_import(need) else need


def how_to_install(lacking: Sequence[str], needs: Sequence[str]) -> str:
    """The commands that bring the packages among what is missing."""
    alone = [need for need in lacking if need in ALONE]
    packages = [need for need in lacking if need in needs and need != "cuda" and need not in ALONE]
    commands = [("pip install", packages), ("pip install --no-deps", alone)]
    words = " && ".join(f"{command} {' '.join(names)}" for command, names in commands if names)
    return f": {words}" if words else ""


def list_benchmarks(benchmarks: Sequence[Benchmark], folder: Path, as_json: bool) -> None:
    """Show the name of each, what it claims, and whether it can run here."""
    lacks = {each.name: missing(each.needs) for each in benchmarks}
    if as_json:
        listed = [
            {"name": each.name, "about": each.about, "needs": list(each.needs), "missing": lacks[each.name]}
            for each in benchmarks
        ]
        print_json({"folder": str(folder), "benchmarks": listed})
        return
    if not benchmarks:
        console().print(f"{folder} holds no benchmarks yet", soft_wrap=True)
    here = {name: f"needs {', '.join(lacking)}" if lacking else "runs here" for name, lacking in lacks.items()}
    widths = [max(map(len, texts), default=0) for texts in (here.keys(), here.values())]
    for each in benchmarks:
        console().print(f"{each.name:<{widths[0]}}  {here[each.name]:<{widths[1]}}  {each.about}", soft_wrap=True)


def bench(name: str | None, request: BenchRequest, checkout: Path | None, as_json: bool) -> int:
    """List the benchmarks, or run one; the exit code, 1 where a claim was missed."""
    folder = benchmarks_folder(checkout)
    benchmarks = find_benchmarks(folder)
    if name is None:
        list_benchmarks(list(benchmarks.values()), folder, as_json)
        return 0
    if name not in benchmarks:
        hint = did_you_mean(name, benchmarks) if benchmarks else f"{folder} holds none"
        raise UsageError(f"there is no benchmark {name!r}: {hint}")
    lacking = [] if "--help" in request.arguments else missing(benchmarks[name].needs)
    if lacking:
        raise MissingFeatureError(
            f"the benchmark {name} needs {', '.join(lacking)}{how_to_install(lacking, benchmarks[name].needs)}"
        )
    code, output = run_benchmark(benchmarks[name], arguments_of(name, request, folder, as_json), capture=as_json)
    if as_json:
        print_json(parse(name, code, output))
    elif code:
        raise JobError(f"the benchmark {name} failed with exit code {code}")
    return code


def arguments_of(name: str, request: BenchRequest, folder: Path, as_json: bool) -> list[str]:
    """The arguments of the benchmark: its own, and those that every benchmark takes."""
    if request.save and request.quick:
        raise UsageError("--save keeps a result and --quick measures nothing: give one of them")
    if request.save and request.out is not None:
        raise UsageError("--save writes into the checkout and --out into your own file: give one of them")
    file = folder / "results" / f"{name}.json" if request.save else request.out
    saving = [] if file is None else ["--save", str(file)]
    return [*request.arguments, *(["--quick"] if request.quick else []), *saving, *(["--json"] if as_json else [])]


def parse(name: str, code: int, output: str) -> dict[str, Any]:
    """The result that a benchmark printed; a JobError where it printed none."""
    try:
        result = json.loads(output)
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise JobError(f"the benchmark {name} failed with exit code {code}" if code else f"the benchmark {name} printed no JSON")
    return result


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
