"""`lutetia.nn.LUTAttention`: how it is made, kept, copied and trained, and decoding with its index cache."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lut.oracle import sequence_blend
from lutetia import flow
from lutetia._shared.ragged import turns_of
from lutetia.errors import ArgumentError, OverflowInSumError
from lutetia.lut import IndexCache, LayerDescription, SynapseMeta, decode, growth, lut_attention, use_backend
from lutetia.nn import LUT, LUTAttention, clamp_after_step

GENERAL = growth.random(3, 5, 4, 0.6, seed=1)
SHARED = growth.random(3, 5, 4, 0.6, seed=1, shared=True, metas=(SynapseMeta(), SynapseMeta(max_weight=0.0)))
WIRINGS = {"fc": None, "general": GENERAL, "shared": SHARED}


@pytest.fixture(autouse=True)
def on_reference() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with use_backend("reference"):
        yield
    torch.set_num_threads(threads)


def make(wiring: str = "fc", **options: Any) -> LUTAttention:
    """I 6, O 4, N_t 3, N_c 2, N_pe 1, up to 8 positions; weights large enough to matter."""
    layer = LUTAttention(6, 4, 3, 2, 1, 8, synapses=WIRINGS[wiring], **({"seed": 0} | options))
    layer.external_lr = 0.1
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0)))
    return layer


# ---- made ------------------------------------------------------------------------------------------------------------


def test_what_a_layer_holds() -> None:
    layer = LUTAttention(6, 4, 3, 2, 1, 8)
    assert layer.weight.shape == (3, 2**5, 4)
    assert layer.positions.shape == (7, 3, 1)
    assert (layer.anchors.shape, layer.anchors.dtype) == ((3, 2, 2), torch.int32)
    assert set(layer.state_dict()) == {"weight", "positions", "anchors"}
    assert {name for name, _ in layer.named_parameters()} == {"weight", "positions"}
    assert layer.positions.abs().max() <= 1
    assert layer.positions.min() < 0 < layer.positions.max()
    assert repr(layer) == "LUTAttention(6, 4, n_detectors=3, n_anchors=2, positional_dim=1, max_length=8)"
    shared = LUTAttention(6, 4, 3, 2, 1, 8, shared_positions=True, algorithm="cells")
    assert shared.positions.shape == (7, 1, 1)
    assert repr(shared).endswith("max_length=8, algorithm='cells', shared_positions=True)")
    assert make("general").weight.shape == (GENERAL.n_weights,)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_layer_is_the_function_of_its_tensors(wiring: str, shared: bool) -> None:
    layer = make(wiring, shared_positions=shared, dtype=torch.float64)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    dense = layer.weight if layer.synapses is None else layer.synapses.expand(layer.weight)
    positions = layer.positions[:4].expand(-1, 3, -1)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), sequence_blend(x, positions, layer.anchors, dense)[0])
    y = layer(x, torch.tensor([2, 5]))
    assert not y[0, 2:].any()
    assert torch.equal(y[1], layer(x)[1])


@pytest.mark.parametrize(("positional_dim", "max_length"), [(0, 8), (1, 1), (3, 2)])
def test_small_layers(positional_dim: int, max_length: int) -> None:
    layer = LUTAttention(5, 3, 2, 2, positional_dim, max_length, seed=0, meta=SynapseMeta(initial_noise=1.0))
    x = torch.randn(2, max_length, 5, requires_grad=True)
    y = layer(x)
    want = sequence_blend(x.detach(), layer.positions.detach(), layer.anchors, layer.weight.detach())[0]
    torch.testing.assert_close(y.detach(), want)
    y.sum().backward()
    assert layer.positions.grad is not None
    assert layer.positions.grad.shape == (max_length - 1, 2, positional_dim)


def test_a_seed_makes_the_same_layer_and_reset_draws_it_again() -> None:
    one, same, other = (LUTAttention(6, 4, 3, 2, 1, 8, seed=seed) for seed in (3, 3, 4))
    for name in ("weight", "positions", "anchors"):
        assert torch.equal(getattr(one, name), getattr(same, name))
        assert not torch.equal(getattr(one, name), getattr(other, name))
    with torch.no_grad():
        one.weight.fill_(7.0)
        one.positions.fill_(7.0)
    one.reset_parameters()
    assert torch.equal(one.weight, same.weight)
    assert torch.equal(one.positions, same.positions)


@pytest.mark.parametrize("wiring", WIRINGS)
def test_saved_copied_and_cast(wiring: str) -> None:
    layer, x = make(wiring, shared_positions=True), torch.randn(2, 5, 6)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = make(wiring, shared_positions=True, seed=9)
    other.load_state_dict(torch.load(file, weights_only=True))
    twin = copy.deepcopy(layer)
    for layer_ in (other, twin):
        assert torch.equal(layer_(x), layer(x))
    with torch.no_grad():
        twin.positions.neg_()
    assert not torch.equal(twin(x), layer(x))
    assert make(wiring).double()(x.double()).dtype == torch.float64


def test_the_algorithm_may_be_changed_at_any_time() -> None:
    layer, x = make(), torch.randn(2, 8, 6)
    found = {}
    for algorithm in ("pairs", "cells"):
        layer.algorithm = algorithm
        with flow.record() as recorded:
            found[algorithm] = layer(x)
        assert recorded.steps[-1].attributes["algorithm"] == algorithm
    torch.testing.assert_close(found["pairs"], found["cells"])
    layer.algorithm = "fast"
    with pytest.raises(ArgumentError, match="algorithm is 'fast'"):
        layer(x)


@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
def test_it_learns(gradient: str) -> None:
    """What came two positions before: the layer must find the distance."""
    torch.manual_seed(0)
    layer = LUTAttention(6, 6, 8, 3, 3, 12, gradient=gradient, seed=0)
    rate = 0.01
    layer.external_lr = rate
    optimizers = [torch.optim.SGD([layer.positions], lr=0.1)]
    if gradient != "in_place":
        optimizers.append(torch.optim.SGD([layer.weight], lr=rate))
    x = torch.randn(16, 12, 6)
    target = torch.zeros_like(x)
    target[:, 2:] = x[:, :-2]
    losses = []
    for _ in range(15):
        loss = (layer(x) - target).square().sum(-1).mean()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.95 * losses[0]
    assert sorted(losses, reverse=True) == losses
    want = {"dense": torch.strided, "sparse": torch.sparse_coo, "in_place": None}[gradient]
    assert (None if layer.weight.grad is None else layer.weight.grad.layout) == want


def test_bounds_and_names() -> None:
    layer = make("shared", gradient="sparse")
    assert isinstance(layer, LUTAttention)
    assert isinstance(layer, LUT)
    assert repr(layer).startswith("LUTAttention(")
    optimizer = torch.optim.SGD([layer.weight], lr=0.1)
    clamp_after_step(optimizer, layer)
    layer(torch.randn(2, 5, 6)).sum().backward()
    optimizer.step()
    assert layer.weight.detach()[SHARED.weight_meta == 1].max() <= 0


# ---- graphs ----------------------------------------------------------------------------------------------------------


def test_one_graph_compiles() -> None:
    layer, x = make(), torch.randn(2, 5, 6)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for lengths in (None, torch.tensor([2, 5])):
        torch.testing.assert_close(compiled(x, lengths), layer(x, lengths))
    compiled(x).sum().backward()
    assert layer.positions.grad is not None


@pytest.mark.parametrize("gradient", ["sparse", "in_place"])
def test_other_policies_break_the_graph(gradient: str) -> None:
    layer, plain, x = make(gradient=gradient), make(gradient=gradient), torch.randn(2, 5, 6)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager")
    for call in (compiled, plain):
        call(x).sum().backward()
    torch.testing.assert_close(layer.weight, plain.weight)
    assert layer.positions.grad is not None
    torch.testing.assert_close(layer.positions.grad, plain.positions.grad)


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("wiring", ["fc", "general"])
def test_an_exported_layer_takes_any_batch_and_length(wiring: str, learning: bool) -> None:
    layer = make(wiring, gradient="in_place")
    # What a training graph keeps of the positions has S - 1 rows, and a graph does not let a size turn out to be 1.
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=3 if learning else None, max=8)
    example = (torch.randn(3, 5, 6), torch.tensor([5, 1, 2]))
    with torch.set_grad_enabled(learning):
        program = torch.export.export(layer, example, dynamic_shapes=({0: batch, 1: length}, {0: batch}))
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for shape in ((1, 3, 6), (4, 8, 6)) if learning else ((1, 2, 6), (4, 8, 6), (2, 1, 6)):
        x, lengths = torch.randn(shape), torch.arange(shape[0]) + 1
        torch.testing.assert_close(loaded(x, lengths), layer(x, lengths.clamp(max=shape[1])))


# ---- the cache -------------------------------------------------------------------------------------------------------


def decoded(layer: LUTAttention, x: Tensor, cuts: list[int]) -> Tensor:
    """y of all positions, those between two cuts at a time."""
    cache = layer.new_cache(len(x))
    parts = [layer(x[:, begin:end], cache=cache) for begin, end in zip([0, *cuts], [*cuts, x.shape[1]], strict=True)]
    assert cache.lengths.tolist() == [x.shape[1]] * len(x)
    return torch.cat(parts, 1)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("sums", ["float", "fixed"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_decoding_is_the_full_forward(wiring: str, sums: str, backend: str) -> None:
    layer, x = make(wiring, sums=sums, shared_positions=wiring == "shared"), torch.randn(3, 8, 6)
    with use_backend(backend):
        full = layer(x).detach()
        for cuts in ([1, 2, 3, 4, 5, 6, 7], [4, 5], [3], []):
            y = decoded(layer, x, cuts)
            assert not y.requires_grad
            assert torch.equal(y, full) if sums == "fixed" else torch.allclose(y, full, atol=1e-5), cuts


@pytest.mark.parametrize("algorithm", ["pairs", "cells"])
@pytest.mark.parametrize("positional_dim", [0, 1])
def test_autocast_changes_nothing(positional_dim: int, algorithm: str) -> None:
    layer = LUTAttention(6, 4, 3, 1, positional_dim, 8, algorithm=algorithm, seed=0)
    torch.nn.init.normal_(layer.weight)
    x = torch.randn(2, 8, 6, requires_grad=True)

    def results() -> list[Tensor]:
        y, cache = layer(x), layer.new_cache(2)
        with torch.no_grad():
            decoded = [layer(each, cache=cache) for each in x.split([3, 1, 1, 3], 1)]
        return [y, *torch.autograd.grad(y.square().sum(), [x, layer.weight]), *decoded]

    wanted = results()
    with torch.autocast("cpu", torch.bfloat16):
        for mine, want in zip(results(), wanted, strict=True):
            assert torch.equal(mine, want)


@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_rows_of_different_lengths(sums: str) -> None:
    layer, x = make(sums=sums), torch.randn(3, 8, 6)
    full = layer(x).detach()
    cache, done = layer.new_cache(3), [0, 0, 0]
    for new in ([3, 0, 1], [1, 2, 4], [0, 0, 0], [2, 1, 0], [2, 5, 3]):
        width = max(*new, 1)
        chunk = torch.full((3, width, 6), float("nan"))  # what is not part of a row is not looked at
        for b, count in enumerate(new):
            chunk[b, :count] = x[b, done[b] : done[b] + count]
        y = layer(chunk, torch.tensor(new), cache)
        for b, count in enumerate(new):
            want = full[b, done[b] : done[b] + count]
            assert torch.equal(y[b, :count], want) if sums == "fixed" else torch.allclose(y[b, :count], want, atol=1e-5)
            assert not y[b, count:].any()
            done[b] += count
        assert cache.lengths.tolist() == done


@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_many_pairs_are_taken_in_turns(sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = make(sums=sums), torch.randn(3, 8, 6)
    monkeypatch.setattr(sys.modules[decode.__module__], "NUMBERS_AT_ONCE", 60)
    torch.testing.assert_close(decoded(layer, x, [2]), layer(x).detach())
    assert list(turns_of(torch.tensor([2, 2, 9, 1, 1, 1]), 4)) == [
        slice(0, 2),
        slice(2, 3),
        slice(3, 6),
    ]


def test_a_step_reads_no_more_rows_than_pairs() -> None:
    layer, cache = make(), None
    cache = layer.new_cache(2)
    layer(torch.randn(2, 6, 6), cache=cache)
    with flow.record() as recorded:
        layer(torch.randn(2, 1, 6), cache=cache)
    step = recorded.steps[-1]
    assert step.name == "fill_outputs_step"  # the path that runs without a recorder too
    assert not any(info.shape == tuple(layer.weight.shape) for info in step.outputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_take_the_fast_step_too(dtype: torch.dtype) -> None:
    layer, x = make(dtype=dtype), torch.randn(2, 6, 6).to(dtype)
    cache, steps = layer.new_cache(2), []
    with flow.record() as recorded, torch.no_grad():
        for j in range(6):
            steps.append(layer(x[:, j : j + 1], cache=cache))
    assert [step.name for step in recorded.steps].count("fill_outputs_step") == 6
    assert steps[0].dtype == dtype
    torch.testing.assert_close(torch.cat(steps, 1), layer(x).detach(), rtol=0.02, atol=1e-5)


def test_rows_may_be_reordered_and_forgotten() -> None:
    layer, x = make(sums="fixed"), torch.randn(3, 8, 6)
    cache = layer.new_cache(3)
    layer(x[:, :5], torch.tensor([5, 4, 3]), cache)
    cache.reorder(torch.tensor([2, 0, 0, 1]))
    assert cache.lengths.tolist() == [3, 5, 5, 4]
    y = layer(torch.stack([x[2, 3:4], x[0, 5:6], x[0, 6:7], x[1, 4:5]]), cache=cache)
    full = layer(x).detach()
    assert torch.equal(y[0, 0], full[2, 3])
    assert torch.equal(y[1, 0], full[0, 5])
    other = torch.cat([x[:1, :5], x[:1, 6:7]], 1)
    assert torch.equal(y[2, 0], layer(other).detach()[0, 5])
    assert torch.equal(y[3, 0], full[1, 4])
    with pytest.raises(ArgumentError, match=r"index is \[0, 4\], expected rows from 0 to 3"):
        cache.reorder(torch.tensor([0, 4]))
    assert repr(cache) == "IndexCache(lengths=[4, 6, 6, 5], max_length=8)"
    cache.reset()
    assert not cache.lengths.any()


@pytest.mark.parametrize("wiring", ["full", "sparse"])
def test_decoding_reads_the_description_of_a_layer(wiring: str) -> None:
    class Doubled(LUTAttention):
        def describe(self) -> LayerDescription:
            about = super().describe()
            return about._replace(weight=2 * about.weight)

    synapses = None if wiring == "full" else growth.random(3, 6, 4, 0.5, seed=0)
    layer, x = Doubled(6, 4, 3, 2, 2, 8, synapses=synapses, seed=0), torch.randn(2, 5, 6)
    cache = layer.new_cache(2)
    decoded = torch.cat([layer(x[:, :3], cache=cache), layer(x[:, 3:4], cache=cache), layer(x[:, 4:], cache=cache)], 1)
    torch.testing.assert_close(decoded, 2 * layer(x).detach())


def test_a_cache_that_cannot_take_more_is_left_as_it_was() -> None:
    layer, x = make(sums="fixed"), torch.randn(2, 8, 6)
    cache = layer.new_cache(2)
    layer(x[:, :6], torch.tensor([4, 6]), cache)
    before = cache.indices.clone(), cache.lengths.clone()

    def unchanged() -> bool:
        return torch.equal(cache.indices, before[0]) and torch.equal(cache.lengths, before[1])

    with pytest.raises(
        ArgumentError, match=r"row 1 of the cache holds 6 positions and x brings 3 more, .* max_length 8 in total"
    ):
        layer(x[:, :3], cache=cache)
    with pytest.raises(ArgumentError, match="lengths has 4 in row 0, expected 0 to 3"):
        layer(x[:, :3], torch.tensor([4, 0]), cache)
    with pytest.raises(ArgumentError, match=r"cache.indices is int16 \[2, 3, 8\] on cpu, expected shape \[1, 3, max_length\]"):
        layer(x[:1, :1], cache=cache)
    with pytest.raises(ArgumentError, match=r"expected shape \[B, S, 6\]"):
        layer(x[:, :1, :5], cache=cache)
    assert unchanged()
    with torch.no_grad():
        layer.weight.fill_(1e4)
    with pytest.raises(OverflowInSumError):
        layer(x[:, :1], cache=cache)
    assert torch.equal(cache.lengths, before[1]), "what failed was not counted"
    with pytest.raises(ArgumentError, match="cache is 3, expected an IndexCache"):
        layer(x, cache=3)
    with pytest.raises(ArgumentError, match="expected a max_length of at most 8"):
        layer(x[:, :1], cache=IndexCache(2, 3, 9))


def test_an_empty_batch() -> None:
    layer = make()
    assert layer(torch.randn(0, 3, 6)).shape == (0, 3, 4)
    assert layer(torch.randn(0, 3, 6), cache=layer.new_cache(0)).shape == (0, 3, 4)


# ---- checks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "message"), [
    ({"n_anchors": 12}, "n_anchors is 12 and positional_dim 1, .* at most 24: a table has no more than 2[*][*]24 rows"),
    ({"n_anchors": 0}, "n_anchors is 0, expected an integer from 1"),
    ({"positional_dim": -1}, "positional_dim is -1"),
    ({"max_length": 0}, "max_length is 0"),
    ({"max_length": 2.5}, "max_length is 2.5"),
    ({"algorithm": "some"}, "algorithm is 'some'"),
    ({"algorithm": "cells", "synapses": GENERAL}, "expected 'auto' or 'pairs' where there are synapses"),
    ({"shared_positions": 1}, "shared_positions is 1"),
    ({"synapses": growth.random(3, 4, 4, 0.5, seed=0)}, "synapses is .*, expected 3 detectors × 32 rows -> 4 outputs"),
    ({"gradient": "x"}, "gradient is 'x'"),
    ({"dtype": torch.int32}, "dtype is torch.int32"),
])  # fmt: skip
def test_what_cannot_be_made(change: dict[str, Any], message: str) -> None:
    sizes = {"n_inputs": 6, "n_outputs": 4, "n_detectors": 3, "n_anchors": 2, "positional_dim": 1, "max_length": 8}
    with pytest.raises(ArgumentError, match=message):
        LUTAttention(**(sizes | change))


def test_what_does_not_fit_is_named() -> None:
    layer = make()
    with pytest.raises(ArgumentError, match="expected sequences of 1 to 8 positions"):
        layer(torch.randn(1, 9, 6))
    with pytest.raises(ArgumentError, match=r"x is float32 \[1, 3, 5\] on cpu, expected shape \[B, S, 6\]"):
        layer(torch.randn(1, 3, 5))
    with pytest.raises(ArgumentError, match=r"expected shape \[B, S, 6\]"):
        layer(torch.randn(3, 6))
    x = torch.randn(2, 3, 6)
    assert torch.equal(layer(x), lut_attention(x, layer.weight, layer.anchors, layer.positions))


# ---- on a CUDA device ------------------------------------------------------------------------------------------------


def train_once(layer: LUTAttention, x: Tensor) -> list[Tensor]:
    """y, dx, dpositions, and dW or the weights that took a step, on the CPU."""
    x = x.clone().requires_grad_()
    layer.positions.grad = layer.weight.grad = None
    y = layer(x, torch.tensor([5, 8], device=x.device))
    y.square().sum().backward()
    learned = layer.weight.detach() if layer.weight.grad is None else layer.weight.grad.to_dense()
    assert x.grad is not None
    assert layer.positions.grad is not None
    return [tensor.detach().cpu() for tensor in (y, x.grad, layer.positions.grad, learned)]


@pytest.mark.gpu
@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
@pytest.mark.parametrize(("wiring", "algorithm"), [("fc", "pairs"), ("fc", "cells"), ("general", "auto"), ("shared", "auto")])
def test_the_same_numbers_on_cuda(wiring: str, algorithm: str, gradient: str) -> None:
    layer, x = make(wiring, gradient=gradient, algorithm=algorithm), torch.randn(2, 8, 6)
    there = copy.deepcopy(layer).cuda()
    want = train_once(layer, x)
    with use_backend("triton"):
        got = train_once(there, x.cuda())
        full = there(x.cuda()).detach()
        torch.testing.assert_close(decoded(there, x.cuda(), [1, 2, 5]), full, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["pairs", "cells"])
def test_capture_in_a_graph(algorithm: str) -> None:
    layer = make(algorithm=algorithm).cuda()
    x = torch.randn(2, 8, 6, device="cuda", requires_grad=True)

    def step() -> Tensor:
        x.grad = layer.weight.grad = layer.positions.grad = None
        y = layer(x)
        y.square().sum().backward()
        return y

    with use_backend("triton"):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = step()
        captured = (y, x.grad, layer.weight.grad, layer.positions.grad)
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        replayed = [tensor.detach().clone() for tensor in captured]
        want = step()
    torch.testing.assert_close(replayed, [want.detach(), x.grad, layer.weight.grad, layer.positions.grad], rtol=1e-4, atol=1e-4)
