"""A classifier of handwritten digits that is one layer of tables: it compares pixels, looks up rows and adds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lutetia import models, training
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
    "train": {"batch_size": 64, "epochs": 60, "eval_every": 100, "log_every": 10, "seed": 0},
    "checkpoint": {"every": 2000, "keep": 1},
}


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
    model: Any = models.load(folder)
    unseen: Any = training.open_data(config.data, Path()).splits["test"]
    images, labels = torch.as_tensor(unseen.x), torch.as_tensor(unseen.y)
    with torch.no_grad():
        guesses = model(images).argmax(1)
    context.digits = Digits(model, folder, images, labels, guesses)
    accuracy = float((guesses == labels).double().mean())

    weights = sum(parameter.numel() for parameter in model.parameters())
    confusion = torch.zeros(10, 10, dtype=torch.int64)
    confusion.index_put_((labels, guesses), torch.ones(len(labels), dtype=torch.int64), accumulate=True)
    facts = {"weights": f"{weights:,}", "steps": f"{summary['step']:,}", "training took": f"{summary['seconds']:.0f} s"}
    said = f"{accuracy:.1%} of {len(labels)} digits that it had not seen are read right."
    context.trained.append(Training("Digits", curves(folder), said, facts, confusion.tolist()))
    context.figures["digits read right"] = f"{accuracy:.1%}"
    context.flows.append(_one_step(model, images[:64], labels[:64]))
    return Told(
        f"{model.layers[0].n_detectors} tables learned to read digits in {summary['seconds']:.0f} s, "
        f"{accuracy:.1%} of {len(labels)} unseen ones right; the network only compares, looks up and adds",
        (folder / "loss.png",),
    )


def _one_step(model: LUTClassifier, images: Tensor, labels: Tensor) -> PartFlow:
    """One training step, recorded."""
    from lutetia.flow import record

    pixels = images.clone().requires_grad_()
    with record() as recorded:
        torch.nn.functional.cross_entropy(model(pixels), labels).backward()
    model.zero_grad()
    return PartFlow("One training step of the digits", recorded, "Every kernel that ran, and the tensors between them.")


def trained(config: training.Config, folder: Path) -> dict[str, Any]:
    """The summary of a run that came to its end: after Ctrl-C the story is not told on."""
    summary = training.train(config, folder)
    if summary["stopped"] == "interrupted":
        raise KeyboardInterrupt
    return summary


def curves(folder: Path) -> list[Curve]:
    """The losses that a run wrote down."""
    lines: list[Mapping[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = []
    for kind, name in (("train", "training"), ("valid", "validation")):
        points = [(line["step"], line["loss"]) for line in lines if line["kind"] == kind]
        if points:
            found.append(Curve(name, *map(list, zip(*points, strict=True))))
    return found
