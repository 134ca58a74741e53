"""Models in the settings that users have them in: inference mode, compiled, with weights that are computed, keyword arguments."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lutetia import relevance

hooks = {name: getattr(importlib.import_module(f"torch.nn.utils.{name}"), name) for name in ("spectral_norm", "weight_norm")}
COMPUTED: dict[str, Callable[[nn.Module], nn.Module]] = {
    "spectral": parametrizations.spectral_norm,
    "weight": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "spectral by a hook": hooks["spectral_norm"],
    "weight by a hook": hooks["weight_norm"],
}


def net(last: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6) if last is None else last).double().eval()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("options", [{}, {"recompute": ["2"]}])
def test_a_weight_that_is_computed_is_a_weight(name: str, options: dict[str, list[str]]) -> None:
    """A spectral norm multiplies the weight with vectors that are no parameters: they are no data either."""
    torch.manual_seed(0)
    model, x = net(COMPUTED[name](nn.Linear(6, 6))), torch.randn(3, 4, dtype=torch.float64)
    model(x)
    plain = nn.Linear(6, 6).double()
    with torch.no_grad():
        plain.weight.copy_(model[2].weight)
        plain.bias.copy_(model[2].bias)
    expected = relevance.attribute(nn.Sequential(model[0], model[1], plain), x, target=1)[x]
    found = relevance.attribute(model, x, target=1, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(found[x], expected)
    torch.testing.assert_close(relevance.compile(model, x)(x, target=1)[x], expected)


class TwoTexts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.scale, self.out = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, tokens: Tensor, features: Tensor) -> Tensor:
        return self.out(torch.relu(self.words(tokens).sum(1) + self.scale(features)))


def test_keyword_arguments_are_found_by_name() -> None:
    torch.manual_seed(0)
    model, tokens, features = TwoTexts(), torch.randint(9, (2, 5)), torch.randn(2, 4)
    for r in (
        relevance.attribute(model, {"tokens": tokens, "features": features}, wrt=["out"]),
        relevance.compile(model, {"tokens": tokens, "features": features})({"tokens": tokens, "features": features}),
    ):
        assert r["tokens"] is r[tokens]
        assert r["features"] is r[features]
        assert "tokens" in r
    assert relevance.attribute(model, {"tokens": tokens, "features": features}, wrt=["out"])["out"].shape == (2, 3)
    with pytest.raises(KeyError, match="'other'"):
        _ = relevance.attribute(model, {"tokens": tokens, "features": features})["other"]


def test_inference_mode_changes_nothing() -> None:
    torch.manual_seed(0)
    model, tokens, features = TwoTexts(), torch.randint(9, (2, 5)), torch.randn(2, 4)
    expected = relevance.attribute(model, (tokens, features), target=1)
    with torch.inference_mode():
        same = relevance.attribute(model, (tokens, features), target=1)
        made = tokens + 0, features + 0
        inside = relevance.attribute(model, made, target=1)
        assert torch.is_inference_mode_enabled()
    outside = relevance.attribute(model, made, target=1)
    for r, (ids, values) in ((same, (tokens, features)), (inside, made), (outside, made)):
        torch.testing.assert_close(r[ids], expected[tokens])
        torch.testing.assert_close(r[values], expected[features])


@pytest.mark.parametrize("called", [False, True])
def test_a_compiled_model_is_explained_as_it_was_written(called: bool) -> None:
    torch.manual_seed(0)
    model, x = net(), torch.randn(3, 4, dtype=torch.float64)
    expected = relevance.attribute(model, x, target=1)[x]
    compiled = torch.compile(model, backend="aot_eager")
    if called:
        compiled(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        r = relevance.attribute(compiled, x, target=1, wrt=["_orig_mod.0"])
    torch.testing.assert_close(r[x], expected)
    assert r["_orig_mod.0"].shape == (3, 6)
    assert "ReluBackward0" in {row.name for row in r.report}
