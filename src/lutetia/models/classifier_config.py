"""`ClassifierConfig`, and the layers it is a list of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from lutetia.errors import ArgumentError, check_choice, check_int, fail
from lutetia.lut import GRADIENTS, MAX_ANCHORS, READS, Sums
from lutetia.models.fields import ModelConfig, check_number, sizes
from lutetia.models.transformer_config import NORMS
from lutetia.nn import COMPARISONS, check_dropout

READOUTS = ("linear", "lut", "none")
Size: TypeAlias = int | tuple[int, int]


class _Layer(ModelConfig):
    """A layer of a classifier; in a dict or a file `kind` says which."""

    kind: ClassVar[str]
    n_anchors: int
    read: str
    table_dropout: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, and the kind."""
        return {"kind": self.kind, **super().to_dict()}

    def _check_table(self) -> None:
        check_int("n_anchors", self.n_anchors, 1, MAX_ANCHORS)
        check_choice("read", self.read, READS)
        check_dropout("table_dropout", self.table_dropout)


@dataclass(frozen=True)
class Projection2dLayer(_Layer):
    """`nn.LUTProjection2d` from the shape before it, an image, to `out_shape`; the fields have its names."""

    kind: ClassVar[str] = "projection2d"
    out_shape: tuple[int, ...]
    receptive_field: Size
    projection: Size
    n_anchors: int
    detectors_per_position: int = 1
    grid: Size | None = None
    stride: Size | None = None
    placement: str = "grid"
    keep: float = 1.0
    read: str = "hard"
    table_dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "out_shape", sizes("out_shape", self.out_shape, (2, 3)))
        for name in ("receptive_field", "projection", "grid", "stride"):
            if isinstance(value := getattr(self, name), tuple | list):
                object.__setattr__(self, name, sizes(name, value, (2,)))
            elif value is not None:
                check_int(name, value, 1)
            elif name in ("receptive_field", "projection"):
                fail(name, value, "a size")
        if (self.grid is None) == (self.stride is None):
            raise ArgumentError("a projection2d layer has a grid or a stride, expected one of them and not both")
        check_int("detectors_per_position", self.detectors_per_position, 1)
        check_choice("placement", self.placement, ("grid", "sampled"))
        check_number("keep", self.keep, 0.0, 1.0, low_fits=False)
        self._check_table()


@dataclass(frozen=True)
class LUTLayer(_Layer):
    """`nn.LUT` from all its inputs to `n_outputs`; with `mix`, from that many sums of them, which a linear layer learns."""

    kind: ClassVar[str] = "lut"
    n_outputs: int
    n_detectors: int
    n_anchors: int
    read: str = "hard"
    table_dropout: float = 0.0
    anchors: str = "pairs"  # "pairs" of inputs, "thresholds", or "mixed"
    mix: int = 0

    def __post_init__(self) -> None:
        check_int("mix", self.mix)
        if self.mix == 1:
            fail("mix", self.mix, "at least two sums, to compare with each other, or 0 for none")
        check_int("n_outputs", self.n_outputs, 2)
        check_int("n_detectors", self.n_detectors, 1)
        check_choice("anchors", self.anchors, COMPARISONS)
        self._check_table()


@dataclass(frozen=True)
class ProjectedLayer(_Layer):
    """`nn.ProjectedLUT` from all its inputs to `n_outputs`."""

    kind: ClassVar[str] = "projected"
    n_outputs: int
    heads: int = 8
    head_width: int = 48
    n_detectors: int = 64
    n_anchors: int = 8
    read: str = "confidence2"
    table_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("n_outputs", "head_width"):
            check_int(name, getattr(self, name), 2)
        for name in ("heads", "n_detectors"):
            check_int(name, getattr(self, name), 1)
        self._check_table()


Layer: TypeAlias = Projection2dLayer | LUTLayer | ProjectedLayer
LAYERS: dict[str, type[Layer]] = {each.kind: each for each in (Projection2dLayer, LUTLayer, ProjectedLayer)}


@dataclass(frozen=True)
class ClassifierConfig(ModelConfig):
    """A classifier: layers one after the other, then a read-out that scores `n_classes` classes.

    `layers` may be given as dicts, each with its `kind` ("projection2d", "lut" or "projected") and the fields of that layer. With
    readout="none" the last layer outputs the scores itself. With that or "lut", and neither a "projected" layer nor a mix, the
    network is nothing but tables.
    """

    input_shape: tuple[int, ...] = (28, 28)  # (features,), (height, width) or (channels, height, width)
    n_classes: int = 10
    layers: tuple[Layer, ...] = ()
    norm: str = "none"  # "rms" | "layer" | "none", between layers and before the read-out
    readout: str = "linear"  # "linear" | "lut" | "none"
    readout_detectors: int = 64
    readout_anchors: int = 6
    readout_read: str = "hard"

    gradient: str = "dense"  # of all tables
    sums: str = "float"
    int_rescaler: float = 1.0
    initial_noise: float = 1e-3  # tables start uniform in ± this
    seed: int | None = None  # None: torch's global generator

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shape", sizes("input_shape", self.input_shape, (1, 2, 3)))
        check_int("n_classes", self.n_classes, 2)
        if not isinstance(self.layers, tuple | list):
            fail("layers", self.layers, "a list of layers")
        object.__setattr__(self, "layers", tuple(_layer(at, layer) for at, layer in enumerate(self.layers)))
        check_choice("norm", self.norm, NORMS)
        check_choice("readout", self.readout, READOUTS)
        check_int("readout_detectors", self.readout_detectors, 1)
        check_int("readout_anchors", self.readout_anchors, 1, MAX_ANCHORS)
        check_choice("readout_read", self.readout_read, READS)
        check_choice("gradient", self.gradient, GRADIENTS)
        Sums(self.sums, self.int_rescaler).check()
        check_number("initial_noise", self.initial_noise, 0.0)
        if self.seed is not None:
            check_int("seed", self.seed, 0, 2**63 - 1)
        self._check_stack()

    def _check_stack(self) -> None:
        for at, (layer, shape) in enumerate(zip(self.layers, self.shapes, strict=False)):
            if isinstance(layer, Projection2dLayer) and len(shape) == 1:
                before = "input_shape" if at == 0 else f"what layer {at - 1} puts out"
                fail(before, list(shape), f"an image, (height, width) or (channels, height, width), for layer {at}")
            if isinstance(layer, ProjectedLayer) and self.sums == "fixed":
                raise ArgumentError(
                    f'sums is "fixed" and layer {at} "projected", whose projections are float: expected other sums'
                )
            if isinstance(layer, LUTLayer) and layer.mix and self.sums == "fixed":
                raise ArgumentError(f'sums is "fixed" and layer {at} has mix = {layer.mix}, sums in float: expected other sums')
        if math.prod(self.shapes[-1]) < 2:
            fail("the shape before the read-out", list(self.shapes[-1]), "at least two numbers")
        if self.readout == "none" and not (self.layers and math.prod(self.shapes[-1]) == self.n_classes):
            last = "what the last layer puts out" if self.layers else "the input"
            fail(
                last, list(self.shapes[-1]), f'{self.n_classes} numbers from a layer, one for each class, since readout is "none"'
            )

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the input and of the output of each layer."""
        outs = [layer.out_shape if isinstance(layer, Projection2dLayer) else (layer.n_outputs,) for layer in self.layers]
        return [self.input_shape, *outs]


def _layer(at: int, layer: object) -> Layer:
    """A layer, or the dict of one, which says its kind."""
    if isinstance(layer, Projection2dLayer | LUTLayer | ProjectedLayer):
        return layer
    if not isinstance(layer, Mapping):
        fail(f"layer {at}", layer, "a layer, or a table with its kind and fields")
    rest = dict(layer)
    kind = rest.pop("kind", None)
    check_choice(f"the kind of layer {at}", kind, tuple(LAYERS))
    try:
        return LAYERS[kind].from_dict(rest)
    except ArgumentError as error:
        raise ArgumentError(f"layer {at} ({kind}): {error}") from error
