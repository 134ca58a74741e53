"""`lutetia explain --hf` for classifiers: the class of a text, or of an image."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from rich.text import Text

from lutetia._shared.markup import Html, tag
from lutetia.cli import hf_shared
from lutetia.cli.guard import UsageError
from lutetia.cli.pictures import heat_map, token_strip
from lutetia.cli.show import console, one_line
from lutetia.relevance import layer_pictures, pictures
from lutetia.training import read_pixels

WIDEST = 60  # pixels across that a terminal shows
LARGEST = 50_000_000  # pixels of an image


def explain_hf_text(model: Any, tokenizer: Any, text: str, request: hf_shared.HfRequest, show: bool) -> dict[str, Any]:
    """The class of a text."""
    from lutetia.integrations.transformers import explain_text_class, is_number

    if request.check and is_number(model):
        raise UsageError("--check measures how far a probability falls, and this model predicts a number, which has none")
    found = explain_text_class(model, tokenizer, text, request.target, request.against, hf_shared.rules_of(request, tokenizer))
    told = {**_told(model, found, request), "tokens": found.tokens, "pieces": found.pieces, "layers": found.layers.tolist()}
    told["left_out"] = hf_shared.left_out(model, tokenizer, found, request)
    shown = hf_shared.shown_tokens(tokenizer, found.tokens)
    rows = hf_shared.rows_of(shown, found)
    told["shown"] = shown.told(rows["input"])
    if request.html is not None:
        hf_shared.write_token_page(request.html, _title(told), shown, rows, found, hf_shared.about(request))
    if request.png is not None:
        limit = shown.limit(*rows.values())
        layer_pictures.layer_picture(shown.texts, rows, path=request.png, title=_title(told), limit=limit)
    if show:
        screen, values = console(), rows["input"]
        strip = token_strip(screen, shown.texts, values.tolist(), shown.special, shown.limit(values))
        screen.print(strip, end="", soft_wrap=True)
        hf_shared.show_legend(shown)
        _show_end(told)
        hf_shared.show_left_out(told)
    return told


def explain_hf_image(model: Any, processor: Any, path: Path, request: hf_shared.HfRequest, show: bool) -> dict[str, Any]:
    """The class of an image."""
    from lutetia.integrations.transformers import explain_image_class

    channels = getattr(model.config, "num_channels", 3)
    pixels = read_pixels(path, "L" if channels == 1 else "RGB", _check_size)
    found = explain_image_class(model, processor, pixels, request.target, request.against, hf_shared.rules_of(request, processor))
    told = _told(model, found, request)
    if request.rule == "integrated":
        told["baseline"] = "zero"
    if request.html is not None or request.png is not None:
        picture = pictures.heat_map(found.relevance, found.pixels, path=request.png, title=_title(told))
        if request.html is not None:
            shown = tag("img", alt="the image, and the relevance of its pixels", src=_data(picture), style="max-width:100%")
            figure = tag("figure", shown, tag("figcaption", hf_shared.about(request, pixels=True)))
            pictures.page(Html(figure), title=_title(told), path=request.html)
    if show:
        screen = console()
        step = max(1, -(-found.relevance.shape[1] // min(WIDEST, screen.width // 2)))
        small = _summed(found.relevance, step)
        screen.print(heat_map(screen, small.flatten().tolist(), *small.shape), end="", soft_wrap=True)
        _show_end(told)
    return told


def _check_size(width: int, height: int) -> None:
    from lutetia.errors import DataError

    if width * height > LARGEST:
        raise DataError(f"the image has {width * height:,} pixels, expected {LARGEST:,} at most")


def _summed(relevance: Any, step: int) -> Any:
    """Relevance [H, W] of squares of pixels, which add up."""
    height, width = (size // step * step for size in relevance.shape)
    return relevance[:height, :width].unflatten(1, (-1, step)).unflatten(0, (-1, step)).sum((1, 3))


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _told(model: Any, found: Any, request: hf_shared.HfRequest) -> dict[str, Any]:
    return {
        "kind": "transformers",
        "model": model.config.model_type,
        **hf_shared.rule_told(request),
        **hf_shared.runs_told(request, found),
        "classes": found.names,
        "scores": found.logits.tolist(),
        "prediction": found.prediction,
        "prediction_name": found.names[found.prediction],
        "probability": None if found.is_number else float(found.probabilities[found.prediction]),
        "target": found.target,
        "target_name": found.names[found.target],
        "against": found.against,
        "against_name": None if found.against is None else found.names[found.against],
        "explained": found.explained,
        "absorbed": found.absorbed,
        "elsewhere": found.elsewhere,
        "gap": found.gap,
        "relevance": found.relevance.tolist(),
    }


def _title(told: dict[str, Any]) -> str:
    rival = "" if told["against_name"] is None else f" and not {one_line(told['against_name'])}"
    return f"Why {one_line(told['target_name'])}{rival}"


def _show_end(told: dict[str, Any]) -> None:
    name = one_line(told["prediction_name"])
    chance, number = told["probability"], told["scores"][told["prediction"]]
    said = f"predicted {number:.4g} for {name}" if chance is None else f"predicted {name} ({chance:.1%})"
    above = "" if told["against_name"] is None else f" above {one_line(told['against_name'])}"
    compared = (
        f"what put {one_line(told['target_name'])} {told['explained']:.4g}{above}"
        if above
        else (f"what made the score of {one_line(told['target_name'])}, {told['explained']:.4g}")
    )
    console().print(Text(f"{said}; shown: {compared}, {hf_shared.apart(told)} (rule {told['rule']})"), soft_wrap=True)
