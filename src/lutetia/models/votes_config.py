"""The config of a `VotesClassifier`."""

from __future__ import annotations

from dataclasses import dataclass

from lutetia.errors import ArgumentError, check_int, fail
from lutetia.models.fields import ModelConfig, check_number, sizes


@dataclass(frozen=True)
class VotesConfig(ModelConfig):
    """A classifier of one-bit tables: inputs from `low` to `high` become numbers of `bits` bits, which are compared with
    `thresholds`; every table reads `k` of the answers and votes for its class or not."""

    input_shape: tuple[int, ...] = (28, 28)  # (features,), or (height, width): then tables start with bits that lie together
    n_classes: int = 10
    n_tables: int = 2000  # a multiple of n_classes
    k: int = 6
    bits: int = 8
    thresholds: tuple[int, ...] = (127,)
    temperature: float = 12.0
    low: float = 0.0
    high: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shape", sizes("input_shape", self.input_shape, (1, 2)))
        if not isinstance(self.thresholds, tuple | list) or not self.thresholds:
            fail("thresholds", self.thresholds, "a list of whole numbers")
        object.__setattr__(self, "thresholds", tuple(self.thresholds))
        check_int("n_classes", self.n_classes, 2)
        check_int("n_tables", self.n_tables, self.n_classes)
        check_int("k", self.k, 1, 8)
        check_int("bits", self.bits, 1, 16)
        for threshold in self.thresholds:
            check_int("each of thresholds", threshold, 0, 2**self.bits - 2)
        check_number("temperature", self.temperature, 0.0, low_fits=False)
        for name in ("low", "high"):
            check_number(name, getattr(self, name), float("-inf"))
        if self.n_tables % self.n_classes:
            raise ArgumentError(f"n_tables is {self.n_tables}, expected a multiple of n_classes={self.n_classes}")
        if not self.low < self.high:
            raise ArgumentError(f"low is {self.low} and high is {self.high}, expected low < high")
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**63 - 1)
