"""Why models decided, as values for the report: heat maps, detectors and token strips, computed from the models themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia._shared.dtypes import FLOATS
from lutetia._shared.numbers import with_unit
from lutetia.errors import ArgumentError, check_choice, check_range, check_tensor, fail
from lutetia.models import (
    Classifier,
    LUTClassifier,
    LUTTransformer,
    Tabular,
    adds_chances,
    as_floats,
    best_class,
    date_text,
    has_times,
)
from lutetia.nn import LUT
from lutetia.relevance import UnknownOperation
from lutetia.report.attribution import DEFAULT_RULE, RULES, attribute_class, attribute_token, contrast, lead_seed
from lutetia.report.comparisons import Comparison, Questions
from lutetia.report.marked import by_data_column, column_lines, column_names
from lutetia.report.story import Decision, Decisions, Detector, Strip

SHOWN_DETECTORS = 12
SHOWN_VALUES = 32  # of a row; of a longer row the most important ones
DEFAULT_RULES = (DEFAULT_RULE, "epsilon", "gradient", "occlusion")
NEAR = 3  # the bytes just before another one: they matter as a rule
EPS = 1e-6


def decisions(
    model: Classifier,
    x: Tensor,
    y: Tensor | None = None,
    *,
    rules: Sequence[str] = DEFAULT_RULES,
    target: int | None = None,
    labels: Sequence[str] = (),
    said: str = "",
    background: Tensor | None = None,
) -> Decisions:
    """Explain a few inputs of a classifier: x [B, *input_shape], floats or uint8; y [B], their classes, where they are known.

    `target` is the class that is explained, the predicted one by default. `labels` name the classes; by default the names that
    the checkpoint knows. Rule "shapley" compares with the rows `background` [m, columns].
    """
    check_tensor("x", x, ["B", *model.config.input_shape], (*FLOATS, torch.uint8))
    if y is not None:
        check_tensor("y", y, [len(x)])
    classes = [None] * len(x) if y is None else y.tolist()
    shared: dict[str, Any] = {"rules": rules, "target": target, "background": background}
    items = [decide(model, row, label=label, **shared) for row, label in zip(x, classes, strict=True)]
    return Decisions(
        tuple(model.config.input_shape),
        items,
        labels or class_names(model),
        said,
        {rule: RULES[rule].about for rule in rules},
        {rule: RULES[rule].title for rule in rules},
        feature_names(model),
        shares=adds_chances(model),
    )


def by_columns(model: Tabular, decided: Decisions, texts: Mapping[str, str | None]) -> Decisions:
    """Decisions by the columns of the data, where inputs are made of texts: those of one row, None for a missing one."""
    names = column_names(model, len(decided.features))
    items = [_by_column(model, item, texts) for item in decided.items]
    return replace(decided, shape=(len(names),), items=items, features=names)


def _by_column(model: Tabular, item: Decision, texts: Mapping[str, str | None]) -> Decision:
    heat = {rule: by_data_column(model, np.array(values)).tolist() for rule, values in item.heat.items()}
    values = by_data_column(model, np.nan_to_num(item.values))
    return replace(item, values=values.tolist(), heat=heat, texts=column_lines(model, item.texts, texts))


def class_names(model: Classifier) -> list[str]:
    """The names of the classes that the checkpoint knows; empty where it knows none."""
    return _names(model, "classes", model.config.n_classes)


def feature_names(model: Classifier) -> list[str]:
    """The names of the inputs that the checkpoint knows; empty where it knows none, or where the input is an image."""
    shape = model.config.input_shape
    return _names(model, "features", shape[0]) if len(shape) == 1 else []


def _names(model: nn.Module, kind: str, count: int) -> list[str]:
    names = (getattr(model, "metadata", None) or {}).get(kind) or ()
    return [str(name) for name in names] if len(names) == count else []


def decide(
    model: Classifier,
    x: Tensor,
    *,
    rules: Sequence[str] = DEFAULT_RULES,
    target: int | None = None,
    label: int | None = None,
    n_detectors: int = SHOWN_DETECTORS,
    background: Tensor | None = None,
) -> Decision:
    """Explain one input: x [*input_shape], floats or uint8. `target` is the class that is explained, the predicted one by
    default; the `n_detectors` most important of the first tables are shown."""
    if not isinstance(model, Classifier):
        fail("model", model, "a classifier of lutetia.models")
    check_tensor("x", x, model.config.input_shape, (*FLOATS, torch.uint8))
    for rule in rules:
        check_choice("rule", rule, tuple(RULES))
    x = as_floats(model, x)
    with as_in_use(model), torch.no_grad():
        scores = model(x[None])[0]
        prediction = int(best_class(model, scores))
        target = prediction if target is None else target
        check_range("target", target, 0, model.config.n_classes - 1)
    with as_in_use(model):
        heat = {rule: attribute_class(model, x, target, rule, background).relevance.flatten().tolist() for rule in rules}
        found = detectors(model, x, target, n_detectors) if isinstance(model, LUTClassifier) else []
    texts = input_texts(model, x) if x.dim() == 1 else []
    asked = compared(model, x, scores, target)[:n_detectors]
    return Decision(x.flatten().tolist(), prediction, scores.tolist(), heat, target, label, found, texts, asked)


def input_texts(model: Classifier, x: Tensor) -> list[str]:
    """Each input of a sample [n] with its value and unit, written as in the data."""
    names = feature_names(model) or [f"x{number}" for number in range(len(x))]
    metadata = getattr(model, "metadata", None) or {}
    categories, dates, units = (metadata.get(key, {}) for key in ("categories", "dates", "units"))

    def value(number: int, each: float) -> str:
        known = categories.get(str(number), ())
        if math.isnan(each):
            return "missing"
        if str(number) in dates:
            return date_text(each, has_times(metadata, number))
        return str(known[int(each)]) if 0 <= each < len(known) else with_unit(each, units.get(str(number)))

    return [f"{name} = {value(number, each)}" for number, (name, each) in enumerate(zip(names, x.tolist(), strict=True))]


def compared(model: Classifier, x: Tensor, scores: Tensor, target: int) -> list[Comparison]:
    """The comparisons in the tables of a model of columns that made a difference, the most effective first; empty for others."""
    if not isinstance(model, Tabular) or model.config.core != "tables" or x.dim() != 1:
        return []
    names = feature_names(model) or [f"x{number}" for number in range(len(x))]
    codes = model.encoding.codes(x[None].double().numpy())[:, 0]
    asked = Questions(model, names)(codes, contrast(scores, target).double().numpy())
    return [each for each in asked if each.effect]


class as_in_use:
    """Puts a model in evaluation mode, then restores its mode."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._was_training = model, model.training

    def __enter__(self) -> None:
        self._model.eval()

    def __exit__(self, *error: Any) -> None:
        self._model.train(self._was_training)


# ---- detectors -------------------------------------------------------------------------------------------------------


def detectors(model: LUTClassifier, x: Tensor, target: int, most: int) -> list[Detector]:
    """The most important detectors that read the input itself: x [*input_shape]. Empty if the first layer is no plain table."""
    name, layer = first_tables(model)
    if layer is None or layer.read != "hard" or not most:
        return []
    batch = x[None]
    with torch.no_grad():
        seed = lead_seed(model(batch), target)
    try:
        result = relevance.attribute(model, batch, target=seed, wrt=[name])
    except UnknownOperation:
        return []
    given = batch.flatten(1)[0]
    with torch.no_grad():
        left, right = layer.anchors.long().unbind(-1)
        compared = given if layer.thresholds is None else torch.cat([given, layer.thresholds.to(given)])
        bits = compared[left] > compared[right]  # [N_t, N_c]
        rows = (bits.long() << torch.arange(bits.shape[1], device=x.device)).sum(1)  # pair 0 is the lowest bit
        weight = layer.weight if layer.synapses is None else layer.synapses.expand(layer.weight)
        chosen = weight[torch.arange(len(rows), device=x.device), rows].double()  # [N_t, O]
        y = chosen.sum(0)
        c = result[name].detach().flatten().double() / (y + EPS * torch.where(y < 0, -1.0, 1.0))
        worth = chosen * c
        order = worth.sum(1).abs().argsort(descending=True, stable=True)[:most].tolist()
        return [_detector(layer, t, bits[t], int(rows[t]), chosen[t], worth[t]) for t in order]


def first_tables(model: LUTClassifier) -> tuple[str, LUT | None]:
    """The module whose output is the sum of table rows selected by the inputs themselves, and its LUT."""
    name, module = ("layers.0", model.layers[0]) if len(model.layers) else ("readout", model.readout)
    layer = getattr(module, "lut", module)
    return name, layer if isinstance(layer, LUT) else None


def _detector(layer: LUT, number: int, bits: Tensor, row: int, values: Tensor, worth: Tensor) -> Detector:
    shown = list(range(len(worth)))
    if len(shown) > SHOWN_VALUES:
        shown = sorted(worth.abs().argsort(descending=True, stable=True)[:SHOWN_VALUES].tolist())
    n_inputs, pairs, constants = layer.n_inputs, [], []
    for a, b in layer.anchors[number].tolist():
        if layer.thresholds is not None and b >= n_inputs:
            constants.append(float(layer.thresholds[b - n_inputs]))
            b = n_inputs + len(constants) - 1
        pairs.append((a, b))
    outputs = [str(each) for each in shown]
    return Detector(number, pairs, bits.tolist(), row, values[shown].tolist(), float(worth.sum()), outputs, constants)


# ---- text ------------------------------------------------------------------------------------------------------------


def strip(
    model: LUTTransformer,
    text: str | bytes,
    *,
    begin: int = 1,
    rule: str = DEFAULT_RULE,
    title: str = "",
    said: str = "",
) -> Strip:
    """A text byte by byte, and for each byte from position `begin` on the relevance of the bytes before it.

    Only the end of a text longer than the context is used.
    """
    if not isinstance(model, LUTTransformer):
        fail("model", model, "a language model of lutetia.models")
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    cut = max(0, len(data) - model.config.context)
    tokens = torch.tensor(list(data[cut:]), device=model.embedding.weight.device)
    if len(tokens) < 2:
        raise ArgumentError(f"text has {len(tokens)} bytes, expected at least two: one to explain and one before it")
    begin = max(1, begin - cut)
    check_range("begin", begin, 1, len(tokens) - 1)
    with as_in_use(model):
        found = {place: _before(model, tokens, place, rule) for place in range(begin, len(tokens))}
        opened = _most_telling(model, tokens, found)
    return Strip(title or "What each byte was predicted from", token_names(bytes(tokens.tolist())), found, said, opened)


def _before(model: LUTTransformer, tokens: Tensor, place: int, rule: str) -> list[float]:
    return attribute_token(model, tokens[:place], int(tokens[place]), rule).relevance.tolist()


@torch.no_grad()
def _most_telling(model: LUTTransformer, tokens: Tensor, found: Mapping[int, list[float]]) -> int:
    """The place of the byte to show first: a visible one that the model expected, and not only from the bytes just before it."""
    chances = model(tokens[None])[0].double().softmax(-1)

    def interest(place: int) -> float:
        sizes = [abs(value) for value in found[place]]
        return float(chances[place - 1, tokens[place]]) * sum(sizes[:-NEAR]) / (sum(sizes) or 1.0)

    visible = [place for place in found if chr(int(tokens[place])).isprintable() and not chr(int(tokens[place])).isspace()]
    return max(visible or found, key=interest)


def token_names(data: bytes) -> list[str]:
    """ASCII bytes as characters; each byte of a longer character on its own, as \\xe2."""
    return [chr(byte) if byte < 128 else f"\\x{byte:02x}" for byte in data]
