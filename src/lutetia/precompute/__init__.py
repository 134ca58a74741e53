"""Precompute: layers into tables, tables into hardware."""

from lutetia.precompute.claims import precomputable
from lutetia.precompute.decompose import Unit, Units, decompose
from lutetia.precompute.domains import Binary, Domain, Int, PlusMinus, Ternary, UInt
from lutetia.precompute.encoder import BitsChoice, Encoder
from lutetia.precompute.graph import Graph
from lutetia.precompute.hardware import EquivalenceError, Hardware
from lutetia.precompute.lutnet import LUTNetwork, fit_bits, lut_network
from lutetia.precompute.quantise import Quantise, SparseLinear, quantise, quantise_weights
from lutetia.precompute.simulate import TITLES as SIMULATORS
from lutetia.precompute.stream import Stream
from lutetia.precompute.table import IOTable, MissingRowError
from lutetia.precompute.tools import TimeLimitError
from lutetia.precompute.trace import trace
from lutetia.precompute.votes import Votes

__all__ = [
    "SIMULATORS",
    "Binary",
    "BitsChoice",
    "Domain",
    "Encoder",
    "EquivalenceError",
    "Graph",
    "Hardware",
    "IOTable",
    "Int",
    "LUTNetwork",
    "MissingRowError",
    "PlusMinus",
    "Quantise",
    "SparseLinear",
    "Stream",
    "Ternary",
    "TimeLimitError",
    "UInt",
    "Unit",
    "Units",
    "Votes",
    "decompose",
    "fit_bits",
    "lut_network",
    "precomputable",
    "quantise",
    "quantise_weights",
    "trace",
]
