"""`lutetia.nn.LUT`: how it is made, kept, copied and trained."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lutetia.nn
from lut.oracle import gradients
from lutetia.errors import ArgumentError
from lutetia.lut import SynapseMeta, Synapses, growth, lut, random_anchors, use_backend
from lutetia.lut.connectivity.full import synapses_seen
from lutetia.nn import LUT, clamp_after_step

GENERAL = growth.random(3, 4, 5, 0.6, seed=1)
SHARED = growth.random(3, 4, 5, 0.6, seed=1, shared=True, metas=(SynapseMeta(), SynapseMeta(lr_scale=0.5, max_weight=0.01)))
WIRINGS = {"fc": None, "general": GENERAL, "shared": SHARED}
POLICIES = ("dense", "sparse", "in_place")


@pytest.mark.parametrize("name", sorted(lutetia.nn.__all__))
def test_help_names_every_argument(name: str) -> None:
    arguments = inspect.signature(getattr(lutetia.nn, name)).parameters.values()
    assert not [each for each in arguments if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


@pytest.fixture(autouse=True)
def on_reference() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of tiny steps: on a busy machine waiting for a second thread is all they would do
    with use_backend("reference"):
        yield
    torch.set_num_threads(threads)


def make(wiring: str = "fc", **options: Any) -> LUT:
    layer = LUT(8, 5, 3, 4, synapses=WIRINGS[wiring], **({"seed": 0} | options))
    layer.external_lr = 0.1
    return layer


# ---- made ------------------------------------------------------------------------------------------------------------


def test_what_a_layer_holds() -> None:
    layer = LUT(8, 5, 3, 4)
    assert layer.weight.shape == (3, 16, 5)
    assert layer.weight.dtype == torch.float32
    assert (layer.anchors.shape, layer.anchors.dtype) == ((3, 4, 2), torch.int32)
    assert layer.synapses is None
    assert set(layer.state_dict()) == {"weight", "anchors"}
    assert 0 < layer.weight.abs().max() <= 1e-3


@pytest.mark.parametrize("wiring", ["general", "shared"])
def test_what_a_sparse_layer_holds(wiring: str) -> None:
    layer = make(wiring)
    synapses = WIRINGS[wiring]
    assert synapses is not None
    assert layer.weight.shape == (synapses.n_weights,)
    assert layer.synapses == synapses
    assert layer.synapses is layer.synapses, "built once"
    assert set(layer.state_dict()) == {"weight", "anchors", "synapse_start", "synapse_targets", "synapse_meta"}


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_layer_is_the_function_of_its_tensors(wiring: str) -> None:
    layer = make(wiring, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.normal_()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    dense = layer.weight if layer.synapses is None else layer.synapses.expand(layer.weight)
    want = gradients(x.flatten(0, 1), dense, layer.anchors, torch.ones(6, 5))[0]
    torch.testing.assert_close(layer(x).detach().flatten(0, 1), want)
    assert torch.equal(layer(x), lut(x, layer.weight, layer.anchors, synapses=layer.synapses))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_seed_makes_the_same_layer(wiring: str) -> None:
    one, same, other = make(wiring, seed=3), make(wiring, seed=3), make(wiring, seed=4)
    assert torch.equal(one.weight, same.weight)
    assert torch.equal(one.anchors, same.anchors)
    assert not torch.equal(one.weight, other.weight)
    assert not torch.equal(one.anchors, other.anchors)


def test_without_a_seed_torch_decides() -> None:
    layers = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        layers.append(LUT(8, 5, 3, 4))
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(layers[0].anchors, layers[1].anchors)
    assert not torch.equal(layers[0].anchors, layers[2].anchors)


def test_weights_start_where_the_meta_says() -> None:
    layer = LUT(8, 5, 30, 4, meta=SynapseMeta(initial_weight=2.0, initial_noise=0.5, max_weight=2.25))
    assert layer.weight.min() >= 1.5
    assert layer.weight.max() == 2.25
    assert 1.5 < layer.weight.mean() < 2.0
    constant = LUT(8, 5, 3, 4, meta=SynapseMeta(initial_weight=-1.0, initial_noise=0.0))
    assert torch.equal(constant.weight, torch.full((3, 16, 5), -1.0))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_reset_parameters(wiring: str) -> None:
    layer = make(wiring)
    before, anchors = layer.weight.detach().clone(), layer.anchors.clone()
    with torch.no_grad():
        layer.weight.fill_(7.0)
    layer.reset_parameters()
    assert torch.equal(layer.weight, before)
    assert torch.equal(layer.anchors, anchors)


def test_anchors_may_be_given_and_assigned() -> None:
    given = random_anchors(8, 3, 4, 7).long()
    layer = make(anchors=given)
    assert torch.equal(layer.anchors, given)
    assert layer.anchors.dtype == torch.int32
    given.zero_()
    assert layer.anchors.any(), "the layer has its own"
    x = torch.randn(3, 8)
    before = layer(x)
    layer.anchors = layer.anchors.flip(-1)
    assert not torch.equal(layer(x), before)
    layer.anchors = torch.zeros(3, 4, 2, dtype=torch.int32)
    with pytest.raises(ArgumentError, match="two different inputs"):
        layer(x)


def test_a_layer_in_words() -> None:
    assert repr(make()) == "LUT(8, 5, n_detectors=3, n_anchors=4)"
    text = repr(make("general", gradient="sparse", sums="fixed", int_rescaler=0.5))
    expected = (
        f"LUT(8, 5, n_detectors=3, n_anchors=4, n_weights={GENERAL.n_weights}, gradient='sparse', sums='fixed', int_rescaler=0.5)"
    )
    assert text == expected


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((1, 5, 3, 4), {}, "n_inputs is 1, expected an integer from 2"),
        ((8, 0, 3, 4), {}, "n_outputs is 0"),
        ((8, 5, 0, 4), {}, "n_detectors is 0"),
        ((8, 5, 3, 0), {}, "n_anchors is 0"),
        ((8, 5, 3, 25), {}, "n_anchors is 25, expected at most 24: a table has no more than 16777216 rows"),
        ((8, 5, 3, 4.0), {}, "n_anchors is 4.0"),
        ((8, 5, 3, 4), {"gradient": "none"}, "gradient is 'none'"),
        ((8, 5, 3, 4), {"sums": "int"}, "sums is 'int'"),
        ((8, 5, 3, 4), {"int_rescaler": -1.0}, "int_rescaler is -1.0"),
        ((8, 5, 3, 4), {"dtype": torch.int32}, "dtype is torch.int32"),
        ((8, 5, 3, 4), {"meta": 0.5}, "meta is 0.5, expected a SynapseMeta"),
        ((8, 5, 3, 4), {"seed": -1}, "seed is -1"),
        ((8, 5, 3, 4), {"anchors": torch.zeros(3, 4, 2)}, "anchors is float32"),
        ((8, 5, 3, 4), {"anchors": random_anchors(8, 2, 4)}, r"anchors is int32 \[2, 4, 2\] on cpu, expected shape \[3, 4, 2\]"),
        ((8, 5, 3, 4), {"anchors": random_anchors(9, 3, 4) * 0 + 8}, "expected inputs from 0 to 7"),
        ((8, 5, 3, 4), {"synapses": "all"}, "synapses is 'all'"),
        ((8, 5, 3, 3), {"synapses": GENERAL}, "expected 3 detectors × 8 rows -> 5 outputs"),
        ((8, 6, 3, 4), {"synapses": GENERAL}, "expected 3 detectors × 16 rows -> 6 outputs"),
        ((8, 5, 3, 4), {"synapses": GENERAL, "meta": SynapseMeta(lr_scale=2.0)}, "meta is .*, expected the default"),
    ],
)
def test_a_layer_that_cannot_be_made(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LUT(*arguments, **options)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.randn(2, 7), r"x is float32 \[2, 7\] on cpu, expected shape \[..., 8\]"),
        (torch.randn(8, 2), r"expected shape \[..., 8\]"),
        (torch.tensor(1.0), r"expected shape \[..., 8\]"),
        (torch.zeros(2, 8, dtype=torch.int64), "x is int64"),
        (torch.zeros(2, 8, device="meta"), "on cpu, expected a tensor on meta"),
        ("text", "x is 'text', expected a tensor"),
    ],
)
def test_an_input_that_does_not_fit(x: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()(x)


# ---- kept and copied -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("gradient", POLICIES)
def test_a_state_dict_makes_another_layer_the_same_function(wiring: str, gradient: str) -> None:
    source, target = make(wiring, seed=1, gradient=gradient), make(wiring, seed=2, gradient=gradient)
    x = torch.randn(9, 8)
    target(x)  # what it has worked out about its synapses must not outlive the load
    assert not torch.equal(source(x), target(x))
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    target.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(source(x), target(x))


def test_synapses_are_loaded_too_and_nobody_elses_change() -> None:
    mine = growth.from_edges(1, 1, 3, [[0, 0], [0, 1]])
    its = growth.from_edges(1, 1, 3, [[0, 1], [0, 2]])
    layers = [LUT(2, 3, 1, 1, synapses=synapses, seed=0) for synapses in (mine, its, mine)]
    x = torch.randn(4, 2)
    before = layers[2](x)
    assert not layers[0](x)[:, 2].any()
    layers[0].load_state_dict(layers[1].state_dict())
    assert torch.equal(layers[0](x), layers[1](x))
    assert layers[0].synapses == its
    assert torch.equal(layers[2](x), before)
    assert mine.owner_targets.tolist() == [0, 1]


def test_a_state_dict_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        make("general").load_state_dict(make("shared").state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key"):
        make().load_state_dict(make("shared").state_dict())
    damaged = make("general").state_dict()
    damaged["synapse_targets"] = damaged["synapse_targets"] + 5
    layer = make("general")
    layer.load_state_dict(damaged)
    with pytest.raises(ArgumentError, match="expected 0 to 4"):
        layer(torch.randn(2, 8))


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("gradient", POLICIES)
def test_a_copy_is_equal_and_apart(wiring: str, gradient: str) -> None:
    layer = make(wiring, gradient=gradient)
    x = torch.randn(5, 8)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(other) is type(layer)
        assert torch.equal(layer(x), other(x))
        assert other.external_lr == 0.1
        with torch.no_grad():
            other.weight.add_(1.0)
            other.anchors.copy_(other.anchors.flip(-1))
        assert not torch.equal(layer(x), other(x))


@pytest.mark.parametrize("wiring", WIRINGS)
def test_half_precision(wiring: str) -> None:
    layer = make(wiring, dtype=torch.bfloat16)
    assert layer.weight.dtype == torch.bfloat16
    y = layer(torch.randn(3, 8, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    moved = make(wiring).to(torch.float16)
    assert (moved.weight.dtype, moved.anchors.dtype) == (torch.float16, torch.int32)
    assert moved(torch.randn(3, 8)).dtype == torch.float32


def test_a_layer_made_in_inference_mode_runs() -> None:
    with torch.inference_mode():
        layer = make("shared")
        assert layer(torch.randn(2, 8)).shape == (2, 5)


# ---- trained ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("gradient", POLICIES)
def test_two_layers_learn(wiring: str, gradient: str) -> None:
    """A second layer that learns alone could not get there: the first one's outputs are what it reads."""
    first, second = (LUT(6, 6, 24, 4, gradient=gradient, seed=k) for k in range(2))
    if wiring != "fc":
        synapses = growth.random(24, 4, 6, 0.7, seed=0, shared=wiring == "shared")
        first, second = (LUT(6, 6, 24, 4, gradient=gradient, seed=k, synapses=synapses) for k in range(2))
    for layer in (first, second):
        layer.external_lr = 0.02
    x = torch.randn(64, 6)
    target = torch.stack([x[:, 0] * x[:, 1], (x[:, 2] > x[:, 3]).float(), *x.abs()[:, 2:].unbind(1)], dim=1)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = None if gradient == "in_place" else torch.optim.SGD(parameters, lr=0.02)
    losses = []
    for _ in range(120):
        loss = (x + second(x + first(x)) - target).square().sum(1).mean()
        losses.append(loss.item())
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    assert losses[-1] < 0.25 * losses[0]


def test_optimisers_can_be_kept_within_bounds() -> None:
    bounded = SynapseMeta(min_weight=-0.01, max_weight=0.02)
    model = nn.Sequential(
        LUT(8, 8, 3, 4, meta=bounded, seed=0),
        LUT(8, 5, 3, 4, synapses=SHARED, seed=0),
        nn.Linear(5, 2),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0)
    handle = clamp_after_step(optimizer, model)
    x = torch.randn(16, 8)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    first, second = model[0], model[1]
    assert isinstance(first, LUT)
    assert isinstance(second, LUT)
    assert (first.weight.min().item(), first.weight.max().item()) == pytest.approx((-0.01, 0.02))
    limited = SHARED.weight_meta == 1
    assert second.weight[limited].max() <= 0.01 + 1e-6
    assert second.weight[~limited].abs().max() > 0.02
    handle.remove()
    optimizer.step()
    assert first.weight.abs().max() > 0.02


def test_clamping_by_hand() -> None:
    layer = make(meta=SynapseMeta(min_weight=-0.5, max_weight=0.25))
    with torch.no_grad():
        layer.weight.normal_()
    want = layer.weight.detach().clamp(-0.5, 0.25)
    layer.clamp_weights_()
    assert torch.equal(layer.weight, want)


@pytest.mark.parametrize(
    ("wiring", "gradient"), [("fc", "dense"), ("fc", "sparse"), ("fc", "in_place"), ("general", "dense"), ("shared", "in_place")]
)
def test_many_steps_leave_nothing_behind(wiring: str, gradient: str) -> None:
    synapses = None if wiring == "fc" else growth.random(3, 4, 64, 0.6, seed=1, shared=wiring == "shared")
    layer = LUT(8, 64, 3, 4, synapses=synapses, gradient=gradient, seed=0)
    layer.external_lr = 0.0
    x = torch.randn(256, 8)

    def train(steps: int) -> list[int]:
        for _ in range(steps):
            layer.weight.grad = None
            layer(x).square().sum().backward()
        gc.collect()
        things = gc.get_objects()
        return [len(things), sum(issubclass(type(thing), torch.Tensor) for thing in things), resident_bytes()]

    train(50)
    before, after = train(50), train(300)
    grown = [later - sooner for sooner, later in zip(before, after, strict=True)]
    assert grown[0] < 100, "objects"
    assert grown[1] == 0, "tensors"
    assert grown[2] < 8_000_000, "bytes: each step made a y of 64 kB and what the backward pass needs"


def resident_bytes() -> int:
    """What this process holds of memory; 0 where the system does not say."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * 4096 if file.exists() else 0


def test_a_model_whose_synapses_die_is_freed() -> None:
    gc.collect()
    known = len(synapses_seen.known)
    for seed in range(3):
        layer = make("shared", seed=seed)
        layer(torch.randn(2, 8, requires_grad=True)).sum().backward()
        assert isinstance(layer.synapses, Synapses)
    del layer
    gc.collect()
    assert len(synapses_seen.known) == known


# ---- compiled and exported -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_layer_compiles_in_one_graph(wiring: str) -> None:
    layer = make(wiring)
    x = torch.randn(4, 8, requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = []
    for run in (layer, compiled):
        x.grad = layer.weight.grad = None
        run(x).square().sum().backward()
        results.append((x.grad, layer.weight.grad))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_layer_is_exported_with_its_buffers(wiring: str) -> None:
    layer = make(wiring)
    with torch.no_grad():
        program = torch.export.export(layer, (torch.randn(4, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert set(program.state_dict) == set(layer.state_dict())
    assert not program.constants, "the synapses are buffers, not constants"
    x = torch.randn(11, 8)
    torch.testing.assert_close(program.module()(x), layer(x))
