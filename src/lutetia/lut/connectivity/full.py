"""Connectivity as kernels may trust it: full, where every lookup neuron reaches every output, or synapses that were checked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lutetia._shared.memo import Memo, private_copy
from lutetia.errors import check_tensor, fail
from lutetia.lut.connectivity.parts import SynapseMeta, is_bounded
from lutetia.lut.connectivity.synapses import TENSOR_NAMES, Synapses

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

    def neuron_widths(self, device: torch.device) -> Tensor:
        """How many weights each lookup neuron has, int64 [n_neurons]: as many as there are outputs."""
        return torch.full((), self.n_outputs, device=device).expand(self.n_detectors * self.n_rows)

    def places_of(self, neurons: Tensor) -> Tensor:
        """Where the weights of these lookup neurons, int64 [n], stand in the flat weight, one neuron after the other."""
        return (neurons[:, None] * self.n_outputs + torch.arange(self.n_outputs, device=neurons.device)).flatten()

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


def check_tensors(synapses: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The three tensors of synapses of unknown origin, checked."""
    if not isinstance(synapses, Synapses):
        fail("synapses", synapses, "Synapses, made with lutetia.lut.growth")
    for name, tensor in synapses.tensors().items():
        check_tensor(name, tensor)
    return synapses.owner_start, synapses.owner_targets, synapses.owner_meta


def _rebuilt(start: Tensor, targets: Tensor, meta: Tensor, header: str) -> Synapses:
    facts = json.loads(header)
    arrays = [private_copy(each) if each.is_cuda else each.detach().clone() for each in (start, targets, meta)]
    return Synapses.from_tensors(dict(zip(TENSOR_NAMES[facts["layout"]], arrays, strict=True)), facts)


synapses_seen = Memo(_rebuilt)


def synapses_of(start: Tensor | None, targets: Tensor | None, meta: Tensor | None, header: str) -> Synapses:
    """The synapses of these tensors, built and checked once, so that the layouts in them are kept."""
    return synapses_seen.get((start, targets, meta), header)  # type: ignore[arg-type]
