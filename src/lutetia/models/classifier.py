"""`LUTClassifier`: pixels or features to class scores through stacked tables, and `DenseClassifier`, its twin that multiplies."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lutetia._shared.dtypes import FLOATS
from lutetia.errors import ArgumentError, check_tensor
from lutetia.lut import SynapseMeta
from lutetia.models.building import Model, linear, norm_of
from lutetia.models.classifier_config import ClassifierConfig, Layer, LUTLayer, ProjectedLayer
from lutetia.models.sizes import ModelSize, classifier_size, dense_classifier_size
from lutetia.nn import LUT, LUTProjection2d, ProjectedLUT

BRIGHTEST = 255  # uint8 pixels become numbers from 0 to 1


class LUTClassifier(Model[ClassifierConfig]):
    """x [B, *input_shape] -> class scores [B, n_classes]; uint8 pixels are read as numbers from 0 to 1.

    Made from a `ClassifierConfig`, from its fields as keywords, or from both (the keywords then replace fields).
    """

    kind: ClassVar[str] = "classifier"
    config_class: ClassVar[type[ClassifierConfig]] = ClassifierConfig

    def __init__(self, config: ClassifierConfig | None = None, **fields: Any) -> None:
        super().__init__(config, **fields)  # first, since it names a field that is misspelt
        if config is None and "layers" not in fields and fields.get("readout", "linear") == "linear":
            raise ArgumentError(
                f"a {type(self).__name__} was given no layers, expected some, such as layers=[LUTLayer(n_outputs=64, "
                'n_detectors=256, n_anchors=5)], or readout="lut"; layers=[] is a linear model'
            )

    def _build(self, config: ClassifierConfig) -> None:
        stack = zip(config.layers, config.shapes, strict=False)
        self.layers = nn.ModuleList(_table_layer(config, layer, shape) for layer, shape in stack)
        n_features = math.prod(config.shapes[-1])
        # What the input is like is its owner's affair: norms stand between layers and before the read-out.
        self.norms = nn.ModuleList(norm_of(config.norm, math.prod(shape)) for shape in config.shapes[1:])
        self.readout: nn.Module
        if config.readout == "linear":
            self.readout = linear(n_features, config.n_classes)
        elif config.readout == "none":
            self.readout = nn.Identity()
        else:
            sizes = (n_features, config.n_classes, config.readout_detectors, config.readout_anchors)
            self.readout = LUT(*sizes, read=config.readout_read, **_options(config))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, *input_shape], floats or uint8 -> class scores [B, n_classes]."""
        check_tensor("x", x, ["B", *self.config.input_shape], (*FLOATS, torch.uint8))
        if x.dtype == torch.uint8:
            x = x.to(next(self.parameters()).dtype) / BRIGHTEST
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = layer(x if isinstance(layer, LUTProjection2d) else _as_in(layer, x.flatten(1)))
            if not isinstance(norm, nn.Identity):
                x = norm(_as_in(norm, x.flatten(1))).view(x.shape)
        return self.readout(_as_in(self.readout, x.flatten(1)))

    @classmethod
    def least_size(cls, config: ClassifierConfig) -> ModelSize:
        return classifier_size(config)

    @torch.no_grad()
    def set_thresholds_from(self, x: Tensor) -> None:
        """Set the thresholds of each layer that has any to quantiles of its inputs: x [B, *input_shape]."""
        layers = [module for module in self.modules() if isinstance(module, LUT) and module.thresholds is not None]
        hooks = [layer.register_forward_pre_hook(lambda layer, given: layer.set_thresholds_from(given[0])) for layer in layers]
        try:
            if layers:
                self(x)
        finally:
            for hook in hooks:
                hook.remove()

    def dense_twin(self) -> DenseClassifier:
        """A new model of the same config, with ordinary linear layers, for comparison."""
        parameter = next(self.parameters())
        return DenseClassifier(self.config, device=parameter.device, dtype=parameter.dtype)


def _table_layer(config: ClassifierConfig, layer: Layer, shape: tuple[int, ...]) -> nn.Module:
    """The module of a layer whose input has this shape."""
    read: dict[str, Any] = {"read": layer.read, "table_dropout": layer.table_dropout}
    if isinstance(layer, LUTLayer):
        read["anchors"], n_inputs = layer.anchors, math.prod(shape)
        tables = LUT(layer.mix or n_inputs, layer.n_outputs, layer.n_detectors, layer.n_anchors, **read, **_options(config))
        return nn.Sequential(linear(n_inputs, layer.mix, bias=False, std=n_inputs**-0.5), tables) if layer.mix else tables
    if isinstance(layer, ProjectedLayer):
        options: dict[str, Any] = {name: getattr(layer, name) for name in ("heads", "head_width", "n_detectors", "n_anchors")}
        return ProjectedLUT(math.prod(shape), layer.n_outputs, **options, **read, gradient=config.gradient)
    return LUTProjection2d(
        shape,
        layer.out_shape,
        receptive_field=layer.receptive_field,
        projection=layer.projection,
        n_anchors=layer.n_anchors,
        detectors_per_position=layer.detectors_per_position,
        grid=layer.grid,
        stride=layer.stride,
        placement=layer.placement,
        keep=layer.keep,
        **read,
        **_options(config),
    )


def _options(config: ClassifierConfig) -> dict[str, Any]:
    """What all tables of a model have in common."""
    meta = SynapseMeta(initial_noise=config.initial_noise)
    return {"meta": meta, "gradient": config.gradient, "sums": config.sums, "int_rescaler": config.int_rescaler}


class DenseClassifier(LUTClassifier):
    """The twin of a `LUTClassifier` of the same config: a linear layer and a ReLU between each two of its shapes, whatever the
    windows, and a linear read-out (with readout="none" the last layer, without its ReLU). Fields about tables have no effect."""

    kind: ClassVar[str] = "dense_classifier"

    def _build(self, config: ClassifierConfig) -> None:
        counts = [math.prod(shape) for shape in config.shapes]
        self.layers = nn.ModuleList(nn.Sequential(_he(n, m), nn.ReLU()) for n, m in pairwise(counts))
        self.norms = nn.ModuleList(norm_of(config.norm, count) for count in counts[1:])
        self.readout = linear(counts[-1], config.n_classes)
        if config.readout == "none":
            self.layers[-1], self.readout = linear(counts[-2], counts[-1]), nn.Identity()

    @classmethod
    def least_size(cls, config: ClassifierConfig) -> ModelSize:
        return dense_classifier_size(config)


def _as_in(module: nn.Module, x: Tensor) -> Tensor:
    """x in the dtype of torch's own layers, which take no other; tables take any."""
    own = module[0] if isinstance(module, nn.Sequential) else module.compress if isinstance(module, ProjectedLUT) else module
    if not isinstance(own, nn.Linear | nn.LayerNorm | nn.RMSNorm) or torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(own.weight.dtype)


def _he(n_inputs: int, n_outputs: int) -> nn.Linear:
    """A linear layer before a ReLU, whose outputs are as large as its inputs."""
    return linear(n_inputs, n_outputs, std=(2 / n_inputs) ** 0.5)
