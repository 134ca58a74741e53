"""Which outputs of a block read which inputs, as units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lutetia.precompute.front.block import LayerBlock
from lutetia.precompute.ir.stream import StreamEdge


class Indices(NamedTuple):
    """The inputs and outputs of one unit."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def structure_of(block: LayerBlock) -> list[Indices]:
    """Outputs with equal inputs form one unit; claimed units are kept as claimed."""
    mixing = [op for op in block.ops if op.mixes]
    claimed = getattr(mixing[0], "structure", None) if len(mixing) == 1 else None
    if claimed is not None:
        return [Indices(inputs, outputs) for inputs, outputs in claimed]
    groups: dict[bytes, list[int]] = {}
    supports = block.supports
    for output, support in enumerate(supports):
        groups.setdefault(support.tobytes(), []).append(output)
    return [Indices(tuple(supports[outputs[0]].tolist()), tuple(outputs)) for outputs in groups.values()]


def unit_bits(edge: StreamEdge, inputs: Sequence[int]) -> int:
    """The address bits of a table over these channels."""
    return sum(edge.domains[place].bits for place in inputs)
