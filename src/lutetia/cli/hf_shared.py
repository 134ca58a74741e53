"""What the explanations of models of `transformers` have in common: the request, what tokens did not get, the page of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text
from torch import Tensor

from lutetia.cli.show import console
from lutetia.relevance import layer_pictures, pictures
from lutetia.report import PRESETS

MOST_COLUMNS = 64  # tokens of a table on a page
RULES_OF_HF = (*PRESETS, "gradient")


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


def rules_of(request: HfRequest) -> Any:
    """The rules that were asked for, or the word for gradients."""
    return PRESETS[request.rule]() if request.rule in PRESETS else request.rule


def left_out(model: Any, tokenizer: Any, found: Any, request: HfRequest) -> dict[str, Any] | None:
    """How far the decision falls without some tokens, where that was asked for."""
    from lutetia.integrations.transformers import leave_out

    return leave_out(model, tokenizer, found)._asdict() if request.check else None


def apart(told: dict[str, Any]) -> str:
    """What the tokens did not get."""
    elsewhere = f", {told['elsewhere']:.3g} to positions" if abs(told["elsewhere"]) > 1e-3 * abs(told["explained"]) else ""
    if told["rule"] not in PRESETS:
        return f"of which gradients miss {told['absorbed']:.3g}"
    return f"{told['absorbed']:.3g} of it due to biases and other constants{elsewhere}"


def show_left_out(told: dict[str, Any]) -> None:
    """How far the decision falls without the tokens that are said to matter."""
    left = told["left_out"]
    if left is None:
        return
    tokens = f"the {left['n_left_out']} most relevant of {left['n_tokens']} tokens"
    without = f"without {tokens} the log-probability falls by {left['most']:.3g}"
    others = f"without as many at random by {left['random']:.3g}, without the least relevant by {left['least']:.3g}"
    console().print(Text(f"check: {without}; {others}"), soft_wrap=True)


def write_token_page(path: Path, title: str, rows: dict[str, Tensor], found: Any, about: str) -> None:
    """The tokens, then the layers below them, then layers by heads. A table of many tokens would be larger than its picture."""
    parts = [pictures.token_strip(found.pieces, found.relevance, about)]
    caption = "Layers downwards, tokens across: what leaves each layer."
    if len(found.layers):
        if len(found.pieces) <= MOST_COLUMNS:
            parts.append(layer_pictures.layer_strips(found.pieces, rows, caption))
        else:
            parts.append(pictures.heat_map_html(found.layers, caption))
    if getattr(found, "heads", None) is not None and found.heads.numel():
        parts.append(pictures.heat_map_html(found.heads, "Layers downwards, attention heads across: what each head contributed."))
    pictures.page(*parts, title=title, path=path)
