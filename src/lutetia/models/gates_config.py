"""The config of a `GateNetwork`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lutetia.errors import fail
from lutetia.lut import check_int
from lutetia.models.fields import whole_numbers
from lutetia.models.votes_config import VotesConfig


def check_gates(hidden: Any, learn_thresholds: Any, threshold_bits: Any, bits: int) -> tuple[int, ...]:
    """Check what a network of gates has beyond `Votes`; `hidden` as a tuple."""
    sizes = whole_numbers("hidden", hidden, 1)
    if not isinstance(learn_thresholds, bool):
        fail("learn_thresholds", learn_thresholds, "true or false")
    check_int("threshold_bits", threshold_bits, 1, bits if learn_thresholds else 16)
    return sizes


@dataclass(frozen=True)
class GateNetworkConfig(VotesConfig):
    """Layers of one-bit tables: `hidden` says how many each layer before the last one has, `n_tables` how many vote.

    With `learn_thresholds` every input has thresholds of its own, on a grid of `threshold_bits` bits: fewer bits are
    cheaper comparisons.
    """

    hidden: tuple[int, ...] = ()
    learn_thresholds: bool = False
    threshold_bits: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "hidden", check_gates(self.hidden, self.learn_thresholds, self.threshold_bits, self.bits))
        check_int("threshold_bits", self.threshold_bits, 1, self.bits)
