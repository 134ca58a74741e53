"""Every code block in README.md and docs/ is run, page by page, so that the documentation cannot lie.

The Python blocks of a page share one namespace; in bash and console blocks the lines that call `lutetia` are run.
Two comments before a block change that: `<!-- not run: why -->` leaves it out, and `<!-- exits 1 -->` says how its commands end.
"""

from __future__ import annotations

import itertools
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import lutetia
from lutetia.cli import main
from tools import require_module

require_module("typer")  # for the `lutetia` commands

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(path for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")] if path.exists())

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<language>[\w+-]*)")
COMMENT = re.compile(r"^\s*<!--\s*(?P<text>.*?)\s*-->\s*$")
NOT_RUN = re.compile(r"not run\b:?\s*(?P<reason>.*)")
EXITS = re.compile(r"exits (?P<code>\d+)$")
PYTHON = ("python", "py", "python3")
SHELL = ("bash", "console", "sh", "shell")


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of its first line of code, from 1
    code: str
    skip: bool = False
    exits: int = 0


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = text.splitlines()
    at = 0
    comment = ""
    while at < len(lines):
        if opening := FENCE.match(lines[at]):
            end = closing_line(lines, at, opening["fence"])
            code = textwrap.dedent("\n".join(lines[at + 1 : end])) + "\n"
            yield Block(opening["language"], at + 2, code, *directions(comment, at))
            at, comment = end, ""
        elif found := COMMENT.match(lines[at]):
            comment = found["text"]
        elif lines[at].strip():
            comment = ""
        at += 1


def closing_line(lines: list[str], at: int, fence: str) -> int:
    for end in range(at + 1, len(lines)):
        bare = lines[end].strip()
        if bare.startswith(fence) and not bare.strip(fence[0]):
            return end
    raise ValueError(f"line {at + 1}: the code block is not closed")


def directions(comment: str, at: int) -> tuple[bool, int]:
    """Whether to leave a block out, and the exit code its commands must end with, from the comment before it."""
    if left_out := NOT_RUN.match(comment):
        if not left_out["reason"]:
            raise ValueError(f"line {at + 1}: a block may be left out only with a reason: <!-- not run: why -->")
        return True, 0
    code = EXITS.match(comment)
    return False, int(code["code"]) if code else 0


def commands(code: str) -> Iterator[list[str]]:
    """The arguments of each `lutetia` call in a shell block; pipes and redirections are the shell's own."""
    for line in code.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        if "lutetia" in line.split():
            words = shlex.shlex(line, posix=True, punctuation_chars=True)
            words.whitespace_split = True
            for operator, group in itertools.groupby(words, key=lambda word: not set(word) - set("|&;<>()")):
                first, *arguments = group
                if not operator and first == "lutetia":
                    yield arguments


def run_page(text: str, name: str) -> None:
    """Run the blocks of a page in the present folder; the error of the first that fails comes out."""
    module = ModuleType("a_page")
    sys.modules[module.__name__] = module  # dataclasses and the like look their module up
    try:
        for block in blocks(text):
            if block.skip:
                continue
            if block.language in PYTHON:
                # The empty lines make tracebacks point into the page.
                exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), module.__dict__)
            elif block.language in SHELL:
                run_commands(block, name)
    finally:
        del sys.modules[module.__name__]


def run_commands(block: Block, name: str) -> None:
    for arguments in commands(block.code):
        code = main(arguments)
        assert code == block.exits, f"{name}, block at line {block.line}: lutetia {shlex.join(arguments)} ended with {code}"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lutetia, "debug", lutetia.debug)  # put back what a page sets


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page(page: Path) -> None:
    run_page(page.read_text(encoding="utf-8"), str(page))


def test_there_are_pages() -> None:
    assert len(PAGES) >= 2


def test_blocks_run_in_order_in_one_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("```python\nx = 6\n```\nthen\n\n1.  a list\n\n    ```py\n    print(7 * x)\n    ```\n", "page")
    assert capsys.readouterr().out == "42\n"


def test_a_failing_block_fails_at_its_line() -> None:
    page = "# A page\n\n```python\nx = 1\n```\n\n```python\n\nassert x == 2\n```\n"
    with pytest.raises(AssertionError) as caught:
        run_page(page, "page.md")
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == ("page.md", 9)


def test_a_wrong_command_fails() -> None:
    with pytest.raises(AssertionError, match="lutetia nonsense ended with 2"):
        run_page("```bash\nlutetia nonsense\n```\n", "page")
    with pytest.raises(AssertionError, match="lutetia --version ended with 0"):
        run_page("<!-- exits 1 -->\n```bash\nlutetia --version\n```\n", "page")
    run_page("<!-- exits 2 -->\n\n```console\n$ lutetia nonsense\nerror: ...\n```\n", "page")


def test_a_block_is_left_out_only_with_a_reason() -> None:
    run_page("<!-- not run: needs a GPU -->\n\n```python\n1 / 0\n```\n", "page")
    for comment in ("<!-- not run -->", "<!-- not run: -->"):
        with pytest.raises(ValueError, match="only with a reason"):
            run_page(f"text\n\n{comment}\n```python\n1 / 0\n```\n", "page")


def test_a_comment_counts_for_the_next_block_alone() -> None:
    for between in ("```python\npass\n```\n", "some words\n"):
        with pytest.raises(ZeroDivisionError):
            run_page(f"<!-- not run: why -->\n{between}```python\n1 / 0\n```\n", "page")


def test_an_open_block_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: the code block is not closed"):
        list(blocks("text\n```python\nx = 1\n"))


def test_a_fence_inside_a_longer_fence_is_text() -> None:
    (block,) = blocks("````markdown\n```python\n1 / 0\n```\n````\n")
    assert (block.language, block.code) == ("markdown", "```python\n1 / 0\n```\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lutetia doctor --json | python -m json.tool", [["doctor", "--json"]]),
        ("$ lutetia demo --out 'a b'  # a comment", [["demo", "--out", "a b"]]),
        ("lutetia \\\n  doctor > file", [["doctor"]]),
        ("lutetia", [[]]),
        ("pip install lutetia\nlutetian 'x\n# lutetia doctor", []),
        ("lutetia bench x -- --size 3 && lutetia doctor", [["bench", "x", "--", "--size", "3"], ["doctor"]]),
    ],
)
def test_commands(line: str, expected: list[list[str]]) -> None:
    assert list(commands(line)) == expected
