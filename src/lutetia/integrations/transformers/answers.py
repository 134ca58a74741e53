"""Why a model wrote this answer: for each of its tokens, the relevance of the prompt and of the tokens written before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_int, fail
from lutetia.integrations.transformers.checks import check_tokenizer, check_tokens, check_writer, tokenized
from lutetia.integrations.transformers.explaining import (
    Rules,
    attribute_difference,
    check_length,
    ended_elsewhere,
    pieces_of,
    positions_of,
    prompt_tokens,
    rival,
)

Prompt = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class AnswerExplanation:
    """What made each of T tokens of an answer more likely than its strongest rival, after a prompt of S tokens."""

    tokens: list[int]  # of the prompt
    pieces: list[str]  # the text of each
    answer: list[int]
    answer_pieces: list[str]
    probabilities: Tensor  # [T]: of each token of the answer, given what stands before it
    rivals: list[int]  # the strongest other token in each place
    rival_pieces: list[str]
    explained: Tensor  # [T]: how far the score of a token is above that of its rival; its row, `absorbed` and `elsewhere` add up
    relevance: Tensor  # [T, S + T]: of the prompt and of the answer so far; 0 from the token itself on
    absorbed: Tensor  # [T]: relevance that ended in biases and other constants
    elsewhere: Tensor  # [T]: relevance of positions, and of the token that starts the answer of a sequence-to-sequence model

    @property
    def total(self) -> Tensor:
        """What each token of the prompt contributed to the whole answer, [S]."""
        return self.relevance[:, : len(self.tokens)].sum(0)


class Step(NamedTuple):
    """What one token of an answer is computed from."""

    inputs: dict[str, Any]
    parts: list[tuple[Tensor, int, int]]  # tokens that get relevance, how many to skip, and where the next stands in a row


def explain_answer(
    model: Any,
    tokenizer: Any,
    prompt: Prompt,
    answer: str | int = 20,
    rules: Rules = None,
    advance: Callable[[int, int], object] | None = None,
) -> AnswerExplanation:
    """Explain an answer token by token: one that is given, or the most likely one of this many tokens at most.

    `model` is a decoder or a sequence-to-sequence model; `prompt` a text, or messages for the tokenizer's chat template. The
    model runs and is walked once per token of the answer. `advance(done, all)` is called after each. `rules` are AttnLRP's by
    default.
    """
    check_writer(model)
    check_tokenizer(tokenizer)
    if advance is not None and not callable(advance):
        fail("advance", advance, "a function of two numbers")
    encoder = bool(model.config.is_encoder_decoder)
    tokens = _prompt(tokenizer, prompt, encoder).to(model.device)
    check_tokens(model, tokens)
    written = _written(model, tokenizer, tokens, answer)
    count, length = tokens.shape[1], len(written)
    if not encoder:
        check_length(model, count + length)
    rows, absorbed, elsewhere = torch.zeros(length, count + length), torch.zeros(length), torch.zeros(length)
    with torch.no_grad():
        scores = answer_logits(model, tokens, written).float().cpu()
    rivals = [rival(each, token) for each, token in zip(scores, written, strict=True)]
    for place, (token, that) in enumerate(zip(written, rivals, strict=True)):
        step = step_of(model, tokens, written[:place])
        found = attribute_difference(model, step.inputs, ((0, -1, token), (0, -1, that)), rules)
        for part, skipped, first in step.parts:
            rows[place, first : first + part.shape[1] - skipped] = found[part][0, skipped:].float().cpu()
        absorbed[place] = found.report.absorbed
        elsewhere[place] = ended_elsewhere(found, rows[place])
        if advance is not None:
            advance(place + 1, length)
    places = torch.arange(length)
    return AnswerExplanation(
        tokens[0].tolist(),
        pieces_of(tokenizer, tokens[0].tolist()),
        written,
        pieces_of(tokenizer, written),
        scores.double().softmax(1)[places, torch.tensor(written)].float(),
        rivals,
        pieces_of(tokenizer, rivals),
        scores[places, torch.tensor(written)] - scores[places, torch.tensor(rivals)],
        rows,
        absorbed,
        elsewhere,
    )


def _prompt(tokenizer: Any, prompt: Prompt, encoder: bool) -> Tensor:
    """An encoder is given a text whole, with the token that ends it."""
    if not encoder or not isinstance(prompt, str):
        return prompt_tokens(tokenizer, prompt)
    if not prompt:
        raise ArgumentError("the prompt is empty, expected some text")
    return tokenized(tokenizer, prompt)["input_ids"].long()


def _written(model: Any, tokenizer: Any, tokens: Tensor, answer: str | int) -> list[int]:
    """The tokens of the answer: those of a text, or what the model writes."""
    if isinstance(answer, str):
        if not answer or not (given := tokenized(tokenizer, answer, add_special_tokens=False)["input_ids"]).numel():
            raise ArgumentError("the answer is empty, expected some text, or the number of tokens to write")
        check_tokens(model, given)
        return [int(token) for token in given[0].tolist()]
    check_int("answer", answer, 1, 100_000)
    most = positions_of(model)
    if most is not None and not model.config.is_encoder_decoder:
        check_length(model, tokens.shape[1] + 1)
        answer = min(answer, most - tokens.shape[1])  # as far as there are positions
    greedy = {"do_sample": False, "num_beams": 1, "temperature": None, "top_p": None, "top_k": None}
    with torch.no_grad():
        out = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=answer, **greedy)
    first = 1 if model.config.is_encoder_decoder else tokens.shape[1]
    return [int(token) for token in out[0, first:].tolist()]


def answer_logits(model: Any, tokens: Tensor, answer: Sequence[int]) -> Tensor:
    """The scores in every place of an answer after a prompt [1, S], in one run: [T, vocab]."""
    inputs = step_of(model, tokens, answer[:-1]).inputs
    if "logits_to_keep" in inputs:
        inputs["logits_to_keep"] = len(answer)
    return model(**inputs).logits[0, -len(answer) :]


def step_of(model: Any, tokens: Tensor, written: Sequence[int]) -> Step:
    """The inputs for the token after a prompt [1, S] and what is `written`."""
    behind = torch.tensor([written], dtype=torch.long, device=tokens.device).reshape(1, -1)
    if not model.config.is_encoder_decoder:
        whole = torch.cat([tokens, behind], 1)
        inputs = {"input_ids": whole, "use_cache": False}
        if model._supports_logits_to_keep():
            inputs["logits_to_keep"] = 1
        return Step(inputs, [(whole, 0, 0)])
    start = model.generation_config.decoder_start_token_id
    start = model.config.decoder_start_token_id if start is None else start
    decoder = torch.cat([torch.full((1, 1), int(start), device=tokens.device), behind], 1)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "decoder_input_ids": decoder, "use_cache": False}
    return Step(inputs, [(tokens, 0, 0), (decoder, 1, tokens.shape[1])])
