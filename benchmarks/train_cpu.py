"""A language model of tables trains on two CPU cores at 10 times the rate of a plain program, and learns no less.

The model: context 32, width 32, 6 layers of 4 heads × 16 detectors, N_c 6, N_pe 4, bytes; its tables are 3.2 GB. The plain
program takes one sample of 32 bytes at a time and steps by plain SGD; written in C by the author of the original (one thread,
gcc -O3 -march=native) it took about 13 samples per second on such a machine, which is a constant here. What that program learns
is found out with our own layers, at batch 1, for three rates; then we train on the same samples, in the same order, in batches.

    python benchmarks/train_cpu.py [--data FILE] [--samples N] [--batch N] [--speed-only] [--json]
"""

from __future__ import annotations

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # rows of 128 bytes all over 3.2 GB: in pages of 4 KB each costs a walk

import argparse
import json
import math
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from lutetia.models import LUTTransformer
from lutetia.training.data import standard_library

PLAIN_C = 13.0  # samples per second of the plain program in C: measured elsewhere, a constant
CLAIM = 10.0
MODEL: dict[str, Any] = {
    "context": 32,
    "width": 32,
    "n_layers": 6,
    "attention": "lut",
    "n_heads": 4,
    "n_detectors": 16,
    "n_anchors": 6,
    "positional_dim": 4,
    "feed_forward": "lut",
    "ff_detectors": 16,
    "ff_anchors": 6,
    "norm": "none",
    "unembedding": "lut",
    "unembedding_detectors": 16,
    "unembedding_anchors": 6,
    "initial_noise": 0.0,
    "gradient": "in_place",
    "seed": 0,
}
PLAIN_RATES = (0.01, 0.03, 0.1)
RATE, REST = 0.03, 0.03  # ours: of the tables, per sample, and of the rest
VALID = 512  # samples of the validation text
WARM = 3  # steps that are not timed: they compile


@dataclass
class Run:
    """One training: what it was, how fast, and how well it ended."""

    name: str
    batch: int
    rate: float
    loss: float  # nats per byte of the validation text
    samples_per_second: float  # median over its steps


class Trainee:
    """The model, and its first weights to begin again from: tables start at zero, and there is no room for two sets of them."""

    def __init__(self, **changes: Any) -> None:
        self.model = LUTTransformer(**{**MODEL, **changes})
        self.layers: list[Any] = [module for module in self.model.modules() if hasattr(module, "external_lr")]
        tables = {id(layer.weight) for layer in self.layers}
        self.rest = [parameter for parameter in self.model.parameters() if id(parameter) not in tables]
        self.first = [parameter.detach().clone() for parameter in self.rest]

    @torch.no_grad()
    def begin_again(self) -> None:
        for layer in self.layers:
            layer.weight.zero_()
        for parameter, first in zip(self.rest, self.first, strict=True):
            parameter.copy_(first)

    def set_rate(self, rate: float) -> None:
        """Of the tables, which step in the backward pass."""
        for layer in self.layers:
            layer.external_lr = rate


def samples(text: np.ndarray, starts: torch.Tensor) -> torch.Tensor:
    """The 33 bytes at each of starts [n] -> int64 [n, 33]: 32 to read, each with the one that follows."""
    length = MODEL["context"] + 1
    return torch.from_numpy(text[starts.numpy()[:, None] + np.arange(length)].astype(np.int64))


def loss_of(model: LUTTransformer, tokens: torch.Tensor) -> torch.Tensor:
    """The mean loss over tokens [n, 33]."""
    return model.loss(tokens[:, :-1], tokens[:, 1:])


@torch.no_grad()
def validate(model: LUTTransformer, text: np.ndarray) -> float:
    starts = torch.linspace(0, len(text) - MODEL["context"] - 1, VALID).long()
    return statistics.fmean(float(loss_of(model, samples(text, part))) for part in starts.split(64))


def train(trainee: Trainee, texts: tuple[np.ndarray, np.ndarray], starts: torch.Tensor, name: str, batch: int, rate: float) -> Run:
    """Train on the samples at `starts`, in that order; a name of "plain" is plain SGD at one rate."""
    trainee.begin_again()
    plain = name == "plain"
    optimizer = torch.optim.SGD(trainee.rest, lr=rate) if plain else torch.optim.Adam(trainee.rest, lr=REST, betas=(0.9, 0.95))
    times = []
    for at in range(0, len(starts), batch):
        begun = time.perf_counter()
        tokens = samples(texts[0], starts[at : at + batch])
        left = 1.0 if plain else 1 - at / len(starts)  # ours goes down to zero
        # The loss is a mean over the batch: this many times the rate, each sample has the step that it would have had alone.
        trainee.set_rate(rate * left * len(tokens))
        for group in optimizer.param_groups:
            group["lr"] = rate if plain else REST * left
        optimizer.zero_grad()
        loss_of(trainee.model, tokens).backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    speed = batch / statistics.median(times[WARM:] or times)
    return Run(name, batch, rate, validate(trainee.model, texts[1]), speed)
