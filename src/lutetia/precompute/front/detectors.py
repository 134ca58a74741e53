"""LUT layers as nodes of a stream graph: comparisons, tables, sums.

Equal comparisons are built once, each detector is one table, and sums have the width that they provably need. Layers say what
their tables are (`describe()`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lutetia.errors import ArgumentError
from lutetia.precompute.front.translate import as_numbers
from lutetia.precompute.ir.graph import Builder
from lutetia.precompute.ir.stream import Compare, Lookup, Register, StreamEdge, Sum, Table, TableData
from lutetia.precompute.tables.domains import Binary, Domain, Ternary, domain_for
from lutetia.precompute.tables.exact import lowest_power

MOST_BIAS = 2.0**48  # so that sums stay within 64 bits
MOST_LEVEL_BITS = 24  # of a weight on a grid


@dataclass(frozen=True)
class Detectors:
    """The tables of a layer: anchors [N_t, N_c, 2], weight float64 [N_t, 2**N_c, O], thresholds [n] as they are compared, and
    an offset [O] that is added to the sums."""

    anchors: np.ndarray
    weight: np.ndarray
    thresholds: np.ndarray | None = None
    offset: np.ndarray | None = None


def is_lut_layer(module: object) -> bool:
    """Whether a module says what its tables are: `describe()`, as the layers of `lutetia.nn` do."""
    return callable(getattr(module, "describe", None))


def in_shape_of(layer: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = layer.describe().in_shape
    return shape


def detectors_of(layer: Any) -> Detectors:
    """The detectors of a `lutetia.lut.LayerDescription`."""
    if layer.read.name != "hard":
        raise ArgumentError(f"read is {layer.read.name!r}, expected 'hard': only then is a detector a table")
    if layer.positions is not None:
        raise ArgumentError("an attention layer has no circuit here, expected LUT layers without positions")
    weight, expand = layer.weight.detach(), getattr(layer.connectivity, "expand", None)
    weight = weight if expand is None else expand(weight)  # with synapses the weight is flat
    thresholds = None
    if layer.thresholds is not None:
        compared = torch.float64 if weight.dtype == torch.float64 else torch.float32
        thresholds = layer.thresholds.detach().cpu().to(compared).numpy()
    return Detectors(layer.anchors.detach().cpu().numpy().astype(np.int64), weight.cpu().double().numpy(), thresholds)


def detector_nodes(builder: Builder, source: int, stage: Detectors, scale: float, values: np.ndarray | None, name: str) -> int:
    """Comparisons, tables, sums of weights as multiples of `scale`; `values` are what the numbers of the source stand for, None
    for multiples of its scale."""
    lanes = _comparisons(builder, source, stage, values, name)
    offset = np.zeros(stage.weight.shape[2]) if stage.offset is None else stage.offset
    levels = np.rint(stage.weight / scale).astype(np.int64)  # [N_t, R, O]
    lowest = levels.min(1)  # what every row of a detector has in common goes into the bias of the sum
    highest = (levels - lowest[:, None]).max(1)
    tables: list[TableData] = []
    targets: list[int] = []
    lookups, domains = [], []
    n_anchors = stage.anchors.shape[1]
    for detector in range(len(levels)):
        outputs = np.flatnonzero(highest[detector])
        if not len(outputs) and not tables and detector == len(levels) - 1:
            outputs = np.zeros(1, dtype=np.int64)  # all tables are constant: one stays, as a net has some
        if not len(outputs):
            continue
        own = [domain_for(0, int(highest[detector, output])) for output in outputs]
        contents = levels[detector][:, outputs] - lowest[detector, outputs]
        # Bit r of the index is pair r, so the last pair is the most significant address bit.
        inputs = tuple(detector * n_anchors + pair for pair in reversed(range(n_anchors)))
        channels = tuple(range(len(targets), len(targets) + len(outputs)))
        lookups.append(Lookup(len(tables), inputs, channels))
        tables.append(TableData(contents, tuple(domain.bits for domain in own)))
        domains += own
        targets += outputs.tolist()
    edge = builder.edge(source)
    rows_edge = edge.carrying(domains, [scale] * len(domains))
    rows = builder.add(Table((lanes,), rows_edge, tuple(tables), tuple(lookups), name=name))
    rows = builder.add(Register((rows,), rows_edge, name=name))
    return _sums(builder, rows, np.array(targets), lowest.sum(0) + whole_bias(offset, scale), domains, scale, name)


def _comparisons(builder: Builder, source: int, stage: Detectors, values: np.ndarray | None, name: str) -> int:
    """One lane for each anchor of each detector; `dedupe` merges equal ones."""
    left, right = stage.anchors.reshape(-1, 2).T
    before, constant = builder.edge(source), np.zeros(len(left), dtype=np.int64)
    is_constant = right >= before.channels
    if is_constant.any():
        assert stage.thresholds is not None
        numbers = _as_numbers(stage.thresholds, before, values)[right[is_constant] - before.channels]
        # Past the range of an input nothing changes, and equal comparisons are built once.
        ends = [(before.domains[channel].low - 1, before.domains[channel].high) for channel in left[is_constant]]
        constant[is_constant] = np.clip(numbers, *np.array(ends, dtype=np.int64).T)
    edge = before.carrying([Binary()] * len(left))
    return builder.add(Compare((source,), edge, left.copy(), np.where(is_constant, -1, right), constant, name=name))


def _as_numbers(thresholds: np.ndarray, edge: StreamEdge, values: np.ndarray | None) -> np.ndarray:
    """The greatest number whose value is not above each threshold: x > t where its number is greater. int64 [n].

    `values` of the numbers from 0 on are compared as the float model compares them.
    """
    if values is not None:
        return np.searchsorted(values.astype(thresholds.dtype), thresholds, side="right").astype(np.int64) - 1
    exact, unit = thresholds.astype(np.float64), edge.scale[0]
    numbers = np.clip(np.floor(exact / unit), -(2.0**62), 2.0**62)
    numbers += (numbers + 1) * unit <= exact  # the quotient is rounded, and so are the values that are compared
    numbers -= numbers * unit > exact
    return numbers.astype(np.int64)


def _sums(
    builder: Builder, source: int, targets: np.ndarray, bias: np.ndarray, domains: list[Domain], scale: float, name: str
) -> int:
    """One sum per output, of proven range."""
    order = np.argsort(targets, kind="stable")
    start = np.searchsorted(targets[order], np.arange(len(bias) + 1)).astype(np.int64)
    tops = np.array([domain.high for domain in domains], dtype=np.int64)[order]
    ranges = [
        domain_for(int(offset), int(offset + tops[start[output] : start[output + 1]].sum())) for output, offset in enumerate(bias)
    ]
    edge = builder.edge(source).carrying(ranges, [scale] * len(ranges))
    ones = np.ones(len(order), dtype=np.int64)
    summed = builder.add(Sum((source,), edge, start, order.astype(np.int64), ones, bias.astype(np.int64), name=name))
    return builder.add(Register((summed,), edge, name=name))


def whole_bias(bias: np.ndarray, unit: float) -> np.ndarray:
    """A bias in units of the sums, int64 [n]."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        numbers = np.rint(bias / unit)
    if not (np.abs(numbers) < MOST_BIAS).all():
        raise ArgumentError(f"the bias of a layer is up to {np.abs(bias).max():g}, expected at most 2**48 units of {unit:g}")
    return numbers.astype(np.int64)


def exact_tables(builder: Builder, source: int, layer: Any, name: str) -> int:
    """A LUT layer whose weights lie on a grid, after whole numbers of one scale: the nodes equal the layer in float64."""
    stage, shape = detectors_of(layer.describe()), in_shape_of(layer)
    edge = builder.edge(source)
    if edge.layout != "vector" or len(shape) != 1:
        raise ArgumentError(
            f"{name} reads {list(shape)} inputs, the layout is {edge.layout!r}, expected nn.LUT after a vector: flatten it first"
        )
    if edge.channels != shape[0]:
        raise ArgumentError(f"{name} reads {shape[0]} inputs and is given {edge.channels}")
    if len(set(edge.scale)) > 1:
        raise ArgumentError(f"{name} compares channels with the scales {sorted(set(edge.scale))}, expected one scale")
    if any(domain.step != 1 for domain in edge.domains):
        source = as_numbers(builder, source, Ternary())
    scale = 2.0 ** (lowest_power(stage.weight) or 0)
    if np.abs(stage.weight).max(initial=0) / scale >= 2**MOST_LEVEL_BITS:
        raise ArgumentError(f"the weights of {name} lie on no grid of integers, expected quantise_weights(layer, Int(6))")
    return detector_nodes(builder, source, stage, scale, None, name)
