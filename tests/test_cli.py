"""The `lutetia` command as a user, a script and a shell meet it."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lutetia
from lutetia import doctor
from lutetia.cli import bench, main
from tools import require_module

require_module("typer")
COMMANDS = ["demo", "train", "predict", "evaluate", "explain", "generate", "info", "build", "flow", "bench", "doctor"]
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
        (["train"], "missing argument 'CONFIG.toml' (lutetia train --help shows the usage)"),
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


# --- bench


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with benchmarks, in which we stand; the package in use lies elsewhere."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "lutetia"\n')
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    hello = '"""Say hello.\n\nAt length."""\n\ndef main(argv):\n    print("hello", argv, flush=True)\n    return len(argv)\n'
    (folder / "hello.py").write_text(hello)
    (folder / "helper.py").write_text('"""Not a benchmark: no main."""\nx = 1 / 0\n')
    (folder / "silent.py").write_text("def main(argv):\n    return 0\n")
    (folder / "torn.py").write_text("def main(")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(bench, "PACKAGE", tmp_path / "lib" / "site-packages" / "lutetia")
    return tmp_path


def test_bench_lists(checkout: Path, capsys: Capture) -> None:
    assert main(["bench"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _ in lines] == ["hello", "torn"]
    assert lines[0][1] == "Say hello."
    assert lines[1][1].startswith("cannot be read: ")
    assert main(["bench", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["benchmarks"]
    assert listed[0] == {"name": "hello", "about": "Say hello."}


def test_bench_runs_one(checkout: Path, capfd: Capture) -> None:
    assert main(["bench", "hello"]) == 0
    assert capfd.readouterr().out == "hello []\n"
    assert main(["bench", "hello", "--", "--json", "3"]) == 1
    said = capfd.readouterr()
    assert said.out == "hello ['--json', '3']\n"
    assert said.err == "error: the benchmark hello failed with exit code 2\n"
    assert main(["bench", "--json", "hello"]) == 0
    assert json.loads(capfd.readouterr().out) == {"benchmark": "hello", "exit_code": 0, "output": "hello []\n"}


REAL = sorted(path for path in (Path(__file__).parent.parent / "benchmarks").glob("*.py") if "timing" not in path.stem)


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_our_benchmarks_can_be_run(path: Path) -> None:
    """Each has a sentence to be listed with, and a `main` that takes arguments and has a default for them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
    assert [argument.arg for argument in function.args.args] == ["argv"]
    assert len(function.args.defaults) == 1
    assert "parse_args(argv)" in ast.unparse(function)


def test_bench_suggests_a_name(checkout: Path, capsys: Capture) -> None:
    assert main(["bench", "helo"]) == 2
    assert capsys.readouterr().err == "error: there is no benchmark 'helo': did you mean hello?\n"


def test_bench_where_there_are_none(checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(checkout)
    (checkout / "benchmarks").rename(checkout / "elsewhere")
    assert main(["bench"]) == 0
    assert capsys.readouterr().out == f"{checkout / 'benchmarks'} holds no benchmarks yet\n"
    assert main(["bench", "hello"]) == 2


def test_bench_outside_a_checkout(checkout: Path, capsys: Capture) -> None:
    (checkout / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert main(["bench"]) == 1
    assert "there are no benchmarks here: they come with the source checkout" in capsys.readouterr().err


def test_ctrl_c_ends_with_one_word(checkout: Path) -> None:
    sleepy = '"""Sleep."""\nimport time\n\ndef main(argv):\n    print("ready", flush=True)\n    time.sleep(60)\n'
    (checkout / "benchmarks" / "sleepy.py").write_text(sleepy)
    code = (
        "import sys, pathlib, lutetia.cli, lutetia.cli.bench as bench; bench.PACKAGE = pathlib.Path('/a/b/c/d'); "
        "sys.exit(lutetia.cli.main(['bench', 'sleepy']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)  # what the terminal does: to the command and to the benchmark
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "error: interrupted\n")


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
