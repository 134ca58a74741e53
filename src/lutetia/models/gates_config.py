"""The config of a `GateNetwork`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lutetia.errors import fail
from lutetia.lut import check_int
from lutetia.models.fields import whole_numbers
from lutetia.models.votes_config import VotesConfig


def check_gates(hidden: Any, flags: tuple[Any, Any], threshold_bits: Any, bits: int) -> tuple[int, ...]:
    """Check what a network of gates has beyond `Votes`, flags being `skip` and `learn_thresholds`; `hidden` as a tuple."""
    sizes = whole_numbers("hidden", hidden, 1)
    for name, flag in zip(("skip", "learn_thresholds"), flags, strict=True):
        if not isinstance(flag, bool):
            fail(name, flag, "true or false")
    most = bits if flags[1] else max(bits, 3)  # the default of 3 says nothing unless thresholds are learned
    check_int("threshold_bits", threshold_bits, 1, most)
    return sizes


@dataclass(frozen=True)
class GateNetworkConfig(VotesConfig):
    """Layers of one-bit tables: `hidden` says how many each layer before the last one has, `n_tables` how many vote.

    With `skip` a layer may read the bits of all layers before it, not only of the last one.

    With `learn_thresholds` every input has thresholds of its own, on a grid of `threshold_bits` bits: fewer bits are
    cheaper comparisons.
    """

    hidden: tuple[int, ...] = ()
    skip: bool = False
    learn_thresholds: bool = False
    threshold_bits: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        flags = (self.skip, self.learn_thresholds)
        object.__setattr__(self, "hidden", check_gates(self.hidden, flags, self.threshold_bits, self.bits))
