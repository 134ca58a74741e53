"""The demo, with little training and a small circuit: every chapter tells, and the page has what they told."""

from __future__ import annotations

import copy
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from lutetia.cli import main
from lutetia.demo import attend, connect, learn, telling, write
from tools import require_module

require_module("numba")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of seconds: what it learns is not the point here."""
    digits, text = copy.deepcopy(learn.CONFIG), copy.deepcopy(write.CONFIG)
    digits["train"] |= {"steps": 40}
    digits["model"]["layers"][0] |= {"n_detectors": 6, "n_anchors": 3}
    text["data"] |= {"valid": 500}
    text["train"] = {"batch_size": 2, "steps": 2, "eval_every": 2, "eval_batches": 1, "log_every": 1}
    text["model"] |= {"context": 32, "width": 16, "n_layers": 1, "ff_detectors": 4, "ff_anchors": 3}
    monkeypatch.setattr(learn, "CONFIG", digits)
    monkeypatch.setattr(write, "CONFIG", text)
    monkeypatch.setattr(write, "PROMPT", "def ")


@pytest.mark.usefixtures("quick")
def test_every_chapter_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "a" / "[red]b"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    first = [(chapter["said"], chapter["text"]) for chapter in told["chapters"]]
    assert [chapter["name"] for chapter in told["chapters"]] == [
        "learn",
        "write",
        "attend",
        "explain",
        "build",
        "columns",
        "numbers",
        "curves",
        "unusual",
        "trees",
        "signals",
        "connect",
        "report",
    ]
    by_name = {chapter["name"]: chapter for chapter in told["chapters"]}
    assert all(Path(file).exists() for chapter in told["chapters"] for file in chapter["files"])
    assert by_name["write"]["text"].startswith("def ")
    assert "the same text" in by_name["attend"]["said"]
    assert "143 of 143 unseen tumours get the same class" in by_name["trees"]["said"]
    assert "unseen recordings are read correctly" in by_name["signals"]["said"]
    assert "windows as the model does" in by_name["signals"]["text"]
    assert "unseen wines" in by_name["columns"]["said"]
    assert by_name["curves"]["said"].startswith("10 curves are the whole of a model")
    flagged, alarms = map(int, re.findall(r"flag (\d+) of 212 .* and (\d+) of 90", by_name["unusual"]["said"])[0])
    assert flagged > 100
    assert alarms < 5
    assert " > " in by_name["columns"]["text"]
    assert "the same as through SDPA" in by_name["connect"]["said"] or by_name["connect"]["said"] == connect.MISSING
    assert "messages per byte" in by_name["attend"]["said"]
    assert " 0 messages" not in by_name["attend"]["said"]
    assert "simulation against the integer model: 50 digits, with stalls" in by_name["build"]["text"]
    assert ": all equal" in by_name["build"]["text"]
    assert "LUT6" in by_name["build"]["text"]
    assert "window.lutetia" in (tmp_path / "a" / "[red]b" / "digits.html").read_text(encoding="utf-8")
    page = Path(by_name["report"]["files"][0]).read_text(encoding="utf-8")
    for words in (
        "Digits",
        "index cache",
        "decode attention",
        "proof against",
        "SDPA, with a mask",
        "unseen wine",
        "unseen patients within their 90% intervals",
        "no prediction falls as the body mass index rises",
        "What sets the first patient apart",
        "Trees of another library",
        "A model that can be read whole",
        "Why a tumour is unusual",
        "Why a window was read as rubbing",
        "digits.html",
    ):
        assert words in page
    assert len(page) < 3_000_000

    # Once more into the same folder: what was there is replaced.
    made = {each.name for each in (tmp_path / "a" / "[red]b").iterdir()}
    folders = {"digits", "text", "softmax", "circuit", "wine", "diabetes", "trees", "fan", "fan-circuit", "unusual"}
    tables = {"wine.csv", "diabetes.csv", "tumours.csv"}
    assert made == {*folders, *tables, "digits.html", "fan.html", "curves.html", "reasons.png", telling.PAGE, telling.LIST}
    assert main(["demo", "--out", str(tmp_path / "a" / "[red]b"), "--json"]) == 0
    again = [(chapter["said"], chapter["text"]) for chapter in json.loads(capsys.readouterr().out)["chapters"]]
    assert again == first  # what is told depends on the seed alone, not on how fast the machine was


def test_both_attentions_give_the_same_and_are_timed() -> None:
    compared = attend.compare()
    said = re.search(r"differ by at most (\S+)\.$", compared.said)
    assert said
    assert float(said[1]) < 1e-5
    assert [row[0] for row in compared.rows] == ["decode attention", "PyTorch's SDPA, with a mask"]
    assert compared.rows[0][2] == "1.0x"


def test_a_model_of_another_library(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert (
        "24 tokens for two prompts through decode attention, the same as through SDPA"
        in connect.tell(telling.Context(tmp_path)).said
    )


def test_without_the_other_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'lutetia[transformers]'" in connect.tell(telling.Context(tmp_path)).said


def test_chapters_are_shown_as_they_are_told(tmp_path: Path) -> None:
    tell = lambda context: telling.Told("done [x]", (context.out / "[y]",), "text")  # noqa: E731
    chapter = telling.Chapter("one", "do [b]one[/b] thing", tell)
    console = Console(record=True, width=40, force_terminal=False, file=io.StringIO())
    telling.tell_all(telling.Context(tmp_path), (chapter,), console)
    text = console.export_text()
    assert "✓ do [b]one[/b] thing: done [x]\ntext\n" in text
    assert "[y]" in text
