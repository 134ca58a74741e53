"""The kernels of every backend against the reference, over connectivity, coefficients and sums; the reference against autograd.

The compiled kernels of the CPU, and those of Triton: on a GPU where there is one, under Triton's interpreter otherwise, which
takes about a millisecond per program, so its cases are small. What only one backend can get wrong is in test_cpu*.py and
test_triton*.py; outputs and gradients through autograd are in test_functional.py, test_reads.py and test_attention.py.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from lut.kernel_cases import (
    CONNECTIVITIES,
    METAS,
    RATE,
    SUMS,
    check_layer,
    check_sequences,
    compare,
    device_of,
    make_layer,
    make_sequences,
    run_layer,
    run_sequences,
)  # fmt: skip
from lut.oracle import SEQUENCES, sequence_blend
from lutetia.lut import kernels
from lutetia.lut.connectivity.anchors import Comparisons
from lutetia.lut.kernels.backend import PRIMITIVES, Backend
from tools import require_module

BACKENDS = ["cpu", "triton"]
COEFFICIENTS = ("none", "one", "two")
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
# B, I, O, N_t, N_c: empty, the smallest, primes, rows of more than 64 weights, which Triton adds up sorted;
# TINY is for the interpreter.
SMALL = [(0, 5, 3, 2, 2), (1, 2, 1, 1, 1), (7, 13, 5, 3, 4), (5, 11, 67, 3, 2)]
TINY = [(0, 5, 3, 2, 2), (1, 2, 1, 1, 1), (3, 5, 67, 2, 1), (4, 7, 5, 3, 3)]
LARGE = [(0, 11, 13, 17, 3), (64, 7, 31, 9, 5), (71, 13, 10, 8, 7), (7, 17, 5, 3, 12)]
# B, S, I, O, N_t, N_c, N_pe
SHORT = [(1, 1, 3, 2, 1, 1, 0), (2, 3, 4, 3, 2, 1, 1), (2, 5, 5, 3, 2, 2, 2), (1, 7, 7, 5, 3, 2, 0), (1, 18, 4, 2, 1, 1, 4)]
LONG = [
    (0, 17, 7, 13, 5, 3, 2), (3, 17, 7, 13, 5, 3, 2), (1, 64, 11, 7, 3, 4, 3), (3, 17, 6, 5, 2, 5, 4), (1, 129, 5, 11, 2, 2, 0),
]  # fmt: skip


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    require_module({"cpu": "numba", "triton": "triton"}[request.param])
    return request.param


def interpreted(backend: str) -> bool:
    return backend == "triton" and not torch.cuda.is_available()


def shapes_for(backend: str, all_of_them: bool) -> list[tuple[int, ...]]:
    """All of them, where the kernels are compiled; in the interpreter only the last of a few, where one is enough."""
    if interpreted(backend):
        return TINY if all_of_them else TINY[-1:]
    return SMALL + LARGE


# ---- one step --------------------------------------------------------------------------------------------------------


# What no layer runs: the steps of counting cells, one by one.
OF_THE_REFERENCE = (("triton", "fill_firings"), ("cpu", "fill_firings"), ("cpu", "count_firings"))


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_every_primitive_takes_what_the_protocol_says(backend: str) -> None:
    require_module("triton" if backend == "triton" else "numba")
    for name in PRIMITIVES:
        primitive = getattr(kernels(backend).backend, name)
        expected, actual = (
            [each.rstrip("_") for each in inspect.signature(function).parameters if each != "self"]
            for function in (getattr(Backend, name), primitive)
        )
        assert actual == expected, name
        own = primitive.__module__.split(".")[3] == backend or (backend, name) in OF_THE_REFERENCE
        two_in_one = name in ("detect_and_fill", "read_and_fill") and backend != "triton"  # where they need not be fused
        assert own or two_in_one, f"{name} is not {backend}'s own"


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("coefficients", COEFFICIENTS)
@pytest.mark.parametrize("kind", CONNECTIVITIES)
def test_rows(backend: str, kind: str, coefficients: str, sums: str) -> None:
    for shape in shapes_for(backend, sums == "float" and (kind == "full" or coefficients == "none")):
        check_layer(backend, make_layer(shape, kind, coefficients), sums)


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("kind", ["full", "general"])
@pytest.mark.parametrize("read", ["blend", "confidence", "confidence2"])
def test_reads(backend: str, read: str, kind: str, sums: str) -> None:
    for shape in shapes_for(backend, all_of_them=False):
        check_layer(backend, make_layer(shape, kind, "two"), sums, read)


@pytest.mark.parametrize("n_anchors", range(1, 13))
def test_every_depth_of_table(backend: str, n_anchors: int) -> None:
    check_layer(backend, make_layer((3, 31, 5, 2, n_anchors)))


# The dtypes of x and of the weight; sums are float64 where either is.
DTYPES = [(F64, F64, "float"), (BF16, BF16, "float"), (F32, F16, "float")]


def slow_on_a_cpu(*cases: tuple[object, ...]) -> list[Any]:
    """Cases of both backends. On a CPU numba compiles for five seconds for each, and test_rows and DTYPES have their parts."""
    return [pytest.param(name, *case, marks=pytest.mark.slow if name == "cpu" else ()) for name in BACKENDS for case in cases]


@pytest.mark.parametrize(
    ("backend", "of_x", "of_weight", "sums"),
    [*((name, *case) for name in BACKENDS for case in DTYPES), *slow_on_a_cpu((F64, F32, "float"), (F64, F64, "fixed"))],
    ids=str,
    indirect=["backend"],
)
def test_dtypes(backend: str, of_x: torch.dtype, of_weight: torch.dtype, sums: str) -> None:
    check_layer(backend, make_layer((4, 7, 5, 3, 3), dtypes=(of_x, of_weight)), sums)


@pytest.mark.parametrize(
    ("backend", "kind", "coefficients"), slow_on_a_cpu(("general", "none"), ("shared", "two")), indirect=["backend"]
)
def test_float64_where_synapses_are_missing(backend: str, kind: str, coefficients: str) -> None:
    check_layer(backend, make_layer((4, 7, 5, 3, 3), kind, coefficients, (F64, F64)))


def test_leading_dimensions(backend: str) -> None:
    layer = make_layer((6, 13, 5, 3, 4))
    x, anchors, device = layer.x.view(2, 3, 13), layer.anchors, device_of(backend)
    mine = kernels(backend).backend.detect(x.to(device), Comparisons(anchors.to(device)), True)
    compare(mine, kernels("reference").backend.detect(x, Comparisons(anchors), True))


# ---- sequences -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(("algorithm", "sums"), [("pairs", "float"), ("pairs", "fixed"), ("cells", "float"), ("cells", "fixed")])
def test_sequences(backend: str, algorithm: str, sums: str) -> None:
    shapes = SHORT + LONG
    if interpreted(backend):
        shapes = SHORT if sums == "float" else SHORT[1:2]
    for shape in shapes:
        check_sequences(backend, make_sequences(shape), algorithm, sums)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("kind", CONNECTIVITIES[1:])
def test_sequences_where_synapses_are_missing(backend: str, kind: str, sums: str) -> None:
    check_sequences(backend, make_sequences(SHORT[1] if interpreted(backend) else LONG[1], kind), "pairs", sums)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("algorithm", ["pairs", "cells"])
def test_sequences_in_float64(backend: str, algorithm: str) -> None:
    check_sequences(backend, make_sequences(SHORT[1] if interpreted(backend) else SHORT[2], dtype=F64), algorithm)


@pytest.mark.parametrize("shape", SEQUENCES)
def test_sequences_of_the_reference_against_a_plain_loop(shape: tuple[int, ...]) -> None:
    case = make_sequences(shape, dtype=F64)
    leaves = [tensor.clone().requires_grad_() for tensor in (case.x, case.positions, case.weight)]
    hard, smooth = sequence_blend(*leaves[:2], case.anchors, leaves[2])
    dx, dpositions, dweight = torch.autograd.grad(smooth, leaves, case.grad, allow_unused=True, materialize_grads=True)
    results = run_sequences(kernels("reference").backend, case, "pairs", SUMS["float"])
    compare(results["y"], hard.detach())
    assert not results["y"][:, 0].any()
    compare(results["dx and dpositions"], (dx, dpositions))
    compare(results["dW"], METAS[1].lr_scale * dweight)


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("shape", [*SEQUENCES, (0, 5, 4, 3, 2, 2, 1)])
def test_sequences_of_the_reference_by_cells(shape: tuple[int, ...], sums: str) -> None:
    case, (batch, length, _, _, n_detectors, n_anchors, n_pe) = make_sequences(shape, dtype=F64), shape
    check_sequences("reference", case, "cells", sums)
    named = kernels("reference")
    indices, places = named.check_detectors_eval(case.x, case.anchors), named.check_positions_eval(case.positions)
    stat = named.fill_firing_stat(indices, places, n_pe, n_anchors)
    assert stat.shape == (batch, length, n_detectors, 1 << (n_anchors + n_pe))
    assert torch.equal(stat.sum(-1), torch.arange(length).view(1, -1, 1).expand(indices.shape))  # j pairs for each j
    firings = named.densify_firing_stat(stat, indices, n_anchors)
    y = named.fill_outputs_by_firings(case.weight, firings, batch, length, sums=sums)
    compare(y, named.fill_outputs_seq_fc(case.weight, indices, places, n_pe, sums=sums), SUMS[sums].exact)


def test_firing_statistics(backend: str) -> None:
    for shape in SHORT:
        results = []
        for name in ("reference", backend):
            case, named = make_sequences(shape).to(device_of(name)), kernels(name)
            indices, places = named.check_detectors_eval(case.x, case.anchors), named.check_positions_eval(case.positions)
            results.append(named.fill_firing_stat(indices, places, shape[6], shape[5]))
        compare(results[1], results[0])


# ---- what the comparison itself must see -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONNECTIVITIES)
def test_a_step_and_the_compact_gradient_are_those_of_the_dense_one(kind: str) -> None:
    """Of the reference, to which the others are held."""
    layer = make_layer((7, 13, 5, 3, 4), kind, "two", (F64, F64))
    results = run_layer(kernels("reference").backend, layer, SUMS["float"])
    torch.testing.assert_close(results["step"], layer.weight - RATE * results["dW"])
    numbers, values = results["dW of rows that were read"]
    dense = layer.connectivity.expand(results["dW"]).flatten(0, 1)
    assert set(dense.any(1).nonzero().flatten().tolist()) <= set(numbers.tolist())
    assert float(values.abs().sum()) == pytest.approx(float(results["dW"].abs().sum()))
    case = make_sequences(SHORT[2], kind, F64)
    results = run_sequences(kernels("reference").backend, case, "pairs", SUMS["float"])
    torch.testing.assert_close(results["step"], case.weight - RATE * results["dW"])
