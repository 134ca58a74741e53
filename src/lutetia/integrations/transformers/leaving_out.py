"""Is an explanation faithful? Leave out the tokens that it calls most relevant, and see how far the model's decision falls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_int, check_range, fail
from lutetia.integrations.transformers.answers import AnswerExplanation, answer_logits
from lutetia.integrations.transformers.classes import ClassExplanation
from lutetia.integrations.transformers.explaining import TokenExplanation


class LeftOut(NamedTuple):
    """How far the log-probability of a decision falls, in nats, when tokens of the text are left out."""

    n_left_out: int  # tokens
    n_tokens: int  # those that could be left out
    log_probability: float  # of the decision, with all of them
    most: float  # the fall without the most relevant
    least: float  # without the least relevant
    random: float  # without as many at random, on average

    @property
    def faithful(self) -> bool:
        """Whether the most relevant tokens matter more than tokens at random do."""
        return self.most > self.random


def leave_out(
    model: Any,
    tokenizer: Any,
    found: AnswerExplanation | TokenExplanation | ClassExplanation,
    fraction: float = 0.2,
    draws: int = 10,
    seed: int = 0,
) -> LeftOut:
    """Leave out a fraction of the tokens of an explained text: the most relevant, the least relevant, and others at random.

    Tokens with a special meaning (beginning, end, mask) stay. What falls is the probability of the answer as a whole, of the
    explained token, or of the explained class.
    """
    check_range("fraction", fraction, 0, 1)
    check_int("draws", draws, 1, 10_000)
    check_int("seed", seed, 0, 2**63 - 1)
    if not isinstance(model, torch.nn.Module):
        fail("model", model, "the model that was explained")
    if not all(hasattr(tokenizer, name) for name in ("all_special_ids", "mask_token_id")):
        fail("tokenizer", tokenizer, "a tokenizer of transformers")
    tokens, relevance, score = _subject(model, tokenizer, found)
    special = set(tokenizer.all_special_ids)
    places = [place for place, token in enumerate(tokens) if token not in special]
    count = min(max(1, math.ceil(fraction * len(places))), len(places) - 1)
    if count < 1:
        raise ArgumentError(f"the text has {len(places)} tokens that could be left out, expected at least two")
    order = sorted(places, key=lambda place: float(relevance[place]), reverse=True)
    generator = torch.Generator().manual_seed(seed)
    drawn = [[places[at] for at in torch.randperm(len(places), generator=generator)[:count].tolist()] for _ in range(draws)]

    def without(gone: Sequence[int]) -> float:
        with torch.no_grad():
            return score([token for place, token in enumerate(tokens) if place not in set(gone)])

    whole = without([])
    falls = [whole - without(gone) for gone in (order[:count], order[-count:], *drawn)]
    return LeftOut(count, len(places), whole, falls[0], falls[1], sum(falls[2:]) / draws)


def _subject(model: Any, tokenizer: Any, found: object) -> tuple[list[int], Tensor, Callable[[list[int]], float]]:
    """The tokens of an explained text, their relevance, and the log-probability of the decision for other tokens."""

    def row(tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], device=model.device)

    if isinstance(found, AnswerExplanation):
        return found.tokens, found.total, lambda tokens: _of_answer(model, row(tokens), found.answer)
    if isinstance(found, TokenExplanation):
        masked = tokenizer.mask_token_id in found.tokens if tokenizer.mask_token_id is not None else False

        def of_token(tokens: list[int]) -> float:
            place = tokens.index(tokenizer.mask_token_id) if masked else -1
            return float(model(input_ids=row(tokens)).logits[0, place].double().log_softmax(-1)[found.target])

        return found.tokens, found.relevance, of_token
    if isinstance(found, ClassExplanation) and found.is_number:
        raise ArgumentError("what was explained is a predicted number, which has no probability that could fall")
    if isinstance(found, ClassExplanation) and found.tokens:

        def of_class(tokens: list[int]) -> float:
            logits = model(input_ids=row(tokens)).logits[0].double()
            chances = logits.log_softmax(-1) if found.exclusive else torch.nn.functional.logsigmoid(logits)
            return float(chances[found.target])

        return found.tokens, found.relevance, of_class
    fail("found", found, "the explanation of an answer, a token, or the class of a text")


def _of_answer(model: Any, tokens: Tensor, answer: list[int]) -> float:
    """The log-probability of a whole answer after these tokens [1, S]."""
    logits = answer_logits(model, tokens, answer).double().log_softmax(-1)
    return float(logits[torch.arange(len(answer)), torch.tensor(answer)].sum())
