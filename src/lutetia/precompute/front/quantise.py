"""Building blocks whose values lie on a grid of integers, and that can be trained, by straight-through gradients.

`Quantise` rounds activations, `quantise_weights` the weights of any layer, and `SparseLinear` is a linear layer of small fan-in:
the three together make networks whose layers are tables of a few bits. All scales are fixed or powers of two, so the integers are
known exactly.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lutetia.errors import ArgumentError, check_range, check_tensor, fail
from lutetia.precompute.tables.domains import NUMBERS, Domain, DomainLike, as_domain


class _Straight(torch.autograd.Function):
    """Forward: the rounded value. Backward: the gradient unchanged where the input was within the grid's range, else zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward((x >= low) & (x <= high))
        return rounded

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (within,) = ctx.saved_tensors
        return grad * within, None, None, None


def quantise(x: Tensor, domain: DomainLike, scale: float = 1.0) -> Tensor:
    """The nearest value of the domain, times scale; halves go to the even number, and 0 of ±1 to +1. x of any shape -> the same.

    The gradient passes where x lies within half a step of the domain's range (for ±1: within -1 to 1), and is zero elsewhere.
    """
    domain = as_domain("domain", domain)
    check_tensor("x", x, dtype=[each for each in NUMBERS if each != torch.bool])
    if not isinstance(scale, Tensor):
        check_range("scale", scale, -sys.float_info.max, sys.float_info.max)
        scale = float(scale)
    elif scale.numel() != 1 or scale.dtype not in NUMBERS:
        fail("scale", scale, "a number")
    reach = 0.0 if domain.step != 1 else 0.5
    with torch.no_grad():
        steps = x if scale == 1 else x / scale
        if domain.step == 1:
            level = steps.round().clamp_(domain.low, domain.high)
        elif domain.radix == 2:
            middle = (domain.low + domain.high) / 2
            level = torch.where(steps >= middle, x.new_tensor(domain.high), x.new_tensor(domain.low))
        else:
            place = ((steps - domain.low) / domain.step + 0.5).floor_()
            level = place.clamp_(0, domain.radix - 1) * domain.step + domain.low
        rounded = level if scale == 1 else level * scale
    if not (torch.is_grad_enabled() and x.requires_grad):
        return rounded
    return _Straight.apply(x, rounded, (domain.low - reach) * scale, (domain.high + reach) * scale)


class Quantise(nn.Module):
    """`quantise` as a layer: x of any shape -> the nearest value of `domain` times `scale`.

    `Quantise(Binary())`, `Quantise(PlusMinus())`, `Quantise(Ternary())`, `Quantise(UInt(4), scale=0.25)`.
    """

    def __init__(self, domain: DomainLike, scale: float = 1.0) -> None:
        super().__init__()
        self.domain = as_domain("domain", domain)
        check_range("scale", scale)
        if not 0 < scale < math.inf:
            fail("scale", scale, "a finite number above 0")
        self.scale = float(scale)

    def forward(self, x: Tensor) -> Tensor:
        """x of any shape -> the same."""
        return quantise(x, self.domain, self.scale)

    def extra_repr(self) -> str:
        """The domain, and the scale where it is not 1."""
        return str(self.domain) + ("" if self.scale == 1 else f", scale={self.scale:g}")


class _QuantisedWeight(nn.Module):
    """A parametrization: the weight on a grid of the domain times a power of two that follows the weight's size."""

    def __init__(self, domain: Domain) -> None:
        super().__init__()
        self.domain = domain

    def forward(self, weight: Tensor) -> Tensor:
        size = weight.detach().abs()
        # The typical weight takes few levels, the largest takes many.
        wanted = size.mean() if self.domain.radix <= 3 else size.max() / self.domain.high
        exponent = wanted.clamp_min(2.0**-40).log2()
        scale = 2.0 ** float(exponent.round() if self.domain.radix <= 3 else exponent.ceil())
        return quantise(weight, self.domain, scale)


def quantise_weights(module: nn.Module, domain: DomainLike) -> nn.Module:
    """Keep the weight of a layer on the grid of a domain from now on, and return the layer; its float weight keeps learning.

    For the layers with a `weight`: Linear, SparseLinear, Conv1d, Conv2d, `lutetia.nn.LUT`. The scale is a power of two.
    """
    domain = as_domain("domain", domain)
    if not isinstance(getattr(module, "weight", None), Tensor):
        fail("module", module, "a layer with a weight")
    if not domain.signed and domain.step == 1:
        raise ArgumentError(f"domain is {domain}, expected one with negative values: weights have both signs")
    parametrize.register_parametrization(module, "weight", _QuantisedWeight(domain))
    return module


class SparseLinear(nn.Module):
    """A linear layer in which every output reads `fan_in` of the inputs, drawn at random: x [..., in_features] -> [...,
    out_features].

    weight   Parameter [out_features, fan_in]
    inputs   int64 buffer [out_features, fan_in]: which inputs, rising
    bias     Parameter [out_features]
    """

    inputs: Tensor

    def __init__(self, in_features: int, out_features: int, fan_in: int, *, seed: int | None = None, bias: bool = True) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            check_range(name, size, 1)
        check_range("fan_in", fan_in, 1, in_features)
        self.in_features, self.out_features, self.fan_in = in_features, out_features, fan_in
        generator = torch.Generator()
        generator.manual_seed(seed) if seed is not None else generator.seed()
        self.register_buffer("inputs", _choices(in_features, out_features, fan_in, generator))
        bound = fan_in**-0.5
        self.weight = nn.Parameter((torch.rand(out_features, fan_in, generator=generator) * 2 - 1) * bound)
        self.bias = nn.Parameter((torch.rand(out_features, generator=generator) * 2 - 1) * bound) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features]."""
        check_tensor("x", x, ["...", self.in_features], NUMBERS)
        y = (x[..., self.inputs] * self.weight).sum(-1)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.in_features}, {self.out_features}, fan_in={self.fan_in}, bias={self.bias is not None}"


def _choices(n: int, rows: int, k: int, generator: torch.Generator) -> Tensor:
    """k different numbers below n for each row, rising; every number is used about equally often: int64 [rows, k]."""
    picked = torch.empty(rows, k, dtype=torch.int64)
    deck = torch.randperm(n, generator=generator)
    used = 0
    for row in range(rows):
        if used + k > n:
            deck, used = torch.randperm(n, generator=generator), 0
        picked[row] = deck[used : used + k].sort().values
        used += k
    return picked
