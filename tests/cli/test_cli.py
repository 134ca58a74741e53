"""The `lutetia` command as a user, a script and a shell meet it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lutetia
from lutetia import doctor
from lutetia.cli import main
from tools import require_module

require_module("typer")
COMMANDS = [
    "demo",
    "train",
    "import",
    "compare",
    "predict",
    "evaluate",
    "explain",
    "evaluate-explanations",
    "generate",
    "info",
    "quantize",
    "build",
    "board",
    "page",
    "flow",
    "bench",
    "doctor",
]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}

Capture = pytest.CaptureFixture[str]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "lutetia", *arguments]
    return subprocess.run(command, env=ENVIRONMENT | environment, capture_output=True, text=True, timeout=60)


def error(capsys: Capture) -> dict[str, str]:
    """The error that --json printed; nothing else may be there."""
    said = capsys.readouterr()
    assert said.err == ""
    value = json.loads(said.out)
    assert set(value) == {"error"}
    assert set(value["error"]) == {"kind", "message"}
    return dict(value["error"])


def fail_with(monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    def examine(attempt: bool) -> Any:
        raise problem

    monkeypatch.setattr(doctor, "examine", examine)


def test_alone_it_shows_the_help(capsys: Capture) -> None:
    assert main([]) == 0
    alone = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert alone.strip() == capsys.readouterr().out.strip()
    assert all(command in alone for command in COMMANDS)


def test_alone_with_json_it_lists_the_commands(capsys: Capture) -> None:
    assert main(["--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["version"] == lutetia.__version__
    assert [command["name"] for command in listed["commands"]] == COMMANDS


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lutetia {lutetia.__version__}\n"
    assert main(["--version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": lutetia.__version__}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert "--debug" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctr"], "there is no command 'doctr': did you mean doctor?"),
        (["nonsense"], f"there is no command 'nonsense': did you mean one of {', '.join(COMMANDS[:-1])} or doctor?"),
        (["[red]x"], f"there is no command '[red]x': did you mean one of {', '.join(COMMANDS[:-1])} or doctor?"),
        (["doctor", "--jsn"], "there is no option --jsn: did you mean --json?"),
        (["doctor", "--xyzzy"], "there is no option --xyzzy: lutetia doctor --help lists them"),
        (["--vresion"], "there is no option --vresion: did you mean --version?"),
        (["train"], "missing argument 'CONFIG.toml|DATA' (lutetia train --help shows the usage)"),
        (["demo", "--out"], "option '--out' requires an argument"),
    ],
)
def test_bad_usage_is_one_sentence(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"error: {message}\n")
    assert main([*arguments[:1], "--json", *arguments[1:]]) == 2
    assert error(capsys) == {"kind": "usage", "message": message}


@pytest.mark.parametrize(
    ("problem", "kind", "message", "code"),
    [
        (lutetia.errors.ArgumentError("n is 3, expected 4"), "argument", "n is 3, expected 4", 1),
        (lutetia.errors.DataError("two\nlines \x1b[31m \udcff"), "data", "two lines \\x1b[31m \\udcff", 1),
        (FileNotFoundError(2, "No such file or directory", "a [b].txt"), "file", "a [b].txt: No such file or directory", 1),
        (KeyboardInterrupt(), "interrupted", "interrupted", 130),
        (ZeroDivisionError("oh"), "internal", "unexpected ZeroDivisionError: oh (run again with --debug to see where)", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_one_sentence(
    problem: BaseException, kind: str, message: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    fail_with(monkeypatch, problem)
    assert main(["doctor"]) == code
    assert capsys.readouterr().err == f"error: {message}\n"
    assert main(["doctor", "--json"]) == code
    assert error(capsys) == {"kind": kind, "message": message}


@pytest.mark.parametrize("arguments", [["--debug", "doctor"], ["doctor", "--debug"]])
def test_debug_shows_the_traceback(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    fail_with(monkeypatch, lutetia.errors.DataError("a bad file"))
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last):")
    assert said.endswith("error: a bad file\n")


@pytest.mark.parametrize("arguments", [["--json", "--debug", "build", "x"], ["build", "--debug", "x", "--json"]])
def test_json_and_debug_stand_anywhere(arguments: list[str], capsys: Capture) -> None:
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["kind"] == "data"
    assert "Traceback" in said.err


def test_typer_s_own_runner_meets_the_same(capsys: Capture) -> None:
    from typer.testing import CliRunner

    from lutetia.cli import app

    result = CliRunner().invoke(app, ["doctr"])
    assert (result.exit_code, result.output) == (2, "error: there is no command 'doctr': did you mean doctor?\n")


def test_without_typer_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "error: the lutetia command needs typer, which is not installed: pip install typer\n"
    assert main(["doctor", "--json"]) == 1
    assert error(capsys)["kind"] == "missing_feature"


# --- demo


def test_demo_refuses_a_file_as_folder(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert main(["demo", "--out", str(file)]) == 1
    assert "which is a file, expected a folder" in capsys.readouterr().err
    assert file.read_text() == "mine"


# --- the shell's side


def test_python_m_lutetia() -> None:
    done = run("train", "x.toml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: x.toml does not exist, expected a config file, TOML as in the folder examples\n"


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["--json", "nonsense"]])
def test_a_reader_that_leaves_is_no_noise(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lutetia", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_colour_only_where_it_is_wanted() -> None:
    plain = run("nonsense", TERM="xterm-256color")
    assert "\x1b" not in plain.stderr
    forced = run("nonsense", FORCE_COLOR="1", TERM="xterm-256color")
    assert "\x1b[1;31m" in forced.stderr
    refused = run("nonsense", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color")
    assert "31m" not in refused.stderr


def test_a_poor_terminal_is_no_error() -> None:
    done = run("doctor", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "next: lutetia demo\n")
    assert done.stdout.isascii()


def test_shell_completion() -> None:
    done = run(_LUTETIA_COMPLETE="complete_bash", COMP_WORDS="lutetia do", COMP_CWORD="1")
    assert done.stdout.split() == ["doctor"]
    options = run(_LUTETIA_COMPLETE="complete_bash", COMP_WORDS="lutetia doctor --j", COMP_CWORD="2")
    assert options.stdout.split() == ["--json"]
