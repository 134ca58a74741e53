"""What only the compiled CPU kernels can get wrong: their several ways to the same sums, memory, layouts. See test_kernels.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import lutetia.nn
from lut.cpu_cases import METAS, SHAPES, assert_near, both, cpu, make, reference, sparse
from lutetia._shared import memory
from lutetia.lut import growth
from lutetia.lut.connectivity.full import full
from lutetia.lut.kernels.protocol import Coefficients
from lutetia.lut.sums import Sums

# ---- detect ----------------------------------------------------------------------------------------------------------


def test_detectors_take_leading_dimensions_and_infinite_margins() -> None:
    case = make(60, SHAPES[2])
    x = case.x.clone()
    x[3], x[5, :2], x[50] = float("inf"), -float("inf"), torch.arange(11) * 1e38
    for rows in (x.view(3, 4, 5, -1), x[50:52]):
        found, expected = cpu.check_detectors(rows, case.anchors), reference.check_detectors(rows, case.anchors)
        assert torch.equal(found[0], expected[0])
        finite = ~expected[1].isnan()  # inf - inf: a margin that is not a number is nobody's smallest
        assert torch.equal(found[1][finite], expected[1][finite])
        assert torch.equal(found[2][finite], expected[2][finite])


# ---- full connectivity -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_is_decoded(dtype: torch.dtype) -> None:
    """One detector of 256 rows of 256 weights, which are all there are: subnormal, infinite, not a number."""
    weight = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    y = cpu.fill_outputs_fc(weight.view(1, 256, 256), torch.arange(256, dtype=torch.int32)[:, None])
    assert_close(y.flatten(), weight.float(), rtol=0, atol=0, equal_nan=True)


def test_what_is_not_contiguous_or_wants_gradients() -> None:
    case = make(7, SHAPES[2])
    x = torch.randn(11, 14).t()[::2]
    weight = case.weight.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    grad = torch.ones(1, 13).expand(7, 13)
    found = [tensor.t().contiguous().t() for tensor in reference.check_detectors(x, case.anchors)]
    assert not any(tensor.is_contiguous() for tensor in (x, weight, grad, *found))
    with torch.no_grad():
        both("detect_and_fill_eval_fc", x, weight, case.anchors)
        both("detect_and_fill_fc", x, weight, case.anchors)
        both("propagate_through_detectors_fc", grad, weight, *found, case.anchors, 11)
        both("gather_weight_gradients_fc", grad, found[0].long(), 8)


# ---- sparse connectivity ---------------------------------------------------------------------------------------------


def test_a_detector_without_synapses() -> None:
    case = make(7, SHAPES[1])
    for edges in ([(1, 2)], [(1, 0, 2), (1, 3, 0)]):
        synapses = growth.from_edges(2, 2, 3, edges)
        weight = torch.randn(synapses.n_weights)
        grad, _, *rest = case.backward
        both("detect_and_fill_eval_sparse", case.x, weight, case.anchors, synapses)
        both("propagate_through_detectors_sparse", grad, weight, *rest, synapses)
        both("gather_weight_gradients_sparse", grad, case.found[0], synapses)
        both("gather_weight_rows_sparse", grad, case.found[0], synapses)


# ---- the several ways to the same sums -------------------------------------------------------------------------------

WAYS = {  # batch, (inputs, outputs, detectors, anchor pairs): which way the loops go
    "sorted by row": (67, (9, 131, 5, 3)),
    "sorted, most rows never hit": (80, (2, 128, 3, 5)),
    "four tables and three": (23, (9, 10, 7, 4)),
    "far from the cache": (5, (9, 67, 3, 13)),
    "far, more than a handful": (131, (9, 67, 9, 11)),
    "far and wide": (3, (11, 300, 17, 8)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_through_the_tables(way: str, dtype: torch.dtype) -> None:
    case = make(*WAYS[way], dtype)
    indices, weight = case.found[0], case.weight
    both("detect_and_fill_eval_fc", case.x, weight, case.anchors)
    both("detect_and_fill_fc", case.x, weight, case.anchors)
    both("propagate_through_detectors_fc", *case.backward)
    both("gather_weight_gradients_fc", case.grad, indices, case.n_rows, meta=METAS[1])
    both("gather_weight_rows_fc", case.grad, indices, case.n_rows, meta=METAS[1])
    into = {"external_lr": 0.3, "meta": METAS[2]}
    stepped = [
        k.gather_weight_gradients_fc(case.grad, indices, case.n_rows, weight=weight.clone(), **into) for k in (cpu, reference)
    ]
    assert_near(*stepped)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("layout", ["general", "shared", "blocks"])
def test_wide_sparse_layers_in_parts(layout: str) -> None:
    case = make(67, (9, 311, 5, 3))
    synapses, weight = sparse(case, layout)
    both("detect_and_fill_eval_sparse", case.x, weight, case.anchors, synapses)
    both("gather_weight_gradients_sparse", case.grad, case.found[0], synapses)


@pytest.mark.parametrize("shape", [(9, 1, 16, 3), (32, 33, 16, 6), (7, 10, 31, 9)])
def test_detect_and_fill_in_one(shape: tuple[int, int, int, int]) -> None:
    case = make(71, shape)
    both("detect_and_fill_eval_fc", case.x, case.weight, case.anchors)
    both("detect_and_fill_eval_fc", case.x, case.weight.transpose(0, 1).contiguous().transpose(0, 1), case.anchors)
    assert not cpu.detect_and_fill_eval_fc(case.x, case.weight.requires_grad_(), case.anchors).requires_grad
    case.weight.requires_grad_(False)
    both("detect_and_fill_eval_fc", case.x, case.weight, case.anchors, sums="fixed")
    both("detect_and_fill_eval_fc", case.x.double(), case.weight, case.anchors)
    both("detect_and_fill_eval_fc", case.x[:0], case.weight, case.anchors)


# ---- memory of gradients ---------------------------------------------------------------------------------------------


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keep the memory of the smallest gradients; the list of what is kept."""
    monkeypatch.setattr(memory, "KEPT_BY_MALLOC", 0)
    monkeypatch.setattr(memory, "_kept", [])
    return memory._kept


@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("layout", ["full", "general", "shared", "blocks"])
def test_memory_that_was_used_before_is_cleared(layout: str, sums: str, kept: list[Any]) -> None:
    for batch in (7, 64, 0, 71):
        case = make(batch, SHAPES[3])
        if layout == "full":
            both("gather_weight_gradients_fc", case.grad, case.found[0], case.n_rows, sums=sums)
        else:
            both("gather_weight_gradients_sparse", case.grad, case.found[0], sparse(case, layout)[0], sums=sums)
    assert len(kept) == 1


@pytest.mark.parametrize("sums", [Sums("float"), Sums("fixed")])
@pytest.mark.parametrize("layout", ["full", "general", "shared", "blocks"])
def test_memory_is_cleared_for_rows_with_coefficients(layout: str, sums: Sums, kept: list[Any]) -> None:
    for batch in (7, 64, 0, 71):
        case = make(batch, SHAPES[3])
        connectivity = full(*case.weight.shape) if layout == "full" else sparse(case, layout)[0]
        indices, a = case.found[0], case.found[1].sigmoid()
        for coefficients in (Coefficients(a), Coefficients(a, 1 - a, indices ^ 1)):
            arguments = (case.grad, connectivity, indices, coefficients, sums, None)
            assert_near(*(module.backend.gather_rows(*arguments) for module in (cpu, reference)), sums.kind)
    assert len(kept) == 1


def test_a_gradient_that_is_held_stays(kept: list[Any]) -> None:
    case = make(7, SHAPES[3])
    gather = lambda grad: cpu.gather_weight_gradients_fc(grad, case.found[0], case.n_rows)  # noqa: E731
    first, row = gather(case.grad), gather(2 * case.grad)[1]
    expected, third = first.clone(), gather(3 * case.grad)
    assert torch.equal(first, expected)
    assert torch.equal(row, 2 * expected[1])
    assert len(kept) == 3
    array = third.numpy()
    del first, row, third
    again = gather(case.grad)
    assert_near(again, expected)
    assert_near(torch.from_numpy(array), 3 * expected)
    assert len(kept) == 3
    assert gather(case.grad.double()).dtype == torch.float64
    assert len(kept) == 4


def test_no_more_memory_is_kept_than_allowed(kept: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(7, SHAPES[2])
    size = case.weight.numel() * 4
    monkeypatch.setattr(memory, "KEPT_HERE", 2 * size)
    held = [cpu.gather_weight_gradients_fc(case.grad, case.found[0], case.n_rows) for _ in range(5)]
    assert sum(block.memory.nbytes for block in kept) == 2 * size
    assert all(torch.equal(gradient, held[0]) for gradient in held)
    monkeypatch.setattr(memory, "KEPT_HERE", size - 1)
    both("gather_weight_gradients_fc", case.grad, case.found[0], case.n_rows)
    both("gather_weight_gradients_fc", case.grad.double(), case.found[0], case.n_rows)
    assert not kept


def test_a_training_step_uses_the_memory_of_the_last(kept: list[Any]) -> None:
    layer = lutetia.nn.LUT(9, 131, 5, 3, seed=1)
    for _ in range(3):
        x = torch.randn(67, 9, requires_grad=True)
        gradients = []
        for backend in ("cpu", "reference"):
            with lutetia.lut.use_backend(backend):
                layer.zero_grad()
                x.grad = None
                layer(x).square().sum().backward()
                gradients.append((x.grad, layer.weight.grad.clone()))
        for actual, expected in zip(*gradients, strict=True):
            assert_near(actual, expected)
    assert len(kept) == 1


# ---- the step in place -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_in_place_is_a_dense_step(dtype: torch.dtype, sums: str) -> None:
    case = make(71, SHAPES[2], dtype)
    weight = case.weight.clone()
    options: dict[str, Any] = {"meta": METAS[1], "sums": sums}
    dense = reference.gather_weight_gradients_fc(case.grad, case.found[0], case.n_rows, **options)
    expected = (weight - 0.1 * dense).clamp(-0.5, 0.7).to(dtype)
    version = weight._version
    args = (case.grad, case.found[0], case.n_rows)
    assert cpu.gather_weight_gradients_fc(*args, external_lr=0.1, weight=weight, **options) is weight
    assert weight._version > version
    assert_near(weight, expected, sums if dtype != torch.bfloat16 else "fixed")


@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("layout", ["general", "shared", "blocks", "blocks of several rates"])
def test_in_place_with_several_metas(layout: str, sums: str) -> None:
    case = make(71, SHAPES[2])
    synapses, weight = sparse(case, layout)
    dense = reference.gather_weight_gradients_sparse(case.grad, case.found[0], synapses, sums=sums)
    expected = synapses.clamp_(weight - 0.1 * dense)
    cpu.gather_weight_gradients_sparse(case.grad, case.found[0], synapses, external_lr=0.1, weight=weight, sums=sums)
    assert_near(weight, expected, sums)


def test_in_place_on_a_leaf_that_is_not_contiguous() -> None:
    case = make(7, SHAPES[2])
    weight = case.weight.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_()
    args = (case.grad, case.found[0], case.n_rows)
    expected = case.weight - 0.1 * reference.gather_weight_gradients_fc(*args)
    cpu.gather_weight_gradients_fc(*args, external_lr=0.1, weight=weight)
    assert_near(weight.detach(), expected)
