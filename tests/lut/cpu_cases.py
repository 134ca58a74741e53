"""Layers and batches for the compiled CPU kernels, and the comparison with the reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.testing import assert_close

from lutetia.lut import growth, kernels
from lutetia.lut.connectivity.anchors import random_anchors
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.connectivity.synapses import Synapses

cpu, reference = kernels("cpu"), kernels("reference")

SHAPES = [  # inputs, outputs, detectors, anchor pairs
    (2, 1, 1, 1),
    (5, 3, 2, 2),
    (11, 13, 17, 3),
    (7, 31, 9, 5),
    (13, 10, 8, 7),
    (17, 5, 3, 12),
]
METAS = (SynapseMeta(), SynapseMeta(lr_scale=0.3, min_weight=-0.5, max_weight=0.7), SynapseMeta(lr_scale=2))


class Case(NamedTuple):
    """A layer, a batch and what `check_detectors` finds in it."""

    x: Tensor
    weight: Tensor
    anchors: Tensor
    grad: Tensor
    found: tuple[Tensor, Tensor, Tensor]

    @property
    def n_rows(self) -> int:
        return 1 << self.anchors.shape[1]

    @property
    def backward(self) -> tuple[Any, ...]:
        """The arguments of propagate_through_detectors_fc."""
        return self.grad, self.weight, *self.found, self.anchors, self.x.shape[1]


def make(batch: int, shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32, ties: bool = False) -> Case:
    """Random tensors; with ties x is made of a few small integers, so margins are often equal and often zero."""
    n_inputs, n_outputs, n_detectors, n_anchors = shape
    generator = torch.Generator().manual_seed(batch * 1000 + n_inputs)
    x = torch.randn(batch, n_inputs, generator=generator, dtype=torch.float64)
    x = (x * 2).round() if ties else x
    weight = torch.randn(n_detectors, 1 << n_anchors, n_outputs, generator=generator, dtype=torch.float64)
    grad = torch.randn(batch, n_outputs, generator=generator, dtype=torch.float64)
    anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed=3)
    x, weight, grad = x.to(dtype), weight.to(dtype), grad.to(dtype)
    return Case(x, weight, anchors, grad, reference.check_detectors(x, anchors))


def sparse(case: Case, layout: str, seed: int = 5) -> tuple[Synapses, Tensor]:
    """Synapses for the case in one of the layouts, and weights for them."""
    n_detectors, n_anchors, n_outputs = case.anchors.shape[0], case.anchors.shape[1], case.grad.shape[1]
    if "blocks" in layout:  # two groups of detectors, each with a run of outputs of its own
        half = n_outputs // 2
        edges = [(t, o) for t in range(n_detectors) for o in (range(half) if t % 2 else range(half, n_outputs))]
        metas = [t // 4 % len(METAS) if "rates" in layout else 0 for t, _ in edges]  # of a group, two and two detectors alike
        synapses = growth.from_edges(n_detectors, n_anchors, n_outputs, edges, metas, METAS if "rates" in layout else METAS[:1])
    else:
        shared = layout == "shared"
        synapses = growth.random(n_detectors, n_anchors, n_outputs, 0.4, shared=shared, metas=METAS, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return synapses, torch.randn(synapses.n_weights, generator=generator).to(case.weight.dtype)


def assert_near(actual: Tensor, expected: Tensor, sums: str = "float") -> None:
    """Equal in fixed sums; in float sums to rounding, relative to the largest value."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if sums == "fixed" or not expected.is_floating_point():
        assert torch.equal(actual, expected)
    else:
        rtol = 1e-10 if expected.dtype == torch.float64 else 1e-5
        assert_close(actual, expected, rtol=rtol, atol=rtol * float(expected.abs().max() if expected.numel() else 0))


def both(name: str, *args: Any, sums: str = "float", **options: Any) -> None:
    """Run a kernel of both backends and compare everything it returns."""
    actual = getattr(cpu, name)(*args, sums=sums, **options)
    expected = getattr(reference, name)(*args, sums=sums, **options)
    if isinstance(expected, Tensor):
        actual, expected = (actual,), (expected,)
    for a, e in zip(actual, expected, strict=True):
        assert_near(a, e, sums)
