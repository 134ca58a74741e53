"""Regularisers of lookup tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lutetia._shared.dtypes import FLOATS
from lutetia.errors import check_tensor, fail
from lutetia.lut import MAX_ANCHORS, sum_dtype
from lutetia.nn.lut import LUT

CHUNK = 2**22  # weights of which differences are held at once


def cell_total_variation(layer: LUT | Tensor) -> Tensor:
    """mean ‖W_c - W_c'‖² over the pairs of cells of each table whose numbers differ in one bit: a scalar [], differentiable.

    Takes a LUT layer, or a weight [n_detectors, n_rows, n_outputs]. Neighbouring cells are chosen by inputs that differ in one
    comparison, so this makes the table smooth in its input. In the shared layout a detector's rows are as long as its list
    of outputs; in the general layout, where rows reach different outputs, a missing weight counts as zero.
    """
    if isinstance(layer, LUT):
        tables = _tables(layer)
        n_detectors, n_rows = layer.n_detectors, layer.n_rows
    else:
        check_tensor("weight", layer, ["n_detectors", "n_rows", "n_outputs"], FLOATS)
        if layer.shape[1] not in [2**bits for bits in range(1, MAX_ANCHORS + 1)]:
            fail("weight", layer, "a power of two of rows")
        tables, (n_detectors, n_rows, _) = [layer], layer.shape
    bits = n_rows.bit_length() - 1
    total = sum(_SquaredDifferences.apply(table) for table in tables)
    return torch.as_tensor(total / (n_detectors * bits * (n_rows // 2)))


def _tables(layer: LUT) -> list[Tensor]:
    """The weights of a layer as tables [N_t, R, width], one for every width that its detectors have."""
    synapses = layer.synapses
    if synapses is None:
        return [layer.weight]
    if synapses.layout == "general":
        return [synapses.expand(layer.weight)]
    widths, n_rows = synapses.owner_start.diff(), layer.n_rows
    distinct = widths.unique().tolist()
    if len(distinct) == 1:
        return [layer.weight.view(layer.n_detectors, n_rows, distinct[0])]
    tables = []
    for width in distinct:
        detectors = (widths == width).nonzero()
        places = synapses.owner_start[detectors] * n_rows + torch.arange(n_rows * width, device=widths.device)
        tables.append(layer.weight[places].view(len(detectors), n_rows, width))
    return tables


class _SquaredDifferences(torch.autograd.Function):
    """Σ ‖W[t, c] - W[t, c']‖² over neighbours c, c' of W [N_t, R, O], some tables at a time, forward and backward."""

    @staticmethod
    def forward(ctx: Any, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        total = table.new_zeros((), dtype=torch.float64)
        for part in _parts(table.contiguous()):
            for cells in _by_bit(_working(part)):
                total += (cells[:, :, 0] - cells[:, :, 1]).square().sum(dtype=torch.float64)
        return total.to(sum_dtype(table))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (table,) = ctx.saved_tensors
        gradient = torch.empty(table.shape, dtype=table.dtype, device=table.device)
        for part, out in zip(_parts(table.contiguous()), _parts(gradient), strict=True):
            cells = _working(part)
            slope = torch.zeros_like(cells)
            for mine, into in zip(_by_bit(cells), _by_bit(slope), strict=True):
                difference = mine[:, :, 0] - mine[:, :, 1]
                into[:, :, 0] += difference
                into[:, :, 1] -= difference
            out.copy_(slope * (2 * grad))
        return gradient


def _parts(table: Tensor) -> tuple[Tensor, ...]:
    """Runs of whole tables [n, R, O], of CHUNK weights together, or one table."""
    return table.split(max(1, CHUNK // max(1, table.shape[1] * table.shape[2])))


def _working(part: Tensor) -> Tensor:
    return part.to(sum_dtype(part))


def _by_bit(part: Tensor) -> Iterator[Tensor]:
    """For every bit a view of part [n, R, O] as [n, R / 2^(bit + 1), 2, 2^bit, O]: third, the cells without it and with it."""
    n, n_rows, width = part.shape
    for bit in range(n_rows.bit_length() - 1):
        yield part.view(n, n_rows >> (bit + 1), 2, 1 << bit, width)
