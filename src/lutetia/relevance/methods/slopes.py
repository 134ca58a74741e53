"""Methods that read slopes: gradient × input, integrated and expected gradients, SmoothGrad."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor

from lutetia.errors import check_int, check_range, fail
from lutetia.relevance.methods.case import Case, Model


def gradient(model: Model, inputs: Any, target: object = None) -> Any:
    """Gradient × input: the slope of the target, times x."""
    case = Case(model, inputs, target)
    slopes = case.slopes([x[None] for x in case.parts])
    return case.result([slope[0] * x for slope, x in zip(slopes, case.parts, strict=True)])


def integrated(
    model: Model, inputs: Any, target: object = None, *, baseline: Any = 0.0, steps: int = 50, at_once: int = 8
) -> Any:
    """Integrated gradients: the mean slope on the straight way from a baseline to x, times the way (Sundararajan et al. 2017).

    `baseline`: a number, a tensor that broadcasts to x, or one for each of several inputs. Rows add up to the score of x minus
    that of the baseline, but for what the `steps`, points of Gauss and Legendre, miss. `at_once` steps are computed in one batch.
    """
    check_int("steps", steps, 1, 100_000)
    check_int("at_once", at_once, 1, 100_000)
    case = Case(model, inputs, target, baseline)
    starts = case.blanks(baseline)
    ways = [x - start for x, start in zip(case.parts, starts, strict=True)]
    means = [torch.zeros_like(x) for x in case.parts]
    places, shares = (torch.from_numpy(each) / 2 for each in numpy.polynomial.legendre.leggauss(steps))
    for place, share in zip((places + 0.5).split(at_once), shares.split(at_once), strict=True):
        points = [start + _along(place, way) * way for start, way in zip(starts, ways, strict=True)]
        for mean, slope in zip(means, case.slopes(points), strict=True):
            mean += torch.tensordot(share.to(slope), slope, 1)
    return case.result([mean * way for mean, way in zip(means, ways, strict=True)])


def expected(
    model: Model, inputs: Any, target: object = None, *, background: Any, samples: int = 100, seed: int = 0, at_once: int = 8
) -> Any:
    """Expected gradients: integrated gradients from the rows of a background, averaged (Erion et al. 2021), as GradientShap.

    `background`: a tensor [M, ...] of rows like those of x, or one for each of several inputs. For each of `samples` copies of
    x, a row of the background and a place on the way from there are drawn: every row as often as others, places spread evenly.
    Rows add up to the score of x minus the mean score of the background, but for what the samples miss.
    """
    check_int("samples", samples, 1, 1_000_000)
    check_int("seed", seed, 0, 2**63 - 1)
    check_int("at_once", at_once, 1, 100_000)
    case = Case(model, inputs, target, background)
    grounds = [_ground(each, x) for each, x in zip(case.of_parts("background", background), case.parts, strict=True)]
    count = len(grounds[0])
    if any(len(each) != count for each in grounds):
        fail("background", [len(each) for each in grounds], "as many rows for each of the inputs")
    generator = torch.Generator().manual_seed(seed)
    rounds = torch.rand(math.ceil(samples / count), count, case.rows, generator=generator).argsort(1)
    drawn = rounds.flatten(0, 1)[:samples]  # which row of the background, [samples, B]
    strata = torch.rand(samples, case.rows, generator=generator).argsort(0)
    places = (strata + torch.rand(samples, case.rows, generator=generator, dtype=torch.float64)) / samples
    totals = [torch.zeros_like(x) for x in case.parts]
    for some, place in zip(drawn.split(at_once), places.split(at_once), strict=True):
        starts = [ground[some.to(ground.device)] for ground in grounds]
        ways = [x - start for x, start in zip(case.parts, starts, strict=True)]
        points = [start + _along(place, way[0]) * way for start, way in zip(starts, ways, strict=True)]
        for total, slope, way in zip(totals, case.slopes(points), ways, strict=True):
            total += (slope * way).sum(0)
    return case.result([total / samples for total in totals])


def smooth(
    model: Model, inputs: Any, target: object = None, *, noise: float = 0.1, samples: int = 25, seed: int = 0, at_once: int = 8
) -> Any:
    """SmoothGrad: the mean slope of `samples` copies of x with Gaussian noise (Smilkov et al. 2017). Not multiplied by x.

    The deviation of the noise is `noise` times the range of the values of each row.
    """
    check_range("noise", noise, low=0)
    check_int("samples", samples, 1, 100_000)
    check_int("seed", seed, 0, 2**63 - 1)
    check_int("at_once", at_once, 1, 100_000)
    case = Case(model, inputs, target)
    deviations = [noise * _range(x) for x in case.parts]
    generator = torch.Generator().manual_seed(seed)
    means = [torch.zeros_like(x) for x in case.parts]
    for count in _batches(samples, at_once):
        drawn = [[torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in case.parts] for _ in range(count)]
        noises = [torch.stack(each).to(x.device) for each, x in zip(zip(*drawn, strict=True), case.parts, strict=True)]
        points = [x + wide * each for x, wide, each in zip(case.parts, deviations, noises, strict=True)]
        for mean, slope in zip(means, case.slopes(points), strict=True):
            mean += slope.sum(0) / samples
    return case.result(means)


def _along(places: Tensor, x: Tensor) -> Tensor:
    """Places [K], or [K, B], that broadcast to K copies of x [B, ...]."""
    return places.to(x).reshape(*places.shape, *[1] * (x.dim() + 1 - places.dim()))


def _range(x: Tensor) -> Tensor:
    """The range of the values of each row, broadcastable to x."""
    rows = x.reshape(len(x), -1)
    return (rows.amax(1) - rows.amin(1)).reshape(-1, *[1] * (x.dim() - 1))


def _ground(background: Any, x: Tensor) -> Tensor:
    rows = isinstance(background, Tensor) and background.layout == torch.strided and background.dim() == x.dim()
    if not rows or not len(background) or background.shape[1:] != x.shape[1:] or background.is_complex():
        fail("background", background, f"a tensor of rows like those of x, {['M', *x.shape[1:]]}")
    return background.detach().to(x)


def _batches(count: int, at_once: int) -> Iterator[int]:
    """A count in batches."""
    while count > 0:
        yield min(count, at_once)
        count -= at_once
