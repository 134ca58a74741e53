"""What synapses of one kind have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from lutetia.errors import ArgumentError, fail


@dataclass(frozen=True)
class SynapseMeta:
    """What synapses of one kind have in common: how they learn, where they start, how far they may go."""

    lr_scale: float = 1.0  # multiplies the gradient of the weight
    min_weight: float = -math.inf
    max_weight: float = math.inf
    initial_weight: float = 0.0
    initial_noise: float = 1e-3  # weights start uniform in initial_weight ± initial_noise

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            bound = each.name in ("min_weight", "max_weight")
            if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
                fail(each.name, value, "a number")
            if math.isinf(value) and not bound:
                fail(each.name, value, "a finite number")
        for name in ("lr_scale", "initial_noise"):
            if getattr(self, name) < 0:
                fail(name, getattr(self, name), "a number that is not negative")
        if self.min_weight > self.max_weight:
            fail("min_weight", self.min_weight, f"at most max_weight, which is {self.max_weight}")
        if not self.min_weight <= self.initial_weight <= self.max_weight:
            fail("initial_weight", self.initial_weight, f"a number from {self.min_weight} to {self.max_weight}")


def is_bounded(meta: SynapseMeta) -> bool:
    """Whether the weights have a finite bound."""
    return math.isfinite(meta.min_weight) or math.isfinite(meta.max_weight)


def meta_from(entry: Any) -> SynapseMeta:
    try:
        return SynapseMeta(**entry)
    except TypeError as error:
        raise ArgumentError(f"a meta is {entry!r}, expected fields of SynapseMeta") from error
