"""Thin modules over the parts."""

from lutetia.nn.lut import LUT, clamp_after_step
from lutetia.nn.lut_attention import LUTAttention
from lutetia.nn.lut_projection import LUTProjection2d

__all__ = ["LUT", "LUTAttention", "LUTProjection2d", "clamp_after_step"]
