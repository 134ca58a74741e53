"""Small layers in compiled graphs on CUDA, which launch the kernels of `plain` themselves: as the reference, and safe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import triton_kernel_wrap
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

import lutetia
from gpu_code import compile_for_gpu
from lutetia import flow
from lutetia.lut import lut, random_anchors, use_backend
from lutetia.lut.autograd import graphs
from lutetia.lut.kernels.triton import plain
from lutetia.nn import LUT

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# B, I, O, N_t, N_c: single, primes, more detectors than one program has, outputs past one tile of gains, inputs past one of zeros
SHAPES = [(1, 2, 1, 1, 1), (7, 13, 5, 3, 4), (3, 5, 33, 17, 2), (9, 131, 64, 2, 3), (17, 6, 3, 1, 5), (5, 9, 130, 3, 2)]


@pytest.fixture(autouse=True)
def launched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run as they are: under the interpreter there is nothing that a compiled graph could take."""
    monkeypatch.setattr(torch.library, "wrap_triton", lambda kernel: kernel)


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
    assert plain.stacks(layers)
    assert not plain.stacks([*layers, *layers, *layers])
    inputs, weights = x.double().requires_grad_(), [weight.double().requires_grad_() for weight, _ in layers]
    ys = [inputs]
    with use_backend("reference"):
        for weight, (_, anchors) in zip(weights, layers, strict=True):
            ys.append(lut(ys[-1], weight, anchors))
    torch.testing.assert_close(plain.fill_stack(x, layers), [y.detach().float() for y in ys[1:]], rtol=1e-5, atol=1e-5)
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
        torch.library.opcheck(torch.ops.lutetia.lut_layer.default, (x, weight, anchors, graphs.SOURCE))
        got = torch.autograd.grad(torch.ops.lutetia.lut_layer(x, weight, anchors, graphs.SOURCE), wanted, grad)
        expected = by_reference(x.detach(), weight.detach(), anchors, grad)[3 - len(wanted) :]
        torch.testing.assert_close(list(got), expected, rtol=1e-4, atol=1e-5)
    arguments = (grad, x.detach(), weight.detach(), anchors, True, graphs.SOURCE)
    torch.library.opcheck(torch.ops.lutetia.lut_layer_gradients.default, arguments)


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


SCRIPT = """
import warnings
import torch._functorch.config
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._higher_order_ops import triton_kernel_wrap
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch._subclasses.fake_tensor import FakeTensorMode
from lutetia.lut.autograd import graphs
from lutetia.lut.kernels.triton import plain

JITFunction.run = run
warnings.simplefilter("ignore")
graphs._is_shown = lambda *tensors: True  # as if they were on a GPU
identify, known = triton_kernel_wrap.identify_accessed_tensors, {}

def identify_once(kernel, given, others):  # Triton compiles a kernel for the answer, and torch asks at each launch
    key = kernel.fn.__name__, *((name, str(getattr(each, "dtype", each))) for name, each in sorted(given.items()))
    if key not in known:
        known[key] = identify(kernel, given, others)
    return known[key]

triton_kernel_wrap.identify_accessed_tensors = identify_once

def graph_of(way, n):  # the names of the kernels that graphs of n layers launch: forward, backward, in evaluation
    def network(x, *tensors):
        y, first = x, None
        for weight, anchors in zip(tensors[::2], tensors[1::2]):
            y = torch.ops.lutetia.lut_layer(y, weight, anchors, 0)
            first = y if first is None else first
            if way == "y changes" and y is first:
                y.mul_(2)
            if way == "a weight changes" and y is first:
                tensors[0].mul_(2)
        return y + first if way == "y is used twice" else y

    found = []
    def keep(graph, arguments):
        nodes = [node for node in graph.graph.nodes if "triton_kernel_wrapper" in str(node.target)]
        names = [kernel_side_table.get_kernel(node.kwargs["kernel_idx"]).fn.__name__ for node in nodes]
        found.append([name.removesuffix("_kernel") for name in names])
        for node in nodes:
            kernel, given = kernel_side_table.get_kernel(node.kwargs["kernel_idx"]), dict(node.kwargs["kwargs"])
            given |= kernel_side_table.get_constant_args(node.kwargs["constant_args_idx"])
            given = {name: each.meta["val"] if hasattr(each, "meta") else each for name, each in given.items()}
            writes = identify_once(kernel, given, {}).read_writes.writes
            compiled.setdefault(f"{kernel.fn.__name__} {given.get('LAYERS', 1)}", sorted({each.name for each in writes}))
        return graph

    with FakeTensorMode():
        x, sizes = torch.empty(64, 8, requires_grad=way != "x is fixed"), ((4, 16, 8), (4, 4, 2))
        layers = [(torch.empty(sizes[0]), torch.empty(sizes[1], dtype=torch.int32)) for _ in range(n)]
        for number, (weight, _) in enumerate(layers):
            weight.requires_grad_(way != "a weight is fixed" or number != 1)
        tensors = [x, *(each for layer in layers for each in layer)]
        if way != "a weight changes":  # which autograd refuses
            aot_function(network, keep, keep, partition_fn=min_cut_rematerialization_partition)(*tensors).sum().backward()
        with torch.no_grad():
            aot_function(network, keep)(*(each.detach() for each in tensors))
    compiled[f"{n}, {way}"] = found

for n in (1, 2, 3, 4, 6):
    graph_of("plain", n)
for way in ("x is fixed", "a weight is fixed", "y changes", "a weight changes", "y is used twice"):
    graph_of(way, 3)
"""


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    """What graphs launch, and what their kernels write."""
    if not hasattr(triton_kernel_wrap, "identify_accessed_tensors"):
        pytest.skip("this torch has another name for it")
    return compile_for_gpu(SCRIPT)


def test_a_graph_knows_what_the_kernels_write(traced: dict[str, Any]) -> None:
    """It copies what it takes for written to, and refuses parameters."""
    assert traced["plain_fill_kernel 1"] == ["y_ptr"]
    assert traced["plain_gradients_kernel 1"] == ["dw_ptr", "dx_ptr"]
    for n in (2, 3, 4):
        ys, dws = ([f"{name}_{layer + 1}" for layer in range(n)] for name in ("y", "dw"))
        assert traced[f"stack_fill_kernel {n}"] == ys
        assert traced[f"stack_gradients_kernel {n}"] == [*dws, "dx_ptr", *(f"d{y}" for y in ys[:-1]), *ys[:-1]]


def test_layers_that_follow_each_other_are_one_kernel(traced: dict[str, Any]) -> None:
    fill, gradients = ["stack_fill"], ["stack_gradients"]
    assert traced["1, plain"] == [["plain_fill"], ["plain_gradients"], ["plain_fill"]]
    for n in (2, 3, 4):
        assert traced[f"{n}, plain"] == [fill, gradients, fill]
    assert traced["6, plain"] == [2 * fill, 2 * gradients, 2 * fill]  # four layers, and two
    assert traced["3, x is fixed"] == [fill, gradients, fill]


def test_a_change_between_layers_is_seen(traced: dict[str, Any]) -> None:
    """What is used elsewhere, too, or was changed is computed apart."""
    apart = [["plain_fill", "stack_fill"], ["stack_gradients", "plain_gradients"], ["plain_fill", "stack_fill"]]
    for way in ("y changes", "y is used twice"):
        assert traced[f"3, {way}"] == apart
    assert traced["3, a weight changes"][0] == apart[0]
    assert "stack_gradients" not in traced["3, a weight is fixed"][1]


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def code_of(call: Callable[[], Any]) -> str:
    """The code of the graphs that a call compiles."""
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    return "".join(run_and_get_code(call)[1])


@pytest.fixture
def in_graphs(monkeypatch: pytest.MonkeyPatch, launched_at_once: None) -> None:
    monkeypatch.undo()


@pytest.mark.gpu
@pytest.mark.usefixtures("in_graphs")
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
    assert code.count("plain_fill_kernel_0.run(") == 2
    assert code.count("plain_gradients_kernel_0.run(") == 1
    assert "torch.ops.lutetia" not in code
    assert ".clone" not in code


@pytest.mark.gpu
@pytest.mark.usefixtures("in_graphs")
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
    assert code.count("stack_fill_kernel_0.run(") + code.count("stack_fill_kernel_1.run(") == (2 if n > 4 else 1)
    assert code.count("plain_fill_kernel_0.run(") == int(skips)


def small_layer() -> tuple[LUT, Callable[[torch.Tensor], torch.Tensor]]:
    """A layer of 13 inputs, and the same compiled."""
    torch.compiler.reset()
    layer = LUT(13, 5, 3, 4, seed=0).to(DEVICE)
    return layer, torch.compile(layer, fullgraph=True)


@pytest.mark.gpu
@pytest.mark.usefixtures("in_graphs")
def test_sizes_that_change_and_frozen_tables_go_through_ops() -> None:
    (layer, compiled), rows = small_layer(), torch.randn(64, 13, device=DEVICE, requires_grad=True)
    for n in (7, 9, 11, 64):
        y, want = compiled(rows[:n]), layer(rows[:n])
        torch.testing.assert_close(y, want)
        learned = (rows, layer.weight)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), learned), torch.autograd.grad(want.sum(), learned))
    layer.weight.requires_grad_(False)
    code = code_of(lambda: compiled(rows).sum().backward())
    assert "plain_gradients_kernel" not in code  # it would make a gradient of the tables
    assert rows.grad is not None
    torch.testing.assert_close(rows.grad, torch.autograd.grad(layer(rows).sum(), rows)[0])


@pytest.mark.gpu
@pytest.mark.usefixtures("in_graphs")
def test_anchors_that_change_are_followed() -> None:
    (layer, compiled), x = small_layer(), torch.randn(64, 13, device=DEVICE)
    with torch.no_grad():
        compiled(x)
        layer.anchors.copy_(random_anchors(13, 3, 4, seed=7))
        torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.gpu
@pytest.mark.usefixtures("in_graphs")
def test_a_recording_sees_the_steps_of_a_compiled_layer() -> None:
    (_, compiled), x = small_layer(), torch.randn(64, 13, device=DEVICE)
    compiled(x)
    with flow.record() as run:
        compiled(x).sum().backward()
    assert len(run.steps) >= 2
