"""Tables rounded to a few bits during training, so that converting to integers costs no accuracy afterwards.

A step computes its loss and gradients with the rounded tables and moves the exact ones by them: the rounding is passed straight
through. The scale is a power of two, chosen as `lutetia.precompute.integer_model` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError
from lutetia.nn import table_parameters

FINER = 3  # how many halvings of the scale are tried beyond the one that fits the largest weight
LARGEST_FRACTION = 40  # bits behind the point


def check_rounding(bits: int | None, in_place: bool, sharded: bool) -> None:
    """Refuse runs whose tables cannot be rounded."""
    if bits is not None and in_place:
        raise ArgumentError(f'train.table_bits is {bits}, expected gradient = "dense" or "sparse" in [model]: steps in place '
                            "would move the rounded tables")  # fmt: skip
    if bits is not None and sharded:
        raise ArgumentError(f"train.table_bits is {bits}, expected parallel.detectors = 1: a scale is chosen for a whole table")


@torch.no_grad()
def rounded(weight: Tensor, bits: int) -> Tensor:
    """The nearest whole numbers of `bits` bits on the scale of least squared error, times that scale: the shape of `weight`."""
    if not weight.numel():
        return weight.clone()
    largest = 2 ** (bits - 1) - 1
    fits = torch.floor(torch.log2(largest / weight.abs().amax()))  # infinite where all weights are 0
    scales = [torch.exp2((fits + finer).clamp(max=LARGEST_FRACTION)) for finer in range(FINER + 1)]
    tried = torch.stack([(weight * scale).round().clamp(-largest, largest) / scale for scale in scales])
    errors = (tried - weight).square().flatten(1).sum(1)
    return tried.index_select(0, errors.argmin().view(1))[0]


@contextmanager
def rounded_tables(model: nn.Module, bits: int | None) -> Iterator[None]:
    """Inside this context, the tables of a model are rounded to `bits` bits; None leaves them unchanged."""
    tables = [] if bits is None else list(table_parameters(model))
    exact = [table.detach().clone() for table in tables]
    try:
        for table in tables:
            table.data.copy_(rounded(table.detach(), bits or 0))
        yield
    finally:
        for table, kept in zip(tables, exact, strict=True):
            table.data.copy_(kept)
