"""The next token: the best, or one sampled with temperature, top-k and top-p."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, DataError, check_int, fail
from lutetia.models.fields import check_number


class Sampling(NamedTuple):
    """How tokens are chosen."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    generator: torch.Generator | None = None

    def check(self) -> None:
        """Check each option, and that they are compatible."""
        check_number("temperature", self.temperature, 0.0)
        if self.top_k is not None:
            check_int("top_k", self.top_k, 1)
        if self.top_p is not None:
            check_number("top_p", self.top_p, 0.0, 1.0, low_fits=False)
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**63 - 1)
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            fail("generator", self.generator, "a torch.Generator")
        if self.seed is not None and self.generator is not None:
            raise ArgumentError("seed and generator are both given, expected one of them")

    def draws(self) -> torch.Generator | None:
        """The generator to draw from, None for torch's global one."""
        return torch.Generator().manual_seed(self.seed) if self.seed is not None else self.generator


def uniform(n: int, generator: torch.Generator | None) -> Tensor:
    """n numbers in [0, 1): float64 [n], in the memory of the host."""
    device = "cpu" if generator is None else generator.device
    return torch.rand(n, generator=generator, dtype=torch.float64, device=device).cpu()


def choose(logits: Tensor, how: Sampling, drawn: Tensor) -> Tensor:
    """logits [n, vocab] and a uniform number for each row, drawn [n] -> tokens int64 [n], all in the memory of the host."""
    if how.temperature == 0:
        best, token = logits.max(-1)
        _check_finite(best.isfinite())
        return token
    probabilities, tokens = kept(logits, how)
    # The first whose cumulative probability passes the number drawn.
    up_to = probabilities.cumsum(-1)
    place = torch.searchsorted(up_to, drawn[:, None] * up_to[:, -1:], right=True).clamp_(max=up_to.shape[-1] - 1)
    # Rounding may lead past the last one that has a probability.
    last = (probabilities > 0).sum(-1, keepdim=True) - 1
    _check_finite(last >= 0)  # of NaN none has one
    return tokens.gather(-1, torch.minimum(place, last))[:, 0]


def _check_finite(fine: Tensor) -> None:
    if not bool(fine.all()):
        raise DataError("the model gives logits that are not finite: its weights are damaged, or too large")


def kept(logits: Tensor, how: Sampling) -> tuple[Tensor, Tensor]:
    """The distribution to draw from: probabilities [n, vocab] of tokens [n, vocab], best first, zero where left out."""
    # The best logit is taken off first: a tiny temperature must not make an infinity of it.
    logits = logits.double()
    scaled = (logits - logits.amax(-1, keepdim=True)) / float(how.temperature)
    scaled, tokens = torch.sort(scaled, dim=-1, descending=True, stable=True)
    probabilities = scaled.softmax(-1)
    if how.top_k is not None:
        probabilities[:, how.top_k :] = 0
        probabilities /= probabilities.sum(-1, keepdim=True)
    if how.top_p is not None:
        before = probabilities.cumsum(-1) - probabilities
        before[:, 0] = 0  # the best always stays
        probabilities = probabilities.where(before < how.top_p, 0)
        probabilities /= probabilities.sum(-1, keepdim=True)
    return probabilities, tokens
