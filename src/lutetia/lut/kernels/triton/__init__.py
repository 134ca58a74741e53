"""The kernels for CUDA, in Triton: what they launch with is in the modules of this folder, their source in `source`."""

from __future__ import annotations

import torch
from torch import Tensor

from lutetia.lut.connectivity.full import Connectivity, Full
from lutetia.lut.kernels.protocol import Coefficients, Detected, Read, Sequence
from lutetia.lut.kernels.recorder import kernel
from lutetia.lut.kernels.reference import cells as plain
from lutetia.lut.kernels.reference.detect import detect_positions as detect_no_positions
from lutetia.lut.kernels.reference.reads import rows_that_are_added
from lutetia.lut.kernels.reference.rows import of_each_meta, subtract
from lutetia.lut.kernels.triton import cells, pairs, reads, rows
from lutetia.lut.kernels.triton.layout import layout_of
from lutetia.lut.sums import Sums

# ---- one step --------------------------------------------------------------------------------------------------------


@kernel
def detect(x: Tensor, anchors: Tensor, train: bool) -> Detected:
    """x [..., I], anchors [N_t, N_c, 2] -> what was found [..., N_t]."""
    found = rows._found(x, anchors, train)
    rows._check(x, anchors, found, train)
    return Detected(*found) if train else Detected(found[0])


@kernel
def read(x: Tensor, anchors: Tensor, read: Read, sums: Sums) -> tuple[Tensor, Coefficients]:
    """x [B, I], anchors [N_t, N_c, 2] -> indices int32 and coefficients, [B, N_t] each."""
    indices, others, a, b = reads.read_detectors(x, anchors, *read.logs, read=read.name, exact=sums.exact)
    return indices, Coefficients(a) if read.name == "confidence" else Coefficients(a, b, others)


@kernel
def fill_rows(
    weight: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> Tensor:
    """indices [B, N_t] -> y [B, O]."""
    if coefficients is None:
        return rows._fill(weight, indices, layout_of(connectivity), sums)
    return reads._fill(weight, _quadruple(indices, coefficients), layout_of(connectivity), _two(coefficients), sums)


def detect_and_fill(
    x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity, sums: Sums, train: bool
) -> tuple[Tensor, Detected | None]:
    """x [B, I] -> y [B, O] and, with `train`, what was found [B, N_t]; in one launch where each output is stored once."""
    if layout_of(connectivity).kind != "general":
        return _detect_and_fill(x, weight, anchors, connectivity, sums, train)
    detected = detect(x, anchors, train)
    return fill_rows(weight, connectivity, detected.indices, None, sums), detected if train else None


@kernel
def _detect_and_fill(
    x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity, sums: Sums, train: bool
) -> tuple[Tensor, Detected | None]:
    y, *found = rows._detect_and_fill(x, weight, anchors, layout_of(connectivity), train, sums)
    return y, Detected(*found) if train else None


def read_and_fill(x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity, read_: Read, sums: Sums) -> Tensor:
    """x [B, I] -> y [B, O], in one launch where rows are short."""
    layout = layout_of(connectivity)
    # Where a row takes several programs each would work out the coefficients; and then two kernels are faster.
    if layout.kind != "general" and layout.widest <= rows.fill_blocks(layout)[1]:
        return _read_and_fill(x, weight, anchors, connectivity, read_, sums)
    indices, coefficients = read(x, anchors, read_, sums)
    return fill_rows(weight, connectivity, indices, rows_that_are_added(coefficients, read_), sums)


@kernel
def _read_and_fill(x: Tensor, weight: Tensor, anchors: Tensor, connectivity: Connectivity, read: Read, sums: Sums) -> Tensor:
    return reads._evaluate(x, weight, anchors, read.logs, layout_of(connectivity), read.name, sums)


@kernel
def row_gains(
    grad: Tensor, weight: Tensor, connectivity: Connectivity, rows: tuple[Tensor, Tensor | None], sums: Sums
) -> tuple[Tensor, Tensor | None]:
    """grad [B, O], rows [B, N_t] each -> g·W[t, index_t] of each, [B, N_t]."""
    first, second = rows
    both = (first, first if second is None else second)
    da, db = reads._gains(grad, weight, both, layout_of(connectivity), second is not None, sums)
    return da, None if second is None else db


@kernel
def propagate(
    grad: Tensor,
    weight: Tensor,
    connectivity: Connectivity,
    detected: Detected,
    anchors: Tensor,
    n_inputs: int,
    sums: Sums,
) -> Tensor:
    """grad [B, O], detected [B, N_t], anchors [N_t, N_c, 2] -> dx [B, I]."""
    indices, min_delta, min_delta_index = detected
    assert min_delta is not None
    assert min_delta_index is not None
    found = (indices, min_delta, min_delta_index)
    return rows._propagate(grad, weight, found, anchors, n_inputs, layout_of(connectivity), sums)


@kernel
def send_slopes(
    x: Tensor, anchors: Tensor, read: Read, gains: tuple[Tensor, Tensor | None], sums: Sums, to_x: bool
) -> tuple[Tensor | None, Tensor]:
    """The gradients of a and b, [B, N_t] each -> dx [B, I] (None unless `to_x`), and of log β, log γ, log τ: [3]."""
    da, db = gains
    second = db if db is not None else da if read.name == "confidence" else torch.zeros_like(da)
    dx, learned = reads.propagate_through_reads(x, anchors, *read.logs, da, second, read=read.name, to_x=to_x, sums=sums)
    return dx if to_x else None, learned


@kernel
def gather_rows(
    grad: Tensor,
    connectivity: Connectivity,
    indices: Tensor,
    coefficients: Coefficients | None,
    sums: Sums,
    into: Tensor | None = None,
    rate: float = 1.0,
) -> Tensor:
    """grad [B, O], indices [B, N_t] -> dW; with `into`, into -= rate · dW."""
    layout = layout_of(connectivity)
    if into is not None:
        if coefficients is None:
            rows._step(grad, indices, layout, rate, into, sums)
        else:
            reads._step(grad, _quadruple(indices, coefficients), layout, _two(coefficients), rate, into, sums)
        return into
    if coefficients is None:
        return rows._gradient(grad, indices, layout, sums).view(connectivity.weight_shape)
    gradient = reads._gradient(grad, _quadruple(indices, coefficients), layout, _two(coefficients), sums)
    return gradient.view(connectivity.weight_shape)


@kernel
def gather_compact(
    grad: Tensor, connectivity: Connectivity, indices: Tensor, coefficients: Coefficients | None, sums: Sums
) -> tuple[Tensor, Tensor]:
    """The lookup neurons that were read, int64 [n], rising, and the gradients of their weights, flat."""
    layout = layout_of(connectivity)
    if coefficients is None:
        neurons, _, values = rows._touched(grad, indices, layout, sums)
    else:
        neurons, _, values = reads._touched(grad, _quadruple(indices, coefficients), layout, _two(coefficients), sums)
    return neurons, values


def _two(coefficients: Coefficients) -> bool:
    return coefficients.alternatives is not None


def _quadruple(indices: Tensor, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """indices, alternatives, a, b; the first ones again where there is one row."""
    a, b, others = coefficients
    return indices, indices if others is None else others, a, a if b is None else b


# ---- sequences -------------------------------------------------------------------------------------------------------
# Sparse connectivity walks the pairs of the same layer with its missing synapses filled in by zeros, so it needs the memory of
# the full tables.


@kernel
def detect_positions(positions: Tensor, train: bool) -> Detected:
    """positions [S-1, N_t, N_pe] -> what was found [S-1, N_t]."""
    if not positions.numel():
        return detect_no_positions.__wrapped__(positions, train)  # type: ignore[attr-defined]
    found = pairs.check_positions(positions, train)
    return Detected(*found) if train else Detected(found[0])


@kernel
def fill_pairs(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """y[j] = Σ_{i<j} Σ_t W[t, cell] -> [B, S, O]."""
    return pairs.fill(connectivity.expand(weight), sequence, sums)


@kernel
def propagate_pairs(
    grad: Tensor,
    weight: Tensor,
    connectivity: Connectivity,
    sequence: Sequence,
    anchors: Tensor,
    n_inputs: int,
    sums: Sums,
) -> tuple[Tensor, Tensor]:
    """grad [B, S, O], anchors [N_t, N_c, 2] -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
    return pairs.propagate(grad, connectivity.expand(weight), sequence, anchors, n_inputs, sums)


@kernel
def gather_pairs(
    grad: Tensor,
    connectivity: Connectivity,
    sequence: Sequence,
    sums: Sums,
    into: Tensor | None = None,
    rate: float = 1.0,
) -> Tensor:
    """grad [B, S, O] -> dW; with `into`, into -= rate · dW."""
    if isinstance(connectivity, Full):
        return pairs.gather(grad, sequence, connectivity.meta.lr_scale, sums, into, rate)
    gradient = of_each_meta(connectivity, lambda lr_scale: pairs.gather(grad, sequence, lr_scale, sums))
    return subtract(gradient, into, rate)


@kernel
def fill_cells(weight: Tensor, connectivity: Connectivity, sequence: Sequence, sums: Sums) -> Tensor:
    """`fill_pairs` by cells -> [B, S, O]."""
    return cells.fill(weight, sequence, sums)


@kernel
def propagate_cells(
    grad: Tensor,
    weight: Tensor,
    connectivity: Connectivity,
    sequence: Sequence,
    anchors: Tensor,
    n_inputs: int,
    sums: Sums,
) -> tuple[Tensor, Tensor]:
    """`propagate_pairs` by cells."""
    return cells.propagate(grad, weight, sequence, anchors, n_inputs, sums)


@kernel
def gather_cells(
    grad: Tensor,
    connectivity: Connectivity,
    sequence: Sequence,
    sums: Sums,
    into: Tensor | None = None,
    rate: float = 1.0,
) -> Tensor:
    """`gather_pairs` by cells."""
    gradient = of_each_meta(connectivity, lambda lr_scale: cells.gather(grad, sequence, lr_scale, sums))
    return subtract(gradient, into, rate)


@kernel
def count_firings(sequence: Sequence) -> Tensor:
    """How often each cell (K, PE) fires for each j: int32 [B, S, N_t, C]."""
    indices, pe_indices = sequence.x.indices.contiguous(), sequence.positions.indices
    return cells.count_cells(indices, pe_indices, sequence.positional_dim, sequence.n_anchors, torch.int32)[0]


@kernel
def fill_firings(weight: Tensor, firings: tuple[Tensor, Tensor, Tensor], shape: tuple[int, int], sums: Sums) -> Tensor:
    """y = Σ count · W[row] -> [B, S, O]: a step of a recorded picture, not a fast path, so plain torch will do."""
    return plain.fill_firings.__wrapped__(weight, firings, shape, sums)  # type: ignore[attr-defined]


@kernel
def fill_step(x: Tensor, weight: Tensor, anchors: Tensor, cache: Tensor, lengths: Tensor, places: Tensor) -> Tensor:
    """y [B, O] of one new position of each row, whose indices join those in the cache."""
    found = rows._found(x, anchors, False)
    rows._check(x, anchors, found, False)
    return plain.add_step(found[0], weight, anchors.shape[1], cache, lengths, places)
