"""`lutetia train` as a user and a kill meet it: whatever stops it, it goes on, and ends with the same bits."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import lutetia
import warm
from lutetia import toml
from lutetia.cli import main
from lutetia.cli.train import show_summary
from lutetia.training import checkpoint
from small import classifier_tables, write_samples, write_text
from tools import require_module

require_module("typer")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
STEPS = 400
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_samples(tmp_path)
    write_text(tmp_path)
    layer = {"kind": "lut", "n_outputs": 6, "n_detectors": 5, "n_anchors": 3, "table_dropout": 0.2, "read": "confidence2"}
    long = classifier_tables(train={"steps": STEPS, "eval_every": 50}, checkpoint={"every": 30}, model={"layers": [layer]})
    (tmp_path / "long.toml").write_text(toml.dumps(long))
    (tmp_path / "short.toml").write_text(toml.dumps(classifier_tables()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*arguments: str) -> subprocess.Popen[str]:
    command = ["-m", "lutetia", "train", "long.toml", *arguments]
    return warm.Process(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(out: str) -> int:
    path = Path(out, "metrics.jsonl")
    return path.read_text().count("\n") if path.exists() else 0


def wait_for_more(process: subprocess.Popen[str], out: str, more: int) -> None:
    """Until a run has logged so many lines more than it has kept from before, or is over."""
    before = lines(out)
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if lines(out) < before or lines(out) >= before + more:
            return
        time.sleep(0.005)


def assert_same_end(one: str, other: str) -> None:
    for file in ("model", "optimizer", "rng"):
        ours, theirs = (load_file(f"{out}/checkpoints/{checkpoint.name_of(STEPS)}/{file}.safetensors") for out in (one, other))
        assert ours.keys() == theirs.keys()
        assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the processes have it: how many share the work may change the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_kill_then_ctrl_c_then_the_same_end(capsys: Capture) -> None:
    killed = start("--out", "parts")
    wait_for_more(killed, "parts", 20)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert 0 < checkpoint.steps_in(Path("parts/checkpoints"))[-1] < STEPS

    stopped = start("--out", "parts", "--resume", "--device", "cpu")
    wait_for_more(stopped, "parts", 20)
    stopped.send_signal(signal.SIGINT)
    said = stopped.communicate(timeout=120)
    assert (stopped.returncode, said[0]) == (130, "")
    first, last = said[1].splitlines()
    assert first.startswith("resuming from parts/checkpoints/step-")
    words = re.fullmatch(r"error: stopped after step (\d+) and saved; resume with: lutetia train (.+)", last)
    assert words is not None
    assert words[2] == "long.toml --out parts --resume --device cpu"
    assert checkpoint.steps_in(Path("parts/checkpoints"))[-1] == int(words[1]) < STEPS

    assert main(["train", "long.toml", "--out", "whole", "--json"]) == 0
    straight = json.loads(capsys.readouterr().out)
    assert main(["train", "long.toml", "--out", "parts", "--resume", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["step"], summary["stopped"]) == (STEPS, "steps")
    assert {key: summary[key] for key in ("test", "valid")} == {key: straight[key] for key in ("test", "valid")}
    assert_same_end("parts", "whole")


@pytest.mark.slow
def test_fifty_kills_at_random_moments() -> None:
    start("--out", "first").communicate(timeout=600)  # may have to compile, and would take longer than those that follow
    begun = time.monotonic()
    start("--out", "whole").communicate(timeout=600)
    duration = time.monotonic() - begun
    draw = random.Random(7)
    places = []
    for number in range(40):
        out = f"killed-{number}"
        process = start("--out", out)
        time.sleep(draw.uniform(0.05, 0.95) * duration)
        process.kill()
        process.communicate()
        places.append((checkpoint.steps_in(Path(out, "checkpoints")) or [0])[-1])
        resume_to_the_same_end(out)
    assert len(set(places)) > 3, places
    for number in range(10):
        out = f"written-{number}"
        process = start("--out", out)
        kill_within_a_write(process, Path(out, "checkpoints"), skip=number, delay=draw.uniform(0, 0.004))
        resume_to_the_same_end(out)


def kill_within_a_write(process: subprocess.Popen[str], checkpoints: Path, skip: int, delay: float) -> None:
    """Kill a run while the folder of a checkpoint that is being written is there: of the one after so many others."""
    seen: set[str] = set()
    while process.poll() is None:
        seen |= {path.name for path in checkpoints.glob(".step-*.part")} if checkpoints.is_dir() else set()
        if len(seen) > skip:
            time.sleep(delay)
            process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def resume_to_the_same_end(out: str) -> None:
    process = start("--out", out, "--resume")
    process.communicate(timeout=600)
    assert process.returncode == 0
    assert_same_end(out, "whole")
    assert not list(Path(out, "checkpoints").glob(".*.part"))  # what the kill has left is gone


def test_a_run_without_held_out_samples_is_evaluated_on_those_it_has(capsys: Capture) -> None:
    assert main(["train", "short.toml", "--set", "data.valid=0", "--set", "data.test=0"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "next: lutetia evaluate runs/short --split train"
    assert main(["evaluate", "runs/short", "--split", "train"]) == 0


def test_the_summary_is_told(capsys: Capture) -> None:
    assert main(["train", "short.toml", "--set", "train.log_every=6", "--set", "data.path=samples.npz"]) == 0
    said = capsys.readouterr()
    *progress, following = said.err.splitlines()
    assert following == "next: lutetia evaluate runs/short"
    assert all(re.match(r" *\d+% step \d+", line) for line in progress)  # of a machine on which loops take seconds to compile
    told = said.out.splitlines()
    assert re.fullmatch(r"12 steps in 0:\d\d, [\d,]+ weights(, [\d.]+ GiB of GPU memory)?", told[0])
    assert re.fullmatch(r"valid accuracy [\d.]+%, loss [\d.]+", told[1])
    assert re.fullmatch(r"test  accuracy [\d.]+%, loss [\d.]+", told[2])
    assert re.fullmatch(r"model runs/short/checkpoints/step-\d+", told[3])
    assert told[4] == "loss  runs/short/loss.png"
    assert sum(json.loads(line)["kind"] == "train" for line in Path("runs/short/metrics.jsonl").read_text().splitlines()) == 2


def test_the_memory_of_a_gpu_is_told(capsys: Capture) -> None:
    show_summary(
        {"step": 9, "seconds": 480.0, "weights": 50018112, "peak_memory": 7 * 2**29, "stopped": "steps", "checkpoint": "c"}
    )
    assert capsys.readouterr().out.splitlines()[0] == "9 steps in 8:00, 50,018,112 weights, 3.5 GiB of GPU memory"


def test_data_lies_beside_the_config_or_where_one_says(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    elsewhere = folder / "else" / "where"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    assert main(["train", "../../short.toml", "--out", "a", "--json"]) == 0
    beside = json.loads(capsys.readouterr().out)
    assert beside["out"] == "a"
    assert main(["train", "../../short.toml", "--out", "b", "--data", "."]) == 1
    assert capsys.readouterr().err == "error: samples.npz does not exist, expected an npz file\n"
    assert not Path("b").exists()
    (folder / "samples.npz").rename("samples.npz")
    assert main(["train", "../../short.toml", "--out", "b", "--data", ".", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprint"] == beside["fingerprint"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.toml"], 1, "none.toml does not exist, expected a config file"),
        (["short.toml", "--set", "train.stpes=3"], 1, "--set: [train] has no key 'stpes': did you mean steps?"),
        (["short.toml", "--device", "tpu0"], 1, "the device is 'tpu0', expected cpu, cuda"),
        (["short.toml", "--set", "data.path=text.txt"], 1, "text.txt is not an npz file"),
        (["short.toml", "--set", "model.n_classes=2"], 1, "[model] scores 2 classes, expected the 3 that [data] has"),
        (["short.toml", "--ste", "a=1"], 2, "there is no option --ste: did you mean --set?"),
    ],
)
def test_errors_are_one_sentence_and_leave_no_folder(arguments: list[str], code: int, message: str, capsys: Capture) -> None:
    assert main(["train", *arguments, "--out", "out"]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not Path("out").exists()


def test_a_terminal_sees_the_run_go_by(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from rich.console import Console

    from lutetia.training import train
    from lutetia.training.progress import Live

    screen = Console(file=StringIO(), force_terminal=True, width=200, color_system=None, markup=False)
    with Live(screen, "samples") as live:
        train("short.toml", "out", show=live, overrides=["train.log_every=1"])
        text = live._bar.tasks[0].description
        live.say("a [red]word")
    assert re.fullmatch(r"step 12 · loss [\d.]+ · valid accuracy [\d.]+% · [\d,]+ samples/s · 0:0\d left", text)
    shown = screen.file.getvalue()
    assert "step 12" in shown
    assert "a [red]word" in shown


def test_a_pipe_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from rich.console import Console

    from lutetia.training import progress, train

    def lines(pause: float, out: str) -> list[str]:
        monkeypatch.setattr(progress, "PAUSE", pause)
        screen = Console(file=StringIO(), width=200)
        with progress.Live(screen, "samples") as live:
            train("short.toml", out, show=live, overrides=["train.log_every=1"])
        return screen.file.getvalue().splitlines()

    told = lines(0.0, "out")
    assert re.fullmatch(r"100% step 12, loss [\d.]+, .*samples/s, 0:0\d left", told[-1])
    assert len(told) >= 12
    assert lines(1e9, "other") == []


def test_a_text_is_trained_and_every_command_takes_it(folder: Path, capsys: Capture) -> None:
    (folder / "novel.txt").write_bytes(b"It was a dark and stormy night. " * 200)
    small = ["train.steps=2", "train.eval_every=2", "model.width=16", "model.ff_detectors=4", "model.unembedding_detectors=4"]
    settings = [word for each in small for word in ("--set", each)]
    assert main(["train", str(folder / "novel.txt"), "--out", str(folder / "novel"), *settings]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"next: lutetia generate {folder / 'novel'}"
    assert main(["evaluate", str(folder / "novel"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bits_per_byte"] < 8.5
    assert main(["page", str(folder / "novel"), "--out", str(folder / "novel.html")]) == 0  # as tables alone can
    assert main(["train", str(folder / "novel.txt"), "--out", str(folder / "novel"), *settings, "--resume"]) == 0
