"""A classifier of handwritten digits that is one layer of tables: it compares pixels, looks up rows and adds them up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lutetia import models, report, training
from lutetia.demo.telling import Context, Told
from lutetia.models import LUTClassifier
from lutetia.report import Curve, PartFlow, Training

CONFIG: dict[str, Any] = {
    "model": {
        "kind": "classifier",
        "input_shape": [8, 8],
        "n_classes": 10,
        "readout": "none",
        "layers": [{"kind": "lut", "n_outputs": 10, "n_detectors": 64, "n_anchors": 4, "table_dropout": 0.2}],
        "seed": 0,
    },
    "data": {"kind": "digits", "shuffle": True, "valid": 0.1, "test": 0.2},
    "optimizer": {"tables": {"kind": "adamw", "lr": 0.02}, "rest": {"kind": "adamw", "lr": 0.02}},
    "schedule": {"kind": "cosine", "warmup": 0.02, "floor": 0.01},
    "train": {"batch_size": 64, "steps": 240, "eval_every": 10, "log_every": 10, "seed": 0},
    "checkpoint": {"every": 2000, "keep": 1},
}
SHOWN = 0  # the digit of the first picture
HOW = (
    "A layer of this network never multiplies. Each of its tables compares a few pairs of pixels, turns the answers into the "
    "number of a row, and adds that row to the scores of the classes. Below is one of its tables, at work on one digit."
)


@dataclass(frozen=True)
class Digits:
    """The trained model, and the digits it has not seen: images [n, 8, 8] from 0 to 1, labels [n]."""

    model: LUTClassifier
    folder: Path
    images: Tensor
    labels: Tensor
    guesses: Tensor


def tell(context: Context) -> Told:
    folder = context.out / "digits"
    config = training.make_config(CONFIG, "the demo's digits")
    summary = trained(config, folder)
    model: Any = models.load(folder).eval()
    unseen: Any = training.open_data(config.data, Path()).splits["test"]
    images, labels = torch.as_tensor(unseen.x), torch.as_tensor(unseen.y)
    with torch.no_grad():
        guesses = model(images).argmax(1)
    context.digits = Digits(model, folder, images, labels, guesses)
    accuracy = float((guesses == labels).double().mean())

    weights = sum(parameter.numel() for parameter in model.parameters())
    confusion = torch.zeros(10, 10, dtype=torch.int64)
    confusion.index_put_((labels, guesses), torch.ones(len(labels), dtype=torch.int64), accumulate=True)
    facts = {"weights": f"{weights:,}", "training steps": f"{summary['step']:,}", "training took": f"{summary['seconds']:.1f} s"}
    read = f"{accuracy:.1%} of {len(labels)} unseen digits read correctly"
    chart = [Curve("validation digits", *_scaled(metric(folder, "valid", "accuracy"), 100))]
    said = f"{read}. The chart counts other digits, held out to choose the best moment of training."
    context.trained.append(
        Training("Digits", chart, said, facts, confusion.tolist(), unit="% of digits read correctly", log=False)
    )
    context.figures[f"of {len(labels)} unseen digits read correctly"] = f"{accuracy:.1%}"
    context.figures["multiplications: it compares, looks up and adds"] = "0"
    context.reading = report.reading(model, images[int((labels == SHOWN).nonzero()[0])], said=HOW)
    context.flows.append(_one_step(model, images[:64], labels[:64]))
    tables = model.layers[0].n_detectors
    return Told(f"{tables} tables learned to read digits: {read}, without a single multiplication", (folder / "loss.png",))


def _one_step(model: LUTClassifier, images: Tensor, labels: Tensor) -> PartFlow:
    """One training step without the dropout of tables, recorded; images [B, 8, 8], labels [B]."""
    from lutetia import flow

    pixels = images.clone().requires_grad_()

    def train_once() -> None:
        scores = model(pixels)
        with flow.step("cross_entropy", inputs={"output": scores, "labels": labels}) as step:
            given = scores.detach().requires_grad_()
            torch.nn.functional.cross_entropy(given, labels).backward()
            step.outputs(output_gradients=given.grad)
        scores.backward(given.grad)

    train_once()  # the first call compiles kernels, which is not part of a step
    with flow.record() as recorded:
        train_once()
    model.zero_grad()
    return PartFlow("A training step of the digits", recorded, "Every kernel that ran, and the tensors between them.")


def trained(config: training.Config, folder: Path) -> dict[str, Any]:
    """The summary of a completed run; Ctrl-C ends the demo too."""
    summary = training.train(config, folder)
    if summary["stopped"] == "interrupted":
        raise KeyboardInterrupt
    return summary


def metric(folder: Path, kind: str, name: str) -> tuple[list[float], list[float]]:
    """The steps and the values of one metric of a run: `kind` is "train" or "valid"."""
    lines: list[Mapping[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = [(line["step"], line[name]) for line in lines if line["kind"] == kind]
    return [step for step, _ in points], [value for _, value in points]


def _scaled(points: tuple[list[float], list[float]], factor: float) -> tuple[list[float], list[float]]:
    return points[0], [factor * value for value in points[1]]
