"""Which algorithm a LUT attention runs: a count of what each would move and compute.

Both give the same answer. *Pairs* reads a row of O weights for each of the S(S-1)/2 pairs. *Cells* counts, for each position, how
often each of its C = 2**(N_c + N_pe) cells fires, and multiplies the counts with the table: a pair costs one count, and the rows
are read once for many positions. If there are no more cells than positions, that is far less work; if there are many more, most
counts are zero and still multiplied.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from lutetia.errors import ArgumentError, check_choice
from lutetia.lut.sums import Sums

ALGORITHMS = ("auto", "pairs", "cells")

# One multiply-add of a product costs about as much as fetching this many bytes of a row. Measured: on one CPU thread the two
# algorithms meet near C = S, on the tensor cores of an H200 near C = 4 S, where rows are not very short.
BYTES_PER_OPERATION = {"cpu": 1.5, "cuda": 0.5}


def check_algorithm(algorithm: str, sparse: bool) -> None:
    """Check that the algorithm exists and that this connectivity supports it."""
    check_choice("algorithm", algorithm, ALGORITHMS)
    if sparse and algorithm == "cells":
        raise ArgumentError("algorithm is 'cells', expected 'auto' or 'pairs' where there are synapses: cells need full tables")


@lru_cache(maxsize=1024)
def choose(
    algorithm: str, sizes: tuple[int, int, int, int, int, int], sparse: bool, dtype: torch.dtype, sums: Sums, device: str = "cpu"
) -> str:
    """ "pairs" or "cells": the requested one, or with "auto" the cheaper one; sizes are B, S, O, N_t, N_c, N_pe.

    Cells are products over full tables: sparse connectivity always walks pairs. Exact sums and float64 do when they may choose.
    What is compared are the bytes that one training step moves, for all sequences and detectors, and operations as bytes.
    """
    check_algorithm(algorithm, sparse)
    if algorithm != "auto":
        return algorithm
    if sparse or sums.exact or dtype == torch.float64:
        return "pairs"
    batch, length, n_outputs, n_detectors, n_anchors, positional_dim = sizes
    places, cells = batch * n_detectors * length, 1 << (n_anchors + positional_dim)
    pairs = places * (length - 1) // 2
    # Three times each pair meets rows of O numbers: it reads one forward, the other one backward, and adds to a gradient.
    by_pairs = 3 * pairs * n_outputs * dtype.itemsize
    # Counts are made and read, P is written and looked up; three products run over positions × cells × outputs.
    table = n_detectors * (cells << n_anchors) * n_outputs
    moved = 4 * (pairs + 2 * places * cells) + 4 * 3 * pairs + 3 * table * dtype.itemsize
    operations = 3 * places * cells * n_outputs
    by_cells = moved + BYTES_PER_OPERATION.get(device, BYTES_PER_OPERATION["cpu"]) * operations
    return "cells" if by_cells < by_pairs else "pairs"
