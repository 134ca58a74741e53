"""`lutetia explain`: which pixels, features or bytes made an output, in the terminal, as a picture, a page or JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.text import Text

from lutetia._shared.markup import tag
from lutetia._shared.numbers import short_number, whole_number, with_unit
from lutetia.cli.backend import forward_work, kernels_for
from lutetia.cli.explain_texts import by_column, column_lines_of, show_texts, texts_of
from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.inputs import NamedInputs, column_titles, exists, load_for_inputs, read_sample, read_tokens, unknown_warnings
from lutetia.cli.naming import class_names, class_title, feature_names, find_class, range_warnings
from lutetia.cli.one_target import one_output
from lutetia.cli.outputs import check_output
from lutetia.cli.pictures import bars, heat_map, token_strip
from lutetia.cli.show import console, one_line, print_warning
from lutetia.errors import require
from lutetia.files import write_atomically
from lutetia.models import (
    UNUSUAL_CLASSES,
    Classifier,
    LUTClassifier,
    LUTTransformer,
    Tabular,
    VotesClassifier,
    as_floats,
    best_class,
    chances,
    finds_unusual,
    rarity,
)
from lutetia.relevance import pictures
from lutetia.report import (
    DEFAULT_RULE,
    RULES,
    SHAPLEY,
    Comparison,
    MarkedText,
    attribute_class,
    attribute_token,
    compared_inputs,
    deciding_detectors,
    decisions_by_columns,
    first_tables,
    lead_over_rivals,
    reason_bars,
    token_names,
)

TABLES_SHOWN = 3  # whose comparisons with thresholds are named
COMPARISONS_SHOWN = 5  # of a model of columns
NEGLIGIBLE = 1e-3  # of what is explained
WIDEST = 60  # pixels across that a terminal shows; larger images are averaged
FORWARD_PASSES = 8  # what a rule costs at most, as forward passes


class ExplainRequest(NamedTuple):
    """What was asked for: the options of the command."""

    rule: str
    target: str | None
    row: int | None
    html: Path | None
    png: Path | None
    unknown: str | None = None
    data: Path | None = None  # where the rows are that rule shapley compares with
    background: torch.Tensor | None = None  # these rows
    output: str | None = None  # of several targets, the one to explain


def explain(checkpoint: Path, given: str, request: ExplainRequest, show: bool) -> dict[str, Any]:
    """Explain one output, and with `show` draw it in the terminal. Returns what `--json` prints."""
    if request.rule not in RULES:
        raise UsageError(f"there is no rule {request.rule!r}: {did_you_mean(request.rule, RULES)}")
    check_output("--html", request.html, (".html", ".htm"))
    check_output("--png", request.png, (".png",), [given])
    model = one_output(load_for_inputs(checkpoint, request.unknown), request.output, "explain")
    if request.rule == SHAPLEY:
        from lutetia.cli.build_data import training_rows  # loads what trains

        request = request._replace(background=training_rows(checkpoint, request.data, model))
    elif request.data is not None:
        raise UsageError("--data names the rows that --rule shapley compares with, and no other rule compares")
    if isinstance(model, VotesClassifier) or (isinstance(model, Tabular) and model.config.core == "gates"):
        request = _by_occlusion(request)
    if isinstance(model, Classifier):
        sample = read_sample(model, given, request.row)
        work = forward_work(model, _passes(request, sample.x.numel()))
        kind = next((name for key, name in {"windows": "window", "forecast": "forecast"}.items() if key in model.metadata), None)
        window = {} if kind is None else {kind: sample.names[0]}
        if show and window:
            console().print(Text(one_line(sample.names[0])), soft_wrap=True)
        with kernels_for(model, work) as backend:
            told = {**_classifier(model, given, sample, request, show), **window, "backend": backend}
        _show_files(request, show)
        return told
    assert isinstance(model, LUTTransformer)
    if request.row is not None:
        raise UsageError("--row works only for classifiers; this is a language model: give it text")
    tokens = read_tokens(model, given)
    work = forward_work(model, _passes(request, len(tokens)), len(tokens))
    with kernels_for(model, work) as backend:
        told = {**_transformer(model, tokens, request, show), "backend": backend}
    _show_files(request, show)
    return told


def _show_files(request: ExplainRequest, show: bool) -> None:
    """Name the page and the picture that were written."""
    for kind, path in (("page", request.html), ("picture", request.png)):
        if show and path is not None:
            console().print(Text(f"{kind} {one_line(str(path))}"), soft_wrap=True)


def _passes(request: ExplainRequest, n_inputs: int) -> int:
    """Roughly how many inputs the model is run on: occlusion blanks each input in turn, and a page shows occlusion, too."""
    return FORWARD_PASSES + (n_inputs if request.rule == "occlusion" or request.html is not None else 0)


def _by_occlusion(request: ExplainRequest) -> ExplainRequest:
    """Explain votes by occlusion: relevance cannot flow through a count, but the votes lost without an input are exact."""
    if request.rule not in (DEFAULT_RULE, "occlusion"):
        raise UsageError(f"--rule is {request.rule}, expected occlusion: votes of tables are counted, not added up from inputs")
    return request._replace(rule="occlusion")


# ---- classifiers -----------------------------------------------------------------------------------------------------


def _classifier(model: Classifier, given: str, sample: NamedInputs, request: ExplainRequest, show: bool) -> dict[str, Any]:
    from lutetia import report

    x = as_floats(model, sample.x)[0]
    name = Path(given).name if exists(Path(given)) else "the input"
    warnings = range_warnings(model, x[None], [name]) + unknown_warnings(model, sample.columns or {})
    texts = texts_of(model, sample)
    if isinstance(model, Tabular) and model.is_regression:
        return _number(model, x, warnings, request, show, texts)
    with torch.no_grad():
        scores = model(x[None])[0]
    prediction = int(best_class(model, scores))
    is_unusual = finds_unusual(model.metadata)
    explained = UNUSUAL_CLASSES.index("unusual") if is_unusual else prediction
    target = explained if request.target is None else find_class(model, request.target)
    sure = chances(model, scores)
    runner_up = int(sure.topk(2).indices[1])
    found = attribute_class(model, x, target, request.rule, request.background)
    shown, marked = by_column(model, found.relevance, texts)
    told = {
        "kind": model.kind,
        "rule": request.rule,
        "prediction": prediction,
        "prediction_name": class_names(model)[prediction],
        "probability": float(sure[prediction]),
        "runner_up": runner_up,
        "runner_up_name": class_names(model)[runner_up],
        "runner_up_probability": float(sure[runner_up]),
        "target": target,
        "target_name": class_names(model)[target],
        "classes": class_names(model),
        "features": column_titles(model),
        "scores": scores.tolist(),
        **(_rarity(model, scores) if is_unusual else {}),
        "warnings": warnings,
        "explained": float(lead_over_rivals(scores, target)),
        "absorbed": found.absorbed,
        "relevance": shown.tolist(),
        **({"texts": [each._asdict() for each in marked]} if texts else {}),
        "tables": _tables(model, x, target),
        "comparisons": [each._asdict() for each in compared_inputs(model, x, scores, target)],
    }
    if request.html is not None:
        more = report.reasons.DEFAULT_RULES if isinstance(model, LUTClassifier) else ()
        rules = list(dict.fromkeys([request.rule, *more]))
        decided = report.decisions(model, x[None], rules=rules, target=target, background=request.background)
        if isinstance(model, Tabular) and (texts or "windows" in model.metadata):
            decided = decisions_by_columns(model, decided, texts)
        said = f"What in {name} spoke for {class_title(model, target)}, and what against it."
        strips = [each.strip(class_title(model, target), RULES[request.rule].about) for each in marked]
        story = report.Story(f"Read as {class_title(model, prediction)}", said, decided=decided, strips=strips)
        report.write(request.html, story)
    if request.png is not None:
        _png(request.png, model, x, shown, f"{class_title(model, target)}, {RULES[request.rule].title}")
    if show:
        _show_classifier(told, model, x, shown, column_lines_of(model, x, texts), marked)
    return told


def _number(
    model: Tabular,
    x: torch.Tensor,
    warnings: list[str],
    request: ExplainRequest,
    show: bool,
    texts: Mapping[str, str | None],
) -> dict[str, Any]:
    """What each column contributed to the number that a regression predicts."""
    if request.target is not None:
        raise UsageError("--target is for classifiers: a regression has one number to explain")
    with torch.no_grad():
        score = model(x[None])[:, 0]
    value = float(model.numbers(x[None])[0])
    found = attribute_class(model, x, 0, request.rule, request.background)
    shown, marked = by_column(model, found.relevance, texts)
    title = model.title or "the prediction"
    comparisons = compared_inputs(model, x, score, 0)
    told = {
        "kind": model.kind,
        "rule": request.rule,
        "target_name": title,
        "prediction": value,
        **({"logarithm": float(score[0])} if model.loss.is_log else {}),
        "features": column_titles(model),
        "warnings": warnings,
        "absorbed": found.absorbed,
        "relevance": shown.tolist(),
        **({"texts": [each._asdict() for each in marked]} if texts else {}),
        "comparisons": [each._asdict() for each in comparisons],
    }
    lines = column_lines_of(model, x.flatten(), texts)
    answer = f"{title} {with_unit(value, model.metadata.get('target_unit'))}"
    what = f"; its logarithm {short_number(float(score[0]), 6)}" if model.loss.is_log else ""
    if request.rule == SHAPLEY:
        what += f", on average {short_number(found.absorbed or 0.0, 6)}: the difference is"
    else:
        what += " is" if model.loss.is_log else ","
    if model.config.base is not None:
        begun = column_titles(model)[model.config.base]
        what = f"; what it is above {short_number(float(model.base(x[None])[0]), 6)}, {begun}, is"
    shared = f"{answer}{what} divided among the columns (rule {request.rule})"
    if request.html is not None:
        pieces = tag("p", shared), reason_bars(list(zip(lines, shown.tolist(), strict=True)), comparisons, marked)
        pictures.page(*pieces, title=answer, path=request.html)
    if request.png is not None:
        _png(request.png, model, x, shown, f"{title}, {RULES[request.rule].title}")
    if show:
        screen = console()
        for warning in warnings:
            print_warning(warning)
        screen.print(bars(screen, lines, shown.flatten().tolist()), end="", soft_wrap=True)
        show_texts(marked)
        _show_comparisons(told)
        screen.print(Text(one_line(shared)), soft_wrap=True)
    return told


def _show_classifier(
    told: dict[str, Any],
    model: Classifier,
    x: torch.Tensor,
    relevance: torch.Tensor,
    lines: Sequence[str],
    marked: list[MarkedText],
) -> None:
    screen = console()
    for warning in told["warnings"]:
        print_warning(warning)
    if x.dim() == 1:
        screen.print(bars(screen, lines, relevance.tolist()), end="", soft_wrap=True)
        show_texts(marked)
    else:
        widest = min(WIDEST, screen.width // 2)
        pixels, image = (_shrunk(each.reshape(-1, *x.shape[-2:]).sum(0), widest) for each in (relevance, x))
        height, width = pixels.shape
        screen.print(heat_map(screen, pixels.flatten().tolist(), height, width, _ink(image)), end="", soft_wrap=True)
    for table in told["tables"]:
        said = ", ".join(map(one_line, table["comparisons"]))
        screen.print(Text(f"table {table['number']} ({table['contribution']:+.3g}): {said}"), soft_wrap=True)
    _show_comparisons(told)
    read, second = class_title(model, told["prediction"]), class_title(model, told["runner_up"])
    chances = f"{told['probability']:.1%}, then {second} {told['runner_up_probability']:.1%}"
    if "said" in told:
        screen.print(Text(f"{told['said']}; shown: what made it unusual (rule {told['rule']})"), soft_wrap=True)
        return
    _show_end(f"predicted {read} ({chances})", class_title(model, told["target"]), told)


def _rarity(model: Classifier, scores: torch.Tensor) -> dict[str, Any]:
    """How rare the score of a row is, and in words."""
    from lutetia.cli.predict_unusual import unusual_text

    score = float(scores[1].double() - scores[0].double())
    part = float(rarity(model.metadata, np.array([score]))[0])
    assert isinstance(model, Tabular)
    return {"score": score, "rarity": part, "said": unusual_text(model, score, part)}


def _show_comparisons(told: dict[str, Any]) -> None:
    """The comparisons that mattered most, and what the score would lose with the opposite answer."""
    for each in told["comparisons"][:COMPARISONS_SHOWN]:
        effect = short_number(each["effect"], 3, sign=True)
        console().print(Text(f"{effect} because {one_line(Comparison(**each).text)}"), soft_wrap=True)


def _tables(model: Classifier, x: torch.Tensor, target: int) -> list[dict[str, Any]]:
    """What the most important tables compared, most important first; only for classifiers of features with thresholds."""
    if not isinstance(model, LUTClassifier) or x.dim() != 1 or getattr(first_tables(model)[1], "thresholds", None) is None:
        return []
    names = feature_names(model) or [f"x{number}" for number in range(len(x))]
    return [
        {"number": each.number, "contribution": each.contribution, "comparisons": each.comparisons(names)}
        for each in deciding_detectors(model, x, target, TABLES_SHOWN)
    ]


def _ink(image: torch.Tensor) -> list[bool] | None:
    """Which pixels of an image [H, W] belong to what it shows, row by row; None for an image of one shade."""
    edge = pictures.edge_of(image.double().cpu().numpy())
    if edge is None:
        return None
    ground, level = edge
    return [(value > level) == (level > ground) for value in image.flatten().tolist()]


def _shrunk(pixels: torch.Tensor, widest: int) -> torch.Tensor:
    """A picture [H, W] that fits, by adding up neighbours."""
    size = max(1, math.ceil(max(pixels.shape) / max(1, widest)))
    if size == 1:
        return pixels
    down, right = (-(-n // size) * size - n for n in pixels.shape)
    padded = torch.nn.functional.pad(pixels, (0, right, 0, down))
    return padded.unflatten(0, (-1, size)).unflatten(-1, (-1, size)).sum((1, 3))


def _show_end(read: str, target: str, told: dict[str, Any]) -> None:
    explained, share = told["explained"], told["absorbed"] or 0.0
    due = "that of the average training row" if told["rule"] == SHAPLEY else "due to biases and other constants"
    absorbed = f", {share:.3g} of it {due}" if abs(share) > NEGLIGIBLE * abs(explained) else ""
    place = f"{abs(explained):.4g} {'below' if explained < 0 else 'above'} its rivals"
    line = f"{read}; shown: what put {target} {place}{absorbed} (rule {told['rule']})"
    console().print(Text(line), soft_wrap=True)


def _png(path: Path, model: Classifier, x: torch.Tensor, relevance: torch.Tensor, title: str) -> None:
    """The input and its heat map side by side; features as bars."""
    if x.dim() > 1:
        heat, image = (each.reshape(-1, *x.shape[-2:]) for each in (relevance, x))
        pictures.heat_map(heat, image if len(image) in (1, 3) else image.mean(0), path=path, title=title)
        return
    figure = require("matplotlib.figure", "--png", "matplotlib").Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    colours = ["#d1530c" if value >= 0 else "#2563c9" for value in relevance.tolist()]
    axes.bar(range(len(relevance)), relevance.tolist(), color=colours)
    axes.set(xlabel="feature", ylabel="relevance")
    names = column_titles(model)
    if names:
        axes.set_xticks(range(len(relevance)), names, rotation=60, ha="right", fontsize=8, parse_math=False)
    axes.set_title(title, parse_math=False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    with write_atomically(path) as file:
        figure.savefig(file, format="png", dpi=140)


# ---- language models -------------------------------------------------------------------------------------------------


def _transformer(model: LUTTransformer, tokens: torch.Tensor, request: ExplainRequest, show: bool) -> dict[str, Any]:
    from lutetia import report

    with torch.no_grad():
        scores = model(tokens[None])[0, -1]
    prediction = int(scores.argmax())
    chances = scores.double().softmax(0)
    runner_up = int(chances.topk(2).indices[1])
    target = prediction if request.target is None else _token(request.target, model.config.vocab)
    found = attribute_token(model, tokens, target, request.rule)
    names = token_names(bytes(tokens.tolist()))
    told = {
        "kind": model.kind,
        "rule": request.rule,
        "tokens": tokens.tolist(),
        "text": bytes(tokens.tolist()).decode("utf-8", "replace"),
        "prediction": prediction,
        "probability": float(chances[prediction]),
        "runner_up": runner_up,
        "runner_up_probability": float(chances[runner_up]),
        "target": target,
        "score": float(scores[target]),
        "explained": float(lead_over_rivals(scores, target)),
        "absorbed": found.absorbed,
        "relevance": found.relevance.tolist(),
    }
    if request.html is not None:
        next_name = _byte_name(target)
        row = {len(names): found.relevance.tolist()}
        strip = report.Strip(f"What spoke for {next_name}", [*names, *token_names_of(target)], row, RULES[request.rule].about)
        report.write(
            request.html,
            report.Story(
                f"Next comes {_byte_name(prediction)}", "What a language model expects after a text, and why.", strips=[strip]
            ),
        )
    if request.png is not None:
        _token_png(request.png, names, found.relevance.tolist(), f"{_byte_name(target)}, {RULES[request.rule].title}")
    if show:
        screen = console()
        screen.print(token_strip(screen, names, found.relevance.tolist()), end="", soft_wrap=True)
        shares = f"{told['probability']:.1%}, then {_byte_name(runner_up)} {told['runner_up_probability']:.1%}"
        _show_end(f"next comes {_byte_name(prediction)} ({shares})", _byte_name(target), told)
    return told


def _token(text: str, vocab: int) -> int:
    """A byte: one character, or the number of a token."""
    data = text.encode("utf-8", "surrogateescape")
    number = data[0] if len(data) == 1 else whole_number(text)
    if number is None or not 0 <= number < vocab:
        raise UsageError(f"--target is {text!r}, expected one character, or the number of a token from 10 to {vocab - 1}")
    return number


def token_names_of(token: int) -> list[str]:
    return token_names(bytes([token])) if token < 256 else [f"#{token}"]


def _byte_name(token: int) -> str:
    name = token_names_of(token)[0]
    return f'"{name if name.isprintable() else repr(name)[1:-1]}"'


def _token_png(path: Path, names: list[str], values: list[float], title: str) -> None:
    """Bars over the last bytes."""
    figure = require("matplotlib.figure", "--png", "matplotlib").Figure(figsize=(10, 3), layout="constrained")
    shown, heights = names[-80:], values[-80:]
    axes = figure.subplots()
    axes.bar(range(len(shown)), heights, color=["#d1530c" if value >= 0 else "#2563c9" for value in heights])
    # As plain text: a dollar sign would begin a formula.
    axes.set_xticks(range(len(shown)), [repr(name)[1:-1] for name in shown], fontsize=7, family="monospace", parse_math=False)
    axes.set_title(title, parse_math=False)
    axes.set_ylabel("relevance")
    _save(figure, path)
