"""Methods that try groups of values together: Shapley values, exact or sampled, KernelSHAP, and LIME."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_int, check_range
from lutetia.relevance.methods.case import Model
from lutetia.relevance.methods.grouped import Drawing, Grouped

Scores = Callable[[Tensor], Tensor]  # of K choices of groups that are there, bool [K, groups]: scores [K, B], float64


def shapley(
    model: Model,
    inputs: Any,
    target: object = None,
    *,
    samples: int = 25,
    **options: Unpack[Drawing],
) -> Any:
    """Shapley values: what a group of values adds to the score, averaged over the orders in which groups join the baseline.

    `samples` orders are drawn, every other one the reverse of the one before, as in Shapley value sampling (Štrumbelj and
    Kononenko 2010). Where all subsets of the groups take no more runs of the model, the values are exact. Either way they add up
    to the score of x minus that of the baseline, each group counted once. Options are those of `ablation`, and `seed`.
    """
    seed = _seed(options)
    check_int("samples", samples, 1, 1_000_000)
    grouped = Grouped(model, inputs, target, options)
    return grouped.result(shapley_values(grouped.scores, grouped.count, samples, seed, grouped.at_once))


def _seed(options: Drawing) -> int:
    """The seed, taken out of the options."""
    seed = options.pop("seed", 0)
    check_int("seed", seed, 0, 2**63 - 1)
    return seed


def takes_all(count: int, samples: int) -> bool:
    """Whether all subsets of so many groups take no more runs than the orders that would be drawn."""
    return count < 24 and 2**count <= max(samples * count, 2)


def shapley_values(scores: Scores, count: int, samples: int, seed: int, at_once: int) -> Tensor:
    """Shapley values [groups, B] of so many groups, float64. `at_once`: how many choices of groups are asked for together."""
    return _exact(scores, count) if takes_all(count, samples) else _by_orders(scores, count, samples, seed, at_once)


def _exact(scores_of: Scores, count: int) -> Tensor:
    """Shapley values [groups, B] from all subsets."""
    subsets = torch.arange(2**count)
    scores = scores_of(_members(subsets, count))
    values = []
    for group in range(count):
        without = subsets[(subsets >> group) & 1 == 0]
        shares = torch.tensor([1 / (count * math.comb(count - 1, size)) for size in range(count)], dtype=torch.float64)
        weights = shares[_members(without, count).sum(1)].to(scores.device)
        values.append(weights @ (scores[without | 1 << group] - scores[without]))
    return torch.stack(values)


def _members(subsets: Tensor, count: int) -> Tensor:
    """Which groups are in subsets that are numbered by their bits: [..., groups]."""
    return (subsets.unsqueeze(-1) >> torch.arange(count)) & 1 == 1


def _by_orders(scores_of: Scores, count: int, samples: int, seed: int, at_once: int) -> Tensor:
    """Shapley values [groups, B] from orders that are drawn."""
    generator = torch.Generator().manual_seed(seed)
    orders: list[Tensor] = []
    while len(orders) < samples:
        order = torch.randperm(count, generator=generator)
        orders += [order, order.flip(0)]
    joined = torch.stack(orders[:samples])  # [samples, groups]: who comes when
    nothing, whole = scores_of(torch.tensor([[False], [True]]).expand(2, count))
    values = torch.zeros(count, len(whole), dtype=torch.float64, device=whole.device)
    for some in joined.split(max(at_once // (count - 1), 1)):
        places = some.argsort(1).unsqueeze(1)  # of each group
        between = scores_of((places <= torch.arange(count - 1).unsqueeze(1)).flatten(0, 1))
        ends = (each.expand(len(some), 1, -1) for each in (nothing, whole))
        scores = torch.cat([next(ends), between.reshape(len(some), count - 1, -1), next(ends)], 1)
        values.index_add_(0, some.flatten().to(whole.device), scores.diff(dim=1).flatten(0, 1) / samples)
    return values


def kernel_shap(
    model: Model,
    inputs: Any,
    target: object = None,
    *,
    samples: int = 1000,
    **options: Unpack[Drawing],
) -> Any:
    """KernelSHAP: Shapley values by a weighted linear regression on which groups are there (Lundberg and Lee 2017).

    `samples` subsets are drawn, each with its complement; all of them where there are no more, and then the values are exact.
    They add up to the score of x minus that of the baseline, each group counted once. Options are those of `ablation`,
    and `seed`.
    """
    seed = _seed(options)
    check_int("samples", samples, 2, 10_000_000)
    grouped = Grouped(model, inputs, target, options)
    count = grouped.count
    nothing, whole = grouped.scores(torch.tensor([[False], [True]]).expand(2, count))
    if count == 1:
        return grouped.result((whole - nothing)[None])
    there, weights = _subsets(count, samples, seed)
    gains = (_finite(grouped.scores(there)) - nothing).cpu()
    values = _regression(there.double(), gains, weights, (whole - nothing).cpu())
    return grouped.result(values.to(whole.device))


def _finite(scores: Tensor) -> Tensor:
    """Scores that a regression can be fitted to."""
    if not bool(scores.isfinite().all()):
        raise ArgumentError("the model gives scores that are not finite where some values are replaced by the baseline")
    return scores


def _subsets(count: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Subsets of the groups [K, groups], neither empty nor whole, and what each weighs [K] in the regression."""
    if count < 24 and 2**count - 2 <= samples:
        there = _members(torch.arange(1, 2**count - 1), count)
        weights = [0.0, *((count - 1) / (math.comb(count, size) * size * (count - size)) for size in range(1, count))]
        return there, torch.tensor(weights, dtype=torch.float64)[there.sum(1)]
    generator = torch.Generator().manual_seed(seed)
    chances = torch.tensor([1 / (size * (count - size)) for size in range(1, count)], dtype=torch.float64)
    pairs = (samples + 1) // 2
    sizes = 1 + torch.multinomial(chances, pairs, replacement=True, generator=generator)
    places = torch.rand(pairs, count, generator=generator).argsort(1).argsort(1)
    drawn = places < sizes.unsqueeze(1)
    there = torch.stack([drawn, ~drawn], 1).flatten(0, 1)[:samples]
    return there, torch.ones(len(there), dtype=torch.float64)


def _regression(there: Tensor, gains: Tensor, weights: Tensor, whole: Tensor) -> Tensor:
    """Values [groups, B] that add up to `whole` [B] and come nearest to the gains [K, B] of subsets [K, groups]."""
    root, last = weights.sqrt().unsqueeze(1), there[:, -1:]  # whose value is what the others leave
    # The least of all solutions where subsets leave a choice.
    found = torch.linalg.lstsq(root * (there[:, :-1] - last), root * (gains - last * whole), driver="gelsd").solution
    return torch.cat([found, (whole - found.sum(0))[None]])


def lime(
    model: Model,
    inputs: Any,
    target: object = None,
    *,
    samples: int = 1000,
    width: float = 0.25,
    penalty: float = 1.0,
    **options: Unpack[Drawing],
) -> Any:
    """LIME: the coefficients of a linear model of the score near x, by which groups are there (Ribeiro et al. 2016).

    Of `samples` copies of x the first is whole; of the others each group is there by the toss of a coin. A copy weighs
    exp(-d² / 2 width²), d being the cosine distance to the whole. The linear model is a ridge regression with this `penalty`,
    its constant free. The values do not add up to anything. Options are those of `ablation`, and `seed`.
    """
    seed = _seed(options)
    check_int("samples", samples, 2, 10_000_000)
    check_range("width", width, low=1e-3, high=1e6)
    check_range("penalty", penalty, low=0, high=1e9)
    grouped = Grouped(model, inputs, target, options)
    generator = torch.Generator().manual_seed(seed)
    there = torch.rand(samples, grouped.count, generator=generator) < 0.5
    there[0] = True
    scores = _finite(grouped.scores(there))
    return grouped.result(_ridge(there.double(), scores.cpu(), width, penalty).to(scores.device))


def _ridge(there: Tensor, scores: Tensor, width: float, penalty: float) -> Tensor:
    """The coefficients [groups, B] of a ridge regression of scores [K, B] on which groups are there [K, groups]."""
    count = there.shape[1]
    distance = 1 - (there.sum(1) / count).sqrt()  # the cosine of a subset and the whole is the root of its share
    weights = torch.exp(-(distance**2) / (2 * width**2))
    share = (weights / weights.sum()).unsqueeze(1)
    x, y = there - (share * there).sum(0), scores - (share * scores).sum(0)
    weighed = weights.unsqueeze(1) * x
    normal = x.T @ weighed + penalty * torch.eye(count, dtype=x.dtype)
    return torch.linalg.lstsq(normal, weighed.T @ y, driver="gelsd").solution
