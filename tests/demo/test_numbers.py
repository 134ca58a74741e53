"""Every number the demo tells is the one that an independent evaluation of its saved checkpoint gives."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lutetia import training
from lutetia.cli import main
from lutetia.demo import columns, explain, learn, numbers, telling, write
from lutetia.models import saving
from tools import require_module

require_module("numba")


@pytest.fixture(scope="module")
def chapters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[telling.Context, dict[str, telling.Told]]]:
    """The chapters that train and explain, with little training."""
    with pytest.MonkeyPatch.context() as patch:
        digits, text = copy.deepcopy(learn.CONFIG), copy.deepcopy(write.CONFIG)
        digits["train"] |= {"steps": 60}
        text["data"] |= {"valid": 500}
        text["train"] |= {"batch_size": 2, "steps": 2, "eval_every": 2, "eval_batches": 1, "log_every": 1}
        text["model"] |= {"context": 32, "width": 16, "n_layers": 1, "ff_detectors": 4, "ff_anchors": 3}
        patch.setattr(learn, "CONFIG", digits)
        patch.setattr(write, "CONFIG", text)
        patch.setattr(write, "PROMPT", "def ")
        context = telling.Context(tmp_path_factory.mktemp("demo"))
        parts = {"learn": learn.tell, "write": write.tell, "attend": write.tell_softmax, "explain": explain.tell}
        yield context, {name: tell(context) for name, tell in parts.items()}


def loaded(folder: Path) -> Any:
    """The model of a checkpoint, as anybody would use it."""
    return saving.load(folder).eval()


def test_the_accuracy_is_that_of_the_checkpoint(chapters: tuple[telling.Context, dict[str, telling.Told]]) -> None:
    context, told = chapters
    unseen: Any = training.open_data(training.make_config(learn.CONFIG, "digits").data, Path()).splits["test"]
    model = loaded(context.out / "digits")
    with torch.no_grad():
        right = (model(torch.as_tensor(unseen.x)).argmax(1) == torch.as_tensor(unseen.y)).double().mean()
    shown = f"{float(right):.1%}"
    assert shown in told["learn"].said
    assert context.figures[f"of {len(unseen.y)} unseen digits read correctly"] == shown
    trained = context.trained[0]
    assert shown in trained.said
    assert sum(row[at] for at, row in enumerate(trained.confusion)) == round(float(right) * len(unseen.y))


@pytest.mark.parametrize(("chapter", "folder", "number"), [("write", "text", 1), ("attend", "softmax", 2)])
def test_the_bits_per_byte_are_those_of_the_checkpoint(
    chapters: tuple[telling.Context, dict[str, telling.Told]], chapter: str, folder: str, number: int
) -> None:
    context, told = chapters
    valid: Any = training.open_data(training.make_config(write.CONFIG, "text").data, Path()).splits["valid"]
    data = torch.as_tensor(valid.bytes.copy()).long()
    model, length = loaded(context.out / folder), 32
    nats = count = 0.0
    with torch.no_grad():  # window after window, each byte predicted once
        for begin in range(0, (len(data) - 1) // length * length, length):
            piece = data[begin : begin + length + 1]
            nats += float(F.cross_entropy(model(piece[None, :-1])[0].double(), piece[1:], reduction="sum"))
            count += length
    shown = f"{nats / count / math.log(2):.2f} bits"
    assert shown in told[chapter].said
    assert shown in context.trained[number].said
    assert number == 2 or shown in context.figures.values()


def test_the_wines_are_those_that_evaluate_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = columns.tell(telling.Context(tmp_path))
    assert told.files == (tmp_path / "wine", tmp_path / "wine.csv")
    assert main(["evaluate", *map(str, told.files), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert f"{found['samples']} unseen wines, {found['accuracy']:.1%} correctly" in told.said


def test_the_intervals_are_those_of_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context = telling.Context(tmp_path)
    told = numbers.tell(context)
    assert main(["predict", *map(str, told.files), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    truth = [float(line.rsplit(",")[-1]) for line in told.files[1].read_text().splitlines()[1:]]
    ends = [(each["low"], each["high"]) for each in found]
    inside = sum(low <= y <= high for (low, high), y in zip(ends, truth, strict=True))
    assert f": {inside} of {len(truth)} unseen patients lie within their 90% intervals" in told.said
    assert 0.8 < inside / len(truth) < 1
    assert len({round(high - low, 3) for low, high in ends}) > 5  # intervals of their own
    rising = [float(row[1]) for row in context.data[1].rows]
    assert rising == sorted(rising)
    assert rising[-1] > rising[0]


def test_charts_are_in_the_unit_of_the_text(chapters: tuple[telling.Context, dict[str, telling.Told]]) -> None:
    digits, text, softmax = chapters[0].trained
    assert digits.unit.startswith("% of digits")
    assert all(0 <= value <= 100 for curve in digits.curves for value in curve.values)
    assert max(digits.curves[0].values) > 50
    for training_ in (text, softmax):
        assert training_.unit == "bits per byte"
        assert training_.curves[0].values[0] == pytest.approx(8, abs=1.5)  # an untrained model guesses


def test_a_recorded_training_step_is_one_piece(chapters: tuple[telling.Context, dict[str, telling.Told]]) -> None:
    flow = chapters[0].flows[0].flow
    names = [step.name for step in flow.steps]
    assert names[0] == "check_detectors"
    assert "cross_entropy" in names
    reached = {0}
    for step in flow.steps:  # in the order in which they began
        if any(edge.source in reached for edge in flow.edges if edge.target == step.id):
            reached.add(step.id)
    assert [names[step.id] for step in flow.steps if step.id not in reached] == []


def test_the_text_does_not_depend_on_the_speed_of_the_machine(
    chapters: tuple[telling.Context, dict[str, telling.Told]],
) -> None:
    assert "minutes" not in learn.CONFIG["train"]
    assert "minutes" not in write.CONFIG["train"]
    for told in chapters[1].values():
        assert not re.search(r"\d (?:s|seconds|ms)\b|times as fast|bytes per second", told.said)


def test_the_byte_view_opens_on_a_byte_the_model_expected(
    chapters: tuple[telling.Context, dict[str, telling.Told]],
) -> None:
    strip = chapters[0].strips[0]
    assert strip.opened in strip.relevance
