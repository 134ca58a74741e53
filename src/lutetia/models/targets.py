"""`Targets`: columns of numbers and categories to several targets, by one encoding and one layer of tables that they share.

Each target is a `Tabular` of its own, `model.part(number)`, which shares the encoding, and has its part of each row: whatever
takes one target takes that. So explanations, intervals, programs and circuits of a target are those of any other model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.dtypes import FLOATS
from lutetia._shared.losses import Loss
from lutetia.errors import check_memory, check_range, check_tensor, did_you_mean, fail
from lutetia.models.building import Model
from lutetia.models.encoding import TOP, Encoding
from lutetia.models.sizes import ModelSize, tabular_size
from lutetia.models.tabular import BITS, Tabular, threshold_layer
from lutetia.models.targets_config import TargetsConfig
from lutetia.nn import LUT

if TYPE_CHECKING:
    from lutetia.precompute import LUTNetwork


class Targets(Model[TargetsConfig]):
    """x [B, *input_shape], floats with NaN for what is missing -> scores [B, outputs of all targets side by side]."""

    kind: ClassVar[str] = "targets"
    config_class: ClassVar[type[TargetsConfig]] = TargetsConfig

    def _build(self, config: TargetsConfig) -> None:
        self.encoding = Encoding(config.n_encoded, config.n_edges, config.n_categories, config.parts, None)
        self.tables = threshold_layer(config.all)
        self.spread: LUT | None = None
        if config.spread_tables:
            sizes = {"n_classes": len(config.outputs), "n_tables": config.spread_tables, "n_anchors": config.spread_anchors}
            self.spread = threshold_layer(replace(config.all, **sizes))  # type: ignore[arg-type]

    @classmethod
    def least_size(cls, config: TargetsConfig) -> ModelSize:
        own = tabular_size(config.all)
        if not config.spread_tables:
            return own
        rows = config.spread_tables * (2**config.spread_anchors * len(config.outputs) + 2 * config.spread_anchors)
        return ModelSize(own.tensors + 3, own.numbers + rows, own.windows)

    @property
    def is_regression(self) -> bool:
        """Whether the targets are numbers, not classes."""
        return self.config.outputs[0] == 1

    @property
    def loss(self) -> Loss:
        """What the numbers of a regression were fitted to."""
        return Loss(self.config.loss, self.config.quantile)

    @property
    def adds_chances(self) -> bool:
        """Tables add up to scores."""
        return False

    @property
    def n_columns(self) -> int:
        """Columns of the data."""
        return math.prod(self.config.input_shape)

    @property
    def names(self) -> list[str]:
        """What the targets are called; by their numbers where they have no names."""
        told = self.metadata.get("targets") or [{}] * len(self.config.outputs)
        return [each.get("target") or f"y{number}" for number, each in enumerate(told)]

    @property
    def slices(self) -> list[slice]:
        """The outputs of each target."""
        return [slice(*ends) for ends in pairwise([0, *accumulate(self.config.outputs)])]

    def number_of(self, name: str) -> int:
        """The number of the target of a name, or of its number as text."""
        names = self.names
        if name in names:
            return names.index(name)
        if name.isascii() and name.isdecimal() and int(name) < len(names):
            return int(name)
        fail("output", name, f"one of the targets {', '.join(map(repr, names))}: {did_you_mean(name, names)}")

    def encode(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> codes, whole numbers from 0 to 255, as floats [B, n_encoded]."""
        check_tensor("x", x, ["B", *self.config.input_shape], FLOATS)
        check_memory("x", x)
        return self.encoding(x.flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, *input_shape] -> scores [B, outputs]: numbers, or scores of the classes of each target."""
        return self.tables(self.encode(x))

    def set_tables(self, anchors: Tensor, weight: Tensor, layer: LUT | None = None) -> None:
        """Set the tables, or those of the spread, to what was fitted: anchors int32 [T, A, 2], weight [T, 2**A, outputs]."""
        layer = self.tables if layer is None else layer
        layer.anchors = anchors.to(layer.anchors.device, torch.int32)
        layer.weight.data.copy_(weight)

    def part(self, number: int) -> Tabular:
        """The model of one target, which shares the encoding and copies its part of the rows. Tables that hold nothing for it
        are left out: it had enough before the others."""
        check_range("target", number, 0, len(self.config.outputs) - 1)
        weight = self.tables.weight.data[:, :, self.slices[number]]
        held = weight.flatten(1).any(1).nonzero()
        used = int(held.max()) + 1 if len(held) else 1
        model = Tabular(replace(self.config.of(number), n_tables=used, seed=0))
        model.encoding = self.encoding
        model.set_tables(self.tables.anchors[:used].cpu(), weight[:used])
        if self.spread is not None:
            model.set_tables(self.spread.anchors.cpu(), self.spread.weight.data[:, :, number : number + 1], model.spread)
        model.metadata = part_metadata(self.metadata, number)
        return model.eval()

    def network(self, weight_bits: int = 8) -> LUTNetwork:
        """The integer model of all targets, whose circuit takes 8-bit codes: a whole number for each, in `units` of its own; or
        of labels, which have two classes each, a bit: whether the second is more probable."""
        from lutetia.precompute import Binary, CodeEncoder, Compare, Graph, LUTNetwork, lut_network

        if not self.is_regression and set(self.config.outputs) != {2}:
            fail("model", self, "numbers, or targets of two classes each: part(number) is a target alone")
        weight, largest = self._own_weight()
        layer = threshold_layer(replace(self.config.all, n_classes=len(self.config.outputs)))
        self.set_tables(self.tables.anchors.cpu(), weight / largest, layer)
        graph = lut_network(layer, bits=BITS, weight_bits=weight_bits, low=0.0, high=float(TOP), argmax=False).graph
        if not self.is_regression:
            lanes = np.arange(len(self.config.outputs))
            edge = graph.output_edge.carrying([Binary()] * len(lanes))
            none, zero = np.full(len(lanes), -1), np.zeros(len(lanes), np.int64)
            bits = Compare((graph.output,), edge, lanes, none, zero, name="labels")
            graph = Graph([*graph.nodes, bits], len(graph.nodes))
        return LUTNetwork(graph, self, CodeEncoder(BITS, lambda x: self.encode(x)))

    def units(self, network: LUTNetwork) -> list[float]:
        """What the whole number of each target is multiplied by to be in its own unit, or that of its logarithm."""
        return [float(own) * each for own, each in zip(self._own_weight()[1], network.graph.output_edge.scale, strict=True)]

    def _own_weight(self) -> tuple[Tensor, Tensor]:
        """The rows of each target's one number, [T, 2**A, targets], of labels the lead of the second class; and the largest."""
        rows = self.tables.weight.detach().cpu()
        weight = rows if self.is_regression else rows[..., 1::2] - rows[..., ::2]
        return weight, weight.abs().amax((0, 1)).clamp(min=torch.finfo(torch.float32).tiny)

    @property
    def all_parts(self) -> list[Tabular]:
        """The models of all targets."""
        return [self.part(number) for number in range(len(self.config.outputs))]


def part_metadata(metadata: dict[str, Any], number: int) -> dict[str, Any]:
    """What is known of one target, and of the data."""
    common = {key: value for key, value in metadata.items() if key != "targets"}
    told: Sequence[dict[str, Any]] = metadata.get("targets", ())
    return common | (dict(told[number]) if told else {})
