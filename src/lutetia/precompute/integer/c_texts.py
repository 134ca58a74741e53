"""Texts of a row of data in C: the words that a model knows, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from lutetia.models import CHARACTER_RANGES, TextColumn, folded_letters
from lutetia.precompute.integer.c_text import array, define, n_bytes, source, strings, type_of

HEADER = """
/* Columns of text come after the others: lutetia_text turns text number 0 to LUTETIA_TEXTS - 1, in UTF-8, into values of a row;
 * 0 for a missing one. */
#define LUTETIA_TEXTS {count}
void lutetia_text(int number, const char *text, double values[LUTETIA_VALUES]);
"""
TYPE = """
/* The words and pairs of a text column, sorted, what each weighs in each tally, and the value that is 1 if it occurs, or -1. */
typedef struct {
    const char *const *grams;
    size_t n_grams;
    const int16_t *weights, *asked;
    int n_tallies, first, n_words, first_word;
} text_t;

"""


def texts_source(texts: Sequence[TextColumn]) -> str:
    """The part of columns.c that reads texts."""
    lists, items = "", []
    for number, each in enumerate(texts):
        grams, weights, asked = known_grams(each)
        lists += f"static const char *const GRAMS{number}[] = {{{strings(grams) or '0'}}};\n"
        lists += array(f"WEIGHTS{number}", weights.T.reshape(-1), "int16_t") + array(f"ASKED{number}", asked, "int16_t")
        sizes = f"{len(each.tallies)}, {each.first}, {len(each.words)}, {each.asked}"
        items.append(f"{{GRAMS{number}, {len(grams)}, WEIGHTS{number}, ASKED{number}, {sizes}}}")
    begins, kinds = np.array(CHARACTER_RANGES).T
    letters = sorted(folds(frozenset("".join({*each.grams, *each.words}) for each in texts)).items())
    most = max(len(known_grams(each)[0]) for each in texts)
    return "".join([
        "#include <stddef.h>\n", TYPE, lists, f"static const text_t TEXTS[] = {{{', '.join(items)}}};\n",
        define(N_RANGES=len(begins), N_FOLDS=len(letters), MOST_GRAMS=max(1, most)),
        array("BEGIN", begins, "int32_t"), array("KIND", kinds, "uint8_t"),
        array("FOLD_FROM", np.array([code for code, _ in letters], np.int64), "int32_t"),
        array("FOLD_TO", np.array([code for _, code in letters], np.int64), "int32_t"),
        source("texts.c"),
    ])  # fmt: skip


def texts_bytes(texts: Sequence[TextColumn]) -> int:
    """Bytes of the words, and of what they weigh."""
    total = 0
    for each in texts:
        grams, weights, asked = known_grams(each)
        total += sum(len(gram.encode()) + 1 for gram in grams) + 2 * (weights.size + asked.size)
    return total + sum(n_bytes(type_of(part)) * part.size for part in np.array(CHARACTER_RANGES).T)


def known_grams(text: TextColumn) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The words and pairs that are weighed or looked for, in the order of their bytes; their weights int64 [tallies, grams], and
    the input that says whether each occurs, or -1, int64 [grams]."""
    grams = sorted({*text.grams, *text.words}, key=str.encode)
    place = {gram: number for number, gram in enumerate(grams)}
    weights, asked = np.zeros((len(text.tallies), len(grams)), np.int64), np.full(len(grams), -1)
    weights[:, [place[gram] for gram in text.grams]] = text.weights
    asked[[place[word] for word in text.words]] = text.asked + np.arange(len(text.words))
    return grams, weights, asked


@cache
def folds(letters: frozenset[str]) -> dict[int, int]:
    """The characters whose small letters are among some, and these."""
    wanted = {ord(letter) for text in letters for letter in text}
    return {code: small for code, small in folded_letters().items() if small in wanted}
