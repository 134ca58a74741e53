"""Which outputs of a block read which inputs, as units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lutetia.precompute.front.block import Block
from lutetia.precompute.ir.stream import Edge


class Indices(NamedTuple):
    """The inputs and outputs of one unit."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def structure_of(block: Block) -> list[Indices]:
    """Outputs of equal support together; units that were claimed stay as they were claimed."""
    mixing = [op for op in block.ops if op.mixes]
    claimed = getattr(mixing[0], "structure", None) if len(mixing) == 1 else None
    if claimed is not None:
        return [Indices(inputs, outputs) for inputs, outputs in claimed]
    groups: dict[bytes, list[int]] = {}
    supports = block.supports
    for output, support in enumerate(supports):
        groups.setdefault(support.tobytes(), []).append(output)
    return [Indices(tuple(supports[outputs[0]].tolist()), tuple(outputs)) for outputs in groups.values()]


def unit_bits(edge: Edge, inputs: Sequence[int]) -> int:
    """The address bits of a table over these channels."""
    return sum(edge.domains[place].bits for place in inputs)
