"""Which preset explains best depends on the architecture: measured by deletion and insertion on six of them.

Small nets are trained on the 8x8 digits of scikit-learn. In test images that none has seen, pixels (for sequences, rows of
pixels) are replaced by their mean, the most relevant first (*deletion*), or given first (*insertion*). The difference is the area
of insertion less that of deletion, under the probability of the decision: larger is better. Errors are standard errors over
images.

    lutetia bench relevance_presets [--quick] [--json] [--save] [-- --inputs 120 --only lstm]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance import Rules, Uniform, presets
from results import Row, finish, options_of, progress, result, table

NEEDS = ("sklearn",)
EPOCHS = 30
RULES: dict[str, Any] = {
    "epsilon": presets.epsilon(),
    "attnlrp": presets.attnlrp(),
    "attnlrp, gamma 0.1": presets.attnlrp(gamma=0.1),
    "gamma": presets.gamma(),
    "zplus": presets.zplus(),
    "alphabeta": presets.alphabeta(),
    "dynamic": presets.dynamic(),
    "half to broadcast gates": Rules(product=Uniform(gates=True)),
}


class Sequence(nn.Module):
    """Eight rows of eight pixels, read by a recurrent layer."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.head = kind(8, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0].mean(1))


class Vision(nn.Module):
    """A transformer over sixteen patches of 2 x 2 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(1, 32, 2, 2), nn.Parameter(0.02 * torch.randn(16, 32))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.0, F.gelu, batch_first=True) for _ in range(2))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).mT + self.place
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Excited(nn.Module):
    """A convolution whose channels are gated by squeeze and excitation, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body = nn.Conv2d(1, 24, 3, padding=1), nn.Conv2d(24, 24, 3, padding=1)
        self.gate = nn.Sequential(nn.Linear(24, 6), nn.ReLU(), nn.Linear(6, 24), nn.Sigmoid())
        self.head = nn.Linear(24 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        y = self.body(x)
        x = (x + y * self.gate(y.mean((2, 3)))[:, :, None, None]).relu()
        return self.head(F.max_pool2d(x, 2).flatten(1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


MODELS: dict[str, Any] = {
    "perceptron": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    ),
    "convolutions": convolutions,
    "squeeze and excitation": Excited,
    "transformer": Vision,
    "LSTM": lambda: Sequence(nn.LSTM),
    "GRU": lambda: Sequence(nn.GRU),
}


def digits(rows: bool) -> tuple[Tensor, Tensor]:
    """Images [n, 1, 8, 8], or rows of them [n, 8, 8], from 0 to 1, and their classes [n]."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.tensor(data.images, dtype=torch.float32) / 16, torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return (x if rows else x[:, None])[order], y[order]


def trained(name: str, epochs: int) -> tuple[nn.Module, Tensor, float]:
    """A trained model in evaluation mode, test images, and its accuracy on them."""
    torch.manual_seed(0)
    model = MODELS[name]()
    x, y = digits(rows=name in ("LSTM", "GRU"))
    held = len(x) // 5
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(x) - held).add(held).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(x[:held]).argmax(1) == y[:held]).float().mean())
    return model, x[:held], accuracy


def measure(name: str, inputs: int, epochs: int) -> list[Row]:
    """A row for each preset, gradient × input and a random order."""
    model, x, accuracy = trained(name, epochs)
    methods = relevance.faithfulness._methods(model, {"": x[:inputs]}, "", None)
    named = {**RULES, **{each: methods[each] for each in (relevance.faithfulness.GRADIENT, relevance.faithfulness.RANDOM)}}
    found = relevance.evaluate(model, x[:inputs], named, steps=8)
    return [{"model": name, "accuracy": 100 * accuracy, "rule": rule, **curves.areas()} for rule, curves in found.curves.items()]


def main(argv: list[str] | None = None) -> int:
    """Measure every preset on every architecture."""
    parser = options_of(__doc__)
    parser.add_argument("--inputs", type=int, default=120, help="images of each model (default 120)")
    parser.add_argument("--only", choices=MODELS, help="one architecture")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    names = ["perceptron"] if options.quick else [options.only] if options.only else list(MODELS)
    rows: list[Row] = []
    for name in names:
        progress(name)
        rows += measure(name, 4 if options.quick else options.inputs, 1 if options.quick else EPOCHS)
    by_rule = [
        {"rule": rule, **{row["model"]: row["difference"] for row in rows if row["rule"] == rule}}
        for rule in dict.fromkeys(row["rule"] for row in rows)
    ]
    columns = {"model": None, "accuracy": "%", "rule": None, **dict.fromkeys(("deletion", "insertion", "difference", "error"))}
    settings = {"inputs": options.inputs, "epochs": EPOCHS, "threads": 1}
    tables = [table("differences", {"rule": None, **dict.fromkeys(names)}, by_rule), table("presets", columns, rows)]
    return finish(result(__doc__, "relevance_presets", settings, tables), options)


if __name__ == "__main__":
    sys.exit(main())
