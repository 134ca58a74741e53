"""Relevance through lookup tables, against loops that follow the definition word by word."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.lut import growth
from lutetia.nn import LUT, LUTAttention
from lutetia.relevance import seen as watched

EPS = 1e-3
RULES = relevance.presets.decisive(EPS)
PRESETS = {False: relevance.presets.epsilon(EPS), True: RULES}  # whether the finer sharing is chosen


def factors(R: Tensor, y: Tensor) -> Tensor:
    return R / (y + torch.where(y < 0, -1.0, 1.0).to(y.dtype) * EPS)  # -EPS itself would be rounded to float32


def parts_of(row: Tensor, others: list[Tensor], c: Tensor, decisive: bool) -> list[float]:
    """What each bit gets of a row's relevance; others: the rows with one bit flipped."""
    n = len(others)
    decided = [float(c @ (row - other)) for other in others]
    own = [d / n if decisive else 0.0 for d in decided]
    rest, total = float(c @ row) - sum(own), sum(map(abs, decided))
    return [mine + rest * (abs(d) / total if total else 1 / n) for mine, d in zip(own, decided, strict=True)]


def of_pair(x: Tensor, pair: list[int], computed: bool) -> list[float]:
    """What each of two inputs gets of a pair's part: x [I]."""
    a, b = (abs(float(x[at])) for at in pair)
    return [a / (a + b), b / (a + b)] if computed else [0.5, 0.5]


def lut_by_loops(x: Tensor, weight: Tensor, anchors: Tensor, R: Tensor, computed: bool = False, decisive: bool = True) -> Tensor:
    found = torch.zeros_like(x)
    for b in range(x.shape[0]):
        index = [sum(int(x[b, p] > x[b, q]) << r for r, (p, q) in enumerate(pairs.tolist())) for pairs in anchors]
        y = sum(weight[t, i] for t, i in enumerate(index))
        c = factors(R[b], y)
        for t, i in enumerate(index):
            parts = parts_of(weight[t, i], [weight[t, i ^ (1 << r)] for r in range(anchors.shape[1])], c, decisive)
            for pair, part in zip(anchors[t].tolist(), parts, strict=True):
                for at, share in zip(pair, of_pair(x[b], pair, computed), strict=True):
                    found[b, at] += part * share
    return found


def layer(kind: type[nn.Module], *sizes: int, **options: Any) -> Any:
    made = kind(*sizes, seed=3, dtype=torch.float64, **options)
    with torch.no_grad():
        made.weight.copy_(torch.randn(made.weight.shape, dtype=torch.float64))
    return made


@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("decisive", [False, True])
def test_lut(gradient: str, sparse: bool, decisive: bool) -> None:
    synapses = growth.random(5, 3, 4, 0.6, seed=1) if sparse else None
    made = layer(LUT, 7, 4, 5, 3, gradient=gradient, synapses=synapses)
    if gradient == "in_place":
        made.external_lr = 0.1
    x = torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
    R = torch.randn(6, 4, dtype=torch.float64)
    before = made.weight.detach().clone()
    r = relevance.explain(made(x), R, wrt=[x], rules=PRESETS[decisive])
    weight = synapses.expand(before) if synapses is not None else before
    torch.testing.assert_close(r[x], lut_by_loops(x.detach(), weight, made.anchors, R, decisive=decisive))
    assert torch.equal(made.weight, before)  # a step in place is for backward


def test_a_detector_that_decides_nothing_shares_equally() -> None:
    made = layer(LUT, 6, 2, 1, 3, anchors=torch.tensor([[[0, 1], [2, 3], [4, 5]]], dtype=torch.int32))
    with torch.no_grad():
        made.weight[:] = made.weight[0, 0]
    x = torch.randn(4, 6, dtype=torch.float64)
    r = relevance.attribute(made, x, target=torch.ones(4, 2, dtype=torch.float64), rules=relevance.presets.epsilon(0.0))
    torch.testing.assert_close(r[x], torch.full((4, 6), 2 / 6, dtype=torch.float64))


def test_tables_get_relevance_when_asked() -> None:
    made = layer(LUT, 7, 4, 5, 3)
    x = torch.randn(6, 7, dtype=torch.float64)
    target = torch.randn(6, 4, dtype=torch.float64)
    r = relevance.attribute(made, x, target=target, wrt=[made.weight], rules=relevance.presets.epsilon(0.0))
    assert r[made.weight].shape == made.weight.shape
    torch.testing.assert_close(r[made.weight].sum(), target.sum())
    torch.testing.assert_close(r[x].sum(1), target.sum(1))


def attention_by_loops(
    made: LUTAttention, x: Tensor, R: Tensor, computed: bool = False, decisive: bool = True
) -> tuple[Tensor, Tensor]:
    weight, anchors, positions = made.weight.detach(), made.anchors, made.positions.detach()
    n_anchors, n_pe = anchors.shape[1], positions.shape[2]
    found, at_positions = torch.zeros_like(x), torch.zeros_like(positions)
    for b in range(x.shape[0]):
        for j in range(x.shape[1]):
            fired = []
            for i, t in itertools.product(range(j), range(anchors.shape[0])):
                bits = [int(v > 0) for v in positions[j - i - 1, t if positions.shape[1] > 1 else 0]]
                for place in (i, j):
                    bits += [int(x[b, place, p] > x[b, place, q]) for p, q in anchors[t].tolist()]
                fired.append((i, t, sum(bit << r for r, bit in enumerate(bits))))
            y = sum((weight[t, cell] for _, t, cell in fired), torch.zeros(weight.shape[2], dtype=weight.dtype))
            c = factors(R[b, j], y)
            for i, t, cell in fired:
                parts = parts_of(weight[t, cell], [weight[t, cell ^ (1 << r)] for r in range(2 * n_anchors + n_pe)], c, decisive)
                for r, part in enumerate(parts):
                    if r < n_pe:
                        at_positions[j - i - 1, t if positions.shape[1] > 1 else 0, r] += part
                    else:
                        place = i if r < n_pe + n_anchors else j
                        pair = anchors[t, (r - n_pe) % n_anchors].tolist()
                        for at, share in zip(pair, of_pair(x[b, place], pair, computed), strict=True):
                            found[b, place, at] += part * share
    return found, at_positions


@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("decisive", [False, True])
def test_attention(gradient: str, shared: bool, decisive: bool) -> None:
    made = layer(LUTAttention, 5, 3, 4, 2, 2, 6, gradient=gradient, shared_positions=shared)
    if gradient == "in_place":
        made.external_lr = 0.1
    x = torch.randn(2, 5, 5, dtype=torch.float64, requires_grad=True)
    R = torch.randn(2, 5, 3, dtype=torch.float64)
    R[:, 0] = 0  # y[0] is 0, whatever comes in
    r = relevance.explain(made(x), R, wrt=[x, made.positions], rules=PRESETS[decisive])
    found, at_positions = attention_by_loops(made, x.detach(), R, decisive=decisive)
    torch.testing.assert_close(r[x], found)
    torch.testing.assert_close(r[made.positions], at_positions)


def test_attention_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from lutetia.nn import lut_relevance

    made = layer(LUTAttention, 5, 3, 4, 2, 1, 6)
    x, R = torch.randn(2, 5, 5, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    whole = relevance.attribute(made, x, R, rules=RULES)[x]
    monkeypatch.setattr(lut_relevance, "MOST_NUMBERS", 1)
    torch.testing.assert_close(relevance.attribute(made, x, R, rules=RULES)[x], whole)
    lut = layer(LUT, 5, 3, 4, 2)
    rows = torch.randn(7, 5, dtype=torch.float64)
    torch.testing.assert_close(
        relevance.attribute(lut, rows, rules=RULES)[rows],
        lut_by_loops(rows, lut.weight.detach(), lut.anchors, relevance.attribute(lut, rows).seed),
    )


@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
def test_computed_numbers_share_by_their_size(gradient: str) -> None:
    """Autograd keeps neither the sum nor the layer's inputs: a promise brings them."""
    x = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True)
    hidden = x + torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True)
    R = torch.randn(2, 5, 4, dtype=torch.float64)
    R[:, 0] = 0
    lut = layer(LUT, 7, 4, 5, 3, gradient=gradient)
    attention = layer(LUTAttention, 7, 4, 5, 2, 2, 6, gradient=gradient)
    lut.external_lr = attention.external_lr = 0.1 if gradient == "in_place" else None
    r = relevance.explain(lut(hidden), R, wrt=[hidden], rules=RULES)
    found = lut_by_loops(hidden.detach().flatten(0, 1), lut.weight.detach(), lut.anchors, R.flatten(0, 1), computed=True)
    torch.testing.assert_close(r[hidden].flatten(0, 1), found)
    r = relevance.explain(attention(hidden), R, wrt=[hidden], rules=RULES)
    torch.testing.assert_close(r[hidden], attention_by_loops(attention, hidden.detach(), R, computed=True)[0])


def test_inputs_share_in_halves_whatever_view_is_taken_of_them() -> None:
    lut = layer(LUT, 6, 4, 5, 3)
    x, R = torch.randn(3, 2, 3, dtype=torch.float64, requires_grad=True), torch.randn(3, 4, dtype=torch.float64)
    found = lut_by_loops(x.detach().flatten(1), lut.weight.detach(), lut.anchors, R)
    for seen in (x.flatten(1), x.clone().view(3, 6), x.tanh().transpose(0, 1).transpose(0, 1).flatten(1)):
        torch.testing.assert_close(relevance.explain(lut(seen), R, rules=RULES)[x].flatten(1), found)


def test_a_plan_brings_the_computed_numbers_too() -> None:
    model = nn.Sequential(layer(LUT, 6, 5, 8, 3), layer(LUT, 5, 4, 8, 3))
    first, second = torch.randn(2, 3, 6, dtype=torch.float64)
    plan = relevance.compile(model, first, rules=RULES)
    torch.testing.assert_close(plan(second)[second], relevance.attribute(model, second, rules=RULES)[second])
    assert plan.replayed == 1


@pytest.mark.parametrize("promises", [0, 2])
def test_a_model_of_both_conserves(promises: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A residual net of LUT layers: the outputs of the tables are kept, or found by promises where they are too large."""
    if promises:
        monkeypatch.setattr(watched, "SMALL", 0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = layer(LUTAttention, 6, 6, 4, 2, 1, 8)
            self.feed_forward = layer(LUT, 6, 6, 5, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.attention(x)
            return x + self.feed_forward(x)

    model, x = Model(), torch.randn(2, 4, 6, dtype=torch.float64)
    r = relevance.attribute(model, x, rules=relevance.presets.epsilon(1e-12), wrt=[model.attention.positions])
    for row in r.report:
        assert row.relevance_out == pytest.approx(row.relevance_in + row.absorbed)
    assert float(r[x].sum() + r[model.attention.positions].sum()) == pytest.approx(float(r.seed.sum()), rel=1e-6)
    assert r.report.promises["promise"] == promises
