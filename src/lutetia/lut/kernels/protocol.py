"""What a backend is: a package whose modules hold the functions below, over the values that they take and give.

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs per detector · N_pe positional bits ·
R rows of each table: 2**N_c, or 2**(2 N_c + N_pe) for a sequence.

`weight` is [N_t, R, O] with `Full` connectivity and flat [n_weights] with `Synapses`. Floating point tensors are float32,
float64, bfloat16 or float16; what is added is added in float32, or in float64 where an operand is float64 (`sum_dtype`), and has
that dtype when it is handed back. Index tensors are int32. The callers hand over contiguous tensors of one device, anchors that
were checked, thresholds in the sum dtype of x (`comparisons_of`), and indices within their tables; a backend that would read
outside of a table checks indices again.
Fixed sums have the same bits in every backend, in any order, with any number of threads; one that leaves its range raises
`OverflowInSumError` before anything given was changed.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from lutetia.errors import check_choice
from lutetia.lut.connectivity.anchors import Comparisons, check_int
from lutetia.lut.connectivity.full import Connectivity
from lutetia.lut.sums import Sums

PRECISIONS = ("float32", "tf32", "bf16")  # of the products of cells, where a backend can choose
READS = ("hard", "blend", "confidence", "confidence2")
TWO_ROWS = ("blend", "confidence2")  # the reads that add a second row


class Detected(NamedTuple):
    """What detectors found: [..., N_t] each. The last two are None where nothing is to be learned from them."""

    indices: Tensor  # int32: the row of the table
    min_delta: Tensor | None = None  # the margin closest to zero, which nearly made it another row
    min_delta_index: Tensor | None = None  # int32: the bit that this margin decides


class Coefficients(NamedTuple):
    """With what a read multiplies rows: y = Σ_t a W[t, index] + b W[t, alternative], each [B, N_t]. (No coefficients: a is 1.)

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
    """How cells are multiplied: the precision, where a backend can choose, and bytes of scratch (None: as seems good)."""

    precision: str = "float32"
    budget: int | None = None

    def check(self) -> Products:
        """These, or an error that says what they should be."""
        check_choice("precision", self.precision, PRECISIONS)
        if self.budget is not None:
            check_int("budget", self.budget, 1, 2**63 - 1)
        return self


class Into(NamedTuple):
    """A weight of any dtype that takes a step in place of a gradient: weight -= rate · dW, and it is given back."""

    weight: Tensor
    rate: float


class Sequence(NamedTuple):
    """What was found in sequences. `products` is None where the pairs of positions are walked, and given where cells are counted.

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


class Backend(Protocol):
    """The primitives. `detect_and_fill`, `read_and_fill` and `propagate` are two in one, for backends that fuse them."""

    # ---- one step ----------------------------------------------------------------------------------------------------

    def detect(self, x: Tensor, comparisons: Comparisons, train: bool) -> Detected:
        """x [..., I] -> what was found [..., N_t]; with `train` all three, else only the indices."""

    def read(self, x: Tensor, comparisons: Comparisons, read: Read, sums: Sums) -> tuple[Tensor, Coefficients]:
        """x [B, I] -> indices int32 [B, N_t], and coefficients [B, N_t] in the sum dtype of x.

        `hard` gives two rows with a = 1, b = 0. With exact sums the coefficients are worked out in float64 and rounded once.
        """

    def fill_rows(
        self, weight: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
    ) -> Tensor:
        """y = Σ_t W[t, index_t], or with coefficients as they say: indices [B, N_t] -> y [B, O]."""

    def detect_and_fill(
        self, x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, sums: Sums, train: bool
    ) -> tuple[Tensor, Detected | None]:
        """x [B, I] -> y [B, O] and, with `train`, what was found [B, N_t]: `detect`, then `fill_rows` without coefficients."""

    def read_and_fill(
        self, x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, read: Read, sums: Sums
    ) -> Tensor:
        """x [B, I] -> y [B, O]: `read`, then `fill_rows`."""

    def row_gains(
        self, grad: Tensor, weight: Tensor, connectivity: Connectivity, rows: tuple[Tensor, Tensor | None], sums: Sums
    ) -> tuple[Tensor, Tensor | None]:
        """grad [B, O], rows: indices [B, N_t], once or twice -> g·W[t, index_t] of each, [B, N_t]."""

    def propagate(
        self,
        grad: Tensor,
        weight: Tensor,
        connectivity: Connectivity,
        detected: Detected,
        anchors: Tensor,
        n_inputs: int,
        sums: Sums,
    ) -> Tensor:
        """The gradient of the hard read: grad [B, O], detected [B, N_t] -> dx [B, I].

        d_t = U'(min_delta) (g·W[t, index] - g·W[t, index ^ (1 << min_delta_index)]) goes to dx[a], and -d_t to dx[b], the
        anchors of min_delta_index; a constant b >= I gets nothing. In exact sums the difference is one sum, and the addends of dx
        another.
        """

    def send_slopes(
        self, x: Tensor, comparisons: Comparisons, read: Read, gains: tuple[Tensor, Tensor | None], sums: Sums, to_x: bool
    ) -> tuple[Tensor | None, Tensor]:
        """The gradients of a read's a and b, [B, N_t] -> dx [B, I] (None unless `to_x`), and of log β, log γ, log τ: [3]."""

    def gather_rows(
        self,
        grad: Tensor,
        connectivity: Connectivity,
        indices: Tensor,
        coefficients: Coefficients | None,
        sums: Sums,
        into: Into | None,
    ) -> Tensor:
        """dW[t, index_t] += lr_scale · g, with coefficients times a, and b to the other row: grad [B, O], indices [B, N_t].

        Gives dW, of the shape of a weight, or the weight of `into` after its step: without a gradient of its size where that can
        be done. Bounds are the caller's business. A sum out of range changes nothing.
        """

    def gather_compact(
        self, grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
    ) -> tuple[Tensor, Tensor]:
        """dW of the lookup neurons that were read: numbers t · R + row, int64 [n], rising; and values of their weights, flat."""

    # ---- sequences, by pairs and by cells ----------------------------------------------------------------------------

    def detect_positions(self, positions: Tensor, train: bool) -> Detected:
        """positions [S-1, N_t, N_pe] -> what was found [S-1, N_t]: bit r is set where the position is above zero."""

    def fill_pairs(self, weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
        """y[j] = Σ_{i<j} Σ_t W[t, cell] -> [B, S, O]."""

    def propagate_pairs(
        self,
        grad: Tensor,
        weight: Tensor,
        connectivity: Connectivity,
        sequence: Sequence,
        anchors: Tensor,
        n_inputs: int,
        sums: Sums,
    ) -> tuple[Tensor, Tensor]:
        """grad [B, S, O] -> dx [B, S, I], dpositions [S-1, N_t, N_pe].

        Of each pair the closer of Q and K is flipped (K, where they are equally close), and PE too where it is closer than both.
        """

    def gather_pairs(self, grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
        """dW[t, cell] += lr_scale · g[j] over all pairs: grad [B, S, O]; `into` as in `gather_rows`."""

    def fill_cells(self, weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
        """`fill_pairs` by cells. Connectivity is full; where cells do not serve (fixed sums), pairs do."""

    def propagate_cells(
        self,
        grad: Tensor,
        weight: Tensor,
        connectivity: Connectivity,
        sequence: Sequence,
        anchors: Tensor,
        n_inputs: int,
        sums: Sums,
    ) -> tuple[Tensor, Tensor]:
        """`propagate_pairs` by cells."""

    def gather_cells(self, grad: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums, into: Into | None) -> Tensor:
        """`gather_pairs` by cells."""

    def count_firings(self, sequence: Sequence) -> Tensor:
        """How often each cell (K, PE) fires for each j: int32 [B, S, N_t, C]."""

    def fill_firings(self, weight: Tensor, firings: tuple[Tensor, Tensor, Tensor], shape: tuple[int, int], sums: Sums) -> Tensor:
        """y = Σ count · W[row]: firings are place b·S + j, rising, row t·R + cell and count, [n] each; shape is (B, S)."""

    # ---- decoding ----------------------------------------------------------------------------------------------------

    def fill_step(self, x: Tensor, weight: Tensor, anchors: Tensor, cache: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
        """y [B, O] of one new position of each row: x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2].

        cache int16 [B, N_t, S] holds lengths [B] (int64, in the memory of the host) earlier indices and gets the new ones; places
        int32 [N_t, S-1] are the PE indices, farthest first. Fewer than 2**31 rows in all; y has the dtype of sums.
        """


PRIMITIVES = [name for name in vars(Backend) if not name.startswith("_")]
