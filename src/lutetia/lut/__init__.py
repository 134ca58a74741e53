"""The LUT runtime: layers that look up instead of multiply."""

from lutetia.lut import growth
from lutetia.lut.anchors import check_anchors, random_anchors
from lutetia.lut.attention import lut_attention
from lutetia.lut.backend import kernels, use_backend
from lutetia.lut.functional import lut
from lutetia.lut.synapses import SynapseMeta, Synapses

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
