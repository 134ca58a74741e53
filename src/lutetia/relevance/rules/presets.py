"""Combinations of rules that are known to work well, with their constants."""

from __future__ import annotations

from dataclasses import replace

from lutetia.relevance.rules.choices import (
    EPS,
    Absolute,
    AlphaBeta,
    Centred,
    Decisive,
    Epsilon,
    Gamma,
    Identity,
    RuleChoice,
    Rules,
    Uniform,
    ZPlus,
)


def epsilon(eps: float = EPS, *, bias: str = "absorb") -> Rules:
    """Epsilon everywhere, with the statistics of normalisations as constants: the default."""
    return _rules(Epsilon(eps), eps, bias)


def decisive(eps: float = EPS, *, bias: str = "absorb") -> Rules:
    """Epsilon, and `Decisive` inside lookup tables."""
    return replace(epsilon(eps, bias=bias), sum=Decisive(eps))


def attnlrp(eps: float = EPS, gamma: float | None = None, *, bias: str = "absorb") -> Rules:
    """AttnLRP (Achtibat et al. 2024): Epsilon, uniform products, Taylor softmax, normalisations with a constant deviation.

    `gamma` puts the Gamma rule on linear layers and convolutions, as the paper does for vision transformers.
    """
    linear: RuleChoice = Epsilon(eps) if gamma is None else Gamma(gamma, eps)
    return Rules(linear, Epsilon(eps), Uniform(eps), norm=Centred(eps), pool=Epsilon(eps), bias=bias)


def gamma(gamma: float = 0.25, eps: float = EPS, *, bias: str = "absorb") -> Rules:
    """The Gamma rule on linear layers and convolutions, Epsilon elsewhere."""
    return _rules(Gamma(gamma, eps), eps, bias)


def zplus(eps: float = EPS, *, bias: str = "absorb") -> Rules:
    """The z⁺ rule on linear layers and convolutions, Epsilon elsewhere."""
    return _rules(ZPlus(eps), eps, bias)


def alphabeta(alpha: float = 2.0, beta: float = 1.0, eps: float = EPS, *, bias: str = "absorb") -> Rules:
    """The αβ rule on linear layers and convolutions, Epsilon elsewhere."""
    return _rules(AlphaBeta(alpha, beta, eps), eps, bias)


def dynamic(eps: float = EPS, *, bias: str = "absorb") -> Rules:
    """Absolute shares for linear layers, sums and pools, as in the first LRP over autograd graphs."""
    return Rules(Absolute(eps), Absolute(eps), Uniform(eps), norm=Identity(), pool=Absolute(eps), bias=bias)


def _rules(linear: RuleChoice, eps: float, bias: str) -> Rules:
    return Rules(linear, Epsilon(eps), Uniform(eps), norm=Epsilon(eps), pool=Epsilon(eps), bias=bias)
