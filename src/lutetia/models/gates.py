"""`GateNetwork`: layers of one-bit tables whose wiring, rows and thresholds are all learned, and which form a circuit directly.

A layer reads bits and gives bits; the last one votes, as in `Votes`. A hidden layer lets a narrow last layer see many inputs, so
that fewer votes have to be counted. Forward everything is hard; backward the gradient goes straight through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from lutetia import flow
from lutetia.models.fields import check_number
from lutetia.models.gates_config import GateNetworkConfig, check_gates, check_windows, seen_bits
from lutetia.models.sizes import ModelSize, gates_size
from lutetia.models.votes import START_SPREAD, ReadTables, Votes, VotesClassifier, wires

if TYPE_CHECKING:
    from lutetia.precompute import Graph


PRUNED = 2.0  # rows so far from the sign, where training never brings them, mark a table that was made a constant


class GateLayer(nn.Module):
    """bits [batch, n_inputs], zeros and ones -> bits [batch, n_tables].

    weight   Parameter [n_tables, 2**k]: a row answers one where it is not negative
    choice   Parameter [n_tables, k, n_inputs]: each table reads, in each place, the bit with the highest score
    seen     buffer [n_tables, n_inputs], or None: the bit that each column of `choice` stands for, where not all are seen
    """

    seen: Tensor | None

    def __init__(
        self,
        n_inputs: int,
        n_tables: int,
        k: int,
        generator: torch.Generator,
        newest: int | None = None,
        seen: Tensor | None = None,
    ) -> None:
        super().__init__()
        choice = torch.randn(n_tables, k, n_inputs, generator=generator) * START_SPREAD
        newest = newest or n_inputs  # tables start with bits of the layer right before this one, which come last
        start = n_inputs - newest + torch.randint(newest, (n_tables, k, 1), generator=generator)
        self.choice = nn.Parameter(choice.scatter_add_(2, start, torch.full((n_tables, k, 1), 3 * START_SPREAD)))
        self.weight = nn.Parameter((torch.rand(n_tables, 2**k, generator=generator) * 2 - 1) * 0.1)
        self.register_buffer("seen", seen, persistent=False)  # follows from the config

    def forward(self, bits: Tensor) -> Tensor:
        return (ReadTables.apply(bits, self.choice, self.weight, self.seen) + 1) / 2


def window_pixels(shape: tuple[int, int], side: int, n_windows: int) -> Tensor:
    """The pixels of windows that are spread evenly over an image: int64 [n_windows, side · side], row by row.

    Their corners follow the sequence of M. Roberts, which fills a square evenly for any number of points.
    """
    number = torch.arange(1, n_windows + 1, dtype=torch.float64)[:, None]
    root = 1.32471795724474602596  # of x³ = x + 1
    corners = [((number / root**power) % 1 * (length - side + 1)).long() for power, length in enumerate(shape, 1)]
    steps = torch.arange(side)
    rows, columns = corners[0] + steps, corners[1] + steps
    return (rows[:, :, None] * shape[1] + columns[:, None]).flatten(1)


class Gates(Votes):
    """`Votes` behind hidden layers: x [batch, n_inputs], whole numbers of `bits` bits -> scores [batch, n_classes].

    With `skip` a layer may read the bits of all layers before it and those of the inputs, else only those of the layer before it.
    With `windows` a table sees, of an image of `shape`, a square of that many pixels a side.

    seen  buffer: of the voting tables, as in `GateLayer`
    cut   Parameter [n_inputs, n_thresholds] where thresholds are learned: bit (i, t) is x_i > the cut, on its grid
    """

    seen: Tensor | None

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
        windows: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(n_inputs, n_classes, n_tables, **options)
        check_windows(windows, options.get("shape"))
        check_number("spread", spread, 0.0, low_fits=False)
        hidden, k, thresholds = check_gates(hidden, (skip, learn_thresholds), threshold_bits, self.bits), self.k, self.thresholds
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
        if options.get("seed") is not None:
            generator.manual_seed(int(options["seed"]) + 1)
        self.hidden_sizes, self.skip, self.grid = hidden, skip, 2 ** max(0, self.bits - threshold_bits)
        self.windows, self.shape = windows, options.get("shape")
        reads = seen_bits(n_inputs, len(thresholds), hidden, skip, windows)
        newest = [reads[0], *hidden]

        def layer(number: int, size: int) -> GateLayer:
            return GateLayer(reads[number], size, k, generator, newest[number], self._seen(number, size))

        self.hidden = nn.ModuleList(layer(number, size) for number, size in enumerate(hidden))
        if hidden and not windows:  # the first layer starts with bits that lie together, the last one with any
            self._start_near(options.get("shape"), generator)
        self.register_buffer("seen", None)
        if hidden or windows:
            last = layer(len(hidden), n_tables)
            self.choice, self.weight = last.choice, last.weight
            self.register_buffer("seen", last.seen, persistent=False)
        for choice, _ in self.layers():
            choice.data.mul_(spread / START_SPREAD)
        cuts = torch.tensor(thresholds, dtype=torch.float32).expand(n_inputs, -1).clone()
        self.cut = nn.Parameter(cuts) if learn_thresholds else None

    def _seen(self, number: int, n_tables: int) -> Tensor | None:
        """The bits that each table of a layer may read, [n_tables, n_seen]: of its window, and of all tables before it."""
        if not self.windows or (number and not self.skip):
            return None
        pixels = window_pixels(self.shape, self.windows, n_tables)  # type: ignore[arg-type]
        bits = [pixels + threshold * self.n_inputs for threshold in range(len(self.thresholds))]
        before = torch.arange(sum(self.hidden_sizes[:number])) + self.n_inputs * len(self.thresholds)
        return torch.cat([*bits, before.expand(n_tables, -1)], 1)

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
        return self.count(self.answers(x)[-1])

    def answers(self, x: Tensor) -> list[Tensor]:
        """The bits of every hidden layer, [batch, n_tables] each, and the votes of ±1 at the end."""
        bits, given = self.encode(x), []
        for layer in self.hidden:
            given.append(layer(bits))
            bits = torch.cat([bits, given[-1]], 1) if self.skip else given[-1]
        return [*given, ReadTables.apply(bits, self.choice, self.weight, self.seen)]

    def count(self, votes: Tensor) -> Tensor:
        """The scores of votes [batch, n_tables]: [batch, n_classes]."""
        return votes.new_zeros(len(votes), self.n_classes).index_add(1, self.classes, votes) / self.temperature

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """The choice and the rows of every layer, the voting one last."""
        hidden = [(layer.choice, layer.weight) for layer in self.hidden]
        return [*hidden, (self.choice, self.weight)]  # type: ignore[list-item]

    def wired(self) -> list[Tensor]:
        """Which bits, of those that the layer may read, each table reads: int64 [n_tables, k] of every layer."""
        hidden = [wires(layer.choice, layer.seen) for layer in self.hidden]  # type: ignore[arg-type]
        return [*hidden, wires(self.choice, self.seen)]

    @torch.no_grad()
    def prune_(self, number: int, tables: Tensor, values: Tensor) -> None:
        """Make tables of a layer constants for good: `tables` int64 [n], `values` bool [n]."""
        weight = self.layers()[number][1]
        weight[tables] = torch.where(values, PRUNED, -PRUNED).to(weight.dtype)[:, None].to(weight.device)

    def pruned(self) -> list[Tensor]:
        """Which tables of each layer are constants for good: bool [n_tables]."""
        return [weight.detach().abs().amin(1) > (1 + PRUNED) / 2 for _, weight in self.layers()]

    @torch.no_grad()
    def clamp_(self) -> None:
        """Clamp the rows so that their signs can still flip, except in pruned tables; call it after each optimiser step."""
        for (_, weight), out in zip(self.layers(), self.pruned(), strict=True):
            weight.copy_(torch.where(out[:, None], weight.sign() * PRUNED, weight.clamp(-1, 1)))

    def area_loss(self) -> Tensor:
        """Roughly how many LUTs the tables need: one for each, none for a table that is constant or a wire: [].

        It is soft: the degree to which each table is neither, so that training can remove tables.
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
        names = ["k", "bits", "thresholds", "temperature", "hidden", "skip"]
        names += ["learn_thresholds", "threshold_bits", "spread", "windows"]
        options: dict[str, Any] = {name: getattr(config, name) for name in names}
        self.votes = Gates(math.prod(config.input_shape), config.n_classes, config.n_tables, shape=shape, seed=seed, **options)

    @classmethod
    def least_size(cls, config: GateNetworkConfig) -> ModelSize:  # type: ignore[override]
        return gates_size(config)

    def area_loss(self) -> Tensor:
        """Roughly how many LUTs the tables need: []."""
        return self.votes.area_loss()  # type: ignore[operator]


def area_of(model: nn.Module) -> Tensor | None:
    """The predicted area of a model that has one: []."""
    return model.area_loss() if isinstance(model, GateNetwork | Gates) else None
