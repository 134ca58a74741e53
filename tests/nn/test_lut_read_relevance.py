"""Relevance through the reads of a layer, against loops that follow the definition word by word; and through whole models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia import relevance
from lutetia.lut import growth
from lutetia.models import LUTClassifier, LUTTransformer
from lutetia.nn import LUT, LUTAttention, ProjectedLUT

EPS = 1e-3
RULES = relevance.presets.decisive(EPS)
PRESETS = {False: relevance.presets.epsilon(EPS), True: RULES}  # whether the finer sharing is chosen


def layer(*sizes: int, **options: Any) -> LUT:
    made = LUT(*sizes, seed=3, dtype=torch.float64, **options)
    with torch.no_grad():
        made.weight.copy_(torch.randn(made.weight.shape, dtype=torch.float64))
    if options.get("gradient") == "in_place":
        made.external_lr = 0.1
    return made


def coefficients(made: LUT, u: list[float]) -> tuple[float, float]:
    """a and b of one detector with the margins u."""
    sizes = torch.tensor([abs(v) for v in u], dtype=torch.float64)
    closest = float(sizes.min())
    if made.read == "blend":
        return 1 - 0.5 / (1 + closest), 0.5 / (1 + closest)
    beta, gamma = (float(log.detach().exp()) for log in (made.log_beta, made.log_gamma))
    s = float(sizes.sum() * torch.exp(gamma * torch.sigmoid(beta * sizes).log().sum()))
    if made.read == "confidence":
        return s, 0.0
    v = float(torch.sigmoid(torch.tensor(-2 * closest / float(made.log_tau.detach().exp()), dtype=torch.float64)))
    return s * (1 - v), s * v


def by_loops(made: LUT, weight: Tensor, x: Tensor, R: Tensor, computed: bool = False, decisive: bool = True) -> Tensor:
    found = torch.zeros_like(x)
    for n in range(x.shape[0]):
        read = []
        for t, pairs in enumerate(made.anchors.tolist()):
            u = [float(x[n, p] - x[n, q]) for p, q in pairs]
            index = sum((v > 0) << r for r, v in enumerate(u))
            sizes = [abs(v) for v in u]
            read.append((t, index, index ^ (1 << sizes.index(min(sizes))), *coefficients(made, u)))
        y = sum(a * weight[t, i] + b * weight[t, j] for t, i, j, a, b in read)
        c = R[n] / (y + torch.where(y < 0, -1.0, 1.0).double() * EPS)  # -EPS itself would be rounded to float32
        for t, i, j, a, b in read:
            worth = float(c @ (a * weight[t, i] + b * weight[t, j]))
            flips = [1 << r for r in range(made.n_anchors)]
            decided = [worth - float(c @ (a * weight[t, i ^ f] + b * weight[t, j ^ f])) for f in flips]
            own = 1 / len(flips) if decisive else 0.0
            rest = worth - own * sum(decided)
            for (p, q), d in zip(made.anchors[t].tolist(), decided, strict=True):
                part = own * d + rest * abs(d) / sum(map(abs, decided))
                share = float(x[n, p].abs() / (x[n, p].abs() + x[n, q].abs())) if computed else 0.5
                found[n, p] += part * share
                found[n, q] += part * (1 - share)
    return found


@pytest.mark.parametrize("read", ["blend", "confidence", "confidence2"])
@pytest.mark.parametrize("gradient", ["dense", "sparse", "in_place"])
@pytest.mark.parametrize("wiring", ["full", "general", "shared"])
@pytest.mark.parametrize("decisive", [False, True])
def test_reads(read: str, gradient: str, wiring: str, decisive: bool) -> None:
    synapses = None
    if wiring != "full":
        synapses = growth.random(5, 3, 4, 0.6, seed=1) if wiring == "general" else shared_synapses()
    made = layer(7, 4, 5, 3, read=read, gradient=gradient, synapses=synapses)
    x = torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
    R = torch.randn(6, 4, dtype=torch.float64)
    before = made.weight.detach().clone()
    r = relevance.explain(made(x), R, wrt=[x], rules=PRESETS[decisive])
    weight = before if synapses is None else synapses.expand(before)
    torch.testing.assert_close(r[x], by_loops(made, weight, x.detach(), R, decisive=decisive))
    assert torch.equal(made.weight, before)


@pytest.mark.parametrize("read", ["blend", "confidence", "confidence2"])
def test_computed_numbers_share_by_their_size(read: str) -> None:
    made = layer(7, 4, 5, 3, read=read)
    x, R = torch.randn(6, 7, dtype=torch.float64, requires_grad=True), torch.randn(6, 4, dtype=torch.float64)
    hidden = x + torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
    r = relevance.explain(made(hidden), R, wrt=[hidden], rules=RULES)
    torch.testing.assert_close(r[hidden], by_loops(made, made.weight.detach(), hidden.detach(), R, computed=True))


def shared_synapses() -> Any:
    """The rows of a detector reach the same outputs."""
    made = growth.from_edges(
        5, 3, 4, torch.tensor([[0, 0], [0, 2], [1, 1], [2, 0], [2, 3], [3, 1], [3, 2], [4, 0], [4, 1], [4, 3]])
    )
    assert made.n_weights == 80
    return made


def test_the_blend_by_hand() -> None:
    """One detector of two pairs: u = (2, -1), so index 1, alt 3, U = 1/4; y = 3/4 · 4 + 1/4 · 8 = 5."""
    anchors = torch.tensor([[[0, 1], [2, 3]]], dtype=torch.int32)
    made = LUT(4, 1, 1, 2, read="blend", anchors=anchors, dtype=torch.float64)
    with torch.no_grad():
        made.weight[0, :, 0] = torch.tensor([2.0, 4.0, 6.0, 8.0], dtype=torch.float64)
    x = torch.tensor([[3.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    r = relevance.attribute(made, x, target=0, rules=relevance.presets.epsilon(0.0))
    assert float(r.seed) == 5.0
    # Flip bit 0: 3/4 · 2 + 1/4 · 6 = 3, so it decides 2. Flip bit 1: 3/4 · 8 + 1/4 · 4 = 7, so it decides -2.
    torch.testing.assert_close(r[x], torch.full((1, 4), 5 / 4, dtype=torch.float64))
    # The finer way each gets half of that first, 1 and -1, and then half of the 5 that are left.
    r = relevance.attribute(made, x, target=0, rules=relevance.presets.decisive(0.0))
    torch.testing.assert_close(r[x], torch.tensor([[3.5, 3.5, 1.5, 1.5]], dtype=torch.float64) / 2)
    with torch.no_grad():
        made.weight[0, 2, 0] = 10.0  # flip bit 0: 3/4 · 2 + 1/4 · 10 = 4, so it decides 1
    r = relevance.attribute(made, x, target=0, rules=relevance.presets.epsilon(0.0))
    torch.testing.assert_close(r[x], torch.tensor([[5 / 6, 5 / 6, 10 / 6, 10 / 6]], dtype=torch.float64))
    r = relevance.attribute(made, x, target=0, rules=relevance.presets.decisive(0.0))
    # 1/2 and -1; of the 5.5 that are left a third and two thirds.
    torch.testing.assert_close(r[x], torch.tensor([[7 / 3, 7 / 3, 8 / 3, 8 / 3]], dtype=torch.float64) / 2)


def test_frozen_tables_and_tables_that_are_asked_for() -> None:
    made = layer(7, 4, 5, 3, read="confidence2", synapses=growth.random(5, 3, 4, 0.6, seed=1))
    x = torch.randn(6, 7, dtype=torch.float64)
    exact = relevance.presets.epsilon(0.0)
    r = relevance.attribute(made, x, target=1, wrt=[made.weight], rules=exact)
    assert r[made.weight].shape == made.weight.shape
    torch.testing.assert_close(r[made.weight].sum(), r.seed.sum())
    torch.testing.assert_close(r[x].sum(1), r.seed.sum(1))
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    leaf = x.clone().requires_grad_()
    torch.testing.assert_close(relevance.explain(made(leaf), 1, rules=exact)[leaf], r[x])  # the coefficients come by promises


@pytest.mark.parametrize("read", ["hard", "blend", "confidence", "confidence2"])
def test_table_dropout_takes_its_detectors_out(read: str) -> None:
    made = layer(7, 4, 40, 3, read=read, table_dropout=0.5)
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    y = made(x)
    r = relevance.explain(y, rules=relevance.presets.epsilon(0.0))
    torch.testing.assert_close(r[x].sum(1), r.seed.sum(1))
    for row in r.report:
        assert row.ends or row.absorbed == pytest.approx(0, abs=1e-9)


def test_no_rows_at_all() -> None:
    for read in ("hard", "confidence2"):
        x = torch.randn(0, 7, dtype=torch.float64, requires_grad=True)
        assert relevance.explain(layer(7, 4, 5, 3, read=read)(x))[x].shape == (0, 7)


def test_attention_with_synapses_and_lengths() -> None:
    """A table with missing synapses is a table with zeros; a padded sequence is a shorter one."""
    synapses = growth.random(4, 5, 3, 0.7, seed=2)
    sizes = (5, 3, 4, 2, 1, 6)
    sparse = LUTAttention(*sizes, synapses=synapses, seed=3, dtype=torch.float64)
    dense = LUTAttention(*sizes, anchors=sparse.anchors, seed=3, dtype=torch.float64)
    with torch.no_grad():
        sparse.weight.normal_()
        dense.weight.copy_(synapses.expand(sparse.weight))
        dense.positions.copy_(sparse.positions)
    x, R = torch.randn(2, 6, 5, dtype=torch.float64), torch.randn(2, 6, 3, dtype=torch.float64)
    a, b = (relevance.attribute(made, x, R, rules=RULES, wrt=[made.weight]) for made in (sparse, dense))
    torch.testing.assert_close(a[x], b[x])
    torch.testing.assert_close(a[sparse.weight], synapses.flatten(b[dense.weight]))
    padded = relevance.attribute(dense, {"x": x, "lengths": torch.tensor([4, 6])}, R, rules=RULES)[x]
    short = x[:1, :4].clone()
    torch.testing.assert_close(padded[:1, :4], relevance.attribute(dense, short, R[:1, :4], rules=RULES)[short])
    assert not padded[0, 4:].any()


@pytest.mark.gpu
@pytest.mark.parametrize("read", ["hard", "blend", "confidence", "confidence2"])
def test_reads_on_a_gpu(read: str) -> None:
    made, x = layer(7, 4, 5, 3, read=read), torch.randn(6, 7, dtype=torch.float64)
    R = torch.randn(6, 4, dtype=torch.float64)
    on_cpu = relevance.attribute(made, x, R, rules=RULES)[x]
    there = x.cuda()
    torch.testing.assert_close(relevance.attribute(made.cuda(), there, R.cuda(), rules=RULES)[there].cpu(), on_cpu)


# ---- whole models ----------------------------------------------------------------------------------------------------


def lively(model: Any) -> Any:
    """Weights that matter, in place of those that training starts with."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_()
    return model


# Biases, the first-order expansion of a softmax, and what the positions of LUT attention decide.
ABSORB = (
    "AddmmBackward0",
    "ScaledDotProductFlashAttentionForCpuBackward0",
    "GeneratedBackwardFor_lutetia_lut_attention_defaultBackward",
)


def conserves(r: relevance.Result) -> None:
    """Every table layer hands on all it gets, and nothing is lost between the nodes."""
    for row in r.report:
        if row.ends or row.name in ABSORB:
            continue
        assert row.absorbed == pytest.approx(0, abs=1e-6 * max(1, abs(row.relevance_out))), row
    arrived = sum(row.relevance_out for row in r.report if row.ends)
    assert arrived + r.report.absorbed == pytest.approx(float(r.seed.sum()), rel=1e-9)


@pytest.mark.parametrize("feed_forward", ["lut", "projected", "dense"])
@pytest.mark.parametrize("attention", ["lut", "softmax"])
def test_a_transformer(attention: str, feed_forward: str) -> None:
    options: dict[str, Any] = {"vocab": 30, "context": 8, "width": 8, "n_layers": 2, "n_heads": 2, "n_detectors": 3,
        "n_anchors": 2, "positional_dim": 2, "ff_detectors": 6, "ff_anchors": 3, "ff_heads": 2, "ff_head_width": 4}  # fmt: skip
    model = lively(LUTTransformer(attention=attention, feed_forward=feed_forward, **options))
    tokens = torch.randint(30, (2, 6))
    # The scores of y[0] of a LUT attention are 0: a seed for the last position only.
    seed = torch.zeros(2, 6, 30, dtype=torch.float64)
    seed[:, -1, 3] = 1.0
    r = relevance.attribute(model, tokens, seed, relevance.presets.epsilon(1e-12), wrt=["blocks.0", "blocks.1"])
    assert r[tokens].shape == (2, 6)
    assert r[tokens].abs().min() > 0  # every token has a say
    conserves(r)
    assert {"blocks.0", "blocks.1"} <= set(r.keys())
    if attention == "lut" and feed_forward == "lut":  # no bias, no softmax: all of it arrives, but what positions decide
        positions = [block.attention.positions for block in model.blocks]
        r = relevance.attribute(model, tokens, seed, relevance.presets.epsilon(1e-12), wrt=positions)
        decided = sum(float(r[p].sum()) for p in positions)
        assert float(r[tokens].sum()) + decided == pytest.approx(float(seed.sum()), rel=1e-6)


@pytest.mark.parametrize("readout", ["linear", "lut"])
def test_a_classifier(readout: str) -> None:
    from lutetia.models import LUTLayer, ProjectedLayer

    layers = (LUTLayer(12, n_detectors=10, n_anchors=3), ProjectedLayer(9, heads=2, head_width=4, n_detectors=5, n_anchors=2))
    model = lively(LUTClassifier(input_shape=(4, 4), n_classes=3, layers=layers, readout=readout))
    x = torch.rand(3, 4, 4, dtype=torch.float64)
    r = relevance.attribute(model, x, rules=relevance.presets.epsilon(1e-12), wrt=["layers.0"])
    assert r[x].shape == x.shape
    conserves(r)


def test_projected_tables() -> None:
    made = lively(ProjectedLUT(6, 5, heads=2, head_width=4, n_detectors=3, n_anchors=2, seed=1))
    x = torch.randn(4, 6, dtype=torch.float64)
    r = relevance.attribute(made, x, rules=relevance.presets.epsilon(1e-12))
    torch.testing.assert_close(r[x].sum(), r.seed.sum() - r.report.absorbed)
