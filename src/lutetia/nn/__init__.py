"""Thin modules over the parts."""

from lutetia.nn.choose import Chooser as Chooser
from lutetia.nn.choose import choose_anchors
from lutetia.nn.decode_attention import DecodeAttention
from lutetia.nn.int8 import hold_int8 as hold_int8
from lutetia.nn.int8 import int8_tables
from lutetia.nn.lut import LUT, clamp_after_step, table_parameters
from lutetia.nn.lut import check_dropout as check_dropout
from lutetia.nn.lut import without_draws as without_draws
from lutetia.nn.lut_attention import LUTAttention
from lutetia.nn.lut_projection import LUTProjection2d
from lutetia.nn.ngram import NgramTables, RowAdam
from lutetia.nn.ngram import ngram_tables as ngram_tables
from lutetia.nn.ngram.layer import check_orders as check_orders
from lutetia.nn.projected_lut import ProjectedLUT
from lutetia.nn.regularise import cell_total_variation

__all__ = [
    "LUT",
    "DecodeAttention",
    "LUTAttention",
    "LUTProjection2d",
    "NgramTables",
    "ProjectedLUT",
    "RowAdam",
    "cell_total_variation",
    "choose_anchors",
    "clamp_after_step",
    "int8_tables",
    "table_parameters",
]
