"""`lutetia evaluate-explanations`: which rule explains a model faithfully, by deletion and insertion on the user's own data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.cli.guard import UsageError, did_you_mean
from lutetia.cli.inputs import load_for_inputs, read_inputs, read_tokens
from lutetia.cli.one_target import only_one
from lutetia.cli.outputs import check_output
from lutetia.cli.show import console
from lutetia.models import Classifier, LUTTransformer, Tabular, VotesClassifier, as_floats, chances
from lutetia.relevance import RANDOM_METHOD, Faithfulness, Method, measure, random_order
from lutetia.report import BLANK_BYTE, RULES, SHAPLEY, attribute_class, attribute_token

DEFAULT_RULES = ("decisive", "epsilon", "gamma", "zplus", "gradient")
PIECE = 32  # bytes of one piece of text


class FaithfulnessRequest(NamedTuple):
    """What was asked for: the options of the command."""

    rules: tuple[str, ...]
    most: int
    steps: int
    png: Path | None
    unknown: str | None = None


def evaluate_explanations(checkpoint: Path, given: Sequence[str], request: FaithfulnessRequest, show: bool) -> dict[str, Any]:
    """Measure every rule, and with `show` print the table. Returns what `--json` prints."""
    if not given:
        raise UsageError("evaluate-explanations got no INPUT, expected rows, files or text")
    for rule in request.rules:
        if rule not in RULES:
            raise UsageError(f"there is no rule {rule!r}: {did_you_mean(rule, RULES)}")
    if request.most < 1 or request.steps < 1:
        raise UsageError("--most and --steps are counts, expected 1 or more")
    check_output("--png", request.png, (".png",), given)
    model = only_one(load_for_inputs(checkpoint, request.unknown), "evaluate-explanations")
    if isinstance(model, Tabular) and model.is_regression:
        raise UsageError("evaluate-explanations measures the probability of a class, but this model predicts a number")
    background = None
    if SHAPLEY in request.rules:
        from lutetia.cli.build_data import training_rows  # loads what trains

        background = training_rows(checkpoint, None, model)
    result = _text(model, given, request) if isinstance(model, LUTTransformer) else _classes(model, given, request, background)
    if request.png is not None:
        result.picture(request.png)
    if show:
        console().print(result)
    return {"kind": model.kind, **result.as_dict()}


def _rules(model: object, request: FaithfulnessRequest) -> tuple[str, ...]:
    counted = isinstance(model, VotesClassifier) or (isinstance(model, Tabular) and model.config.core == "gates")
    return request.rules or (("occlusion",) if counted else DEFAULT_RULES)


def _classes(model: Classifier, given: Sequence[str], request: FaithfulnessRequest, background: Tensor | None) -> Faithfulness:
    x = torch.cat([as_floats(model, inputs.x) for inputs in read_inputs(model, given)])[: request.most]

    def method(rule: str) -> Method:
        return lambda x, decisions: torch.stack(
            [attribute_class(model, row, int(each), rule, background).relevance for row, each in zip(x, decisions, strict=True)]
        )

    return _measure(model, x, method, request, lambda batch: model(batch), None)


def _text(model: LUTTransformer, given: Sequence[str], request: FaithfulnessRequest) -> Faithfulness:
    """Text in pieces of equal length, each explained by the byte that the model expects next."""
    tokens = torch.cat([read_tokens(model, each) for each in given])
    size = min(PIECE, model.config.context, len(tokens))
    x = tokens[: len(tokens) // size * size].view(-1, size)[: request.most]

    def method(rule: str) -> Method:
        return lambda x, decisions: torch.stack(
            [attribute_token(model, row, int(each), rule).relevance for row, each in zip(x, decisions, strict=True)]
        )

    return _measure(model, x, method, request, lambda batch: model(batch)[:, -1], BLANK_BYTE)


def _measure(
    model: Any, x: Tensor, method: Any, request: FaithfulnessRequest, scores: Any, baseline: float | None
) -> Faithfulness:
    def predict(batch: Tensor) -> Tensor:
        with torch.no_grad():
            return chances(model, scores(batch))

    methods = {rule: method(rule) for rule in _rules(model, request)}
    return measure(predict, x, {**methods, RANDOM_METHOD: lambda x, decisions: random_order(x)}, baseline, request.steps)
