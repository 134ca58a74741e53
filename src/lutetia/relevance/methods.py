"""Other methods than relevance, to compare with: gradient × input, integrated gradients, SmoothGrad, occlusion.

Each is a function of a model, an input x [B, ...] of floats, whose rows the model computes independently, and a target. It
returns a tensor shaped like x. The target is one of `attribute`'s by index: None (each row's largest output), an int, one per
row, a tuple such as (position, class), `Contrast`, or a floating-point tensor of weights shaped like the output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy
import torch
from torch import Tensor

from lutetia.errors import check_int, check_range, fail
from lutetia.relevance.outputs import main_output
from lutetia.relevance.seeds import make_weights

Model = Callable[[Tensor], Any]


def gradient(model: Model, x: Tensor, target: object = None) -> Tensor:
    """Gradient × input: the slope of the target, times x."""
    x, weights = _decided(model, x, target)
    return _slopes(model, x, weights) * x


def integrated(
    model: Model, x: Tensor, target: object = None, *, baseline: float | Tensor = 0.0, steps: int = 50, at_once: int = 8
) -> Tensor:
    """Integrated gradients: the mean slope on the straight way from a baseline to x, times the way (Sundararajan et al. 2017).

    `baseline`: a number, or a tensor that broadcasts to x. Rows add up to the score of x minus that of the baseline, but for what
    the `steps`, points of Gauss and Legendre, miss. `at_once` steps are computed in one batch.
    """
    check_int("steps", steps, 1, 100_000)
    check_int("at_once", at_once, 1, 100_000)
    x, weights = _decided(model, x, target)
    start = _spread(baseline, x)
    way, mean = x - start, torch.zeros_like(x)
    places, shares = (torch.from_numpy(each).to(x) / 2 for each in numpy.polynomial.legendre.leggauss(steps))
    for place, share in zip((places + 0.5).split(at_once), shares.split(at_once), strict=True):
        points = start + place.reshape(-1, *[1] * x.dim()) * way
        mean += torch.tensordot(share, _slopes_of_copies(model, points, weights), 1)
    return mean * way


def smooth(
    model: Model, x: Tensor, target: object = None, *, noise: float = 0.1, samples: int = 25, seed: int = 0, at_once: int = 8
) -> Tensor:
    """SmoothGrad: the mean slope of `samples` copies of x with Gaussian noise (Smilkov et al. 2017). Not multiplied by x.

    The deviation of the noise is `noise` times the range of the values of each row.
    """
    check_range("noise", noise, low=0)
    check_int("samples", samples, 1, 100_000)
    check_int("at_once", at_once, 1, 100_000)
    x, weights = _decided(model, x, target)
    rows = x.reshape(len(x), -1)
    deviation = noise * (rows.amax(1) - rows.amin(1)).reshape(-1, *[1] * (x.dim() - 1))
    generator = torch.Generator().manual_seed(seed)
    mean = torch.zeros_like(x)
    for first in range(0, samples, at_once):
        some = range(first, min(first + at_once, samples))
        drawn = torch.stack([torch.randn(x.shape, generator=generator, dtype=x.dtype) for _ in some]).to(x.device)
        mean += _slopes_of_copies(model, x + deviation * drawn, weights).sum(0) / samples
    return mean


def occlusion(
    model: Model,
    x: Tensor,
    target: object = None,
    *,
    window: int | Sequence[int] = 1,
    baseline: float | Tensor = 0.0,
    at_once: int = 64,
) -> Tensor:
    """Occlusion: how much the score falls when a box of x is replaced by the baseline; each element gets that of its box.

    `window`: the sizes of a box, one per dimension of a row, such as (3, 4, 4) for 3 channels of 4 x 4 pixels, or one for all.
    Boxes lie side by side. `at_once` copies of x are computed in one batch.
    """
    check_int("at_once", at_once, 1, 100_000)
    x, weights = _decided(model, x, target)
    blank, sizes = _spread(baseline, x), _sizes(window, x)
    boxes = list(_boxes(x.shape[1:], sizes))
    given = torch.zeros_like(x)
    with torch.no_grad():
        whole = _scores(model(x), weights)
        for first in range(0, len(boxes), at_once):
            some = boxes[first : first + at_once]
            copies = x.repeat(len(some), *[1] * x.dim())
            for copy, box in zip(copies, some, strict=True):
                copy[(slice(None), *box)] = blank[(slice(None), *box)]
            scores = _scores(model(copies.flatten(0, 1)), weights.repeat(len(some), *[1] * (weights.dim() - 1)))
            for fallen, box in zip(whole - scores.reshape(len(some), -1), some, strict=True):
                given[(slice(None), *box)] = fallen.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)
    return given


def _decided(model: Model, x: object, target: object) -> tuple[Tensor, Tensor]:
    """The input without its graph, and what its target is: the weight of each output, with rows first."""
    if not callable(model):
        fail("model", model, "a module, or a function of x")
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or not x.numel():
        fail("x", x, "a floating-point tensor [B, ...] with at least one row")
    with torch.inference_mode(False), torch.no_grad():
        x = x.detach().clone()
        output = main_output(model(x))
    if output.dim() < 1 or len(output) != len(x):
        fail("the model's output", output, f"one row for each of the {len(x)} rows of x")
    with torch.inference_mode(False):
        return x, torch.ones_like(output) if output.dim() == 1 and target is None else make_weights(output, target)


def _scores(output: object, weights: Tensor) -> Tensor:
    """The score of each row: its outputs, weighed."""
    return (main_output(output) * weights).reshape(len(weights), -1).sum(1)


def _slopes(model: Model, x: Tensor, weights: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        leaf = x.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(_scores(model(leaf), weights).sum(), leaf, allow_unused=True)
    return torch.zeros_like(x) if slope is None else slope


def _slopes_of_copies(model: Model, copies: Tensor, weights: Tensor) -> Tensor:
    """The slopes of K copies of an input, [K, B, ...]."""
    every = weights.repeat(len(copies), *[1] * (weights.dim() - 1))
    return _slopes(model, copies.flatten(0, 1), every).reshape(copies.shape)


def _spread(baseline: float | Tensor, x: Tensor) -> Tensor:
    if not isinstance(baseline, (int, float, Tensor)) or isinstance(baseline, bool):
        fail("baseline", baseline, "a number, or a tensor that broadcasts to x")
    try:
        return torch.as_tensor(baseline, dtype=x.dtype, device=x.device).detach().expand_as(x)
    except RuntimeError:
        fail("baseline", baseline, f"a number, or a tensor that broadcasts to x {list(x.shape)}")


def _sizes(window: int | Sequence[int], x: Tensor) -> list[int]:
    sizes = [window] * (x.dim() - 1) if isinstance(window, int) else list(window)
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if isinstance(window, bool) or not whole or len(sizes) != x.dim() - 1:
        fail("window", window, f"a size, or {x.dim() - 1} of them, one per dimension of a row {list(x.shape[1:])}")
    return sizes


def _boxes(shape: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Boxes side by side that cover a shape; the last ones may be smaller."""
    counts = [math.ceil(length / size) for length, size in zip(shape, sizes, strict=True)]
    for place in product(*map(range, counts)):
        yield tuple(slice(at * size, (at + 1) * size) for at, size in zip(place, sizes, strict=True))
