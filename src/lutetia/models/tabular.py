"""`Tabular`: columns of numbers and categories to class scores or a number, through an encoding and one layer of tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from lutetia._shared.dtypes import FLOATS
from lutetia._shared.losses import Loss
from lutetia._shared.numbers import short_number
from lutetia.errors import ArgumentError, check_memory, check_range, check_tensor, fail
from lutetia.models.building import Model
from lutetia.models.dates import date_text, has_times, part_text
from lutetia.models.encoding import TOP, Encoding
from lutetia.models.gates import Gates
from lutetia.models.patches import Patches
from lutetia.models.readings import Reading
from lutetia.models.sizes import ModelSize, tabular_size
from lutetia.models.tabular_config import CHANCES, TabularConfig
from lutetia.models.values import value_network
from lutetia.models.votes import Votes
from lutetia.nn import LUT

if TYPE_CHECKING:
    from lutetia.precompute import Graph, LUTNetwork

N_CONSTANTS = TOP  # thresholds 0 to 254: code > t
BITS = 8  # of a code
AT_ONCE = 1 << 14  # rows
MOST_NAMED = 6  # categories in a text
LEAST_TEXT = short_number(-sys.float_info.max, 6)  # of a cut that all numbers are above
LEAST_SPREAD = 0.2  # of a row: the sum of a few tables may be too small, or negative


class Tabular(Model[TabularConfig]):
    """x [B, *input_shape], floats with NaN for what is missing, or uint8 as 0 to 1 -> scores [B, n_classes].

    Categories are given as their numbers. `encode` gives the codes that the tables compare with each other and with thresholds.
    Of an image, codes of counts of patterns may follow those of the pixels: see `lutetia.models.patches`.
    """

    kind: ClassVar[str] = "tabular"
    config_class: ClassVar[type[TabularConfig]] = TabularConfig

    def _build(self, config: TabularConfig) -> None:
        patches = None
        if config.patch_counts:
            patches = Patches(config.input_shape, config.patch_detectors, config.patch_pairs, config.patch_counts)
        self.encoding = Encoding(config.n_encoded, config.n_edges, config.n_categories, config.parts, patches)
        self.core: nn.Module
        self.spread: LUT | None = None
        if config.core == "tables":
            self.core = threshold_layer(config)
            if config.spread_tables:
                self.spread = threshold_layer(replace(config, n_tables=config.spread_tables, n_anchors=config.spread_anchors))
        else:
            seed = int(torch.randint(2**31, ()))
            options: dict[str, Any] = {"k": config.n_anchors, "bits": BITS, "thresholds": config.gate_codes}
            options["temperature"] = config.temperature
            sizes = config.n_encoded, config.n_classes, config.n_tables
            if config.gate_hidden or config.gate_windows:
                options |= {"hidden": config.gate_hidden, "shape": config.gate_shape or None, "windows": config.gate_windows}
                self.core = Gates(*sizes, seed=seed, **options)
            else:
                self.core = Votes(*sizes, seed=seed, **options)

    @classmethod
    def least_size(cls, config: TabularConfig) -> ModelSize:
        return tabular_size(config)

    @property
    def is_regression(self) -> bool:
        """Whether the output is a number, which may be the score of a ranking, not scores of classes."""
        return self.config.n_classes == 1

    @property
    def title(self) -> str | None:
        """The name of the number that a regression gives, where it is known; a ranking gives scores."""
        return "score" if self.loss.is_ranking else self.metadata.get("target")

    @property
    def loss(self) -> Loss:
        """What the numbers of a regression, or the scores of a ranking, were fitted to."""
        return Loss(self.config.loss, self.config.quantile)

    @property
    def adds_chances(self) -> bool:
        """Whether the tables of classes add up to shares of probabilities, as in a forest, not to scores."""
        return self.config.sums == CHANCES

    @property
    def tables(self) -> LUT:
        """The layer of tables, where the core is not gates."""
        assert isinstance(self.core, LUT)
        return self.core

    @property
    def n_columns(self) -> int:
        """Columns of the data."""
        return math.prod(self.config.input_shape)

    def encode(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> codes, whole numbers from 0 to 255, as floats [B, n_encoded]."""
        check_tensor("x", x, ["B", *self.config.input_shape], (*FLOATS, torch.uint8))
        check_memory("x", x)
        x = x.double() / 255 if x.dtype == torch.uint8 else x
        return self.encoding(x.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> scores [B, n_classes], which `lutetia.models.chances` makes probabilities of."""
        return self.core(self.encode(x))

    @torch.no_grad()
    def numbers(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> the predictions of a regression, float64 [B]: exp of its score where `loss.is_log`, and what its
        score is added to where it has a base."""
        scores = [self(part)[:, 0] for part in x.split(AT_ONCE)]
        return torch.from_numpy(self.loss.numbers(torch.cat(scores).cpu().numpy())) + self.base(x)

    def base(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> what scores are added to, float64 [B]: a column of a forecast, otherwise 0."""
        column = self.config.base
        return torch.zeros(len(x), dtype=torch.float64) if column is None else x[:, column].double().cpu()

    def spreads(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> how far off the number of each row may be, as a multiple of the mean error [B]; 1 where nothing
        was learned of it."""
        if self.spread is None:
            return torch.ones(len(x), dtype=torch.float32, device=x.device)
        return self.spread(self.encode(x))[:, 0].clamp(min=LEAST_SPREAD)

    def set_tables(self, anchors: Tensor, weight: Tensor, layer: LUT | None = None) -> None:
        """Set the tables, or those of another layer, to what was fitted: anchors int32 [T, A, 2], weight [T, 2**A, n_classes]."""
        layer = self.tables if layer is None else layer
        layer.anchors = anchors.to(layer.anchors.device, torch.int32)
        layer.weight.data.copy_(weight)

    def check_chances(self) -> None:
        """Check that what tables add up to as probabilities is not negative."""
        if self.adds_chances and not bool((self.tables.weight >= 0).all()):
            fail(
                "core.weight", float(self.tables.weight.detach().min()), "numbers of at least 0: they are shares of probabilities"
            )

    def threshold_text(self, encoded: int, code: int) -> str:
        """A threshold in the unit of its column: an input whose code is above `code` is above this."""
        ranks, source = self.encoding.ranks[encoded].tolist(), int(self.encoding.source[encoded])
        if any(ranks):
            return self._categories_text(source, [0 < rank <= code for rank in ranks])
        if code == 0:
            return "missing"
        edges, part = self.encoding.edges[encoded], self.encoding.parts[encoded]
        edge = float(edges[code - 1]) if code - 1 < len(edges) else math.inf
        if part and math.isfinite(edge):
            return part_text(edge, part)
        if str(source) in self.metadata.get("dates", {}) and math.isfinite(edge):
            return date_text(edge, has_times(self.metadata, source))
        return short_number(edge, 6)

    def input_name(self, encoded: int, names: Sequence[str]) -> str:
        """An encoded input by the names of the columns: `sold`, or a part of it, `sold: month`."""
        column, part = int(self.encoding.source[encoded]), self.encoding.parts[encoded]
        if self.patches is not None and column >= self.n_columns:
            return self.patches.name(column - self.n_columns)
        name = names[column]
        return f"{name}: {part}" if part else name

    def order_text(self, left: int, right: int) -> str:
        """The categories that the input `left` does not rank above the input `right`; both belong to one column."""
        ranks = self.encoding.ranks[[left, right]].tolist()
        is_known = [any(pair) and pair[0] <= pair[1] for pair in zip(*ranks, strict=True)]
        return self._categories_text(int(self.encoding.source[left]), is_known)

    def interval_text(self, low: int, high: int) -> str:
        """The interval in which the code of the input `low` is above that of `high`, an input of the same column: each has one
        cut."""
        ends = [self.threshold_text(each, 1) for each in (low, high)]
        return f"({'-inf' if ends[0] == LEAST_TEXT else ends[0]}, {ends[1]}]"

    def is_interval(self, left: int, right: int) -> bool:
        """Whether two inputs are one column of numbers, of one cut each, so that comparing them asks for an interval."""
        if self.encoding.source[left] != self.encoding.source[right] or self.encoding.parts[left] != self.encoding.parts[right]:
            return False
        cuts = torch.isfinite(self.encoding.edges[[left, right]]).sum(1)
        return bool((cuts == 1).all()) and not bool(self.encoding.ranks[[left, right]].any())

    def set_text(self, encoded: int, code: int) -> str | None:
        """The categories above `code` of an input that parts three or more of them in two sets, where it is the smaller one."""
        ranks = self.encoding.ranks[encoded].tolist()
        above, below = ranks.count(2), ranks.count(1)
        if code != 1 or max(ranks, default=0) != 2 or above > below or above + below < 3:
            return None
        return self._categories_text(int(self.encoding.source[encoded]), [rank == 2 for rank in ranks], ())

    def _categories_text(self, column: int, chosen: list[bool], others: Sequence[str] = ("missing",)) -> str:
        """The chosen categories of a column, the first ones by name, and others, such as what is missing."""
        names = self.metadata.get("categories", {}).get(str(column), range(len(chosen)))
        own = [str(name) for name, each in zip(names, chosen, strict=False) if each]
        if len(own) > MOST_NAMED:
            own = [*own[: MOST_NAMED - 1], f"{len(own) - MOST_NAMED + 1} others"]
        return f"[{', '.join([*others, *own])}]"

    @property
    def patches(self) -> Patches | None:
        """What is counted in images, where that is so."""
        return self.encoding.patches

    def by_column(self, relevance: Tensor, x: Tensor | None = None) -> Tensor:
        """Relevance of encoded inputs [..., n_encoded] added up for each column [..., n_columns]. That of counts goes to the
        pixels where the patterns were found, which takes the images x [..., *input_shape]."""
        if self.patches is None:
            total = relevance.new_zeros(*relevance.shape[:-1], self.n_columns)
            return total.index_add(-1, self.encoding.source, relevance)
        shape = (*relevance.shape[:-1], *self.config.input_shape)
        if x is None or x.shape != shape:
            fail("x", x, f"the images {list(shape)} in which patterns were counted")
        rows = relevance.reshape(-1, relevance.shape[-1])
        total = rows.new_zeros(len(rows), self.n_columns + self.patches.n_counts).index_add(-1, self.encoding.source, rows)
        found = self.patches.shares(total[:, self.n_columns :], x.reshape(len(rows), -1)).to(rows.dtype)
        return (total[:, : self.n_columns] + found).reshape(*relevance.shape[:-1], self.n_columns)

    def network(self, weight_bits: int = 8, n_tables: int | None = None) -> LUTNetwork:
        """The integer model, whose circuit takes 8-bit codes; with `n_tables`, of the first tables only."""
        from lutetia.precompute import CodeEncoder, LUTNetwork, lut_network

        if "forecast" in self.metadata:
            why = "circuits, programs and pages do not make its inputs of samples"
            raise ArgumentError(f"the model is a forecast: {why}, lutetia predict does")
        if n_tables is not None and n_tables != self.config.n_tables:
            return LUTNetwork(self.first(n_tables).network(weight_bits).graph, self, CodeEncoder(BITS, lambda x: self.encode(x)))
        if isinstance(self.core, Votes):
            graph: Graph = self.core.graph()
        else:
            options = {"low": 0.0, "high": float(TOP), "argmax": not self.is_regression}
            graph = lut_network(self.tables, bits=BITS, weight_bits=weight_bits, **options).graph  # type: ignore[arg-type]
        return LUTNetwork(graph, self, CodeEncoder(BITS, lambda x: self.encode(x)))

    def on_values(
        self, network: LUTNetwork, bits: int | None = None, readings: Mapping[str, Reading] | None = None
    ) -> LUTNetwork:
        """An integer model of this one, whose circuit takes `readings` by the names of columns, whole numbers of `bits` bits, or
        pixels, in place of codes."""
        return value_network(self, network, bits, readings)

    def first(self, n_tables: int) -> Tabular:
        """A model of the first tables, with the same encoding; a model of gates has none, as its gates are trained together.

        It has no spread, which is that of all tables."""
        if self.config.core == "gates":
            fail("n_tables", n_tables, "None: gates are trained together")
        check_range("n_tables", n_tables, 1, self.config.n_tables)
        model = Tabular(replace(self.config, n_tables=n_tables, spread_tables=0))
        model.encoding, model.metadata = self.encoding, self.metadata
        model.set_tables(self.tables.anchors[:n_tables].cpu(), self.tables.weight.data[:n_tables])
        return model.eval()


def threshold_layer(config: TabularConfig) -> LUT:
    """The layer of tables of a model, whose thresholds are all the codes; anchors are set when it is fitted."""
    anchors = torch.tensor([0, config.n_encoded]).expand(config.n_tables, config.n_anchors, 2)
    thresholds = torch.arange(N_CONSTANTS, dtype=torch.float32)
    sizes = (config.n_encoded, config.n_classes, config.n_tables, config.n_anchors)
    return LUT(*sizes, anchors=anchors, thresholds=thresholds, seed=config.seed)
