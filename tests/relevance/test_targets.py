"""What is explained: places, names, functions, contrasts, several outputs; and where: layers, heads, neurons, parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance
from lutetia.errors import ArgumentError
from lutetia.relevance import Contrast, presets
from relevance.residual import Residual, data

ZERO = presets.epsilon(0.0)


class Detector(nn.Module):
    """Images [B, 3, 8, 8] -> boxes [B, 5, 4], classes [B, 5, 7], feature maps and which query is best."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 6, 3, bias=False), nn.Linear(6 * 36, 5 * 11, bias=False)

    def forward(self, x: Tensor) -> dict[str, Any]:
        maps = self.stem(x)
        both = self.head(maps.relu().flatten(1)).unflatten(1, (5, 11))
        boxes, logits = both.split([4, 7], -1)
        return {"best": logits.amax(-1).argmax(-1), "pred_boxes": boxes, "logits": logits, "feature_maps": (x * 1, maps)}


@pytest.fixture
def detector() -> Detector:
    return Detector().double()


def gradient_times_input(model: nn.Module, x: Tensor, explained: Any) -> Tensor:
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(explained(model(leaf)).sum(), leaf)
    return gradient * x


def difference(output: Any) -> Tensor:
    return 2 * output["logits"][:, 0, 0] - output["pred_boxes"][:, 0, 0]


def same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("target", "explained"),
    [
        ((2, 3), lambda o: o["logits"][:, 2, 3]),
        ((-1, slice(1, 3)), lambda o: o["logits"][:, -1, 1:3]),
        ((0, 4, 6), lambda o: o["logits"][0, 4, 6]),
        ([(1, 2), (3, 4)], lambda o: torch.stack([o["logits"][0, 1, 2], o["logits"][1, 3, 4]])),
        ([5, (3, 4)], lambda o: torch.cat([o["logits"][0, :, 5], o["logits"][1, 3, 4, None]])),
        ([[0, 1, 2, 3, 4], 6], lambda o: torch.cat([o["logits"][0].diagonal(), o["logits"][1, :, 6]])),
        (Contrast((2, 3), (2, 5)), lambda o: o["logits"][:, 2, 3] - o["logits"][:, 2, 5]),
        (
            [Contrast((2, 3), (2, 5)), (0, 1)],
            lambda o: torch.stack([o["logits"][0, 2, 3] - o["logits"][0, 2, 5], o["logits"][1, 0, 1]]),
        ),
        ("pred_boxes", lambda o: o["pred_boxes"].amax(-1)),
        (("pred_boxes", 4, 2), lambda o: o["pred_boxes"][:, 4, 2]),
        (("pred_boxes", 1, slice(None)), lambda o: o["pred_boxes"][:, 1]),
        (("feature_maps.1", 0, 3, 3), lambda o: o["feature_maps"][1][:, 0, 3, 3]),
        ({"logits": (2, 3), "pred_boxes": 1}, lambda o: torch.cat([o["logits"][:, 2, 3, None], o["pred_boxes"][:, :, 1]], 1)),
        (difference, difference),
    ],
    ids=lambda value: "explained" if callable(value) else str(value),
)  # fmt: skip
def test_targets_by_place_name_and_function(detector: Detector, target: Any, explained: Any) -> None:
    x = data(2, 3, 8, 8)
    r = relevance.attribute(detector, x, target, ZERO)
    same(r[x], gradient_times_input(detector, x, explained))
    assert r.seed.shape == r.output.shape


def test_the_runner_up_is_the_default_rival() -> None:
    model, x = nn.Linear(4, 5, bias=False).double(), data(3, 4)
    order = model(x).argsort(-1, descending=True)
    expected = gradient_times_input(model, x, lambda o: o.gather(1, order[:, :1]) - o.gather(1, order[:, 1:2]))
    same(relevance.attribute(model, x, Contrast(), ZERO)[x], expected)
    same(relevance.attribute(model, x, [Contrast(int(row[0])) for row in order], ZERO)[x], expected)


def test_a_backbone_explains_its_last_map() -> None:
    @dataclass
    class Maps:
        sizes: Tensor
        feature_maps: tuple[Tensor, ...]

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Maps:
            y = self.a(x)
            return Maps(torch.tensor(x.shape), (y, self.b(y.relu())))

    model, x = Backbone().double(), data(2, 4)
    r = relevance.attribute(model, x)
    assert r.output.shape == (2, 3)
    assert relevance.attribute(model, x, ("feature_maps.0", 1)).output.shape == (2, 4)
    torch.testing.assert_close(
        relevance.explain(model(x.requires_grad_()), 1)[x], relevance.attribute(model, x.detach(), 1)._found.popitem()[1]
    )


def test_errors_name_the_outputs_with_floats(detector: Detector) -> None:
    x = data(2, 3, 8, 8)
    for target in ("best", ("best", 0), "boxes", {"best": 0}, lambda o: o["best"]):
        with pytest.raises(ArgumentError, match=r"'pred_boxes' \(float64 \[2, 5, 4\].*'feature_maps.1'"):
            relevance.attribute(detector, x, target)
    for target in ((7, 0), (1, 2, 3, 4), (), [(1, 2)], [1, 2, 3], (1.5, 2), {}, Contrast("x", 2)):
        with pytest.raises(ArgumentError, match="target"):
            relevance.attribute(detector, x, target)


# ---- layers, heads, neurons, parameters --------------------------------------------------------------------------------


class Encoder(nn.Module):
    """Tokens [B, S] -> classes [B, 3]: three blocks of attention and a perceptron."""

    class Block(nn.Module):
        def __init__(self, fused: bool) -> None:
            super().__init__()
            self.qkv, self.out, self.fused = nn.Linear(12, 36), nn.Linear(12, 12), fused
            self.mlp = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12), nn.Dropout(0.2))
            self.norm = nn.LayerNorm(12)

        def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, float]:
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v) if self.fused else (q @ k.mT / 2).softmax(-1) @ v
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + scale * self.mlp(x), scale

    def __init__(self, fused: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table, self.head = nn.Embedding(9, 12), nn.Linear(12, 3)
        self.layers = nn.ModuleList(self.Block(fused) for _ in range(3))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for layer in self.layers:
            x, _ = layer(x, scale=1.0)
        return self.head(x.mean(1))


TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
DETAIL = ["layers.*.mlp", "layers.1.mlp.1", "layers.0.mlp.0.weight", "table"]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_blocks_computed_again_find_the_same(fused: bool, training: bool) -> None:
    model = Encoder(fused).double().train(training)
    model.head.requires_grad_(False)
    results = []
    for recompute in (False, True, ["layers.1"]):
        torch.manual_seed(3)
        results.append(relevance.attribute(model, TOKENS, 1, wrt=DETAIL, layers=True, heads=True, recompute=recompute))
    first = results[0]
    assert list(first.layers) == relevance.blocks(model) == ["layers.0", "layers.1", "layers.2"]
    assert {name: part.shape for name, part in first.heads.items()} == {f"layers.{i}": (2, 3, 4) for i in range(3)}
    for r in results[1:]:
        for key in (TOKENS, "layers.0.mlp", "layers.2.mlp", "layers.1.mlp.1", "layers.0.mlp.0.weight", "table"):
            same(r[key], first[key])
        for part, name in ((part, name) for part in ("layers", "heads") for name in first.layers):
            same(getattr(r, part)[name], getattr(first, part)[name])
        assert r.report.absorbed == pytest.approx(first.report.absorbed)
        assert not r.report.unseen
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not model.head.weight.requires_grad


def test_what_the_details_say() -> None:
    model = Encoder().double().eval()
    r = relevance.attribute(model, TOKENS, 1, wrt=DETAIL, layers=True, heads=True)
    # The last block's output is the whole of what the head gave.
    assert float(r.layers["layers.2"].sum() + r.report.nodes[0].absorbed) == pytest.approx(float(r.seed.sum()), rel=1e-2)
    assert torch.equal(r.neurons("layers.1.mlp.1"), r["layers.1.mlp.1"].sum((0, 1)))
    assert torch.equal(r["layers.0.mlp.0.weight"], r[model.layers[0].mlp[0].weight])  # type: ignore[union-attr,index]
    # What the heads gave went on through the projection, which had it all but its bias.
    torch.testing.assert_close(r["table"].sum(-1), r[TOKENS])


def test_what_cannot_be_asked() -> None:
    model = Encoder().double()
    with pytest.raises(ArgumentError, match=r"recompute is 'layers.7', expected names of the model's modules"):
        relevance.attribute(model, TOKENS, recompute=["layers.7"])
    with pytest.raises(ArgumentError, match="no list of repeated blocks"):
        relevance.attribute(nn.Linear(2, 2), data(2, 2), recompute=True)
    with pytest.raises(ArgumentError, match=r"wrt names 'layers.\*.ffn'.*layers.0.mlp"):
        relevance.attribute(model, TOKENS, wrt="layers.*.ffn", recompute=True)
    with pytest.raises(TypeError, match="layer"):
        relevance.attribute(model, TOKENS, layer=True)  # type: ignore[call-arg]


def test_tokens_that_the_model_makes_itself() -> None:
    class Shifted(Encoder):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens.roll(1, 1))

    class Copied(Encoder):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens.clone())

    model = Shifted().double().eval()
    with pytest.raises(ArgumentError, match=r"wrt=\['table'\]"):
        relevance.attribute(model, TOKENS)
    r = relevance.attribute(model, TOKENS, 1, wrt="table")
    torch.testing.assert_close(
        r["table"].sum(-1), relevance.attribute(Copied().double().eval(), rolled := TOKENS.roll(1, 1), 1)[rolled]
    )


def test_a_model_that_cuts_its_input_off_names_what_can_be_explained() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.codec, self.project, self.head = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                codes = self.codec(x)
            return self.head(torch.relu(self.project(codes)))

    model, x = Cut().double(), data(2, 5)
    with pytest.raises(ArgumentError, match=r"constants go into modules: wrt=\['project'\]"):
        relevance.attribute(model, x)
    r = relevance.attribute(model, x, target=1, wrt=["project"], rules=presets.epsilon(0.0))
    hidden = model.project(model.codec(x))
    torch.testing.assert_close(r["project"], torch.relu(hidden) * model.head.weight[1])


def test_a_residual_by_contrast_is_the_difference() -> None:
    model, x = Residual().double(), data(2, 5)
    both = relevance.attribute(model, x, Contrast(1, 2))[x]
    same(both, relevance.attribute(model, x, 1)[x] - relevance.attribute(model, x, 2)[x])


# ---- tokens that a model embeds among others -------------------------------------------------------------------------


class Embeds(nn.Module):
    """Tokens [B, S] -> [B, 3]: they are embedded as `change` makes them."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change, self.table, self.head = change, nn.Embedding(20, 4), nn.Linear(4, 3, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        changed = self.change(tokens)
        states = self.table(changed)
        return self.head(torch.sin(states).mean(1 if len(changed) == len(tokens) else 0))


CHANGES = {
    "padding behind": (lambda tokens: F.pad(tokens, (0, 4), value=7), lambda R: R[:, :3]),
    "a prompt before": (lambda tokens: F.pad(tokens, (5, 0), value=7), lambda R: R[:, -3:]),
    "turned around": (lambda tokens: tokens.t().contiguous(), lambda R: R.t()),
}


@pytest.mark.parametrize("how", CHANGES)
def test_tokens_that_are_embedded_among_others(how: str) -> None:
    change, part = CHANGES[how]
    model, tokens = Embeds(change).double(), torch.tensor([[3, 9, 4], [11, 2, 5]])
    r = relevance.attribute(model, tokens, target=1, wrt=["table"], rules=ZERO)
    assert torch.equal(r[tokens], part(r["table"].sum(-1)))
    assert r[tokens].abs().sum() > 0.01
    plan = relevance.compile(model, tokens, rules=ZERO)
    other = tokens + 1
    assert torch.equal(plan(other, target=1)[other], relevance.attribute(model, other, target=1, rules=ZERO)[other])


def test_other_tokens_are_not_taken_for_these() -> None:
    model, tokens = Embeds(lambda tokens: F.pad(tokens + 1, (0, 4))).double(), torch.tensor([[3, 9, 4], [11, 2, 5]])
    r = relevance.attribute(model, tokens, target=1, wrt=["table"], rules=ZERO)
    assert tokens not in r


class Unheard(nn.Module):
    """It calls the forward methods of its blocks, past the hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block.forward(x)
        return x


def test_a_block_whose_call_is_not_seen_has_no_layer() -> None:
    model, x = Unheard(), torch.randn(2, 8)
    r = relevance.attribute(model, x, layers=True)
    assert not r.layers
    assert torch.equal(r[x], relevance.attribute(model, x)[x])
    with pytest.raises(ArgumentError, match=r"^wrt names 'blocks\.0', which is not in the graph"):
        relevance.attribute(model, x, wrt=["blocks.0"])
