"""The LUT runtime: layers that look up instead of multiply.

`__all__` is for users; the other names are for the packages of lutetia that build on the runtime, which import from here only.
"""

from lutetia.lut.algorithm import check_algorithm
from lutetia.lut.api import (
    GRADIENTS,
    LayerDescription,
    Learning,
    Tables,
    check_bits,
    lut,
    lut_attention,
    quickly,
    run,
    run_attention,
)
from lutetia.lut.autograd.graphs import in_graph
from lutetia.lut.autograd.how import NO_WIRES, How, Wires
from lutetia.lut.autograd.ops import like_positions
from lutetia.lut.autograd.policies import Rate, nodes_of, settle
from lutetia.lut.autograd.saved import Record, record_of
from lutetia.lut.connectivity import growth
from lutetia.lut.connectivity.anchors import MAX_ANCHORS, check_anchors, check_thresholds, checked_anchors, random_anchors
from lutetia.lut.connectivity.full import DEFAULT_META, Connectivity, Full, full, synapses_of
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.connectivity.synapses import Synapses
from lutetia.lut.decode import IndexCache, decode
from lutetia.lut.kernels.choice import backend_name, kernels, use_backend
from lutetia.lut.kernels.protocol import READS, SCALAR_NAMES, SCALARS, Products, Read, Sequence
from lutetia.lut.kernels.reference.rows import rows_of
from lutetia.lut.sums import Sums, sum_dtype

__all__ = [
    "SynapseMeta",
    "Synapses",
    "check_anchors",
    "growth",
    "kernels",
    "lut",
    "lut_attention",
    "random_anchors",
    "use_backend",
]
