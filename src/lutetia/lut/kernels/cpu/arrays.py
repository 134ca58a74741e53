"""What the compiled loops work with: arrays that belong together, under one name.

Kernels of one step are given the same as plain tuples, and name them first: numba takes 1 µs longer to recognise a named one.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Blocks(NamedTuple):
    """A layer of full or shared connectivity: blocks of detectors with the same targets, each a small full layer of its own."""

    start: Any  # [n_blocks + 1]: the detectors of block i are start[i] to start[i + 1] of the next three
    detectors: Any  # [N_t]: their numbers
    weight_at: Any  # [N_t]: where their tables begin in the weights; a table is [R, width]
    list_at: Any  # [N_t]: where their targets begin in `targets`
    width: Any  # [n_blocks]: how many targets each has
    contiguous: Any  # [n_blocks]: whether the targets are consecutive outputs
    targets: Any  # outputs


class Neurons(NamedTuple):
    """A layer of general connectivity, where each lookup neuron has outputs of its own."""

    row_start: Any  # [N_t · R + 1]: where the weights of each lookup neuron, and their targets, begin
    targets: Any  # [n_weights]: outputs
    n_rows: Any  # R


class Rows(NamedTuple):
    """A row of every table for every batch row, and what it is multiplied with: None, or [B, N_t]."""

    indices: Any  # [B, N_t]
    factors: Any = None


class Reads(NamedTuple):
    """The rows that are read: once or, where `second` is not None, twice."""

    first: Rows
    second: Rows | None = None


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


class Tables(NamedTuple):
    """The tables of the detectors of one block."""

    weight_at: Any  # [n]: where they begin in the weights
    detectors: Any  # [n]: the numbers of the detectors
    width: Any  # weights of a row
    n_detectors: Any  # of the whole layer


class Lines(NamedTuple):
    """n rows of a flat array: row i begins at `first` + i · `stride`."""

    data: Any
    first: Any
    stride: Any
    n: Any


# ---- sequences -------------------------------------------------------------------------------------------------------


class Keys(NamedTuple):
    """The indices of sequences: the row that pair (i, j) reads is keys[j] << N_c | keys[i] | signs[S-1-j+i]."""

    keys: Any  # [N_t, B, S]: an index << N_pe
    signs: Any  # [N_t, S-1]: the PE indices, farthest first
    n_anchors: Any  # N_c
    positional_dim: Any  # N_pe


class SequenceTables(NamedTuple):
    """The tables of a layer, detector by detector."""

    weight: Any  # flat
    start: Any  # [N_t + 1]: where each table begins in the weights, or for general connectivity among the lookup neurons
    width: Any  # [N_t]: how many outputs a row of it reaches
    column: Any  # [N_t]: the first of them when they are consecutive, else -1
    list_at: Any  # [N_t]: where they begin in `targets`
    targets: Any
    row_start: Any = None  # for general connectivity, [N_t · R + 1]: where the weights of each lookup neuron begin


class Table(NamedTuple):
    """One of them."""

    weight: Any
    first: Any  # its start
    width: Any
    targets: Any
    row_start: Any


class Pairs(NamedTuple):
    """The n pairs of one place and one table; i reads the row first | keys[i_at + i] | signs[sign_at + i]."""

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
