"""Every code block in README.md and docs/ is run, each alone, so that a reader can copy any of them.

A block gets an empty namespace and an empty folder. In shell blocks the lines that call `lutetia` are run.
A comment before a block changes that; several directions are separated by semicolons:

    <!-- continues -->        go on in the namespace and the folder of the block before
    <!-- in a shell -->       run the whole block with sh, as it would be pasted
    <!-- exits 1 -->          its commands end with this code
    <!-- needs MODULE -->     run it where this optional module is installed
    <!-- not run: why -->     leave it out
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lutetia
import warm
from lutetia.cli import main
from tools import optional_module, require_module

require_module("typer")  # for the `lutetia` commands

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = sorted(path for path in [README, *ROOT.glob("docs/**/*.md")] if path.exists())

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<language>[\w+-]*)")
COMMENT = re.compile(r"^\s*<!--\s*(?P<text>.*?)\s*-->\s*$")
NOT_RUN = re.compile(r"not run\b:?\s*(?P<reason>.*)")
EXITS = re.compile(r"exits (?P<code>\d+)$")
NEEDS = re.compile(r"needs (?P<module>\w+)$")
PYTHON = ("python", "py", "python3")
SHELL = ("bash", "console", "sh", "shell")


@dataclass(frozen=True)
class Block:
    language: str
    line: int  # of its first line of code, from 1
    code: str
    skip: bool = False
    continues: bool = False
    in_shell: bool = False
    exits: int = 0
    needs: str = ""


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = text.splitlines()
    number = 0
    comment = ""
    while number < len(lines):
        if opening := FENCE.match(lines[number]):
            end = closing_line(lines, number, opening["fence"])
            code = textwrap.dedent("\n".join(lines[number + 1 : end])) + "\n"
            yield Block(opening["language"], number + 2, code, **directions(comment, number))
            number, comment = end, ""
        elif match := COMMENT.match(lines[number]):
            comment = match["text"]
        elif lines[number].strip():
            comment = ""
        number += 1


def closing_line(lines: list[str], opening: int, fence: str) -> int:
    for end in range(opening + 1, len(lines)):
        bare = lines[end].strip()
        if bare.startswith(fence) and not bare.strip(fence[0]):
            return end
    raise ValueError(f"line {opening + 1}: the code block is not closed")


def directions(comment: str, line: int) -> dict[str, Any]:
    """How to run a block, from the comment before it; other comments say nothing."""
    if left_out := NOT_RUN.match(comment):
        if not left_out["reason"]:
            raise ValueError(f"line {line + 1}: a block may be left out only with a reason: <!-- not run: why -->")
        return {"skip": True}
    words = [word.strip() for word in comment.split(";")]
    codes = [int(match["code"]) for word in words if (match := EXITS.match(word))]
    needed = [match["module"] for word in words if (match := NEEDS.match(word))]
    found = {"continues": "continues" in words, "in_shell": "in a shell" in words, "exits": codes[0] if codes else 0}
    return {**found, "needs": needed[0] if needed else ""}


def chains(text: str) -> list[list[Block]]:
    """The blocks that are run, each with those that continue it."""
    found: list[list[Block]] = []
    for block in blocks(text):
        if block.skip or block.language not in PYTHON + SHELL or (block.language in SHELL and not calls(block)):
            continue
        if block.continues:
            if not found:
                raise ValueError(f"line {block.line}: there is no block to continue")
            found[-1].append(block)
        else:
            found.append([block])
    return found


def calls(block: Block) -> bool:
    return block.in_shell or any(commands(block.code))


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


def run_chain(chain: list[Block], name: str) -> None:
    """Run blocks that share a namespace, in the present folder; the error of the first that fails comes out."""
    module = ModuleType("a_page")
    sys.modules[module.__name__] = module  # dataclasses and the like look their module up
    try:
        for block in chain:
            if block.language in PYTHON:
                # The empty lines make tracebacks point into the page.
                exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), module.__dict__)
            elif block.in_shell:
                run_in_shell(block, name)
            else:
                run_commands(block, name)
    finally:
        del sys.modules[module.__name__]


def run_commands(block: Block, name: str) -> None:
    for arguments in commands(block.code):
        code = main(arguments)
        assert code == block.exits, f"{name}, block at line {block.line}: lutetia {shlex.join(arguments)} ended with {code}"


def run_in_shell(block: Block, name: str) -> None:
    """Run a block as a user would paste it, with this Python and this checkout as `python` and `lutetia`."""
    programs = Path.cwd() / ".programs"
    programs.mkdir(exist_ok=True)
    for program, call in (("python", ""), ("lutetia", "-m lutetia ")):
        (programs / program).write_text(f'#!/bin/sh\nexec {warm.command()} {call}"$@"\n')
        (programs / program).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(lutetia.__file__).parents[1]),
    }
    result = subprocess.run(["sh", "-e"], input=block.code, env=environment, capture_output=True, text=True, check=False)
    print(result.stdout)
    place = f"{name}, block at line {block.line}"
    assert result.returncode == block.exits, f"{place}: ended with {result.returncode}\n{result.stdout}{result.stderr}"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lutetia, "debug", lutetia.debug)  # put back what a page sets


ON_PAGES = [
    pytest.param(page, chain, id=f"{page.relative_to(ROOT)}:{chain[0].line}")
    for page in PAGES
    for chain in chains(page.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize(("page", "chain"), ON_PAGES)
def test_block(page: Path, chain: list[Block]) -> None:
    for block in chain:
        if block.needs:
            optional_module(block.needs)
    run_chain(chain, str(page))


# ---- README ----------------------------------------------------------------------------------------------------------


def test_every_block_of_the_readme_stands_alone() -> None:
    found = list(blocks(README.read_text(encoding="utf-8")))
    assert len(found) >= 8
    assert not [block.line for block in found if block.continues or block.skip]


def test_the_readme_tells_its_story_in_fifteen_lines() -> None:
    (story,) = (block for block in blocks(README.read_text(encoding="utf-8")) if block.in_shell)
    for command in ("train", "predict", "explain", "build"):
        assert f"lutetia {command} " in story.code
    assert len(story.code.splitlines()) <= 15


def test_the_readme_names_each_axis_by_its_own_size(capsys: pytest.CaptureFixture[str]) -> None:
    """Where two sizes are equal a drawing gives both one name: the tables would read [N_t × I × O]."""
    (drawn,) = (block for block in blocks(README.read_text(encoding="utf-8")) if "mermaid(" in block.code)
    run_chain([drawn], "README.md")
    shapes = set(re.findall(r"\[(.*?)\]", capsys.readouterr().out.replace('["', "").replace('"]', "")))
    assert "N_t × R × O" in shapes
    assert not shapes & {"N_t × I × O", "N_t × N_t × O"}


def test_the_readme_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    prose = re.sub(r"<!-- results:begin -->.*<!-- results:end -->", "", text, flags=re.DOTALL)
    for block in blocks(text):
        prose = prose.replace(block.code, "")
    assert len(prose.split()) <= 700


# ---- the rules above -------------------------------------------------------------------------------------------------


def run_page(text: str) -> None:
    for chain in chains(text):
        run_chain(chain, "page.md")


def test_a_block_stands_alone() -> None:
    with pytest.raises(NameError):
        run_page("```python\nx = 6\n```\nthen\n\n```python\nprint(7 * x)\n```\n")


def test_a_block_continues_the_one_before(capsys: pytest.CaptureFixture[str]) -> None:
    run_page("```python\nx = 6\n```\nthen\n\n1.  a list\n\n    <!-- continues -->\n    ```py\n    print(7 * x)\n    ```\n")
    assert capsys.readouterr().out == "42\n"
    with pytest.raises(ValueError, match="no block to continue"):
        chains("<!-- continues -->\n```python\nx = 6\n```\n")


def test_a_failing_block_fails_at_its_line() -> None:
    page = "# A page\n\n```python\nx = 1\n```\n\n<!-- continues -->\n```python\n\nassert x == 2\n```\n"
    with pytest.raises(AssertionError) as caught:
        run_page(page)
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == ("page.md", 10)


def test_a_wrong_command_fails() -> None:
    with pytest.raises(AssertionError, match="lutetia nonsense ended with 2"):
        run_page("```bash\nlutetia nonsense\n```\n")
    with pytest.raises(AssertionError, match="lutetia --version ended with 0"):
        run_page("<!-- exits 1 -->\n```bash\nlutetia --version\n```\n")
    run_page("```python\n```\n<!-- continues; exits 2 -->\n\n```console\n$ lutetia nonsense\nerror: ...\n```\n")


def test_a_block_runs_in_a_shell(capfd: pytest.CaptureFixture[str]) -> None:
    page = (
        "<!-- in a shell -->\n```bash\ncat > a.py <<'END'\nimport lutetia; print(lutetia.__file__)\nEND\npython a.py\n{}\n```\n"
    )
    run_page(page.format("lutetia --version"))
    assert f"{ROOT / 'src' / 'lutetia' / '__init__.py'}\nlutetia " in capfd.readouterr().out
    with pytest.raises(AssertionError, match="line 3: ended with 1"):
        run_page(page.format("false\ntrue"))


def test_a_block_is_left_out_only_with_a_reason() -> None:
    run_page("<!-- not run: needs a GPU -->\n\n```python\n1 / 0\n```\n")
    for comment in ("<!-- not run -->", "<!-- not run: -->"):
        with pytest.raises(ValueError, match="only with a reason"):
            run_page(f"text\n\n{comment}\n```python\n1 / 0\n```\n")


def test_a_comment_counts_for_the_next_block_alone() -> None:
    for between in ("```python\npass\n```\n", "some words\n"):
        with pytest.raises(ZeroDivisionError):
            run_page(f"<!-- not run: why -->\n{between}```python\n1 / 0\n```\n")


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
