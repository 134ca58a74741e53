"""The config of a `GateNetwork`."""

from __future__ import annotations

from dataclasses import dataclass

from lutetia.errors import fail
from lutetia.lut import check_int
from lutetia.models.fields import check_number
from lutetia.models.votes_config import VotesConfig


@dataclass(frozen=True)
class GateNetworkConfig(VotesConfig):
    """Layers of one-bit tables: `hidden` says how many each layer before the last one has, `n_tables` how many vote.

    With `skip` a layer may read the bits of all layers before it, not only of the last one.

    With `learn_thresholds` every input has thresholds of its own, on a grid of `threshold_bits` bits: fewer bits are
    cheaper comparisons.
    """

    hidden: tuple[int, ...] = ()
    skip: bool = False
    learn_thresholds: bool = False
    threshold_bits: int = 3
    spread: float = 0.01  # how far apart the choices of bits start: the wider, the more slowly wiring moves beside the rows

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.hidden, tuple | list):
            fail("hidden", self.hidden, "a list of numbers of tables, one per layer before the last")
        for size in self.hidden:
            check_int("each of hidden", size, 1)
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for name in ("skip", "learn_thresholds"):
            if not isinstance(getattr(self, name), bool):
                fail(name, getattr(self, name), "true or false")
        check_int("threshold_bits", self.threshold_bits, 1, self.bits)
        check_number("spread", self.spread, 0.0, low_fits=False)
