"""Why an encoder finds two texts alike: the relevance of the tokens of both, and of pairs of them.

The similarity is the cosine of two embeddings, Σ_k a_k b_k. A product gives half of its relevance to each factor, so each text
has half of the similarity. The relevance of a_k among the tokens of the first text, times that of b_k among those of the second,
summed over k, is that of pairs of tokens (BiLRP: Eberle et al. 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, LutetiaError, check_choice, fail
from lutetia.integrations.transformers.answers import NUMBERS, inside_of
from lutetia.integrations.transformers.characters import special_places
from lutetia.integrations.transformers.checks import (
    check_folder,
    check_model,
    check_tokenizer,
    check_tokens,
    refuse,
    tokenized,
)
from lutetia.integrations.transformers.drawn import Drawn, pairs_html
from lutetia.integrations.transformers.explaining import (
    Found,
    Rules,
    attribute_score,
    attribute_scores,
    check_length,
    ended_elsewhere,
    gap_of,
    layers_by_token,
    pieces_of,
)
from lutetia.integrations.transformers.pooling import POOLINGS, Embedding, pooling_of

T = TypeVar("T")
Both = tuple[T, T]  # of the first text, and of the second
MOST_AT_ONCE = 64  # numbers of an embedding that one walk explains


@dataclass(frozen=True, repr=False)
class SimilarityExplanation(Drawn):
    """What made the embeddings of two texts, of S and T tokens, alike; each text has half of the similarity."""

    similarity: float  # the cosine; relevance of both texts, `absorbed`, `elsewhere` and `gap` add up to it
    tokens: Both[list[int]]
    pieces: Both[list[str]]  # the text of each token
    relevance: Both[Tensor]  # [S] and [T]
    layers: Both[Tensor]  # [L, S] and [L, T]: what leaves each layer for the next
    absorbed: float  # relevance that ended in biases and other constants
    elsewhere: float  # relevance of embeddings that are not of tokens: of positions, of kinds of text
    gap: float  # what the steps of integrated gradients miss
    pooling: str
    special: Both[list[int]]  # the places of tokens that begin and end the texts
    pairs: Tensor | None = None  # [S, T]: what each pair of tokens contributed, where that was asked for

    @property
    def rest(self) -> float:
        """What pairs of tokens did not make of the similarity: biases, positions and other constants."""
        return self.similarity - (0.0 if self.pairs is None else float(self.pairs.double().sum()))

    def strongest(self, most: int = 10) -> list[tuple[int, int, float]]:
        """The pairs of tokens that contributed most, special tokens apart: the place in each text, and the contribution."""
        if self.pairs is None:
            raise ArgumentError("the pairs of tokens were not computed, expected explain_similarity(..., pairs=True)")
        return strongest_pairs(self.pairs, self.special, most)

    def said(self) -> str:
        """What is explained, in a sentence."""
        counts = " and ".join(f"{len(each):,}" for each in self.tokens)
        return f"what makes two texts of {counts} tokens alike: a cosine of {self.similarity:.4g}"

    def to_html(self) -> str:
        """The tokens of both texts, coloured by relevance, and the pairs of tokens below."""
        return pairs_html(self)


def explain_similarity(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    pooling: str | None = None,
    pairs: bool = False,
    rules: Rules = None,
    advance: Callable[[int, int], object] | None = None,
) -> SimilarityExplanation:
    """Explain the cosine of the embeddings that an encoder gives a pair of texts.

    An embedding is pooled from the states of the tokens: their "mean", the "first", the "last", or the "max"; by default as the
    model's folder says, else the mean. `pairs` also finds what each pair of tokens contributed: this takes a walk for every 64
    numbers of an embedding at least, and `advance(done, all)` is called after each. `rules` are AttnLRP's by default.
    """
    check_model(model)
    check_tokenizer(tokenizer)
    if isinstance(texts, str) or not isinstance(texts, Sequence) or [type(each) for each in texts] != [str, str]:
        fail("texts", texts, "a pair of texts")
    check_choice("pairs", pairs, (False, True))
    if advance is not None and not callable(advance):
        fail("advance", advance, "a function of two numbers")
    for which, text in zip(("first", "second"), texts, strict=True):
        if not text.strip():
            raise ArgumentError(f"the {which} text is empty, expected some words")
    if pooling is None:
        name = getattr(model, "name_or_path", "")
        pooling = pooling_of(check_folder(name)) if name else "mean"
    check_choice("pooling", pooling, tuple(POOLINGS))
    inputs = [dict(tokenized(tokenizer, text).to(model.device)) for text in texts]
    for each in inputs:
        check_tokens(model, each["input_ids"])
        check_length(model, each["input_ids"].shape[1])
    encoder = Embedding(model, pooling)
    vectors = [_embedded(encoder, each) for each in inputs]
    found = [_toward(encoder, *each, rules) for each in zip(inputs, reversed(vectors), strict=True)]
    given = [mine[each["input_ids"]][0].float().cpu() / 2 for mine, each in zip(found, inputs, strict=True)]
    shares = [_shares(encoder, inputs, at, len(vectors[0]), rules, advance) for at in (0, 1)] if pairs else []
    ids = [each["input_ids"][0].tolist() for each in inputs]
    return SimilarityExplanation(
        float(vectors[0] @ vectors[1]),
        (ids[0], ids[1]),
        (pieces_of(tokenizer, ids[0]), pieces_of(tokenizer, ids[1])),
        (given[0], given[1]),
        (layers_by_token(found[0], len(ids[0])) / 2, layers_by_token(found[1], len(ids[1])) / 2),
        sum(float(mine.report.absorbed) for mine in found) / 2,
        sum(ended_elsewhere(mine, 2 * each) for mine, each in zip(found, given, strict=True)) / 2,
        sum(map(gap_of, found)) / 2,
        pooling,
        (special_places(tokenizer, ids[0]), special_places(tokenizer, ids[1])),
        shares[0].T @ shares[1] if pairs else None,
    )


def strongest_pairs(pairs: Tensor, special: Both[list[int]], most: int) -> list[tuple[int, int, float]]:
    """The largest of pairs [S, T] outside of special places, and above 0: the place in each text, and the contribution."""
    order = [divmod(place, pairs.shape[1]) for place in pairs.flatten().argsort(descending=True, stable=True).tolist()]
    plain = [(one, two) for one, two in order if one not in special[0] and two not in special[1] and pairs[one, two] > 0]
    return [(one, two, float(pairs[one, two])) for one, two in plain[:most]]


def _embedded(encoder: Embedding, inputs: Mapping[str, Tensor]) -> Tensor:
    """The embedding of a text, [D]."""
    kind = type(encoder.model).__name__
    with torch.no_grad():
        try:
            output = encoder.model(**inputs)
        except LutetiaError:
            raise
        except (AttributeError, TypeError, ValueError) as error:  # of a model that reads something else
            raise ArgumentError(f"model is {kind}, which refuses {', '.join(inputs)}: {error}; expected an encoder") from error
        states = getattr(output, "last_hidden_state", None)
        if not isinstance(states, Tensor) or states.dim() != 3 or hasattr(output, "encoder_last_hidden_state"):
            expected = "an encoder, which gives a state for each token: of AutoModel, model.base_model or model.get_encoder()"
            refuse("model", encoder.model, expected)
        vector: Tensor = encoder(**inputs).logits[0]
    return vector


def _toward(encoder: Embedding, inputs: Mapping[str, Tensor], other: Tensor, rules: Rules) -> Found:
    """The cosine of a text and another embedding [D], explained by the tokens of the text."""
    return attribute_score(encoder, inputs, lambda vectors: vectors[0] @ other, rules, dims=2, layers=True)


def _shares(
    encoder: Embedding,
    inputs: Sequence[Mapping[str, Tensor]],
    at: int,
    size: int,
    rules: Rules,
    advance: Callable[[int, int], object] | None,
) -> Tensor:
    """What each token of a text contributed to each number of its embedding, [D, S]; `at` says which text."""
    tokens = inputs[at]["input_ids"]
    vocab = len(encoder.get_input_embeddings().weight)
    together = max(1, min(MOST_AT_ONCE, NUMBERS // inside_of(encoder, tokens.shape[1], vocab)))
    rows: list[Tensor] = []
    for numbers in torch.arange(size, device=tokens.device).split(together):

        def chosen(vectors: Tensor, numbers: Tensor = numbers) -> Tensor:
            return vectors[0, numbers]

        rows += [found[tokens][0].float().cpu() for found in attribute_scores(encoder, inputs[at], chosen, rules, dims=2)]
        if advance is not None:
            advance(at * size + len(rows), 2 * size)
    return torch.stack(rows)
