"""The kernels for CUDA, in Triton: what they launch with is in the modules of this folder, their source in `source`."""

from lutetia.lut.kernels.triton.cells import count_firings, fill_cells, fill_firings, fill_step, gather_cells, propagate_cells
from lutetia.lut.kernels.triton.detect import detect, detect_positions, read
from lutetia.lut.kernels.triton.pairs import fill_pairs, gather_pairs, propagate_pairs
from lutetia.lut.kernels.triton.reads import read_and_fill, send_slopes
from lutetia.lut.kernels.triton.rows import detect_and_fill, fill_rows, gather_compact, gather_rows, propagate, row_gains

__all__ = [
    "count_firings",
    "detect",
    "detect_and_fill",
    "detect_positions",
    "fill_cells",
    "fill_firings",
    "fill_pairs",
    "fill_rows",
    "fill_step",
    "gather_cells",
    "gather_compact",
    "gather_pairs",
    "gather_rows",
    "propagate",
    "propagate_cells",
    "propagate_pairs",
    "read",
    "read_and_fill",
    "row_gains",
    "send_slopes",
]
