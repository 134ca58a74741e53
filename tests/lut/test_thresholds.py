"""Anchors that compare an input with a constant, on every backend: the same as pairs, with the constants among the inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lut.oracle import WIRINGS, Case, make_case
from lutetia.errors import ArgumentError
from lutetia.lut import READS, kernels, lut, use_backend
from lutetia.lut.connectivity.anchors import Comparisons

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = ((7, 8, 5, 3, 4), (1, 2, 1, 1, 1), (70, 11, 3, 5, 3), (0, 5, 3, 2, 2))  # B, I, O, N_t, N_c: 70 is past one tile of lanes
DRAWN = 4  # thresholds of a case
DTYPES = {
    "reference": torch.float64,
    "cpu": torch.float32,
}  # loops of float64 take seconds to compile


def with_thresholds(case: Case) -> Tensor:
    """Let about half of the anchors of a case name one of a few thresholds, of which some equal inputs: thresholds [4]."""
    n_inputs, second = case.x.shape[1], case.anchors[:, :, 1]
    constant = torch.arange(second.numel()).view_as(second) % 3 != 0
    second[constant] = n_inputs + torch.arange(int(constant.sum()), dtype=torch.int32) % DRAWN
    return torch.tensor([0.0, 1.0, -0.37, 0.8], dtype=torch.float64)


def learn(case: Case, x: Tensor, thresholds: Tensor | None, **how: Any) -> list[Tensor]:
    """y with and without gradients, and the gradients of x, the weight and the scalars of a read."""
    device, logs = x.device, {"confidence": ("log_beta", "log_gamma"), "confidence2": ("log_beta", "log_gamma", "log_tau")}
    names = logs.get(how.get("read", "hard"), ())
    scalars = {name: torch.tensor(0.3 - k / 5, dtype=torch.float64, device=device) for k, name in enumerate(names)}
    x, weight = x.detach().clone(), case.weight.detach().clone().to(device)
    layer = {**case.options, **how, **scalars}
    still = lut(x, weight, case.anchors.to(device), thresholds, **layer)
    learned = [tensor.requires_grad_() for tensor in (x, weight, *scalars.values())]
    y = lut(x, weight, case.anchors.to(device), thresholds, **layer)
    return [still, y.detach(), *torch.autograd.grad(y, learned, case.grad.to(device), allow_unused=True)]


def check(case: Case, thresholds: Tensor, backend: str, **how: Any) -> None:
    """One backend against pairs of the reference, over inputs that end with the constants."""
    device = DEVICE if backend == "triton" else "cpu"
    wide = torch.cat([case.x, thresholds.to(case.x.dtype).expand(len(case.x), -1)], 1)
    with use_backend("reference"):
        expected = learn(case, wide, None, **how)
    expected[2] = expected[2][:, : case.x.shape[1]]
    with use_backend(backend):
        actual = learn(case, case.x.to(device), thresholds.to(device), **how)
    for mine, its in zip(actual, expected, strict=True):
        if how.get("sums") == "fixed":
            assert torch.equal(mine.cpu(), its)
        else:
            rough = 1e-10 if case.x.dtype == torch.float64 else 1e-5
            torch.testing.assert_close(mine.cpu(), its, rtol=rough, atol=rough)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_reads_and_gradients(backend: str, read: str, shape: tuple[int, ...]) -> None:
    case = make_case("fc", shape, DTYPES[backend])
    check(case, with_thresholds(case), backend, read=read)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_fixed_sums_have_the_same_bits(backend: str, wiring: str) -> None:
    case = make_case(wiring, dtype=DTYPES[backend])
    thresholds = with_thresholds(case)
    for read in READS:
        check(case, thresholds, backend, read=read, sums="fixed")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("wiring", WIRINGS[1:])
def test_sparse_connectivity(backend: str, wiring: str) -> None:
    case = make_case(wiring, dtype=DTYPES[backend])
    thresholds = with_thresholds(case)
    for read in ("hard", "confidence2"):
        check(case, thresholds, backend, read=read)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_triton(read: str, sums: str) -> None:
    pytest.importorskip("triton")
    case = make_case("fc", (3, 5, 2, 3, 3))
    check(case, with_thresholds(case), "triton", read=read, sums=sums)


def test_triton_with_general_connectivity_and_by_columns() -> None:
    pytest.importorskip("triton")
    from lutetia.lut.kernels.triton.detect import detect_columns

    case = make_case("general", (3, 5, 2, 3, 3))
    thresholds = with_thresholds(case)
    check(case, thresholds, "triton")
    x, anchors = case.x.to(DEVICE), case.anchors.to(DEVICE)
    expected = kernels("reference").check_detectors_eval(x, anchors, thresholds=thresholds.to(DEVICE))
    assert torch.equal(detect_columns(x, Comparisons(anchors, thresholds.to(DEVICE))), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_thresholds_are_compared_in_the_dtype_of_sums(backend: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 0.0]], dtype=dtype)
    anchors, beyond = torch.tensor([[[0, 2]]], dtype=torch.int32), 1.0 + 2.0**-40
    for thresholds, expected in (([1.0 - 2.0**-20], 1), ([1.0], 0), ([beyond], 0)):
        found = kernels(backend).check_detectors(x, anchors, thresholds=torch.tensor(thresholds, dtype=torch.float64))
        assert found[0].item() == expected
    assert found[1].item() == 0.0  # in float32 the last is exactly 1
    assert kernels(backend).check_detectors_eval(x.double() * beyond, anchors, thresholds=torch.tensor([1.0])).item() == 1


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_gradient_policies(backend: str) -> None:
    case = make_case("fc", dtype=DTYPES[backend])
    thresholds, x = with_thresholds(case), case.x.clone().requires_grad_()
    with use_backend(backend):
        made = {}
        for gradient in ("dense", "sparse", "in_place"):
            weight = case.weight.clone().requires_grad_()
            y = lut(x, weight, case.anchors, thresholds, gradient=gradient, external_lr=1.0)
            (dx,) = torch.autograd.grad(y, x, case.grad, retain_graph=gradient != "in_place")
            if gradient == "in_place":
                lut(x, weight, case.anchors, thresholds, gradient=gradient, external_lr=1.0).backward(case.grad)
                made[gradient] = (dx, case.weight - weight.detach())
            else:
                y.backward(case.grad)
                assert weight.grad is not None
                made[gradient] = (dx, weight.grad.to_dense())
    for dx, dw in made.values():
        torch.testing.assert_close(dx, made["dense"][0])
        torch.testing.assert_close(dw, made["dense"][1])


@pytest.mark.parametrize("name", ["lut_eval", "lut", "read_eval", "read_detectors", "read_detectors_gradients"])
def test_opcheck(name: str) -> None:
    from lutetia.lut.autograd.how import NO_WIRES, How, text_of

    case = make_case("fc", (3, 5, 2, 3, 3), torch.float32)
    thresholds, logs = with_thresholds(case), tuple(torch.tensor(0.1, requires_grad=True) for _ in range(3))
    rest = (*NO_WIRES, text_of(How(backend="reference", read="hard" if name.startswith("lut") else "confidence2")), thresholds)
    gains = (torch.ones(3, 3), torch.ones(3, 3), True)
    x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
    arguments = {
        "lut_eval": (case.x, case.weight, case.anchors, *rest),
        "lut": (x, weight, case.anchors, *rest),
        "read_eval": (case.x, case.weight, case.anchors, *(log.detach() for log in logs), *rest),
        "read_detectors": (x, case.anchors, *logs, *rest),
        "read_detectors_gradients": (case.x, case.anchors, *(log.detach() for log in logs), *gains, *rest),
    }
    done = torch.library.opcheck(getattr(torch.ops.lutetia, name).default, arguments[name])
    assert set(done.values()) == {"SUCCESS"}


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_bad_thresholds_are_refused() -> None:
    x, weight = torch.randn(2, 3), torch.randn(1, 2, 4)
    anchors = torch.tensor([[[0, 4]]], dtype=torch.int32)
    with pytest.raises(ArgumentError, match=r"compares inputs 0 and 4, expected inputs from 0 to 2$"):
        lut(x, weight, anchors)
    with pytest.raises(ArgumentError, match="0 to 2, or for the second 3 to 3, one of 1 thresholds"):
        lut(x, weight, anchors, torch.zeros(1))
    with pytest.raises(ArgumentError, match="threshold 1 is nan, expected a finite number"):
        lut(x, weight, anchors, torch.tensor([0.0, float("nan")]))
    with pytest.raises(ArgumentError, match="threshold 0 is inf"):
        lut(x, weight, anchors, torch.tensor([float("inf"), 0.0]))
    with pytest.raises(ArgumentError, match=r"thresholds is int64 \[2\]"):
        lut(x, weight, anchors, torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ArgumentError, match="shape"):
        lut(x, weight, anchors, torch.zeros(2, 1))
    with pytest.raises(ArgumentError, match="compares inputs 3 and 0"):
        lut(x, weight, anchors.flip(-1) - torch.tensor([1, 0], dtype=torch.int32), torch.zeros(2))


def test_a_threshold_that_became_nan_is_noticed() -> None:
    x, weight, thresholds = torch.randn(2, 3), torch.randn(1, 2, 4), torch.zeros(2)
    anchors = torch.tensor([[[0, 4]]], dtype=torch.int32)
    lut(x, weight, anchors, thresholds)
    thresholds[1] = float("nan")
    with pytest.raises(ArgumentError, match="threshold 1 is nan"):
        lut(x, weight, anchors, thresholds)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_no_thresholds_at_all(backend: str) -> None:
    """As `LUT(..., anchors="mixed")` draws for a layer of one anchor."""
    case = make_case("fc", (3, 4, 2, 2, 1), DTYPES[backend])
    check(case, case.x.new_empty(0), backend)
