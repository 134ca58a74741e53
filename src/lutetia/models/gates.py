"""`GateNetwork`: layers of one-bit tables whose wiring, rows and thresholds are all learned, and which are a circuit as they are.

A layer reads bits and gives bits; the last one votes, as in `Votes`. A hidden layer lets a narrow last layer see many inputs, so
that fewer votes have to be counted. Forward everything is hard; backward the gradient goes straight through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from lutetia import flow
from lutetia.models.fields import check_number
from lutetia.models.gates_config import GateNetworkConfig, check_gates
from lutetia.models.sizes import ModelSize, gates_size
from lutetia.models.votes import START_SPREAD, ReadTables, Votes, VotesClassifier

if TYPE_CHECKING:
    from lutetia.precompute import Graph


class GateLayer(nn.Module):
    """bits [batch, n_inputs], zeros and ones -> bits [batch, n_tables].

    weight   Parameter [n_tables, 2**k]: a row answers one where it is not negative
    choice   Parameter [n_tables, k, n_inputs]: each table reads, in each place, the bit with the highest score
    """

    def __init__(self, n_inputs: int, n_tables: int, k: int, generator: torch.Generator, newest: int | None = None) -> None:
        super().__init__()
        choice = torch.randn(n_tables, k, n_inputs, generator=generator) * START_SPREAD
        newest = newest or n_inputs  # tables start with bits of the layer right before this one, which come last
        start = n_inputs - newest + torch.randint(newest, (n_tables, k, 1), generator=generator)
        self.choice = nn.Parameter(choice.scatter_add_(2, start, torch.full((n_tables, k, 1), 3 * START_SPREAD)))
        self.weight = nn.Parameter((torch.rand(n_tables, 2**k, generator=generator) * 2 - 1) * 0.1)

    def forward(self, bits: Tensor) -> Tensor:
        return (ReadTables.apply(bits, self.choice, self.weight) + 1) / 2


class Gates(Votes):
    """`Votes` behind hidden layers: x [batch, n_inputs], whole numbers of `bits` bits -> scores [batch, n_classes].

    With `skip` a layer may read the bits of all layers before it and those of the inputs, else only those of the layer before it.

    cut   Parameter [n_inputs, n_thresholds] where thresholds are learned: bit (i, t) is x_i > the cut, on its grid
    """

    def __init__(
        self,
        n_inputs: int,
        n_classes: int,
        n_tables: int,
        *,
        hidden: Sequence[int] = (),
        skip: bool = False,
        learn_thresholds: bool = False,
        threshold_bits: int = 3,
        spread: float = START_SPREAD,
        **options: Any,
    ) -> None:
        super().__init__(n_inputs, n_classes, n_tables, **options)
        check_number("spread", spread, 0.0, low_fits=False)
        hidden, k, thresholds = check_gates(hidden, (skip, learn_thresholds), threshold_bits, self.bits), self.k, self.thresholds
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        if options.get("seed") is not None:
            generator.manual_seed(int(options["seed"]) + 1)
        self.hidden_sizes, self.skip, self.grid = hidden, skip, 2 ** max(0, self.bits - threshold_bits)
        sizes = [n_inputs * len(thresholds), *hidden]
        reads = list(accumulate(sizes)) if skip else sizes  # how many bits each layer may read
        self.hidden = nn.ModuleList(GateLayer(reads[at], size, k, generator, sizes[at]) for at, size in enumerate(hidden))
        if hidden:  # the first layer starts with bits that lie together, the last one with any
            self._start_near(options.get("shape"), generator)
            last = GateLayer(reads[-1], n_tables, k, generator, sizes[-1])
            self.choice, self.weight = last.choice, last.weight
        for choice, _ in self.layers():
            choice.data.mul_(spread / START_SPREAD)
        cuts = torch.tensor(thresholds, dtype=torch.float32).expand(n_inputs, -1).clone()
        self.cut = nn.Parameter(cuts) if learn_thresholds else None

    def _start_near(self, shape: tuple[int, int] | None, generator: torch.Generator) -> None:
        first = self.hidden[0]
        assert isinstance(first, GateLayer)
        near = Votes._near(self, shape, generator, n_tables=len(first.weight))
        with torch.no_grad():
            first.choice.scatter_add_(2, near[..., None], torch.full((*near.shape, 1), 6 * START_SPREAD))

    def cuts(self) -> Tensor:
        """What inputs are compared with, on the grid: int64 [n_inputs, n_thresholds]."""
        if self.cut is None:
            return torch.tensor(self.thresholds, device=self.weight.device).expand(self.n_inputs, -1)
        steps = (self.cut.detach() / self.grid).round().clamp(1, 2**self.bits / self.grid - 1)
        return (steps * self.grid - 1).long()

    def encode(self, x: Tensor) -> Tensor:
        """The bits of inputs: x [batch, ...] -> float [batch, n_thresholds · n_inputs], threshold by threshold."""
        if self.cut is None:
            return super().encode(x)
        self.check(x)
        numbers = x.flatten(1).to(self.cut.device, torch.float32)[:, None]  # [batch, 1, n_inputs]
        hard = (numbers > self.cuts().T).float()
        if not self.cut.requires_grad:
            return hard.flatten(1).to(self.weight.dtype)
        soft = torch.sigmoid((numbers - self.cut.T) / (self.grid / 2))
        return (hard + (soft - soft.detach())).flatten(1).to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, ...] of n_inputs whole numbers -> scores [batch, n_classes]."""
        bits = self.encode(x)
        for layer in self.hidden:
            bits = torch.cat([bits, layer(bits)], 1) if self.skip else layer(bits)
        votes = ReadTables.apply(bits, self.choice, self.weight)
        counts = votes.new_zeros(len(votes), self.n_classes).index_add(1, self.classes, votes)
        return counts / self.temperature

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """The choice and the rows of every layer, the voting one last."""
        hidden = [(layer.choice, layer.weight) for layer in self.hidden]
        return [*hidden, (self.choice, self.weight)]  # type: ignore[list-item]

    @torch.no_grad()
    def clamp_(self) -> None:
        """Clamp the rows so that their signs can still flip; call it after each optimiser step."""
        for _, weight in self.layers():
            weight.clamp_(-1, 1)

    def area_loss(self) -> Tensor:
        """About how many LUTs the tables need: one for each, none for a table that is constant or a wire: [].

        Soft: the part of each table that is neither, so that training can make tables vanish.
        """
        total = self.weight.new_zeros(())
        for _, weight in self.layers():
            signs = torch.tanh(4 * weight)
            rows = torch.arange(weight.shape[1], device=weight.device)
            places = range(weight.shape[1].bit_length() - 1)
            literals = torch.stack([torch.ones_like(rows), *(2 * (rows >> place & 1) - 1 for place in places)]).to(weight.dtype)
            alike = (signs @ literals.T / len(rows)).abs().amax(1)
            total = total + (1 - alike).sum()
        return total

    def graph(self) -> Graph:
        """The network as a stream graph: comparisons, layers of tables, counts, argmax, each followed by a register."""
        from lutetia.precompute import gates_graph

        with flow.step("gates", part="precompute", tables=self.n_tables + sum(self.hidden_sizes), k=self.k):
            return gates_graph(self)


class GateNetwork(VotesClassifier):
    """x [B, *input_shape] from `low` to `high`, or uint8 as 0 to 1 -> class scores [B, n_classes]: layers of one-bit tables that
    `lutetia train` trains, kind = "gates", and `lutetia build` builds."""

    kind: ClassVar[str] = "gates"
    config_class: ClassVar[type[GateNetworkConfig]] = GateNetworkConfig
    config: GateNetworkConfig

    def _build(self, config: GateNetworkConfig) -> None:  # type: ignore[override]
        shape = config.input_shape if len(config.input_shape) == 2 else None
        seed = int(torch.randint(2**31, ()))  # drawn from the generator that follows the seed of the config
        names = ("k", "bits", "thresholds", "temperature", "hidden", "skip", "learn_thresholds", "threshold_bits", "spread")
        options: dict[str, Any] = {name: getattr(config, name) for name in names}
        self.votes = Gates(math.prod(config.input_shape), config.n_classes, config.n_tables, shape=shape, seed=seed, **options)

    @classmethod
    def least_size(cls, config: GateNetworkConfig) -> ModelSize:  # type: ignore[override]
        return gates_size(config)

    def area_loss(self) -> Tensor:
        """About how many LUTs the tables need: []."""
        return self.votes.area_loss()  # type: ignore[operator]


def area_of(model: nn.Module) -> Tensor | None:
    """The predicted area of a model that has one: []."""
    return model.area_loss() if isinstance(model, GateNetwork | Gates) else None
