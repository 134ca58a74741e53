"""What synapses of one kind have in common, and what is derived from a connectivity: groups, blocks, statistics, layouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from lutetia._shared.memo import made_apart
from lutetia.errors import ArgumentError, fail

C = TypeVar("C")  # a connectivity
T = TypeVar("T")


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


def layout_for(connectivity: C, make: Callable[[C], T]) -> T:
    """make(connectivity), computed once and kept in it: what a backend derives from a connectivity."""
    kept = connectivity.layouts.get(make)  # type: ignore[attr-defined]
    if kept is None:
        start = getattr(connectivity, "owner_start", None)  # synapses have memory
        kept = make(connectivity) if start is None else made_apart(partial(make, connectivity), start)
        connectivity.layouts[make] = kept  # type: ignore[attr-defined]
    return kept


class Groups(NamedTuple):
    """Forward synapse groups: runs of at most `group_size` synapses with one owner and one meta."""

    start: torch.Tensor  # int64 [n_groups]: first synapse in the owners' list
    counts: torch.Tensor  # int32 [n_groups]: 1 to group_size
    meta: torch.Tensor  # int32 [n_groups]
    of_owner: torch.Tensor  # int64 [n_owners + 1]: the groups of owner i are of_owner[i] to of_owner[i + 1]


class Blocks(NamedTuple):
    """Detectors of a shared layout that have the same list of targets."""

    of_detector: torch.Tensor  # int32 [n_detectors]
    detectors: torch.Tensor  # int32 [n_detectors]: detectors sorted by block
    start: torch.Tensor  # int32 [n_blocks + 1] into detectors
    width: torch.Tensor  # int32 [n_blocks]: number of targets
    disjoint: bool  # no output belongs to two blocks


class SynapseStatistics(NamedTuple):
    """A summary of a connectivity."""

    n_weights: int
    n_neurons: int
    n_groups: int
    fan_out: tuple[int, float, int]  # smallest, mean and largest number of synapses of a lookup neuron
    fan_in: tuple[int, float, int]  # the same of an output
    group_fill: float  # synapses per place in a group; 1.0 when every group is full
    bytes: int  # of the connectivity and its groups, not of the weights
