"""Columns of text: which they are, and what a fit learns from them, by the training rows alone: words that speak for an answer.

A word, or a pair of words next to each other, weighs as much as it is more frequent in one class than in the others: the
logarithm of that ratio, as in naive Bayes. A text's tally is the sum over its words. What tables are fitted to must not have been
seen by the weights: the tallies of a tenth of the rows come from the weights of the other nine. Numbers to predict become classes
by whether they are above a quarter, a half or three quarters of them.

The numbers below were measured on film reviews, text messages and headlines: see docs/notes/texts.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lutetia.errors import DataError
from lutetia.models import LONGEST_NAME, Encoding, Grams, Tally, TextColumn, find_grams, gram_text, text_columns, text_inputs
from lutetia.training.columns import MOST_CATEGORIES, MOST_CLASSES, is_missing, text_of
from lutetia.training.ranges import describe_columns

if TYPE_CHECKING:
    from lutetia.training.data import Samples
    from lutetia.training.tabular import Shape, TabularRows

Array = np.ndarray[Any, Any]
WORDS_EACH, DIFFERENT = 2, 0.3  # of a text column: words in a cell, and the part of its cells that differ, at least
FEWEST_WEIGHED, FEWEST_ASKED = 2, 3  # texts that a word stands in, to be weighed and to be looked for
MOST_WEIGHED = 30_000  # words and pairs, the most frequent: chosen by the target they would know the rows to fit
MOST_ASKED = 300  # words and pairs that are looked for: 1,000 or 2,000 were no better beside tallies
FOLDS = 10
UNIT = 16  # of a weight: the logarithm of a ratio in sixteenths
QUANTILES = (0.25, 0.5, 0.75)  # of numbers to predict
MOST_CLASSES_TALLIED = 32
LOUDEST = 5  # words that are shown
SHRINK = 3.0  # texts by which a rare word counts less where words to look for are chosen


def looks_like_text(values: Sequence[Any]) -> bool:
    """Whether a column of cells that are neither numbers nor dates holds texts: two words in a cell on average, and cells that
    differ."""
    cells = [text_of(value) for value in values if not is_missing(value)]
    different = set(cells)
    if len(different) <= MOST_CLASSES or (len(different) < DIFFERENT * len(cells) and len(different) <= MOST_CATEGORIES):
        return False
    return sum(any(map(str.isalpha, word)) for cell in cells for word in cell.split()) >= WORDS_EACH * len(cells)


def as_texts(values: Sequence[Any]) -> list[str | None]:
    """The cells of a column of text, None for those that hold no value."""
    return [None if is_missing(value) else text_of(value) for value in values]


def read_texts(values: Sequence[Any], name: str, place: int, is_fitted: bool = True) -> Grams:
    """What stands in the cells of a column; where it is to be fitted, without what no fit weighs."""
    return find_grams(as_texts(values), name, place, fewest=FEWEST_WEIGHED if is_fitted else 1)


def check_texts(listed: Collection[str], others: Mapping[str, Collection[str]]) -> None:
    """Refuse a column that data.text and another setting both have."""
    for key, names in others.items():
        twice = [name for name in listed if name in names]
        if twice:
            raise DataError(f"data.text and data.{key} both have {twice[0]!r}, expected it in one of them")


def texts_text(own: Grams) -> str:
    """What a column of text was read as: "text, 12 words in a cell, 3 missing"."""
    known = own.lengths[~np.isnan(own.lengths)]
    missing = len(own) - len(known)
    told = f"text, {float(known.mean()) if len(known) else 0:.3g} words in a cell"
    return told + (f", {missing:,} missing" if missing else "")


def fit_texts(rows: TabularRows, shape: Shape, seed: int) -> tuple[list[TextColumn], Array]:
    """What is made of the text columns of rows, and the inputs of these rows, float64 [n, inputs], each tally by weights that do
    not know its row."""
    groups = _groups(rows, shape)
    weight = rows.weight / max(float(rows.weight.mean()), 1e-12)
    fold = _folds(rows, seed)
    known = [_weighed(own, weight) for own in rows.texts]
    asked = [_asked(own, groups, weight) for own in rows.texts]
    tallies = tuple(Tally(group, over) for group in groups for over in ("words", "pairs"))
    first = rows.x.shape[1]
    first_word = first + len(rows.texts) * (len(tallies) + 1)
    columns, sums, found = [], [], []
    for own, grams, words in zip(rows.texts, known, asked, strict=True):
        titles = [own.known[number] for number in grams]
        counts = _counts(own, grams, groups, weight, fold)
        masks = _masks(titles, tallies)
        column = TextColumn(
            own.name, own.place, first, first_word, tallies, titles, _weights(counts.sum(1), masks),
            [own.known[number] for number in words],
        )  # fmt: skip
        every = np.empty((len(own), len(tallies) + 1))
        for number in range(FOLDS):
            held = fold == number
            others = np.delete(counts, number, 1).sum(1)
            every[held] = column.tallied(own.at(held), _weights(others, masks))
        columns.append(column)
        sums.append(every)
        found.append(column.found(own))
        first, first_word = first + len(tallies) + 1, first_word + len(words)
    return columns, np.concatenate([*sums, *found], 1)


def model_rows(samples: Samples, texts: Sequence[TextColumn]) -> Array:
    """Samples as a model takes them, x [n, *input_shape], with the inputs that it makes of texts."""
    return np.concatenate([samples.x, text_inputs(texts, samples.texts)], 1) if texts else samples.x


def with_texts(rows: TabularRows, columns: Sequence[TextColumn]) -> TabularRows:
    """Rows with the inputs that are made of their texts, which a fit has not seen."""
    if not columns:
        return rows
    return replace(rows, x=np.concatenate([rows.x, text_inputs(columns, rows.texts)], 1), texts=())


def text_kinds(encoding: Encoding, texts: Sequence[TextColumn]) -> tuple[int, ...]:
    """Where the encoded inputs begin that are tallies, and those that are words."""
    limits = [min(each.first for each in texts), min(each.asked for each in texts)]
    return tuple(np.searchsorted(encoding.source.numpy(), limits).tolist())


def without_unasked(texts: Sequence[TextColumn], inputs: Array) -> list[TextColumn]:
    """Text columns without the words that are not among some inputs, numbers in order."""
    kept = []
    for each in texts:
        own = np.flatnonzero((inputs >= each.looked_for.start) & (inputs < each.looked_for.stop))
        words = [each.words[number - each.asked] for number in inputs[own].tolist()]
        asked = int(np.searchsorted(inputs, each.asked))
        weighs = np.asarray(each.weights.any(0))
        grams = [gram for gram, is_used in zip(each.grams, weighs.tolist(), strict=True) if is_used]
        kept.append(replace(each, asked=asked, words=words, grams=grams, weights=each.weights[:, weighs]))
    return kept


def loudest_words(column: TextColumn, classes: Sequence[str]) -> dict[str, list[str]]:
    """Words and pairs that speak for each class, or for numbers above one, by its name: of those looked for the clearest."""
    order, told = {gram: number for number, gram in enumerate(column.grams)}, {}
    for group in dict.fromkeys(tally.group for tally in column.tallies):
        own = [weights for tally, weights in zip(column.tallies, column.weights, strict=True) if tally.group == group]
        total = np.sum(own, 0)
        name = classes[int(group)] if classes else f"more than {group:.6g}"
        told[name] = [gram_text(word) for word in column.words if word in order and total[order[word]] > 0][:LOUDEST]
        if len(classes) == 2:
            told[classes[0]] = [gram_text(word) for word in column.words if word in order and total[order[word]] < 0][:LOUDEST]
    return told


def text_metadata(texts: Sequence[TextColumn], x: Array) -> dict[str, Any]:
    """What the metadata of a model says of texts, and the ranges of the inputs made of them, of x float64 [n, inputs]."""
    first = min(each.first for each in texts)
    made = describe_columns(x[:, first:], x[:, first:])
    places = {str(first + int(number)): count for number, count in made["decimals"].items()}
    empty = list(range(first, x.shape[1]))  # any text may be missing
    return {**made, "texts": {each.name: each.to_dict() for each in texts}, "decimals": places, "empty": empty}


def describe_texts(known: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a model, from what is known of its columns and what `text_metadata` says of its texts."""
    if "texts" not in made:
        return dict(known)
    texts = text_columns(made)
    n_plain = min(each.first for each in texts)
    features = [*known.get("features", (f"x{number}" for number in range(n_plain)))]
    titles = {number: name for each in texts for number, name in each.titles(known.get("classes", ())).items()}
    told = {"features": features + [titles[number][:LONGEST_NAME] for number in sorted(titles)], "texts": made["texts"]}
    told["decimals"] = known["decimals"] | made["decimals"]
    return {**known, **told, **{key: [*known[key], *made[key]] for key in ("input_low", "input_high", "empty")}}


def _groups(rows: TabularRows, shape: Shape) -> dict[float, Array]:
    """What tallies speak for: by the number of a class, or the number that others are above, which rows belong to it."""
    if shape.n_classes == 2:
        return {1.0: rows.y == 1}
    if shape.n_classes > 2:
        frequent = np.argsort(-np.bincount(rows.y, rows.weight, shape.n_classes), kind="stable")[:MOST_CLASSES_TALLIED]
        return {float(each): rows.y == each for each in np.sort(frequent)}
    limits = np.unique(np.quantile(rows.y[rows.weight > 0], QUANTILES, method="lower"))
    limits = limits[limits < rows.y.max()] if len(limits) and limits[0] < rows.y.max() else np.unique(rows.y)[-2:-1]
    return {float(each): rows.y > each for each in limits}


def _folds(rows: TabularRows, seed: int) -> Array:
    """The part of each row, int64 [n]; rows of one group or query stay together."""
    key = rows.query if rows.query is not None else rows.split.key if rows.split.kind == "groups" else None
    units, place = np.unique(np.arange(len(rows.y)) if key is None else key, return_inverse=True)
    return (np.random.default_rng(seed).permutation(len(units)) % FOLDS)[place]


def _frequency(own: Grams, weight: Array) -> Array:
    """How many texts that count each word stands in, int64 [known]."""
    return np.bincount(own.numbers, (weight > 0)[own.rows], len(own.known)).astype(np.int64)


def _weighed(own: Grams, weight: Array) -> Array:
    """The numbers of the words and pairs that are weighed, in order."""
    held = _frequency(own, weight)
    order = np.argsort(-held, kind="stable")[:MOST_WEIGHED]
    return np.sort(order[held[order] >= FEWEST_WEIGHED])


def _asked(own: Grams, groups: Mapping[float, Array], weight: Array) -> Array:
    """The numbers of the words and pairs that are looked for, those first that differ most between groups."""
    held = _frequency(own, weight)
    apart = np.zeros(len(held))
    for group in groups.values():
        off = weight * (group - np.average(group, weights=weight))
        apart = np.maximum(apart, np.abs(np.bincount(own.numbers, off[own.rows], len(held))) / np.sqrt(held + SHRINK))
    order = np.argsort(-apart, kind="stable")
    return order[held[order] >= FEWEST_ASKED][:MOST_ASKED]


def _counts(own: Grams, grams: Array, groups: Mapping[float, Array], weight: Array, fold: Array) -> Array:
    """How often words stand in texts of each group and of the others, float64 [groups, folds, 2, grams]."""
    place = np.full(len(own.known), -1)
    place[grams] = np.arange(len(grams))
    places, rows = place[own.numbers], own.rows
    places, rows = places[places >= 0], rows[places >= 0]
    counts = np.zeros((len(groups), FOLDS, 2, len(grams)))
    for own_counts, group in zip(counts, groups.values(), strict=True):
        cell = (fold[rows] * 2 + group[rows]) * len(grams) + places
        own_counts[:] = np.bincount(cell, weight[rows], own_counts.size).reshape(own_counts.shape)
    return counts


def _masks(titles: Sequence[str], tallies: Sequence[Tally]) -> Array:
    """Which words each kind of tally is a sum over, bool [2, grams]: words, and pairs."""
    is_pair = np.array([" " in each for each in titles], bool)
    return np.stack([~is_pair, is_pair])


def _weights(counts: Array, masks: Array) -> Array:
    """By how much words speak for each group, int64 [tallies, grams], from counts [groups, 2, grams]."""
    weights = []
    for others, own in counts + 1:
        for mask in masks:
            share = [np.log(each / max(each[mask].sum(), 1)) for each in (own, others)]
            weights.append(np.where(mask, np.rint(UNIT * (share[0] - share[1])), 0))
    return np.array(weights, np.int64).reshape(len(counts) * len(masks), counts.shape[-1])
