"""`lutetia build --board` and `lutetia board`: models on simulated boards, asked through a pseudo-terminal; what is refused."""

from __future__ import annotations

import json
import os
import pty
import re
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lutetia.cli import main
from lutetia.cli.board_model import questions
from lutetia.errors import DataError
from lutetia.models import LUTClassifier, Model, VotesClassifier, load, save
from lutetia.precompute import TooLargeError, find_tool, integer_model
from lutetia.precompute.boards import frames, make, serial
from lutetia.precompute.boards.frames import END, Frames, framed
from lutetia.precompute.boards.simulate import QUICK, compile_bench, quick_line
from lutetia.precompute.boards.table import read_board
from lutetia.precompute.boards.top import Wrapped, bench_text
from precompute.patterns import fit
from precompute.simulated_board import plugged_in
from said import told
from tools import require_module, require_tool

require_module("typer")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with runs on a table, of classes and of numbers, each built for a board, without the programs of a bitstream."""
    folder = tmp_path_factory.mktemp("boards")
    random = np.random.default_rng(0)
    rows = random.integers(0, 100, (90, 3))
    lines = [f"{a},{b},{c},{'hot' if a + b > 90 else 'cold'},{a - b / 2}" for a, b, c in rows.tolist()]
    (folder / "rows.csv").write_text("a,b,c,state,level\n" + "\n".join(lines) + "\n")
    (folder / "few.csv").write_text("a,b,c\n" + "\n".join(f"{a},{b},{c}" for a, b, c in rows[:9].tolist()) + "\n")
    leave = {"state": "level", "level": "state"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(make, "find_tool", lambda tool: None if "nextpnr" in tool else find_tool(tool))
        for target, other in leave.items():
            settings = ["--set", "fit.n_tables=6", "--set", "fit.n_anchors=2", "--set", f'data.leave_out=["{other}"]']
            assert main(["train", "rows.csv", "--target", target, "--out", f"runs/{target}", *settings, "--json"]) == 0
            reading = ["--reading", "auto"] if target == "level" else []
            command = ["build", f"runs/{target}", "--board", "icebreaker", "--out", target, "--no-prove", *reading, "--json"]
            assert main(command) == 0
        yield folder


@contextmanager
def simulated(build: Path, folder: Path) -> Iterator[str]:
    """A port behind which the Verilog of a build runs, its serial line at a few cycles for each bit."""
    text, size = re.subn(
        r"DIVISOR = \d+, DIVISOR_BITS = \d+", f"DIVISOR = {QUICK}, DIVISOR_BITS = 3", _text(build / "board/top.v")
    )
    assert size == 1
    files = {each.name: each.read_text() for each in (build / "verilog").iterdir() if "bench" not in each.name}
    sources = [name for name in files if name.endswith(".v")]
    facts = json.loads(_text(build / "board/board.json"))
    board = read_board(facts["board"]["name"])
    wrapped = Wrapped(files, sources, "", 0, 1, 1, 1, False, 0)
    command = compile_bench(wrapped, text, bench_text(quick_line(board)), folder)
    with plugged_in(command, folder) as port:
        yield port


def _text(path: Path) -> str:
    return path.read_text("utf-8")


@contextmanager
def fake(answer: Callable[[bytes], bytes]) -> Iterator[str]:
    """A port behind which somebody answers each frame, without its END, with some bytes."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)

    def play() -> None:
        held = b""
        while True:
            try:
                held += os.read(ours, 1000)
            except OSError:
                return
            *whole, held = held.split(bytes([END]))
            for each in filter(None, whole):
                os.write(ours, answer(each))

    threading.Thread(target=play, daemon=True).start()
    try:
        yield os.ttyname(theirs)
    finally:
        os.close(theirs)
        os.close(ours)


def refused(capsys: pytest.CaptureFixture[str], *command: object) -> str:
    """The error of a command, which exits with 1 or 2."""
    capsys.readouterr()
    assert main([str(each) for each in command]) in (1, 2)
    return " ".join(capsys.readouterr().err.split())


# ---- build -----------------------------------------------------------------------------------------------------------


def test_what_a_build_holds(place: Path) -> None:
    folder = place / "state" / "board"
    names = {each.name for each in folder.iterdir()}
    assert names == {"README.md", "board.json", "model", "pins.pcf", "top.v"}  # nextpnr was not there
    report = json.loads(_text(place / "state" / "report.json"))
    facts, readme = json.loads(_text(folder / "board.json")), _text(folder / "README.md")
    identity = facts["talk"]["identity"]
    assert identity == report["identity"]
    assert f"32'h{identity[2:]}" in _text(folder / "top.v")
    assert f"{identity[2:]} (4 bytes), {facts['talk']['question_bytes']} bytes" in readme
    assert "lutetia board . INPUT --port /dev/ttyUSB1" in readme
    assert "There is no `circuit.bin`: a bitstream needs nextpnr, which is not installed" in readme
    assert report["board"]["left_out"].startswith("a bitstream needs nextpnr")
    assert report["synthesis"] is None
    if find_tool("iverilog") is not None:
        assert report["board"]["simulated"] == {"left_out": "", "questions": 16}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--board", "icebraker"], "--board: there is no board 'icebraker': did you mean icebreaker?"),
        (["--board", "my.toml"], "--board: my.toml does not exist, expected a board"),
        (["--board", "icebreaker", "--target", "ecp5"], "--target is ecp5, and the iCEBreaker is an ice40: leave --target out"),
        (["--board", "icebreaker", "--target", "c"], "--target is c, and the iCEBreaker is an ice40"),
        (["--board", "hx8k", "--target", "ice40", "--pins", "rows.csv"], "--pins is not for --board: its pins are those of"),
        (["--board", "hx8k", "--target", "ice40", "--fmax", "20"], "--fmax is not for --board: its clock is that of the board"),
        (["--board", "hx8k", "--drop-unseen"], "--drop-unseen is not for --board: lutetia board compares every answer"),
    ],
)
def test_what_build_refuses(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(place)
    assert said in refused(capsys, "build", "runs/state", "--out", tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_a_circuit_that_is_too_large_is_told_how_many_tables_fit(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_large(*given: Any, **options: Any) -> None:
        raise TooLargeError("the circuit does not fit: it needs 2,350 LUTs, and there are 1,280", {"LUTs": (2350, 1280)})

    monkeypatch.chdir(place)
    monkeypatch.setattr("lutetia.cli.build_board.build_board", too_large)
    said = refused(capsys, "build", "runs/state", "--board", "icestick", "--out", tmp_path / "out", "--no-prove")
    assert "it needs 2,350 LUTs, and there are 1,280: --tables 2 should fit, 6 do not" in said  # 6 · (1216 - 350) / (2350 - 350)
    assert (tmp_path / "out" / "verilog").is_dir()


# ---- board -----------------------------------------------------------------------------------------------------------


def test_a_simulated_board_answers_as_the_model_does(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    require_tool("iverilog")
    monkeypatch.setattr(serial, "WAIT", 30.0)
    predicted = told(capsys, "predict", place / "runs/state", place / "rows.csv")["predictions"]
    with simulated(place / "state", tmp_path) as port:
        found = told(capsys, "board", place / "state", place / "rows.csv", "--port", port)
        assert main(["board", str(place / "state"), str(place / "few.csv"), "--port", port]) == 0
    assert (found["equal"], found["questions"]) == (90, 90)
    assert [each["input"] for each in found["predictions"]] == [each["input"] for each in predicted]
    same = [one["class"] == other["class"] for one, other in zip(found["predictions"], predicted, strict=True)]
    assert sum(same) >= 85  # weights are rounded in the circuit
    shown = capsys.readouterr().out
    assert f"few.csv row 0  {found['predictions'][0]['class']}\n" in shown
    assert "9 of 9 answers of the iCEBreaker are those of the integer model; " in shown


def test_numbers_of_a_simulated_board(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of readings: what goes over the line are the numbers of the columns."""
    require_tool("iverilog")
    monkeypatch.setattr(serial, "WAIT", 30.0)
    predicted = told(capsys, "predict", place / "runs/level", place / "few.csv")["predictions"]
    with simulated(place / "level", tmp_path) as port:
        found = told(capsys, "board", place / "level", place / "few.csv", "--port", port)
    assert found["equal"] == 9
    values = [each["value"] for each in found["predictions"]]
    assert values == pytest.approx([each["value"] for each in predicted], abs=2.0)
    assert len(set(values)) > 3


def untrained(kind: str) -> tuple[Model[Any], np.ndarray[Any, Any]]:
    """A classifier and inputs for it."""
    random = np.random.default_rng(0)
    if kind == "votes":
        sizes: dict[str, Any] = {"n_tables": 20, "k": 4, "bits": 4, "thresholds": (7,), "seed": 0}
        return VotesClassifier(input_shape=(8, 8), n_classes=10, **sizes), random.random((12, 8, 8), np.float32)
    layers = [{"kind": "lut", "n_outputs": 3, "n_detectors": 6, "n_anchors": 3}]
    return LUTClassifier(input_shape=(5,), n_classes=3, layers=layers, seed=0), random.random((12, 5), np.float32)


@pytest.mark.parametrize("kind", ["votes", "lut"])
def test_classifiers_on_a_simulated_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    require_tool("iverilog")
    model, x = untrained(kind)
    save(model, tmp_path / "model")
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(serial, "WAIT", 30.0)
    monkeypatch.setattr(make, "find_tool", lambda tool: None)
    built = ["build", str(tmp_path / "model"), "--board", "hx8k", "--out", str(tmp_path / "out"), "--no-prove", "--json"]
    assert main(built) == 0
    capsys.readouterr()
    (tmp_path / "simulation").mkdir()
    with simulated(tmp_path / "out", tmp_path / "simulation") as port:
        found = told(capsys, "board", tmp_path / "out", tmp_path / "x.npy", "--port", port)
    assert found["equal"] == 12
    assert len({each["number"] for each in found["predictions"]}) > 1


def test_the_bytes_of_an_image_are_its_pixels(tmp_path: Path) -> None:
    model, x = fit("colour")
    np.save(tmp_path / "x.npy", x[:5].astype(np.uint8))
    core = integer_model(model).emit_images(reuse=2)
    recipe = {"kind": "patterns", "weight_bits": 8, "reuse": 2}
    asked = questions(model, recipe, [str(tmp_path / "x.npy")], core.identity)
    assert asked.questions == [each.transpose(1, 2, 0).astype(np.uint8).tobytes() for each in x[:5]]
    assert asked.expected.tolist() == core.interpret(x[:5].reshape(5, -1)).tolist()
    assert asked.read([bytes([each]) for each in (3, 0, 255)]).tolist() == [3, 0, 255]
    with pytest.raises(
        DataError, match=f"the model makes the core {core.identity:#010x}, and 0x00000007 was built: build it again"
    ):
        questions(model, recipe, [str(tmp_path / "x.npy")], 7)


def test_the_bytes_of_a_window_are_its_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    samples = random.normal(0, [1, 20], (240, 2)).round(2) * np.repeat([1, 3], 120)[:, None]
    labels = np.repeat(["slow", "fast"], 120)
    rows = [f"{a:.2f},{b:.2f},{label}" for (a, b), label in zip(samples.tolist(), labels, strict=True)]
    Path("shake.csv").write_text("a,b,state\n" + "\n".join(rows) + "\n")
    settings = ["--set", "data.window=8", "--set", "fit.n_tables=4", "--set", "data.shapes=false"]
    assert main(["train", "shake.csv", "--target", "state", "--set", "data.signals={a = 2, b = 2}", *settings, "--json"]) == 0
    model = load("runs/shake")
    core = integer_model(model, weight_bits=8).emit_signals()
    asked = questions(model, {"kind": "signals", "weight_bits": 8}, ["shake.csv"], core.identity)
    windows = [samples[start : start + 8] for start in range(0, 233, 4)]
    assert len(asked.questions) == len(windows)
    for sent, window in zip(asked.questions, windows, strict=True):
        numbers = np.frombuffer(sent, f"<i{model.metadata['windows']['bits'] // 8}").reshape(8, 2)
        assert numbers.tolist() == np.rint(100 * window).tolist()
    assert asked.names[1] == "shake.csv rows 4 to 11"
    assert asked.expected.tolist() == core.interpret([np.rint(100 * samples).astype(np.int64)]).tolist()


def _facts(build: Path) -> tuple[int, int]:
    facts = json.loads(_text(build / "board/board.json"))["talk"]
    return int(facts["identity"], 16), facts["answer_bytes"]


def test_answers_that_are_wrong_are_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    identity, size = _facts(place / "state")

    def always_hot(frame: bytes) -> bytes:
        plain = _plain(frame)
        is_known = int.from_bytes(plain[1:5], "big") == identity
        return framed(plain[:1] + bytes([not is_known]) + identity.to_bytes(4, "big") + (b"\1" * size if is_known else b""))

    with fake(always_hot) as port:
        found = json.loads(_out(capsys, 1, "board", place / "state", place / "few.csv", "--port", port, "--json"))
        shown = _out(capsys, 1, "board", place / "state", place / "few.csv", "--port", port)
    assert {each["class"] for each in found["predictions"]} == {"hot"}
    right = sum(each["expected"] == "hot" for each in found["predictions"])
    assert 0 < right < 9
    assert found["equal"] == right
    assert shown.count("hot  (the model: cold)") == 9 - right
    assert f"{right} of 9 answers" in shown


def _plain(frame: bytes) -> bytes:
    return frame.replace(b"\xdb\xdc", b"\xc0").replace(b"\xdb\xdd", b"\xdb")


def _out(capsys: pytest.CaptureFixture[str], code: int, *command: object) -> str:
    capsys.readouterr()
    assert main([str(each) for each in command]) == code
    return capsys.readouterr().out


def test_lost_answers_are_asked_for_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every third answer is lost, every fourth damaged; those that come are of the right question."""
    identity, size = _facts(place / "state")
    monkeypatch.setattr(serial, "WAIT", 0.1)
    count = iter(range(10_000))
    seen: list[int] = []

    def careless(frame: bytes) -> bytes:
        plain, number = _plain(frame), next(count)
        if int.from_bytes(plain[1:5], "big") != identity:
            return framed(plain[:1] + b"\1" + identity.to_bytes(4, "big"))
        seen.append(plain[0])
        whole = framed(plain[:1] + b"\0" + identity.to_bytes(4, "big") + bytes([plain[0] % 2]) * size)
        return b"" if number % 3 == 0 else b"\x55" + whole if number % 4 == 0 else whole

    monkeypatch.setattr(serial, "TRIES", 9)
    with fake(careless) as port:
        found = json.loads(_out(capsys, 1, "board", place / "state", place / "few.csv", "--port", port, "--json"))
    assert [each["number"] for each in found["predictions"]] == [row % 2 for row in range(9)]
    assert len(seen) > 9


def test_a_board_that_holds_something_else(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake(lambda frame: framed(frame[:1] + b"\1" + bytes.fromhex("0badcafe"))) as port:
        said = refused(capsys, "board", place / "state", place / "few.csv", "--port", port)
    assert "the board holds the circuit 0x0badcafe, and the build is 0x" in said
    assert "load it (iceprog circuit.bin), or name the build that is on it" in said


def test_a_board_that_says_nothing(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(serial, "WAIT", 0.05)
    with fake(lambda frame: b"noise") as port:
        said = refused(capsys, "board", place / "state", place / "few.csv", "--port", port)
    assert f"nobody answers on {port} at 1,000,000 baud: is it the port of the iCEBreaker, and is the board loaded" in said


def test_a_board_that_falls_silent(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    identity, _ = _facts(place / "state")
    monkeypatch.setattr(serial, "WAIT", 0.05)
    answers = iter([framed(b"\0\1" + identity.to_bytes(4, "big"))])
    with fake(lambda frame: next(answers, b"")) as port:
        said = refused(capsys, "board", place / "state", place / "few.csv", "--port", port)
    assert "the board did not answer question 0 in 3 tries" in said


def test_what_board_refuses(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build, rows = place / "state", place / "few.csv"
    monkeypatch.setattr(serial, "PORTS", (str(tmp_path / "tty*"),))
    assert "board got no INPUT, expected rows" in refused(capsys, "board", build)
    said = refused(capsys, "board", build, rows)
    assert "--port is missing, expected a serial port, and none is there; that of the iCEBreaker is usually /dev/ttyUSB1" in said
    (tmp_path / "tty7").write_text("")
    assert f"--port is missing, expected one of {tmp_path}/tty7; that" in refused(capsys, "board", build, rows)
    said = refused(capsys, "board", build, rows, "--port", "/dev/ttyNone")
    assert f"there is no port /dev/ttyNone: expected one of {tmp_path}/tty7" in said
    assert "tty7 is no serial port: " in refused(capsys, "board", build, rows, "--port", tmp_path / "tty7")
    said = refused(capsys, "board", place / "runs" / "state", rows, "--port", "/dev/ttyNone")
    assert "is no build for a board: lutetia build CKPT --board NAME makes one" in said
    assert "there is no such folder" in refused(capsys, "board", tmp_path / "none", rows)


def test_a_port_that_may_not_be_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*given: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(serial.os, "open", refuse)
    said = r"may not be opened: it is for the group .+; sudo usermod -aG .+ \$USER adds you to it"
    with pytest.raises(DataError, match=said), serial.open_port(str(tmp_path), 115200):
        pass


def test_a_damaged_build_is_refused(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    shutil.copytree(place / "state", tmp_path / "state")
    with (tmp_path / "state" / "board" / "board.json").open("a") as file:
        file.write(" ")
    said = refused(capsys, "board", tmp_path / "state", place / "few.csv", "--port", "/dev/ttyNone")
    assert "board/board.json" in said


def test_frames_of_a_board_are_held_together() -> None:
    assert Frames().take(b"\x55" * (2 * frames.LONGEST)) == []
