"""`lutetia.lut.lut` against the oracle, on every backend; its dtypes, its shapes, its errors, its choice of kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import lutetia
from lut.oracle import META, SHAPES, WIRINGS, gradients, make_case
from lutetia import flow
from lutetia.errors import ArgumentError, LutetiaError, OverflowInSumError
from lutetia.lut import SynapseMeta, growth, kernels, lut, random_anchors, use_backend
from lutetia.lut.connectivity import anchors as anchor_checks
from lutetia.lut.kernels import choice

BACKENDS = ("reference", "cpu", "triton")
FAST = ("reference", "cpu")  # triton runs in its interpreter here: it is tested where it must be, on small shapes
SMALL = (3, 5, 3, 2, 2)


def names(recorded: flow.Flow) -> list[str]:
    return [step.name for step in recorded.steps]


@pytest.fixture(params=FAST)
def on_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    with use_backend(request.param):
        yield request.param


# ---- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_output_and_gradients_are_those_of_the_blend(on_backend: str, wiring: str, shape: tuple[int, ...]) -> None:
    check_against_the_blend(wiring, shape)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_output_and_gradients_in_triton(wiring: str) -> None:
    with use_backend("triton"):
        check_against_the_blend(wiring, SMALL)


def check_against_the_blend(wiring: str, shape: tuple[int, ...]) -> None:
    case = make_case(wiring, shape)
    x, weight = case.x.requires_grad_(), case.weight.requires_grad_()
    y = lut(x, weight, case.anchors, **case.options)
    y.backward(case.grad)
    want_y, want_dx, want_dw = gradients(x, case.dense().detach(), case.anchors, case.grad)
    want_dw = want_dw * case.lr_scale
    torch.testing.assert_close(y.detach(), want_y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(x.grad, want_dx, rtol=1e-12, atol=1e-12)
    assert weight.grad is not None
    assert weight.grad.shape == weight.shape
    torch.testing.assert_close(case.dense(weight.grad), want_dw * (case.dense(torch.ones_like(weight)) != 0))
    with torch.no_grad():
        torch.testing.assert_close(lut(x, weight, case.anchors, **case.options), want_y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype", "y_dtype", "tolerance"),
    [
        (torch.float32, torch.float32, torch.float32, 1e-5),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16, 2e-2),
        (torch.float16, torch.float16, torch.float16, 2e-3),
        (torch.bfloat16, torch.float32, torch.float32, 1e-5),
        (torch.float32, torch.bfloat16, torch.float32, 1e-5),
        (torch.float64, torch.float32, torch.float64, 1e-5),
        (torch.bfloat16, torch.float16, torch.float32, 1e-5),
    ],
)
def test_dtypes(
    on_backend: str, wiring: str, x_dtype: torch.dtype, weight_dtype: torch.dtype, y_dtype: torch.dtype, tolerance: float
) -> None:
    case = make_case(wiring)
    x, weight = case.x.to(x_dtype).requires_grad_(), case.weight.to(weight_dtype).requires_grad_()
    y = lut(x, weight, case.anchors, **case.options)
    grad = case.grad.to(y.dtype)
    y.backward(grad)
    assert (y.dtype, x.grad.dtype, weight.grad.dtype) == (y_dtype, x_dtype, weight_dtype)  # type: ignore[union-attr]
    want = gradients(x, case.dense(weight.detach()), case.anchors, grad)
    got = (y, x.grad, case.dense(weight.grad))
    scale = case.lr_scale * (case.dense(torch.ones_like(case.weight)) != 0)
    for mine, its, eps_dtype in zip(got, (want[0], want[1], want[2] * scale), (y_dtype, x_dtype, weight_dtype), strict=True):
        rough = max(tolerance, 4 * torch.finfo(eps_dtype).eps)
        torch.testing.assert_close(mine.detach().double(), its, rtol=rough, atol=rough * 4)  # type: ignore[union-attr]


@pytest.mark.parametrize("batch", [(), (1,), (0,), (3, 2), (2, 0, 3), (2, 1, 1, 2)])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_any_leading_dimensions(wiring: str, batch: tuple[int, ...]) -> None:
    case = make_case(wiring)
    x = torch.randn(*batch, 8, dtype=torch.float64, requires_grad=True)
    with use_backend("reference"):
        y = lut(x, case.weight, case.anchors, **case.options)
        y.sum().backward()
    flat = x.detach().reshape(-1, 8)
    want, dx, _ = gradients(flat, case.dense(), case.anchors, torch.ones(flat.shape[0], 5))
    assert y.shape == (*batch, 5)
    torch.testing.assert_close(y.detach().reshape(-1, 5), want)
    torch.testing.assert_close(x.grad.reshape(-1, 8), dx)  # type: ignore[union-attr]


def scattered(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, laid out another way."""
    other = tensor.transpose(0, 1).contiguous().transpose(0, 1)
    assert not other.is_contiguous()
    return other


def test_tensors_need_not_be_contiguous(on_backend: str) -> None:
    case = make_case("fc")
    x, weight = scattered(case.x).requires_grad_(), scattered(case.weight).requires_grad_()
    y = lut(x, weight, scattered(case.anchors))
    y.backward(scattered(case.grad))
    want = gradients(case.x, case.weight, case.anchors, case.grad)
    for mine, its in zip((y.detach(), x.grad, weight.grad), want, strict=True):
        torch.testing.assert_close(mine, its)
    with torch.no_grad():
        torch.testing.assert_close(lut(x, weight, scattered(case.anchors)), want[0])


def test_an_expanded_gradient(on_backend: str) -> None:
    case = make_case("fc")
    x = case.x.requires_grad_()
    lut(x, case.weight, case.anchors).sum().backward()
    torch.testing.assert_close(x.grad, gradients(case.x, case.weight, case.anchors, torch.ones(7, 5))[1])


# ---- sums ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", WIRINGS)
def test_fixed_sums_are_integer_sums_on_every_backend(wiring: str) -> None:
    case = make_case(wiring, SMALL, dtype=torch.float32)
    scale = float(np.float32((2**20 - 1) * 0.5))
    indices = kernels("reference").check_detectors_eval(case.x, case.anchors).tolist()
    units = [[[round(w * scale) for w in row] for row in table] for table in case.dense().double().tolist()]
    sums = [[sum(units[t][i][o] for t, i in enumerate(row)) for o in range(3)] for row in indices]
    want = torch.tensor([[total / scale for total in row] for row in sums], dtype=torch.float64).float()
    found = {}
    for name in BACKENDS:
        x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
        with use_backend(name):
            y = lut(x, weight, case.anchors, sums="fixed", int_rescaler=0.5, **case.options)
            y.backward(case.grad)
            assert torch.equal(y, want)
            with torch.no_grad():
                assert torch.equal(lut(x, weight, case.anchors, sums="fixed", int_rescaler=0.5, **case.options), want)
        found[name] = (x.grad, weight.grad)
    for dx, dw in found.values():
        assert torch.equal(dx, found["reference"][0])  # type: ignore[arg-type]
        assert torch.equal(dw, found["reference"][1])  # type: ignore[arg-type]


def test_a_fixed_sum_that_overflows_is_an_error(on_backend: str) -> None:
    case = make_case("fc", dtype=torch.float32)
    with pytest.raises(OverflowInSumError, match="int_rescaler"):
        lut(case.x, case.weight * 4000, case.anchors, sums="fixed")


# ---- only what is asked for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("learns", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
def test_only_what_is_asked_for_is_computed(wiring: str, learns: tuple[bool, bool], gradient: str) -> None:
    case = make_case(wiring)
    x, weight = case.x.requires_grad_(learns[0]), case.weight.requires_grad_(learns[1])
    with use_backend("reference"), flow.record() as recorded:
        y = lut(x, weight, case.anchors, gradient=gradient, external_lr=0.1, **case.options)
        if any(learns):
            y.sum().backward()
    suffix = "fc" if wiring == "fc" else "sparse"
    gather = "gather_weight_rows_" if gradient == "sparse" else "gather_weight_gradients_"
    expected = ["check_detectors" if any(learns) else "check_detectors_eval", f"fill_outputs_{suffix}"]
    expected += [f"propagate_through_detectors_{suffix}"] * learns[0] + [gather + suffix] * learns[1]
    assert names(recorded) == expected
    assert (x.grad is not None) == learns[0]
    assert (weight.grad is not None) == (learns[1] and gradient != "in_place")


def test_no_gradients_are_prepared_where_none_can_be_asked_for() -> None:
    case = make_case("fc")
    x = case.x.requires_grad_()
    for mode in (torch.no_grad, torch.inference_mode):
        with use_backend("reference"), flow.record() as recorded, mode():
            assert not lut(x, case.weight, case.anchors).requires_grad
        assert names(recorded) == ["check_detectors_eval", "fill_outputs_fc"]


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize(
    ("gradient", "asked"),
    [("dense", "x"), ("dense", "weight"), ("sparse", "x"), ("sparse", "weight"), ("in_place", "x")],
)
def test_differentiating_twice_is_an_error(wiring: str, gradient: str, asked: str) -> None:
    case = make_case(wiring)
    x, weight = case.x.requires_grad_(), case.weight.requires_grad_()
    with use_backend("reference"):
        y = lut(x, weight, case.anchors, gradient=gradient, external_lr=0.1, **case.options).square().sum()
        (first,) = torch.autograd.grad(y, x if asked == "x" else weight, create_graph=True)
        first = first.coalesce().values() if first.is_sparse else first
        with pytest.raises((LutetiaError, RuntimeError), match="twice"):
            first.square().sum().backward()


# ---- backends --------------------------------------------------------------------------------------------------------


def test_kernels_of_every_backend_have_the_same_names() -> None:
    reference = kernels("reference")
    for name in BACKENDS:
        assert kernels(name).name == name
        assert set(vars(kernels(name))) == set(vars(reference))
    assert {"check_detectors", "fill_outputs_sparse", "gather_weight_gradients_fc"} < set(vars(reference))
    assert kernels("cpu") is kernels("cpu")


def test_kernels_take_their_arguments_by_name() -> None:
    k, x, anchors = kernels("reference"), torch.randn(3, 6), random_anchors(6, 4, 2, seed=0)
    weight, grad = torch.randn(4, 4, 5), torch.randn(3, 5)
    indices, min_delta, which = k.check_detectors(x=x, anchors=anchors)
    found = {"indices": indices, "min_delta": min_delta, "min_delta_index": which}
    dx = k.propagate_through_detectors_fc(grad, weight, **found, anchors=anchors, n_inputs=6)
    assert torch.equal(dx, k.propagate_through_detectors_fc(grad, weight, *found.values(), anchors, 6))
    with pytest.raises(TypeError, match=r"propagate_through_detectors_fc\(\) is missing the argument 'min_delta'"):
        k.propagate_through_detectors_fc(grad, weight, indices, anchors=anchors, n_inputs=6)
    with pytest.raises(TypeError, match="unknown arguments: summs"):
        k.propagate_through_detectors_fc(grad, weight, *found.values(), anchors, 6, summs="fixed")


@pytest.mark.parametrize("call", [kernels, lambda name: use_backend(name).__enter__()])
def test_an_unknown_backend(call: Callable[[str], Any]) -> None:
    with pytest.raises(ArgumentError, match="'cuda', expected one of 'reference', 'cpu', 'triton'"):
        call("cuda")


def test_use_backend_nests_and_ends() -> None:
    def fail_inside() -> None:
        with use_backend("triton"):
            with use_backend("reference"):
                assert choice.chosen == "reference"
            assert choice.chosen == "triton"
            raise ZeroDivisionError

    assert choice.chosen == ""
    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert choice.chosen == ""


@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
@pytest.mark.parametrize("wiring", ["fc", "shared"])
def test_backward_runs_on_the_backend_of_the_forward(gradient: str, wiring: str) -> None:
    case = make_case(wiring)
    x, weight = case.x.requires_grad_(), case.weight.requires_grad_()
    with flow.record() as recorded:
        with use_backend("reference"):
            y = lut(x, weight, case.anchors, gradient=gradient, external_lr=0.1, **case.options).sum()
        with use_backend("triton"):
            thread = threading.Thread(target=y.backward)
            thread.start()
            thread.join()
    assert len(recorded) == 4
    assert {step.attributes["backend"] for step in recorded.steps} == {"reference"}


def test_cpu_tensors_run_on_the_cpu_backend() -> None:
    case = make_case("fc")
    with flow.record() as recorded:
        lut(case.x, case.weight, case.anchors)
    assert {step.attributes["backend"] for step in recorded.steps} == {"cpu"}


def test_without_numba_the_reference_runs_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        if name == "cpu":
            raise lutetia.errors.MissingFeatureError("numba, which is not installed: pip install numba")
        return kernels(name)

    monkeypatch.setattr(choice, "kernels", absent)
    choice._default_backend.cache_clear()
    choice._default_name.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="pip install numba") as seen:
            found = [choice.backend_for("", torch.zeros(1)) for _ in range(3)]
        assert found == [kernels("reference").backend] * 3
        assert len(seen) == 1
    finally:
        choice._default_backend.cache_clear()
        choice._default_name.cache_clear()


def test_triton_on_cpu_tensors_needs_its_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("fc")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with use_backend("triton"), pytest.raises(ArgumentError, match="TRITON_INTERPRET"):
        lut(case.x, case.weight, case.anchors)


# ---- errors ----------------------------------------------------------------------------------------------------------

FC = make_case("fc")
SHARED = make_case("shared")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": FC.x.int()}, r"x is int32 \[7, 8\] on cpu, expected dtype float32 or float64"),
        ({"x": FC.x[0, 0]}, r"x is float64 \[\] on cpu, expected shape \[..., n_inputs\]"),
        ({"x": [1.0]}, "x is .*, expected a tensor"),
        ({"x": FC.x.to("meta")}, "anchors is .* on cpu, expected a tensor on meta"),
        ({"anchors": FC.anchors.long()}, "anchors is int64 .*, expected dtype int32"),
        ({"anchors": FC.anchors[..., :1]}, r"anchors is int32 \[3, 4, 1\] on cpu, expected shape \[n_detectors, n_anchors, 2\]"),
        ({"anchors": FC.anchors[:, :0]}, "expected 1 to 24 anchor pairs"),
        ({"anchors": torch.zeros(3, 25, 2, dtype=torch.int32)}, "expected 1 to 24 anchor pairs"),
        ({"weight": FC.weight[:, :15]}, r"weight is float64 \[3, 15, 5\] on cpu, expected shape \[3, 16, n_outputs\]"),
        ({"weight": FC.weight[:2]}, r"expected shape \[3, 16, n_outputs\]"),
        ({"weight": FC.weight.flatten()}, r"expected shape \[3, 16, n_outputs\]"),
        ({"weight": FC.weight.long()}, "weight is int64"),
        ({"weight": FC.weight.to("meta")}, "weight is .* on meta, expected a tensor on cpu"),
        ({"synapses": SHARED.synapses}, rf"expected shape \[{SHARED.weight.shape[0]}\]"),
        (
            {"synapses": growth.random(2, 4, 5, 0.5, seed=0), "weight": FC.weight.flatten()},
            "synapses is '2 detectors × 16 rows', expected 3 detectors × 16 rows",
        ),
        ({"synapses": SHARED.synapses.to("meta"), "weight": SHARED.weight}, "synapses is .* on meta"),  # type: ignore[union-attr]
        ({"anchors": FC.anchors + 5}, "compares inputs .*, expected inputs from 0 to 7"),
        ({"anchors": FC.anchors * 0}, "anchor 0 of detector 0 compares inputs 0 and 0, expected two different inputs"),
        ({"x": FC.x[:, :4]}, "compares inputs .*, expected inputs from 0 to 3"),
        ({"gradient": "none"}, "gradient is 'none', expected one of 'dense', 'sparse', 'in_place'"),
        ({"sums": "double"}, "sums is 'double'"),
        ({"int_rescaler": 0.0}, "int_rescaler is 0.0"),
    ],
)
@pytest.mark.parametrize("learning", [False, True])
def test_errors_say_what_was_wrong(change: dict[str, Any], message: str, learning: bool) -> None:
    arguments = {"x": FC.x, "weight": FC.weight, "anchors": FC.anchors} | change
    if learning and isinstance(arguments["x"], torch.Tensor) and arguments["x"].is_floating_point():
        arguments["x"] = arguments["x"].clone().requires_grad_()
    with use_backend("reference"), pytest.raises(ArgumentError, match=message):
        lut(**arguments)


def test_nan_passes_unless_debug_is_on(on_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("fc")
    case.x[4, 3] = torch.nan
    lut(case.x, case.weight, case.anchors)
    monkeypatch.setattr(lutetia, "debug", True)
    for x in (case.x, case.x.clone().requires_grad_()):
        with pytest.raises(ArgumentError, match="NaN in row 4 of 7"):
            lut(x, case.weight, case.anchors)
    lut(case.x[:4], case.weight, case.anchors)


def test_anchors_are_checked_once_per_tensor_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("fc")
    checked = []
    monkeypatch.setattr(anchor_checks, "check_anchors", lambda anchors, n_inputs, n_thresholds=0: checked.append(n_inputs))
    anchors = case.anchors.clone()
    with use_backend("reference"):
        for _ in range(3):
            lut(case.x, case.weight, anchors)
            lut(case.x.clone().requires_grad_(), case.weight, anchors)
        assert checked == [8]
        lut(torch.randn(2, 9, dtype=torch.float64), case.weight, anchors)
        assert checked == [8, 9]
        anchors[0, 0, 0] = anchors[0, 0, 0]
        lut(case.x, case.weight, anchors)
        assert checked == [8, 9, 8]


def test_anchors_that_change_are_checked_again() -> None:
    case = make_case("fc")
    anchors = case.anchors.clone()
    with use_backend("reference"):
        lut(case.x, case.weight, anchors)
        anchors[1, 2, 0] = 8
        with pytest.raises(ArgumentError, match="anchor 2 of detector 1 compares inputs 8"):
            lut(case.x, case.weight, anchors)
    with torch.inference_mode():
        made_there = random_anchors(8, 3, 4, 0)
        assert lut(case.x, case.weight, made_there).shape == (7, 5)


def test_autocast_leaves_the_weights_alone() -> None:
    case = make_case("fc", dtype=torch.float32)
    x, weight = case.x.requires_grad_(), case.weight.requires_grad_()
    with use_backend("reference"), torch.autocast("cpu", dtype=torch.bfloat16):
        y = lut(x @ torch.eye(8), weight, case.anchors, meta=META)
    assert y.dtype == torch.float32
    y.backward(case.grad)
    want_y, _, want_dw = gradients(case.x.bfloat16(), case.weight, case.anchors, case.grad)
    torch.testing.assert_close(y.detach().double(), want_y, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(weight.grad.double(), want_dw * 0.75, rtol=1e-6, atol=1e-6)  # type: ignore[union-attr]


def test_metas_of_a_dense_layer_scale_the_gradient_only() -> None:
    case = make_case("fc")
    weight = case.weight.requires_grad_()
    with use_backend("reference"):
        lut(case.x, weight, case.anchors, meta=SynapseMeta(lr_scale=0.0)).sum().backward()
    assert weight.grad is not None
    assert not weight.grad.any()
