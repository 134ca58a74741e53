"""The sparse gradient, and the step taken inside the backward pass, against dense gradients and SGD written out."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lut.oracle import SHAPES, WIRINGS, Case, gradients, make_case
from lutetia._shared import backward
from lutetia.errors import ArgumentError, OverflowInSumError
from lutetia.lut import SynapseMeta, lut, use_backend
from lutetia.nn import LUT

RATE = 0.3


@pytest.fixture(params=["reference", "cpu"], autouse=True)
def on_backend(request: pytest.FixtureRequest) -> Iterator[str]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # hundreds of tiny steps: on a busy machine waiting for a second thread is all they would do
    with use_backend(request.param):
        yield request.param
    torch.set_num_threads(threads)


def dense_gradient(case: Case, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """dW of the oracle, like the weight, float64."""
    dw = gradients(x, case.dense(case.weight.detach()), case.anchors, grad)[2] * case.lr_scale
    return dw if case.synapses is None else case.synapses.flatten(dw)


def clamped(case: Case, weight: torch.Tensor) -> torch.Tensor:
    return weight if case.synapses is None else case.synapses.clamp_(weight.clone())


# ---- sparse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_sparse_gradient_is_the_dense_one_without_the_rows_that_were_not_read(wiring: str, shape: tuple[int, ...]) -> None:
    case = make_case(wiring, shape)
    x, weight = case.x.requires_grad_(), case.weight.requires_grad_()
    lut(x, weight, case.anchors, gradient="sparse", **case.options).backward(case.grad)
    got = weight.grad
    assert got is not None
    assert got.is_sparse
    assert got.is_coalesced()
    assert (got.sparse_dim(), got.dense_dim()) == ((2, 1) if wiring == "fc" else (1, 0))
    torch.testing.assert_close(got.to_dense(), dense_gradient(case, x, case.grad))
    torch.testing.assert_close(x.grad, gradients(x, case.dense(weight.detach()), case.anchors, case.grad)[1])
    places = got.indices()
    flat = places[0] * weight.shape[1] + places[1] if wiring == "fc" else places[0]
    assert (flat.diff() > 0).all(), "coalesced means sorted and unique"
    if wiring == "fc":  # a row that was not read has no entry, a row that was read has one
        used = {(t, row) for sample in read_rows(case) for t, row in enumerate(sample)}
        assert got._nnz() == len(used)


def read_rows(case: Case) -> list[list[int]]:
    bits = case.x[:, case.anchors[..., 0]] > case.x[:, case.anchors[..., 1]]
    return (bits * 2 ** torch.arange(case.anchors.shape[1])).sum(-1).tolist()


@pytest.mark.parametrize("wiring", WIRINGS)
def test_sgd_with_sparse_gradients_is_sgd(wiring: str) -> None:
    case = make_case(wiring)
    weights = []
    for gradient in ("dense", "sparse"):
        weight = case.weight.clone().requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            for part in (case.x[:4], case.x[4:]):  # two backward passes add up
                lut(part + step, weight, case.anchors, gradient=gradient, **case.options).square().sum().backward()
            optimizer.step()
        weights.append(weight.detach())
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_sparse_adam_trains(wiring: str) -> None:
    case = make_case(wiring)
    weight = case.weight.clone().requires_grad_()
    optimizer = torch.optim.SparseAdam([weight], lr=0.05)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = (lut(case.x, weight, case.anchors, gradient="sparse", **case.options) - case.grad).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]


def test_a_sparse_gradient_has_the_dtype_of_the_weight() -> None:
    case = make_case("fc", dtype=torch.bfloat16)
    weight = case.weight.requires_grad_()
    lut(case.x, weight, case.anchors, gradient="sparse").backward(case.grad)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16


# ---- in place --------------------------------------------------------------------------------------------------------


def step_in_place(case: Case, weight: torch.Tensor, x: torch.Tensor | None = None, lr: Any = RATE, **more: Any) -> torch.Tensor:
    x = case.x if x is None else x
    return lut(x, weight, case.anchors, gradient="in_place", external_lr=lr, **(case.options | more))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_step_in_place_is_a_step_of_sgd(wiring: str, shape: tuple[int, ...]) -> None:
    case = make_case(wiring, shape)
    before = case.weight.clone()
    x, weight = case.x.requires_grad_(), case.weight.clone().requires_grad_()
    step_in_place(case, weight).backward(case.grad)
    want = clamped(case, before - RATE * dense_gradient(case, x, case.grad))
    assert weight.grad is None
    torch.testing.assert_close(weight.detach(), want)
    torch.testing.assert_close(x.grad, gradients(x, case.dense(before), case.anchors, case.grad)[1])


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_weight_used_twice_takes_one_step_with_the_sum(wiring: str) -> None:
    """The second use lies behind the first: its gradient must come through the first's weights as they were."""
    case = make_case(wiring, (7, 5, 5, 3, 4))
    out = []
    for gradient in ("dense", "in_place"):
        x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()
        options = {"gradient": gradient, "external_lr": RATE, **case.options}
        hidden = lut(x, weight, case.anchors, **options)
        y = lut(hidden, weight, case.anchors, **options) + lut(x[:3], weight, case.anchors, **options).sum()
        y.backward(case.grad)
        if gradient == "dense":
            assert weight.grad is not None
            weight = clamped(case, weight.detach() - RATE * weight.grad)
        out.append((x.grad, weight.detach()))
    torch.testing.assert_close(out[0], out[1])


def test_the_sum_of_two_uses_is_clamped_once() -> None:
    case = make_case("fc", (1, 5, 2, 1, 2))
    meta = SynapseMeta(min_weight=-1.0, max_weight=1.0)
    weight = torch.zeros(1, 4, 2, dtype=torch.float64, requires_grad=True)
    up, down = (step_in_place(case, weight, lr=1.0, meta=meta) for _ in range(2))
    (3.0 * up - 2.5 * down).sum().backward()  # one after the other they would end at -1 + 2.5, clamped: 1
    row = read_rows(case)[0][0]
    assert weight[0, row].tolist() == [-0.5, -0.5]


def test_steps_keep_within_bounds() -> None:
    case = make_case("fc")
    weight = case.weight.clone().requires_grad_()
    step_in_place(case, weight, lr=100.0, meta=SynapseMeta(min_weight=-0.25, max_weight=0.125)).backward(case.grad)
    assert (weight.min().item(), weight.max().item()) == (-0.25, 0.125)
    case = make_case("general")
    weight = case.weight.clone().requires_grad_()
    step_in_place(case, weight, lr=100.0).backward(case.grad)
    assert case.synapses is not None
    bounded = case.synapses.weight_meta == 1
    assert (weight[bounded].min().item(), weight[bounded].max().item()) == (-0.5, 1.5)
    assert weight[~bounded].abs().max() > 10


def test_the_rate_may_be_a_function_asked_at_each_backward() -> None:
    case = make_case("fc")
    rates = iter([0.1, 0.2])
    weight = case.weight.clone().requires_grad_()
    step_in_place(case, weight, lr=lambda: next(rates))  # a forward pass does not ask
    want = case.weight.clone()
    for rate in (0.1, 0.2):
        step_in_place(case, weight, lr=lambda: next(rates)).backward(case.grad)
        want = want - rate * dense_gradient(case, case.x, case.grad)
    torch.testing.assert_close(weight.detach(), want)
    with pytest.raises(StopIteration):
        step_in_place(case, weight, lr=lambda: next(rates)).backward(case.grad)
    torch.testing.assert_close(weight.detach(), want)


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf"), "fast", None])
def test_a_rate_that_cannot_be_used(rate: Any) -> None:
    case = make_case("fc")
    weight = case.weight.requires_grad_()
    with pytest.raises(ArgumentError, match="external_lr"):
        step_in_place(case, weight, lr=rate)
    if rate is not None:
        y = step_in_place(case, weight, lr=lambda: rate)
        with pytest.raises(ArgumentError, match="external_lr"):
            y.sum().backward()


def test_every_backward_is_a_step() -> None:
    case = make_case("fc")
    weight = case.weight.clone().requires_grad_()
    first, second = (step_in_place(case, weight, x) for x in (case.x[:3], case.x[3:]))
    first.backward(case.grad[:3])
    second.backward(case.grad[3:])
    torch.testing.assert_close(weight.detach(), case.weight - RATE * dense_gradient(case, case.x, case.grad))


def test_no_step_without_a_gradient_for_the_weight() -> None:
    case = make_case("fc")
    x, weight = case.x.requires_grad_(), case.weight.clone().requires_grad_()
    with torch.no_grad():
        step_in_place(case, weight)
    torch.autograd.grad(step_in_place(case, weight).sum(), x)
    step_in_place(case, weight).sum().backward(inputs=[x])
    step_in_place(case, weight.detach()).sum().backward()
    assert torch.equal(weight, case.weight)
    assert weight._version == 0


def test_a_backward_that_fails_takes_no_step() -> None:
    case = make_case("fc")
    x, weight = case.x.clone().requires_grad_(), case.weight.clone().requires_grad_()

    def fail(grad: torch.Tensor) -> None:
        raise ZeroDivisionError

    x.register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        step_in_place(case, weight, x).sum().backward()
    assert torch.equal(weight, case.weight)
    assert len(backward._endings) == 0
    step_in_place(case, weight).backward(case.grad)
    torch.testing.assert_close(weight.detach(), case.weight - RATE * dense_gradient(case, case.x, case.grad))


def test_a_second_pass_over_a_graph_whose_weights_have_changed_is_refused() -> None:
    case = make_case("fc")
    weight = case.weight.clone().requires_grad_()
    y = step_in_place(case, weight, case.x.requires_grad_()).sum()
    y.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_an_overflow_leaves_the_weight_alone() -> None:
    case = make_case("fc", dtype=torch.float32)
    weight = case.weight.clone().requires_grad_()
    y = step_in_place(case, weight, sums="fixed")
    with pytest.raises(OverflowInSumError):
        y.backward(case.grad * 1e6)
    assert torch.equal(weight, case.weight)


def test_a_weight_that_is_computed_cannot_take_steps() -> None:
    case = make_case("fc")
    for weight in (case.weight.clone().requires_grad_() * 2, case.weight.transpose(0, 2).contiguous().transpose(0, 2)):
        with pytest.raises(ArgumentError, match="a contiguous leaf"):
            step_in_place(case, weight if weight.requires_grad else weight.requires_grad_())


def test_nothing_is_kept_after_a_step() -> None:
    case = make_case("fc")
    weight = case.weight.clone().requires_grad_()
    y = step_in_place(case, weight)
    seen = weakref.ref(y)
    y.sum().backward()
    del y
    gc.collect()
    assert seen() is None
    assert len(backward._endings) == 0


# ---- compiled --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_backend", ["reference"], indirect=True)
@pytest.mark.parametrize("gradient", ["sparse", "in_place"])
@pytest.mark.parametrize("wiring", ["fc", "shared"])
def test_they_compile_into_one_graph(gradient: str, wiring: str) -> None:
    case = make_case(wiring)
    results = []

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return lut(x * 2, weight, case.anchors, gradient=gradient, external_lr=RATE, **case.options).square()

    torch._dynamo.reset()
    for run in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        weight = case.weight.clone().requires_grad_()
        x = case.x.clone().requires_grad_()
        (run(x, weight).sum() + run(x + 0.1, weight).sum()).backward()  # one step of the sum
        run(x, weight).sum().backward()
        assert (weight.grad is None) if gradient == "in_place" else weight.grad.is_sparse
        assert not weight._post_accumulate_grad_hooks
        results.append((weight.detach(), x.grad, None if weight.grad is None else weight.grad.to_dense()))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("on_backend", ["reference"], indirect=True)
@pytest.mark.parametrize("read", ["hard", "confidence2"])
def test_a_compiled_layer_asks_for_its_rate_at_each_step(read: str) -> None:
    torch._dynamo.reset()
    weights = []
    for compiled in (False, True):
        layer = LUT(5, 3, 4, 2, seed=0, gradient="in_place", read=read, meta=SynapseMeta(max_weight=0.2))
        run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
        for k in range(4):
            layer.external_lr = 0.1 / (k + 1) if k % 2 else (lambda k=k: 0.1 / (k + 1))
            run(x).sum().backward()
        torch.autograd.grad(run(x).sum(), x)  # no step
        weights.append(layer.weight.detach())
        assert layer.weight.grad is None
    torch.testing.assert_close(*weights)
    assert float(weights[0].max()) <= 0.2
    layer.external_lr = None
    with pytest.raises(ArgumentError, match="external_lr is None"):
        run(x).sum().backward()
