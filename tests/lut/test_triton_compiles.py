"""The Triton kernels compile for a GPU, on a machine without one: the interpreter does not see what the compiler refuses."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from gpu_code import compile_for_gpu

SCRIPT = """
from lutetia.lut import Sequence, Sums, full, growth, kernels, random_anchors
from lutetia.lut.connectivity.anchors import Comparisons
from lutetia.lut.kernels.protocol import Coefficients, Detected, Into, Products, Read

backend = kernels("triton").backend
B, I, T, C = 8, 16, 4, 3
x, anchors, log = torch.zeros(B, I), random_anchors(I, T, C, seed=0), torch.zeros(())
pairs, constants = Comparisons(anchors), Comparisons(anchors, torch.zeros(2))
indices, a = torch.zeros(B, T, dtype=torch.int32), torch.zeros(B, T)
detected, two = Detected(indices, a, indices), Coefficients(a, a, indices)
layers = {"full": full(T, 2**C, 32), "wide": full(T, 2**C, 80)}
layers |= {kind: growth.random(T, C, 80, 0.4, shared=kind == "shared", seed=3) for kind in ("shared", "general")}
for name, layer in layers.items():
    for sums in (Sums(), Sums("fixed")) if name in ("wide", "general") else (Sums(),):
        weight, grad = torch.zeros(layer.weight_shape), torch.zeros(B, layer.n_outputs)
        for step, coefficients in ((f"{name} {sums.kind} hard", None), (f"{name} {sums.kind} weighted", two)):
            backend.fill_rows(weight, layer, indices, coefficients, sums)
            backend.gather_rows(grad, layer, indices, coefficients, sums, Into(weight, 1.0))
        step = f"{name} {sums.kind} train"
        backend.detect_and_fill(x, weight, pairs, layer, sums, True)
        backend.propagate(grad, weight, layer, detected, anchors, I, sums)
        backend.row_gains(grad, weight, layer, (indices, indices), sums)
for name, logs in (("blend", ()), ("confidence", (log, log)), ("confidence2", (log, log, log))):
    step = read = Read(name, *logs)
    backend.read(x, pairs, read, Sums())
    backend.read_and_fill(x, torch.zeros(T, 2**C, 32), pairs, layers["full"], read, Sums())
    backend.send_slopes(x, pairs, read, (a, a), Sums(), True)
large, layer = torch.zeros(16384, I), full(T, 2**C, 64)
for step, comparisons in (("large batch", pairs), ("thresholds", constants)):
    backend.detect_and_fill(large, torch.zeros(layer.weight_shape), comparisons, layer, Sums(), False)
backend.detect_and_fill(x, torch.zeros(T, 2**C, 32), constants, layers["full"], Sums(), True)
backend.read(x, constants, read, Sums())
backend.send_slopes(x, constants, read, (a, a), Sums(), True)
from lutetia.lut.kernels.triton import plain
torch.library.wrap_triton, step, tables = lambda kernel: kernel, "small layers", torch.zeros(T, 2**C, 32)
plain.fill(x, tables, anchors)
plain.gradients(torch.zeros(B, 32), x, tables, anchors, True)
S, P = 8, 2
layer, places, distances = full(T, 1 << 2 * C + P, 16), indices.expand(2, S, T), torch.zeros(S - 1, T, dtype=torch.int32)
weight, grad = torch.zeros(layer.weight_shape), torch.zeros(2, S, 16)
found = Detected(places, places.float(), places), Detected(distances, distances.float(), distances)
backend.detect_positions(torch.zeros(S - 1, T, P), True)
for step, products, sums in (("pairs", None, Sums()), ("pairs", None, Sums("fixed")), ("cells", Products(), Sums())):
    sequence = Sequence(*found, C, P, products)
    backend.fill_sequence(weight, layer, sequence, sums)
    backend.propagate_sequence(grad, weight, layer, sequence, anchors, I, sums)
    backend.gather_sequence(grad, layer, sequence, sums, None)
"""


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[int]]:
    """Loads, and multiplications of float32, in the code of each kernel by step and name."""
    code = compile_for_gpu(SCRIPT)
    return {name: [ptx.count("ld.global"), ptx.count("mul.f32") + ptx.count("fma.rn.f32")] for name, ptx in code.items()}


def test_every_kernel_compiles(compiled: dict[str, list[int]]) -> None:
    names = {name.rpartition(" ")[2] for name in compiled}
    assert {"fill_kernel", "fill_slab_kernel", "fill_general_kernel", "gains_kernel", "gains_general_kernel"} <= names
    assert {"scatter_kernel", "gather_kernel", "send_slopes_kernel", "gather_slopes_kernel"} <= names
    assert {"plain_fill_kernel", "plain_gradients_kernel"} <= names
    assert {"slopes_of_pairs_kernel", "slopes_of_cells_kernel", "fill_cells_kernel", "count_cells_kernel"} <= names


def test_only_thresholds_load_constants(compiled: dict[str, list[int]]) -> None:
    pairs = {"fill_kernel": "full float train", "detect_columns_kernel": "large batch"}
    for kernel, step in pairs.items():
        assert compiled[f"thresholds {kernel}"][0] > compiled[f"{step} {kernel}"][0]
    assert {"detect_kernel", "send_slopes_kernel", "gather_slopes_kernel"} <= {
        name.rpartition(" ")[2] for name in compiled if name.startswith("thresholds ")
    }


@pytest.mark.parametrize("layer", ["full", "wide", "shared"])
def test_rows_without_coefficients_are_added_as_they_are(layer: str, compiled: dict[str, list[int]]) -> None:
    hard, weighted = (compiled[f"{layer} float {kind} fill_kernel"] for kind in ("hard", "weighted"))
    assert hard[1] == 0 < weighted[1]
    assert hard[0] < weighted[0]
