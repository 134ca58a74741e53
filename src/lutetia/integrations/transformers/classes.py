"""Why a classifier of texts or images says this class and not that one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, describe, did_you_mean, fail
from lutetia.integrations.transformers.checks import (
    check_model,
    check_tokenizer,
    check_tokens,
    check_wanted,
    refuse,
    tokenized,
)
from lutetia.integrations.transformers.drawn import Drawn
from lutetia.integrations.transformers.explaining import (
    Rules,
    attribute_score,
    check_length,
    ended_elsewhere,
    gap_of,
    layers_by_token,
    pieces_of,
    rival,
    runs_of,
)
from lutetia.integrations.transformers.shapley import with_words
from lutetia.relevance import pictures

REGRESSION = "regression"  # a `problem_type` of transformers


@dataclass(frozen=True, repr=False)
class ClassExplanation(Drawn):
    """What made the score of the class `target` larger than that of `against`; of a text of S tokens, or an image [C, H, W]."""

    names: list[str]  # of the classes
    logits: Tensor  # [classes]
    target: int
    against: int | None  # None where the score of the target itself is explained
    exclusive: bool  # whether one class excludes the others
    prediction: int
    relevance: Tensor  # [S], or [H, W]
    absorbed: float  # relevance that ended in biases and other constants
    elsewhere: float  # relevance of embeddings that are not of tokens: of positions, of kinds of text
    tokens: list[int]  # none for an image
    pieces: list[str]  # the text of each token
    layers: Tensor  # [L, S]: what leaves each layer for the next; empty for an image
    pixels: Tensor | None = None  # [C, H, W], as the model sees the image
    gap: float = 0.0  # what the steps of integrated gradients miss
    is_number: bool = False  # whether scores are predicted numbers, which have no probability
    runs: int = 0  # how many texts the model read for Shapley values
    exact: bool = False  # whether these are exact

    @property
    def explained(self) -> float:
        """The score of the target, minus that of its rival: relevance, `absorbed`, `elsewhere` and `gap` add up to it."""
        return float(self.logits[self.target]) - (0.0 if self.against is None else float(self.logits[self.against]))

    @property
    def probabilities(self) -> Tensor | None:
        """Of each class [classes]: all together 1, or each on its own where they do not exclude each other; None of numbers."""
        return None if self.is_number else chances_of(self.logits, self.exclusive)

    def said(self) -> str:
        """What is explained, in a sentence."""
        rival = "0" if self.against is None else self.names[self.against]
        return f"what put {self.names[self.target]} {self.explained:.4g} above {rival}"

    def to_html(self) -> str:
        """The tokens of a text, or the pixels of an image, coloured by relevance."""
        if self.pixels is not None:
            return pictures.heat_map_html(self.relevance, self.said())
        return pictures.token_strip(self.pieces, self.relevance, self.said())


def explain_text_class(
    model: Any,
    tokenizer: Any,
    text: str | tuple[str, str],
    target: int | str | None = None,
    against: int | str | None = None,
    rules: Rules = None,
) -> ClassExplanation:
    """Explain the class of a text, or of a pair of texts, or another `target`, against the runner-up, or another class.

    Classes are numbers or names. Where they do not exclude each other (`multi_label_classification`, or a single score), and
    where the model predicts numbers (`regression`), the score of the target itself is explained. `rules` are AttnLRP's by
    default.
    """
    check_model(model)
    check_tokenizer(tokenizer)
    if not isinstance(text, str) and not (isinstance(text, list | tuple) and [type(each) for each in text] == [str, str]):
        fail("text", text, "a text, or a pair of texts")
    texts = (text,) if isinstance(text, str) else tuple(text)
    if not all(each.strip() for each in texts):
        raise ArgumentError("the text is empty, expected some words")
    inputs = dict(tokenized(tokenizer, *texts).to(model.device))
    tokens = inputs["input_ids"]
    check_tokens(model, tokens)
    check_length(model, tokens.shape[1])
    decided, ids = Decided(model, target, against), tokens[0].tolist()
    found = attribute_score(model, inputs, decided, with_words(rules, tokenizer, ids, texts), dims=2, layers=True)
    given = found[tokens][0].float().cpu()
    return _explanation(model, decided, found, given, (ids, pieces_of(tokenizer, ids), layers_by_token(found, len(ids)), None))


def explain_image_class(
    model: Any,
    processor: Any,
    image: Any,
    target: int | str | None = None,
    against: int | str | None = None,
    rules: Rules = None,
) -> ClassExplanation:
    """Explain the class of an image (of pillow, or an array [H, W, C]), as `explain_text_class` does that of a text."""
    check_model(model)
    if not hasattr(processor, "image_mean") and not hasattr(processor, "image_processor"):
        refuse("processor", processor, "an image processor of transformers")
    shape: tuple[int, ...] = tuple(getattr(image, "shape", ()))
    ambiguous = len(shape) == 3 and shape[0] in (1, 3) and shape[2] in (1, 3)  # a few pixels high: the processor would guess
    layout = {"input_data_format": "channels_last"} if ambiguous else {}
    try:
        pixels = processor(images=image, return_tensors="pt", **layout)["pixel_values"].to(model.device, model.dtype)
    except Exception as error:  # pillow, numpy and torch raise nearly anything for what is no image
        raise ArgumentError(f"image is {describe(image)}, which the processor refuses: {error}") from error
    inputs = {"pixel_values": pixels}
    decided = Decided(model, target, against)
    found = attribute_score(model, inputs, decided, rules, dims=2)
    given = found[pixels][0].float().sum(0).cpu()
    return _explanation(model, decided, found, given, ([], [], torch.zeros(0, 0), pixels[0].float().cpu()))


Read = tuple[list[int], list[str], Tensor, Tensor | None]  # tokens, pieces, layers and pixels of an input


def _explanation(model: Any, decided: Decided, found: Any, given: Tensor, read: Read) -> ClassExplanation:
    """What was decided, what it was explained by, and what was read."""
    logits, prediction = decided.logits, int(decided.logits.argmax())
    which = (decided.names, logits, decided.this, decided.that, exclusive(model, len(logits)), prediction)
    shares = (given, float(found.report.absorbed), ended_elsewhere(found, given))
    tokens, pieces, layers, pixels = read
    return ClassExplanation(*which, *shares, tokens, pieces, layers, pixels, gap_of(found), is_number(model), *runs_of(found))


class Decided:
    """Which class is explained, and its rival: a function of logits [1, classes] that returns their difference."""

    def __init__(self, model: Any, target: int | str | None, against: int | str | None) -> None:
        self._model, self._target, self._against = model, target, against
        self.names: list[str] = []
        self.logits = torch.zeros(0)  # [classes]
        self.this = 0
        self.that: int | None = None  # None where the score of the class itself is explained

    def __call__(self, scores: Tensor) -> Tensor:
        if not self.names:
            self._decide(scores)
        return scores[0, self.this] if self.that is None else scores[0, self.this] - scores[0, self.that]

    def _decide(self, scores: Tensor) -> None:
        logits = self.logits = scores[0].detach().float().cpu()
        names = self.names = names_of(self._model, len(logits))
        self.this = int(logits.argmax()) if self._target is None else class_of("target", self._target, names)
        if self._against is not None:
            self.that = class_of("against", self._against, names)
        elif exclusive(self._model, len(logits)):
            self.that = rival(logits, self.this)
        if self.this == self.that:
            raise ArgumentError(f"target and against are both class {names[self.this]!r}, expected two different ones")


def exclusive(model: Any, count: int) -> bool:
    """Whether one class of a model excludes the others."""
    return count > 1 and getattr(model.config, "problem_type", None) not in ("multi_label_classification", REGRESSION)


def is_number(model: Any) -> bool:
    """Whether the scores of a model are numbers that it predicts."""
    return bool(getattr(model.config, "problem_type", None) == REGRESSION)


def chances_of(logits: Tensor, exclusive: bool) -> Tensor:
    """The probabilities [classes] that logits stand for."""
    return logits.double().softmax(0) if exclusive else logits.double().sigmoid()


def names_of(model: Any, count: int) -> list[str]:
    """The names of a model's classes; their numbers where the config does not name each."""
    named = getattr(model.config, "id2label", None) or {}
    return [str(named.get(number, number)) for number in range(count)]


def class_of(option: str, wanted: int | str, names: list[str]) -> int:
    """The number of a class, given by name, in any case, or by number."""
    check_wanted(option, wanted, len(names) - 1)
    if isinstance(wanted, int):
        return wanted
    for same in (str.__eq__, lambda name, other: name.lower() == other.lower()):
        if sum(same(name, wanted) for name in names) == 1:
            return next(number for number, name in enumerate(names) if same(name, wanted))
    if wanted.isdecimal() and len(wanted) < 10:
        return class_of(option, int(wanted), names)
    raise ArgumentError(f"{option} is {wanted!r}, which is not a class: {did_you_mean(wanted, names)}")
