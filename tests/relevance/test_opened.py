"""Custom functions that run as their operations: the same relevance as a model written without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance import opened, presets, registry
from relevance import slow_engine


class Reversible(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1), in pairs of layers; nothing is kept, as its own backward would compute it again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: nn.ModuleList) -> Tensor:
        a, b = x.chunk(2, -1)
        with torch.no_grad():
            for f, g in layers:  # type: ignore[misc]
                a = a + f(b)
                b = b + g(a)
        ctx.save_for_backward(a.detach(), b.detach())
        return torch.cat([a, b], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class Net(nn.Module):
    def __init__(self, plain: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        pairs = [nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2)]) for _ in range(2)]
        self.layers, self.head, self.plain = nn.ModuleList(pairs), nn.Linear(6, 2), plain

    def forward(self, x: Tensor) -> Tensor:
        if not self.plain:
            return self.head(Reversible.apply(x, self.layers))
        a, b = x.chunk(2, -1)
        for f, g in self.layers:
            a = a + f(b)
            b = b + g(a)
        return self.head(torch.cat([a, b], -1))


class Quiet(nn.Sequential):
    """A layer that turns gradients off itself, as Reformer's do."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "OPENED", {(Reversible.__module__, "Reversible")})


def test_relevance_is_that_of_the_operations_inside(listed: None) -> None:
    x = torch.randn(4, 6, dtype=torch.float64)
    options: dict[str, Any] = {"target": 1, "rules": presets.epsilon(1e-9), "wrt": ["layers.0.1", "layers.1.0.0"]}
    expected, found = (relevance.attribute(Net(plain).double(), x, **options) for plain in (True, False))
    for key in (x, "layers.0.1", "layers.1.0.0"):
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=0)
    assert found.report.unseen == found.report.unknown == []
    assert torch.is_grad_enabled()


def test_blocks_inside_are_recomputed(listed: None) -> None:
    net, x = Net(False).double(), torch.randn(4, 6, dtype=torch.float64)
    expected = relevance.attribute(net, x)[x]
    for pair in net.layers:
        pair[0] = Quiet(*pair[0])  # type: ignore[index, misc]
    torch.testing.assert_close(relevance.attribute(net, x, recompute=["layers.0.0", "layers.1.0"])[x], expected)


def test_only_a_listed_function_without_a_rule_is_opened(listed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 6)
    monkeypatch.setitem(registry._OPS, "ReversibleBackward", registry._Function(lambda node, R: 0 * R, (), None))
    assert not relevance.attribute(Net(False), x)[x].any()  # by the rule
    monkeypatch.delitem(registry._OPS, "ReversibleBackward")
    monkeypatch.setattr(opened, "OPENED", set())
    with pytest.raises(relevance.UnknownOperation, match="ReversibleBackward"):
        relevance.attribute(Net(False), x)


def test_training_takes_the_own_backward(listed: None) -> None:
    net, x = Net(False), torch.randn(4, 6, requires_grad=True)
    relevance.attribute(net, x)
    net(x).sum().backward()
    torch.testing.assert_close(x.grad, net.head.weight.detach().sum(0).expand(4, 6))  # which passes the gradient on


def reformer(transformers: Any) -> Any:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "attention_head_size": 4, "feed_forward_size": 8, "vocab_size": 20}
    parts = {"axial_pos_embds_dim": (4, 4), "axial_pos_shape": (2, 4), "max_position_embeddings": 8, "hash_seed": 0}
    lengths = {"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_hashes": 2, "num_buckets": 2}
    return transformers.ReformerConfig(attn_layers=["local", "lsh"], **sizes, **parts, **lengths)


def yoso(transformers: Any) -> Any:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 20}
    return transformers.YosoConfig(**sizes, max_position_embeddings=8)


@pytest.mark.parametrize("name", ["Reformer", "Yoso"])
def test_the_slow_engine_agrees_on(name: str) -> None:
    """In float64: every node has a rule, and the inputs get what another engine hands down."""
    transformers = pytest.importorskip("transformers")
    config = {"Reformer": reformer, "Yoso": yoso}[name](transformers)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(config).double().eval()
    embeddings = torch.randn(2, 8, 8, dtype=torch.float64, requires_grad=True)
    with slow_engine.Recorder() as recorder, relevance.watch(model):
        output = model(inputs_embeds=embeddings).last_hidden_state
    seed = torch.randn(output.shape, dtype=torch.float64)
    expected = slow_engine.relevance(recorder, output, seed, 1e-6)[embeddings]
    r = relevance.explain(output, seed, wrt=embeddings, rules=presets.epsilon(1e-6))
    assert r.report.unseen == r.report.unknown == []
    assert 0 < float(expected.abs().max()) < 1e6
    torch.testing.assert_close(r[embeddings], expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))
