"""`Votes`: a classifier that is a circuit by construction: bits, small tables, a count of their votes, the most votes win.

Each input is compared with a few constants, which gives bits. Every table reads k of these bits and votes for its class or not.
Both the rows of the tables and *which* bits they read are learned: forward everything is hard, backward the gradient goes
straight through the sign of a row, and through a bit by the difference that it makes in the table. After A. Bacellar et al.,
"Differentiable Weightless Neural Networks", ICML 2024 (arXiv 2410.11112).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from lutetia import flow
from lutetia.errors import MAX_INT32, ArgumentError, check_int, check_memory, check_tensor, fail
from lutetia.models.building import Model
from lutetia.models.fields import check_number, sizes
from lutetia.models.sizes import ModelSize, votes_size
from lutetia.models.votes_config import VotesConfig

if TYPE_CHECKING:
    from lutetia.precompute import Graph


START_SPREAD = 0.01  # of the choice at the start
SPARSE = 8  # one in so many bits seen, or fewer, and collecting them per table takes less time than one product with all


class Votes(nn.Module):
    """x [batch, n_inputs], whole numbers of `bits` bits -> scores [batch, n_classes].

        weight   Parameter [n_tables, 2**k]: a row votes where it is not negative
        choice   Parameter [n_tables, k, n_bits]: each table reads, in each place, the bit with the highest score

    Table t votes for class t % n_classes. `shape` (height, width) of an image lets every table start with bits that lie together.
    `temperature` divides the counts.
    """

    classes: Tensor

    def __init__(
        self,
        n_inputs: int,
        n_classes: int,
        n_tables: int,
        *,
        k: int = 6,
        bits: int = 8,
        thresholds: Sequence[int] = (127,),
        shape: tuple[int, int] | None = None,
        temperature: float = 12.0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        for name, value, low, high in (
            ("n_inputs", n_inputs, 1, MAX_INT32), ("n_classes", n_classes, 2, MAX_INT32), ("n_tables", n_tables, 2, MAX_INT32),
            ("k", k, 1, 8), ("bits", bits, 1, 16),
        ):  # fmt: skip
            check_int(name, value, low, high)
        if not isinstance(thresholds, tuple | list):
            fail("thresholds", thresholds, "a list of whole numbers")
        for threshold in thresholds:
            check_int("each of thresholds", threshold, 0, 2**bits - 2)
        check_number("temperature", temperature, 0.0, low_fits=False)
        if seed is not None:
            check_int("seed", seed, 0, 2**63 - 1)
        if shape is not None:
            shape = sizes("shape", shape, (2,))  # type: ignore[assignment]
        if (
            n_tables < n_classes or n_tables % n_classes
        ):  # a vote against is -1 in training and 0 in hardware, which is the same for equal numbers
            raise ArgumentError(f"n_tables is {n_tables}, expected a multiple of n_classes={n_classes}")
        if not thresholds:
            raise ArgumentError("thresholds is empty, expected at least one number to compare with")
        if shape is not None and shape[0] * shape[1] != n_inputs:
            raise ArgumentError(f"shape is {shape}, expected height x width to be {n_inputs}")
        self.n_inputs, self.n_classes, self.n_tables, self.k, self.bits = n_inputs, n_classes, n_tables, k, bits
        self.thresholds, self.temperature = tuple(int(each) for each in thresholds), float(temperature)
        generator = torch.Generator()
        generator.manual_seed(seed) if seed is not None else generator.seed()
        n_bits = n_inputs * len(self.thresholds)
        choice = torch.randn(n_tables, k, n_bits, generator=generator) * START_SPREAD
        choice.scatter_add_(2, self._near(shape, generator)[..., None], torch.full((n_tables, k, 1), 3 * START_SPREAD))
        self.choice = nn.Parameter(choice)
        self.weight = nn.Parameter((torch.rand(n_tables, 2**k, generator=generator) * 2 - 1) * 0.1)
        self.register_buffer("classes", torch.arange(n_tables) % n_classes)

    def _near(
        self, shape: tuple[int, int] | None, generator: torch.Generator, reach: int = 4, n_tables: int | None = None
    ) -> Tensor:
        """Bits to start with, [n_tables, k]: of one neighbourhood of the image, or any."""
        size = (n_tables or self.n_tables, self.k)
        layer = torch.randint(len(self.thresholds), size, generator=generator) * self.n_inputs
        if shape is None:
            return layer + torch.randint(self.n_inputs, size, generator=generator)
        places = []
        for side in shape:
            centre = torch.randint(side, (size[0], 1), generator=generator)
            places.append((centre + torch.randint(-reach, reach + 1, size, generator=generator)).clamp(0, side - 1))
        return layer + places[0] * shape[1] + places[1]

    def check_classes(self) -> None:
        """Refuse a buffer `classes`, which a file may have brought, that is not the one this module was made with."""
        if not torch.equal(self.classes.cpu(), torch.arange(self.n_tables) % self.n_classes):
            raise ArgumentError("classes holds other numbers than those of the tables, 0, 1, 2, .. in turn")

    def check(self, x: Tensor) -> None:
        """Refuse x unless it is [batch, ...] of n_inputs numbers, of a dtype that can be compared."""
        check_tensor("x", x)
        if x.dim() < 2 or math.prod(x.shape[1:]) != self.n_inputs:
            check_tensor("x", x, ["batch", self.n_inputs])
        if x.is_complex() or (x.is_floating_point() and x.dtype.itemsize == 1):
            fail("x", x, "whole numbers")

    def encode(self, x: Tensor) -> Tensor:
        """The bits of inputs: x [batch, ...] -> float [batch, n_bits]."""
        self.check(x)
        x = x.flatten(1)
        return torch.cat([x > threshold for threshold in self.thresholds], 1).to(self.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x [batch, ...] of n_inputs whole numbers -> scores [batch, n_classes]."""
        votes = ReadTables.apply(self.encode(x), self.choice, self.weight)
        counts = votes.new_zeros(len(votes), self.n_classes).index_add(1, self.classes, votes)
        return counts / self.temperature

    @torch.no_grad()
    def clamp_(self) -> None:
        """Clamp the rows so that their signs can still flip; call it after each optimiser step."""
        self.weight.clamp_(-1, 1)

    def graph(self) -> Graph:
        """The classifier as a stream graph: comparisons, tables, counts, argmax, each followed by a register."""
        from lutetia.precompute import votes_graph

        with flow.step("votes", part="precompute", tables=self.n_tables, k=self.k):
            return votes_graph(self)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.n_inputs}, {self.n_classes}, n_tables={self.n_tables}, k={self.k}, thresholds={self.thresholds}"


class VotesClassifier(Model[VotesConfig]):
    """x [B, *input_shape] from `low` to `high`, or uint8 as 0 to 1 -> class scores [B, n_classes]: `Votes` as a model that
    `lutetia train` trains, kind = "votes"."""

    kind: ClassVar[str] = "votes"
    config_class: ClassVar[type[VotesConfig]] = VotesConfig

    def _build(self, config: VotesConfig) -> None:
        shape = config.input_shape if len(config.input_shape) == 2 else None
        seed = int(torch.randint(2**31, ()))  # drawn from the generator that follows the seed of the config
        names = ("k", "bits", "thresholds", "temperature")
        options: dict[str, Any] = {name: getattr(config, name) for name in names}
        self.votes = Votes(math.prod(config.input_shape), config.n_classes, config.n_tables, shape=shape, seed=seed, **options)

    @classmethod
    def least_size(cls, config: VotesConfig) -> ModelSize:
        return votes_size(config)

    def quantise(self, x: Tensor) -> Tensor:
        """Inputs as whole numbers of `bits` bits: x [B, ...], floats or uint8 -> int64 [B, n_inputs]."""
        from lutetia.precompute import encoder

        return encoder(self.config.bits, self.config.low, self.config.high, self.votes.n_inputs, affine=True).numbers(x)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, *input_shape], floats or uint8 -> class scores [B, n_classes]."""
        check_tensor("x", x, ["B", *self.config.input_shape])
        check_memory("x", x)
        if self.training:
            self.votes.clamp_()
        return self.votes(self.quantise(x.to(self.votes.weight.device)))

    def graph(self) -> Graph:
        """The classifier as a stream graph."""
        return self.votes.graph()


class ReadTables(torch.autograd.Function):
    """Votes of ±1: bits [batch, n_bits], choice [n_tables, k, n_seen], weight [n_tables, 2**k] -> [batch, n_tables].

    `seen` [n_tables, n_seen] says which bits each table may choose from; None: all, in their order.
    """

    @staticmethod
    def forward(ctx: Any, bits: Tensor, choice: Tensor, weight: Tensor, seen: Tensor | None = None) -> Tensor:
        wired = wires(choice, seen)
        n_tables, k = wired.shape
        # A bit is a row of its samples, so that all which is read and written here lies together.
        chosen = bits.T.to(torch.uint8).contiguous()[wired.flatten()].view(n_tables, k, -1)
        rows = chosen[:, 0].clone()
        for place in range(1, k):
            rows |= chosen[:, place] << place
        index = rows.long()  # [n_tables, batch]
        ctx.save_for_backward(bits, weight, index, wired, seen)
        return torch.where(weight.gather(1, index) >= 0, 1.0, -1.0).to(weight.dtype).T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        bits, weight, rows, wired, seen = ctx.saved_tensors
        of_weight, of_bits = _row_gradients(rows, weight.detach().float(), grad.T.float().contiguous())
        of_choice = of_inputs = None
        if ctx.needs_input_grad[0]:  # a layer before this one: what each bit that is read would have changed
            inputs = torch.zeros(bits.shape[::-1], device=bits.device).index_add_(0, wired.flatten(), of_bits.flatten(0, 1))
            of_inputs = inputs.T.to(bits.dtype)
        if ctx.needs_input_grad[1]:
            # What each bit would have changed in place of the chosen one: ones and zeros as ±1.
            signs = 2 * bits.float() - 1
            if seen is not None and SPARSE * seen.shape[1] < signs.shape[1]:
                of_choice = of_bits @ signs.T.contiguous()[seen].transpose(1, 2)
            else:
                of_choice = _product(of_bits.flatten(0, 1), signs).view(*wired.shape, -1)
                of_choice = of_choice if seen is None else of_choice.gather(2, seen[:, None].expand(-1, wired.shape[1], -1))
            of_choice = of_choice.to(weight.dtype)
        return of_inputs, of_choice, of_weight.to(weight.dtype), None


def _product(left: Tensor, signs: Tensor) -> Tensor:
    """left @ signs, float32; on CUDA from factors of bfloat16, which holds the signs as they are."""
    if left.device.type != "cuda":
        return left @ signs
    return torch.mm(left.bfloat16(), signs.bfloat16(), out_dtype=torch.float32)


def wires(choice: Tensor, seen: Tensor | None = None) -> Tensor:
    """The bits that tables read: choice [n_tables, k, n_seen] and what they see of, as in `ReadTables` -> int64 [n_tables, k]."""
    places = choice.detach().argmax(2)
    return places if seen is None else seen.gather(1, places)


def _row_gradients(rows: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of each row, straight through its sign, and of each bit: the table's answer with it minus the answer without.

    rows, grad [n_tables, batch], weight [n_tables, 2**k] -> like weight, and [n_tables, k, batch].
    """
    if rows.device.type == "cpu":
        from lutetia.models.votes_gradient import gradients  # compiled: needed in training only

        k = weight.shape[1].bit_length() - 1
        of_weight, of_bits = torch.zeros(weight.shape), torch.empty(len(rows), k, rows.shape[1])
        gradients(*(each.numpy() for each in (rows, weight, grad, of_weight, of_bits)))
        return of_weight, of_bits
    return plain_row_gradients(rows, weight, grad)


def plain_row_gradients(rows: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The same in plain torch, for any device; nothing waits for the device, so a CUDA graph can hold it."""
    places = range(weight.shape[1].bit_length() - 1)
    each = torch.arange(weight.shape[1], device=rows.device)
    changes = [(weight[:, each | 1 << place] - weight[:, each & ~(1 << place)]).gather(1, rows) for place in places]
    of_weight = torch.zeros_like(weight).scatter_add_(1, rows, grad)
    return of_weight, grad[:, None] * torch.stack(changes, 1)
