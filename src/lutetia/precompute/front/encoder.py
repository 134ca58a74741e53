"""How the inputs of a network become whole numbers.

A LUT layer only compares inputs, with each other or with constants, so one non-decreasing map for all inputs keeps every
comparison, except between values that map to the same integer. One map per input would not: a comparison of two inputs would no
longer be the one that was trained.

    affine   value v -> round((v - low) / (high - low) · (2**bits - 1)), for inputs of one range
    ramps    the same with the mean of all inputs' own ramps: round(mean_i clip((v - low_i) / (high_i - low_i)) · (2**bits - 1)).
             The map is steep where many inputs have their values, so features in different units each keep enough resolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_tensor, fail
from lutetia.precompute.tables.domains import MAX_CHANNELS, NUMBERS, check_whole

Range: TypeAlias = float | Sequence[float] | np.ndarray | Tensor
MOST_BITS = 16
MOST_LOSS = 0.002  # of accuracy, that inputs of few bits may cost
LEAST_AGREEMENT = 0.995  # of samples whose class stays: on few samples accuracy alone says little
NARROW = 0.25  # of the common range: where a quarter of the inputs spans less, they need ramps


@dataclass(frozen=True, eq=False)
class Encoder:
    """A map from values to numbers of `bits` bits: low and high float64 [n_inputs]; `affine` as above."""

    bits: int
    low: np.ndarray
    high: np.ndarray
    affine: bool

    @property
    def step(self) -> float:
        """The real value of one step; 1 for ramps, which have none."""
        return float(self.high.max() - self.low.min()) / (2**self.bits - 1) if self.affine else 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """x [batch, ...], floats, or uint8 as 0 to 1 -> int64 [batch, n_inputs], on the CPU."""
        return self.numbers(x).cpu()

    def numbers(self, x: Tensor) -> Tensor:
        """The same on the device of x; ramps are computed on the CPU."""
        check_tensor("x", x, dtype=NUMBERS)
        if x.dim() < 2:
            fail("x", x, "samples first: [batch, ...]")
        values = (x.double() / 255 if x.dtype == torch.uint8 else x.double()).flatten(1)
        top = 2**self.bits - 1
        if self.affine:
            low, high = float(self.low.min()), float(self.high.max())
            return ((values - low) / (high - low) * top).round().clamp(0, top).to(torch.int64)
        knots, heights = self._ramps()
        shares = np.interp(values.cpu().numpy(), knots, heights)
        return torch.from_numpy(np.rint(shares * top).astype(np.int64)).to(x.device)

    def values(self) -> np.ndarray:
        """The value that each number stands for, rising: float64 [2**bits]."""
        numbers = np.arange(2**self.bits, dtype=np.float64)
        if self.affine:
            return numbers * self.step + self.low.min()
        knots, heights = self._ramps()
        return np.interp(numbers / (2**self.bits - 1), heights, knots)

    def _ramps(self) -> tuple[np.ndarray, np.ndarray]:
        """The map as a line through points: float64 [n_knots] each."""
        wide = self.high > self.low
        low, high = self.low[wide], self.high[wide]
        knots = np.unique(np.concatenate([low, high]))
        return knots, np.clip((knots[:, None] - low) / (high - low), 0, 1).mean(1)

    def to_dict(self) -> dict[str, Any]:
        """As plain data; one number for all inputs where they share it."""
        ends = {"low": self.low, "high": self.high}
        plain = {name: end[0].item() if (end == end[0]).all() else end.tolist() for name, end in ends.items()}
        return {"bits": self.bits, "map": "affine" if self.affine else "ramps", **plain}


@dataclass(frozen=True, eq=False)
class CodeEncoder:
    """A model's own map from values to codes of `bits` bits: `codes` takes x [batch, ...]. `map` is "ranks", or "values" where
    whole numbers stand for the values; `more` are facts about these."""

    bits: int
    codes: Callable[[Tensor], Tensor]
    step: float = 1.0
    map: str = "ranks"
    more: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        """x [batch, ...] -> int64 [batch, n_codes]."""
        return self.codes(x).to(torch.int64)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"bits": self.bits, "map": self.map, "low": 0, "high": 2**self.bits - 1, **self.more}


def encoder(bits: int, low: Range, high: Range, n_inputs: int, *, affine: bool | None = None) -> Encoder:
    """The map for inputs from `low` to `high`, a number or one per input.

    `affine` None chooses: ramps where a quarter of the inputs spans less than a quarter of the common range.
    """
    check_whole("n_inputs", n_inputs, 1, MAX_CHANNELS)
    check_whole("bits", bits, 1, MOST_BITS)
    if not (affine is None or isinstance(affine, bool)):
        fail("affine", affine, "True, False or None")
    ends = [_as_range(name, end, n_inputs) for name, end in (("low", low), ("high", high))]
    if (ends[0] > ends[1]).any() or not ends[0].min() < ends[1].max():
        raise ArgumentError(f"low is {_shown(low)} and high is {_shown(high)}, expected low < high")
    if affine is None:
        widths = (ends[1] - ends[0])[ends[1] > ends[0]]
        affine = bool(np.quantile(widths, 0.25, method="lower") >= NARROW * (ends[1].max() - ends[0].min()))
    return Encoder(bits, ends[0], ends[1], affine)


def _as_range(name: str, end: Range, n_inputs: int) -> np.ndarray:
    try:
        values = np.asarray(end, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        fail(name, end, f"a number, or {n_inputs} of them, one for each input")
    if not np.isfinite(values).all() or (values.ndim and values.shape != (n_inputs,)):
        fail(name, end, f"a number, or {n_inputs} of them, one for each input")
    return np.broadcast_to(values, (n_inputs,)).copy()


def _shown(end: Range) -> str:
    return str(end) if isinstance(end, int | float) else "a list"


@dataclass(frozen=True)
class BitsTried:
    """The float model on inputs of this many bits: its accuracy, and on how many samples its class stays the same."""

    bits: int
    accuracy: float
    agreement: float


@dataclass(frozen=True)
class BitsChoice:
    """The fewest bits per input that cost almost no accuracy, and the measurements."""

    bits: int
    float_accuracy: float
    tried: tuple[BitsTried, ...]
    samples: int

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def choose_bits(
    classes: Callable[[Tensor], Tensor],
    encoders: Callable[[int], Encoder],
    x: Tensor,
    labels: Tensor,
    most_loss: float = MOST_LOSS,
) -> BitsChoice:
    """Try 1 bit, 2 bits, .. until the accuracy on x [n, ...] is at most `most_loss` below that of the inputs as they are, and
    at least 99.5% of the samples keep their class.

    `classes` is the float model: it is given the values that the integers represent.
    """
    exact = classes(x)
    accuracy = _share(exact == labels)
    tried: list[BitsTried] = []
    for bits in range(1, MOST_BITS + 1):
        coded = encoders(bits)
        found = classes(torch.from_numpy(coded.values())[coded(x)].reshape(x.shape))
        tried.append(BitsTried(bits, _share(found == labels), _share(found == exact)))
        if tried[-1].accuracy >= accuracy - most_loss and tried[-1].agreement >= LEAST_AGREEMENT:
            return BitsChoice(bits, accuracy, tuple(tried), len(x))
    best = max(tried, key=lambda each: (each.agreement, -each.bits))
    return BitsChoice(best.bits, accuracy, tuple(tried), len(x))


def _share(right: Tensor) -> float:
    return float(right.double().mean())
