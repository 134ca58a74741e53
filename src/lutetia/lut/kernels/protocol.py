"""The values that primitives take and give, all under one roof; `backend` says what primitives there are."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from lutetia.errors import check_choice, check_int
from lutetia.lut.connectivity.anchors import Comparisons as Comparisons
from lutetia.lut.connectivity.full import Connectivity as Connectivity
from lutetia.lut.connectivity.full import Full as Full
from lutetia.lut.connectivity.synapses import Synapses as Synapses
from lutetia.lut.sums import FLOAT as FLOAT
from lutetia.lut.sums import Sums as Sums
from lutetia.lut.sums import sum_dtype as sum_dtype

PRECISIONS = ("float32", "tf32", "bf16")  # of the products of cells, where a backend can choose
SCALAR_NAMES = ("log_beta", "log_gamma", "log_tau")
# What each read learns, and where it starts.
SCALARS: dict[str, dict[str, float]] = {
    "hard": {},
    "blend": {},
    "confidence": {"log_beta": math.log(2.0), "log_gamma": 0.0},
    "confidence2": {"log_beta": math.log(2.0), "log_gamma": 0.0, "log_tau": math.log(0.5)},
}
READS = tuple(SCALARS)
TWO_ROWS = ("blend", "confidence2")  # the reads that add a second row
FEW = 16  # detectors of a small layer, at most, that one program of a GPU has
STACKED, NARROW = 4, 64  # layers that one launch computes, and outputs of each, at most; they have few detectors


class Detected(NamedTuple):
    """What detectors found: [..., N_t] each. The last two are None where nothing is to be learned from them."""

    indices: Tensor  # int32: the row of the table
    min_delta: Tensor | None = None  # the margin closest to zero, which nearly made it another row
    min_delta_index: Tensor | None = None  # int32: the bit that this margin decides

    @property
    def closest(self) -> tuple[Tensor, Tensor]:
        """The last two, where something is to be learned."""
        assert self.min_delta is not None
        assert self.min_delta_index is not None
        return self.min_delta, self.min_delta_index


class Coefficients(NamedTuple):
    """The factors of rows in a read: y = Σ_t a W[t, index] + b W[t, alternative], each [B, N_t]. (No coefficients: a is 1.)

    `b` and `alternatives` are None where a read has one row.
    """

    a: Tensor
    b: Tensor | None = None
    alternatives: Tensor | None = None  # int32


class Read(NamedTuple):
    """A read and its learned scalars, tensors [] that hold logarithms; None where it has none."""

    name: str = "hard"
    log_beta: Tensor | None = None
    log_gamma: Tensor | None = None
    log_tau: Tensor | None = None

    @property
    def logs(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The three scalars."""
        return self.log_beta, self.log_gamma, self.log_tau


class Products(NamedTuple):
    """How cells are multiplied: the precision, where a backend can choose, and bytes of scratch (None: a default)."""

    precision: str = "float32"
    budget: int | None = None

    def check(self) -> Products:
        """These, or an error that says what they should be."""
        check_choice("precision", self.precision, PRECISIONS)
        if self.budget is not None:
            check_int("budget", self.budget, 1, 2**63 - 1)
        return self


class Into(NamedTuple):
    """A weight of any dtype that takes a step instead of getting a gradient: weight -= rate · dW; it is returned."""

    weight: Tensor
    rate: float


class Sequence(NamedTuple):
    """What detectors found in sequences. `products` is None where pairs of positions are walked, given where cells are counted.

    The cell of positions i < j is Q << (N_c + N_pe) | K << N_pe | PE: of x found at j, at i, and of their distance.
    """

    x: Detected  # [B, S, N_t]
    positions: Detected  # of the distances 1 to S-1: [S-1, N_t]; without positional bits index 0, min_delta inf
    n_anchors: int
    positional_dim: int
    products: Products | None = None

    @property
    def n_cells(self) -> int:
        """How many cells may fire for one j: K and PE."""
        return 1 << (self.n_anchors + self.positional_dim)
