"""The config of a `Tabular` model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lutetia._shared.losses import Loss
from lutetia.errors import ArgumentError, check_choice, check_int, check_range, fail
from lutetia.lut import MAX_ANCHORS
from lutetia.models.dates import PARTS
from lutetia.models.fields import ModelConfig, check_number, sizes, whole_numbers
from lutetia.models.gates_config import check_windows
from lutetia.models.patches import MOST_PAIRS

CORES = ("tables", "gates")
SCORES, CHANCES = SUMS = ("scores", "probabilities")


@dataclass(frozen=True)
class TabularConfig(ModelConfig):
    """Columns that are encoded, then one layer of tables: "tables" whose rows are added up, or "gates" that vote for classes.

    With one output and core="tables" the model is a regression. `n_encoded`, `n_edges` and `n_categories` are the sizes of the
    encoding; where columns are dates, `parts` says for each encoded input which part of a date it is, "" for the column itself.
    The numbers of a regression were fitted to a `loss`, "quantile" to that `quantile`: see `lutetia._shared.losses`; with
    "poisson" the tables add up to logarithms. `sums` says what the tables of classes add up to: "scores", whose softmax is the
    probabilities, or as in a forest shares of these "probabilities". `monotone` says of each column whether the number, or the
    score of the second of two classes, was fitted never to fall as the column rises (1), never to rise (-1), or either (0).
    A table compares `most_columns` columns of the data at most, 0 for any number, or only those of one of the `column_groups`.
    Of an image, `patch_counts` numbers of patterns that `patch_detectors` find, by `patch_pairs` comparisons, may be columns too.
    A forecast is what the tables add up to and the number in the column `base`.
    A regression may have `spread_tables` more tables, of `spread_anchors` anchors, for how far off its numbers may be.
    `gate_codes` are the codes that gates compare inputs with, `gate_hidden` the tables of each layer before those that vote;
    `temperature` divides their counts. With `gate_windows` they see squares of an image of `gate_shape` (height, width).
    """

    input_shape: tuple[int, ...] = (2,)  # (columns,), or (height, width) or (channels, height, width) of an image
    n_classes: int = 2  # outputs: 1 for a regression
    core: str = "tables"
    n_tables: int = 500
    n_anchors: int = 6
    n_encoded: int = 2
    n_edges: int = 1
    n_categories: int = 0
    parts: tuple[str, ...] = ()
    patch_detectors: int = 0
    patch_pairs: int = 6
    patch_counts: int = 0
    loss: str = "squared_error"
    quantile: float | None = None
    sums: str = SCORES
    monotone: tuple[int, ...] = ()
    most_columns: int = 0
    column_groups: tuple[tuple[int, ...], ...] = ()
    spread_tables: int = 0
    spread_anchors: int = 3
    gate_codes: tuple[int, ...] = ()
    gate_hidden: tuple[int, ...] = ()
    gate_shape: tuple[int, ...] = ()
    gate_windows: int = 0
    base: int | None = None
    temperature: float = 12.0
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shape", sizes("input_shape", self.input_shape, (1, 2, 3)))
        object.__setattr__(self, "gate_codes", whole_numbers("gate_codes", self.gate_codes, 0, 254))
        object.__setattr__(self, "gate_hidden", whole_numbers("gate_hidden", self.gate_hidden, 1))
        check_choice("core", self.core, CORES)
        check_int("n_classes", self.n_classes, 1)
        check_int("n_tables", self.n_tables, 1)
        check_int("n_anchors", self.n_anchors, 1, MAX_ANCHORS)
        check_int("n_encoded", self.n_encoded, 1)
        check_int("n_edges", self.n_edges, 0, 255)
        check_int("n_categories", self.n_categories, 0)
        object.__setattr__(self, "parts", check_parts(self.parts, self.n_encoded))
        self._check_patches()
        if Loss(self.loss, self.quantile) != Loss() and (self.core != "tables" or self.n_classes != 1):
            fail("loss", self.loss, '"squared_error": only a regression has another')
        object.__setattr__(self, "monotone", whole_numbers("monotone", self.monotone, -1, 1))
        if len(self.monotone) not in (0, math.prod(self.input_shape)):
            fail("monotone", list(self.monotone), f"none, or {math.prod(self.input_shape)} of -1, 0 and 1")
        if self.monotone and (self.core != "tables" or self.n_classes > 2):
            fail("monotone", list(self.monotone), "none: only a regression and two classes of tables have it")
        self._check_groups()
        check_choice("sums", self.sums, SUMS)
        if self.sums == CHANCES and (self.core != "tables" or self.n_classes < 2):
            fail("sums", self.sums, f"{SCORES!r}: only classes of tables have shares of probabilities")
        check_int("spread_tables", self.spread_tables, 0)
        check_int("spread_anchors", self.spread_anchors, 1, MAX_ANCHORS)
        if self.spread_tables and (self.core != "tables" or self.n_classes != 1):
            fail("spread_tables", self.spread_tables, "0: only a regression has a spread")
        if self.base is not None:
            check_range("base", self.base, 0, math.prod(self.input_shape) - 1)
            if self.core != "tables" or self.n_classes != 1 or Loss(self.loss, self.quantile).is_log:
                fail("base", self.base, "None: only numbers are learned as what is added to a column")
        check_number("temperature", self.temperature, 0.0, low_fits=False)
        if self.core == "gates" and (self.n_classes < 2 or not self.gate_codes):
            raise ArgumentError(
                f"gates have {self.n_classes} classes and {len(self.gate_codes)} gate_codes, expected at least 2 and 1"
            )
        object.__setattr__(self, "gate_shape", sizes("gate_shape", self.gate_shape, (0, 2)))
        check_windows(self.gate_windows, self.gate_shape or None)
        if self.gate_shape and math.prod(self.gate_shape) != self.n_encoded:
            height, width = self.gate_shape
            raise ArgumentError(f"the image is {height} x {width}, expected the {self.n_encoded} columns to be its pixels")
        if self.core == "tables" and self.gate_codes:
            fail("gate_codes", list(self.gate_codes), 'none, as core is "tables"')
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**63 - 1)

    def _check_groups(self) -> None:
        check_int("most_columns", self.most_columns, 0)
        if not isinstance(self.column_groups, tuple | list):
            fail("column_groups", self.column_groups, "a list of lists of columns")
        groups = tuple(whole_numbers("column_groups", each, 0) for each in self.column_groups)
        object.__setattr__(self, "column_groups", groups)
        if (self.most_columns or groups) and self.core != "tables":
            fail("column_groups", list(groups), "none, and most_columns 0: gates have no limits")

    def _check_patches(self) -> None:
        check_int("patch_detectors", self.patch_detectors, 0)
        check_int("patch_pairs", self.patch_pairs, 1, MOST_PAIRS)
        check_int("patch_counts", self.patch_counts, 0)
        if self.patch_counts and (self.core != "tables" or not self.patch_detectors or len(self.input_shape) < 2):
            found = f"{self.patch_detectors} detectors on inputs {list(self.input_shape)} of {self.core}"
            raise ArgumentError(f"patch_counts is {self.patch_counts} with {found}, expected detectors, images and tables")


def check_parts(parts: object, n_encoded: int) -> tuple[str, ...]:
    """The parts of dates that encoded inputs are, as a tuple: none, or one for each of them."""
    known = ("", *PARTS)
    if not isinstance(parts, tuple | list) or len(parts) not in (0, n_encoded) or any(part not in known for part in parts):
        fail("parts", parts, f"none, or {n_encoded} of {', '.join(map(repr, known))}")
    return tuple(parts)
