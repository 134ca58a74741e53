"""`decompose`: the smallest units that a layer splits into.

Which inputs each output reads is known from groups, masks and weights that are zero (a bipartite graph of inputs and outputs), or
from a claim made with `@precomputable`. Outputs that read exactly the same inputs make up one unit: a depthwise convolution falls
apart into its channels, a grouped one into its groups, a masked linear layer into its blocks however they are permuted, and a
layer of small fan-in into its neurons.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia import flow
from lutetia.errors import ArgumentError
from lutetia.precompute.front.block import LayerBlock
from lutetia.precompute.front.claims import claim_of, precomputable
from lutetia.precompute.front.ops import Claimed, Linear
from lutetia.precompute.front.slide import check_window, draw
from lutetia.precompute.front.units import structure_of
from lutetia.precompute.tables.domains import Domain, as_domains, enumerate_rows, n_rows
from lutetia.precompute.tables.enumerate import unit_values
from lutetia.precompute.tables.table import IOTable, _whole

__all__ = ["Unit", "Units", "claim_of", "decompose", "precomputable"]

EXHAUSTIVE = 2**12  # a domain this small is probed whole
PROBES = 32


@dataclass(frozen=True, eq=False)
class Unit:
    """A part of a block that depends on only some of its inputs; call it with x [n, n_inputs] -> [n, n_outputs], float64.

    inputs    the inputs of the block that it reads, rising: input c · n_taps + t is tap t of channel c
    outputs   the output channels that it makes
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    block: LayerBlock
    domain: Domain | None = None  # from a claim

    @property
    def n_inputs(self) -> int:
        return len(self.inputs)

    @property
    def n_outputs(self) -> int:
        return len(self.outputs)

    @property
    def size(self) -> tuple[int, int]:
        """(n_inputs, n_outputs)."""
        return len(self.inputs), len(self.outputs)

    def __call__(self, x: Tensor) -> Tensor:
        """x [n, n_inputs] -> [n, n_outputs], by calling the block with the other inputs at zero."""
        whole = torch.zeros(x.shape[0], self.block.n_inputs, dtype=torch.float64)
        whole[:, list(self.inputs)] = x.to(torch.float64)
        return self.block(whole)[:, list(self.outputs)]

    def table(self, domain: object = None) -> IOTable:
        """The table of the unit over a whole domain."""
        return IOTable.of(self, domain)

    def __repr__(self) -> str:
        return f"Unit({self.n_inputs} -> {self.n_outputs})"


class Units(tuple[Unit, ...]):
    """The units of a block, in the order of their first outputs."""

    block: LayerBlock

    def __new__(cls, units: Iterable[Unit], block: LayerBlock) -> Units:
        made = super().__new__(cls, units)
        made.block = block
        return made

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(n_inputs, n_outputs) of each: `((3, 1), (3, 1), (3, 1))`."""
        return tuple(unit.size for unit in self)

    def tables(self, domain: object = None) -> tuple[IOTable, ...]:
        """The table of every unit, many of them in one call. A sequence of domains has one for each input of the block."""
        if domain is None:
            domain = next((unit.domain for unit in self if unit.domain is not None), None)
        domains = as_domains("domain", domain, self.block.n_inputs)
        with flow.step(
            "io_tables", part="precompute", units=len(self), largest=max((n_rows_of(u, domains) for u in self), default=0)
        ):
            values = unit_values(self.block, self, domains, _whole)
        own = [[domains[place] for place in unit.inputs] for unit in self]
        return tuple(IOTable(None, made, domain=each) for made, each in zip(values, own, strict=True))

    def components(self) -> tuple[tuple[int, ...], ...]:
        """Which units share inputs, directly or through others: the connected components, as numbers of units."""
        owner: dict[int, int] = {}
        parent = list(range(len(self)))

        def root(unit: int) -> int:
            while parent[unit] != unit:
                parent[unit] = unit = parent[parent[unit]]
            return unit

        for number, unit in enumerate(self):
            for place in unit.inputs:
                parent[root(number)] = root(owner.setdefault(place, number))
        found: dict[int, list[int]] = {}
        for number in range(len(self)):
            found.setdefault(root(number), []).append(number)
        return tuple(map(tuple, found.values()))


def n_rows_of(unit: Unit, domains: Sequence[Domain]) -> int:
    """How many rows the table of a unit has."""
    return n_rows([domains[place] for place in unit.inputs])


def decompose(module: nn.Module | LayerBlock, *, n_inputs: int | None = None) -> Units:
    """The smallest units of a layer or of a chain of layers; their `sizes` look like `((3, 1), (3, 1), (3, 1))`.

    `n_inputs` is needed where no layer fixes the number of channels, such as pooling alone. The units are then tried on the
    module: an output that depends on an input outside its unit is an error.
    """
    with flow.step("decompose", part="precompute") as step:
        block = module if isinstance(module, LayerBlock) else LayerBlock.of(module, n_inputs)
        domain = next((claim.domain for claim in _claims(module, block) if claim.domain is not None), None)
        units = Units([Unit(inputs, outputs, block, domain) for inputs, outputs in structure_of(block)], block)
        for op in block.ops:
            if isinstance(op, Claimed) and op.window is not None:
                check_window(op, domain)
        _probe(units, domain)
        step.note(units=len(units), inputs=block.n_inputs, outputs=block.out_channels)
    return units


def _claims(module: object, block: LayerBlock) -> list[Any]:
    found = [claim_of(module)] + [claim_of(getattr(op, "module", None)) for op in block.ops]
    return [claim for claim in found if claim is not None]


def _probe(units: Units, domain: Domain | None) -> None:
    """Change inputs, and check that outputs which must not depend on them stay the same."""
    block = units.block
    reads = np.zeros((block.out_channels, block.n_inputs), dtype=bool) if block.n_inputs * block.out_channels <= 2**24 else None
    if reads is None:
        return  # a dense map of a layer this large would not fit; its structure comes from its own weights
    for unit in units:
        reads[np.ix_(unit.outputs, unit.inputs)] = True
    if reads.all():
        return
    claimed = any(isinstance(op, Claimed) or (isinstance(op, Linear) and op.structure is not None) for op in block.ops)
    if claimed and domain is not None and n_rows([domain] * block.n_inputs) <= EXHAUSTIVE:
        base = enumerate_rows([domain] * block.n_inputs, dtype=torch.float64)
    else:
        base = draw(8 if claimed else 2, block.n_inputs, domain)
    changes = list(range(block.n_inputs)) if claimed or block.n_inputs <= PROBES else _some(block.n_inputs)
    expected = block(base)
    for place in changes:
        changed = base.clone()
        changed[:, place] = _other(base[:, place], domain)
        moved = ((block(changed) - expected).abs() > 1e-9 * (1 + expected.abs())).any(0).numpy()
        wrong = np.flatnonzero(moved & ~reads[:, place])
        if len(wrong):
            said = "was claimed" if claimed else "its weights say"
            raise ArgumentError(
                f"output {wrong[0]} of {block} depends on input {place}, which is not in its unit: not what {said}"
            )


def _some(n: int) -> list[int]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:PROBES].tolist()


def _other(values: Tensor, domain: Domain | None) -> Tensor:
    """A different value for each: from the domain, or far away."""
    if domain is None:
        return values + torch.where(values > 0, -5.0, 5.0)
    following = values + domain.step
    return torch.where(following > domain.high, torch.tensor(float(domain.low), dtype=values.dtype), following)
