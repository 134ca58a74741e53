"""Thin modules over the parts."""

from lutetia.nn.choose import Chooser, choose_anchors
from lutetia.nn.decode_attention import DecodeAttention
from lutetia.nn.int8 import hold_int8, int8_tables
from lutetia.nn.lut import LUT, check_dropout, clamp_after_step, table_parameters, without_draws
from lutetia.nn.lut_attention import LUTAttention
from lutetia.nn.lut_projection import LUTProjection2d
from lutetia.nn.ngram import NgramTables, RowAdam, ngram_tables
from lutetia.nn.ngram.layer import check_orders
from lutetia.nn.projected_lut import ProjectedLUT
from lutetia.nn.regularise import cell_total_variation
from lutetia.nn.thresholds import COMPARISONS, draw_comparisons

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


def register_relevance_rules() -> None:
    """Register the rules of LUT layers with `lutetia.relevance`, which calls this when it meets such a layer."""
    from lutetia.nn import lut_read_relevance, lut_relevance
