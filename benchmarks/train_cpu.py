"""A language model of tables trains on two CPU cores at 10 times the rate of a reference C program, and learns no less.

The model: context 32, width 32, 6 layers of 4 heads × 16 detectors, N_c 6, N_pe 4, bytes; its tables are 3.2 GB. The plain
program takes one sample of 32 bytes at a time and steps by plain SGD; written in C by the author of the original (one thread,
gcc -O3 -march=native) it took about 13 samples per second on such a machine, which is a constant here. What that program learns
is found out with our own layers, at batch 1, for three rates; then we train on the same samples, in the same order, in batches.

    lutetia bench train_cpu [--quick] [--json] [--save] [-- --data FILE --samples N --batch N --speed-only]
"""

from __future__ import annotations

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # rows of 128 bytes all over 3.2 GB: in pages of 4 KB each costs a walk
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # on a machine that has other work, threads that wait must not spin

import resource
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lutetia.models import LUTTransformer
from lutetia.training import standard_library
from results import Row, finish, options_of, peer, progress, result, table

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
QUICK = {"n_layers": 1, "n_anchors": 3, "positional_dim": 2, "n_detectors": 4}
OURS = "Lutetia, batches that grow"
PLAIN_RATES = (0.1, 0.3, 1.0)
BATCH = 80  # ours, in the end
RATE, REST = 0.35, 0.03  # ours: of the tables, per sample, and of the rest
VALID = 512  # samples of the validation text
FIRST, RISE = 4, 64  # batches grow with what was seen: the first have 4 samples, those after n samples n / 64
FALL = 0.8  # ours: the part of the run in which its rates fall to zero
WARM = 3  # full batches that are not timed
Texts = tuple[np.ndarray, np.ndarray]  # to train on, to validate with


@dataclass
class Run:
    """One training: what it was, how fast, and how well it ended."""

    name: str
    batch: int
    rate: float
    loss: float  # nats per byte of the validation text
    samples_per_second: float  # median over its steps that have a full batch
    cpu_ms: float  # processor time per sample of these steps, all threads, median, in milliseconds
    seconds: float  # all steps together


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


def train(trainee: Trainee, texts: Texts, starts: torch.Tensor, name: str, batch: int, rate: float) -> Run:
    """Train on the samples at `starts`, in that order; a name of "plain" is plain SGD at one rate."""
    trainee.begin_again()
    plain = name == "plain"
    optimizer = torch.optim.SGD(trainee.rest, lr=rate) if plain else torch.optim.Adam(trainee.rest, lr=REST, betas=(0.9, 0.95))
    at, full, seconds = 0, [], 0.0
    while at < len(starts):
        begun, cpu = time.perf_counter(), time.process_time()
        size = min(batch, max(FIRST, at // RISE))
        tokens = samples(texts[0], starts[at : at + size])
        left = 1.0 if plain else min((1 - at / len(starts)) / FALL, 1.0)
        # The loss is a mean over the batch: this many times the rate, each sample has the step that it would have had alone.
        trainee.set_rate(rate * left * len(tokens))
        for group in optimizer.param_groups:
            group["lr"] = rate if plain else REST * left
        optimizer.zero_grad()
        loss_of(trainee.model, tokens).backward()
        optimizer.step()
        at += len(tokens)
        wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
        seconds += wall
        if len(tokens) == batch:
            full.append((wall / batch, cpu / batch))
    wall, cpu = (statistics.median(values) for values in zip(*full[WARM:], strict=True))
    return Run(name, batch, rate, validate(trainee.model, texts[1]), 1 / wall, 1e3 * cpu, seconds)


def texts_of(path: Path | None) -> Texts:
    """The bytes of a file, or of the standard library's source: the last twentieth is for validation."""
    text = standard_library() if path is None else np.fromfile(path, np.uint8)
    cut = len(text) * 19 // 20
    if len(text) - cut <= MODEL["context"]:
        raise SystemExit(f"{path} has {len(text)} bytes, expected at least {20 * (MODEL['context'] + 1)}")
    return text[:cut], text[cut:]


def rows_of_runs(runs: list[Run], n_samples: int) -> list[Row]:
    """A row for each run; the C program's rate is a constant."""
    return [
        {
            "run": run.name if run.name == OURS else f"plain SGD, rate {run.rate:g}",
            "samples per second": run.samples_per_second,
            "over the C program": run.samples_per_second / PLAIN_C if run.name == OURS else None,
            "whole run": n_samples / run.seconds if run.name == OURS else None,
            "loss": run.loss,
            "CPU time per sample": run.cpu_ms,
        }
        for run in runs
    ]


def claims(runs: list[Run]) -> list[str]:
    """What was claimed and is not so."""
    ours, best = runs[0], min((run.loss for run in runs[1:]), default=float("inf"))
    missed = []
    if ours.samples_per_second < CLAIM * PLAIN_C:
        missed.append(f"{ours.samples_per_second / PLAIN_C:.1f} times the C program's rate, {CLAIM} claimed")
    if ours.loss > best:
        missed.append(f"a loss of {ours.loss:.3f}, the best plain run has {best:.3f}")
    return missed


def main(argv: list[str] | None = None) -> int:
    """Train; 1 when ours is slower than claimed or ends with a higher loss than the best plain run."""
    parser = options_of(__doc__)
    parser.add_argument("--data", type=Path, help="bytes to learn from (default: the standard library's source)")
    parser.add_argument("--samples", type=int, default=8192, help="samples that each run sees (default 8192)")
    parser.add_argument("--batch", type=int, default=BATCH, help=f"samples per step of ours (default {BATCH})")
    parser.add_argument("--speed-only", action="store_true", help="leave out the plain runs")
    options = parser.parse_args(argv)
    n_samples, batch, changes = (480, 4, QUICK) if options.quick else (options.samples, options.batch, {})
    least = 3 * RISE * batch // 2
    if n_samples < least:
        parser.error(f"--samples is {n_samples}, expected at least {least} for full batches in a third of the run")
    texts = texts_of(options.data)
    high = len(texts[0]) - MODEL["context"] - 1
    starts = torch.randint(high, (n_samples,), generator=torch.Generator().manual_seed(0))
    plain = [] if options.speed_only else [("plain", 1, rate) for rate in (PLAIN_RATES[:1] if options.quick else PLAIN_RATES)]
    trainee, runs = Trainee(**changes), []
    for name, size, rate in [(OURS, batch, RATE), *plain]:
        progress(f"{name}, batch {size}, rate {rate:g}")
        runs.append(train(trainee, texts, starts, name, size, rate))
    data = "the standard library's source" if options.data is None else options.data.name
    settings = {"samples": n_samples, "batch": batch, "data": data, "load": os.getloadavg()[1]}
    settings["peak memory, GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    units = {"samples per second": None, "over the C program": "x", "whole run": None, "loss": "nats/byte"}
    shown = [table("runs", {"run": None, **units, "CPU time per sample": "ms"}, rows_of_runs(runs, n_samples))]
    mode = f"one thread, gcc -O3 -march=native, one sample at a time: {PLAIN_C:.0f} samples a second"
    peers = [peer("the C program", mode=mode, constant="its author's measurement on a comparable machine")]
    return finish(result(__doc__, "train_cpu", settings, shown, peers=peers, missed=claims(runs)), options)


if __name__ == "__main__":
    sys.exit(main())
