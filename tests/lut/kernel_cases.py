"""Layers for the kernels of every backend, and all that a backend makes of one, to be compared with the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from lutetia.lut import Connectivity, Sequence, SynapseMeta, full, growth, kernels, random_anchors
from lutetia.lut.connectivity.anchors import Comparisons
from lutetia.lut.kernels.protocol import Coefficients, Into, Products, Read
from lutetia.lut.sums import Sums

SUMS = {"float": Sums(), "fixed": Sums("fixed", 0.5)}
CONNECTIVITIES = ("full", "general", "shared", "blocks")
METAS = (SynapseMeta(), SynapseMeta(lr_scale=0.3, min_weight=-0.5, max_weight=0.7), SynapseMeta(lr_scale=2))
RATE = 0.1
reference = kernels("reference").backend


def device_of(backend: str) -> str:
    """Where a backend computes here; Triton on the CPU is its interpreter."""
    return "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"


def connect(kind: str, n_detectors: int, bits: int, n_outputs: int) -> Connectivity:
    """Which detectors reach which outputs; `blocks`: two groups, each with a run of outputs, and a last detector with none."""
    if kind == "full":
        return full(n_detectors, 1 << bits, n_outputs, METAS[1])
    if kind == "blocks":
        half = -(-n_outputs // 2)
        runs = (range(half), range(half, n_outputs))
        edges = [(t, o) for t in range(max(1, n_detectors - 1)) for o in runs[t % 2]] or [(0, 0)]
        return growth.from_edges(n_detectors, bits, n_outputs, edges)
    return growth.random(n_detectors, bits, n_outputs, 0.4, shared=kind == "shared", metas=METAS, seed=5)


def draw_x(generator: torch.Generator, *shape: int) -> Tensor:
    """Small integers, and fractions added to the first half: ties and exact zeros are common."""
    x = torch.randint(-2, 3, shape, generator=generator).double()
    x[: shape[0] // 2] += torch.rand(shape, generator=generator, dtype=torch.float64)[: shape[0] // 2]
    return x


def moved(case: Layer | Sequences, device: str) -> dict[str, Any]:
    """The parts of a case that are somewhere, there."""
    return {name: value.to(device) for name, value in vars(case).items() if hasattr(value, "to")}


@dataclass(frozen=True)
class Layer:
    """One step of a layer: a batch, and dL/dy."""

    x: Tensor  # [B, I]
    anchors: Tensor
    connectivity: Connectivity
    weight: Tensor
    grad: Tensor  # [B, O]
    coefficients: str  # none (the hard read), one or two

    def to(self, device: str) -> Layer:
        return replace(self, **moved(self, device))

    def rows(self, indices: Tensor) -> Coefficients | None:
        """Coefficients of either sign, and alternatives that differ in the lowest bit."""
        if self.coefficients == "none":
            return None
        a, b = (torch.sin(torch.arange(indices.numel(), device=indices.device) * k).view(indices.shape) for k in (1.0, 2.0))
        a, b = (each.to(self.grad.dtype if self.grad.dtype == torch.float64 else torch.float32) for each in (a, b))
        return Coefficients(a) if self.coefficients == "one" else Coefficients(a, b, indices ^ 1)


def make_layer(
    shape: tuple[int, ...],
    kind: str = "full",
    coefficients: str = "none",
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
) -> Layer:
    """B, I, O, N_t, N_c; the dtypes of x and of the weight."""
    batch, n_inputs, n_outputs, n_detectors, n_anchors = shape
    generator = torch.Generator().manual_seed(sum(shape))
    x, connectivity = draw_x(generator, batch, n_inputs), connect(kind, n_detectors, n_anchors, n_outputs)
    weight = torch.randn(connectivity.weight_shape, generator=generator, dtype=torch.float64)
    grad = torch.randn(batch, n_outputs, generator=generator, dtype=torch.float64).to(torch.promote_types(*dtypes))
    anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed=1)
    return Layer(x.to(dtypes[0]), anchors, connectivity, weight.to(dtypes[1]), grad, coefficients)


def run_layer(backend: Any, layer: Layer, sums: Sums) -> dict[str, Any]:
    """Every primitive of a hard read, or of rows with coefficients."""
    x, anchors, weight, connectivity = layer.x, layer.anchors, layer.weight, layer.connectivity
    comparisons = Comparisons(anchors)
    detected = backend.detect(x, comparisons, True)
    indices, rows = detected.indices, layer.rows(detected.indices)
    results: dict[str, Any] = {"detected": detected, "indices": backend.detect(x, comparisons, False).indices}
    results["y"] = backend.fill_rows(weight, connectivity, indices, rows, sums)
    if rows is None:
        results["y and detected"] = backend.detect_and_fill(x, weight, comparisons, connectivity, sums, True)
        results["y alone"] = backend.detect_and_fill(x, weight, comparisons, connectivity, sums, False)
        results["dx"] = backend.propagate(layer.grad, weight, connectivity, detected, anchors, x.shape[1], sums)
    else:
        results["gains"] = backend.row_gains(layer.grad, weight, connectivity, (indices, rows.alternatives), sums)
    to_weights = (layer.grad, connectivity, indices, rows, sums)
    results["dW"] = backend.gather_rows(*to_weights, None)
    results["dW of rows that were read"] = backend.gather_compact(*to_weights)
    results["step"] = backend.gather_rows(*to_weights, Into(weight.clone(), RATE))
    return results


def run_read(backend: Any, layer: Layer, name: str, sums: Sums) -> dict[str, Any]:
    """Every primitive of a read with coefficients of its own."""
    logs = {"blend": (), "confidence": (0.4, -0.3), "confidence2": (0.4, -0.3, -0.2)}[name]
    dtype = torch.float64 if layer.x.dtype == torch.float64 else torch.float32
    read = Read(name, *(torch.tensor(log, dtype=dtype, device=layer.x.device) for log in logs))
    comparisons = Comparisons(layer.anchors)
    indices, rows = backend.read(layer.x, comparisons, read, sums)
    arguments = (layer.x, layer.weight, comparisons, layer.connectivity)
    gains = backend.row_gains(layer.grad, layer.weight, layer.connectivity, (indices, rows.alternatives), sums)
    return {
        "indices": indices,
        "coefficients": rows,
        "y": backend.read_and_fill(*arguments, read, sums),
        "slopes": backend.send_slopes(layer.x, comparisons, read, gains, sums, True),
        "slopes of the scalars": backend.send_slopes(layer.x, comparisons, read, gains, sums, False),
    }


# ---- sequences -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sequences:
    """A batch of sequences, the positions of a layer, and dL/dy."""

    x: Tensor  # [B, S, I]
    positions: Tensor  # [S-1, N_t, N_pe]
    anchors: Tensor
    connectivity: Connectivity
    weight: Tensor
    grad: Tensor  # [B, S, O]

    def to(self, device: str) -> Sequences:
        return replace(self, **moved(self, device))


def make_sequences(shape: tuple[int, ...], kind: str = "full", dtype: torch.dtype = torch.float32) -> Sequences:
    """B, S, I, O, N_t, N_c, N_pe."""
    batch, length, n_inputs, n_outputs, n_detectors, n_anchors, positional_dim = shape
    generator = torch.Generator().manual_seed(sum(shape))
    x = draw_x(generator, length, batch, n_inputs).transpose(0, 1).contiguous()
    positions = torch.randint(-2, 3, (length - 1, n_detectors, positional_dim), generator=generator) / 2
    connectivity = connect(kind, n_detectors, 2 * n_anchors + positional_dim, n_outputs)
    weight = torch.randn(connectivity.weight_shape, generator=generator, dtype=torch.float64)
    grad = torch.randn(batch, length, n_outputs, generator=generator, dtype=torch.float64)
    anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed=0)
    return Sequences(x.to(dtype), positions.to(dtype), anchors, connectivity, weight.to(dtype), grad.to(dtype))


def run_sequences(backend: Any, case: Sequences, algorithm: str, sums: Sums) -> dict[str, Any]:
    """Every primitive of a sequence, by pairs or by cells."""
    places = backend.detect_positions(case.positions, True)
    products = Products() if algorithm == "cells" else None
    detected = backend.detect(case.x, Comparisons(case.anchors), True)
    found = Sequence(detected, places, case.anchors.shape[1], case.positions.shape[2], products)
    to_inputs = (case.grad, case.weight, case.connectivity, found, case.anchors, case.x.shape[2], sums)
    to_weights = (case.grad, case.connectivity, found, sums)
    return {
        "positions": places,
        "indices of positions": backend.detect_positions(case.positions, False).indices,
        "y": backend.fill_sequence(case.weight, case.connectivity, found, sums),
        "dx and dpositions": backend.propagate_sequence(*to_inputs),
        "dW": backend.gather_sequence(*to_weights, None),
        "step": backend.gather_sequence(*to_weights, Into(case.weight.clone(), RATE)),
    }


# ---- the comparison --------------------------------------------------------------------------------------------------


def compare(actual: Any, expected: Any, exact: bool = False, name: str = "") -> None:
    """Equal where the sums are exact, and integers always; else to rounding, relative to the largest value."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            compare(actual[key], value, exact, key)
    elif isinstance(expected, tuple):
        for one, other in zip(actual, expected, strict=True):
            compare(one, other, exact, name)
    elif expected is None:
        assert actual is None, name
    else:
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), name
        actual = actual.to(expected.device)
        if exact or not expected.is_floating_point():
            assert torch.equal(actual, expected), name
        else:
            rough = {torch.float64: 1e-10, torch.float32: 1e-5}.get(expected.dtype, 1e-2)
            largest = max(1.0, float(expected[expected.isfinite()].abs().max()) if expected.isfinite().any() else 0.0)
            assert_close(actual, expected, rtol=rough, atol=rough * largest, msg=lambda text: f"{name}: {text}")


def check_layer(backend: str, layer: Layer, sums: str = "float", read: str = "") -> None:
    """A backend against the reference."""
    run = (lambda *call: run_read(*call[:2], read, call[2])) if read else run_layer
    mine = run(kernels(backend).backend, layer.to(device_of(backend)), SUMS[sums])
    compare(mine, run(reference, layer, SUMS[sums]), SUMS[sums].exact)


def check_sequences(backend: str, case: Sequences, algorithm: str, sums: str = "float") -> None:
    """A backend, by pairs or by cells, against the pairs of the reference."""
    mine = run_sequences(kernels(backend).backend, case.to(device_of(backend)), algorithm, SUMS[sums])
    compare(mine, run_sequences(reference, case, "pairs", SUMS[sums]), SUMS[sums].exact)
