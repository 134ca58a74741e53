"""The CUDA sources: compiled by NVRTC where it is installed, run on a CPU by a stand-in for CUDA, and on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

import on_host

from lutetia._shared import nvrtc
from lutetia._shared.triton_order import Sorted
from lutetia.errors import LutetiaError
from lutetia.lut import Sequence, Sums, full, growth, kernels, random_anchors
from lutetia.lut.connectivity.anchors import Comparisons
from lutetia.lut.kernels import cuda
from lutetia.lut.kernels.cuda import SOURCES, pairs, tables
from lutetia.lut.kernels.protocol import Coefficients, Detected, Read
from lutetia.lut.kernels.reference.reads import rows_that_are_added
from lutetia.lut.kernels.triton.layout import layout_of
from lutetia.nn import LUTAttention, ProjectedLUT
from tools import require_tool

READS = ("hard", "blend", "confidence", "confidence2")
# rows of the batch, blocks, inputs of a block, detectors of a block, outputs of a block, anchors
SHAPES = [(1, 1, 5, 3, 8, 2), (130, 2, 7, 3, 24, 3), (521, 1, 6, 35, 48, 4), (1025, 1, 9, 2, 64, 1)]
ON_CPU = [(70, 2, 7, 5, 24, 3), (133, 1, 6, 2, 48, 4)]
REFERENCE, FLOAT = kernels("reference").backend, Sums()


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("g++")
    monkeypatch.setattr(nvrtc, "kernel", on_host.HostKernel)
    monkeypatch.setattr(tables, "MOST_TOGETHER", 2)  # so that three tables come in two groups
    # Threads take turns here: few of them, so that few rows are several blocks.
    for module, name, value in (
        *((tables, "THREADS", (64, 96)), (tables, "GATHER_ROWS", (128, 64)), (tables, "GATHER_THREADS", 64)),
        *((pairs, "THREADS", 64), (pairs, "SORT_THREADS", 64), (pairs, "SLOPES_THREADS", 64)),
    ):
        monkeypatch.setattr(module, name, value)


class Layer:
    """Blocks of detectors, each with inputs and outputs of its own."""

    def __init__(self, shape: tuple[int, ...], device: str = "cpu") -> None:
        batch, blocks, inputs, run, width, n_anchors = shape
        generator, detector = torch.Generator().manual_seed(0), torch.arange(blocks * run)
        own = detector[:, None] // run
        fields = (own * inputs + torch.arange(inputs)).int()
        self.anchors = random_anchors(blocks * inputs, blocks * run, n_anchors, seed=0, fields=fields).to(device)
        self.connectivity: Any = full(run, 1 << n_anchors, width)
        if blocks > 1:
            edges = torch.stack([detector[:, None].expand(-1, width), own * width + torch.arange(width)], -1).flatten(0, 1)
            self.connectivity = growth.from_edges(blocks * run, n_anchors, blocks * width, edges).to(device)
        self.layout = layout_of(self.connectivity)
        # In steps of 1/256, so that there are ties and zeros, and every margin is exact.
        self.x = ((torch.randn(batch, blocks * inputs, generator=generator) * 256).round() / 256).to(device)
        self.x[::7, ::2] = 0.5
        self.weight = torch.randn(self.connectivity.weight_shape, generator=generator).to(device)
        self.grad = torch.randn(batch, blocks * width, generator=generator).to(device)
        self.comparisons = Comparisons(self.anchors)
        windows = tables.windows_of(self.anchors, blocks * inputs)
        assert windows is not None
        self.windows = windows

    def read(self, name: str) -> Read:
        logs = torch.tensor([0.7, -0.1, -0.6], device=self.x.device)
        return Read(name, *{"confidence": logs[:2], "confidence2": logs}.get(name, ()))


COMPILED = [
    ("trial", ()),
    ("reads", (("KIND", 3), ("N_C", 8), ("TILE", 128), ("V", 48))),
    ("rows", (("COUNT", 2), ("R", 256), ("THREADS", 768), ("TOGETHER", 2), ("W", 48))),
    ("gather", (("COUNT", 2), ("R", 256), ("ROWS", 1024), ("TEAMS", 2), ("THREADS", 512), ("W", 48))),
    ("pairs", (("ADD", 0), ("BLOCKS", 4), ("CELLS", 1024), ("N_PE", 4), ("PLACES", 128), ("THREADS", 256), ("W", 32))),
    ("slopes", (("BLOCKS", 2), ("N_C", 6), ("N_PE", 4), ("STEPS", 4), ("THREADS", 256), ("W", 32))),
]


@pytest.mark.parametrize(("source", "constants"), COMPILED, ids=[source for source, _ in COMPILED])
def test_sources_compile_for_a_gpu(source: str, constants: tuple[Any, ...], tmp_path: Path, monkeypatch: Any) -> None:
    if nvrtc.compiler() is None:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setenv("LUTETIA_CACHE", str(tmp_path))
    compiled = nvrtc.compiled.__wrapped__
    code = compiled(SOURCES / f"{source}.cu", constants, "sm_90")
    assert code.startswith(b"\x7fELF")
    kept = list(tmp_path.rglob("*.cubin"))
    assert [path.read_bytes() for path in kept] == [code]
    kept[0].write_bytes(b"another process made this")  # what is kept is not compiled again
    assert compiled(SOURCES / f"{source}.cu", constants, "sm_90") == b"another process made this"


def test_without_nvrtc_triton_runs_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(nvrtc, "limits", nvrtc.Limits)
    monkeypatch.setattr(nvrtc, "compiler", lambda: None)
    nvrtc.compiled.cache_clear()
    with pytest.warns(RuntimeWarning, match="slower Triton kernels: NVRTC is not installed"):
        assert not cuda.available.__wrapped__()
    monkeypatch.setenv("LUTETIA_NVRTC", "0")
    assert not cuda.available.__wrapped__()


def test_a_source_that_does_not_compile_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if nvrtc.compiler() is None:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setenv("LUTETIA_CACHE", str(tmp_path))
    with pytest.raises(LutetiaError, match=r"could not compile rows.cu with .*sm_90(?s:.*)TOGETHER"):
        nvrtc.compiled(SOURCES / "rows.cu", (("COUNT", 2), ("R", 4), ("THREADS", 512), ("W", 8)), "sm_90")
    assert not list(tmp_path.rglob("*"))


def close(mine: Tensor, want: Tensor) -> None:
    """Equal up to the rounding of float32 sums, whose addends are as large as the largest results."""
    torch.testing.assert_close(mine, want, rtol=2e-5, atol=1e-6 * max(20.0, float(want.abs().max())))


def check_read(layer: Layer, name: str) -> None:
    """The read, its rows, and all gradients, against the reference."""
    read, layout = layer.read(name), layer.layout
    indices, coefficients = tables.read(layer.x, layer.anchors, layer.windows, read)
    wanted, expected = REFERENCE.read(layer.x, layer.comparisons, read, FLOAT)
    assert torch.equal(indices, wanted)
    close(coefficients.a, expected.a)
    added = rows_that_are_added(coefficients, read)
    if name != "confidence":
        assert torch.equal(coefficients.alternatives, expected.alternatives)  # type: ignore[arg-type]
        close(coefficients.b, expected.b)  # type: ignore[arg-type]
    if name == "blend":
        added = coefficients
    assert tables.fits(layout, layer.weight, layer.grad)
    y = tables.fill(layer.weight, layout, indices, added)
    close(y, REFERENCE.fill_rows(layer.weight, layer.connectivity, indices, added, FLOAT))
    close(tables.read_and_fill(layer.x, layer.weight, layer.anchors, layer.windows, layout, read), y)
    rows = (indices, None if added is None else added.alternatives)
    gains = tables.gains(layer.grad, layer.weight, layout, rows)
    for mine, want in zip(gains, REFERENCE.row_gains(layer.grad, layer.weight, layer.connectivity, rows, FLOAT), strict=True):
        if mine is not None:
            close(mine, want)  # type: ignore[arg-type]
    dx, scalars = tables.send_slopes(layer.x, layer.anchors, layer.windows, read, gains, True)
    wanted_dx, wanted_scalars = REFERENCE.send_slopes(layer.x, layer.comparisons, read, gains, FLOAT, True)
    close(dx, wanted_dx)  # type: ignore[arg-type]
    torch.testing.assert_close(scalars, wanted_scalars, rtol=1e-4, atol=1e-3)
    check_gather(layer, indices, added)


def check_gather(layer: Layer, indices: Tensor, added: Coefficients | None) -> None:
    out = torch.zeros(layer.weight.shape, device=layer.weight.device)
    tables.gather(layer.grad, layer.layout, indices, added, out, 0.5)
    close(out, 0.5 * REFERENCE.gather_rows(layer.grad, layer.connectivity, indices, added, FLOAT, None))


def check_hard(layer: Layer) -> None:
    found = tables.detect(layer.x, layer.anchors, layer.windows, True)
    wanted = REFERENCE.detect(layer.x, layer.comparisons, True)
    for mine, want in zip(found, wanted, strict=True):
        assert torch.equal(mine, want)  # type: ignore[arg-type]
    assert torch.equal(tables.detect(layer.x, layer.anchors, layer.windows, False).indices, wanted.indices)
    y = tables.fill(layer.weight, layer.layout, found.indices, None)
    close(y, REFERENCE.fill_rows(layer.weight, layer.connectivity, found.indices, None, FLOAT))
    slope = tables.hard_slope(layer.grad, layer.weight, layer.layout, found)
    dx = tables.send_hard_slopes(slope, found, layer.anchors, layer.windows, layer.x.shape[1])
    want = REFERENCE.propagate(layer.grad, layer.weight, layer.connectivity, wanted, layer.anchors, layer.x.shape[1], FLOAT)
    close(dx, want)
    check_gather(layer, found.indices, None)
    check_gather(layer, torch.zeros_like(found.indices), None)  # all in one row


def check_pairs(shape: tuple[int, ...], device: str = "cpu") -> None:
    """The gradient of attention's tables, and a step in place."""
    batch, length, n_detectors, n_anchors, n_pe, width = shape
    generator = torch.Generator().manual_seed(0)
    draw = lambda size, bits: torch.randint(1 << bits, size, generator=generator, dtype=torch.int32).to(device)  # noqa: E731
    indices, distances = draw((batch, length, n_detectors), n_anchors), draw((length - 1, n_detectors), n_pe)
    indices[0] = 0  # many places of one Q
    sequence = Sequence(Detected(indices), Detected(distances), n_anchors, n_pe)
    connectivity = full(n_detectors, sequence.n_cells << n_anchors, width)
    grad = torch.randn(batch, length, width, generator=generator).to(device)
    want = REFERENCE.gather_sequence(grad, connectivity, sequence, FLOAT, None)
    found = indices.transpose(1, 2).contiguous()
    order, sorted_ = pairs.in_order(found, sequence), in_order_plainly(indices.flatten(0, 1), 1 << n_anchors)
    assert torch.equal(order.end, sorted_.end)
    assert torch.equal(order.count, sorted_.count)
    assert torch.equal(order.order.sort(1).values, sorted_.order.sort(1).values)
    assert bool((indices.flatten(0, 1).t().gather(1, order.order.long()).diff(dim=1) >= 0).all())
    out = torch.full_like(want, float("nan"))
    assert pairs.fits(grad, sequence, out)
    pairs.gather(grad, sequence, found, order, (out, 0.5, False))
    torch.testing.assert_close(out, 0.5 * want, rtol=1e-4, atol=1e-3)  # sums of hundreds of numbers
    weight = torch.randn(want.shape, generator=generator).to(device)
    stepped = weight.clone()
    pairs.gather(grad, sequence, found, order, (stepped, -0.1, True))
    torch.testing.assert_close(stepped, weight - 0.1 * want, rtol=1e-4, atol=1e-3)


def check_slopes(shape: tuple[int, ...], device: str = "cpu") -> None:
    """The gradients of attention's inputs and positions."""
    batch, length, n_detectors, n_anchors, n_pe, width = shape
    generator, n_inputs = torch.Generator().manual_seed(0), 7
    # In steps of 1/8: many margins are equal, or zero.
    x = ((torch.randn(batch, length, n_inputs, generator=generator) * 8).round() / 8).to(device)
    positions = ((torch.randn(length - 1, n_detectors, n_pe, generator=generator) * 4).round() / 8).to(device)
    anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed=0).to(device)
    found = REFERENCE.detect(x, Comparisons(anchors), True), REFERENCE.detect_positions(positions, True)
    sequence = Sequence(*found, n_anchors, n_pe)
    connectivity = full(n_detectors, sequence.n_cells << n_anchors, width)
    weight = torch.randn(connectivity.weight_shape, generator=generator).to(device)
    grad = torch.randn(batch, length, width, generator=generator).to(device)
    want = REFERENCE.propagate_sequence(grad, weight, connectivity, sequence, anchors, n_inputs, FLOAT)
    assert pairs.slopes_fit(grad, weight, sequence)
    totals, dx, dpositions = pairs.slopes(grad, weight, sequence, anchors, n_inputs)
    if totals is not None:  # each to the anchors of its closest call
        which = sequence.x.closest[1].long()
        ends = anchors.long()[torch.arange(n_detectors, device=device), which]  # [B, S, N_t, 2]
        for end, sign in ((0, 1), (1, -1)):
            dx.scatter_add_(2, ends[..., end], sign * totals.transpose(1, 2))
    for mine, wanted in zip((dx, dpositions), want, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)


def in_order_plainly(indices: Tensor, n_values: int) -> Sorted:
    """Places [N, N_t] by their value: order [N_t, N], end and count of each value [N_t, values]."""
    count = torch.stack([column.bincount(minlength=n_values) for column in indices.t()])
    order = indices.t().contiguous().argsort(dim=1, stable=True)
    return Sorted(order.int(), count.cumsum(1).int(), count.int())


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("shape", [(2, 2, 1, 1, 0, 8), (5, 35, 2, 2, 1, 40)])
def test_pairs_on_the_cpu(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "MOST_PAIRS", 34 * 30)  # several rounds
    check_pairs(shape)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("shape", [(1, 2, 1, 1, 0, 8), (3, 35, 2, 2, 1, 40), (1, 70, 2, 1, 2, 48)])
def test_slopes_of_pairs_on_the_cpu(shape: tuple[int, ...]) -> None:
    check_slopes(shape)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("shape", ON_CPU)
class TestOnTheCpu:
    def test_the_hard_read(self, shape: tuple[int, ...]) -> None:
        check_hard(Layer(shape))

    @pytest.mark.parametrize("name", READS[1:])
    def test_reads(self, shape: tuple[int, ...], name: str) -> None:
        check_read(Layer(shape), name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnTheGpu:
    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("name", READS)
    def test_kernels(self, shape: tuple[int, ...], name: str) -> None:
        layer = Layer(shape, "cuda")
        check_hard(layer) if name == "hard" else check_read(layer, name)

    @pytest.mark.parametrize("shape", [(2, 2, 1, 1, 0, 8), (5, 70, 2, 2, 1, 40), (64, 32, 8, 6, 4, 32), (32, 128, 4, 6, 4, 32)])
    def test_pairs(self, shape: tuple[int, ...]) -> None:
        check_pairs(shape, "cuda")
        check_slopes(shape, "cuda")

    @pytest.mark.parametrize("name", READS)
    @pytest.mark.parametrize("gradient", ["dense", "in_place", "sparse"])
    def test_a_layer_equals_that_of_triton(self, name: str, gradient: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Outputs and every gradient, at a size where the CUDA kernels run, and with them switched off."""
        results = []
        for off in (False, True):
            monkeypatch.setattr(cuda, "available", lambda off=off: not off)
            layer = ProjectedLUT(384, 384, read=name, gradient=gradient, seed=0, device="cuda").tables
            torch.nn.init.normal_(layer.weight, generator=torch.Generator("cuda").manual_seed(0))
            layer.external_lr = 0.1
            x = torch.randn(4097, 384, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).requires_grad_()
            y = layer(x)
            y.backward(torch.randn(4097, 384, device="cuda", generator=torch.Generator("cuda").manual_seed(2)))
            with torch.no_grad():
                results.append([y.detach(), layer(x), x.grad, layer.weight.detach().clone()])
            results[-1] += [p.grad.to_dense() for p in layer.parameters() if p.grad is not None]
        for mine, want in zip(*results, strict=True):
            assert float((mine - want).norm() / want.norm()) < 1e-5

    @pytest.mark.parametrize("name", ["hard", "confidence2"])
    def test_a_compiled_layer(self, name: str) -> None:
        """What is kept by detector has the strides that the compiler was told of."""
        layer = ProjectedLUT(384, 384, read=name, seed=0, device="cuda").tables
        torch.nn.init.normal_(layer.weight)
        x, grad = torch.randn(4096, 384, device="cuda", requires_grad=True), torch.randn(4096, 384, device="cuda")
        learned = [x, *layer.parameters()]
        want = torch.autograd.grad(layer(x), learned, grad)
        mine = torch.autograd.grad(torch.compile(layer, fullgraph=True)(x), learned, grad)
        for one, other in zip(mine, want, strict=True):
            assert float((one - other).norm() / other.norm()) < 1e-5

    @pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
    def test_attention_equals_that_of_triton(self, gradient: str, monkeypatch: pytest.MonkeyPatch) -> None:
        results = []
        for off in (False, True):
            monkeypatch.setattr(cuda, "available", lambda off=off: not off)
            layer = LUTAttention(32, 32, 16, 5, positional_dim=3, max_length=40, gradient=gradient, seed=0, device="cuda")
            layer.external_lr = 0.1
            x = torch.randn(8, 40, 32, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).requires_grad_()
            layer(x).backward(torch.randn(8, 40, 32, device="cuda", generator=torch.Generator("cuda").manual_seed(2)))
            results.append([x.grad, layer.weight.detach().clone(), layer.positions.grad])
            results[-1] += [] if layer.weight.grad is None else [layer.weight.grad.to_dense()]
        for mine, want in zip(*results, strict=True):
            assert float((mine - want).norm() / want.norm()) < 1e-3  # slopes of positions add up with atomics, and cancel
