"""What the explanations of models of `transformers` have in common: the request, what tokens did not get, the page of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.text import Text
from torch import Tensor

from lutetia.cli.guard import UsageError
from lutetia.cli.show import console
from lutetia.relevance import layer_pictures, pictures
from lutetia.report import PRESETS, RULES

BROKEN = "\N{REPLACEMENT CHARACTER}"
MOST_COLUMNS = 64  # tokens of a table on a page
STEPS = 50  # of integrated gradients, where no number is given
SPECIAL = ("pad", "mask", "unk", "bos", "eos", "sep", "cls")  # tokens that a tokenizer may have
BASELINES = {"mean": "the mean embedding of the vocabulary", "zero": "an embedding of zeros"}
SAMPLES = 25  # orders of words that Shapley values draw, where no number is given
RULES_OF_HF = (*PRESETS, "gradient", "integrated", "shapley")


class Shown(NamedTuple):
    """Tokens as they are shown: those of one character together, and special ones apart, which do not set the scale."""

    pieces: Any  # WholePieces
    special: list[int]  # the places of special tokens among the pieces

    @property
    def texts(self) -> list[str]:
        """The text of each piece."""
        return self.pieces.texts

    def limit(self, *relevance: Tensor) -> float | None:
        """The magnitude of full colour for relevance [..., pieces]: the largest among those not special, None if 0."""
        plain = [place for place in range(len(self.texts)) if place not in set(self.special)]
        return max((float(part[..., plain].abs().max()) for part in relevance if part[..., plain].numel()), default=0.0) or None

    def legend(self) -> str:
        """What is to be said about the scale: nothing where no token is special."""
        if not self.special:
            return ""
        return f"Special tokens such as {self.texts[self.special[0]]!r} do not set the scale, the other tokens do."

    def told(self, relevance: Tensor) -> list[dict[str, Any]]:
        """For `--json`: the pieces, with the relevance [pieces] of each."""
        values = zip(*self.pieces, relevance.tolist(), strict=True)
        return [{"text": text, "tokens": size, "relevance": value} for text, size, value in values]


def shown_tokens(tokenizer: Any, tokens: list[int]) -> Shown:
    """How tokens are shown."""
    from lutetia.integrations.transformers import special_places, whole_pieces

    pieces = whole_pieces(tokenizer, tokens)
    return Shown(pieces, special_places(tokenizer, tokens, pieces.sizes))


def quoted(text: str, token: int) -> str:
    """A token in words: a part of a character cannot be written."""
    return f"a part of a character (token {token})" if BROKEN in text else repr(text) if text else f"token {token}"


def rows_of(shown: Shown, found: Any) -> dict[str, Tensor]:
    """The relevance of the pieces of a text, in the input and in the layers."""
    layers = {f"layer {number}": shown.pieces.summed(row) for number, row in enumerate(found.layers)}
    return {"input": shown.pieces.summed(found.relevance), **layers}


def show_legend(shown: Shown) -> None:
    """What is to be said about the scale, if anything."""
    if shown.special:
        console().print(Text(shown.legend()), soft_wrap=True)


class HfRequest(NamedTuple):
    """What was asked for: the options of the command."""

    rule: str
    target: str | None
    against: str | None
    answer: int | None
    chat: bool
    check: bool
    html: Path | None
    png: Path | None
    steps: int | None = None  # of integrated gradients
    baseline: str | None = None  # of integrated gradients, the mean where None; of Shapley values
    texts: Path | None = None  # a file of texts, each of which is explained
    column: str | None = None  # of that file
    other: str | None = None  # a text that INPUT is compared with
    pairs: bool = False  # whether pairs of their tokens are wanted
    samples: int | None = None  # of Shapley values


def prompt_of(text: str, is_chat: bool, tokenizer: Any) -> Any:
    """A text as the model is given it: as it is, or as a message in the chat template."""
    if is_chat and tokenizer.chat_template is None:
        raise UsageError("--chat is given, and the tokenizer of this model has no chat template: leave --chat out")
    return [{"role": "user", "content": text}] if is_chat and text else text


def rules_of(request: HfRequest, reader: Any) -> Any:
    """The rules that were asked for, or the word for gradients. `reader`: a tokenizer, which knows special tokens by name."""
    from lutetia.integrations.transformers import IntegratedGradients, ShapleyValues

    if request.rule == "shapley":
        given = None if request.baseline is None else _baseline(request.baseline, reader, ("none",))
        return ShapleyValues(request.samples or SAMPLES, given)
    if request.rule == "integrated":
        return IntegratedGradients(
            request.steps or STEPS, baseline=_baseline(request.baseline or "mean", reader, ("mean", "zero"))
        )
    return PRESETS[request.rule]() if request.rule in PRESETS else request.rule


def _baseline(given: str, tokenizer: Any, words: tuple[str, ...]) -> str | int:
    """A baseline as it was typed: one of these words, the name of a special token, or # and the number of a token."""
    if given in words:
        return given
    if given.startswith("#") and given[1:].isdecimal() and len(given) <= 10:
        number = int(given[1:])
        if number >= len(tokenizer):
            raise UsageError(f"--baseline is {given}, expected # and a number below {len(tokenizer):,}, the tokens of the model")
        return number
    names = [name for name in SPECIAL if getattr(tokenizer, f"{name}_token_id", None) is not None]
    if given not in names:
        raise UsageError(f"--baseline is {given!r}, expected {', '.join([*words, *names])}, or # and the number of a token")
    return getattr(tokenizer, f"{given}_token_id")


def about(request: HfRequest, pixels: bool = False) -> str:
    """What a page says of the rule."""
    if request.rule == "shapley":
        return (
            "Shapley values: what a word adds to the score, averaged over the orders in which words join the text. "
            "Each token of a word shows an equal share."
        )
    if request.rule != "integrated":
        return RULES[request.rule].about
    start = BASELINES.get(request.baseline or "mean", f"the token {request.baseline}")
    where = "0 for every pixel" if pixels else f"{start}, in place of every token"
    return (
        f"Integrated gradients: the mean slope on the way from a baseline to this input, times the way. The baseline is {where}."
    )


def rule_told(request: HfRequest) -> dict[str, Any]:
    """The rule for `--json`, with what belongs to it."""
    if request.rule == "shapley":
        return {"rule": request.rule, "samples": request.samples or SAMPLES, "baseline": request.baseline}
    if request.rule != "integrated":
        return {"rule": request.rule}
    return {"rule": request.rule, "steps": request.steps or STEPS, "baseline": request.baseline or "mean"}


def runs_told(request: HfRequest, found: Any) -> dict[str, Any]:
    """What Shapley values cost, for `--json`."""
    return {"runs": found.runs, "exact": found.exact} if request.rule == "shapley" else {}


def left_out(model: Any, tokenizer: Any, found: Any, request: HfRequest) -> dict[str, Any] | None:
    """How far the decision falls without some tokens, where that was asked for."""
    from lutetia.integrations.transformers import leave_out

    return leave_out(model, tokenizer, found)._asdict() if request.check else None


def apart(told: dict[str, Any]) -> str:
    """What the tokens did not get."""
    elsewhere = f", {told['elsewhere']:.3g} to positions" if abs(told["elsewhere"]) > 1e-3 * abs(told["explained"]) else ""
    if told["rule"] == "integrated":
        return f"{told['absorbed']:.3g} of it at the baseline; the {told['steps']} steps miss {told['gap']:.3g}"
    if told["rule"] == "shapley":
        how = "exact" if told["exact"] else f"{told['samples']} orders drawn"
        return f"{told['absorbed']:.3g} of it without any words; the model read {told['runs']:,} texts, {how}"
    if told["rule"] not in PRESETS:
        return f"of which gradients miss {told['absorbed']:.3g}"
    return f"{told['absorbed']:.3g} of it due to biases and other constants{elsewhere}"


def show_left_out(told: dict[str, Any]) -> None:
    """How far the decision falls without the tokens that are said to matter."""
    left = told["left_out"]
    if left is None:
        return
    tokens = f"the {left['n_left_out']} most relevant of {left['n_tokens']} tokens"
    most, random, least = (f"{-left[which]:+.3g}" for which in ("most", "random", "least"))
    without = f"without {tokens} the log-probability changes by {most}"
    others = f"without as many at random by {random}, without the least relevant by {least}"
    console().print(Text(f"check: {without}; {others}"), soft_wrap=True)


def write_token_page(path: Path, title: str, shown: Shown, rows: dict[str, Tensor], found: Any, about: str) -> None:
    """The tokens, then the layers below them, then layers by heads; `rows` are those of `rows_of`.

    A table of many tokens would be larger than its picture.
    """
    first, *layers = rows.values()
    parts = [pictures.token_strip(shown.texts, first, f"{about} {shown.legend()}", shown.limit(first))]
    caption = "Layers downwards, tokens across: what leaves each layer."
    if layers:
        if len(shown.texts) <= MOST_COLUMNS:
            parts.append(layer_pictures.layer_strips(shown.texts, rows, caption, shown.limit(*rows.values())))
        else:
            parts.append(pictures.heat_map_html(torch.stack(layers), caption, shown.limit(*layers)))
    if getattr(found, "heads", None) is not None and found.heads.numel():
        parts.append(pictures.heat_map_html(found.heads, "Layers downwards, attention heads across: what each head contributed."))
    pictures.page(*parts, title=title, path=path)


def told_of(model: Any, request: HfRequest, found: Any) -> dict[str, Any]:
    """How `--json` begins: the model, the rule, and the tokens of what was explained."""
    named = {"kind": "transformers", "model": model.config.model_type, **rule_told(request), **runs_told(request, found)}
    return {**named, "tokens": found.tokens, "pieces": found.pieces}
