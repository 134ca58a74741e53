"""Networks of lookup tables as stream graphs: they are tables already.

A LUT layer is comparisons of pairs of inputs, or of an input with a constant, an index made of the answers, a row of each
detector's table, and the sum of the rows. In hardware: equal comparisons once, one table per detector, sums of proven width.
Inputs become integers of n bits, a threshold the greatest integer whose value is not above it, and weights fixed point. The
result is the *integer model*, a model of its own. The report gives its accuracy next to the float model's.

Layers say what their tables are (`describe()`); of a whole model only `layers`, `norms` and `readout` are used, so any module
with the same attributes works.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia import flow
from lutetia._shared.losses import Loss
from lutetia.errors import ArgumentError, check_range, check_tensor, fail
from lutetia.precompute.front.detectors import Detectors, detector_nodes, detectors_of, in_shape_of, is_lut_layer, whole_bias
from lutetia.precompute.front.encoder import BitsChoice, CodeEncoder, Encoder, Range, choose_bits, encoder
from lutetia.precompute.front.translate import argmax_node
from lutetia.precompute.ir.graph import Builder, Graph
from lutetia.precompute.ir.stream import Argmax, Input, Register, StreamEdge, Sum
from lutetia.precompute.passes.dedupe import dedupe
from lutetia.precompute.tables.domains import NUMBERS, UInt, domain_for


@dataclass(frozen=True)
class Readout:
    """A linear layer: weight float64 [O, I], bias [O]."""

    weight: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True)
class Rescaled:
    """Each channel times a number, and all of them times something positive: the effect of an RMS norm on a comparison."""

    weight: np.ndarray


class LUTNetwork:
    """The integer model of a network of lookup tables: its graph, and how its inputs are quantised."""

    def __init__(self, graph: Graph, model: nn.Module, encoder: Encoder | CodeEncoder) -> None:
        self.graph, self.model, self.encoder = graph, model, encoder

    def __repr__(self) -> str:
        return f"<LUTNetwork of a {type(self.model).__name__}, {self.bits} bits per input: {self.graph}>"

    @property
    def bits(self) -> int:
        """Bits of each input."""
        return self.encoder.bits

    def quantise(self, x: Tensor) -> Tensor:
        """Inputs of the float model -> whole numbers: x [batch, ...], floats, or uint8 as 0 to 1 -> int64 [batch, n_inputs]."""
        return self.encoder(x)

    def __call__(self, x: Tensor) -> Tensor:
        """The classes (or sums, without an argmax) that the integer model gives: x [batch, ...] -> int64 [batch, n]."""
        return self.graph(self.quantise(x))

    def classes(self, x: Tensor) -> Tensor:
        """x [batch, ...] -> class numbers [batch]."""
        y = self(x)
        return y[:, 0] if y.shape[1] == 1 else y.argmax(1)

    @torch.no_grad()
    def report(self, x: Tensor, labels: Tensor, batch: int = 1024, query: Tensor | None = None) -> dict[str, float]:
        """The accuracy of the float model and of the integer model, and how often they agree: labels [batch].

        For a network that ends in one sum, their root mean squared errors, or what the loss of the model is measured by; labels
        are then numbers. That of a ranking is NDCG@10, by the `query` of each row [batch].
        """
        if not isinstance(self.graph.nodes[self.graph.output], Argmax) and self.graph.output_edge.channels == 1:
            check_tensor("labels", labels, [len(x)])
            return self._errors(x, labels, batch, query)
        check_tensor("labels", labels, [len(x)], [each for each in NUMBERS if not each.is_floating_point])
        float_classes = self._scores(x, batch).argmax(1)
        classes = self.classes(x)
        return {
            "samples": float(len(x)),
            "float_accuracy": float((float_classes == labels).double().mean()),
            "integer_accuracy": float((classes == labels).double().mean()),
            "agreement": float((classes == float_classes).double().mean()),
        }

    def _scores(self, x: Tensor, batch: int) -> Tensor:
        """Scores of the float model; codes are made from the inputs in full precision, so that rounding cannot cross an edge."""
        return scores(self.model, x, batch, torch.float64 if isinstance(self.encoder, CodeEncoder) else None)

    def _errors(self, x: Tensor, numbers: Tensor, batch: int, query: Tensor | None) -> dict[str, float]:
        own = getattr(self.model, "loss", None)
        loss = own if isinstance(own, Loss) else Loss()
        answers = {
            f"float_{loss.key}": self._scores(x, batch)[:, 0].double(),
            f"integer_{loss.key}": self(x)[:, 0].double() * self.graph.output_edge.scale[0],
        }
        wanted, queries = numbers.double().numpy(), None if query is None else query.numpy()
        errors = {name: loss.measure(loss.numbers(each.numpy()), wanted, query=queries) for name, each in answers.items()}
        return {"samples": float(len(x)), **errors}


@torch.no_grad()
def scores(model: nn.Module, x: Tensor, batch: int = 1024, dtype: torch.dtype | None = None) -> Tensor:
    """The class scores of the float model, in eval mode: x [n, ...], in `dtype` or that of the weights -> [n, n_classes].

    A bare LUT layer is given flat inputs.
    """
    was_training, first = model.training, next(model.parameters())
    dtype = dtype or first.dtype
    model.eval()
    flat = is_lut_layer(model) and len(in_shape_of(model)) == 1
    parts = []
    for part in x.split(batch):
        part = part.to(first.device, dtype) / 255 if part.dtype == torch.uint8 else part.to(first.device, dtype)
        parts.append(model(part.flatten(1) if flat else part).flatten(1).cpu())
    model.train(was_training)
    return torch.cat(parts)


def fit_bits(model: nn.Module, x: Tensor, labels: Tensor, low: Range = 0.0, high: Range = 1.0) -> BitsChoice:
    """The fewest bits per input at which the model loses at most 0.2 points of accuracy: x [n, ...], labels [n]."""
    stages = _folded(list(_stages(model)))
    affine = True if isinstance(stages[0], Readout) else None
    n_inputs = _n_inputs(model, stages[0])
    x = x.double() / 255 if x.dtype == torch.uint8 else x.double()
    return choose_bits(
        lambda values: scores(model, values).argmax(1), lambda bits: encoder(bits, low, high, n_inputs, affine=affine), x, labels
    )


def lut_network(
    model: nn.Module, *, bits: int = 8, weight_bits: int = 8, low: Range = 0.0, high: Range = 1.0, argmax: bool = True
) -> LUTNetwork:
    """The integer model of a LUT layer, a LUT projection, a classifier of them, or a Sequential of these.

    Inputs from `low` to `high`, a number each or one per input, become integers of `bits` bits: see `encoder`. Weights are
    rounded to `weight_bits` bits. Sums have the width that they provably need. A classifier ends in an `argmax`.
    Reads other than "hard" are not tables and are refused.
    """
    check_range("bits", bits, 1, 16)
    check_range("weight_bits", weight_bits, 2, 24)
    if not isinstance(argmax, bool):
        fail("argmax", argmax, "True or False")
    stages = _folded(list(_stages(model)))
    if not stages:
        fail("model", model, "a LUT layer, a LUTProjection2d, a LUTClassifier, or a Sequential of these")
    if argmax:
        stages[-1] = _against_first(stages[-1])
    else:
        stages[-1] = _about_middle(stages[-1])
    first = stages[0]
    n_inputs = _n_inputs(model, first)
    coded = encoder(bits, low, high, n_inputs, affine=True if isinstance(first, Readout) else None)
    if isinstance(first, Readout):  # an input of 0 means `low`, which affects sums but not comparisons
        first = stages[0] = Readout(first.weight, first.bias + float(coded.low.min()) * first.weight.sum(1))
    with flow.step("lut_network", part="precompute", bits=bits, weight_bits=weight_bits, layers=len(stages)) as step:
        builder = Builder()
        node = builder.add(Input((), StreamEdge((UInt(bits),) * n_inputs, scale=(coded.step,) * n_inputs)))
        values: np.ndarray | None = coded.values()  # what the numbers stand for; after a layer, multiples of a scale
        for number, stage in enumerate(stages):
            name = f"layer {number}"
            if isinstance(stage, Detectors):
                node = detector_nodes(builder, node, stage, _scale(stage.weight, weight_bits, stage.offset), values, name)
            else:
                assert isinstance(stage, Readout)
                node = _readout(builder, node, stage, weight_bits, name)
            values = None
        if argmax:
            node = argmax_node(builder, node)
        graph = dedupe(Graph(builder.nodes, node))
        step.note(tables=graph.n_tables, lookups=graph.n_lookups)
    return LUTNetwork(graph, model, coded)


# ---- what the model is made of ---------------------------------------------------------------------------------------


def _stages(model: Any) -> Iterable[Detectors | Readout | Rescaled]:
    if isinstance(model, nn.Identity | nn.Dropout | nn.Flatten):
        return
    if isinstance(model, nn.Sequential):
        for child in model:
            yield from _stages(child)
    elif all(isinstance(getattr(model, name, None), nn.Module) for name in ("compress", "tables", "decompress")):
        for name in ("compress", "tables", "decompress"):
            yield from _stages(getattr(model, name))
    elif is_lut_layer(model):
        yield detectors_of(model.describe())
    elif isinstance(getattr(model, "layers", None), nn.ModuleList) and isinstance(getattr(model, "readout", None), nn.Module):
        norms = list(getattr(model, "norms", [])) or [nn.Identity()] * len(model.layers)
        for layer, norm in zip(model.layers, norms, strict=True):
            yield from _stages(layer)
            yield from _stages(norm)
        yield from _stages(model.readout)
    elif isinstance(model, nn.Linear):
        bias = np.zeros(model.out_features) if model.bias is None else _array(model.bias)
        yield Readout(_array(model.weight), bias)
    elif isinstance(model, nn.RMSNorm):
        yield Rescaled(np.ones(model.normalized_shape) if model.weight is None else _array(model.weight))
    else:
        raise ArgumentError(
            f"{type(model).__name__} has no integer form, expected LUT layers, linear ones or RMS norms; precompute.trace takes "
            "convolutions, and modules with a forward of their own"
        )


def _array(values: Tensor) -> np.ndarray:
    return values.detach().cpu().double().numpy()


def _n_inputs(model: Any, first: object) -> int:
    """The inputs of the first layer, which its anchors alone do not determine."""
    if isinstance(first, Readout):
        return int(first.weight.shape[1])
    return math.prod(in_shape_of(next(module for module in model.modules() if is_lut_layer(module))))


def _folded(stages: list[Any]) -> list[Detectors | Readout]:
    """Fold RMS norms into the weights before them: a positive factor changes neither comparisons nor the greatest score."""
    made: list[Any] = []
    for number, stage in enumerate(stages):
        if not isinstance(stage, Rescaled):
            made.append(stage)
            continue
        for following in stages[number + 1 :]:
            if isinstance(following, Detectors):
                if following.thresholds is not None:
                    raise ArgumentError("thresholds after an RMS norm depend on the norm: train with norm='none'")
                break  # from here on only comparisons use it
            if isinstance(following, Readout) and following.bias.any():
                raise ArgumentError("a linear layer with a bias after an RMS norm depends on the norm: train with norm='none'")
        if not made:
            raise ArgumentError(
                "a norm in front of the first layer is not part of the integer model: normalise the inputs yourself"
            )
        before = made[-1]
        if isinstance(before, Detectors):
            made[-1] = replace(before, weight=before.weight * stage.weight)
        else:
            made[-1] = Readout(before.weight * stage.weight[:, None], before.bias * stage.weight)
    return made


def _against_first(stage: Detectors | Readout) -> Detectors | Readout:
    """Two classes' scores minus those of the first: the greater is the same, and only one sum is left to build."""
    if isinstance(stage, Detectors):
        return replace(stage, weight=stage.weight - stage.weight[..., :1]) if stage.weight.shape[2] == 2 else stage
    if len(stage.bias) != 2:
        return stage
    return Readout(stage.weight - stage.weight[:1], stage.bias - stage.bias[:1])


def _about_middle(stage: Detectors | Readout) -> Detectors | Readout:
    """The tables of one number less the middle of each, which is added once at the end: a pressure of 101,325 ± 300 then spends
    its bits on the 300."""
    if isinstance(stage, Readout) or stage.weight.shape[2] != 1:
        return stage
    middle = (stage.weight.max(1, keepdims=True) + stage.weight.min(1, keepdims=True)) / 2
    return replace(stage, weight=stage.weight - middle, offset=middle.sum((0, 1)))


# ---- the nodes -------------------------------------------------------------------------------------------------------


def _scale(weight: np.ndarray, weight_bits: int, offset: np.ndarray | None = None) -> float:
    """The step of weights that are rounded to so many bits; of an offset where all weights are 0."""
    top = np.abs(weight).max() or (0.0 if offset is None else np.abs(offset).max())
    return float(top) / (2 ** (weight_bits - 1) - 1) if top else 1.0


def _readout(builder: Builder, source: int, stage: Readout, weight_bits: int, name: str) -> int:
    """A linear layer in fixed point."""
    before, scale = builder.edge(source), _scale(stage.weight, weight_bits)
    levels = np.rint(stage.weight / scale).astype(np.int64)
    bias = whole_bias(stage.bias, scale * before.scale[0])
    low, high = (np.array([getattr(domain, end) for domain in before.domains], dtype=np.int64) for end in ("low", "high"))
    least = bias + np.minimum(levels * low, levels * high).sum(1)
    most = bias + np.maximum(levels * low, levels * high).sum(1)
    ranges = [domain_for(int(a), int(b)) for a, b in zip(least, most, strict=True)]
    edge = before.carrying(ranges, [scale * before.scale[0]] * len(ranges))
    rows, columns = np.nonzero(levels)
    start = np.searchsorted(rows, np.arange(len(bias) + 1)).astype(np.int64)
    summed = builder.add(Sum((source,), edge, start, columns.astype(np.int64), levels[rows, columns], bias, name=name))
    return builder.add(Register((summed,), edge, name=name))
