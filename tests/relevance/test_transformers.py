"""The architectures of `transformers`: each runs, conserves relevance, and finds the same with SDPA as with eager attention."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("transformers")
import slow_engine
import zoo

from lutetia import relevance

EPS = 1e-10
# Where relevance may end on the way: biases, means of norms, the first-order expansion of softmax, masks, learned constants.
ABSORB = {
    "AddmmBackward0": "bias",
    "ConvolutionBackward0": "bias",
    "NativeLayerNormBackward0": "bias and mean",
    "NativeBatchNormBackward0": "bias and mean",
    "SoftmaxBackward0": "expansion",
    "ScaledDotProductFlashAttentionForCpuBackward0": "expansion",
    "AddBackward0": "a parameter, or a number",
    "CatBackward0": "a learned token",
    "IndexPutBackward0": "a constant",
}
DOUBLE = 1e-7  # of all relevance
SINGLE = 1e-4  # some models compute norms and rotations in float32, whatever their weights are


@pytest.fixture(autouse=True)
def softmax_in_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Eager attention of some models takes the softmax in float32: here it stays in float64, as in SDPA."""
    softmax = F.softmax

    def keep(x: Tensor, dim: int | None = None, dtype: Any = None, **more: Any) -> Tensor:
        return softmax(x, dim=dim, **more)

    monkeypatch.setattr(F, "softmax", keep)
    return


@functools.cache
def made(name: str, attention: str) -> Any:
    return zoo.make(name, attention)


def explain(name: str, rules: relevance.Rules, attention: str = "eager") -> tuple[relevance.Result, list[Tensor]]:
    model, inputs = made(name, attention)
    inputs = dict(inputs)
    with torch.no_grad():
        output = relevance.api.main_output(model(**inputs))
    seed = torch.randn(output.shape, generator=torch.Generator().manual_seed(4), dtype=output.dtype)
    r = relevance.attribute(model, inputs, seed, rules)
    return r, [r[value] for value in inputs.values() if value in r]


def tolerance(r: relevance.Result) -> float:
    return SINGLE if any(row.name == "ToCopyBackward0" for row in r.report) else DOUBLE


def scale(r: relevance.Result) -> float:
    """The largest relevance at any node: what is lost is small beside it."""
    return max(abs(row.relevance_out) for row in r.report) + 1


@pytest.mark.parametrize("name", zoo.ZOO)
def test_it_conserves(name: str) -> None:
    r, found = explain(name, relevance.presets.epsilon(EPS))
    assert found
    assert all(torch.isfinite(tensor).all() and tensor.abs().max() > 1e-5 for tensor in found)
    limit = tolerance(r) * scale(r)
    for row in r.report:
        assert row.relevance_out == pytest.approx(row.relevance_in + row.absorbed, abs=1e-12 * scale(r))
        if not row.ends and row.name not in ABSORB:
            assert row.absorbed == pytest.approx(0, abs=limit), row
    # Nothing is lost between the nodes: what began has ended at a leaf or was absorbed.
    arrived = sum(row.relevance_out for row in r.report if row.ends)
    assert arrived + r.report.absorbed == pytest.approx(float(r.seed.sum()), abs=limit)
    assert not r.report.unknown


# Behind a batch norm, a convolution of zeros may hold relevance that has nowhere to go: there are no parts to share it.
@pytest.mark.parametrize("name", [name for name in zoo.ZOO if name not in zoo.WITH_BATCH_NORM])
def test_without_biases_only_softmax_absorbs(name: str) -> None:
    r, _ = explain(name, relevance.presets.epsilon(EPS, bias="redistribute"))
    limit = tolerance(r) * scale(r)
    for row in r.report:
        if not row.ends and "Softmax" not in row.name and "ScaledDot" not in row.name and row.name != "CatBackward0":
            assert row.absorbed == pytest.approx(0, abs=limit), row


@pytest.mark.parametrize("name", zoo.ZOO)
def test_the_slow_engine_agrees(name: str) -> None:
    """It recorded every activation, and needs no promises. Tokens are replaced by embeddings: it knows leaves only."""
    model, inputs = made(name, "eager")
    given, leaves = {}, []
    for key, value in inputs.items():
        if value.is_floating_point():
            leaves.append(value.clone().requires_grad_())
            given[key] = leaves[-1]
        elif key == "input_ids" and name != "clip":  # whose text model takes nothing else
            leaves.append(torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True))
            given["inputs_embeds"] = leaves[-1]
        else:
            given[key] = value
    with slow_engine.Recorder() as recorder, relevance.watch(model):
        output = relevance.api.main_output(model(**given))
    seed = torch.randn(output.shape, dtype=output.dtype)
    expected = slow_engine.relevance(recorder, output, seed, EPS)
    r = relevance.explain(output, seed, wrt=leaves, rules=relevance.presets.epsilon(EPS))
    limit = 1e-5 if tolerance(r) == SINGLE else 1e-7
    for leaf in leaves:
        size = expected[leaf].abs().max()
        torch.testing.assert_close(r[leaf] / size, expected[leaf] / size, rtol=0, atol=limit)


@pytest.mark.parametrize("name", zoo.WITH_SDPA)
@pytest.mark.parametrize("preset", ["epsilon", "attnlrp"])
def test_sdpa_is_eager(name: str, preset: str) -> None:
    rules = getattr(relevance.presets, preset)(1e-12)
    eager, sdpa = explain(name, rules), explain(name, rules, "sdpa")
    limit = 1e-5 if tolerance(eager[0]) == SINGLE else 1e-9
    assert name == "swin" or any("ScaledDotProduct" in row.name for row in sdpa[0].report)
    for a, b in zip(eager[1], sdpa[1], strict=True):
        torch.testing.assert_close(a / a.abs().max(), b / a.abs().max(), rtol=0, atol=limit)


@pytest.mark.parametrize("how", ["batched_mm", "grouped_mm"])
def test_experts_in_any_way(how: str) -> None:
    """Mixtral's experts one by one, as batched products, and as one grouped product: float32, which the last one needs."""
    from transformers import MixtralConfig, MixtralForCausalLM

    def made_with(experts: str) -> Any:
        config = MixtralConfig(**zoo.ZOO["mixtral"][2])
        model = MixtralForCausalLM._from_config(config, attn_implementation="eager", experts_implementation=experts)
        generator = torch.Generator().manual_seed(2)
        for parameter in model.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        return model.eval()

    tokens = torch.randint(3, 40, (2, 5))
    one, other = made_with("eager"), made_with(how)
    seed = torch.randn(2, 5, 40)
    rules = relevance.presets.epsilon(1e-8)
    a, b = (relevance.attribute(model, {"input_ids": tokens}, seed, rules) for model in (one, other))
    torch.testing.assert_close(a[tokens], b[tokens], rtol=1e-3, atol=1e-3)
    assert how == "batched_mm" or "GroupedMmBackward0" in {row.name for row in b.report}


@pytest.mark.parametrize("fallback", [False, True])
def test_grouped_products_by_gradient_times_input(fallback: bool) -> None:
    from transformers.integrations import moe

    assert moe  # registers the fallback
    run = torch.ops.transformers.grouped_mm_fallback if fallback else F.grouped_mm
    dtype = torch.float64 if fallback else torch.float32
    x = torch.randn(7, 8, dtype=dtype, requires_grad=True)
    w = torch.nn.Parameter(torch.randn(3, 8, 16, dtype=dtype))
    ends = torch.tensor([2, 2, 7], dtype=torch.int32)  # one expert has nothing to do
    y = run(x, w, ends) if fallback else run(x, w, offs=ends)
    c = torch.randn(y.shape, dtype=dtype)
    gradients = torch.autograd.grad(y, (x, w), c, retain_graph=True)
    r = relevance.explain(y, y.detach() * c, wrt=[x, w], rules=relevance.presets.epsilon(0.0))
    for leaf, gradient in zip((x, w), gradients, strict=True):
        torch.testing.assert_close(r[leaf], gradient * leaf.detach(), rtol=1e-4, atol=1e-4)
    # As a part of a sum, its value is asked for.
    z = (run(x, w, ends) if fallback else run(x, w, offs=ends)) + y.mean()
    c = torch.randn(z.shape, dtype=dtype)
    (gradient,) = torch.autograd.grad(z, x, c, retain_graph=True)
    r = relevance.explain(z, z.detach() * c, rules=relevance.presets.epsilon(0.0))
    torch.testing.assert_close(r[x], gradient * x.detach(), rtol=1e-3, atol=1e-3)
