"""Which algorithm a LUT attention runs: a count of what each would move and compute.

Both give the same answer. *Pairs* reads a row of O weights for each of the S(S-1)/2 pairs. *Cells* counts, for each position,
how often each of its C = 2**(N_c + N_pe) cells fires, and multiplies the counts with the table: a pair costs one count, and the
rows are read once for many positions. With C cells no more than positions that is far less work; with many more, most counts
are zero and are multiplied all the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from lutetia.errors import ArgumentError, check_choice
from lutetia.lut.sums import Sums

ALGORITHMS = ("auto", "pairs", "cells")

# One multiply-add of a product costs about as much as fetching this many bytes of a row. Measured: on one CPU thread the two
# algorithms meet near C = S, on the tensor cores of an H200 near C = 4 S, where rows are not very short.
BYTES_PER_OPERATION = {"cpu": 1.5, "cuda": 0.5}


class Cost(NamedTuple):
    """What one training step moves and computes, for all sequences and detectors."""

    bytes: int
    operations: int

    def total(self, device: str) -> float:
        """Both as bytes, on a type of device."""
        return self.bytes + BYTES_PER_OPERATION.get(device, BYTES_PER_OPERATION["cpu"]) * self.operations


def cost_of_pairs(batch: int, length: int, n_outputs: int, n_detectors: int, dtype: torch.dtype) -> Cost:
    """Three times each pair meets rows of O numbers: it reads one forward, the other one backward, and adds to a gradient."""
    pairs = batch * n_detectors * length * (length - 1) // 2
    return Cost(bytes=3 * pairs * n_outputs * dtype.itemsize, operations=0)


def cost_of_cells(
    batch: int, length: int, n_outputs: int, n_detectors: int, n_anchors: int, positional_dim: int, dtype: torch.dtype
) -> Cost:
    """Counts are made and read, P is written and looked up; three products run over positions × cells × outputs."""
    places, cells = batch * n_detectors * length, 1 << (n_anchors + positional_dim)
    pairs = places * (length - 1) // 2
    table = n_detectors * (cells << n_anchors) * n_outputs
    moved = 4 * (pairs + 2 * places * cells) + 4 * 3 * pairs + 3 * table * dtype.itemsize
    return Cost(bytes=moved, operations=3 * places * cells * n_outputs)


def check_algorithm(algorithm: str, sparse: bool) -> None:
    """Check that the algorithm exists and that this connectivity supports it."""
    check_choice("algorithm", algorithm, ALGORITHMS)
    if sparse and algorithm == "cells":
        raise ArgumentError("algorithm is 'cells', expected 'auto' or 'pairs' where there are synapses: cells need full tables")


@lru_cache(maxsize=1024)
def choose(
    algorithm: str, sizes: tuple[int, int, int, int, int, int], sparse: bool, dtype: torch.dtype, sums: Sums, device: str = "cpu"
) -> str:
    """ "pairs" or "cells": the one that was asked for, or with "auto" the cheaper one; sizes are B, S, O, N_t, N_c, N_pe.

    Cells are products over full tables: sparse connectivity always walks pairs. Exact sums and float64 do when they may choose.
    """
    check_algorithm(algorithm, sparse)
    if algorithm != "auto":
        return algorithm
    if sparse or sums.exact or dtype == torch.float64:
        return "pairs"
    batch, length, n_outputs, n_detectors, n_anchors, positional_dim = sizes
    pairs = cost_of_pairs(batch, length, n_outputs, n_detectors, dtype)
    cells = cost_of_cells(batch, length, n_outputs, n_detectors, n_anchors, positional_dim, dtype)
    return "cells" if cells.total(device) < pairs.total(device) else "pairs"
