"""Why a model wrote this answer: for each of its tokens, the relevance of the prompt and of the tokens written before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_int, fail
from lutetia.integrations.transformers.checks import check_tokenizer, check_tokens, check_writer, tokenized
from lutetia.integrations.transformers.drawn import Drawn, sources_html
from lutetia.integrations.transformers.explaining import (
    Rules,
    attribute_scores,
    check_length,
    ended_elsewhere,
    gap_of,
    pieces_of,
    positions_of,
    prompt_tokens,
    rival,
)
from lutetia.relevance import pictures

Prompt = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True, repr=False)
class AnswerExplanation(Drawn):
    """What made each of T tokens of an answer more likely than its strongest rival, after a prompt of S tokens."""

    tokens: list[int]  # of the prompt
    pieces: list[str]  # the text of each
    answer: list[int]
    answer_pieces: list[str]
    probabilities: Tensor  # [T]: of each token of the answer, given what stands before it
    rivals: list[int]  # the strongest other token in each place
    rival_pieces: list[str]
    explained: Tensor  # [T]: how far the score of a token is above that of its rival; its row and the rest below add up
    relevance: Tensor  # [T, S + T]: of the prompt and of the answer so far; 0 from the token itself on
    absorbed: Tensor  # [T]: relevance that ended in biases and other constants
    elsewhere: Tensor  # [T]: relevance of positions, and of the token that starts the answer of a sequence-to-sequence model
    gap: Tensor  # [T]: what the steps of integrated gradients miss

    @property
    def total(self) -> Tensor:
        """What each token of the prompt contributed to the whole answer, [S]."""
        return self.relevance[:, : len(self.tokens)].sum(0)

    def said(self) -> str:
        """What is explained, in a sentence."""
        return f"what {len(self.answer):,} tokens of an answer to {len(self.tokens):,} tokens were made from"

    def to_html(self) -> str:
        """The prompt, coloured by what it did for the whole answer, and where each token of the answer came from."""
        facts = list(zip(self.answer_pieces, self.probabilities.tolist(), self.rival_pieces, strict=True))
        prompt = pictures.token_strip(self.pieces, self.total, self.said())
        return prompt + sources_html([*self.pieces, *self.answer_pieces], self.relevance, facts)


class Step(NamedTuple):
    """What tokens of an answer are computed from."""

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
    model runs over prompt and answer, and up to 16 tokens are explained in one walk, as far as memory allows.
    `advance(done, all)` is called for each. `rules` are AttnLRP's by default.
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
    rows = torch.zeros(length, count + length)
    absorbed, elsewhere, gap = torch.zeros(3, length)
    scores: list[Tensor] = []
    rivals: list[int] = []
    together = at_once(model, count + length, length) if causal(model, tokens, written) else 1
    while len(rivals) < length:
        first = len(rivals)
        chosen = written[first : first + together]
        step = step_of(model, tokens, written[: first + len(chosen) - 1], len(chosen))
        answered = Answered(chosen)
        for place, found in enumerate(attribute_scores(model, step.inputs, answered, rules), first):
            for part, skipped, begin in step.parts:
                end = begin + part.shape[1] - skipped
                rows[place, begin:end] = found[part][0, skipped:].float().cpu()
            absorbed[place] = found.report.absorbed
            elsewhere[place] = ended_elsewhere(found, rows[place])
            gap[place] = gap_of(found)
            if advance is not None:
                advance(place + 1, length)
        scores.append(answered.scores)
        rivals += answered.rivals
    logits = torch.cat(scores)
    places, chosen_tokens = torch.arange(length), torch.tensor(written)
    return AnswerExplanation(
        tokens[0].tolist(),
        pieces_of(tokenizer, tokens[0].tolist()),
        written,
        pieces_of(tokenizer, written),
        logits.double().softmax(1)[places, chosen_tokens].float(),
        rivals,
        pieces_of(tokenizer, rivals),
        logits[places, chosen_tokens] - logits[places, torch.tensor(rivals)],
        rows,
        absorbed,
        elsewhere,
        gap,
    )


class Answered:
    """How far the scores of N tokens of an answer are above those of their strongest rivals, as a function of the logits."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.rivals: list[int] = []
        self.scores = torch.zeros(0)  # [N, vocab]

    def __call__(self, logits: Tensor) -> Tensor:
        """logits [1, S, vocab], the last N of them those of the tokens -> [N]."""
        last = logits.shape[1] - len(self.tokens)
        if not self.rivals:
            self.scores = logits[0, last:].detach().float().cpu()
            self.rivals = [rival(each, token) for each, token in zip(self.scores, self.tokens, strict=True)]
        places = torch.arange(last, logits.shape[1], device=logits.device)
        these, those = (torch.tensor(each, device=logits.device) for each in (self.tokens, self.rivals))
        return logits[0, places, these] - logits[0, places, those]


MOST_AT_ONCE = 16  # tokens that one walk explains: the time per token falls little after that, and a bar should move
NUMBERS = 2**24  # in one tensor of relevance: 64 MiB in float32


def at_once(model: Any, length: int, count: int) -> int:
    """How many of `count` tokens of an answer one walk over `length` tokens explains, as far as memory allows."""
    vocab = model.get_output_embeddings().weight.shape[0] if model.get_output_embeddings() is not None else 0
    inside = inside_of(model, length, vocab)
    kept = 1 if model._supports_logits_to_keep() else length  # positions with scores, for each token

    def fits(n: int) -> bool:
        return n * max(inside, vocab * (n if kept == 1 else kept)) <= NUMBERS

    return next((n for n in range(min(count, MOST_AT_ONCE), 1, -1) if fits(n)), 1)


def inside_of(model: Any, length: int, vocab: int) -> int:
    """How many numbers the largest tensor inside a model has for a text; matrices of `vocab` rows are no layers."""
    heads = getattr(model.config.get_text_config(), "num_attention_heads", None) or 1
    widest = max((max(each.shape) for each in model.parameters() if each.dim() == 2 and vocab not in each.shape), default=1)
    return length * max(heads * length, widest)


def causal(model: Any, tokens: Tensor, written: Sequence[int]) -> bool:
    """Whether the scores after a prompt [1, S] stay as they are when more tokens follow, as a decoder's do."""
    if len(written) == 1:
        return True
    with torch.no_grad():
        alone, followed = (answer_logits(model, tokens, written[:n])[0].float() for n in (1, 2))
    bound = max(1e-3, 10 * torch.finfo(model.dtype).eps)
    return bool((alone - followed).abs().max() <= bound * alone.abs().max())


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
    return model(**step_of(model, tokens, answer[:-1], len(answer)).inputs).logits[0, -len(answer) :]


def step_of(model: Any, tokens: Tensor, written: Sequence[int], n_scores: int = 1) -> Step:
    """The inputs for the token after a prompt [1, S] and what is `written`, with the scores in the last places."""
    behind = torch.tensor([written], dtype=torch.long, device=tokens.device).reshape(1, -1)
    if not model.config.is_encoder_decoder:
        whole = torch.cat([tokens, behind], 1)
        inputs = {"input_ids": whole, "use_cache": False}
        if model._supports_logits_to_keep():
            inputs["logits_to_keep"] = n_scores
        return Step(inputs, [(whole, 0, 0)])
    start = model.generation_config.decoder_start_token_id
    start = model.config.decoder_start_token_id if start is None else start
    decoder = torch.cat([torch.full((1, 1), int(start), device=tokens.device), behind], 1)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "decoder_input_ids": decoder, "use_cache": False}
    return Step(inputs, [(tokens, 0, 0), (decoder, 1, tokens.shape[1])])
