"""`lutetia explain --hf`: why a model of `transformers` says this token or class and not that one, and what made its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text
from torch import Tensor

from lutetia.cli.explain_hf_answers import explain_hf_answer
from lutetia.cli.explain_hf_classes import explain_hf_image, explain_hf_text
from lutetia.cli.explain_hf_similarity import explain_hf_similarity
from lutetia.cli.explain_hf_texts import explain_hf_texts
from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.hf_shared import (
    RULES_OF_HF,
    HfRequest,
    Shown,
    about,
    apart,
    left_out,
    prompt_of,
    quoted,
    rows_of,
    rules_of,
    show_left_out,
    show_legend,
    shown_tokens,
    told_of,
    write_token_page,
)
from lutetia.cli.inputs import exists
from lutetia.cli.outputs import check_output
from lutetia.cli.pictures import bars, token_strip
from lutetia.cli.show import console, one_line
from lutetia.errors import require
from lutetia.files import read_bytes
from lutetia.relevance import layer_pictures
from lutetia.training import is_table

DEFAULT_RULE_OF_HF = "attnlrp"
HEADS_SHOWN = 5
MOST_STEPS = 10_000
ANSWER_OF = 20  # tokens of an answer where no number is given


def explain_hf(folder: Path, given: str | None, request: HfRequest, show: bool) -> dict[str, Any]:
    """Explain what a model gives for an input, or for each text of a file, and with `show` draw it in the terminal.

    Returns what `--json` prints.
    """
    if (given is None) == (request.texts is None):
        raise UsageError("expected one of the two: INPUT, or --texts and a file of them")
    if request.column is not None and request.texts is None:
        raise UsageError("--column is a column of the file of --texts")
    if request.pairs and request.other is None:
        raise UsageError("--pairs goes with --with: pairs of the tokens of two texts")
    if request.rule not in RULES_OF_HF:
        raise UsageError(f"there is no rule {request.rule!r} with --hf: {did_you_mean(request.rule, RULES_OF_HF)}")
    _check_options_of_rules(request)
    inputs = [str(request.texts) if given is None else given]
    check_output("--html", request.html, (".html", ".htm"), inputs)
    check_output("--png", request.png, (".png",), inputs)
    require("transformers", "lutetia explain --hf")
    from lutetia.integrations.transformers import load_model, loading

    task, model, reader = load_model(folder)
    writes = task in (loading.NEXT_TOKEN, loading.ANSWER)
    if task == loading.ANSWER and request.answer is None:
        request = request._replace(answer=ANSWER_OF)
    _check_options(task, writes, request)
    if given is None:
        told = explain_hf_texts(model, reader, request, show)
    elif task == loading.IMAGE_CLASS:
        told = explain_hf_image(model, reader, Path(given), request, show)
    else:
        text = _text(given)
        if request.other is not None:
            told = explain_hf_similarity(model, reader, (text, _text(request.other)), request, show)
        elif request.answer is not None:
            told = explain_hf_answer(model, reader, text, request, show)
        elif task == loading.TEXT_CLASS:
            _check_no_table(given)
            told = explain_hf_text(model, reader, text, request, show)
        else:
            told = _token(model, reader, text, request, show)
    for kind, path in (("page", request.html), ("picture", request.png)):
        if show and path is not None:
            console().print(Text(f"{kind} {one_line(str(path))}"), soft_wrap=True)
    return told


def _check_options_of_rules(request: HfRequest) -> None:
    """Refuse options that a rule has no use for."""
    of_rules = (
        ("--steps", request.steps, ("integrated",)),
        ("--samples", request.samples, ("shapley",)),
        ("--baseline", request.baseline, ("integrated", "shapley")),
    )
    for option, value, rules in of_rules:
        if value is not None and request.rule not in rules:
            raise UsageError(f"{option} is for --rule {' or '.join(rules)}, and the rule is {request.rule}")
    for option, number in (("--steps", request.steps), ("--samples", request.samples)):
        if number is not None and not 1 <= number <= MOST_STEPS:
            raise UsageError(f"{option} is {number}, expected 1 to {MOST_STEPS:,}")


def _check_options(task: str, writes: bool, request: HfRequest) -> None:
    """Refuse options that a model has no use for."""
    from lutetia.integrations.transformers import with_article

    if request.other is not None and task != "embedding":
        raise UsageError(f"--with is for encoders of texts, and this model gives {with_article(task)}")
    if task == "embedding":
        _check_options_of_encoder(request)
    if request.rule == "shapley" and (request.answer is not None or task in ("embedding", "image class")):
        raise UsageError(
            "--rule shapley is for a token or a class that a text leads to, and not for answers, images or two texts"
        )
    if request.texts is not None:
        if task != "text class":
            raise UsageError(f"--texts is for classifiers of texts, and this model gives {with_article(task)}")
        for option, wanted in (("--png", request.png is not None), ("--check", request.check)):
            if wanted:
                raise UsageError(f"{option} is for one text: leave out --texts, or {option}")
    for option, value in (("--answer", request.answer is not None), ("--chat", request.chat)):
        if value and not writes:
            raise UsageError(f"{option} is for models that write text, and this one gives {with_article(task)}")
    if request.check and task == "image class":
        raise UsageError("--check leaves out tokens, and this model reads images")
    if request.baseline is not None and task == "image class":
        raise UsageError("--baseline is for tokens, and this model reads images: pixels begin at 0")
    if request.answer is not None:
        for option, given in (("--target", request.target), ("--against", request.against)):
            if given is not None:
                raise UsageError(f"{option} is for one token: leave out --answer, or {option}")
        if not 1 <= request.answer <= 1000:
            raise UsageError(f"--answer is {request.answer}, expected 1 to 1,000 tokens")


def _check_options_of_encoder(request: HfRequest) -> None:
    """Two texts are compared: nothing is chosen or left out."""
    if request.other is None:
        raise UsageError('this model gives an embedding: --with "ANOTHER TEXT" explains what makes two texts alike')
    for option, wanted in (
        ("--texts", request.texts is not None),
        ("--target", request.target is not None),
        ("--against", request.against is not None),
        ("--check", request.check),
        ("--png", request.png is not None),
    ):
        if wanted:
            raise UsageError(f"{option} does not go with --with, which compares two texts")


def _check_no_table(given: str) -> None:
    """Refuse a table where one text was expected: it would be read as one text, commas and all."""
    path = Path(given)
    if given.strip() and exists(path) and path.is_file() and is_table(path):
        raise UsageError(f"{given} is a table, expected a text: --texts {given} explains each of its rows")


def _text(given: str) -> str:
    """The input as text: of the file of that name, or as it was typed."""
    is_file = bool(given) and exists(Path(given)) and Path(given).is_file()
    return read_bytes(Path(given), "a file of text").decode("utf-8", "replace") if is_file else given


def _token(model: Any, tokenizer: Any, text: str, request: HfRequest, show: bool) -> dict[str, Any]:
    """The next token of a text, or the one in place of its mask."""
    from lutetia.integrations.transformers import explain_masked_token, explain_next_token

    masked = type(model).__name__.endswith("ForMaskedLM")
    target, rival = (_number(name, told) for name, told in (("--target", request.target), ("--against", request.against)))
    prompt = prompt_of(text, request.chat, tokenizer)
    explain = explain_masked_token if masked else explain_next_token
    found = explain(model, tokenizer, prompt, target, rival, rules_of(request, tokenizer))
    chances = found.logits.double().softmax(0)
    names = {token: tokenizer.decode([token]) for token in (found.prediction, found.target, found.against)}
    told = {
        **told_of(model, request, found),
        "prediction": found.prediction,
        "prediction_text": names[found.prediction],
        "probability": float(chances[found.prediction]),
        "target": found.target,
        "target_text": names[found.target],
        "against": found.against,
        "against_text": names[found.against],
        "explained": found.explained,
        "absorbed": found.absorbed,
        "elsewhere": found.elsewhere,
        "gap": found.gap,
        "relevance": found.relevance.tolist(),
        "layers": found.layers.tolist(),
        "heads": found.heads.tolist(),
        "left_out": left_out(model, tokenizer, found, request),
    }
    said = {token: quoted(text, token) for token, text in names.items()}
    title = f"Why {said[found.target]} and not {said[found.against]}"
    shown = shown_tokens(tokenizer, found.tokens)
    rows = rows_of(shown, found)
    told["shown"] = shown.told(rows["input"])
    if request.html is not None:
        write_token_page(request.html, title, shown, rows, found, about(request))
    if request.png is not None:
        layer_pictures.layer_picture(shown.texts, rows, path=request.png, title=title, limit=shown.limit(*rows.values()))
    if show:
        _show(told, shown, rows, said, "in the mask" if masked else "next")
    return told


def _number(name: str, text: str | None) -> int | str | None:
    """A token as it was typed: #123 is a number of the vocabulary."""
    if text is None or not text.startswith("#") or text == "#":
        return text
    if not text[1:].isdecimal() or len(text) > 10:
        raise UsageError(f"{name} is {text!r}, expected the text of one token, or # and its number")
    return int(text[1:])


def _show(told: dict[str, Any], shown: Shown, rows: dict[str, Tensor], names: dict[int, str], where: str) -> None:
    """The tokens, with the layers below if they fit in the terminal; the heads that contributed most; and the numbers."""
    screen = console()
    below = layer_pictures.layer_text(shown.texts, rows, shown.limit(*rows.values()))
    if screen.color_system and max(map(len, below.plain.splitlines())) <= screen.width:
        screen.print(below)
    else:
        values = rows["input"]
        strip = token_strip(screen, shown.texts, values.tolist(), shown.special, shown.limit(values))
        screen.print(strip, end="", soft_wrap=True)
    show_legend(shown)
    heads = {f"layer {layer} head {head}": value for layer, row in enumerate(told["heads"]) for head, value in enumerate(row)}
    if heads:
        screen.print(bars(screen, list(heads), list(heads.values()), HEADS_SHOWN), end="", soft_wrap=True)
    said = f"{where} comes {names[told['prediction']]} ({told['probability']:.1%})"
    compared = f"{names[told['target']]} {told['explained']:.4g} above {names[told['against']]}"
    screen.print(Text(f"{said}; shown: what put {compared}, {apart(told)} (rule {told['rule']})"), soft_wrap=True)
    show_left_out(told)
