"""Small layers in compiled graphs on CUDA, which become the kernels of `plain`: as the reference, and safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

import lutetia
from lutetia import flow
from lutetia.lut import lut, lut_attention, random_anchors, use_backend
from lutetia.lut.autograd import graphs, small_layers
from lutetia.lut.kernels.triton import plain
from lutetia.nn import LUT

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_static")  # sums of a GPU have no order: no bits are compared
# B, I, O, N_t, N_c: single, primes, more detectors than one program has, outputs past one tile of gains, inputs past one of zeros
SHAPES = [(1, 2, 1, 1, 1), (7, 13, 5, 3, 4), (3, 5, 33, 17, 2), (9, 131, 64, 2, 3), (17, 6, 3, 1, 5), (5, 9, 130, 3, 2)]


def case(shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """x [B, I], weight, anchors, grad [B, O]; inputs are small integers at first, so that ties and zeros are common."""
    batch, n_inputs, n_outputs, n_detectors, n_anchors = shape
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randint(-2, 3, (batch, n_inputs), generator=generator).float()
    x[batch // 2 :] += torch.rand(batch - batch // 2, n_inputs, generator=generator)
    weight = torch.randn(n_detectors, 2**n_anchors, n_outputs, generator=generator)
    grad = torch.randn(batch, n_outputs, generator=generator)
    return tuple(each.to(DEVICE) for each in (x, weight, random_anchors(n_inputs, n_detectors, n_anchors, seed=1), grad))


def by_reference(x: torch.Tensor, weight: torch.Tensor, anchors: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """y, dx and dW in float64."""
    inputs = [each.double().requires_grad_() for each in (x, weight)]
    with use_backend("reference"):
        y = lut(inputs[0], inputs[1], anchors)
        return [each.detach().float() for each in (y, *torch.autograd.grad(y, inputs, grad.double()))]


@pytest.mark.parametrize("shape", SHAPES)
def test_as_the_reference(shape: tuple[int, ...]) -> None:
    x, weight, anchors, grad = case(shape)
    y, dx, dw = by_reference(x, weight, anchors, grad)
    torch.testing.assert_close(plain.fill(x, weight, anchors), y, rtol=1e-5, atol=1e-5)
    for to_x in (True, False):
        got = plain.gradients(grad, x, weight, anchors, to_x)
        torch.testing.assert_close(got[1], dw, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got[0], dx if to_x else dx.new_empty(0), rtol=1e-4, atol=1e-5)


# B, I, then O, N_t, N_c of each layer: two to four, of different sizes
STACKS = [
    (1, 2, (2, 1, 1), (1, 1, 1)),
    (7, 13, (5, 3, 4), (3, 2, 2), (8, 5, 1)),
    (6, 5, (33, 16, 2), (64, 2, 3), (4, 13, 2), (7, 3, 5)),
    (9, 131, (32, 16, 3), (32, 16, 3)),
]


def stack_case(batch: int, n_inputs: int, *sizes: tuple[int, ...]) -> tuple[torch.Tensor, list[tuple[torch.Tensor, ...]]]:
    """x [B, I]; weight and anchors of each layer."""
    layers = []
    for number, (n_outputs, n_detectors, n_anchors) in enumerate(sizes):
        anchors = random_anchors(n_inputs if number == 0 else sizes[number - 1][0], n_detectors, n_anchors, seed=number)
        weight = torch.randn(n_detectors, 2**n_anchors, n_outputs, generator=torch.Generator().manual_seed(number))
        layers.append((weight.to(DEVICE), anchors.to(DEVICE)))
    return case((batch, n_inputs, 1, 1, 1))[0], layers


@pytest.mark.parametrize("shape", STACKS)
def test_stacks_as_the_reference(shape: tuple[Any, ...]) -> None:
    """All layers in one launch: every y, dy, dW and dx in float64."""
    x, layers = stack_case(*shape)
    assert small_layers.are_stacked(layers)
    assert not small_layers.are_stacked([*layers, *layers, *layers])
    inputs, weights = x.double().requires_grad_(), [weight.double().requires_grad_() for weight, _ in layers]
    ys = [inputs]
    with use_backend("reference"):
        for weight, (_, anchors) in zip(weights, layers, strict=True):
            ys.append(lut(ys[-1], weight, anchors))
    torch.testing.assert_close(plain.fill_stack(x, layers), ys[-1].detach().float(), rtol=1e-5, atol=1e-5)
    grad = torch.randn(ys[-1].shape, generator=torch.Generator().manual_seed(9)).to(DEVICE)
    want = [each.float() for each in torch.autograd.grad(ys[-1], [*ys[:-1], *weights], grad.double())]
    for to_x in (True, False):
        dx, dys, dws = plain.stack_gradients(grad, x, layers, to_x)
        torch.testing.assert_close([*dys, *dws], want[1:], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dx, want[0] if to_x else x.new_empty(0), rtol=1e-4, atol=1e-4)


def test_a_batch_that_chooses_the_same_rows() -> None:
    """What neighbours add to one row of a table is added up first: also where the last program has fewer of them."""
    x, weight, anchors, grad = case((11, 13, 5, 3, 4))
    x = torch.cat([x[:1].expand(9, -1), x[9:]])
    _, dx, dw = by_reference(x, weight, anchors, grad)
    torch.testing.assert_close(plain.gradients(grad, x, weight, anchors, True), (dx, dw), rtol=1e-4, atol=1e-5)


def test_anchors_outside_of_the_inputs_reach_no_memory() -> None:
    """They read 0 and get nothing: a layer's anchors can be written to behind its back."""
    x, weight, anchors, grad = case((7, 13, 5, 3, 4))
    wild, beside = anchors.clone(), torch.cat([x, x.new_zeros(7, 2)], 1)
    wild[0, 0, 0], wild[1, 2, 1] = -(2**31), 2**31 - 1
    anchors[0, 0, 0], anchors[1, 2, 1] = 13, 14  # two inputs more, which are 0
    y, dx, dw = by_reference(beside, weight, anchors, grad)
    torch.testing.assert_close(plain.fill(x, weight, wild), y, rtol=1e-5, atol=1e-5)
    got = plain.gradients(grad, x, weight, wild, True)
    torch.testing.assert_close(got, (dx[:, :13].contiguous(), dw), rtol=1e-4, atol=1e-5)


def test_the_op_and_its_gradients() -> None:
    x, weight, anchors, grad = case((7, 13, 5, 3, 4))
    x.requires_grad_()
    for wanted in ([x, weight.requires_grad_()], [weight]):
        x.requires_grad_(len(wanted) == 2)
        torch.library.opcheck(torch.ops.lutetia.lut_layer.default, (x, weight, anchors, small_layers.SOURCE))
        got = torch.autograd.grad(torch.ops.lutetia.lut_layer(x, weight, anchors, small_layers.SOURCE), wanted, grad)
        expected = by_reference(x.detach(), weight.detach(), anchors, grad)[3 - len(wanted) :]
        torch.testing.assert_close(list(got), expected, rtol=1e-4, atol=1e-5)
    arguments = (grad, x.detach(), weight.detach(), anchors, True, small_layers.SOURCE)
    torch.library.opcheck(torch.ops.lutetia.lut_layer_gradients.default, arguments)


@pytest.mark.parametrize(("shape", "shared"), [((2, 5, 7), False), ((3, 1, 4), True), ((1, 9, 5), True)])
def test_the_op_of_sequences_and_its_gradients(shape: tuple[int, ...], shared: bool) -> None:
    """As `lut_attention` in float64; B, S, I and whether all detectors share the positions."""
    generator = torch.Generator().manual_seed(sum(shape))
    x, grad = (torch.randn(*size, generator=generator).to(DEVICE) for size in (shape, (*shape[:2], 6)))
    weight = torch.randn(3, 2**5, 6, generator=generator).to(DEVICE)
    anchors = random_anchors(shape[2], 3, 2, seed=0).to(DEVICE)
    positions = torch.randn(9, 1 if shared else 3, 1, generator=generator).to(DEVICE)
    learned = [each.requires_grad_() for each in (x, positions, weight)]
    doubles = [each.detach().double().requires_grad_() for each in learned]
    with use_backend("reference"):
        y = lut_attention(doubles[0], doubles[2], anchors, doubles[1])
        want = [y, *torch.autograd.grad(y, doubles, grad.double())]
    given = (x, weight, anchors, positions, small_layers.SOURCE)
    torch.library.opcheck(torch.ops.lutetia.lut_attention_layer.default, given)
    y = torch.ops.lutetia.lut_attention_layer(*given)
    got = [y, *torch.autograd.grad(y, learned, grad)]
    torch.testing.assert_close(got, [each.float() for each in want], rtol=1e-4, atol=1e-4)
    weight.requires_grad_(False)
    got = torch.autograd.grad(torch.ops.lutetia.lut_attention_layer(*given), [x, positions], grad)
    torch.testing.assert_close(list(got), [each.float() for each in want[1:3]], rtol=1e-4, atol=1e-4)


def small(batch: int = 4, n_outputs: int = 3, n_detectors: int = 5, device: str = "cuda") -> bool:
    with FakeTensorMode():
        x, weight = torch.empty(batch, 8, device=device), torch.empty(n_detectors, 16, n_outputs, device=device)
        return graphs.is_small(x, weight, torch.empty(n_detectors, 4, 2, dtype=torch.int32, device=device))


def test_which_layers_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    assert small()
    assert not small(device="cpu")
    assert not small(batch=0)
    assert not small(batch=2**14)
    assert small(n_outputs=256)
    assert not small(n_outputs=257)
    assert not small(batch=2**12, n_outputs=256, n_detectors=2**7 + 1)
    assert not small(batch=2**13, n_detectors=2**8)
    with flow.record():
        assert not small()  # a recording sees ops
    monkeypatch.setattr(lutetia, "debug", True)
    assert not small()


def test_which_sequences_are_small() -> None:
    with FakeTensorMode():
        anchors, weight = torch.empty(64, 6, 2), torch.empty(64, 2**16, 32)
        for size, expected in ((64, 32), True), ((32, 128), False), ((64, 1), False), ((0, 32), False):
            assert graphs.is_small_sequence(torch.empty(*size, 32, device="cuda"), weight, anchors) == expected
        assert not graphs.is_small_sequence(torch.empty(64, 32, 32), weight, anchors)


# ---- what graphs call ------------------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all tensors were on a GPU."""
    monkeypatch.setattr(small_layers, "_is_shown", lambda *tensors: True)


def ops_of(n: int, way: str = "plain") -> list[list[str]]:
    """The ops that graphs of n layers call: forward and backward, then in evaluation."""

    def network(x: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        y, first = x, None
        for weight, anchors in zip(tensors[::2], tensors[1::2], strict=True):
            y = torch.ops.lutetia.lut_layer(y, weight, anchors, 0)
            first = y if first is None else first
            if way == "y changes" and y is first:
                y.mul_(2)
            if way == "a weight changes" and y is first:
                tensors[0].mul_(2)
        return y + first if way == "y is used twice" and first is not None else y

    found: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, arguments: Any) -> torch.fx.GraphModule:
        names = [str(node.target) for node in graph.graph.nodes if str(node.target).startswith("lutetia.")]
        found.append([name.split(".")[1] for name in names])
        return graph

    with FakeTensorMode():
        x, sizes = torch.empty(64, 8, requires_grad=way != "x is fixed"), ((4, 16, 8), (4, 4, 2))
        tensors = [x]
        for number in range(n):
            tensors.append(torch.empty(sizes[0], requires_grad=way != "a weight is fixed" or number != 1))
            tensors.append(torch.empty(sizes[1], dtype=torch.int32))
        if way != "a weight changes":  # which autograd refuses
            aot_function(network, keep, keep, partition_fn=min_cut_rematerialization_partition)(*tensors).sum().backward()
        with torch.no_grad():
            aot_function(network, keep)(*(each.detach() for each in tensors))
    return found


@pytest.mark.usefixtures("shown")
def test_layers_that_follow_each_other_are_one_kernel() -> None:
    fill, gradients = ["stack_fill"], ["stack_gradients"]
    assert ops_of(1) == [["plain_fill"], ["plain_gradients"], ["plain_fill"]]
    for n in (2, 3, 4):
        assert ops_of(n) == [fill, gradients, fill]
    assert ops_of(6) == [2 * fill, 2 * gradients, 2 * fill]  # four layers, and two
    assert ops_of(3, "x is fixed") == [fill, gradients, fill]


@pytest.mark.usefixtures("shown")
def test_a_change_between_layers_is_seen() -> None:
    """What is used elsewhere, too, or was changed is computed apart."""
    apart = [["plain_fill", "stack_fill"], ["stack_gradients", "plain_gradients"], ["plain_fill", "stack_fill"]]
    for way in ("y changes", "y is used twice"):
        assert ops_of(3, way) == apart
    assert ops_of(3, "a weight changes")[0] == apart[0]
    assert "stack_gradients" not in ops_of(3, "a weight is fixed")[1]


@pytest.mark.parametrize("shape", STACKS)
def test_the_ops_of_stacks(shape: tuple[Any, ...]) -> None:
    """They give what they say, also to those who only ask for sizes."""
    x, layers = stack_case(*shape)
    tensors, grad = small_layers.Stack.of(x, layers).tensors(), torch.randn(shape[0], shape[-1][0], device=DEVICE)
    torch.library.opcheck(torch.ops.lutetia.stack_fill.default, (x, *tensors))
    for to_x in (True, False):
        torch.library.opcheck(torch.ops.lutetia.stack_gradients.default, (grad, x, *tensors, to_x), test_utils=CHECKS)
    (weight, anchors), grad = layers[0], torch.randn(shape[0], shape[2][0], device=DEVICE)
    torch.library.opcheck(torch.ops.lutetia.plain_fill.default, (x, weight, anchors))
    torch.library.opcheck(torch.ops.lutetia.plain_gradients.default, (grad, x, weight, anchors, True), test_utils=CHECKS)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def code_of(call: Callable[[], Any]) -> str:
    """The code of the graphs that a call compiles."""
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    with torch._inductor.config.patch(force_disable_caches=True):  # which hold the code of other versions of ours
        return "".join(run_and_get_code(call)[1])


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [*SHAPES, (4096, 64, 64, 64, 10), (4096, 32, 32, 16, 6), (4096, 256, 256, 128, 8)])
def test_a_compiled_layer_launches_its_kernels(shape: tuple[int, ...]) -> None:
    x, _, _, grad = case(shape)
    layer = LUT(*shape[1:], seed=0).to(DEVICE)
    expected = by_reference(x, layer.weight.detach(), layer.anchors, grad)
    compiled, got = torch.compile(layer, fullgraph=True), []

    def step() -> None:
        learned = [x.requires_grad_(), layer.weight]
        y = compiled(x)
        got.extend([y.detach(), *torch.autograd.grad(y, learned, grad)])
        with torch.no_grad():
            got.append(compiled(x))

    code = code_of(step)
    torch.testing.assert_close(got, [*expected, expected[0]], rtol=1e-4, atol=1e-4)
    assert code.count("LutetiaCall('plain_fill')") == 2
    assert code.count("LutetiaCall('plain_gradients')") == code.count("LutetiaCall(") - 2 == 1
    assert ".clone" not in code


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "skips"), [(2, False), (3, True), (6, False)])
def test_compiled_layers_that_follow_each_other(n: int, skips: bool) -> None:
    """As each alone, in few launches; also where one is used twice."""
    sizes = [13, 32, 8, 64, 32, 32, 5][: n + 1]
    layers = torch.nn.ModuleList(LUT(sizes[i], sizes[i + 1], 16 - i, 4, seed=i) for i in range(n)).to(DEVICE)
    x, grad = torch.randn(1031, 13, device=DEVICE, requires_grad=True), torch.randn(1031, sizes[n], device=DEVICE)

    def network(x: torch.Tensor) -> torch.Tensor:
        first = y = layers[0](x)
        for layer in layers[1:]:
            y = layer(y)
        return y + first.sum(1, keepdim=True) if skips else y

    learned, got = [x, *layers.parameters()], []
    expected = [network(x).detach(), *torch.autograd.grad(network(x), learned, grad)]

    def step() -> None:
        y = torch.compile(network, fullgraph=True)(x)
        got.extend([y.detach(), *torch.autograd.grad(y, learned, grad)])

    code = code_of(step)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
    assert code.count("LutetiaCall('stack_fill')") == (2 if n > 4 else 1)
    assert code.count("LutetiaCall('plain_fill')") == int(skips)


def small_layer() -> tuple[LUT, Callable[[torch.Tensor], torch.Tensor]]:
    """A layer of 13 inputs, and the same compiled."""
    torch.compiler.reset()
    layer = LUT(13, 5, 3, 4, seed=0).to(DEVICE)
    return layer, torch.compile(layer, fullgraph=True)


@pytest.mark.gpu
def test_sizes_that_change_and_frozen_tables_go_through_ops() -> None:
    (layer, compiled), rows = small_layer(), torch.randn(64, 13, device=DEVICE, requires_grad=True)
    for n in (7, 9, 11, 64):
        y, want = compiled(rows[:n]), layer(rows[:n])
        torch.testing.assert_close(y, want)
        learned = (rows, layer.weight)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), learned), torch.autograd.grad(want.sum(), learned))
    layer.weight.requires_grad_(False)
    code = code_of(lambda: compiled(rows).sum().backward())
    assert "plain_gradients" not in code  # it would make a gradient of the tables
    assert rows.grad is not None
    torch.testing.assert_close(rows.grad, torch.autograd.grad(layer(rows).sum(), rows)[0])


@pytest.mark.gpu
def test_anchors_that_change_are_followed() -> None:
    (layer, compiled), x = small_layer(), torch.randn(64, 13, device=DEVICE)
    with torch.no_grad():
        compiled(x)
        layer.anchors.copy_(random_anchors(13, 3, 4, seed=7))
        torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.gpu
def test_a_recording_sees_the_steps_of_a_compiled_layer() -> None:
    (_, compiled), x = small_layer(), torch.randn(64, 13, device=DEVICE)
    compiled(x)
    with flow.record() as run:
        compiled(x).sum().backward()
    assert len(run.steps) >= 2
