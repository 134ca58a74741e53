"""What is derived from a connectivity: groups and blocks of synapses, statistics, and the layouts of backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import torch

from lutetia._shared.memo import made_apart

C = TypeVar("C")  # a connectivity
T = TypeVar("T")


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
