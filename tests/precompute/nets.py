"""Random small networks: grouped, strided, dilated, padded, skipped, pooled, of few bits, with ties on purpose."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lutetia.precompute import Binary, Domain, Int, PlusMinus, Quantise, Stream, Ternary, UInt

DOMAINS = [Binary(), PlusMinus(), Ternary(), UInt(2), UInt(3), UInt(4), Int(2), Int(3), Int(4)]
UNIT_BITS = 9  # of most tables, so that a thousand networks take seconds


@dataclass
class Case:
    """A network, what goes into it, and how wide its tables may be."""

    model: nn.Module
    stream: Stream
    x: Tensor
    max_bits: int


class Stage(nn.Module):
    """A layer and its quantiser, perhaps with the input added before a second quantiser, perhaps pooled."""

    def __init__(self, body: nn.Sequential, join: nn.Module | None, pool: nn.Module | None) -> None:
        super().__init__()
        self.body, self.join, self.pool = body, join, pool

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.join is not None:
            y = self.join(x + y)
        return y if self.pool is None else self.pool(y)


def random_case(seed: int) -> Case:
    """The network of a seed, and samples for it."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    rank = rng.choice([0, 1, 1, 1, 2])
    domain = rng.choice(DOMAINS)
    channels = rng.choice([1, 2, 3, 4, 6])
    size = rng.choice([11, 14]) if rank == 1 else rng.choice([6, 7])
    stream = {
        0: lambda: Stream(channels, domain),
        1: lambda: Stream(channels, domain, length=rng.choice([None, size])),
        2: lambda: Stream(channels, domain, height=size, width=size - 1),
    }[rank]()
    shape = {0: (), 1: (size,), 2: (size, size - 1)}[rank]
    max_bits = rng.choice([12, 12, 12, 5])  # 5 makes sums and thresholds of what would be tables
    stages, at, now = [], domain, channels
    sizes = shape
    for _ in range(rng.randint(1, 3)):
        stage, at, now, sizes = _stage(rng, at, now, sizes, rank)
        stages.append(stage)
    model = nn.Sequential(*stages).eval()
    values = domain.values()[torch.randint(domain.radix, (4, channels, *shape))]
    return Case(model, stream, values, max_bits)


def _stage(rng: random.Random, domain: Domain, channels: int, sizes: tuple[int, ...], rank: int):  # type: ignore[no-untyped-def]
    layer, out, after = _layer(rng, domain, channels, sizes, rank)
    ties = rng.random() < 0.6
    with torch.no_grad():
        layer.weight.copy_(_numbers(layer.weight.shape, ties))
        if layer.bias is not None:
            layer.bias.copy_(_numbers(layer.bias.shape, ties))
    parts: list[nn.Module] = [layer]
    if rng.random() < 0.6:
        parts.append(_norm(out, rank, ties))
    if rng.random() < 0.4:
        parts.append(rng.choice([nn.ReLU(), nn.Hardtanh(), nn.Tanh(), nn.LeakyReLU(), nn.Identity()]))
    quantised = rng.choice(DOMAINS)
    parts.append(Quantise(quantised, rng.choice([1.0, 1.0, 0.5, 0.25])))
    join = None
    if out == channels and after == sizes and domain.bits + quantised.bits <= UNIT_BITS and rng.random() < 0.7:
        quantised = rng.choice(DOMAINS)
        join = Quantise(quantised, rng.choice([1.0, 0.5]))
    pool = None
    if rank and min(after) >= 4 and rng.random() < 0.4:
        padding = rng.choice([0, 1])
        kernel, stride = rng.choice([2, 3]), rng.choice([1, 2])
        after = tuple((side + 2 * padding - kernel) // stride + 1 for side in after)
        if rng.random() < 0.6:
            pool = (nn.MaxPool1d if rank == 1 else nn.MaxPool2d)(kernel, stride, padding)
        else:
            mean = (nn.AvgPool1d if rank == 1 else nn.AvgPool2d)(kernel, stride, padding)
            quantised = rng.choice(DOMAINS)
            pool = nn.Sequential(mean, Quantise(quantised, rng.choice([1.0, 0.5])))
    return Stage(nn.Sequential(*parts), join, pool), quantised, out, after


def _layer(rng: random.Random, domain: Domain, channels: int, sizes: tuple[int, ...], rank: int):  # type: ignore[no-untyped-def]
    """A layer whose units have few bits (most of the time), its channels and its frames."""
    bits = domain.bits + (domain == PlusMinus())  # padding makes three values of two
    groups = rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    while channels // groups * bits > UNIT_BITS and groups < channels:
        groups = channels
    room = max(1, UNIT_BITS // (channels // groups * bits))
    out = groups * rng.choice([1, 1, 2]) if rng.random() < 0.6 else (channels if channels % groups == 0 else groups)
    if rank == 0:
        layer = nn.Linear(channels, out, bias=rng.random() < 0.7)
        with torch.no_grad():
            layer.weight.zero_()
        return (_Blocks(channels, out, groups), out, sizes)
    kernel = rng.choice([k for k in (1, 2, 3) if k**rank <= room] or [1])
    dilation = rng.choice([1, 1, 2])
    stride = rng.choice([1, 1, 1, 2])
    padding = rng.choice([0, (kernel - 1) * dilation // 2, 1])
    field = (kernel - 1) * dilation + 1
    if min(sizes) + 2 * padding < field + 3:
        kernel, dilation, stride, padding, field = 1, 1, 1, 0, 1
    kind = nn.Conv1d if rank == 1 else nn.Conv2d
    layer = kind(channels, out, kernel, stride, padding, dilation, groups, bias=rng.random() < 0.7)
    return layer, out, tuple((side + 2 * padding - field) // stride + 1 for side in sizes)


class _Blocks(nn.Linear):
    """A linear layer with a permuted block-diagonal mask."""

    def __init__(self, channels: int, out: int, groups: int) -> None:
        super().__init__(channels, out)
        mask = torch.block_diag(*[torch.ones(out // groups, channels // groups)] * groups)
        self.register_buffer("mask", mask[torch.randperm(out)][:, torch.randperm(channels)])

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.mask, self.bias)


def _norm(channels: int, rank: int, ties: bool) -> nn.Module:
    """Batch norm as learned: scales of both signs, and where ties are wanted a variance whose root is exact."""
    norm = (nn.BatchNorm2d if rank == 2 else nn.BatchNorm1d)(channels, eps=0.0)
    with torch.no_grad():
        norm.weight.copy_(_numbers([channels], ties))
        norm.bias.copy_(_numbers([channels], ties))
        norm.running_mean.copy_(_numbers([channels], ties))
        norm.running_var.copy_(4.0 ** torch.randint(-1, 2, (channels,)) if ties else torch.rand(channels) + 0.1)
    return norm


def _numbers(shape, ties: bool) -> Tensor:  # type: ignore[no-untyped-def]
    """Multiples of a quarter or a half, with which sums tie often; or any numbers."""
    return torch.randint(-6, 7, tuple(shape)) / 4 if ties else torch.randn(tuple(shape))
