"""The config of a `GateNetwork`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lutetia.errors import ArgumentError, check_int, fail
from lutetia.models.fields import check_number, whole_numbers
from lutetia.models.votes_config import VotesConfig


def check_gates(hidden: object, flags: tuple[Any, Any], threshold_bits: object, bits: int) -> tuple[int, ...]:
    """Check what a network of gates has beyond `Votes`, flags being `skip` and `learn_thresholds`; `hidden` as a tuple."""
    sizes = whole_numbers("hidden", hidden, 1)
    for name, flag in zip(("skip", "learn_thresholds"), flags, strict=True):
        if not isinstance(flag, bool):
            fail(name, flag, "true or false")
    most = bits if flags[1] else max(bits, 3)  # the default of 3 says nothing unless thresholds are learned
    check_int("threshold_bits", threshold_bits, 1, most)
    return sizes


def check_windows(windows: Any, shape: Sequence[int] | None) -> None:
    """Check the side of a window, 0 for none, in an image of `shape` (height, width); None: not an image."""
    check_int("windows", windows, 0)
    if windows and (shape is None or len(shape) != 2):
        raise ArgumentError(f"windows is {windows}, expected 0: the inputs are not an image of (height, width)")
    if shape is not None and windows > min(shape):
        raise ArgumentError(f"windows is {windows}, expected at most the sides of the image, {shape[0]} x {shape[1]}")


def seen_bits(n_inputs: int, n_thresholds: int, hidden: Sequence[int], skip: bool, windows: int) -> list[int]:
    """How many bits a table of each layer may read, the voting one last."""
    sizes = [(windows**2 if windows else n_inputs) * n_thresholds, *hidden]
    return list(accumulate(sizes)) if skip else sizes


@dataclass(frozen=True)
class GateNetworkConfig(VotesConfig):
    """Layers of one-bit tables: `hidden` says how many each layer before the last one has, `n_tables` how many vote.

    With `skip` a layer may read the bits of all layers before it, not only of the last one.

    With `learn_thresholds` every input has thresholds of its own, on a grid of `threshold_bits` bits: fewer bits are
    cheaper comparisons.

    With `windows` a table sees only a square of that many pixels a side, at its own place, and all tables before it. So there is
    less to choose from, and to train.
    """

    hidden: tuple[int, ...] = ()
    skip: bool = False
    learn_thresholds: bool = False
    threshold_bits: int = 3
    spread: float = 0.01  # how far apart the choices of bits start: the wider, the more slowly wiring moves beside the rows
    windows: int = 0  # pixels a side; 0: the whole image

    def __post_init__(self) -> None:
        super().__post_init__()
        flags = (self.skip, self.learn_thresholds)
        object.__setattr__(self, "hidden", check_gates(self.hidden, flags, self.threshold_bits, self.bits))
        check_number("spread", self.spread, 0.0, low_fits=False)
        check_windows(self.windows, self.input_shape)

    @property
    def seen(self) -> list[int]:
        """How many bits a table of each layer may read, the voting one last."""
        return seen_bits(math.prod(self.input_shape), len(self.thresholds), self.hidden, self.skip, self.windows)
