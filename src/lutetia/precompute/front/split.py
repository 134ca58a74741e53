"""A convolution as a grouped one, which keeps channels apart, and a pointwise one, which mixes them: exactly, or not at all."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, fail
from lutetia.precompute.tables.domains import check_whole


def split_convolution(conv: nn.Conv1d | nn.Conv2d, filters: int = 1) -> nn.Sequential:
    """The same function as `nn.Sequential(grouped, pointwise)`, with at most `filters` filters for each input channel.

    The weights of an input channel are a row of taps for each output. Where all rows are whole multiples of one row, one filter
    is enough; with several, rows are integer combinations of them. ArgumentError where a channel needs more filters: nothing is
    rounded.
    """
    if not isinstance(conv, nn.Conv1d | nn.Conv2d) or conv.groups != 1:
        fail("conv", conv, "an nn.Conv1d or nn.Conv2d with groups=1")
    check_whole("filters", filters, 1, 64)
    weight = conv.weight.detach().double().flatten(2)  # [outputs, channels, taps]
    if not bool(weight.isfinite().all()):
        raise ArgumentError(f"{conv} has weights that are not finite, expected numbers")
    outputs, channels, taps = weight.shape
    unit = max(Fraction(value).denominator for value in weight.flatten().tolist())
    rows = [[[int(value * unit) for value in row] for row in weight[:, channel].tolist()] for channel in range(channels)]
    bases = [_basis(own) for own in rows]
    needed = max(map(len, bases))
    if needed > filters:
        channel = max(range(channels), key=lambda each: len(bases[each]))
        raise ArgumentError(f"channel {channel} of {conv} needs {needed} filters of {taps} taps, expected at most {filters}")
    size = max(needed, 1)
    first, second = torch.zeros(channels * size, taps, dtype=torch.float64), torch.zeros(outputs, channels * size)
    for channel, (own, basis) in enumerate(zip(rows, bases, strict=True)):
        for number, row in enumerate(basis):
            first[channel * size + number] = torch.tensor([each / unit for each in row], dtype=torch.float64)
        for output, row in enumerate(own):
            for number, factor in enumerate(_factors(row, basis)):
                second[output, channel * size + number] = factor
    return nn.Sequential(_grouped(conv, first, size), _pointwise(conv, second))


def _basis(rows: list[list[int]]) -> list[list[int]]:
    """Rows, each beginning further right than the one before, of which all rows are whole sums: by Euclid's algorithm."""
    left = [list(row) for row in rows if any(row)]
    made: list[list[int]] = []
    for place in range(len(rows[0])):
        while sum(bool(row[place]) for row in left) > 1:
            pivot = min((row for row in left if row[place]), key=lambda row: abs(row[place]))
            for row in left:
                if row is not pivot and row[place]:
                    times = row[place] // pivot[place]
                    row[:] = [each - times * own for each, own in zip(row, pivot, strict=True)]
        pivots = [row for row in left if row[place]]
        made += [list(row) for row in pivots]
        left = [row for row in left if not row[place] and any(row)]
    return made


def _factors(row: list[int], basis: list[list[int]]) -> list[int]:
    """The whole numbers by which rows of a basis add up to a row."""
    rest, factors = list(row), []
    for own in basis:
        place = next(at for at, value in enumerate(own) if value)
        factors.append(rest[place] // own[place])
        rest = [value - factors[-1] * each for value, each in zip(rest, own, strict=True)]
    assert not any(rest)
    return factors


def _grouped(conv: nn.Conv1d | nn.Conv2d, weight: Tensor, size: int) -> nn.Module:
    channels = conv.in_channels
    made = type(conv)(
        channels, channels * size, conv.kernel_size, conv.stride, conv.padding, conv.dilation, channels, False, conv.padding_mode  # type: ignore[arg-type]
    )  # fmt: skip
    return _with_weight(made.to(conv.weight), weight.reshape(made.weight.shape))


def _pointwise(conv: nn.Conv1d | nn.Conv2d, weight: Tensor) -> nn.Module:
    made = type(conv)(weight.shape[1], weight.shape[0], 1, bias=conv.bias is not None).to(conv.weight)
    if conv.bias is not None:
        made.bias.data.copy_(conv.bias.detach())  # type: ignore[union-attr]
    return _with_weight(made, weight.reshape(made.weight.shape))


def _with_weight(layer: nn.Conv1d | nn.Conv2d, weight: Tensor) -> nn.Module:
    with torch.no_grad():
        layer.weight.copy_(weight)
    if not torch.equal(layer.weight.double(), weight.double()):
        raise ArgumentError(f"the filters do not fit into {layer.weight.dtype}: give the convolution as float64")
    return layer
