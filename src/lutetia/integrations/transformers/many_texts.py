"""The classes of many texts, several in one run of the model, and which words spoke for which class over all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lutetia import relevance
from lutetia.errors import ArgumentError, fail
from lutetia.integrations.transformers.characters import goes_on, whole_pieces
from lutetia.integrations.transformers.checks import check_model, check_tokenizer, check_tokens, tokenized
from lutetia.integrations.transformers.classes import Decided, chances_of, class_of, exclusive, is_number
from lutetia.integrations.transformers.drawn import Drawn, texts_html
from lutetia.integrations.transformers.explaining import Rules, attribute_score, positions_of
from lutetia.integrations.transformers.shapley import with_words

AT_ONCE = 32  # texts in one run of the model
TOKENS = 2048  # in one run, padding included
UNLIMITED = 10**9  # tokens: what tokenizers without a limit say is larger
SHOWN = 10  # words of each class


@dataclass(frozen=True)
class TextClass:
    """What made a text's class, as words: each with what it did for the class `target` rather than `against`."""

    row: int  # its place among the texts
    text: str
    logits: Tensor  # [classes]
    prediction: int
    probability: float | None  # of the prediction; None where it is a number
    target: int
    against: int | None  # None where the score of the target itself is explained
    tokens: list[int]
    pieces: list[str]  # of the tokens
    relevance: Tensor  # [tokens]
    words: list[str]  # tokens put together; special ones are none
    word_relevance: list[float]  # of each word
    n_cut: int = 0  # tokens beyond those that the model can read

    @property
    def explained(self) -> float:
        """The score of the target, minus that of its rival: the relevance of the tokens and `rest` add up to it."""
        return float(self.logits[self.target]) - (0.0 if self.against is None else float(self.logits[self.against]))

    @property
    def rest(self) -> float:
        """What the tokens did not make: biases, positions and other constants."""
        return self.explained - float(self.relevance.double().sum())


@dataclass(frozen=True)
class WordShare:
    """What a word, in small letters, did for a class over all texts."""

    word: str
    total: float  # relevance for the class; below 0 where it spoke against it
    count: int  # how often it stands in a text that was explained for or against that class
    n_texts: int  # in how many of them

    @property
    def mean(self) -> float:
        """Of each time that it stands there."""
        return self.total / self.count


@dataclass(frozen=True, repr=False)
class TextClasses(Drawn):
    """What `explain_text_classes` found."""

    names: list[str]  # of the classes
    texts: list[TextClass]  # in their order, without those that were skipped
    skipped: dict[int, str] = field(default_factory=dict)  # why, by the place of a text

    def said(self) -> str:
        """How many texts have which class."""
        counts = Counter(self.names[each.prediction] for each in self.texts)
        listed = ", ".join(f"{counts[name]:,} {name}" for name in dict.fromkeys(self.names) if counts[name])
        skipped = f"; {len(self.skipped):,} skipped" if self.skipped else ""
        return f"{len(self.texts):,} texts: {listed}{skipped}"

    def words(self, name: int | str) -> list[WordShare]:
        """What each word did for a class, by name or number: the most helpful first, the most harmful last.

        Texts count that were explained for this class, or against it, and there with the opposite sign.
        """
        number = class_of("name", name, self.names)
        totals: defaultdict[str, float] = defaultdict(float)
        counts: Counter[str] = Counter()
        n_texts: Counter[str] = Counter()
        for each in self.texts:
            sign = 1.0 if each.target == number else -1.0 if each.against == number else 0.0
            if not sign:
                continue
            words = [word.casefold() for word in each.words]
            for word, value in zip(words, each.word_relevance, strict=True):
                totals[word] += sign * value
            counts.update(words)
            n_texts.update(set(words))
        shares = [WordShare(word, total, counts[word], n_texts[word]) for word, total in totals.items()]
        return sorted(shares, key=lambda share: (-share.total, share.word))

    def summary(self, most: int = SHOWN) -> dict[str, dict[str, list[WordShare]]]:
        """By class the words that spoke most "for" it and most "against" it; only classes that some text was explained for or
        against."""
        told = {}
        for number, name in enumerate(self.names):
            shares = self.words(number)
            if shares:
                ups = [share for share in shares[:most] if share.total > 0]
                downs = [share for share in shares[::-1][:most] if share.total < 0]
                told[name] = {"for": ups, "against": downs}
        return told

    def table(self) -> list[dict[str, Any]]:
        """A row for each text, for `pandas.DataFrame(found.table())`."""
        return [
            {
                "row": each.row,
                "text": each.text,
                "prediction": self.names[each.prediction],
                "probability": each.probability,
                "target": self.names[each.target],
                "against": None if each.against is None else self.names[each.against],
                "explained": each.explained,
                "rest": each.rest,
                "words": dict(_strongest(each)),
            }
            for each in self.texts
        ]

    def to_html(self) -> str:
        """The words of each class, then the texts, coloured by relevance."""
        return texts_html(self)


def _strongest(text: TextClass) -> list[tuple[str, float]]:
    """The words of a text with the largest relevance, in magnitude; a word that stands there twice has the sum."""
    totals: defaultdict[str, float] = defaultdict(float)
    for word, value in zip(text.words, text.word_relevance, strict=True):
        totals[word] += value
    return sorted(totals.items(), key=lambda item: -abs(item[1]))[:SHOWN]


def explain_text_classes(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    target: int | str | None = None,
    against: int | str | None = None,
    rules: Rules = None,
    progress: Callable[[int, int], object] | None = None,
) -> TextClasses:
    """Explain the class of each of many texts, as `explain_text_class` does, several in one run of the model.

    A text without words is skipped; one that is longer than the model can read is cut, as `TextClass.n_cut` says. `progress` is
    called with how many texts are done, and how many there are.
    """
    check_model(model)
    check_tokenizer(tokenizer)
    if isinstance(texts, str | bytes) or not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        fail("texts", texts, "a list of texts")
    skipped = {row: "there are no words in it" for row, text in enumerate(texts) if not text.strip()}
    read = [_Read(tokenizer, row, text, _most(model, tokenizer)) for row, text in enumerate(texts) if row not in skipped]
    if not read:
        raise ArgumentError(f"texts holds {len(texts):,} texts and no words, expected some")
    for each in read:
        check_tokens(model, each.ids)
    together = rules is None or isinstance(rules, relevance.Rules)  # gradients are taken of one text
    batches = list(_batches(read, AT_ONCE if together and _pads(model, tokenizer) else 1))
    found: dict[int, TextClass] = {}
    names: list[str] = []
    for batch in batches:
        decided = [Decided(model, target, against) for _ in batch]
        for each, explained in zip(batch, _explained(model, tokenizer, batch, decided, rules), strict=True):
            found[each.row] = explained
        names = decided[0].names
        if progress is not None:
            progress(len(found), len(read))
    return TextClasses(names, [found[each.row] for each in read], skipped)


class _Read:
    """A text as tokens [1, S], at most so many."""

    def __init__(self, tokenizer: Any, row: int, text: str, most: int) -> None:
        self.row, self.text = row, text
        fast = bool(getattr(tokenizer, "is_fast", False))
        options: dict[str, Any] = {"return_offsets_mapping": True} if fast else {}
        whole = tokenized(tokenizer, text, **options)
        self.n_cut = max(0, whole["input_ids"].shape[1] - most)
        if self.n_cut:
            whole = tokenized(tokenizer, text, truncation=True, max_length=most, **options)
        self.places = whole.pop("offset_mapping")[0].tolist() if fast else None
        self.inputs = dict(whole)
        self.ids: Tensor = whole["input_ids"]


def _most(model: Any, tokenizer: Any) -> int:
    """How many tokens a model can read: some tokenizers know that two positions are kept for padding."""
    known = getattr(tokenizer, "model_max_length", UNLIMITED)
    return min(positions_of(model) or UNLIMITED, known if isinstance(known, int) else UNLIMITED)


def _pads(model: Any, tokenizer: Any) -> bool:
    """Whether texts of different lengths can be read together: a decoder has to know which of its tokens is padding."""
    knows = getattr(model.config.get_text_config(), "pad_token_id", None) is not None
    return knows and getattr(tokenizer, "pad_token_id", None) is not None


def _batches(read: Sequence[_Read], most: int) -> Iterator[list[_Read]]:
    """Texts of about one length, so that there is little padding; the longest first, so that memory runs out early or never."""
    batch: list[_Read] = []
    for each in sorted(read, key=lambda each: -each.ids.shape[1]):
        if batch and (len(batch) == most or (len(batch) + 1) * batch[0].ids.shape[1] > TOKENS):
            yield batch
            batch = []
        batch.append(each)
    yield batch


def _explained(model: Any, tokenizer: Any, batch: list[_Read], decided: list[Decided], rules: Rules) -> list[TextClass]:
    """Explain the texts of a batch."""
    if len(batch) == 1:
        inputs = batch[0].inputs
    else:
        given = [{name: value[0].tolist() for name, value in each.inputs.items()} for each in batch]
        inputs = dict(tokenizer.pad(given, return_tensors="pt", padding_side="right"))
    inputs = {name: value.to(model.device) for name, value in inputs.items()}
    scores: Callable[[Tensor], Tensor] = decided[0]
    if len(batch) > 1:

        def scores(logits: Tensor) -> Tensor:
            return torch.stack([each(logits[at : at + 1]) for at, each in enumerate(decided)])

    rules = with_words(rules, tokenizer, batch[0].ids[0].tolist(), (batch[0].text,))
    result = attribute_score(model, inputs, scores, rules, dims=2)[inputs["input_ids"]].float().cpu()
    return [
        _text_class(model, tokenizer, each, mine, result[at, : each.ids.shape[1]])
        for at, (each, mine) in enumerate(zip(batch, decided, strict=True))
    ]


def _text_class(model: Any, tokenizer: Any, read: _Read, decided: Decided, given: Tensor) -> TextClass:
    """What was found for one text; `given`: the relevance of its tokens."""
    ids, logits = read.ids[0].tolist(), decided.logits
    prediction = int(logits.argmax())
    chance = None if is_number(model) else float(chances_of(logits, exclusive(model, len(logits)))[prediction])
    pieces = [str(tokenizer.decode([token])) for token in ids]
    places = _places(tokenizer, read.text, ids) if read.places is None else read.places
    words, shares = _words(read.text, places, given)
    which = (prediction, chance, decided.this, decided.that)
    return TextClass(read.row, read.text, logits, *which, ids, pieces, given, words, shares, read.n_cut)


def _places(tokenizer: Any, text: str, ids: list[int]) -> list[tuple[int, int]]:
    """Where each token stands in a text, for a tokenizer that does not say: its pieces are searched one after the other."""
    places, at = [], 0
    for piece, size in zip(*whole_pieces(tokenizer, ids), strict=True):
        plain = piece.strip()
        found = text.find(plain, at) if plain else -1
        places += [(found, found + len(plain)) if found >= 0 else (0, 0)] * size
        at = found + len(plain) if found >= 0 else at
    return places


def _words(text: str, places: Sequence[Sequence[int]], given: Tensor) -> tuple[list[str], list[float]]:
    """Words and their relevance, from that of tokens [S] and where each stands in the text; special tokens stand nowhere."""
    spans: list[list[int]] = []
    shares: list[float] = []
    for (start, stop), value in zip(places, given.tolist(), strict=True):
        plain = text[start:stop]
        start, stop = start + len(plain) - len(plain.lstrip()), stop - (len(plain) - len(plain.rstrip()))
        if start >= stop:
            continue
        if spans and (start < spans[-1][1] or (start == spans[-1][1] and goes_on(text, start))):
            spans[-1][1] = max(stop, spans[-1][1])
            shares[-1] += value
        else:
            spans.append([start, stop])
            shares.append(value)
    return [text[start:stop] for start, stop in spans], shares
