"""The config of a `Targets` model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lutetia.errors import check_int, check_range, fail
from lutetia.models.fields import ModelConfig, sizes
from lutetia.models.tabular_config import TabularConfig

MOST_TARGETS = 1000


@dataclass(frozen=True)
class TargetsConfig(ModelConfig):
    """Columns that are encoded, then one layer of tables whose rows hold numbers for several targets, added up for each.

    `outputs` says how many each target has: 1 for a number, or as many as it has classes; all are numbers, or all classes. The
    other fields are those of a `TabularConfig` whose core is tables, the same for all targets.
    """

    outputs: tuple[int, ...] = (1, 1)
    input_shape: tuple[int, ...] = (2,)
    n_tables: int = 500
    n_anchors: int = 6
    n_encoded: int = 2
    n_edges: int = 1
    n_categories: int = 0
    parts: tuple[str, ...] = ()
    loss: str = "squared_error"
    quantile: float | None = None
    spread_tables: int = 0
    spread_anchors: int = 3
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", sizes("outputs", self.outputs, range(2, MOST_TARGETS + 1)))
        check_int("outputs", len(self.outputs), 2, MOST_TARGETS)
        if len({count == 1 for count in self.outputs}) > 1:
            fail("outputs", list(self.outputs), "1 for each target, or more for each: all are numbers, or all have classes")
        first = self.of(0)
        for name in ("input_shape", "parts"):
            object.__setattr__(self, name, getattr(first, name))

    @property
    def core(self) -> str:
        """What the models of the targets are made of."""
        return "tables"

    def of(self, target: int) -> TabularConfig:
        """The config of the model of one target."""
        check_range("target", target, 0, len(self.outputs) - 1)
        return self._of(self.outputs[target])

    @property
    def all(self) -> TabularConfig:
        """The config of a layer with the outputs of all targets side by side."""
        plain = replace(self, loss="squared_error", quantile=None, spread_tables=0)
        return plain._of(sum(self.outputs))

    def _of(self, n_outputs: int) -> TabularConfig:
        own = self.to_dict()
        del own["outputs"]
        return TabularConfig.from_dict({**own, "n_classes": n_outputs})
