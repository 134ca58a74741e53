"""What every unit of a block answers over its whole domain: many units in one call of the block.

Where the block starts with weighted sums and goes on value by value, the sums of all units of equal domain are one small matrix
product, and the rest of the block sees all its channels at once. Any other block is called with units side by side that share no
input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from lutetia.precompute.front.block import LayerBlock
from lutetia.precompute.front.ops import Linear
from lutetia.precompute.tables.domains import Domain, enumerate_rows, n_rows

ELEMENTS = 2**15  # of the widest tensor of one call: the caches hold it, and torch does not split it among threads
MANY = 16  # chunks that are worth threads


@lru_cache(maxsize=256)  # layers of one kind ask for the same rows again and again
def _rows(domains: tuple[Domain, ...], begin: int, end: int) -> Tensor:
    return enumerate_rows(domains, begin, end, torch.float64)


class Signature(NamedTuple):
    """What units of one group have in common: the domains and scales of their inputs."""

    domains: tuple[Domain, ...]
    scale: Tensor

    def rows(self, begin: int, end: int) -> Tensor:
        """Rows of the enumeration as real numbers: float64 [end - begin, n_inputs]."""
        rows = _rows(self.domains, begin, end)
        return rows if bool((self.scale == 1).all()) else rows * self.scale


class UnitLike(Protocol):
    """What to compute for a unit."""

    @property
    def inputs(self) -> tuple[int, ...]: ...

    @property
    def outputs(self) -> tuple[int, ...]: ...


def unit_values(
    block: LayerBlock,
    units: Sequence[UnitLike],
    domains: Sequence[Domain],
    convert: Callable[[Tensor], Tensor],
    scale: Sequence[float] | None = None,
) -> list[Tensor]:
    """The answers of each unit, in the order of its domain, through `convert` (float64 -> integers): [n_rows, n_outputs] each.

    `domains` has one domain for each input of the block, `scale` the real value of 1 there.
    """
    scale = scale or (1.0,) * block.n_inputs
    groups: dict[Any, list[int]] = {}
    for number, unit in enumerate(units):
        key = tuple(domains[place] for place in unit.inputs), tuple(scale[place] for place in unit.inputs)
        groups.setdefault(key, []).append(number)
    rest_keeps_channels = not any(op.mixes for op in block.ops[1:])
    sums = block.ops[0] if isinstance(block.ops[0], Linear) and rest_keeps_channels else None
    if sums is not None and sums.in_channels is None:
        sums.in_channels = sums.out_channels = block.channels
    matrix = sums.matrix() if sums is not None else None
    found: list[Any] = [None] * len(units)
    for (own, steps), members in groups.items():
        chosen = [units[number] for number in members]
        signature = Signature(own, torch.tensor(steps, dtype=torch.float64))
        if sums is not None and matrix is not None:
            values = _by_sums(block, sums, matrix, chosen, signature, convert)
        else:
            values = _by_calls(block, chosen, signature, convert)
        for number, made in zip(members, values, strict=True):
            found[number] = made
    return found


def _chunks(rows: int, width: int) -> list[tuple[int, int]]:
    size = max(ELEMENTS // max(width, 1), 64)
    return [(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def _by_sums(
    block: LayerBlock, sums: Linear, matrix: Any, units: Sequence[UnitLike], signature: Signature, convert: Any
) -> list[Tensor]:
    outputs = [output for unit in units for output in unit.outputs]
    weights = torch.from_numpy(_gathered(block, matrix, units, len(signature.domains)))
    bias = torch.from_numpy(sums.bias()[outputs])
    whole = outputs == list(range(block.out_channels))
    block.prepare()

    def answers(begin: int, end: int) -> Tensor:
        z = signature.rows(begin, end) @ weights + bias
        if sums.divisor != 1:
            z = z / sums.divisor
        if whole:
            return convert(block.finish(z, 1))
        padded = z.new_zeros(end - begin, block.out_channels)
        padded[:, outputs] = z
        return convert(block.finish(padded, 1)[:, outputs])

    made = _in_parts(answers, _chunks(n_rows(signature.domains), block.out_channels))
    if len(units) == 1:
        return [made]
    columns = made.t().contiguous()  # one table after the other
    return [part.t() for part in columns.split([len(unit.outputs) for unit in units])]


def _in_parts(answers: Callable[[int, int], Tensor], chunks: list[tuple[int, int]]) -> Tensor:
    """answers(begin, end) of every chunk, below one another; on as many threads as torch uses when there are many."""
    first = answers(*chunks[0])
    if len(chunks) == 1:
        return first
    made = first.new_empty(chunks[-1][1], first.shape[1])
    made[: len(first)] = first

    def fill(part: list[tuple[int, int]]) -> None:
        for begin, end in part:
            made[begin:end] = answers(begin, end)

    rest, workers = chunks[1:], torch.get_num_threads()
    if len(rest) < MANY or workers == 1:
        fill(rest)
    else:
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(fill, [rest[at::workers] for at in range(workers)]))
    return made


def _gathered(block: LayerBlock, matrix: Any, units: Sequence[UnitLike], k: int) -> np.ndarray:
    """The weights of each output for the inputs of its unit: float64 [k, total outputs]."""
    taps = block.taps
    gathered = np.zeros((k, sum(len(unit.outputs) for unit in units)))
    column = 0
    for unit in units:
        inputs = np.asarray(unit.inputs, dtype=np.int64)
        order = np.argsort(inputs)
        for output in unit.outputs:
            channels, tap, weight = matrix[output]
            places = np.searchsorted(inputs, channels * taps + tap, sorter=order)
            gathered[order[places], column] = weight
            column += 1
    return gathered


def _by_calls(block: LayerBlock, units: Sequence[UnitLike], signature: Signature, convert: Any) -> list[Tensor]:
    found: list[Any] = [None] * len(units)
    for layer in _layers(units):
        parts = []
        for begin, end in _chunks(n_rows(signature.domains), max(block.n_inputs, block.out_channels)):
            rows = signature.rows(begin, end)
            x = torch.zeros(end - begin, block.n_inputs, dtype=torch.float64)
            for number in layer:
                x[:, list(units[number].inputs)] = rows
            answers = block(x)
            parts.append([convert(answers[:, list(units[number].outputs)]) for number in layer])
        for place, number in enumerate(layer):
            found[number] = torch.cat([part[place] for part in parts])
    return found


def _layers(units: Sequence[UnitLike]) -> list[list[int]]:
    """The units in few layers, whose units share no input: each goes into the first layer that has room."""
    layers: list[tuple[list[int], set[int]]] = []
    for number, unit in enumerate(units):
        inputs = set(unit.inputs)
        for members, used in layers:
            if used.isdisjoint(inputs):
                members.append(number)
                used |= inputs
                break
        else:
            layers.append(([number], inputs))
    return [members for members, _ in layers]
