"""The four reads against autograd in float64 over a plain expression: outputs and every gradient, on every backend."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from lut.oracle import SHAPES, WIRINGS, Case, make_case
from lutetia import flow
from lutetia._shared import threads
from lutetia.errors import ArgumentError, LutetiaError, OverflowInSumError
from lutetia.lut import lut, use_backend
from lutetia.lut.autograd.how import NO_WIRES, How, text_of

READS = ("hard", "blend", "confidence", "confidence2")
SOFT = READS[1:]
BACKENDS = ("reference", "cpu", "triton")
LOGS = {"log_beta": 0.4, "log_gamma": -0.3, "log_tau": -0.2}
NAMES = {"hard": (), "blend": (), "confidence": ("log_beta", "log_gamma"), "confidence2": tuple(LOGS)}


# On the reference every wiring with every read; on the others, whose kernels test_kernels.py compares with the reference in all
# combinations, each wiring once and each read once: every signature that numba compiles takes seconds.
ONCE = (("fc", "confidence2"), ("general", "confidence"), ("shared", "blend"))
EACH = [(backend, *each) for backend in BACKENDS for each in (product(WIRINGS, SOFT) if backend == "reference" else ONCE)]


def scalars(read: str, dtype: torch.dtype = torch.float64, device: str = "cpu") -> dict[str, Tensor]:
    return {name: torch.tensor(LOGS[name], dtype=dtype, device=device) for name in NAMES[read]}


def oracle(x: Tensor, weight: Tensor, anchors: Tensor, read: str, logs: dict[str, Tensor], lr_scale: Tensor) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O], as the design has it, for autograd to differentiate.

    The gradient of the weight comes out times lr_scale, like it.
    """
    weight = weight * lr_scale + (weight * (1 - lr_scale)).detach()
    u = x[:, anchors[..., 0].long()] - x[:, anchors[..., 1].long()]
    bits = (u > 0).long()
    index = (bits << torch.arange(u.shape[-1])).sum(-1)
    size = torch.where(u > 0, u, -u)  # a zero is on the negative side
    which = size.detach().argmin(-1, keepdim=True)
    closest = size.gather(-1, which)[..., 0]
    alternative = index ^ (1 << which[..., 0])
    t = torch.arange(weight.shape[0])
    chosen, other = weight[t, index], weight[t, alternative]
    if read == "hard":
        mix = 0.5 / (1 + closest)
        return (chosen + ((mix - mix.detach())[..., None] * (other - chosen).detach())).sum(1)
    if read == "blend":
        mix = 0.5 / (1 + closest)
        return ((1 - mix)[..., None] * chosen + mix[..., None] * other).sum(1)
    beta, gamma = logs["log_beta"].exp(), logs["log_gamma"].exp()
    s = size.sum(-1) * torch.exp(gamma * -torch.log1p(torch.exp(-beta * size)).sum(-1))
    if read == "confidence":
        return (s[..., None] * chosen).sum(1)
    e = torch.exp(-2 * closest / logs["log_tau"].exp())
    v = e / (1 + e)
    return ((s * (1 - v))[..., None] * chosen + (s * v)[..., None] * other).sum(1)


def wanted(case: Case, read: str) -> dict[str, Tensor]:
    """y and the gradients of x, of the dense table and of the scalars."""
    x, weight = (tensor.detach().double().requires_grad_() for tensor in (case.x, case.dense()))
    logs = {name: log.requires_grad_() for name, log in scalars(read).items()}
    y = oracle(x, weight, case.anchors, read, logs, case.lr_scale)
    leaves = {"x": x, "weight": weight, **logs}
    gradients = torch.autograd.grad(y, list(leaves.values()), case.grad.double())
    return {"y": y.detach(), **dict(zip(leaves, gradients, strict=True))}


def got(case: Case, read: str, dtype: torch.dtype = torch.float64, **options: Any) -> dict[str, Tensor]:
    """The same of the layer."""
    x, weight = (tensor.detach().clone().requires_grad_() for tensor in (case.x, case.weight))
    logs = {name: log.requires_grad_() for name, log in scalars(read, dtype).items()}
    y = lut(x, weight, case.anchors, read=read, **logs, **case.options, **options)
    y.backward(case.grad)
    leaves = {"x": x, "weight": weight, **logs}
    assert all(leaf.grad is not None and leaf.grad.dtype == leaf.dtype for leaf in leaves.values())
    return {"y": y.detach(), **{name: leaf.grad.to_dense() for name, leaf in leaves.items()}}  # type: ignore[union-attr]


def compare(case: Case, actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert set(actual) == set(expected)
    for name, want in expected.items():
        if name == "weight" and case.synapses is not None:
            want = case.synapses.flatten(want)
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        torch.testing.assert_close(
            actual[name].double(), want, rtol=tolerance, atol=tolerance * scale, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize(("backend", "wiring", "read"), EACH)
@pytest.mark.parametrize("shape", [*SHAPES, (70, 5, 9, 2, 3)])
def test_outputs_and_gradients_against_autograd(backend: str, wiring: str, read: str, shape: tuple[int, ...]) -> None:
    case = make_case(wiring, fit(backend, shape))
    with use_backend(backend):
        compare(case, got(case, read), wanted(case, read), 1e-10)


@pytest.mark.parametrize(("read", "shape"), [*((read, (5, 11, 67, 3, 2)) for read in SOFT), ("blend", (70, 7, 67, 1, 1))])
def test_wide_rows_are_sorted_on_triton(read: str, shape: tuple[int, ...]) -> None:
    """Rows past 64 weights, and more of them than one program adds up."""
    case = make_case("fc", shape)
    with use_backend("triton"):
        compare(case, got(case, read), wanted(case, read), 1e-10)
        if shape[0] < 10:
            compare(case, got(case, read, gradient="sparse"), wanted(case, read), 1e-10)


def fit(backend: str, shape: tuple[int, ...] = SHAPES[0]) -> tuple[int, ...]:
    """Smaller for triton: its interpreter takes a millisecond for each row of the batch, and for each lookup neuron."""
    batch, n_inputs, n_outputs, n_detectors, n_anchors = shape
    return (min(batch, 4), n_inputs, n_outputs, n_detectors, min(n_anchors, 3)) if backend == "triton" else shape


@pytest.mark.parametrize(
    ("backend", "read"), [*(("reference", read) for read in SOFT), ("cpu", "confidence2"), ("triton", "confidence2")]
)
@pytest.mark.parametrize(("x_dtype", "weight_dtype", "tolerance"), [
    (torch.float32, torch.float32, 1e-5), (torch.float32, torch.bfloat16, 1e-2), (torch.bfloat16, torch.float32, 1e-2),
    (torch.float32, torch.float64, 1e-5), (torch.float64, torch.float32, 1e-5), (torch.float16, torch.float16, 3e-3),
])  # fmt: skip
def test_every_dtype(backend: str, read: str, x_dtype: torch.dtype, weight_dtype: torch.dtype, tolerance: float) -> None:
    case = make_case("shared", fit(backend))
    case.x, case.weight = case.x.to(x_dtype), case.weight.to(weight_dtype)
    case.grad = case.grad.to(torch.promote_types(x_dtype, weight_dtype))
    with use_backend(backend):
        actual = got(case, read, torch.float32)
    assert actual["y"].dtype == torch.promote_types(x_dtype, weight_dtype)
    compare(case, actual, wanted(case, read), tolerance)


@pytest.mark.parametrize(("backend", "wiring", "read"), EACH)
def test_sparse_gradients_hold_both_rows_where_there_are_two(backend: str, wiring: str, read: str) -> None:
    case = make_case(wiring, fit(backend))
    weight = case.weight.clone().requires_grad_()
    with use_backend(backend):
        expected = wanted(case, read)
        compare(case, got(case, read, gradient="sparse"), expected, 1e-10)
        lut(case.x, weight, case.anchors, read=read, gradient="sparse", **case.options).backward(case.grad)
        hard = case.weight.clone().requires_grad_()
        lut(case.x, hard, case.anchors, gradient="sparse", **case.options).backward(case.grad)
    assert weight.grad is not None
    assert hard.grad is not None
    assert weight.grad.is_sparse
    assert weight.grad.is_coalesced()
    rows, of_hard = ({tuple(at) for at in grad.indices().T.tolist()} for grad in (weight.grad, hard.grad))
    assert rows == of_hard if read == "confidence" else rows > of_hard


@pytest.mark.parametrize(("backend", "wiring", "read"), EACH)
@pytest.mark.parametrize(("dtype", "sums"), [(torch.float64, "float"), (torch.float32, "fixed"), (torch.bfloat16, "float")])
def test_a_step_in_place(backend: str, wiring: str, read: str, dtype: torch.dtype, sums: str) -> None:
    case = make_case(wiring, fit(backend), dtype=dtype)
    expected = wanted(case, read)
    x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
    before = weight._version
    with use_backend(backend):
        options = {"gradient": "in_place", "external_lr": lambda: 0.1, "sums": sums}
        y = lut(x, weight, case.anchors, read=read, **scalars(read), **options, **case.options)
        y.backward(case.grad)
    assert weight.grad is None
    assert weight._version > before
    step = case.dense().double() - 0.1 * expected["weight"]
    if case.synapses is not None:
        step = case.synapses.clamp_(case.synapses.flatten(step))
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(weight.detach().double(), step, rtol=tolerance, atol=tolerance)
    assert x.grad is not None
    scale = float(expected["x"].abs().max())
    torch.testing.assert_close(x.grad.double(), expected["x"], rtol=tolerance, atol=tolerance * scale)


def test_a_weight_used_by_two_reads_takes_one_step_of_each() -> None:
    case = make_case("fc")
    weight = case.weight.clone().requires_grad_()
    options = {"gradient": "in_place", "external_lr": 0.1, **case.options}
    y = lut(case.x, weight, case.anchors, read="blend", **options) + lut(case.x, weight, case.anchors, read="blend", **options)
    (y + lut(case.x, weight, case.anchors, **options)).backward(case.grad)
    steps = 2 * wanted(case, "blend")["weight"] + wanted(case, "hard")["weight"]
    torch.testing.assert_close(weight.detach(), case.weight - 0.1 * steps)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_threads_share_the_work(wiring: str, sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, each row and each table is worked on by one."""
    monkeypatch.setattr(threads, "SMALLEST_SHARE", 1)
    case, before = make_case(wiring, (150, 8, 5, 3, 4), dtype=torch.float32), torch.get_num_threads()
    results = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            with use_backend("cpu"):
                results.append(got(case, "confidence2", torch.float32, sums=sums, int_rescaler=0.1))
    finally:
        torch.set_num_threads(before)
    compare(case, results[0], wanted(case, "confidence2"), 1e-5 if sums == "float" else 1e-3)
    for other in results[1:]:
        assert all(torch.equal(other[name], value) for name, value in results[0].items())


# ---- fixed sums ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wiring", "read"), [("fc", "blend"), ("general", "confidence"), ("shared", "confidence2")])
def test_fixed_sums_are_the_same_on_every_backend(wiring: str, read: str) -> None:
    case = make_case(wiring, (4, 8, 5, 3, 3), dtype=torch.float32)
    results = []
    for backend in BACKENDS:
        with use_backend(backend):
            results.append(got(case, read, torch.float32, sums="fixed", int_rescaler=0.5))
            order = torch.randperm(len(case.x), generator=torch.Generator().manual_seed(0))
            shuffled = Case(case.x[order], case.weight, case.anchors, case.synapses, case.lr_scale, case.grad[order])
            mixed = got(shuffled, read, torch.float32, sums="fixed", int_rescaler=0.5)
            mixed |= {name: mixed[name][order.argsort()] for name in ("x", "y")}
            results.append(mixed)
    compare(case, results[0], wanted(case, read), 2e-4)
    for other in results[1:]:
        for name, value in results[0].items():
            assert torch.equal(other[name], value), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("wiring", "read"), [("fc", "blend"), ("general", "confidence"), ("shared", "confidence2")])
def test_overflow_is_found(backend: str, wiring: str, read: str) -> None:
    case = make_case(wiring, fit(backend), dtype=torch.float32)
    with use_backend(backend):
        with pytest.raises(OverflowInSumError):
            lut(case.x, case.weight * 1e6, case.anchors, read=read, sums="fixed", **case.options)
        weight = case.weight.clone().requires_grad_()
        y = lut(case.x, weight, case.anchors, read=read, sums="fixed", **case.options)
        with pytest.raises(OverflowInSumError):
            y.backward(case.grad * 1e7)


# ---- what the formulas promise ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("read", ["confidence", "confidence2"])
def test_large_and_infinitely_small_margins_are_stable(backend: str, read: str) -> None:
    case = make_case("fc", fit(backend), dtype=torch.float32)
    x = case.x
    for factor in (1e-30, 1e4):
        case.x = x * factor
        with use_backend(backend):
            actual = got(case, read, torch.float32)
        assert all(bool(value.isfinite().all()) for value in actual.values())
        compare(case, actual, wanted(case, read), 1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_by_hand(backend: str) -> None:
    """One detector of two pairs with margins 1 and -2: index 01, closest is the first, alt 00."""
    x = torch.tensor([[3.0, 2.0, 4.0]], dtype=torch.float64)
    anchors = torch.tensor([[[0, 1], [1, 2]]], dtype=torch.int32)
    weight = torch.tensor([[[10.0], [20.0], [30.0], [40.0]]], dtype=torch.float64)
    sigma = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731
    s = 3 * sigma(2) * sigma(4)
    v = sigma(-2 / 0.5)
    expected = {"hard": 20, "blend": 0.75 * 20 + 0.25 * 10, "confidence": s * 20, "confidence2": s * ((1 - v) * 20 + v * 10)}
    with use_backend(backend):
        for read, y in expected.items():
            assert lut(x, weight, anchors, read=read).item() == pytest.approx(y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_hard_read_has_the_slope_of_the_blend(backend: str) -> None:
    case = make_case("fc", fit(backend))
    with use_backend(backend):
        torch.testing.assert_close(got(case, "hard")["x"], got(case, "blend")["x"])


# ---- what only part of the gradients needs ---------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("asked", ["x", "weight", "log_beta", "log_gamma", "log_tau"])
def test_one_gradient_alone(backend: str, asked: str) -> None:
    case = make_case("shared", fit(backend))
    leaves = {"x": case.x.clone(), "weight": case.weight.clone(), **scalars("confidence2")}
    leaves[asked].requires_grad_()
    with use_backend(backend):
        logs = {name: leaves[name] for name in LOGS}
        y = lut(leaves["x"], leaves["weight"], case.anchors, read="confidence2", **logs, **case.options)
        (actual,) = torch.autograd.grad(y, [leaves[asked]], case.grad)
    want = wanted(case, "confidence2")[asked]
    assert case.synapses is not None
    torch.testing.assert_close(actual, case.synapses.flatten(want) if asked == "weight" else want)


def test_no_gradient_is_no_graph() -> None:
    case = make_case("fc")
    y = lut(case.x, case.weight, case.anchors, read="confidence2")
    assert not y.requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(lut(case.x, case.weight, case.anchors, read="confidence2"), y)


def test_twice_is_refused() -> None:
    case = make_case("fc")
    x = case.x.clone().requires_grad_()
    (dx,) = torch.autograd.grad(lut(x, case.weight, case.anchors, read="blend").sum(), x, create_graph=True)
    with pytest.raises(LutetiaError, match="differentiated twice"):
        dx.sum().backward()


def test_bad_arguments() -> None:
    case = make_case("fc")
    with pytest.raises(ArgumentError, match="read is 'soft', expected one of 'hard', 'blend'"):
        lut(case.x, case.weight, case.anchors, read="soft")
    with pytest.raises(ArgumentError, match=r"log_tau is .* expected None: the confidence read has no such scalar"):
        lut(case.x, case.weight, case.anchors, read="confidence", log_tau=torch.tensor(0.0))
    with pytest.raises(ArgumentError, match=r"log_beta is float32 \[3\] on cpu, expected shape \[\]"):
        lut(case.x, case.weight, case.anchors, read="confidence", log_beta=torch.zeros(3))


def test_autocast_changes_nothing() -> None:
    case = make_case("fc", dtype=torch.float32)
    want = lut(case.x, case.weight, case.anchors, read="confidence2")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = lut(case.x, case.weight, case.anchors, read="confidence2")
    assert y.dtype == torch.float32
    assert torch.equal(y, want)


# ---- the ops ---------------------------------------------------------------------------------------------------------


def op_and_arguments(name: str, case: Case, read: str) -> tuple[Any, tuple[Any, ...]]:
    """An op, and arguments for it."""
    header = "" if case.synapses is None else case.synapses.header_text
    wires = NO_WIRES if case.synapses is None else tuple(case.synapses.tensors().values())
    how = (*wires, text_of(How(backend="reference", header=header, read=read)))
    differentiable = name in ("read_detectors", "weigh_rows")
    logs: list[Any] = [log.requires_grad_(differentiable) for log in scalars(read).values()]
    logs += [None] * (3 - len(logs))
    case.x.requires_grad_(differentiable)
    case.weight.requires_grad_(differentiable)
    if name == "read_eval":
        return named(name), (case.x, case.weight, case.anchors, *logs, *how)
    if name == "read_detectors":
        return named(name), (case.x, case.anchors, *logs, *how)
    found = torch.ops.lutetia.read_detectors(case.x, case.anchors, *logs, *how)
    rows = [tensor.detach() for tensor in (*found[2:], *found[:2])]
    two = read in ("blend", "confidence2")
    if name == "read_detectors_gradients":
        da, db = torch.randn_like(rows[2]), torch.randn_like(rows[3])
        return named(name), (case.x, case.anchors, *logs, da, db if two else None, True, *how)
    if name == "weigh_rows":
        rows[2].requires_grad_()
        rows[3].requires_grad_(two)
        return named(name), (case.weight, *rows, two, torch.float64, *how)
    if name == "weigh_rows_gradients":
        given = (rows[0], rows[1], rows[2], rows[3] if two else None, two, two, case.synapses is not None)
        return named(name), (case.grad, case.weight, *given, *how)
    a, b, others = rows[2], rows[3] if two else None, rows[1] if two else None
    return named(name), (case.grad, rows[0], a, b, others, None, 0, 0, list(case.weight.shape), torch.float64, *how)


def named(name: str) -> Any:
    return getattr(torch.ops.lutetia, name).default


OPS = ("read_eval", "read_detectors", "read_detectors_gradients", "weigh_rows", "weigh_rows_gradients", "lut_weight_gradients")


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("wiring", "read"), [("fc", "confidence"), ("shared", "confidence2")])
def test_opcheck(name: str, wiring: str, read: str) -> None:
    op, arguments = op_and_arguments(name, make_case(wiring, (3, 8, 5, 3, 2)), read)
    done = torch.library.opcheck(op, arguments)
    assert set(done) == {"test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"}
    assert set(done.values()) == {"SUCCESS"}


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("wiring", "read"), [("fc", "blend"), ("fc", "confidence"), ("shared", "confidence2")])
def test_one_graph_compiles(compiler: str, wiring: str, read: str) -> None:
    case = make_case(wiring, (5, 8, 5, 3, 2))
    logs = scalars(read)

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        return lut(x * 2, weight, case.anchors, read=read, **logs, **case.options) + 1

    def differentiated(layer: Any) -> tuple[Tensor, ...]:
        x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
        y = layer(x, weight)
        return (y.detach(), *torch.autograd.grad(y, [x, weight], case.grad))

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=compiler, fullgraph=True, dynamic=True)
    with use_backend("reference"):
        torch.testing.assert_close(differentiated(compiled), differentiated(layer))
        with torch.no_grad():
            torch.testing.assert_close(compiled(case.x[:3], case.weight), layer(case.x[:3], case.weight))


# ---- flow ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_training_step_is_five_steps_of_the_flow(backend: str, wiring: str) -> None:
    case = make_case(wiring, (4, 8, 5, 3, 2), dtype=torch.float32)
    suffix = "fc" if wiring == "fc" else "sparse"
    with use_backend(backend), flow.record() as recorded:
        got(case, "confidence2", torch.float32)
    steps = {step.name: step for step in recorded.steps}
    read, fill, gains, gather, propagate = (
        "read_detectors", f"fill_outputs_weighted_{suffix}", f"row_gains_{suffix}",
        f"gather_weighted_gradients_{suffix}", "propagate_through_reads",
    )  # fmt: skip
    assert [step.name for step in recorded.steps] == [read, fill, gains, gather, propagate]
    assert all(step.part == "lut" and step.attributes["backend"] == backend for step in recorded.steps)
    assert {info.name: info.shape for info in steps[read].outputs} == dict.fromkeys(
        ("lookup_indices", "alternative_indices", "coefficients", "alternative_coefficients"), (4, 3)
    )
    names = [(edge.source, edge.input, edge.target) for edge in recorded.edges]
    edges = {(recorded.steps[source].name, name, recorded.steps[target].name) for source, name, target in names}
    assert (read, "coefficients", fill) in edges
    assert (gains, "coefficient_gradients", propagate) in edges
    assert {info.name for info in steps[propagate].outputs} == {"input_gradients", "scalar_gradients"}


@pytest.mark.parametrize(("backend", "fused"), [("reference", False), ("cpu", False), ("triton", True)])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_an_evaluation_in_the_flow(backend: str, fused: bool, wiring: str) -> None:
    case = make_case(wiring, (4, 8, 5, 3, 2), dtype=torch.float32)
    suffix = "fc" if wiring == "fc" else "sparse"
    with use_backend(backend), flow.record() as recorded:
        lut(case.x, case.weight, case.anchors, read="blend", **case.options)
    pieces = ["read_detectors", f"fill_outputs_weighted_{suffix}"]
    one = fused and wiring != "general"
    assert [step.name for step in recorded.steps] == ([f"detect_and_read_eval_{suffix}"] if one else pieces)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnTheGpu:
    """What only a GPU can show: real sizes, graphs, no waiting."""

    def grouped(self, batch: int = 2048) -> tuple[Any, Tensor, Tensor]:
        from lutetia.nn import ProjectedLUT

        layer = ProjectedLUT(384, 384, seed=0, device="cuda").tables
        torch.nn.init.normal_(layer.weight, generator=torch.Generator("cuda").manual_seed(0))
        # In steps of 1/256: differences are exact in float32, so float64 finds the same closest calls.
        x = (torch.randn(batch, 384, device="cuda") * 256).round() / 256
        return layer, x, torch.randn(batch, 384, device="cuda")

    @pytest.mark.parametrize("read", SOFT)
    @pytest.mark.parametrize("wiring", WIRINGS)
    @pytest.mark.parametrize("gradient", ["dense", "sparse"])
    def test_against_autograd(self, read: str, wiring: str, gradient: str) -> None:
        case = make_case(wiring, (211, 19, 130 if wiring == "fc" else 37, 13, 5))
        expected = wanted(case, read)
        leaves = {name: tensor.clone().cuda().requires_grad_() for name, tensor in
                  {"x": case.x, "weight": case.weight, **scalars(read)}.items()}  # fmt: skip
        logs = {name: leaves[name] for name in NAMES[read]}
        options = {"synapses": case.synapses.to("cuda")} if case.synapses is not None else case.options
        y = lut(leaves["x"], leaves["weight"], case.anchors.cuda(), read=read, gradient=gradient, **logs, **options)
        y.backward(case.grad.cuda())
        actual = {"y": y.detach().cpu(), **{name: leaf.grad.to_dense().cpu() for name, leaf in leaves.items()}}  # type: ignore[union-attr]
        compare(case, actual, expected, 1e-9)

    @pytest.mark.parametrize("read", SOFT)
    def test_fixed_sums_equal_the_cpu(self, read: str) -> None:
        case = make_case("shared", (64, 19, 37, 13, 5), dtype=torch.float32)
        with use_backend("reference"):
            want = got(case, read, torch.float32, sums="fixed", int_rescaler=0.1)
        case.x, case.weight, case.grad = case.x.cuda(), case.weight.cuda(), case.grad.cuda()
        case.anchors, case.synapses = case.anchors.cuda(), case.synapses.to("cuda")  # type: ignore[union-attr]
        logs = {name: log.requires_grad_() for name, log in scalars(read, torch.float32, "cuda").items()}
        x, weight = case.x.requires_grad_(), case.weight.requires_grad_()
        y = lut(x, weight, case.anchors, read=read, sums="fixed", int_rescaler=0.1, **logs, **case.options)
        y.backward(case.grad)
        for name, leaf in {"x": x, "weight": weight, **logs}.items():
            assert leaf.grad is not None
            assert torch.equal(leaf.grad.cpu(), want[name]), name
        assert torch.equal(y.detach().cpu(), want["y"])

    @pytest.mark.parametrize("read", READS)
    def test_the_grouped_shape_against_float64(self, read: str) -> None:
        from lutetia.nn import LUT

        grouped, x, grad = self.grouped()
        layer = LUT(384, 384, 512, 8, synapses=grouped.synapses, anchors=grouped.anchors, read=read, seed=1, device="cuda")
        torch.nn.init.normal_(layer.weight)
        results = []
        for dtype in (torch.float32, torch.float64):
            layer.zero_grad()
            layer.to(dtype)
            rows = x.to(dtype).detach().requires_grad_()
            y = layer(rows)
            y.backward(grad.to(dtype))
            with torch.no_grad():
                torch.testing.assert_close(layer(rows), y, rtol=1e-4, atol=1e-3)
            results.append([y.detach(), rows.grad, *(parameter.grad.clone() for parameter in layer.parameters())])
        for mine, want in zip(*results, strict=True):
            error = (mine.double() - want).norm() / want.norm()
            assert float(error) < 1e-4

    @pytest.mark.parametrize("read", SOFT)
    def test_capture_in_a_graph(self, read: str) -> None:
        layer, x, grad = self.grouped(256)
        anchors, synapses, weight = layer.anchors, layer.synapses, layer.weight
        x.requires_grad_()

        def step() -> tuple[Tensor, ...]:
            y = lut(x, weight, anchors, synapses=synapses, read=read)
            return (y, *torch.autograd.grad(y, (x, weight), grad))

        # Warmed up on a stream of its own, as capture wants it: autograd's nodes remember the stream they were made on.
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2):
                want = step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        graph.replay()
        torch.testing.assert_close(captured, want, rtol=1e-3, atol=1e-3)

    def test_a_step_does_not_wait_for_the_device(self) -> None:
        layer, x, grad = self.grouped(256)
        layer(x).backward(grad)
        torch.cuda.set_sync_debug_mode("error")
        try:
            layer(x.requires_grad_()).backward(grad)
            with torch.no_grad():
                layer(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
