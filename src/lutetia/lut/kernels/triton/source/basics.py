"""What the Triton sources share: the groups of arguments they take, fixed sums, and small pieces.

Names in capitals are compile-time constants. Arguments come in named groups, which cost the host less than their members one by
one (Triton 3.6 and 3.7 look up a kernel of 30 arguments in 8 to 10 µs, not 11). A member that is None is known at compile time.
"""

# mypy: disable-error-code=no-untyped-def

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lutetia._shared.triton_fixed import from_units, units

FC = tl.constexpr(0)
SHARED = tl.constexpr(1)
GENERAL = tl.constexpr(2)

HARD = tl.constexpr(0)
BLEND = tl.constexpr(1)
CONFIDENCE = tl.constexpr(2)
CONFIDENCE2 = tl.constexpr(3)


class Inputs(NamedTuple):
    """What is compared: x [B, I], anchors [N_t, N_c, 2], the scalars [] that a read learns, and constants that anchors name."""

    x: Any = None
    anchors: Any = None
    log_beta: Tensor | None = None
    log_gamma: Tensor | None = None
    log_tau: Tensor | None = None
    thresholds: Tensor | None = None


class Rows(NamedTuple):
    """Which rows detectors chose, and their coefficients: [B, N_t] each, None where there are none."""

    indices: Any
    min_delta: Tensor | None = None
    min_delta_index: Any = None
    a: Any = None
    b: Tensor | None = None
    alternatives: Tensor | None = None


class Target(NamedTuple):
    """Where sums go: int64 and a flag [1] for those that left their range in fixed sums, else floats and None."""

    out: Any
    overflow: Any = None
    other: Tensor | None = None  # where a second sum goes


class TableArguments(NamedTuple):
    """The weights and the outputs that they reach, see `Layout`; lr holds the lr_scale of each target where they differ."""

    weight: Tensor | None = None
    start: Tensor | None = None
    targets: Tensor | None = None
    block_start: Tensor | None = None
    block_detectors: Tensor | None = None
    lr: Tensor | None = None


class Sizes(NamedTuple):
    """Numbers of a layer."""

    n_inputs: int | None = None
    n_detectors: int | None = None
    n_outputs: int | None = None
    n_blocks: int | None = None


class ReadCase(NamedTuple):
    """What the comparison of inputs is compiled for."""

    KIND: int = 0  # the read
    COEFFICIENTS: int = 0  # how many coefficients each detector has; 0 where rows are added as they are
    N_C: int = 1
    N_C_PADDED: int = 1
    ACC: tl.dtype | None = None  # the dtype in which inputs are compared
    WORK: tl.dtype | None = None  # in which coefficients are worked out: float64 where fixed sums need the same on every backend
    SCALE: float = 0.0  # as in `Case`


class Case(NamedTuple):
    """What a kernel over rows is compiled for."""

    N_ROWS: int
    LAYOUT: int
    WIDTH: int  # outputs that every detector reaches; 0 when they differ. Known, rows are read 16 bytes at a time
    WIDE: bool  # offsets into the weights pass an int32
    SCALE: float  # 0 for sums in floating point, else the units that make 1.0 in fixed sums
    ACC: tl.dtype  # the dtype of float sums
    BLOCK_T: int = 0
    BLOCK_O: int = 0
    BLOCK_B: int = 0  # rows of the batch that one program walks
    ATOMIC: bool = False  # several programs add to one output
    N_C: int = 0
    ALONE: bool = False  # one program has all detectors of a row


# ---- sums and slopes -------------------------------------------------------------------------------------------------


@triton.jit
def as_stored(total, out_ptr, overflow_ptr, mask, CASE: tl.constexpr):
    """A sum of `units` as its target holds it: an integer that more will be added to, or a float."""
    if out_ptr.dtype.element_ty == tl.int64:
        return total
    else:
        return from_units(total, overflow_ptr, mask, CASE.SCALE, CASE.ACC)


@triton.jit
def also(mask, fact):
    """A mask and a comparison of scalars, spread as an integer: after `&` alone the interpreter of Triton 3.9 knows no mask."""
    return mask & (tl.broadcast_to(fact.to(tl.int8), mask.shape) != 0)


@triton.jit
def uncertainty_slope(u):
    """0.5 sgn(u) / (1 + |u|)², sgn(0) = -1; divided with correct rounding so that every backend gives the same bits."""
    near = 1.0 + tl.abs(u)
    half = tl.where(u > 0, 0.5, -0.5).to(u.dtype)
    square = near * near
    return half / square if u.dtype == tl.float64 else tl.div_rn(half, square)


@triton.jit
def send(slope, pair_ptr, into, overflow_ptr, mask, SCALE: tl.constexpr):
    """into[a] += slope, into[b] -= slope at the anchors a, b that pair_ptr points to; slope [T].

    `into` is a row of dx and its length I: b >= I is a constant, which gets nothing.
    """
    into_ptr, n_inputs = into
    b = tl.load(pair_ptr + 1, mask=mask, other=0)
    share = units(slope, overflow_ptr, mask, SCALE)
    tl.atomic_add(into_ptr + tl.load(pair_ptr, mask=mask, other=0), share, mask=mask, sem="relaxed")
    tl.atomic_add(into_ptr + b, -share, mask=mask & (b < n_inputs), sem="relaxed")
