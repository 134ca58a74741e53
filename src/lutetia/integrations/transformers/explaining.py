"""Why a model predicts this token and not that one: relevance of the tokens of a text, by layer and by head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lutetia import relevance
from lutetia.errors import ArgumentError, LutetiaError, check_choice, fail
from lutetia.integrations.transformers.checks import (
    check_model,
    check_prompt,
    check_tokenizer,
    check_tokens,
    check_wanted,
    check_writer,
    checked_logits,
    logits_of,
    refuse,
    tokenized,
)
from lutetia.integrations.transformers.drawn import Drawn
from lutetia.integrations.transformers.gradients import (
    GRADIENT,
    INTEGRATED,
    GradientResult,
    IntegratedGradients,
    gradient_times_input,
    integrated_gradients,
)
from lutetia.integrations.transformers.shapley import SHAPLEY, ShapleyResult, ShapleyValues, Words, shapley_of_words, with_words
from lutetia.relevance import pictures

Rules = relevance.Rules | IntegratedGradients | ShapleyValues | str | None  # AttnLRP's by default; "gradient" is gradient × input


@dataclass(frozen=True, repr=False)
class TokenExplanation(Drawn):
    """What made the score of `target` larger than that of `against`, in one position after or inside a text of S tokens."""

    tokens: list[int]
    pieces: list[str]  # the text of each token
    target: int
    against: int
    prediction: int
    logits: Tensor  # [vocab], of the predicted token
    relevance: Tensor  # [S]
    layers: Tensor  # [L, S]: what leaves each layer for the next
    heads: Tensor  # [L, H]: what each attention head gave, all positions together; empty where the model shows none
    absorbed: float  # relevance that ended in biases and other constants
    elsewhere: float  # relevance of embeddings that are not of tokens: of positions, of kinds of text
    gap: float = 0.0  # what the steps of integrated gradients miss
    compared: Sequence[str] = ("", "")  # the texts of `target` and `against`
    runs: int = 0  # how many texts the model read for Shapley values
    exact: bool = False  # whether these are exact

    @property
    def explained(self) -> float:
        """The score of the target minus that of its rival: relevance, `absorbed`, `elsewhere` and `gap` add up to it."""
        return float(self.logits[self.target] - self.logits[self.against])

    def said(self) -> str:
        """What is explained, in a sentence."""
        return f"what put {self.compared[0]!r} {self.explained:.4g} above {self.compared[1]!r}"

    def to_html(self) -> str:
        """The tokens of the text, coloured by relevance."""
        return pictures.token_strip(self.pieces, self.relevance, self.said())


def explain_next_token(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, str]],
    target: int | str | None = None,
    against: int | str | None = None,
    rules: Rules = None,
) -> TokenExplanation:
    """Explain the token that follows a prompt, or another `target`, against its strongest rival, or another one.

    `prompt` is a text, or messages for the tokenizer's chat template: `[{"role": "user", "content": "..."}]`. Tokens are numbers
    of the vocabulary, or text that is one token, with a space before it or without. In a long text blocks are recomputed while
    relevance passes through them, so that memory holds the activations of one block. `rules` are AttnLRP's by default;
    "gradient" is gradient × input, for comparison, "integrated", or `IntegratedGradients(steps, baseline="zero")`, integrated
    gradients, and "shapley", or `ShapleyValues(samples)`, Shapley values of words.
    """
    check_writer(model)
    check_tokenizer(tokenizer)
    if model.config.is_encoder_decoder:
        refuse("model", model, "a decoder; explain_answer explains sequence-to-sequence models")
    tokens = prompt_tokens(tokenizer, prompt).to(model.device)
    check_length(model, tokens.shape[1])
    inputs = {"input_ids": tokens, "use_cache": False}
    if model._supports_logits_to_keep():
        inputs["logits_to_keep"] = 1
    rules = with_words(rules, tokenizer, tokens[0].tolist(), (prompt,) if isinstance(prompt, str) else ())
    return _explain_token(model, tokenizer, inputs, -1, (target, against), rules)


def explain_masked_token(
    model: Any,
    tokenizer: Any,
    text: str,
    target: int | str | None = None,
    against: int | str | None = None,
    rules: Rules = None,
) -> TokenExplanation:
    """Explain what a masked language model puts in place of the one mask in a text; arguments as for `explain_next_token`."""
    check_model(model)
    check_tokenizer(tokenizer)
    if not isinstance(text, str):
        fail("text", text, "a text with one mask")
    mask = tokenizer.mask_token
    if mask is None:
        fail("tokenizer", "one without a mask token", "that of a masked language model")
    inputs = dict(tokenized(tokenizer, text).to(model.device))
    places = (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    if len(places) != 1:
        raise ArgumentError(f"the text has {len(places)} masks, expected one: write {mask} where a token is to be predicted")
    check_length(model, inputs["input_ids"].shape[1])
    rules = with_words(rules, tokenizer, inputs["input_ids"][0].tolist(), (text,), stays=True)
    return _explain_token(model, tokenizer, inputs, places[0], (target, against), rules)


def _explain_token(
    model: Any,
    tokenizer: Any,
    inputs: dict[str, Any],
    place: int,
    wanted: tuple[int | str | None, int | str | None],
    rules: Any,
) -> TokenExplanation:
    """The token at one position, the target against its rival, as they are wanted."""
    tokens = inputs["input_ids"]
    check_tokens(model, tokens)
    target, against = wanted
    logits, this, that = torch.zeros(0), 0, 0

    def difference(scores: Tensor) -> Tensor:
        nonlocal logits, this, that
        if this != that:  # as decided before
            return scores[0, place, this] - scores[0, place, that]
        logits = scores[0, place].detach().float().cpu()
        this = int(logits.argmax()) if target is None else token_of("target", target, tokenizer, logits)
        that = rival(logits, this) if against is None else token_of("against", against, tokenizer, logits)
        if this == that:
            raise ArgumentError(f"target and against are both token {this}, expected two different ones")
        return scores[0, place, this] - scores[0, place, that]

    ids = tokens[0].tolist()
    found = attribute_score(model, inputs, difference, rules, layers=True, heads=True)
    heads = [part.sum((0, 2)) for part in found.heads.values() if part.dim() == 3]
    given = found[tokens][0].float().cpu()
    return TokenExplanation(
        ids,
        pieces_of(tokenizer, ids),
        this,
        that,
        int(logits.argmax()),
        logits,
        given,
        layers_by_token(found, len(ids)),
        torch.stack(heads).float().cpu() if heads and len({len(part) for part in heads}) == 1 else torch.zeros(0, 0),
        float(found.report.absorbed),
        ended_elsewhere(found, given),
        gap_of(found),
        pieces_of(tokenizer, [this, that]),
        *runs_of(found),
    )


Score = Callable[[Tensor], Tensor]  # of a model's logits: what is explained
Found = relevance.Result | GradientResult


def attribute_score(model: Any, inputs: Mapping[str, Any], score: Score, rules: Rules, dims: int = 3, **options: Any) -> Found:
    """Relevance of one score, a function of the logits of so many dimensions."""
    return _attributed(model, inputs, score, rules, dims, options, each=False)[0]


def attribute_scores(model: Any, inputs: Mapping[str, Any], scores: Score, rules: Rules, dims: int = 3) -> Sequence[Found]:
    """Relevance of each of several scores [N], in one walk."""
    return _attributed(model, inputs, scores, rules, dims, {}, each=True)


def _attributed(
    model: Any, inputs: Mapping[str, Any], score: Score, rules: Rules, dims: int, options: dict[str, Any], each: bool
) -> Sequence[Found]:
    def explained(output: Any) -> Tensor:
        return score(checked_logits(model, output, dims))

    if rules == SHAPLEY or isinstance(rules, ShapleyValues):
        fail("rules", rules, "other rules: Shapley values are of the words of one text, for a token or a class")
    if isinstance(rules, str):
        check_choice("rules", rules, (GRADIENT, INTEGRATED, SHAPLEY))
        rules = IntegratedGradients() if rules == INTEGRATED else rules
    elif rules is not None and not isinstance(rules, relevance.Rules | IntegratedGradients | Words):
        fail("rules", rules, "relevance.Rules, 'gradient', 'integrated', 'shapley', IntegratedGradients, or ShapleyValues")
    try:
        if isinstance(rules, str):
            return gradient_times_input(model, inputs, explained)
        if isinstance(rules, IntegratedGradients):
            return integrated_gradients(model, inputs, explained, rules)
        if isinstance(rules, Words):
            return shapley_of_words(model, inputs, explained, rules)
        options["recompute"] = recompute(model, inputs)
        chosen = relevance.presets.attnlrp() if rules is None else rules
        if each:
            return relevance.attribute_each(model, inputs, explained, chosen, **options)
        return [relevance.attribute(model, inputs, explained, chosen, **options)]
    except LutetiaError:
        raise
    except (AttributeError, TypeError, ValueError):
        with torch.no_grad():
            logits_of(model, inputs, dims)  # which says so if the model refuses its inputs
        raise


ACTIVATIONS = 2**26  # numbers that may be kept between layers: 256 MiB in float32


def recompute(model: Any, inputs: Mapping[str, Any]) -> bool:
    """Whether blocks are recomputed while relevance passes through them: unless a text is so short that memory can hold all."""
    if len(relevance.blocks(model)) < 2:
        return False
    count = sum(value.numel() for name, value in inputs.items() if name.endswith("input_ids"))
    return not 0 < count * sum(sum(each.shape) for each in model.parameters() if each.dim() == 2) <= ACTIVATIONS


def ended_elsewhere(found: Found, *shown: Tensor) -> float:
    """The relevance that ended at other inputs and embeddings than those that are shown."""
    return sum(found.report.ended_by_module.values()) - sum(float(part.double().sum()) for part in shown)


def gap_of(found: Found) -> float:
    """What the steps of integrated gradients miss."""
    return found.report.gap if isinstance(found, GradientResult) else 0.0


def runs_of(found: Found) -> tuple[int, bool]:
    """How many texts were read for Shapley values, and whether these are exact."""
    return (found.runs, found.exact) if isinstance(found, ShapleyResult) else (0, False)


def layers_by_token(found: Found, count: int) -> Tensor:
    """What leaves each layer of a model, token by token [L, S]; empty where its layers have other tokens than its input."""
    layers = [part for part in found.layers.values() if part.dim() == 3 and part.shape[:2] == (1, count)]
    return torch.stack([part[0].sum(-1) for part in layers]).float().cpu() if layers else torch.zeros(0, count)


def prompt_tokens(tokenizer: Any, prompt: str | Sequence[Mapping[str, str]]) -> Tensor:
    """A prompt, or messages in the tokenizer's template, as a decoder is given it, int64 [1, S]: begun as it wants, not ended."""
    check_prompt(prompt)
    if isinstance(prompt, str):
        tokens = tokenized(tokenizer, prompt)["input_ids"].long()
        ends = {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}
        while tokens.shape[1] > 1 and int(tokens[0, -1]) in ends and not prompt.endswith(tokenizer.decode(tokens[0, -1:])):
            tokens = tokens[:, :-1]
    else:
        if tokenizer.chat_template is None:
            raise ArgumentError("the prompt is a list of messages, and the tokenizer has no chat template: expected a text")
        try:
            told = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        except Exception as error:  # a template raises what it likes
            raise ArgumentError(f"the chat template refuses the messages: {error}") from error
        tokens = told["input_ids"].long()
    if not tokens.numel() or not prompt:
        raise ArgumentError("the prompt is empty, expected some text")
    return tokens


def positions_of(model: Any) -> int | None:
    """How many positions a model has, where that is limited."""
    most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def check_length(model: Any, count: int) -> None:
    """Refuse a text that is longer than the positions that a model has."""
    most = positions_of(model)
    if most is not None and most < count:
        raise ArgumentError(f"the text is {count:,} tokens long, expected at most {most:,}, the positions of the model")


def pieces_of(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """The text of each token."""
    return [tokenizer.decode([token]) for token in tokens]


def token_of(name: str, token: int | str, tokenizer: Any, logits: Tensor) -> int:
    """The number of a token: for text, with or without a space before it, whichever the model finds more likely."""
    check_wanted(name, token, len(logits) - 1)
    if isinstance(token, int):
        return token
    ways = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (token, f" {token}")]
    single = [way[0] for way in ways if len(way) == 1 and way[0] < len(logits)]
    unknown = getattr(tokenizer, "unk_token_id", None)
    if single and {*single} == {unknown} and token != tokenizer.unk_token:
        raise ArgumentError(f"{name} is {token!r}, which the tokenizer does not know, expected one of its tokens")
    if not single:
        parts = " · ".join(tokenizer.decode([each]) for each in ways[0])
        raise ArgumentError(f"{name} is {token!r}, which is {len(ways[0])} tokens ({parts}), expected one token")
    return int(max(single, key=lambda each: float(logits[each])))


def rival(logits: Tensor, target: int) -> int:
    """The strongest token besides the target: logits [vocab]."""
    first, second = logits.topk(2).indices.tolist()
    return int(second if first == target else first)
