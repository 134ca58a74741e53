"""What only the Triton kernels can get wrong: shares, slabs, blocks, and what a GPU shows. See test_kernels.py."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from lut.kernel_cases import check_layer, make_layer
from lutetia.errors import OverflowInSumError
from lutetia.lut import full, kernels
from lutetia.lut.connectivity.anchors import random_anchors
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.kernels.triton import rows
from lutetia.lut.kernels.triton.layout import layout_of

fast, reference = kernels("triton"), kernels("reference")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SUMS = ("float", "fixed")
# B, I, O, N_t, N_c: empty, single, primes, wide rows (gradients by sorting), a batch past the share of one program.
# Small, because the interpreter takes about a millisecond per program.
SHAPES = [(0, 5, 3, 2, 2), (1, 2, 1, 1, 1), (7, 13, 5, 3, 4), (5, 11, 67, 3, 2), (11, 7, 67, 1, 1)]
SHARE = 4  # rows of one lookup neuron that one program adds up: fewer than in use, so that small batches pass it


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CAP", SHARE)


def case(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> dict:
    """Half the inputs are small integers, so that ties and exact zeros are common."""
    batch, n_inputs, n_outputs, n_detectors, n_anchors = shape
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randint(-2, 3, (batch, n_inputs), generator=generator).to(dtype)
    x[batch // 2 :] += torch.rand(batch - batch // 2, n_inputs, generator=generator).to(dtype)
    made = {
        "x": x,
        "anchors": random_anchors(n_inputs, n_detectors, n_anchors, seed=1),
        "weight": torch.randn(n_detectors, 2**n_anchors, n_outputs, generator=generator).to(dtype),
        "grad": torch.randn(batch, n_outputs, generator=generator).to(dtype),
    }
    return {name: tensor.to(DEVICE) for name, tensor in made.items()}


def same(actual: torch.Tensor, expected: torch.Tensor, sums: str = "float") -> None:
    assert actual.dtype == expected.dtype
    if sums == "fixed" or not expected.dtype.is_floating_point:
        assert torch.equal(actual, expected)
    else:
        tolerance = 1e-10 if expected.dtype == torch.float64 else 1e-5
        scale = float(expected.abs().max()) if expected.numel() else 1.0
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance * max(scale, 1.0))


@pytest.mark.parametrize("coefficients", ["none", "two"])
@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.usefixtures("small_shares")
def test_batches_past_the_share_of_one_program(coefficients: str, sums: str) -> None:
    for shape in SHAPES[2:] if (coefficients, sums) == ("none", "float") else (SHAPES[2], SHAPES[4]):
        check_layer("triton", make_layer(shape, "full", coefficients), sums)


@pytest.mark.parametrize("shape", SHAPES[2:4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sums", SUMS)
def test_in_place_step(shape: tuple[int, ...], dtype: torch.dtype, sums: str) -> None:
    c = case(shape, dtype)
    meta = SynapseMeta(lr_scale=0.5, min_weight=-0.5, max_weight=0.75)
    found = reference.check_detectors_eval(c["x"], c["anchors"])
    options = {"meta": meta, "external_lr": 0.2, "sums": sums}
    expected = reference.gather_weight_gradients_fc(c["grad"], found, c["weight"].shape[1], weight=c["weight"].clone(), **options)
    weight = c["weight"].clone()
    returned = fast.gather_weight_gradients_fc(c["grad"], found, weight.shape[1], weight=weight, **options)
    assert returned.data_ptr() == weight.data_ptr()
    torch.testing.assert_close(weight, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


@pytest.mark.parametrize("n_outputs", [5, 67])  # by atomics, and sorted
@pytest.mark.usefixtures("small_shares")
def test_every_row_of_the_batch_hits_one_entry(n_outputs: int) -> None:
    batch = 4 * SHARE + 1
    grad = torch.randn(batch, n_outputs, device=DEVICE)
    indices = torch.full((batch, 2), 2, dtype=torch.int32, device=DEVICE)
    expected = reference.gather_weight_gradients_fc(grad.double(), indices, 4).float()
    torch.testing.assert_close(fast.gather_weight_gradients_fc(grad, indices, 4), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(
        fast.gather_weight_gradients_fc(grad, indices, 4, sums="fixed"),
        reference.gather_weight_gradients_fc(grad, indices, 4, sums="fixed"),
    )


@pytest.mark.parametrize("sums", SUMS)
def test_large_batches_by_slab(sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    c = case((37, 9, 67, 2, 3))
    monkeypatch.setattr(rows, "fills_by_slab", lambda layout, batch: True)
    indices = reference.check_detectors_eval(c["x"], c["anchors"])
    expected = reference.fill_outputs_fc(c["weight"], indices, sums=sums)
    same(fast.detect_and_fill_eval_fc(c["x"], c["weight"], c["anchors"], sums=sums), expected, sums)
    same(fast.fill_outputs_fc(c["weight"], indices, sums=sums), expected, sums)


@pytest.mark.parametrize("shape", [(5, 13, 5, 3, 2), (3, 11, 67, 2, 2)])
def test_fixed_sums_do_not_depend_on_the_blocks(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    c = case(shape)

    def everything() -> list[torch.Tensor]:
        y, *found = fast.detect_and_fill_fc(c["x"], c["weight"], c["anchors"], sums="fixed")
        arguments = (c["grad"], c["weight"], *found, c["anchors"], shape[1])
        dx = fast.propagate_through_detectors_fc(*arguments, sums="fixed")
        return [y, dx, fast.gather_weight_gradients_fc(c["grad"], found[0], 4, sums="fixed")]

    usual = everything()
    for name, blocks in (("fill_blocks", (2, 16)), ("gains_blocks", (1, 16)), ("gather_blocks", (4, 32))):
        monkeypatch.setattr(rows, name, lambda layout, blocks=blocks: blocks)
    monkeypatch.setattr(rows, "CAP", 2)
    for mine, its in zip(everything(), usual, strict=True):
        assert torch.equal(mine, its)
    shuffled = torch.randperm(shape[0]).to(DEVICE)
    c["x"], c["grad"] = c["x"][shuffled], c["grad"][shuffled]
    y, dx, dw = everything()
    assert torch.equal(y, usual[0][shuffled])
    assert torch.equal(dx, usual[1][shuffled])
    assert torch.equal(dw, usual[2])


def test_overflow_is_found() -> None:
    weight = torch.full((3, 2, 2), 900.0, device=DEVICE)
    indices = torch.zeros(1, 3, dtype=torch.int32, device=DEVICE)
    with pytest.raises(OverflowInSumError, match="±2048"):
        fast.fill_outputs_fc(weight, indices, sums="fixed")
    assert fast.fill_outputs_fc(weight[:2], indices[:, :2], sums="fixed").tolist() == [[1800.0, 1800.0]]
    with pytest.raises(OverflowInSumError):  # one addend alone
        fast.fill_outputs_fc(torch.full((1, 2, 2), 3000.0, device=DEVICE), indices[:, :1], sums="fixed")
    with pytest.raises(OverflowInSumError, match="not a number"):
        fast.fill_outputs_fc(torch.full((1, 2, 2), float("nan"), device=DEVICE), indices[:, :1], sums="fixed")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_convert_integers_to_floats(dtype: torch.dtype) -> None:
    units = torch.tensor([[0, 1, -1, 2**20 - 1, 2**31 - 1]], dtype=dtype, device=DEVICE)
    assert torch.equal(fast.convert_integers_to_floats(units, 0.25), reference.convert_integers_to_floats(units, 0.25))


def test_rounding_is_half_to_even() -> None:
    """At this scale a unit is 2**-7: halves of it are exact, and a tie goes to the even neighbour."""
    rescaler = 128 / (2**20 - 1)
    weight = (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.49, 0.51]) / 128).view(1, 1, 7).expand(1, 2, 7).contiguous().to(DEVICE)
    indices = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE)
    y = fast.fill_outputs_fc(weight, indices, sums="fixed", int_rescaler=rescaler)
    assert (y * 128).tolist() == [[0.0, 2.0, 2.0, 0.0, -2.0, 0.0, 1.0]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnTheGpu:
    """What only a GPU can show: agreement with the CPU bit for bit, graphs, real sizes."""

    SHAPE = (4096, 256, 256, 128, 8)

    def test_fixed_sums_equal_the_cpu(self) -> None:
        c = case((512, 64, 100, 31, 6))
        cpu = {name: tensor.cpu() for name, tensor in c.items()}
        found, on_cpu = fast.check_detectors(c["x"], c["anchors"]), reference.check_detectors(cpu["x"], cpu["anchors"])
        results = []
        for each, d, f in ((fast, c, found), (reference, cpu, on_cpu)):
            results.append(
                (
                    *f,
                    each.fill_outputs_fc(d["weight"], f[0], sums="fixed"),
                    each.propagate_through_detectors_fc(d["grad"], d["weight"], *f, d["anchors"], 64, sums="fixed"),
                    each.gather_weight_gradients_fc(d["grad"], f[0], 64, sums="fixed"),
                )
            )
        for mine, its in zip(*results, strict=True):
            assert torch.equal(mine.cpu(), its)

    def test_real_sizes(self) -> None:
        c = case(self.SHAPE)
        found = reference.check_detectors(c["x"], c["anchors"])
        y, *trained = fast.detect_and_fill_fc(c["x"], c["weight"], c["anchors"])
        for mine, its in zip(trained, found, strict=True):
            assert torch.equal(mine, its)
        double = c["weight"].double()
        same(y, reference.fill_outputs_fc(double, found[0]).float())
        arguments = (c["grad"][:256].double(), double, *(f[:256] for f in found), c["anchors"], 256)
        expected = reference.propagate_through_detectors_fc(*arguments).float()
        actual = fast.propagate_through_detectors_fc(c["grad"], c["weight"], *found, c["anchors"], 256)
        torch.testing.assert_close(actual[:256], expected, rtol=1e-4, atol=1e-4)
        gradient = fast.gather_weight_gradients_fc(c["grad"], found[0], 256)
        one = reference.gather_weight_gradients_fc(c["grad"].double(), found[0][:, 5:6], 256).float()
        same(gradient[5:6], one)

    def test_large_batch(self) -> None:
        c = case((20000, 64, 128, 16, 5))
        assert rows.fills_by_slab(layout_of(full(*c["weight"].shape)), 20000)
        expected = reference.fill_outputs_fc(c["weight"].double(), reference.check_detectors_eval(c["x"], c["anchors"])).float()
        same(fast.detect_and_fill_eval_fc(c["x"], c["weight"], c["anchors"]), expected)

    @pytest.mark.parametrize("sums", SUMS)
    def test_graph_capture(self, sums: str) -> None:
        c = case((256, 64, 100, 31, 6))

        def step() -> tuple[torch.Tensor, ...]:
            y, *found = fast.detect_and_fill_fc(c["x"], c["weight"], c["anchors"], sums=sums)
            dx = fast.propagate_through_detectors_fc(c["grad"], c["weight"], *found, c["anchors"], 64, sums=sums)
            return y, dx, fast.gather_weight_gradients_fc(c["grad"], found[0], 64, sums=sums)

        expected = step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        graph.replay()
        for mine, its in zip(captured, expected, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
