"""Scores of classes as probabilities: their softmax, or in a forest, whose tables add up probabilities, their shares."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROUNDING = 2.0**-22  # of sums of shares: each is a multiple of 2**-24
LEAST = torch.finfo(torch.float64).eps  # of a probability in a logarithm


def adds_chances(model: nn.Module) -> bool:
    """Whether the scores of a model are shares of probabilities themselves."""
    return bool(getattr(model, "adds_chances", False))  # of a Tabular


def chances(model: nn.Module, scores: Tensor) -> Tensor:
    """Scores [..., n_classes] of a model -> probabilities, float64; all alike where shares are all 0. Shares that differ from the
    largest by no more than rounding does are equal to it: a third three times is a whole vote."""
    if not adds_chances(model):
        return scores.double().softmax(-1)
    scores = scores.double()
    total = scores.sum(-1, keepdim=True)
    shares = torch.where(total > 0, scores / total, 1 / scores.shape[-1])
    top = shares.amax(-1, keepdim=True)
    near = shares >= top - ROUNDING
    differs = (near & (shares < top)).any(-1, keepdim=True)
    mean = (shares * near).sum(-1, keepdim=True) / near.sum(-1, keepdim=True)
    return torch.where(near & differs, mean, shares)


def best_class(model: nn.Module, scores: Tensor) -> Tensor:
    """Scores [..., n_classes] -> the number of the most probable class, the first of several, int64 [...]."""
    return (chances(model, scores) if adds_chances(model) else scores).argmax(-1)


def log_chances(model: nn.Module, scores: Tensor) -> Tensor:
    """Scores [..., n_classes] -> the logarithms of probabilities, float64; finite also of shares that are 0."""
    if not adds_chances(model):
        return scores.double().log_softmax(-1)
    return chances(model, scores).clamp(min=LEAST).log()
