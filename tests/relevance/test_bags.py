"""`nn.EmbeddingBag`, against the same model with `nn.Embedding` and a sum, mean or maximum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.relevance import presets

ZERO = presets.epsilon(0.0)
TOKENS = torch.tensor([[3, 1, 0, 7], [2, 2, 5, 0]])


def bag(mode: str, padding: int | None = None, **options: Any) -> tuple[nn.EmbeddingBag, nn.Linear]:
    torch.manual_seed(1)
    made = nn.EmbeddingBag(10, 8, mode=mode, padding_idx=padding, **options), nn.Linear(8, 3, bias=False)
    return made[0].double(), made[1].double()


class Written(nn.Module):
    """The same, token by token."""

    def __init__(self, bag: nn.EmbeddingBag, line: nn.Linear) -> None:
        super().__init__()
        self.rows, self.line, self.mode, self.padding = nn.Embedding(10, 8).double(), line, bag.mode, bag.padding_idx
        self.rows.weight = bag.weight

    def forward(self, tokens: Tensor) -> Tensor:
        there = (tokens != (-1 if self.padding is None else self.padding))[..., None]
        rows = self.rows(tokens).masked_fill(~there, -torch.inf if self.mode == "max" else 0.0)
        made = {"sum": rows.sum(1), "mean": rows.sum(1) / there.sum(1), "max": rows.amax(1)}
        return self.line(made[self.mode])


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_tokens_in_bags_get_what_their_rows_get(mode: str, padding: int | None) -> None:
    made = bag(mode, padding)
    found = relevance.attribute(nn.Sequential(*made), TOKENS, 1, ZERO)
    expected = relevance.attribute(Written(*made), TOKENS, 1, ZERO)
    torch.testing.assert_close(found[TOKENS], expected[TOKENS])
    torch.testing.assert_close(found[TOKENS].sum(1), nn.Sequential(*made)(TOKENS)[:, 1].detach())
    assert found.report.absorbed == pytest.approx(0, abs=1e-12)


def test_bags_that_begin_anywhere() -> None:
    """One of three bags is empty. Their sum is asked for; the table gets the relevance of its rows; and several in one walk."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.line = bag("sum", include_last_offset=True)

        def forward(self, tokens: Tensor, starts: Tensor) -> Tensor:
            made = self.bag(tokens, starts)
            return self.line(made + made.roll(1, 1))

    model, tokens, starts = Model(), torch.tensor([1, 2, 3, 4, 5]), torch.tensor([0, 2, 2, 5])
    r = relevance.attribute(model, (tokens, starts), 0, ZERO, wrt=["bag.weight"])
    out = model(tokens, starts)[:, 0].detach()
    torch.testing.assert_close(torch.stack([r[tokens][:2].sum(), r[tokens][2:].sum()]), out[[0, 2]])
    torch.testing.assert_close(r["bag.weight"].sum(1)[1:6], r[tokens])
    each = relevance.attribute_each(model, (tokens, starts), lambda y: y[:, 0], ZERO)
    torch.testing.assert_close(torch.stack([one[tokens].sum() for one in each]), out)


def test_a_weighted_bag() -> None:
    made, line = bag("sum")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.line = made, line

        def forward(self, tokens: Tensor, weights: Tensor) -> Tensor:
            return self.line(self.bag(tokens, per_sample_weights=weights))

    weights = torch.rand(2, 4, dtype=torch.float64)
    r = relevance.attribute(Model(), (TOKENS, weights), 0, ZERO)
    rows = made.weight[TOKENS] * weights[..., None]
    torch.testing.assert_close(r[TOKENS], (rows * line.weight[0]).sum(-1).detach())
