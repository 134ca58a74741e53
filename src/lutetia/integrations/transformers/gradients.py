"""Gradient × input of a model of `transformers`, for comparison with relevance: of embedded tokens, or of pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError

GRADIENT = "gradient"  # what stands in place of rules


class GradientResult:
    """What `relevance.attribute` would give, as far as gradients have it: no layers, no heads, and nothing is absorbed."""

    def __init__(self, found: Mapping[int, Tensor], explained: float) -> None:
        self._found = dict(found)
        self.layers: dict[str, Tensor] = {}
        self.heads: dict[str, Tensor] = {}
        given = sum(float(part.double().sum()) for part in found.values())
        # Gradients need not add up to the score: what is missing counts as absorbed.
        self.report = SimpleNamespace(absorbed=explained - given, ended_by_module={"": given})

    def __getitem__(self, tensor: Tensor) -> Tensor:
        return self._found[id(tensor)]


def gradient_times_input(model: Any, inputs: Mapping[str, Any], scores: Callable[[Any], Tensor]) -> list[GradientResult]:
    """Of every tensor among the inputs: tokens [1, S], summed over their embeddings, and floating-point tensors as they are.

    One result for each of the `scores` [N], or for the one, that this function of the output returns.
    """
    given = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    leaves = {name: value.detach().requires_grad_() for name, value in given.items() if value.is_floating_point()}
    seen: list[tuple[Tensor, Tensor]] = []
    with torch.inference_mode(False), torch.enable_grad(), _embeddings_seen(model, seen):
        explained = scores(model(**{**inputs, **leaves})).reshape(-1)
        sources = [*leaves.values(), *(embedded for _, embedded in seen)]
        if not sources:
            raise ArgumentError("rules is 'gradient', but the model embeds no tokens that it was given")
        slopes = [torch.autograd.grad(each, sources, allow_unused=True, retain_graph=True) for each in explained]
    results = []
    for score, grads in zip(explained.tolist(), slopes, strict=True):
        shares = [torch.zeros_like(x) if grad is None else (x * grad).detach() for x, grad in zip(sources, grads, strict=True)]
        found = {id(given[name]): share for name, share in zip(leaves, shares, strict=False)}
        for (tokens, _), share in zip(seen, shares[len(leaves) :], strict=True):
            for value in given.values():
                if value.dtype == tokens.dtype and torch.equal(value, tokens) and id(value) not in found:
                    found[id(value)] = share.sum(-1)
                    break
        results.append(GradientResult(found, score))
    return results


@contextmanager
def _embeddings_seen(model: Any, seen: list[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """While active, the tokens that the embedding is given, and what it makes of them, are noted."""
    table = model.get_input_embeddings()

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        seen.append((args[0], leaf))
        return leaf

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
