"""The definition of every kernel, in plain torch: short enough to read in one sitting."""

from lutetia.lut.kernels.reference.cells import (
    count_firings,
    fill_cells,
    fill_firings,
    fill_step,
    gather_cells,
    list_firings,
    propagate_cells,
)
from lutetia.lut.kernels.reference.detect import detect, detect_positions
from lutetia.lut.kernels.reference.pairs import fill_pairs, gather_pairs, propagate_pairs
from lutetia.lut.kernels.reference.reads import read, read_and_fill, send_slopes
from lutetia.lut.kernels.reference.rows import detect_and_fill, fill_rows, gather_compact, gather_rows, propagate, row_gains

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
    "list_firings",
    "propagate",
    "propagate_cells",
    "propagate_pairs",
    "read",
    "read_and_fill",
    "row_gains",
    "send_slopes",
]
