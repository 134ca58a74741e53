"""The compiled kernels for the CPU."""

from lutetia.lut.kernels.cpu.cells import count_firings, fill_cells, fill_firings, gather_cells, propagate_cells
from lutetia.lut.kernels.cpu.pairs import detect_positions, fill_pairs, fill_step, gather_pairs, propagate_pairs
from lutetia.lut.kernels.cpu.reads import read, read_and_fill, send_slopes
from lutetia.lut.kernels.cpu.rows import detect, detect_and_fill, fill_rows, gather_compact, gather_rows, propagate, row_gains

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
