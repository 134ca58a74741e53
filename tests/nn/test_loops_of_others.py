"""Layers and models in the training loops of others: meta devices, transforms, averages of weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import TorchFunctionMode

from lutetia.errors import ArgumentError, LutetiaError
from lutetia.lut import growth
from lutetia.models import LUTTransformer
from lutetia.nn import LUT, LUTAttention, LUTProjection2d, NgramTables, ProjectedLUT

SMALL: dict[str, Any] = {
    "context": 16,
    "width": 16,
    "n_layers": 1,
    "n_heads": 2,
    "n_detectors": 4,
    "ff_detectors": 8,
    "ff_anchors": 4,
}


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("fields", [{}, {"attention": "softmax", "feed_forward": "projected", "read": "confidence2"}])
def test_a_model_made_on_meta_takes_a_state(fields: dict[str, Any], seed: int | None) -> None:
    model = LUTTransformer(**SMALL, **fields, seed=seed).eval()
    with torch.device("meta"):
        empty = LUTTransformer(**SMALL, **fields, seed=seed)
    assert all(parameter.is_meta for parameter in empty.parameters())
    filled = empty.to_empty(device="cpu").eval()
    filled.load_state_dict(model.state_dict())
    tokens = torch.randint(256, (2, 9))
    torch.testing.assert_close(filled(tokens), model(tokens), rtol=0, atol=0)


@pytest.mark.parametrize(
    "layer",
    [
        LUT(8, 4, 6, 3, seed=0),
        LUT(8, 4, 6, 3, read="blend", seed=0),
        LUTAttention(8, 4, 6, 2, positional_dim=1, max_length=8, seed=0),
    ],
)
def test_transforms_are_refused_with_what_to_do(layer: LUT | LUTAttention) -> None:
    values, x = dict(layer.named_parameters()), torch.randn(2, 5, 8)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, (x,)).square().mean()

    for _ in range(2):  # also after calls that were prepared
        loss(values, x).backward()
        with pytest.raises(ArgumentError, match=r"torch\.func\.grad, vmap .* use loss\.backward\(\)"):
            torch.func.grad(loss)(values, x)


@pytest.mark.parametrize("options", [{}, {"read": "blend"}, {"gradient": "sparse"}])
def test_what_has_no_second_derivative_says_so(options: dict[str, Any]) -> None:
    layer, x = LUT(8, 4, 6, 3, seed=0, **options), torch.randn(2, 8)
    given = torch.randn(2, 8, requires_grad=True)
    for _ in range(2):  # also after calls that were prepared
        y = layer(given)
        with pytest.raises(ArgumentError, match="asked for in a batch"):
            torch.autograd.grad(y, given, torch.randn(3, 2, 4), is_grads_batched=True)
        if not options.get("gradient"):  # torch says it of the others
            with pytest.raises(LutetiaError, match="twice"):
                torch.autograd.functional.hessian(lambda x: layer(x).square().sum(), x)


class OnTheCPU(TorchFunctionMode):
    """Draws of a generator, which is one of the CPU, say so: elsewhere, as under torch.device("cuda"), torch refuses them."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        assert given.get("generator") is None or str(given.get("device")) == "cpu", function
        return function(*args, **given)


@pytest.mark.parametrize("seed", [0, None])
def test_layers_are_made_on_the_default_device(seed: int | None) -> None:
    with torch.device("meta"), OnTheCPU():
        layers = (
            LUT(8, 4, 6, 3, anchors="mixed", seed=seed),
            LUT(8, 4, 6, 3, synapses=growth.random(6, 3, 4, 0.5, seed=0), seed=seed),
            LUTAttention(8, 4, 6, 2, positional_dim=1, max_length=8, seed=seed),
            ProjectedLUT(8, 4, heads=2, head_width=4, n_detectors=3, n_anchors=2, seed=seed),
            LUTTransformer(**SMALL, ngrams=(2,), ngram_rows=64, ngram_width=4, seed=seed),
        )
    for layer in layers:
        for name, tensor in layer.state_dict().items():
            assert tensor.is_meta, (type(layer), name)


def test_an_average_of_weights_keeps_anchors() -> None:
    layer = LUT(16, 4, 32, 4, seed=0)
    average = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.9))  # use_buffers=False
    with torch.no_grad():
        layer.weight.add_(1.0)
    for _ in range(3):
        average.update_parameters(layer)
    assert torch.equal(average.module.anchors, layer.anchors)
    assert average(torch.randn(3, 16)).shape == (3, 4)


def test_ngram_tables_made_on_meta_hash_as_others_do() -> None:
    tables = NgramTables((2, 3), n_rows=64, width=4, word=True, seed=3)
    with torch.device("meta"):
        empty = NgramTables((2, 3), n_rows=64, width=4, word=True, seed=3)
    assert empty.multipliers.is_meta
    filled, tokens = empty.to_empty(device="cpu"), torch.randint(256, (2, 9))
    assert torch.equal(filled.addresses(tokens), tables.addresses(tokens))


def test_data_parallel_knows_of_sparse_ngrams(monkeypatch: pytest.MonkeyPatch) -> None:
    """DistributedDataParallel must be told before the first step that a gradient is sparse."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # or gloo looks up the name of this machine, and may wait for an answer
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = LUTTransformer(
            **SMALL, attention="softmax", feed_forward="none", ngrams=(2,), ngram_rows=64, ngram_width=4, seed=0
        )
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        parallel(torch.randint(256, (2, 9))).square().mean().backward()
        assert model.ngrams.weight.grad.is_sparse
    finally:
        torch.distributed.destroy_process_group()
    assert repr(model.ngrams).startswith("NgramTables(")
    copied = copy.deepcopy(model.ngrams)
    assert torch.equal(copied.weight, model.ngrams.weight)


def test_windows_made_on_meta_take_a_state() -> None:
    def make() -> LUTProjection2d:
        sizes = {"receptive_field": 3, "projection": 2, "grid": 3, "detectors_per_position": 2}
        return LUTProjection2d((4, 4), (8, 8), n_anchors=3, seed=0, **sizes).eval()

    layer, x = make(), torch.rand(5, 4, 4)
    with torch.device("meta"):
        empty = make()
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(layer.state_dict())
    torch.testing.assert_close(filled(x), layer(x), rtol=0, atol=0)


def test_ngram_tables_are_exported() -> None:
    tables = NgramTables((2, 3), n_rows=64, width=4, word=True, seed=3).eval()
    torch.nn.init.normal_(tables.weight)
    program = torch.export.export(tables, (torch.randint(256, (2, 9)),))
    tokens = torch.randint(256, (2, 9))
    torch.testing.assert_close(program.module()(tokens), tables(tokens))
