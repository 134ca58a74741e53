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
    logits_of,
    refuse,
    tokenized,
)
from lutetia.integrations.transformers.explaining import (
    Rules,
    attribute_difference,
    check_length,
    ended_elsewhere,
    layers_by_token,
    pieces_of,
    rival,
)


@dataclass(frozen=True)
class ClassExplanation:
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

    @property
    def explained(self) -> float:
        """The score of the target, minus that of its rival: relevance, `absorbed` and `elsewhere` add up to it."""
        return float(self.logits[self.target]) - (0.0 if self.against is None else float(self.logits[self.against]))

    @property
    def probabilities(self) -> Tensor:
        """Of each class [classes]: all together 1, or each on its own where classes do not exclude each other."""
        logits = self.logits.double()
        return logits.softmax(0) if self.exclusive else logits.sigmoid()


def explain_text_class(
    model: Any,
    tokenizer: Any,
    text: str | tuple[str, str],
    target: int | str | None = None,
    against: int | str | None = None,
    rules: Rules = None,
) -> ClassExplanation:
    """Explain the class of a text, or of a pair of texts, or another `target`, against the runner-up, or another class.

    Classes are numbers or names. Where they do not exclude each other (`multi_label_classification`, or a single score), the
    score of the target itself is explained. `rules` are AttnLRP's by default.
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
    decided = _classes(model, inputs, target, against)
    found = attribute_difference(model, inputs, _places(*decided[1:]), rules, layers=True)
    ids, given = tokens[0].tolist(), found[tokens][0].float().cpu()
    return _explanation(model, decided, found, given, ids, pieces_of(tokenizer, ids), layers_by_token(found, len(ids)))


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
    try:
        pixels = processor(images=image, return_tensors="pt")["pixel_values"].to(model.device, model.dtype)
    except Exception as error:  # pillow, numpy and torch raise nearly anything for what is no image
        raise ArgumentError(f"image is {describe(image)}, which the processor refuses: {error}") from error
    inputs = {"pixel_values": pixels}
    decided = _classes(model, inputs, target, against)
    found = attribute_difference(model, inputs, _places(*decided[1:]), rules)
    given = found[pixels][0].float().sum(0).cpu()
    return _explanation(model, decided, found, given, [], [], torch.zeros(0, 0), pixels[0].float().cpu())


def _explanation(model: Any, decided: tuple[Tensor, int, int | None], found: Any, given: Tensor, *parts: Any) -> ClassExplanation:
    """What was decided (logits, the class, the other one), what it was explained by, and `parts` of the input."""
    logits, this, that = decided
    n_classes, prediction = len(logits), int(logits.argmax())
    which = (names_of(model, n_classes), logits, this, that, exclusive(model, n_classes), prediction)
    return ClassExplanation(*which, given, float(found.report.absorbed), ended_elsewhere(found, given), *parts)


def _places(this: int, that: int | None) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    return (0, this), None if that is None else (0, that)


def _classes(
    model: Any, inputs: dict[str, Any], target: int | str | None, against: int | str | None
) -> tuple[Tensor, int, int | None]:
    """The scores of the classes, the one to explain, and its rival."""
    with torch.no_grad():
        logits = logits_of(model, inputs, 2)[0].float().cpu()
    names = names_of(model, len(logits))
    this = int(logits.argmax()) if target is None else class_of("target", target, names)
    if against is not None:
        that: int | None = class_of("against", against, names)
    else:
        that = rival(logits, this) if exclusive(model, len(logits)) else None
    if this == that:
        raise ArgumentError(f"target and against are both class {names[this]!r}, expected two different ones")
    return logits, this, that


def exclusive(model: Any, count: int) -> bool:
    """Whether one class of a model excludes the others."""
    return count > 1 and getattr(model.config, "problem_type", None) != "multi_label_classification"


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
