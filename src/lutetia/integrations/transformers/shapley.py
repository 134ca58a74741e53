"""Shapley values of the words of a text: what each adds to the score that a model of `transformers` gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_int, fail
from lutetia.integrations.transformers.characters import goes_on, special_places
from lutetia.integrations.transformers.gradients import GradientResult, Scores
from lutetia.relevance import shapley_values, takes_all

SHAPLEY = "shapley"  # what stands in place of rules
NONE = "none"  # a baseline: words are left out


@dataclass(frozen=True)
class ShapleyValues:
    """Shapley values of words, in place of rules: what a word adds to the score, averaged over the orders in which words join.

    `samples` orders are drawn; all of them count where the subsets of few words take no more runs of the model. `baseline` stands
    in place of each token of a word that is not there: the number of a token, such as `tokenizer.pad_token_id`, or "none", for
    words that are left out. By default it is the mask, where the tokenizer has one, and "none" elsewhere. Each token of a word
    gets an equal share. Special tokens stay, and get nothing. `at_once` texts are read in one batch.
    """

    samples: int = 25
    baseline: str | int | None = None
    seed: int = 0
    at_once: int = 16

    def __post_init__(self) -> None:
        check_int("samples", self.samples, 1, 100_000)
        check_int("seed", self.seed, 0, 2**63 - 1)
        check_int("at_once", self.at_once, 1, 100_000)
        if isinstance(self.baseline, bool) or not (self.baseline in (None, NONE) or isinstance(self.baseline, int)):
            fail("baseline", self.baseline, "'none', the number of a token, or None")


class ShapleyResult(GradientResult):
    """What `relevance.attribute` would give, as far as Shapley values have it, and how it was found."""

    def __init__(self, found: Mapping[int, Tensor], explained: float, constant: float, runs: int, exact: bool) -> None:
        super().__init__(found, explained, constant)
        self.runs, self.exact = runs, exact


@dataclass(frozen=True)
class Words:
    """The words of a text of S tokens, and what stands in their place."""

    how: ShapleyValues
    groups: list[int]  # S: the number of each token's word, -1 where it has none
    blank: int | None  # the token in place of others; None where they are left out
    alone: int | None  # the token that is read where all are left out


def with_words(rules: Any, tokenizer: Any, tokens: Sequence[int], texts: Sequence[str] = (), stays: bool = False) -> Any:
    """Rules as they are, or, where they ask for Shapley values, the words of these tokens, and of the texts that these were.

    `stays`: whether no token may move.
    """
    if rules != SHAPLEY and not isinstance(rules, ShapleyValues):
        return rules
    how = ShapleyValues() if isinstance(rules, str) else rules
    mask = getattr(tokenizer, "mask_token_id", None)
    blank = how.baseline if how.baseline is not None else NONE if mask is None else mask
    if isinstance(blank, int):
        check_int("baseline", blank, 0, len(tokenizer) - 1)
    elif stays:
        raise ArgumentError("baseline is 'none', and a word to be predicted has its place: expected the number of a token")
    groups = word_groups(tokenizer, tokens, texts)
    if max(groups, default=-1) < 0:
        raise ArgumentError("the text has special tokens alone, expected some words")
    known = [getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "cls", "eos", "pad")]
    alone = next((token for token in known if token is not None), None)
    return Words(how, groups, blank if isinstance(blank, int) else None, alone)


def word_groups(tokenizer: Any, tokens: Sequence[int], texts: Sequence[str] = ()) -> list[int]:
    """The number of the word that each token belongs to, from 0; -1 for special tokens. `texts`: what was read, if known."""
    special = set(special_places(tokenizer, tokens))
    places = _places(tokenizer, tokens, texts) or _decoded(tokenizer, tokens)
    groups: list[int] = []
    count, read, end = 0, "", 0  # words; the text of the token before, and where it ended
    for place, (text, start, stop) in enumerate(places):
        start = stop - len(text[start:stop].lstrip())
        follows = start < end or start == stop or (start == end and goes_on(text, start))
        if place in special:
            groups.append(-1)
            read = ""
            continue
        count += not (follows and read == text)
        groups.append(count - 1)
        read, end = text, stop
    return groups


Place = tuple[str, int, int]  # a text, and where in it a token begins and ends


def _places(tokenizer: Any, tokens: Sequence[int], texts: Sequence[str]) -> list[Place] | None:
    """Where each token stands in the texts, if the tokenizer knows."""
    if not texts or not getattr(tokenizer, "is_fast", False):
        return None
    encoded = tokenizer(*texts, return_offsets_mapping=True, verbose=False)
    if encoded["input_ids"][: len(tokens)] != list(tokens):
        return None
    which = [0 if each is None else each for each in encoded.sequence_ids()]
    return [(texts[each], *encoded["offset_mapping"][place]) for place, each in enumerate(which[: len(tokens)])]


def _decoded(tokenizer: Any, tokens: Sequence[int]) -> list[Place]:
    """Where each token stands in the text that all of them make."""
    ends = [len(tokenizer.decode(list(tokens[: place + 1]))) for place in range(len(tokens))]
    text = str(tokenizer.decode(list(tokens)))
    return [(text, start, end) for start, end in zip([0, *ends], ends, strict=False)]


def shapley_of_words(model: Any, inputs: Mapping[str, Any], scores: Scores, words: Words) -> list[ShapleyResult]:
    """Of the tokens [1, S] among the inputs; one result for each of the N scores."""
    tokens, groups = inputs["input_ids"], torch.tensor(words.groups)
    count, how = int(groups.max()) + 1, words.how
    texts = _Texts(model, inputs, scores, words)
    everything = torch.ones(1, count, dtype=torch.bool)
    explained = texts.scores(everything)[0]  # first: by it is decided what is explained
    values = shapley_values(texts.scores, count, how.samples, how.seed, max(how.at_once, count))
    sizes = torch.bincount(groups[groups >= 0], minlength=count).double()
    each = torch.cat([values / sizes.unsqueeze(1), values.new_zeros(1, values.shape[1])])[groups]  # -1 is the last: nothing
    exact = takes_all(count, how.samples)
    constants = explained - values.sum(0)
    pairs = zip(each.T, explained.tolist(), constants.tolist(), strict=True)
    return [ShapleyResult({id(tokens): one[None]}, score, constant, texts.runs, exact) for one, score, constant in pairs]


class _Texts:
    """A text with some of its words, as a model reads it."""

    def __init__(self, model: Any, inputs: Mapping[str, Any], scores: Scores, words: Words) -> None:
        self._model, self._inputs, self._scores, self._words = model, inputs, scores, words
        self._groups = torch.tensor(words.groups)
        self.runs = 0  # texts that were read

    def scores(self, there: Tensor) -> Tensor:
        """The scores [K, N], float64, of K choices of words that are there, bool [K, words]."""
        kept = torch.cat([there, torch.ones(len(there), 1, dtype=torch.bool)], 1)[:, self._groups]  # [K, S]; special ones are
        batches: defaultdict[int, list[int]] = defaultdict(list)  # of texts of one length
        for row, length in enumerate(kept.sum(1).tolist() if self._words.blank is None else [0] * len(kept)):
            batches[length].append(row)
        found: dict[int, Tensor] = {}
        for rows in batches.values():
            for first in range(0, len(rows), self._words.how.at_once):
                some = rows[first : first + self._words.how.at_once]
                found.update(zip(some, self._read(kept[some]), strict=True))
        return torch.stack([found[row] for row in range(len(kept))])

    def _read(self, kept: Tensor) -> Tensor:
        """The scores of texts with the tokens that are kept [k, S], of each as many where others are left out."""
        self.runs += len(kept)
        tokens = self._inputs["input_ids"]
        kept = kept.to(tokens.device)
        given: dict[str, Any] = {}
        for name, value in self._inputs.items():
            rows = value.expand(len(kept), *value.shape[1:]) if isinstance(value, Tensor) and value.dim() else value
            if self._words.blank is None and isinstance(value, Tensor) and value.shape == tokens.shape:
                rows = self._without(rows, kept, name)
            given[name] = rows
        if self._words.blank is not None:
            given["input_ids"] = torch.where(kept, tokens, self._words.blank)
        with torch.inference_mode(False), torch.no_grad():
            output = self._model(**given)
            each = [self._scores(SimpleNamespace(logits=output.logits[row : row + 1])) for row in range(len(kept))]
        return torch.stack([score.detach().double().reshape(-1).cpu() for score in each])

    def _without(self, rows: Tensor, kept: Tensor, name: str) -> Tensor:
        """What is kept of rows [k, S]; of nothing a single token."""
        if bool(kept.any()):
            return rows[kept].reshape(len(kept), -1)
        if self._words.alone is None:
            raise ArgumentError("nothing is left of the text, and the tokenizer has no special token: expected a baseline")
        return rows[:, :1] * 0 + self._words.alone if name == "input_ids" else rows[:, :1]
