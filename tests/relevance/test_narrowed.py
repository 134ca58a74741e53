"""Large matrices: outputs without relevance are left out of the product, which changes nothing but the time."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance.graph import Node
from lutetia.relevance.inputs import named_modules
from lutetia.relevance.rules import linear


class Model(nn.Module):
    """Rows of words, each a score for every word of a vocabulary."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first, self.words = nn.Linear(6, 5), nn.Linear(5, 40, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(torch.tanh(self.first(x)))


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many outputs each product to the left was computed from."""
    seen: list[int] = []
    original = linear.Mm.to_left

    def to_left(self: linear.Mm, node: Any, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        seen.append(s.shape[-1])
        return original(self, node, s, b, like)

    monkeypatch.setattr(linear.Mm, "to_left", to_left)
    return seen


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("target", [7, relevance.Contrast(3, 9), lambda y: y[..., :30].sum(-1), lambda y: 0.0 * y[:, 0, 3]])
def test_one_word_of_a_vocabulary(monkeypatch: pytest.MonkeyPatch, widths: list[int], bias: bool, target: Any) -> None:
    torch.manual_seed(0)
    model, x = Model(bias).double(), torch.randn(2, 3, 6, dtype=torch.float64)
    chosen = (lambda y: y[:, -1, 7]) if target == 7 else target
    whole = relevance.attribute(model, x, chosen)
    assert 40 in widths
    monkeypatch.setattr(linear, "LARGE", 1)
    widths.clear()
    narrow = relevance.attribute(model, x, chosen)
    torch.testing.assert_close(narrow[x], whole[x], rtol=1e-12, atol=1e-14)
    assert narrow.report.absorbed == pytest.approx(whole.report.absorbed, rel=1e-12)
    if target == 7:
        assert min(widths) == 1
        assert 40 not in widths
    elif isinstance(target, relevance.Contrast):
        assert 40 not in widths


def test_several_words_in_one_walk(monkeypatch: pytest.MonkeyPatch, widths: list[int]) -> None:
    torch.manual_seed(1)
    model, x = Model(bias=False).double(), torch.randn(1, 4, 6, dtype=torch.float64)
    alone = [relevance.attribute(model, x, lambda y, word=word: y[0, -1, word])[x] for word in (3, 5, 8)]  # type: ignore[misc]
    monkeypatch.setattr(linear, "LARGE", 1)
    widths.clear()
    each = relevance.attribute_each(model, x, lambda y: y[0, -1, [3, 5, 8]])
    torch.testing.assert_close([result[x] for result in each], alone, rtol=1e-12, atol=1e-14)
    assert widths[0] == 3


@pytest.mark.parametrize("rules", [relevance.presets.epsilon(), relevance.presets.attnlrp(), relevance.presets.epsilon(0.0)])
def test_rows_without_relevance_are_left_out(monkeypatch: pytest.MonkeyPatch, rules: relevance.Rules) -> None:
    torch.manual_seed(0)
    model, x = Model(bias=True).double(), torch.randn(2, 19, 6, dtype=torch.float64)
    heights: list[int] = []
    original = linear.Mm.to_left

    def to_left(self: linear.Mm, node: Any, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        heights.append(s.shape[0])
        return original(self, node, s, b, like)

    monkeypatch.setattr(linear.Mm, "to_left", to_left)
    targets: list[Any] = [lambda y: y[:, -1, 7], lambda y: y[0, :3].sum(-1), lambda y: y[:, 5:, 3], lambda y: 0.0 * y[1, 2]]
    for target in targets:
        some = relevance.attribute(model, x, target, rules)
        monkeypatch.setattr(linear, "MANY", 1000)
        every = relevance.attribute(model, x, target, rules)
        monkeypatch.undo()
        monkeypatch.setattr(linear.Mm, "to_left", to_left)
        torch.testing.assert_close(some[x], every[x], rtol=1e-12, atol=1e-14)
        assert some.report.absorbed == pytest.approx(every.report.absorbed, rel=1e-12)
    if rules.linear.eps:  # type: ignore[attr-defined]
        assert heights[:4] == [2, 2, 38, 38]  # the last position of two texts, and everything


def test_rows_of_several_words_in_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Model(bias=False).double(), torch.randn(1, 19, 6, dtype=torch.float64)
    target = lambda y: y[0, [4, 18], [7, 2]]  # noqa: E731
    some = relevance.attribute_each(model, x, target)
    monkeypatch.setattr(linear, "MANY", 1000)
    for mine, wanted in zip(some, relevance.attribute_each(model, x, target), strict=True):
        torch.testing.assert_close(mine[x], wanted[x], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("together", [False, True])
def test_products_in_onednn_are_those_of_torch(rows: int, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that lies transposed, as that of a linear layer does; the same in torch alone is the definition."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 21, bias=False), nn.ReLU(), nn.Linear(21, 9))
    x = torch.randn(rows, 30)
    calls: list[torch.Size] = []
    onednn = linear._onednn_linear
    if onednn is None:
        pytest.skip("this torch has no oneDNN")

    def counted(s: Tensor, *rest: Any) -> Tensor:
        calls.append(s.shape)
        return onednn(s, *rest)

    def explained() -> list[Tensor]:
        if together:
            return [each[x] for each in relevance.attribute_each(model, x, lambda output: output[0, :3])]
        return [relevance.attribute(model, x, target=2)[x]]

    expected = explained()
    monkeypatch.setattr(linear, "LARGE_WEIGHT", 1)
    monkeypatch.setattr(linear, "_onednn_linear", counted)
    torch.testing.assert_close(explained(), expected, rtol=1e-4, atol=1e-6)
    assert bool(calls) == (rows > 1 and not together)  # a single row takes longer there, and vmap does not know it
    calls.clear()
    relevance.attribute(model.double(), x.double(), target=2)
    assert not calls  # float32 alone


def test_modules_are_named_as_torch_names_them() -> None:
    shared = nn.Linear(3, 3)
    model = nn.ModuleDict(
        {"a": nn.Sequential(shared, nn.ReLU(), nn.Sequential(nn.Linear(3, 2))), "b": shared, "c": nn.Identity()}
    )
    model.register_module("none", None)
    assert list(named_modules(model).items()) == list(model.named_modules())


def test_a_walk_leaves_no_cycle_that_keeps_its_nodes() -> None:
    """Else they would stay until the garbage collector runs, with the activations that they hold."""
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    x = torch.randn(2, 4)
    relevance.attribute(model, x)
    gc.collect()
    gc.disable()
    try:
        relevance.attribute(model, x)
        assert not [each for each in gc.get_objects() if isinstance(each, Node)]
    finally:
        gc.enable()
