"""What help shows is what works: every example is typed, every value completes, every list is whole."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from setting import SPECIES

import lutetia
from lutetia import demo
from lutetia.cli import compare, main, values
from lutetia.cli.commands import app
from lutetia.precompute import TARGETS
from lutetia.report.attribution import RULES
from lutetia.sklearn import PEER_METHODS, contestants, play

Capture = pytest.CaptureFixture[str]
ROOT = Path(lutetia.__file__).parent.parent
SMALL = ("--set", "fit.n_tables=6")
EXAMPLE = re.compile(r"^ *(lutetia .+)$", re.MULTILINE)


def commands() -> dict[str, Any]:
    from typer.main import get_command

    return get_command(app).commands  # type: ignore[attr-defined,no-any-return]


def options_of(name: str) -> set[str]:
    return {option for parameter in commands()[name].params for option in parameter.opts}


EXAMPLES = [(name, words) for name, command in commands().items() for words in EXAMPLE.findall(command.help or "")]


@pytest.fixture(scope="module")
def worked(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user who has typed the examples of `train`."""
    here = tmp_path_factory.mktemp("help") / "here"
    shutil.copytree(trained, here, symlinks=True)
    assert main(["train", f"{here}/flowers.csv", "--target", "species", "--out", f"{here}/runs/flowers", *SMALL]) == 0
    return here


@pytest.fixture
def folder(worked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; `train` makes its runs anew."""
    shutil.copytree(worked, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_every_command_has_an_example() -> None:
    assert {name for name, _ in EXAMPLES} == set(commands())
    assert all(1 <= sum(each == name for each, _ in EXAMPLES) <= 2 for name in commands())


def test_the_examples_follow_each_other() -> None:
    """Every run that an example takes is one that an example of `train` writes; that of the digits is in examples/digits.toml."""
    written = {"runs/digits"}
    for name, words in EXAMPLES:
        first, *rest = shlex.split(words)[2:] or [""]
        if name == "train":
            written.add(dict(pairwise(rest)).get("--out", f"runs/{Path(first).stem}"))
    taken = {word for _, words in EXAMPLES for word in shlex.split(words) if word.startswith("runs/")}
    assert taken == written


def anywhere(words: list[str]) -> list[str]:
    """A command without the place where it writes: README and docs/start.md type one that does not name it."""
    return [word for before, word in pairwise(["", *words]) if "--out" not in (before, word)]


@pytest.mark.usefixtures("warm_benchmarks")
@pytest.mark.parametrize(("name", "words"), EXAMPLES, ids=[words for _, words in EXAMPLES])
def test_every_example_works(name: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    arguments = shlex.split(words)[1:]
    if name == "train":
        shutil.rmtree(folder / "runs")
    monkeypatch.setattr(demo, "run", lambda out, console, json: {"out": str(out)})  # minutes: tests of its own do it
    monkeypatch.setattr(compare, "play_apart", lambda contest, fit, seconds: play(contest, fit))
    monkeypatch.setattr(compare, "contestants", partial(contestants, methods=PEER_METHODS[:2]))
    answer = {"input": "flowers.csv row 0", "class": "setosa", "equal": True}
    board = {"predictions": [answer], "equal": 1, "questions": 1, "board": "iCEBreaker", "answers_per_second": 1.0}
    monkeypatch.setattr("lutetia.cli.board.ask", lambda request, show: {**board, "model": "out/build/board/model"})
    if name == "bench":
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert main(arguments) == 0, capsys.readouterr().err
    said = capsys.readouterr()
    for option, value in pairwise(arguments):
        if option in ("--html", "--csv") or (option == "--out" and name != "demo"):
            assert Path(value).exists()
    if "--json" not in arguments:
        last = said.err.splitlines()[-1]
        assert last.startswith("next: lutetia ")
        named = shlex.split(last)[2:]
        assert named[0] in commands()
        typed = name != "train" and anywhere(named) in (anywhere(shlex.split(words)[1:]) for _, words in EXAMPLES)  # elsewhere
        if name not in ("demo", "board") and not typed:  # the folder of a demo is not there, nor that of a board
            assert main(named) == 0, capsys.readouterr().err
            if "--row" in arguments and "--row" in options_of(named[0]):
                assert ("--row", arguments[arguments.index("--row") + 1]) in pairwise(named)


def test_the_next_command_works_for_odd_inputs_too(folder: Path, capsys: Capture) -> None:
    """A folder of images, of which `explain` takes one, and numbers that begin with a minus sign."""
    (folder / "images").mkdir()
    shutil.copy(folder / "digit.png", folder / "images/a digit.png")
    for words in (["runs/digits", "images"], ["runs/iris", "--", "-5.1,3.5,1.4,0.2"]):
        assert main(["predict", *words]) == 0
        named = shlex.split(capsys.readouterr().err.splitlines()[-1])[2:]
        assert named[0] == "explain"
        assert main(named) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", [None, *commands()])
def test_help_is_short_for_h(name: str | None, capsys: Capture) -> None:
    words = [name] if name else []
    assert main([*words, "-h"]) == 0
    short = capsys.readouterr().out
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out == short
    assert "Usage: lutetia" in short


def test_help_names_every_value(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["explain", "-h"]) == 0
    text = capsys.readouterr().out
    assert all(rule in text for rule in RULES)
    assert tuple(RULES) == values.RULES
    assert tuple(TARGETS) == values.TARGETS
    assert main(["generate", "-h"]) == 0
    prompt = next(line for line in capsys.readouterr().out.splitlines() if "--prompt" in line and "│" in line)
    assert "a line break" in prompt


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("explain runs/iris x --rule gr", ["gradient"]),
        ("explain runs/iris x --rule d", ["decisive", "dynamic"]),
        ("explain runs/iris x --target v", SPECIES[1:]),
        ("explain runs/none x --target v", []),
        ("build runs/iris --target lut", ["lut6", "lut4"]),
        ("evaluate runs/iris --split t", ["train", "test"]),
        ("bench lut_st", ["lut_step"]),
        ("train flowers.csv --task r", ["regression", "ranking"]),
        ("train flowers.csv --device c", ["cpu", "cuda"]),
    ],
)
def test_values_complete_in_the_shell(typed: str, offered: list[str], trained: Path) -> None:
    code = (
        "import sys\nfrom lutetia.cli import main\ncode = main([])\n"
        "print('torch' in sys.modules, file=sys.stderr)\nsys.exit(code)"
    )
    words = ["lutetia", *typed.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_LUTETIA_COMPLETE": "complete_bash"}
    environment |= {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=trained, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == offered
    assert done.stderr.split() == ["False"]  # light: torch takes seconds to import
