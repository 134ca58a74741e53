"""What the compiled loops work with: arrays that belong together, under one name.

Kernels of one step are given the same as plain tuples, and name them first: numba takes 1 µs longer to recognise a named one.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class LayerArrays(NamedTuple):
    """The tables of a layer, and blocks of detectors whose rows reach the same outputs. All of general connectivity is one block.

    A row is where it begins in the weights or, where connectivity is general, the number of a lookup neuron.
    """

    start: Any  # [n_blocks + 1]: block i has detectors[start[i] : start[i + 1]]
    detectors: Any  # [N_t]: their numbers
    first: Any  # [N_t]: the first row of each detector
    width: Any  # [N_t]: from one row to the next: how many outputs each reaches, 1 where connectivity is general
    column: Any  # [N_t]: the first of these outputs where they are consecutive, else -1
    list_at: Any  # [N_t]: where they begin in `targets`
    targets: Any  # outputs
    row_start: Any = None  # of general connectivity, [N_t · R + 1]: where the weights of each neuron, and their targets, begin


class TableArrays(NamedTuple):
    """The tables of a block, or the table of one detector."""

    weight: Any  # of the layer
    first: Any  # the first row, of one detector, or of all [N_t]
    width: Any  # from one row to the next
    targets: Any
    row_start: Any
    detectors: Any = None  # of the block
    n_detectors: Any = None  # of the layer


class RowArrays(NamedTuple):
    """A row of every table for every batch row, and what it is multiplied with: None, or [B, N_t]."""

    indices: Any  # [B, N_t]
    factors: Any = None


class Reads(NamedTuple):
    """The rows that are read: once or, where `second` is not None, twice."""

    first: RowArrays
    second: RowArrays | None = None


class Gradients(NamedTuple):
    """Gradients [B, O], and what multiplies those of each synapse listed: [n], or empty."""

    grad: Any
    rates: Any


class Places(NamedTuple):
    """Where the gradients of weights go. Each detector has its own part: threads never meet."""

    starts: Any  # [N_t · R + 1]: where those of each lookup neuron begin; empty: row after row
    spans: Any  # [N_t + 1]: where those of each detector begin
    n_rows: Any  # R


class Sink(NamedTuple):
    """The sums of gradients, flat, their places, and whether what is there must be cleared first."""

    out: Any
    places: Places
    fresh: Any


# ---- sequences -------------------------------------------------------------------------------------------------------


class Keys(NamedTuple):
    """The indices of sequences: the row that pair (i, j) reads is keys[j] << N_c | keys[i] | signs[S-1-j+i]."""

    keys: Any  # [N_t, B, S]: an index << N_pe
    signs: Any  # [N_t, S-1]: the PE indices, farthest first
    n_anchors: Any  # N_c
    positional_dim: Any  # N_pe


class Pairs(NamedTuple):
    """The n pairs of one place and one table; i reads the row first | keys[i_at + i] | signs[sign_at + i] of the table."""

    first: Any
    keys: Any
    i_at: Any
    signs: Any
    sign_at: Any
    n: Any


class Margins(NamedTuple):
    """|min_delta|, its slope, and the bit of its index in a key, each [N_t, B, S]; and those of positions, [N_t, S-1]."""

    near: Any
    slope: Any
    flip: Any
    pe_near: Any  # farthest first, as the two that follow
    pe_slope: Any
    pe_flip: Any
