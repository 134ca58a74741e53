"""A description of a LUT layer, for code that explains, builds, shards or decodes it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from lutetia.lut.connectivity.full import Connectivity
from lutetia.lut.kernels.protocol import Read


class LayerDescription(NamedTuple):
    """The parts of a layer: the tensors themselves, not copies."""

    weight: Tensor  # [n_detectors, n_rows, n_outputs], or with synapses flat [n_weights]
    anchors: Tensor  # int32 [n_detectors, n_anchors, 2]
    connectivity: Connectivity
    positions: Tensor | None = None  # of attention: [max_length - 1, n_detectors or 1, positional_dim]
    read: Read = Read()
    thresholds: Tensor | None = None  # [n_thresholds]: the constants that anchors name by n_inputs, n_inputs + 1, ...
