"""The LUT runtime: layers that look up instead of multiply.

`__all__` is for users; the other names are for the packages of lutetia that build on the runtime, which import from here only.
"""

from lutetia.lut.algorithm import check_algorithm as check_algorithm
from lutetia.lut.api import GRADIENTS as GRADIENTS
from lutetia.lut.api import SCALAR_NAMES as SCALAR_NAMES
from lutetia.lut.api import SCALARS as SCALARS
from lutetia.lut.api import Learning as Learning
from lutetia.lut.api import Options as Options
from lutetia.lut.api import Tables as Tables
from lutetia.lut.api import Wiring as Wiring
from lutetia.lut.api import check_bits as check_bits
from lutetia.lut.api import check_lengths as check_lengths
from lutetia.lut.api import lut, lut_attention
from lutetia.lut.api import quickly as quickly
from lutetia.lut.api import run as run
from lutetia.lut.api import run_attention as run_attention
from lutetia.lut.autograd.ops import like_positions as like_positions
from lutetia.lut.autograd.policies import TOKEN as TOKEN
from lutetia.lut.autograd.policies import Rate as Rate
from lutetia.lut.autograd.policies import nodes_of as nodes_of
from lutetia.lut.autograd.policies import settle as settle
from lutetia.lut.autograd.saved import Record as Record
from lutetia.lut.autograd.saved import record_of as record_of
from lutetia.lut.connectivity import growth
from lutetia.lut.connectivity.anchors import INTEGER_DTYPES as INTEGER_DTYPES
from lutetia.lut.connectivity.anchors import MAX_ANCHORS as MAX_ANCHORS
from lutetia.lut.connectivity.anchors import MAX_INT32 as MAX_INT32
from lutetia.lut.connectivity.anchors import check_anchors, random_anchors
from lutetia.lut.connectivity.anchors import check_int as check_int
from lutetia.lut.connectivity.anchors import check_thresholds as check_thresholds
from lutetia.lut.connectivity.anchors import checked_anchors as checked_anchors
from lutetia.lut.connectivity.checked import synapses_of as synapses_of
from lutetia.lut.connectivity.full import DEFAULT_META as DEFAULT_META
from lutetia.lut.connectivity.full import Connectivity as Connectivity
from lutetia.lut.connectivity.full import Full as Full
from lutetia.lut.connectivity.full import full as full
from lutetia.lut.connectivity.meta import SynapseMeta
from lutetia.lut.connectivity.synapses import Synapses
from lutetia.lut.connectivity.thresholds import KINDS as KINDS
from lutetia.lut.connectivity.thresholds import draw_comparisons as draw_comparisons
from lutetia.lut.connectivity.thresholds import thresholds_of_data as thresholds_of_data
from lutetia.lut.decode import IndexCache as IndexCache
from lutetia.lut.decode import decode as decode
from lutetia.lut.decode import rows_in as rows_in
from lutetia.lut.description import LayerDescription as LayerDescription
from lutetia.lut.kernels.choice import backend_name as backend_name
from lutetia.lut.kernels.choice import kernels, use_backend
from lutetia.lut.kernels.protocol import READS as READS
from lutetia.lut.kernels.protocol import Products as Products
from lutetia.lut.kernels.protocol import Read as Read
from lutetia.lut.kernels.protocol import Sequence as Sequence
from lutetia.lut.kernels.reference.pairs import pairs_of as pairs_of
from lutetia.lut.kernels.reference.rows import rows_of as rows_of
from lutetia.lut.sums import FLOATS as FLOATS
from lutetia.lut.sums import Sums as Sums
from lutetia.lut.sums import sum_dtype as sum_dtype

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
