"""Ways to say which inputs caused an output: the presets of `lutetia.relevance`, and two plain ones to compare them with.

What is explained is the *lead* of an output over its rivals: its score minus the mean score of the others, weighted by their
probabilities among themselves. That is the slope of the log-odds of the output; the lead of the best output is never negative. A
plain mean, with weights of 1/C, also explains what separates the output from classes that were never likely: nearly every pixel
counts in its favour, so the heat map has one colour. Deleting the most relevant pixels first shows that the lead over the rivals
is more faithful: in four kinds of models the area under the curve falls (by 0.042 ± 0.008 and 0.022 ± 0.009) or stays the same
(docs/notes/relevance.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.errors import ArgumentError, check_choice
from lutetia.models import Classifier, LUTTransformer, Tabular
from lutetia.nn import ngram_tables
from lutetia.report.shapley import background_rows, shapley

PRESETS: dict[str, Callable[[], relevance.Rules]] = {
    "epsilon": relevance.presets.epsilon,
    "decisive": relevance.presets.decisive,
    "gamma": relevance.presets.gamma,
    "zplus": relevance.presets.zplus,
    "alphabeta": relevance.presets.alphabeta,
    "attnlrp": relevance.presets.attnlrp,
    "dynamic": relevance.presets.dynamic,
}


class Rule(NamedTuple):
    """What a rule shows, for readers: a few words for a tab, and one sentence."""

    title: str
    about: str


RULES: dict[str, Rule] = {
    "decisive": Rule(
        "What decided it",
        "The score is traced back through every comparison of every table: orange spoke for the outcome, blue against it.",
    ),
    "epsilon": Rule(
        "What took part",
        "The score is shared out over the inputs by how much each took part, whichever way its comparison went.",
    ),
    "gamma": Rule("What agreed", "Like “What took part”, but contributions with the sign of the sum count more."),
    "zplus": Rule("What added", "In linear layers, only positive contributions count."),
    "alphabeta": Rule("For, against", "In linear layers, positive contributions count double, negative ones once and against."),
    "attnlrp": Rule("AttnLRP", "Relevance by the published rules of AttnLRP for transformers."),
    "dynamic": Rule("By size alone", "The score is shared out by the size of each contribution, whatever its sign."),
    "gradient": Rule("A small change", "Gradient × input: the slope used in training, times the value of the input."),
    "occlusion": Rule("Blanked out", "How far the score falls when this one input is blanked."),
    "shapley": Rule("Apart from the average", "How each column moved the score away from that of the average training row."),
}
# In `benchmarks/lut_faithfulness.py` it names best what models of tables used: in all nine kinds, by deletion area.
DEFAULT_RULE = "decisive"
SHAPLEY = "shapley"
OCCLUDED_AT_ONCE = 1024
ROWS_AT_ONCE = 256  # of a table of data
BLANK = ord(" ")  # replaces an occluded byte


class Attribution(NamedTuple):
    """The relevance of each input, in the inputs' shape, and how much biases and other constants absorbed; of Shapley values, the
    average score of the rows that the input is compared with."""

    relevance: Tensor
    absorbed: float | None  # None for rules that do not conserve relevance


def contrast(scores: Tensor, target: int | Tensor) -> Tensor:
    """Weights of the outputs in the lead, 1 for the target and -(probability among the others): scores [..., C] -> [..., C].

    The target is one for all, or int64 [...].
    """
    if scores.shape[-1] == 1:  # a single output is its own lead
        return torch.ones_like(scores)
    place = torch.as_tensor(target, device=scores.device).expand(scores.shape[:-1])[..., None]
    weights = -scores.detach().scatter(-1, place, -torch.inf).softmax(-1)
    return weights.scatter(-1, place, 1.0)


def lead(scores: Tensor, target: int) -> Tensor:
    """How far an output is above its rivals: scores [..., C] -> [...]."""
    return (contrast(scores, target) * scores).sum(-1)


def lead_seed(scores: Tensor, target: int | Tensor) -> Tensor:
    """The lead as the initial relevance, split over the outputs: scores [..., C] -> [..., C]."""
    return contrast(scores, target) * scores


def attribute_class(model: Classifier, x: Tensor, target: int, rule: str, background: Tensor | None = None) -> Attribution:
    """The relevance of each input for the lead of a class: x [*input_shape] -> the same shape.

    Rule "shapley", of a model of columns, compares with the rows `background` [m, columns].
    """
    check_choice("rule", rule, tuple(RULES))
    if rule == SHAPLEY:
        values, average = attribute_from_average(model, x[None], target, background)
        return Attribution(values[0], float(average[0]))
    if rule == "occlusion":
        return Attribution(_occlusion(model, x, target), None)
    if isinstance(model, Tabular):  # what its tables compare are codes, of which a column may have several
        found = _attribute_batch(model.core, model.encode(x[None]), target, rule)
        return Attribution(model.by_column(found.relevance, x).view(x.shape), found.absorbed)
    return _attribute_batch(model, x[None], target, rule)


def attribute_rows(model: Tabular, x: Tensor, targets: Tensor, rule: str) -> Tensor:
    """The relevance of each column for the lead of a class, of many rows: x [n, *input_shape], targets int64 [n] -> x's shape."""
    if rule not in PRESETS:
        return torch.stack(
            [attribute_class(model, row, int(wanted), rule).relevance for row, wanted in zip(x, targets, strict=True)]
        )
    parts = []
    for rows, wanted in zip(x.split(ROWS_AT_ONCE), targets.split(ROWS_AT_ONCE), strict=True):
        codes = model.encode(rows)
        with torch.no_grad():
            seed = lead_seed(model.core(codes), wanted)
        result = relevance.attribute(model.core, codes, target=seed, rules=PRESETS[rule]())
        parts.append(model.by_column(result[codes].detach(), rows).view(rows.shape))
    return torch.cat(parts)


def attribute_from_average(
    model: Classifier, x: Tensor, targets: int | Tensor, background: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Shapley values of the columns for the lead of a class, of many rows x [n, columns], and what they add to, the average of
    `background`: float64 [n, columns] and [n]. Targets: one for all, or int64 [n]."""
    if not isinstance(model, Tabular):
        raise ArgumentError(f"rule is 'shapley' and model a {type(model).__name__}, expected a model of a table of data")
    if background is None:
        raise ArgumentError("rule 'shapley' compares with other rows, expected them as background")
    with torch.no_grad():
        weights = contrast(model(x), targets)
    return shapley(model, x, weights, background_rows(background))


def _attribute_batch(model: nn.Module, batch: Tensor, target: int, rule: str) -> Attribution:
    """Relevance for one sample, batch [1, ...]."""
    if rule == "gradient":
        return Attribution(_gradient(model, batch, target), None)
    with torch.no_grad():
        seed = lead_seed(model(batch), target)
    result = relevance.attribute(model, batch, target=seed, rules=PRESETS[rule]())
    return Attribution(result[batch][0].detach(), result.report.absorbed)


def attribute_token(model: LUTTransformer, tokens: Tensor, target: int, rule: str) -> Attribution:
    """The relevance of each token for the lead of the next one: tokens [S] -> float [S]."""
    check_choice("rule", rule, tuple(RULES))
    if rule == "gradient":
        return Attribution(_token_gradient(model, tokens, target), None)
    if rule == "occlusion":
        return Attribution(_token_occlusion(model, tokens, target), None)
    batch = tokens[None]
    with torch.no_grad():
        logits = model(batch)
    seed = torch.zeros_like(logits)
    seed[0, -1] = lead_seed(logits[0, -1], target)
    if model.ngrams is None:
        result = relevance.attribute(model, batch, target=seed, rules=PRESETS[rule]())
        return Attribution(result[batch][0].detach(), result.report.absorbed)
    result = relevance.attribute(model, batch, target=seed, rules=PRESETS[rule](), wrt=["ngrams"])
    rows = model.ngrams.token_shares(result["ngrams"].detach(), batch)
    return Attribution((result[batch].detach() + rows)[0], result.report.absorbed)


def _gradient(model: nn.Module, batch: Tensor, target: int) -> Tensor:
    leaf = batch.detach().clone().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(lead(model(leaf)[0], target), leaf)
    return (slope * leaf).detach()[0]


@torch.no_grad()
def _occlusion(model: Classifier, x: Tensor, target: int) -> Tensor:
    n = x.numel()
    scores = model(x[None])[0]
    weights = contrast(scores, target)  # those of the whole input: what is compared stays the same
    fallen = torch.empty(n, dtype=scores.dtype)
    blank = float("nan") if isinstance(model, Tabular) else 0.0  # a table of columns takes NaN for a missing value
    for begin in range(0, n, OCCLUDED_AT_ONCE):
        end = min(n, begin + OCCLUDED_AT_ONCE)
        held = x.reshape(1, n).repeat(end - begin, 1)
        held[torch.arange(end - begin), torch.arange(begin, end)] = blank
        fallen[begin:end] = (scores - model(held.view(-1, *x.shape))) @ weights
    return fallen.view(x.shape)


def _token_gradient(model: LUTTransformer, tokens: Tensor, target: int) -> Tensor:
    kept: list[Tensor] = []

    def keep(module: object, given: object, output: Tensor) -> Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[-1]

    watched = [model.embedding, *ngram_tables(model)]
    handles = [module.register_forward_hook(keep) for module in watched]
    try:
        with torch.enable_grad():
            slopes = torch.autograd.grad(lead(model(tokens[None])[0, -1], target), kept)
    finally:
        for handle in handles:
            handle.remove()
    parts = [(slope * output).detach() for slope, output in zip(slopes, kept, strict=True)]
    found = parts[0].sum(-1)
    return found[0] if model.ngrams is None else (found + model.ngrams.token_shares(parts[1], tokens[None]))[0]


@torch.no_grad()
def _token_occlusion(model: LUTTransformer, tokens: Tensor, target: int) -> Tensor:
    held = tokens.repeat(len(tokens) + 1, 1)
    held[torch.arange(len(tokens)), torch.arange(len(tokens))] = BLANK
    scores = torch.cat([model(part)[:, -1] for part in held.split(64)])
    return (scores[-1] - scores[:-1]) @ contrast(scores[-1], target)
