"""Every sub-command survives misuse: one sentence, the right exit code, no traceback, and all files as they were before."""

from __future__ import annotations

import json
import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import lutetia
import warm
from lutetia import doctor
from lutetia.cli import main
from lutetia.demo import telling
from lutetia.errors import DataError
from lutetia.models import LUTClassifier, LUTTransformer
from tools import require_module, require_tool

require_module("typer")
require_module("numba")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
COMMANDS = ["demo", "train", "generate", "explain", "build", "bench", "flow", "doctor"]
ROW = "1,2,3,4,5,6"  # what the classifier takes
CONFIG = """
[model]
kind = "classifier"
input_shape = [8, 8]
n_classes = 10
layers = [{kind = "lut", n_outputs = 10, n_detectors = 4, n_anchors = 3}]
[data]
kind = "digits"
valid = 0.1
[train]
steps = 5
batch_size = 8
log_every = 1
"""

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, what is left of them when a file is cut, and other things that are no models. Nothing may change it."""
    folder = tmp_path_factory.mktemp("given")
    layers = [{"kind": "lut", "n_outputs": 3, "n_detectors": 4, "n_anchors": 3}]
    LUTClassifier(input_shape=(6,), n_classes=3, readout="none", layers=layers, initial_noise=1.0, seed=0).save_pretrained(
        folder / "classifier"
    )
    LUTTransformer(context=32, width=16, n_layers=1, n_detectors=2, ff_detectors=4, ff_anchors=3, seed=0).save_pretrained(
        folder / "language"
    )
    for kind in ("classifier", "language"):
        for name in ("model.safetensors", "config.toml", "manifest.json"):
            cut = shutil.copytree(folder / kind, folder / f"{kind} cut {name}") / name
            cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    (folder / "config.toml").write_text(CONFIG)
    (folder / "cut.toml").write_text(CONFIG[: len(CONFIG) // 2])
    (folder / "file").write_text("neither a model nor a config")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands stand, so that what they write unasked is found."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def content(folder: Path) -> dict[str, bytes | None]:
    """Every file with its bytes, every folder."""
    return {str(each.relative_to(folder)): each.read_bytes() if each.is_file() else None for each in folder.rglob("*")}


def fails(capsys: Capture, code: int, *arguments: str) -> str:
    """Run a command that must fail, as people and as programs do; the one sentence that both are told."""
    assert main([*arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["error"]
    assert main(list(arguments)) == code
    said = capsys.readouterr()
    assert said.out == ""
    *progress, sentence = said.err.splitlines()
    assert progress == [] or (arguments[0] == "build" and "No space" in sentence)  # which alone tells its steps
    assert sentence == f"error: {document['error']['message']}"
    assert document["error"]["kind"] == "usage" if code == 2 else document["error"]["kind"] not in ("usage", "internal")
    assert "Traceback" not in said.err
    return sentence


# ---- what is given ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train", "generate", "explain", "build", "flow"])
def test_no_arguments(command: str, capsys: Capture) -> None:
    wanted = "CONFIG.toml|DATA" if command == "train" else "CKPT"
    assert f"missing argument '{wanted}' (lutetia {command} --help shows the usage)" in fails(capsys, 2, command)


READERS = {"generate": [], "explain": [ROW], "build": [], "flow": [ROW]}  # and what each takes besides a checkpoint


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("checkpoint", "sentence"),
    [
        ("none", "none does not exist, expected the folder of a saved model"),
        ("file", "file is a file, expected the folder of a saved model"),
        ("empty", "empty is not the folder of a saved model: it holds no config.toml"),
        *(
            (f"{kind} cut {name}", f"{name} {said}")
            for kind in ("classifier", "language")
            for name, said in (
                ("model.safetensors", "has"),
                ("config.toml", "has"),
                ("manifest.json", "cannot be read: it is damaged"),
            )
        ),
    ],
)
def test_a_checkpoint_that_is_none(
    command: str, checkpoint: str, sentence: str, given: Path, here: Path, capsys: Capture
) -> None:
    before = content(given)
    assert sentence in fails(capsys, 1, command, str(given / checkpoint), *READERS[command])
    assert (content(given), content(here)) == (before, {})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["generate", "{}/classifier"], "holds a LUTClassifier, which writes no text: expected a language model"),
        (["build", "{}/language"], "holds a language model, which is built as a program: --target c or verilog"),
        (["explain", "{}/classifier", "some words"], "some words does not exist, expected an image"),
        (["explain", "{}/classifier", "{}/empty"], "empty is a folder, expected an image"),
        (["explain", "{}/language", "{}/empty"], "empty is a folder, expected a file of text"),
        (["flow", "{}/classifier", "{}/file"], "file ends in no suffix, expected an image"),
        (["flow", "{}/classifier", "1,2"], "INPUT has 2 numbers, expected 6"),
        (["train", "{}/none.toml"], "none.toml does not exist, expected a config file"),
        (["train", "{}/classifier"], "classifier holds no folders with images, expected a .csv"),
        (["train", "{}/file"], "file is not TOML"),
        (["train", "{}/cut.toml"], "cut.toml"),
        (["train", "{}/classifier/config.toml"], "config.toml"),
        (["train", "{}/config.toml", "--data", "{}/none", "--set", "data.kind=npz", "--set", "data.path=a.npz"], "a.npz"),
        (["train", "{}/config.toml", "--out", "{}/file"], "file is a file, or lies in one"),
        (["train", "{}/config.toml", "--out", "{}/classifier cut config.toml"], "holds"),
        (["train", "{}/config.toml", "--out", "{}"], "holds"),
        (["build", "{}/classifier", "--out", "{}/file"], "file already exists and was not built here"),
        (["build", "{}/classifier", "--out", "{}/file/in"], "file is a file, expected a folder"),
        (["demo", "--out", "{}/file"], "which is a file, expected a folder"),
        (["demo", "--out", "{}/file/in"], "cannot be created: Not a directory"),
        (["demo", "--out", "{}"], "not a demo: choose another folder, or empty it"),
        (["flow", "{}/classifier", ROW, "--out", "{}/none/run.html"], "there is no folder"),
        (["explain", "{}/classifier", ROW, "--html", "{}/none/why.html"], "there is no folder"),
    ],
)
def test_things_of_another_kind(arguments: list[str], sentence: str, given: Path, here: Path, capsys: Capture) -> None:
    before = content(given)
    assert sentence in fails(capsys, 1, *(each.replace("{}", str(given)) for each in arguments))
    assert (content(given), content(here)) == (before, {})


# ---- where it is written ---------------------------------------------------------------------------------------------

WRITERS = {  # each with where it writes, as the end of a path
    "train": ["train", "{given}/config.toml", "--out", "{disk}/new/run"],
    "train here": ["train", "{given}/config.toml", "--out", "{disk}"],
    "build": ["build", "{given}/classifier", "--no-prove", "--input-bits", "2", "--out", "{disk}/new/built"],
    "demo": ["demo", "--out", "{disk}/new/demo"],
    "demo here": ["demo", "--out", "{disk}"],
    "explain page": ["explain", "{given}/classifier", ROW, "--html", "{disk}/why.html"],
    "explain picture": ["explain", "{given}/classifier", ROW, "--png", "{disk}/why.png"],
    "flow": ["flow", "{given}/classifier", ROW, "--out", "{disk}/run.html"],
}


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A disk of its own; where mounting is not allowed the test is skipped."""
    place.mkdir()
    command = [require_tool("mount"), "-t", "tmpfs", "-o", options, "none", str(place)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here: that takes root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk on which a page, a model or a circuit has no room."""
    with mounted(tmp_path / "disk", "size=16k") as place:
        yield place


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing can be written; against root, whom no permission stops, it takes a disk of its own."""
    if os.geteuid() == 0:
        with mounted(tmp_path / "disk", "ro") as place:
            yield place
    else:
        (tmp_path / "disk").mkdir(mode=0o555)
        yield tmp_path / "disk"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_that_is_read_only(
    writer: str, read_only: Path, given: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    without_tools(monkeypatch)
    sentence = fails(capsys, 1, *(each.format(given=given, disk=read_only) for each in WRITERS[writer]))
    if writer.split()[0] in ("train", "demo"):  # where the system itself refuses the first file
        assert "Read-only file system" in sentence or "Permission denied" in sentence
        assert str(read_only) in sentence
    else:
        assert sentence.endswith(f"cannot be written: {read_only} is read-only")  # told before the work
    assert (content(read_only), content(here)) == ({}, {})


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_is_full(
    writer: str, full_disk: Path, given: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    without_tools(monkeypatch)
    sentence = fails(capsys, 1, *(each.format(given=given, disk=full_disk) for each in WRITERS[writer]))
    assert "cannot be written: " in sentence
    assert "No space left on device" in sentence
    assert (content(full_disk), content(here)) == ({}, {})


def test_a_full_disk_gives_the_old_demo_back(full_disk: Path, capsys: Capture) -> None:
    for name in ("digits", "text"):
        (full_disk / name).mkdir()
    (full_disk / "report.html").write_text("the old page")
    (full_disk / telling.LIST).write_text("report.html")
    before = content(full_disk)
    assert "No space left on device" in fails(capsys, 1, "demo", "--out", str(full_disk))
    assert content(full_disk) == before


def without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of a second: the tools are not what fails here."""
    from lutetia.precompute.tools import find as tools
    from lutetia.precompute.tools import simulate

    for module in (tools, simulate):
        monkeypatch.setattr(module, "find_tool", lambda tool: None)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full(unbuffered: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "lutetia", "--json"]
        environment = {**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1


def test_metrics_that_find_no_room(here: Path) -> None:
    from lutetia.training.metrics import Metrics

    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    metrics = Metrics(here, 0, tensorboard=False, say=print)
    metrics.close()
    metrics._file = open("/dev/full", "a")  # noqa: SIM115  # closed by close
    with pytest.raises(DataError, match=r"metrics\.jsonl cannot be written: No space left on device"):
        metrics.write("train", 1, {"loss": 0.5})
    metrics.close()  # what was not written then is not written now, and is no second error


def test_a_demo_replaces_demos_only(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def tell(context: telling.Context) -> telling.Told:
        assert os.listdir(context.out) == [each for each in os.listdir(context.out) if each.endswith(".old")]
        (context.out / telling.PAGE).write_text("new")
        (context.out / "digits").mkdir()
        (context.out / "digits" / "last").symlink_to(".")
        return telling.Told("done")

    monkeypatch.setattr(telling, "chapters", lambda: (telling.Chapter("one", "do one thing", tell),))
    for _ in range(2):
        assert main(["demo", "--out", "out", "--json"]) == 0
        assert Path("out", telling.PAGE).read_text() == "new"
        assert Path("out", telling.LIST).read_text() == "digits/last/\nreport.html\n"
    capsys.readouterr()
    for mine in ("mine.txt", "digits/mine.txt"):
        Path("out", mine).write_text("mine")
        before = content(here / "out")
        assert f"which holds {mine}, not a demo" in fails(capsys, 1, "demo", "--out", "out")
        assert content(here / "out") == before
        Path("out", mine).unlink()
    Path("out", telling.LIST).unlink()
    assert "which holds digits/last/, not a demo" in fails(capsys, 1, "demo", "--out", "out")


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------

# Each with a file, and what it says once the work has begun. Of `train`, which saves and goes on, see tests/training.
INTERRUPTED = {
    "generate": (["generate", "{given}/language", "--prompt", "def ", "--max-new", "10000000"], "stdout", "def "),
    "build": (["build", "{given}/classifier", "--input-bits", "2", "--out", "out"], "stderr", "fuse"),  # the rest takes 50 ms
    "demo": (["demo", "--out", "out"], "out/digits/metrics.jsonl", "loss"),
}


@pytest.mark.parametrize("command", INTERRUPTED)
def test_ctrl_c(command: str, given: Path, here: Path, tmp_path: Path) -> None:
    arguments, sign, words = INTERRUPTED[command]
    if command == "demo":  # one that was made before is given back
        (here / "out" / "digits").mkdir(parents=True)
        (here / "out" / "report.html").write_text("the old page")
        (here / "out" / "digits" / "config.toml").write_text("the old run")
        (here / "out" / telling.LIST).write_text("report.html\ndigits/config.toml\n")
    before = content(here)
    spare = tmp_path / "spare"
    spare.mkdir()
    told = {name: tmp_path / name for name in ("stdout", "stderr")}
    with open(told["stdout"], "w") as out, open(told["stderr"], "w") as err:
        process = warm.Process(
            ["-m", "lutetia", *(each.format(given=given) for each in arguments)],
            env={**ENVIRONMENT, "TMPDIR": str(spare)}, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(told.get(sign, here / sign), words, process)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to the command, and to the tools it runs
        code = process.wait(timeout=60)
    finally:
        process.kill()
    said = told["stderr"].read_text()
    assert "Traceback" not in said
    # Python itself ends by the signal where Ctrl-C found it in code made from text; to a shell both are 130.
    assert code in (130, -signal.SIGINT), said
    *progress, sentence = said.splitlines()
    assert command == "build" or progress == []
    assert sentence == "error: interrupted"
    assert content(here) == before
    assert [each for each in os.listdir(spare) if not each.startswith("torch")] == []  # torch's cache is its own affair


def wait_for(file: Path, words: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 90
    while not (file.exists() and words in file.read_text(errors="replace")):
        assert process.poll() is None, "it ended before it was interrupted"
        assert time.monotonic() < until
        time.sleep(0.002)


def test_ctrl_c_that_a_package_swallows(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def examine(attempt: bool) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half of a package") from None

    monkeypatch.setattr(doctor, "examine", examine)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_a_package_swallows_for_good(given: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """As a compiler does, or what is called when an object is cleared away: the next byte is not written."""
    from lutetia.models import LUTTransformer

    class Cleared:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def generate(*_: object, **__: object) -> Iterator[bytes]:
        yield b"a"
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        Cleared()
        yield from [b"b"] * 100

    monkeypatch.setattr(LUTTransformer, "generate", generate)
    hook = sys.unraisablehook
    assert main(["generate", str(given / "language"), "--prompt", ">"]) == 130
    said = capsys.readouterr()
    assert (said.out.strip(), said.err) == (">a", "error: interrupted\n")
    assert sys.unraisablehook is hook


def test_ctrl_c_before_the_work(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    from lutetia.cli.guard import Group

    def make_context(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Group, "make_context", make_context)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_a_run_that_fails_before_its_first_checkpoint_leaves_nothing(
    given: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from lutetia.training.loop import Trainer

    def step(self: Trainer) -> None:
        raise KeyboardInterrupt  # Ctrl-C for the second time

    monkeypatch.setattr(Trainer, "step", step)
    (here / "kept").mkdir()
    for out in ("new/run", "kept"):
        assert main(["train", str(given / "config.toml"), "--out", out]) == 130
        assert content(here) == {"kept": None}
    assert capsys.readouterr().err == 2 * "error: interrupted\n"


# ---- texts of others -------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "{given}/language", HOSTILE[:31], "--html", "page.html"],
        ["explain", "{odd}/classifier", "{odd}/row.csv", "--html", "page.html"],
        ["flow", "{odd}/classifier", "{odd}/row.csv", "--out", "page.html"],
        ["flow", "{given}/language", HOSTILE[:31], "--out", "page.html"],
    ],
    ids=lambda words: f"{words[0]} {words[1].partition('/')[2]}",
)
def test_pages_hold_no_markup_of_others(
    arguments: list[str], given: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    odd = here / HOSTILE.replace("/", "∕")  # a name that a folder may have
    shutil.copytree(given / "classifier", odd / "classifier")
    (odd / "row.csv").write_text(ROW)
    assert main([each.replace("{given}", str(given)).replace("{odd}", str(odd)) for each in arguments]) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<img" not in page
    assert page.count("<script") == page.count("</script") == 2  # its data, and its own


@pytest.mark.skipif(sys.platform == "darwin", reason="names of files are UTF-8 there")
def test_a_name_that_is_no_utf8(given: Path, capsys: Capture) -> None:
    odd = os.fsdecode(b"a\xff<b>")
    shutil.copytree(given / "classifier", odd)
    for command, more in READERS.items():
        assert odd.replace("\udcff", "\\udcff") in fails(capsys, 1, command, odd, *more)
    Path(f"{odd}.csv").write_text(ROW)
    assert main(["explain", str(given / "classifier"), f"{odd}.csv", "--html", "page.html", "--json"]) == 0
    assert "a?&lt;b&gt;.csv" in Path("page.html").read_text(encoding="utf-8")


# ---- help and completion ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shell", "words", "answer"),
    [
        ("zsh", "lutetia gen", '"generate"'),
        ("zsh", "lutetia build --inp", '"--input-bits"'),
        ("fish", "lutetia gen", "generate\t"),
        ("fish", "lutetia build --inp", "--input-bits\t"),
    ],
)
def test_shells_are_answered(shell: str, words: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("_LUTETIA_COMPLETE", f"source_{shell}")
    assert main([]) == 0
    script = capsys.readouterr().out
    assert "lutetia" in script
    assert f"_LUTETIA_COMPLETE=complete_{shell}" in script
    monkeypatch.setenv("_LUTETIA_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert main([]) == 0
    said = capsys.readouterr().out
    assert answer in said
    assert "doctor" not in said


def test_bash_completes(tmp_path: Path) -> None:
    """A real bash on a terminal, in which TAB is pressed."""
    bash = require_tool("bash")
    program = tmp_path / "bin" / "lutetia"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lutetia "$@"\n')
    program.chmod(0o755)
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "PATH": f"{program.parent}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "> "}
    shell = subprocess.Popen(
        [bash, "--norc", "--noprofile", "-i"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        os.write(ours, b'eval "$(_LUTETIA_COMPLETE=source_bash lutetia)"; echo rea""dy\n')
        assert "ready" in read_until(ours, "ready\r\n")
        os.write(ours, b"lutetia doc\t")
        assert "lutetia doctor " in read_until(ours, "doctor ")
        os.write(ours, b"--js\t")
        assert "--json " in read_until(ours, "--json ")
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)


def read_until(terminal: int, words: str) -> str:
    seen, until = "", time.monotonic() + 30
    while words not in seen and time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
    return seen
