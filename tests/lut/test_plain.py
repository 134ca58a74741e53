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


WRITTEN = """
from torch._higher_order_ops.triton_kernel_wrap import identify_accessed_tensors
from lutetia.lut.kernels.triton.source import plain

def written(kernel, **arguments):
    found = identify_accessed_tensors(kernel, arguments, {})
    compiled[kernel.fn.__name__] = [each.name for each in found.read_writes.writes]

sizes = {"N_I": 13, "N_T": 3, "N_C": 4, "N_O": 5, "BLOCK_T": 4, "BLOCK_C": 4, "BLOCK_O": 8}
layer = {"x_ptr": torch.empty(8, 13), "weight_ptr": torch.empty(3, 16, 5), "anchors_ptr": torch.empty(3, 4, 2, dtype=torch.int32)}
written(plain.plain_fill_kernel, **layer, y_ptr=torch.empty(8, 5), **sizes)
gradients = {"grad_ptr": torch.empty(8, 5), "dx_ptr": torch.empty(8, 13), "dw_ptr": torch.empty(3, 16, 5)}
written(plain.plain_gradients_kernel, **gradients, **layer, batch=8, TO_X=True, ALONE=True, BLOCK_B=4, **sizes)
"""


@pytest.mark.skipif(not hasattr(triton_kernel_wrap, "identify_accessed_tensors"), reason="this torch has another name for it")
def test_a_graph_knows_what_the_kernels_write() -> None:
    """It copies what it takes for written to, and refuses parameters."""
    written = compile_for_gpu(WRITTEN)
    assert set(written["plain_fill_kernel"]) == {"y_ptr"}
    assert set(written["plain_gradients_kernel"]) == {"dx_ptr", "dw_ptr"}


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
