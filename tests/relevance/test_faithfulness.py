"""What is called relevant is what the model used: take it away first, and the score falls fastest.

The area between the two curves, of removing the least relevant first and the most relevant first, is larger for relevance than
for a random order, for gradient × input, and for captum's integrated gradients with their default baseline.
"""

from __future__ import annotations

from typing import Any

import pytest
import real_models
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import relevance

attr = pytest.importorskip("captum.attr")


def area(curve: Any, scores: Tensor) -> float:
    """The mean of the curve that removes the least relevant first, less that of the most relevant first."""
    return float((curve(scores.argsort(-1)) - curve(scores.argsort(-1, descending=True))).mean())


# ---- words ------------------------------------------------------------------------------------------------------------


def words_removed(model: nn.Module, tokens: Tensor, mask: int) -> Any:
    """The score, relative to the whole sentence's, with the first 0, 1, 2 … tokens of an order masked: order [1, S - 2]."""

    def curve(order: Tensor) -> Tensor:
        rows = [tokens[0]]
        for place in (order[0] + 1).tolist():
            rows.append(rows[-1].clone())
            rows[-1][place] = mask
        with torch.no_grad():
            scores = model(torch.stack(rows))[:, 0]
        return scores / scores[0]

    return curve


@pytest.mark.slow
def test_words() -> None:
    bert, tokenizer = real_models.minilm()
    mask, table = tokenizer.token_to_id("[MASK]"), bert.get_submodule("embeddings.word_embeddings")
    areas: dict[str, list[float]] = {}
    for question, sentence in real_models.PAIRS:
        model, tokens = real_models.similarity(bert, tokenizer, question, sentence)
        embedded = table(tokens).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(inputs_embeds=embedded).sum(), embedded)
        integrated = attr.LayerIntegratedGradients(lambda ids, model=model: model(ids)[:, 0], table)
        methods = {
            "epsilon": relevance.attribute(model, {"input_ids": tokens})[tokens],
            "attnlrp": relevance.attribute(model, {"input_ids": tokens}, rules=relevance.presets.attnlrp())[tokens],
            "random": torch.rand(tokens.shape),
            "gradient × input": (gradient * embedded.detach()).sum(-1),
            "integrated gradients": integrated.attribute(tokens, n_steps=20).sum(-1),
        }
        curve = words_removed(model, tokens, mask)
        for name, scores in methods.items():
            areas.setdefault(name, []).append(area(curve, scores[:, 1:-1]))  # [CLS] and [SEP] stay
    mean = {name: sum(found) / len(found) for name, found in areas.items()}
    for ours in ("epsilon", "attnlrp"):
        assert min(areas[ours]) > 0.1, areas
        for other in ("random", "gradient × input", "integrated gradients"):
            assert mean[ours] > mean[other], mean


# ---- patches of an image ---------------------------------------------------------------------------------------------

SIDE = 14  # patches in a row


def per_patch(relevance_of_pixels: Tensor) -> Tensor:
    """[B, 3, 224, 224] -> [B, 196]."""
    return F.avg_pool2d(relevance_of_pixels.sum(1, keepdim=True), 224 // SIDE).flatten(1)


def patches_removed(model: nn.Module, x: Tensor, target: Tensor) -> Any:
    """The probability of the target with the first 0, 1/7, 2/7 … of the patches blurred away: order [B, 196]."""
    blurred = F.interpolate(F.avg_pool2d(x, 32), size=x.shape[-2:], mode="bilinear")

    def curve(order: Tensor) -> Tensor:
        found = []
        for count in range(0, SIDE * SIDE + 1, 2 * SIDE):
            kept = torch.ones(order.shape).scatter_(1, order[:, :count], 0.0).view(-1, 1, SIDE, SIDE)
            kept = kept.repeat_interleave(224 // SIDE, 2).repeat_interleave(224 // SIDE, 3)
            with torch.no_grad():
                found.append(model(x * kept + blurred * (1 - kept)).softmax(-1).gather(1, target[:, None])[:, 0])
        return torch.stack(found)

    return curve


@pytest.mark.slow
def test_patches() -> None:
    model, x = real_models.efficientnet(), real_models.photographs()
    with torch.no_grad():
        target = model(x).argmax(-1)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).gather(1, target[:, None]).sum(), leaf)
    integrated = attr.IntegratedGradients(model).attribute(x, target=target, n_steps=16, internal_batch_size=8)
    methods = {
        "gamma": relevance.attribute(model, x, target, relevance.presets.gamma(0.25))[x],
        "random": torch.randn(x.shape),
        "gradient × input": gradient * x,
        "integrated gradients": integrated,
    }
    curve = patches_removed(model, x, target)
    areas = {name: area(curve, per_patch(found)) for name, found in methods.items()}
    for other in ("random", "gradient × input", "integrated gradients"):
        assert areas["gamma"] > areas[other] + 0.05, areas
