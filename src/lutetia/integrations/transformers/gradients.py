"""Gradient × input and integrated gradients of a model of `transformers`, to compare relevance with: of tokens, or of pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, check_int, fail

GRADIENT, INTEGRATED = "gradient", "integrated"  # what stands in place of rules
MEAN, ZERO = "mean", "zero"  # baselines of tokens: the mean embedding of the vocabulary, and an embedding of zeros
Scores = Callable[[Any], Tensor]  # of an output of one row: the N scores that are explained, or one


@dataclass(frozen=True)
class IntegratedGradients:
    """Gradients along the straight way from a baseline to the input, times the way, in place of rules.

    `baseline` stands in place of every token: "mean", the mean embedding of the vocabulary, "zero", an embedding of zeros, or the
    number of a token, such as `tokenizer.pad_token_id`. Pixels begin at 0. `steps` points of Gauss and Legendre lie on the way,
    of which `at_once` are computed in one batch.
    """

    steps: int = 50
    at_once: int = 8
    baseline: str | int = MEAN

    def __post_init__(self) -> None:
        check_int("steps", self.steps, 1, 100_000)
        check_int("at_once", self.at_once, 1, 100_000)
        if isinstance(self.baseline, bool) or not (self.baseline in (MEAN, ZERO) or isinstance(self.baseline, int)):
            fail("baseline", self.baseline, "'mean', 'zero', or the number of a token")


class GradientResult:
    """What `relevance.attribute` would give, as far as gradients have it: no layers, no heads."""

    def __init__(self, found: Mapping[int, Tensor], explained: float, constant: float | None = None) -> None:
        self._found = dict(found)
        self.layers: dict[str, Tensor] = {}
        self.heads: dict[str, Tensor] = {}
        given = sum(float(part.double().sum()) for part in found.values())
        # Gradients need not add up to the score: what is missing counts as absorbed. Integrated ones add up to the score minus
        # that of no input, the `constant`, but for what the steps miss, the gap.
        rest = explained - given
        absorbed, gap = (rest, 0.0) if constant is None else (constant, rest - constant)
        self.report = SimpleNamespace(absorbed=absorbed, ended_by_module={"": given}, gap=gap)

    def __getitem__(self, tensor: Tensor) -> Tensor:
        return self._found[id(tensor)]


def gradient_times_input(model: Any, inputs: Mapping[str, Any], scores: Scores) -> list[GradientResult]:
    """Of every tensor among the inputs: tokens [1, S], summed over their embeddings, and floating-point tensors as they are.

    One result for each of the scores.
    """
    way = _on_the_way(model, inputs, scores, torch.ones(1), ZERO)
    slopes = [[grad[0] for grad in each] for each in way.slopes()]
    return [GradientResult(way.shares(each), score) for each, score in zip(slopes, way.scores[0].tolist(), strict=True)]


def integrated_gradients(model: Any, inputs: Mapping[str, Any], scores: Scores, how: IntegratedGradients) -> list[GradientResult]:
    """As `gradient_times_input`, with the mean gradient on the way from the baseline to the input."""
    if isinstance(how.baseline, int):
        check_int("baseline", how.baseline, 0, len(model.get_input_embeddings().weight) - 1)
    # The input first: by it is decided what is explained.
    ends = _on_the_way(model, inputs, scores, torch.tensor([1.0, 0.0]), how.baseline)
    places, weights = (torch.from_numpy(each) / 2 for each in numpy.polynomial.legendre.leggauss(how.steps))
    means: list[list[Tensor]] = []
    for place, weight in zip((places + 0.5).split(how.at_once), weights.split(how.at_once), strict=True):
        slopes = _on_the_way(model, inputs, scores, place, how.baseline).slopes()
        part = [[torch.tensordot(weight.to(grad), grad, 1) for grad in each] for each in slopes]
        means = [[a + b for a, b in zip(*both, strict=True)] for both in zip(means, part, strict=True)] if means else part
    pairs = zip(means, *ends.scores.tolist(), strict=True)
    return [GradientResult(ends.shares(each), score, constant) for each, score, constant in pairs]


class _OnTheWay(NamedTuple):
    """A batch of K points on the way from a baseline to an input: what was put in there, and what came out."""

    whole: list[tuple[Tensor, Tensor]]  # an input [1, ...], and the whole way to it, or to its embedded tokens
    sources: list[Tensor]  # [K, ...], each after a share of this way
    scores: Tensor  # [K, N]

    def slopes(self) -> list[list[Tensor]]:
        """The gradients [K, ...] of each of the N scores with respect to the sources."""
        grads = [torch.autograd.grad(each, self.sources, allow_unused=True, retain_graph=True) for each in self.scores.sum(0)]
        return [[torch.zeros_like(x) if g is None else g for x, g in zip(self.sources, each, strict=True)] for each in grads]

    def shares(self, slopes: list[Tensor]) -> dict[int, Tensor]:
        """Slope × way by the id of the input, of tokens summed over their embedding."""
        found: dict[int, Tensor] = {}
        for (given, x), slope in zip(self.whole, slopes, strict=True):
            if id(given) not in found:
                share = (x[0] * slope).detach()[None]
                found[id(given)] = share if given.is_floating_point() else share.sum(-1)
        return found


def _on_the_way(model: Any, inputs: Mapping[str, Any], scores: Scores, places: Tensor, baseline: str | int) -> _OnTheWay:
    """Run a model at K points [K] of the way, 0 being the baseline and 1 the input."""
    count = len(places)
    rows = {name: value.expand(count, *value.shape[1:]) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    given = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    with torch.inference_mode(False), torch.enable_grad():
        leaves = {name: _share(rows[name], places).requires_grad_() for name, value in given.items() if value.is_floating_point()}
        with _embeddings_seen(model, seen, places, baseline):
            output = model(**{**rows, **leaves})
        each = [scores(SimpleNamespace(logits=output.logits[row : row + 1])).reshape(-1) for row in range(count)]
    whole = [(given[name], given[name]) for name in leaves]
    sources = list(leaves.values())
    for tokens, way, leaf in seen:
        same = [value for value in given.values() if value.dtype == tokens.dtype and torch.equal(value, tokens[:1])]
        if same:
            whole.append((same[0], way))
            sources.append(leaf)
    if not sources:
        raise ArgumentError("rules are gradients, but the model embeds no tokens that it was given")
    return _OnTheWay(whole, sources, torch.stack(each))


def _share(x: Tensor, places: Tensor) -> Tensor:
    """x [K, ...], each row a share of itself."""
    return x.detach() * places.to(x).reshape(-1, *[1] * (x.dim() - 1))


@contextmanager
def _embeddings_seen(
    model: Any, seen: list[tuple[Tensor, Tensor, Tensor]], places: Tensor, baseline: str | int
) -> Iterator[None]:
    """While active, embedded tokens [K, ...] are replaced by points on the way to them: noted are tokens, the way, and points."""
    table = model.get_input_embeddings()

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        if len(output) != len(places):  # of something else, or turned around
            return None
        way, begin = output.detach(), torch.zeros((), dtype=output.dtype, device=output.device)
        if baseline != ZERO:
            rows, weight = table.weight[args[0]].detach(), table.weight.detach()
            begin = weight.mean(0) if baseline == MEAN else weight[baseline]
            begin = begin * ((way * rows).sum() / (rows * rows).sum())  # some models scale what they embed
        way = way - begin
        leaf = (begin + _share(way, places)).requires_grad_()
        seen.append((args[0], way, leaf))
        return leaf.clone()  # which a model may scale in place

    # Encoder and decoder may have modules of their own around one table.
    tables = [
        each for each in model.modules() if isinstance(each, nn.Embedding) and each.weight is getattr(table, "weight", None)
    ]
    handles = [each.register_forward_hook(after) for each in tables]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
