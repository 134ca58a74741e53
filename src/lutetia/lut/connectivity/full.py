"""Full connectivity: every lookup neuron reaches every output."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lutetia.lut.connectivity.meta import SynapseMeta, is_bounded
from lutetia.lut.connectivity.synapses import Synapses

DEFAULT_META = SynapseMeta()


@dataclass(frozen=True)
class Full:
    """Tables [n_detectors, n_rows, n_outputs] without a gap, whose synapses all have one meta. Make it with `full`."""

    n_detectors: int
    n_rows: int
    n_outputs: int
    meta: SynapseMeta = DEFAULT_META
    layouts: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)  # see `layout_for`

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.n_detectors, self.n_rows, self.n_outputs

    def expand(self, weight: Tensor) -> Tensor:
        """weight [n_detectors, n_rows, n_outputs] as a dense table: itself."""
        return weight

    def flatten(self, dense: Tensor) -> Tensor:
        """A dense table as a weight: itself."""
        return dense

    def clamp_(self, weight: Tensor) -> Tensor:
        """Bring the weight within the bounds of its meta, in place."""
        if is_bounded(self.meta):
            with torch.no_grad():
                weight.clamp_(self.meta.min_weight, self.meta.max_weight)
        return weight


Connectivity: TypeAlias = Full | Synapses


@lru_cache(maxsize=512)
def full(n_detectors: int, n_rows: int, n_outputs: int, meta: SynapseMeta = DEFAULT_META) -> Full:
    """Full connectivity of these sizes; the same object each time, so that its layouts are made once."""
    return Full(n_detectors, n_rows, n_outputs, meta)
