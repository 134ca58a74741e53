"""On which grid the values of a block lie: integers times one scale."""

from __future__ import annotations

import math

import numpy as np
import torch

from lutetia.errors import ArgumentError
from lutetia.precompute.front.block import LayerBlock
from lutetia.precompute.front.ops import Each, Linear
from lutetia.precompute.front.units import structure_of, unit_bits
from lutetia.precompute.ir.stream import StreamEdge
from lutetia.precompute.tables.domains import Domain, domain_for
from lutetia.precompute.tables.enumerate import unit_values
from lutetia.precompute.tables.exact import exact_sum, lowest_power

MAX_TABLE_BITS = 16
MAX_LEVEL_BITS = 24


def grid_of(block: LayerBlock, edge: StreamEdge, name: str) -> tuple[tuple[Domain, ...], float]:
    """The domains of a block's outputs, and their scale.

    A quantiser at the end defines it. Plain sums are exact multiples of their weights. Anything else is evaluated, value by
    value.
    """
    last = block.ops[-1]
    quantiser = last.quantiser if isinstance(last, Each) else None
    if quantiser is not None:
        return (quantiser.domain,) * block.out_channels, quantiser.scale
    if len(block.ops) == 1 and isinstance(last, Linear) and math.log2(last.divisor).is_integer():
        try:
            found = exact_sum(block, edge)
            return found.domains, found.scale / found.divisor
        except ArgumentError as error:
            why = str(error)
    else:
        why = "its values are not whole multiples of one step"
    advice = f"{name} ({block}) has no grid of integers: {why}. Put a quantiser after it"
    structure = structure_of(block)
    if any(unit_bits(edge, unit.inputs) > MAX_TABLE_BITS for unit in structure):
        raise ArgumentError(advice)
    real = unit_values(block, structure, edge.domains, lambda values: values, edge.scale)
    values = torch.cat([each.flatten() for each in real]).unique().numpy()
    for scale in (*sorted(set(edge.scale)), 2.0 ** (lowest_power(values) or 0)):
        levels = np.rint(values / scale)
        if np.array_equal(levels * scale, values) and np.abs(levels).max(initial=0) < 2**MAX_LEVEL_BITS:
            return _domains(block, structure, real, scale), scale
    raise ArgumentError(advice)


def _domains(block: LayerBlock, structure: list, real: list[torch.Tensor], scale: float) -> tuple[Domain, ...]:
    domains: list[Domain | None] = [None] * block.out_channels
    for unit, values in zip(structure, real, strict=True):
        for column, output in enumerate(unit.outputs):
            levels = (values[:, column] / scale).round()
            domains[output] = domain_for(int(levels.min()), int(levels.max()))
    return tuple(domains)  # type: ignore[arg-type]
