"""`lutetia explain --hf`: why a language model of `transformers` predicts this token and not that one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text
from torch import Tensor

from lutetia.cli.explain import ExplainRequest
from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.outputs import check_output
from lutetia.cli.pictures import bars, token_strip
from lutetia.cli.show import console
from lutetia.errors import require
from lutetia.relevance import layer_pictures, pictures
from lutetia.report import PRESETS, RULES

DEFAULT_RULE_OF_HF = "attnlrp"
HEADS_SHOWN = 5
MOST_COLUMNS = 64  # tokens of a table on a page


def explain_hf(folder: Path, prompt: str, request: ExplainRequest, against: str | None, show: bool) -> dict[str, Any]:
    """Explain the next token of a prompt, and with `show` draw it in the terminal. Returns what `--json` prints."""
    if request.rule not in PRESETS:
        raise UsageError(f"there is no rule {request.rule!r} with --hf: {did_you_mean(request.rule, PRESETS)}")
    if request.row is not None:
        raise UsageError("--row is not for language models of transformers")
    check_output("--html", request.html, (".html", ".htm"))
    check_output("--png", request.png, (".png",))
    require("transformers", "lutetia explain --hf")
    from lutetia.integrations.transformers import explain_next_token, load_decoder, register

    register()
    model, tokenizer = load_decoder(folder)
    target, rival = (_number(name, text) for name, text in (("--target", request.target), ("--against", against)))
    found = explain_next_token(model, tokenizer, prompt, target, rival, PRESETS[request.rule]())
    chances = found.logits.double().softmax(0)
    names = {token: tokenizer.decode([token]) for token in (found.prediction, found.target, found.against)}
    told = {
        "kind": "transformers",
        "model": model.config.model_type,
        "rule": request.rule,
        "tokens": found.tokens,
        "pieces": found.pieces,
        "prediction": found.prediction,
        "prediction_text": names[found.prediction],
        "probability": float(chances[found.prediction]),
        "target": found.target,
        "target_text": names[found.target],
        "against": found.against,
        "against_text": names[found.against],
        "explained": found.explained,
        "absorbed": found.absorbed,
        "relevance": found.relevance.tolist(),
        "layers": found.layers.tolist(),
        "heads": found.heads.tolist(),
    }
    title = f"Why {names[found.target]!r} and not {names[found.against]!r}"
    rows = {"input": found.relevance, **{f"layer {number}": row for number, row in enumerate(found.layers)}}
    if request.html is not None:
        _write_page(request.html, title, rows, found, RULES[request.rule].about)
    if request.png is not None:
        layer_pictures.layer_picture(found.pieces, rows, path=request.png, title=title)
    if show:
        _show(told, rows)
    return told


def _number(name: str, text: str | None) -> int | str | None:
    """A token as it was typed: #123 is a number of the vocabulary."""
    if text is None or not text.startswith("#") or text == "#":
        return text
    if not text[1:].isdecimal() or len(text) > 10:
        raise UsageError(f"{name} is {text!r}, expected the text of one token, or # and its number")
    return int(text[1:])


def _show(told: dict[str, Any], rows: dict[str, Tensor]) -> None:
    """The tokens, with the layers below if they fit in the terminal; the heads that contributed most; and the numbers."""
    screen = console()
    below = layer_pictures.layer_text(told["pieces"], rows)
    if screen.color_system and max(map(len, below.plain.splitlines())) <= screen.width:
        screen.print(below)
    else:
        screen.print(token_strip(screen, told["pieces"], told["relevance"]), end="", soft_wrap=True)
    heads = {f"layer {layer} head {head}": value for layer, row in enumerate(told["heads"]) for head, value in enumerate(row)}
    if heads:
        screen.print(bars(screen, list(heads), list(heads.values()), HEADS_SHOWN), end="", soft_wrap=True)
    said = f"next comes {told['prediction_text']!r} ({told['probability']:.1%})"
    compared = f"{told['target_text']!r} {told['explained']:.4g} above {told['against_text']!r}"
    absorbed = f"{told['absorbed']:.3g} of it due to biases and other constants"
    screen.print(Text(f"{said}; shown: what put {compared}, {absorbed} (rule {told['rule']})"), soft_wrap=True)


def _write_page(path: Path, title: str, rows: dict[str, Tensor], found: Any, about: str) -> None:
    """The tokens, then the layers below them, then layers by heads. A table of many tokens would be larger than its picture."""
    parts = [pictures.token_strip(found.pieces, found.relevance, about)]
    caption = "Layers downwards, tokens across: what leaves each layer."
    if len(found.layers):
        if len(found.pieces) <= MOST_COLUMNS:
            parts.append(layer_pictures.layer_strips(found.pieces, rows, caption))
        else:
            parts.append(pictures.heat_map_html(found.layers, caption))
    if found.heads.numel():
        parts.append(pictures.heat_map_html(found.heads, "Layers downwards, attention heads across: what each head contributed."))
    pictures.page(*parts, title=title, path=path)
