"""The documentation agrees with the code: diagrams are what runs draw now, links lead somewhere, nothing public is left out."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import re
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest

from lutetia.lut.kernels.names import NAMES
from tools import require_module

require_module("numba")  # the compiled backend is in the diagrams

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCES = ROOT / "src"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
NOTEBOOK_PAGES = {DOCS / "notebooks" / f"{path.stem}.md" for path in ROOT.glob("examples/*.ipynb")}  # written by the build
FENCED = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1`*$", re.DOTALL | re.MULTILINE)
LISTED = re.compile(r"^::: ([\w.]+): (\w+(?:,\s+\w+)*)$", re.MULTILINE)  # names of a module on an API page
LINK = re.compile(r"\]\((?!\w+:)([^)\s]*)\)")


@pytest.fixture(scope="module")
def make_diagrams() -> ModuleType:
    """tools/make_diagrams.py, by its path: the name `tools` is taken by the helpers of the tests."""
    spec = importlib.util.spec_from_file_location("make_diagrams", ROOT / "tools" / "make_diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ---- diagrams --------------------------------------------------------------------------------------------------------


def test_the_diagrams_are_what_runs_draw_now(make_diagrams: ModuleType) -> None:
    for name, drawn in make_diagrams.diagrams().items():
        path = DOCS / "diagrams" / f"{name}.mmd"
        assert path.read_text(encoding="utf-8") == drawn, "run tools/make_diagrams.py and look at what changed"


def test_the_diagrams_speak_in_symbols(make_diagrams: ModuleType) -> None:
    for name, drawn in make_diagrams.diagrams().items():
        sizes = {size for shape in re.findall(r"\[([^\]\"]+)\]", drawn) for size in shape.split(" × ")}
        known = {"B", "I", "O", "N_t", "N_c", "R", "2"}
        assert sizes <= known | ({"S", "S-1", "N_pe", "C", "n_firings"} if "-seq-" in name else set()), name


def test_drawing_writes_the_files_and_nothing_else(
    make_diagrams: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(make_diagrams, "FOLDER", tmp_path)
    monkeypatch.setattr(make_diagrams, "diagrams", lambda: {"one": "new\n"})
    (tmp_path / "one.mmd").write_text("old\n")
    assert make_diagrams.main() == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"one.mmd": "new\n"}


def test_every_diagram_is_a_paragraph_of_one_page() -> None:
    """The site shows a diagram in place of such a link; a link within a sentence would stay a link."""
    paragraph = re.compile(r"(?<=\n\n)\[.*\]\(\S*diagrams/([\w-]+)\.mmd\)(?=\n)")
    shown = [name for page in PAGES for name in paragraph.findall(page.read_text("utf-8"))]
    assert sorted(shown) == sorted(path.stem for path in (DOCS / "diagrams").iterdir())


# ---- pages and links -------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"([\w./-]+\.md)$", nav, re.MULTILINE)
    assert len(listed) == len(set(listed))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert set(listed) == pages | {page.relative_to(DOCS).as_posix() for page in NOTEBOOK_PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def broken_links(page: Path) -> list[str]:
    """The links of a page to a file or a heading that is not there."""
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if (target.resolve() not in NOTEBOOK_PAGES and not target.exists()) or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def anchors(page: Path) -> set[str]:
    """What links may name of a page: its headings, as mkdocs turns them into ids, and the names that an API page describes."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    plain = [
        unicodedata.normalize("NFKD", each).encode("ascii", "ignore").decode() for each in re.findall(r"^#+ (.+)$", text, re.M)
    ]
    headings = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}
    described = {f"{module}.{name}" for module, names in LISTED.findall(text) for name in re.findall(r"\w+", names)}
    for name, members in re.findall(r"^::: (\S+)(?:(?:\n .*)*\n      members:)?(?: \[([^\]]*)\])?$", text, re.M):
        described |= {name, *(f"{name}.{member}" for member in re.findall(r"\w+", members))}
    return headings | described


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Übers: all `of` it\n```\n# no heading\n```\n")
    (tmp_path / "api.md").write_text("::: a.b [\n    c, d\n]\n\n::: a: e,\n    h\n\n::: a.f\n    options:\n      members: [g]\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#ubers-all-of-it) [c](#here) [d](https://example.org/x)\n"
        "[i](api.md#a.b.d) [j](api.md#a.e) [k](api.md#a.e.d) [l](api.md#a.f.g) [m](api.md#a.h)\n"
        "[e](none.md) [f](#there) [g](other.md#no-heading)\n````md\n```\n[h](none.md)\n```\n````\n"
    )
    assert broken_links(page) == ["api.md#a.e.d", "none.md", "#there", "other.md#no-heading"]


# ---- nothing is left out ---------------------------------------------------------------------------------------------


PUBLIC = [
    f"lutetia.{name}"
    for name in ("attention", "flow", "lut", "models", "nn", "precompute", "relevance", "report", "sklearn", "training")
]


@pytest.mark.parametrize("module", PUBLIC)
def test_the_api_pages_of_a_part_list_what_is_public(module: str) -> None:
    pages = DOCS.glob(f"api/{module.removeprefix('lutetia.')}*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    described = set(re.findall(rf"^(?:::: |      heading: ){module}\.(\w+)(?: \[.*)?$", text, re.MULTILINE))
    described |= {name for place, names in LISTED.findall(text) if place == module for name in re.findall(r"\w+", names)}
    if module == "lutetia.precompute":
        described |= {name.rpartition(".")[2] for name in anchors(DOCS / "api" / "precompute-stream.md")}  # under their room
    assert set(importlib.import_module(module).__all__) <= described


@pytest.mark.parametrize("page", sorted(DOCS.glob("api/*.md")), ids=lambda path: path.stem)
def test_what_an_api_page_names_exists(page: Path) -> None:
    """A name that is not there leaves no trace on the page that is made of it."""
    listed = {name for name in anchors(page) if name.startswith("lutetia.")}
    named = {name for name in listed if ".Kernels." not in name}  # those are made from NAMES
    assert {name for name in named if not exists(name)} == set()


def exists(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_every_kernel_is_on_the_api_page_and_named_where_it_is_explained() -> None:
    api = set(re.findall(r"\w+", (DOCS / "api" / "lut-kernels.md").read_text(encoding="utf-8")))
    kernels = {*NAMES[: NAMES.index("read_detectors")], "convert_integers_to_floats"}
    assert kernels <= api
    section = (DOCS / "lut-how.md").read_text(encoding="utf-8").split("## The kernels")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+_\w+)`", section))
    assert {re.sub(r"(_eval)?(_fc|_sparse)?$", "", kernel) for kernel in kernels} <= named


def test_no_docstring_holds_what_a_page_takes_for_a_tag() -> None:
    """`i<j` begins a tag, and the page leaves out all until the next `>`."""
    taken = [f"{path.relative_to(SOURCES)}: {tag}" for path in SOURCES.rglob("*.py") for tag in tags_of(path.read_text())]
    assert taken == []


def tags_of(source: str) -> list[str]:
    """What looks like a tag in the docstrings of public classes and functions, outside of code."""
    public = (
        each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name[0] != "_"
    )
    texts = (re.sub(r"`[^`]*`", "", ast.get_docstring(each) or "") for each in public)
    return [tag for text in texts for tag in re.findall(r"<[a-zA-Z/!?]\w*", text)]


def test_a_tag_in_a_docstring_is_found() -> None:
    assert tags_of('def f():\n    """Σ_{i<j} x, `i<k`, i <= n, i < m."""') == ["<j"]
