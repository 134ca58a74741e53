"""The house of CONTRIBUTING.md as numbers and rules: doors, the way imports go, short files, short argument lists."""

from __future__ import annotations

import ast
import importlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import lutetia

HOUSE = Path(lutetia.__file__).parent
ROOT = Path(__file__).parents[1]
PACKAGES = sorted(door.parent.name for door in HOUSE.glob("*/__init__.py"))
# Entered by module: a basement of modules without a door of its own, and one module per library.
BY_MODULE = {"_shared", "integrations"}
# From the ground up: a room imports from below, never from beside or above.
FLOORS = [
    {"_version", "_uncompiled", "_triton_probe", "errors"},
    {"files"},
    {"toml", "_shared"},
    {"flow", "doctor"},
    {"lut", "attention", "relevance", "precompute"},
    {"nn"},
    {"models"},
    {"precompute/integer", "precompute/front/votes.py"},  # they turn whole models into programs and circuits
    {"training", "report"},
    {"sklearn"},
    {"integrations"},
    {"demo", "_fit_probe"},
    {"cli"},
    {"__main__"},
]
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
# Benchmarks that measure a room, not what it is for.
INSIDE = {
    "benchmarks/checks_cost.py": {"lutetia.lut"},
    "benchmarks/circuit_tables.py": {"lutetia.cli"},
    "benchmarks/lut_attention.py": {"lutetia.lut"},
    "benchmarks/lut_cpu.py": {"lutetia.lut"},
    "benchmarks/lut_faithfulness.py": {"lutetia.nn"},
    "benchmarks/lut_reads.py": {"lutetia.nn"},
}
MOST_LINES, MOST_ARGUMENTS, MOST_LONG = 450, 7, 52


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def sources(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of everything imported from lutetia, inside functions, too; a module named in a string counts."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lutetia":
            assert node.module is not None
            assert node.level == 0
            yield from ((node.lineno, node.module, each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, each.name, "") for each in node.names if each.name.split(".")[0] == "lutetia")
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            given = [each.value for each in node.args if isinstance(each, ast.Constant)]
            yield from ((node.lineno, str(each), "") for each in given if str(each).startswith("lutetia."))


def offered(package: str) -> set[str]:
    """The names that a door binds, when it is loaded or when they are touched."""
    door = tree(HOUSE / package / "__init__.py")
    names = {each.asname or each.name for node in ast.walk(door) if isinstance(node, ast.ImportFrom) for each in node.names}
    return names | {node.name for node in door.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def past_a_door(module: str, name: str, own: str) -> str | None:
    """What an import enters past a door: the package whose room it names."""
    _, *way = module.split(".")
    if not way or way[0] not in PACKAGES or way[0] == own:
        return None
    if way[0] in BY_MODULE:
        way = way[1:]
        return f"lutetia.{way[0]}" if len(way) > 1 else None
    is_room = (HOUSE / way[0] / name).is_dir() or (HOUSE / way[0] / f"{name}.py").exists()
    if len(way) > 1 or (name and is_room and name not in offered(way[0])):
        return f"lutetia.{way[0]}"
    return None


def own_package(path: Path) -> str:
    way = path.relative_to(HOUSE).parts if path.is_relative_to(HOUSE) else ("",)
    return way[0] if len(way) > 1 else ""


def test_nobody_imports_past_a_door() -> None:
    found = []
    for path in sources(HOUSE, ROOT / "benchmarks", ROOT / "tools", ROOT / "examples"):
        where = path.relative_to(ROOT).as_posix()
        for line, module, name in imports(path):
            package = past_a_door(module, name, own_package(path))
            if package is not None and package not in INSIDE.get(where, ()):
                found.append(f"{where}:{line} imports {module} {name}")
    assert found == []


@pytest.mark.parametrize(
    ("module", "name", "past"),
    [
        ("lutetia.training.tables", "Cells", True),
        ("lutetia.training", "tables", True),
        ("lutetia.training", "Cells", False),
        ("lutetia.relevance", "pictures", False),  # a module that the door offers
        ("lutetia._shared.pages", "packed", False),
        ("lutetia._shared.page.elements", "", True),
        ("lutetia.errors", "fail", False),
        ("lutetia", "flow", False),
    ],
)
def test_what_is_past_a_door(module: str, name: str, past: bool) -> None:
    assert (past_a_door(module, name, "cli") is not None) is past


def room(path: Path) -> str:
    """The name under which a file stands in FLOORS."""
    way = path.relative_to(HOUSE).as_posix()
    named = [name for name in FLOOR if way == name or way.startswith(f"{name}/") or way == f"{name}.py"]
    return max(named, key=len)


def test_imports_go_one_way() -> None:
    found = []
    for path in sources(HOUSE):
        if path == HOUSE / "__init__.py":
            continue
        for line, module, name in imports(path):
            way = (module if module != "lutetia" else f"lutetia.{name}").split(".")[1]
            if way in FLOOR and way != own_package(path) and FLOOR[way] >= FLOOR[room(path)]:
                found.append(f"{path.relative_to(HOUSE)}:{line} imports {module}")
    # `precompute.Votes`, which used to live there, still works.
    assert [each for each in found if not each.startswith("precompute/__init__.py")] == []


@pytest.mark.parametrize("package", [name for name in PACKAGES if "lazy_door" in (HOUSE / name / "__init__.py").read_text()])
def test_a_lazy_door_offers_what_it_declares(package: str) -> None:
    door = importlib.import_module(f"lutetia.{package}")
    declared = [node for node in tree(HOUSE / package / "__init__.py").body if isinstance(node, ast.If)]
    names = {
        each.asname or each.name for node in ast.walk(declared[0]) if isinstance(node, ast.ImportFrom) for each in node.names
    }
    assert names <= set(dir(door)) | {"Votes", "processes"}
    assert {name for name in dir(door) if name not in vars(door)} <= names
    for name in names:
        assert getattr(door, name, None) is not None or name == "processes", name  # a module, which `import` finds
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        _ = door.nothing


def test_source_files_are_short() -> None:
    lines = {str(path.relative_to(HOUSE)): len(path.read_text("utf-8").splitlines()) for path in sources(HOUSE)}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function declares a sub-command, whose arguments are its options."""
    return any(ast.unparse(each).startswith("app.command(") for each in node.decorator_list)


def test_argument_lists_are_short() -> None:
    long = []
    for path in sources(HOUSE):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_command(node):
                given = node.args
                names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
                if len([name for name in names if name not in ("self", "cls")]) > MOST_ARGUMENTS:
                    long.append(f"{path.relative_to(HOUSE)}:{node.lineno} {node.name}")
    assert len(long) <= MOST_LONG, long


def test_no_object_changes_its_class() -> None:
    found = []
    for path in sources(HOUSE):
        for node in ast.walk(tree(path)):
            targets = node.targets if isinstance(node, ast.Assign) else []
            found += [f"{path.relative_to(HOUSE)}:{node.lineno}" for each in targets if getattr(each, "attr", "") == "__class__"]
    assert found == []


def test_no_two_test_files_have_one_name() -> None:
    """Pytest imports them by name, and refuses the second."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
