"""LRP-0 gives the inputs the whole output, to a millionth, where there are no biases or their shares are redistributed.

Nets in float32, several of each kind with other weights. *exact* is `Result.exact`, relevance as it travels, in float64;
*float32* is `r[x]`, rounded to the dtype of the inputs: each value to one of its two neighbours. Both are the worst of all rows,
relative to the output; then how many rows are off by more than 10⁻⁶. *cancels*: the absolute relevance of the inputs over the
output, at most. Softmax passes everything on, and the LSTM has its default rule without ε. An initial state of zeros would take a
share of redistributed biases.

    lutetia bench relevance_sums [--quick] [--json] [--save] [-- --rows 192]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance
from relevance import NAMES, mlp, resnet, vgg
from results import Row, finish, options_of, progress, result, table

CLAIM = 1e-6
FLOOR = 2.0**-52  # of the shares that cancel, which are up to 10¹⁴ times the output where biases are redistributed


class SmallResidual(nn.Module):
    """Convolutions, a pool, a skipping sum, an RMS norm, a product of two activations and a mean; x [B, 3, H, W] -> [B, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3)
        self.inner = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 1))
        self.norm = nn.RMSNorm(6)
        self.gate, self.up, self.head = nn.Linear(6, 9), nn.Linear(6, 9), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, 3, H, W] -> [B, 4]."""
        x = torch.relu(self.stem(x))
        x = torch.max_pool2d(x + self.inner(x), 2)
        x = self.norm(x.flatten(2).mT)
        scores: Tensor = self.head((torch.tanh(self.gate(x)) * self.up(x)).mean(1))
        return scores


class Blocks(nn.Module):
    """Three transformer blocks of two heads, attention written out, and a head; x [B, S, 32] -> [B, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {"norm": nn.RMSNorm(32), "qkv": nn.Linear(32, 96), "out": nn.Linear(32, 32)}
                | {"second": nn.RMSNorm(32), "up": nn.Linear(32, 64), "down": nn.Linear(64, 32)}
            )
            for _ in range(3)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, S, 32] -> [B, 10]."""
        for block in self.blocks:
            q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in block["qkv"](block["norm"](x)).chunk(3, -1))  # type: ignore[index]
            mixed = torch.softmax(q @ k.mT / 4, -1) @ v
            x = x + block["out"](mixed.transpose(1, 2).flatten(2))  # type: ignore[index]
            x = x + block["down"](F.gelu(block["up"](block["second"](x))))  # type: ignore[index]
        scores: Tensor = self.head(x.mean(1))
        return scores


class Recurrent(nn.Module):
    """An LSTM of two layers whose state begins with a function of the input, and a head; x [B, T, 12] -> [B, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.lstm, self.head = nn.Linear(12, 24), nn.LSTM(12, 24, 2, batch_first=True), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, 12] -> [B, 10]."""
        state = torch.tanh(self.start(x[:, 0])).expand(2, -1, -1)
        scores: Tensor = self.head(self.lstm(x, (state, state))[0][:, -1])
        return scores


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    NAMES["mlp"]: (lambda: mlp()[0], (512,)),
    NAMES["vgg"]: (lambda: vgg()[0], (3, 32, 32)),
    NAMES["resnet"]: (lambda: resnet()[0], (3, 32, 32)),
    "small residual net, a gate and an RMS norm": (SmallResidual, (3, 9, 11)),
    "transformer, 3 layers of 32": (Blocks, (12, 32)),
    "LSTM, 2 layers of 24": (Recurrent, (16, 12)),
}
BATCH = 16


def without_biases(model: nn.Module) -> nn.Module:
    """The same net with biases of 0, or none; running means of 0."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.bias = None
        elif isinstance(module, nn.LSTM):
            for name, parameter in module.named_parameters():
                if name.startswith("bias"):
                    nn.init.zeros_(parameter)
    return model


def measure(name: str, bias: str, rows: int) -> Row:
    """The worst rows of a kind of net; `bias`: "none" or "redistributed"."""
    build, shape = NETS[name]
    policy = "absorb" if bias == "none" else "redistribute"
    zero = relevance.Zero()
    rules = relevance.Rules(
        zero, zero, relevance.Uniform(0.0), relevance.Identity(), zero, zero, bias=policy, recurrent=relevance.Absolute(0.0)
    )
    worst = dict.fromkeys(("float32", "exact", "cancels"), 0.0)
    above = dict.fromkeys(("float32 above 1e-6", "exact above 1e-6"), 0)
    for seed in range(rows // BATCH):
        torch.manual_seed(seed)
        model, x = build().eval(), torch.randn(BATCH, *shape)
        model = without_biases(model) if bias == "none" else model
        r = relevance.attribute(model, x, rules=rules)
        wanted = r.seed.double().sum(1)
        size = r.exact(x).flatten(1).abs().sum(1) / wanted.abs()
        worst["cancels"] = max(worst["cancels"], float(size.max()))
        for kind, given in (("float32", r[x].double()), ("exact", r.exact(x))):
            lost = (given.flatten(1).sum(1) - wanted).abs() / wanted.abs()
            worst[kind] = max(worst[kind], float(lost.max()))
            above[f"{kind} above 1e-6"] += int((lost > CLAIM).sum())
    return {"model": name, "biases": bias, "rows": rows // BATCH * BATCH, **worst, **above}


def inexact(rows: list[Row]) -> list[str]:
    """Where relevance is off by more than a millionth and than float64 can tell: as it travels, and rounded, without biases."""
    return [
        f"{row['model']}, biases {row['biases']}: {kind} sums differ by {row[kind]:.1g}, at most {CLAIM:.0e} claimed"
        for row in rows
        for kind in (("exact", "float32") if row["biases"] == "none" else ("exact",))
        if not row[kind] <= max(CLAIM, FLOOR * row["cancels"])
    ]


def main(argv: list[str] | None = None) -> int:
    """Measure every net; 1 when a sum is off."""
    parser = options_of(__doc__)
    parser.add_argument("--rows", type=int, default=192, help=f"of each kind of net, {BATCH} per net (default 192)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    for name in list(NETS)[3:4] if options.quick else NETS:
        for bias in ("none", "redistributed"):
            progress(f"{name}, biases {bias}")
            rows.append(measure(name, bias, BATCH if options.quick else options.rows))
    columns = dict.fromkeys(
        ("model", "biases", "rows", "float32", "exact", *(f"{kind} above 1e-6" for kind in ("float32", "exact")), "cancels")
    )
    return finish(
        result(__doc__, "relevance_sums", {"threads": 1}, [table("sums", columns, rows)], missed=inexact(rows)), options
    )


if __name__ == "__main__":
    sys.exit(main())
