"""Why a decoder predicts this token and not that one: relevance of the tokens of a prompt, by layer and by head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lutetia import relevance
from lutetia.errors import ArgumentError, check_range


@dataclass(frozen=True)
class TokenExplanation:
    """What made the score of `target` larger than that of `against`, in the last position of a prompt of S tokens."""

    tokens: list[int]
    pieces: list[str]  # the text of each token
    target: int
    against: int
    prediction: int
    logits: Tensor  # [vocab], of the next token
    relevance: Tensor  # [S]
    layers: Tensor  # [L, S]: what leaves each layer for the next
    heads: Tensor  # [L, H]: what each attention head gave, all positions together; empty where the model shows none
    absorbed: float  # relevance that ended in biases and other constants

    @property
    def explained(self) -> float:
        """The score of the target minus that of its rival: relevance and `absorbed` add up to it."""
        return float(self.logits[self.target] - self.logits[self.against])


def explain_next_token(
    model: Any,
    tokenizer: Any,
    prompt: str,
    target: int | str | None = None,
    against: int | str | None = None,
    rules: relevance.Rules | None = None,
) -> TokenExplanation:
    """Explain the token that follows a prompt, or another `target`, against its strongest rival, or another one.

    Tokens are numbers of the vocabulary, or text that is one token, with a space before it or without.
    Blocks are recomputed while relevance passes through them, so that memory holds the activations of one block. `rules` are
    AttnLRP's by default.
    """
    tokens = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"].to(model.device)
    if not tokens.numel():
        raise ArgumentError("the prompt is empty, expected some text")
    inputs = {"input_ids": tokens, "use_cache": False}
    if model._supports_logits_to_keep():
        inputs["logits_to_keep"] = 1
    with torch.no_grad():
        logits = model(**inputs).logits[0, -1].float().cpu()
    prediction = int(logits.argmax())
    this = prediction if target is None else token_of("target", target, tokenizer, logits)
    that = rival(logits, this) if against is None else token_of("against", against, tokenizer, logits)
    if this == that:
        raise ArgumentError(f"target and against are both token {this}, expected two different ones")
    found = relevance.attribute(
        model,
        inputs,
        target=lambda output: output.logits[0, -1, this] - output.logits[0, -1, that],
        rules=relevance.presets.attnlrp() if rules is None else rules,
        layers=True,
        heads=True,
        recompute=len(relevance.blocks(model)) > 1,
    )
    layers = [part.reshape(-1, tokens.shape[1], part.shape[-1]).sum((0, 2)) for part in found.layers.values()]
    heads = [part.sum((0, 2)) for part in found.heads.values() if part.dim() == 3]
    ids = tokens[0].tolist()
    return TokenExplanation(
        ids,
        [tokenizer.decode([token]) for token in ids],
        this,
        that,
        prediction,
        logits,
        found[tokens][0].float().cpu(),
        torch.stack(layers).float().cpu() if layers else torch.zeros(0, len(ids)),
        torch.stack(heads).float().cpu() if heads and len({len(part) for part in heads}) == 1 else torch.zeros(0, 0),
        float(found.report.absorbed),
    )


def token_of(name: str, token: int | str, tokenizer: Any, logits: Tensor) -> int:
    """The number of a token: for text, with or without a space before it, whichever the model finds more likely."""
    if isinstance(token, int):
        check_range(name, token, 0, len(logits) - 1)
        return token
    ways = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (token, f" {token}")]
    single = [way[0] for way in ways if len(way) == 1 and way[0] < len(logits)]
    if not single:
        parts = " · ".join(tokenizer.decode([each]) for each in ways[0])
        raise ArgumentError(f"{name} is {token!r}, which is {len(ways[0])} tokens ({parts}), expected one token")
    return int(max(single, key=lambda each: float(logits[each])))


def rival(logits: Tensor, target: int) -> int:
    """The strongest token besides the target: logits [vocab]."""
    first, second = logits.topk(2).indices.tolist()
    return int(second if first == target else first)
