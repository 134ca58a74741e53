"""Write docs/results.md, docs/notes/results.md and the tables of README.md from benchmarks/results.

Usage: python tools/make_results.py [--check]

A table in a page is between `<!-- results:begin NAME -->` and `<!-- results:end -->`; the rest of the page is left alone.
README's has no name. With --check nothing is written, and the exit code is 1 if a page differs from the files.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]

from results import FOLDER, Result, load  # noqa: E402
from results_blocks import BLOCKS  # noqa: E402
from results_pages import INTRODUCTION, NOTE_SECTIONS, NOTES, SECTIONS  # noqa: E402
from results_tables import Section, markdown, measured  # noqa: E402

WIDTH = 130  # columns of a line of text
PAGE = ROOT / "docs" / "results.md"
NOTES_PAGE = ROOT / "docs" / "notes" / "results.md"
MARKED = re.compile(r"(<!-- results:begin(?: (?P<name>[\w-]+))? -->\n).*?(<!-- results:end -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        raise SystemExit(__doc__)
    pages = make(read(FOLDER))
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)} {'is not what the results say: run make results' if arguments else 'is new'}")
        if not arguments:
            write(path, pages[path])
    return int(bool(stale and arguments))


def read(folder: Path) -> dict[str, Result]:
    """Every saved result by name; those of a quick run are refused."""
    found = {path.stem: load(path) for path in sorted(folder.glob("*.json"))}
    for name, result in found.items():
        if result["settings"].get("quick"):
            raise ValueError(f"{folder / name}.json is of a quick run, which measures nothing: run it without --quick")
    return found


def make(results: dict[str, Result]) -> dict[Path, str]:
    """The text of every page that shows results."""
    parts = {PAGE: (INTRODUCTION, SECTIONS), NOTES_PAGE: (NOTES, NOTE_SECTIONS)}
    pages = {page: page_text(head, sections, results) for page, (head, sections) in parts.items()}
    for path, blocks in BLOCKS.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        pages[ROOT / path] = put(text, {name: block(results) for name, block in blocks.items()}, path)
    return pages


def put(page: str, blocks: dict[str, str], where: str) -> str:
    """The page with every block in its place; each must have exactly one."""
    places = [match["name"] or "" for match in MARKED.finditer(page)]
    if sorted(places) != sorted(blocks):
        raise ValueError(f"{where} has places for {sorted(places)}, expected one for each of {sorted(blocks)}")
    return MARKED.sub(lambda match: f"{match[1]}\n{blocks[match['name'] or '']}\n\n{match[3]}", page)


def page_text(head: str, sections: Sequence[Section], results: dict[str, Result]) -> str:
    """A whole page."""
    parts = [head]
    for section in sections:
        result = results[section.result]
        machine = measured(result, [table.name for table in section.tables] or [table["name"] for table in result["tables"][:1]])
        parts.append(section_text(section, result, machine))
    return "\n".join(parts)


def section_text(section: Section, result: Result, machine: str) -> str:
    """One claim: the command and what was measured where, the tables, one sentence."""
    command = f"`{result['command']}`." if result["command"] is not None else ""
    setting = " ".join(filter(None, (command, machine, section.setting)))
    lines = [f"## {section.heading}", ""]
    lines += [fill(setting, WIDTH, break_on_hyphens=False), ""] if setting else []
    for table in section.tables:
        lines += [markdown(result, table), ""]
    sentence = section.sentence if isinstance(section.sentence, str) else section.sentence(result)
    return "\n".join([*lines, fill(sentence, WIDTH, break_on_hyphens=False), ""])


def write(path: Path, text: str) -> None:
    """A reader sees the old page or the new one."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
