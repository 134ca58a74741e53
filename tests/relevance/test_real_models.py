"""Trained weights: relevance is conserved, finite, the same in every kind of attention, and finds the words that matter."""

from __future__ import annotations

import pytest
import real_models
import torch

from lutetia import relevance


def accounted_for(r: relevance.Result, relative: float) -> None:
    size = max(abs(row.relevance_out) for row in r.report) + 1
    arrived = sum(row.relevance_out for row in r.report if row.ends)
    assert arrived + r.report.absorbed == pytest.approx(float(r.seed.sum()), abs=relative * size)


@pytest.mark.parametrize("preset", ["epsilon", "attnlrp"])
def test_minilm(preset: str) -> None:
    rules = getattr(relevance.presets, preset)(1e-9)
    found = []
    for attention in ("sdpa", "eager"):
        bert, tokenizer = real_models.minilm(attention)
        model, tokens = real_models.similarity(bert.double(), tokenizer, *real_models.PAIRS[0])
        r = relevance.attribute(model, {"input_ids": tokens}, rules=rules)
        accounted_for(r, 1e-9)
        found.append(r[tokens])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-7 * float(found[0].abs().max()))
    words = [tokenizer.id_to_token(token) for token in tokens[0].tolist()]
    best = {words[place] for place in found[0][0].topk(4).indices.tolist()}
    assert best & {"flour", "yeast", "dough"}
    assert not best & {"neighbour", "talked", "weather", "about"}


def test_minilm_in_float32_is_close_to_float64() -> None:
    bert, tokenizer = real_models.minilm()
    found = []
    for dtype in (torch.float64, torch.float32):
        model, tokens = real_models.similarity(bert.to(dtype), tokenizer, *real_models.PAIRS[1])
        found.append(relevance.attribute(model, {"input_ids": tokens})[tokens].double())
    assert torch.corrcoef(torch.cat(found))[0, 1] > 0.999


def test_efficientnet() -> None:
    model, x = real_models.efficientnet().double(), real_models.photographs()[2:3].double()
    r = relevance.attribute(model, x, rules=relevance.presets.epsilon(1e-9))
    accounted_for(r, 1e-7)
    assert torch.isfinite(r[x]).all()
    assert int(r.output.argmax()) == 985  # daisy, the flower that it knows
    r = relevance.attribute(model, x, rules=relevance.presets.gamma(0.25))
    accounted_for(r, 1e-7)
    heat = r[x].sum((0, 1))
    assert heat[56:168, 56:168].sum() > heat.sum() / 2  # the middle, where the flower is
