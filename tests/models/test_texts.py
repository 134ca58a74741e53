"""Texts as words and as inputs: against slow definitions, and files that say something else."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from lutetia.errors import ArgumentError
from lutetia.models import Tabular, TabularConfig, check_metadata
from lutetia.models.texts import (
    ALONE,
    APOSTROPHE,
    FOLDS,
    RANGES,
    SKIPPED,
    WORD,
    Grams,
    Tally,
    TextColumn,
    data_columns,
    find_grams,
    folded_letters,
    gram_text,
    places_of,
    text_columns,
    text_inputs,
    words_in,
)

ODD = "aZéßÉΣς '’!?.-_0189日ไ👍🏽\u200d\ufe0f\u00ad\u00a0\u2028\u0301\n\t\ud800K€"
COLUMN = TextColumn(
    "review", 1, 1, 4, (Tally(1.0, "words"), Tally(1.0, "pairs")), ["bad", "good", "not good"],
    np.array([[-20, 30, 0], [0, 0, -50]]), ["not", "not good"],
)  # fmt: skip


@cache
def kind(code: int) -> int:
    return [own for begin, own in RANGES if begin <= code][-1]


def slow_words(text: str) -> list[tuple[int, int, str]]:
    """Words one character after another, as the page and C find them."""
    found, at = [], 0
    while at < len(text):
        first, word = at, ""
        if kind(ord(text[at])) == ALONE:
            word = chr(FOLDS[ord(text[at])])
            at += 1
        elif kind(ord(text[at])) == WORD:
            end = at
            while at < len(text):
                own = kind(ord(text[at]))
                joins = own == APOSTROPHE and at + 1 < len(text) and kind(ord(text[at + 1])) == WORD
                if not joins and own not in (WORD, SKIPPED):
                    break
                word += "'" if joins else chr(FOLDS[ord(text[at])]) if own == WORD else ""
                at += 1
                end = at
            at = end
        else:
            at += 1
        if word:
            is_long = len(word) >= 5 and all(sign in "0123456789" for sign in word)
            found.append((first, at, "0" * len(word) if is_long else word))
    return found


@settings(max_examples=60)
@given(some.text(alphabet=ODD, max_size=30) | some.text(max_size=30))
def test_words_are_those_found_one_character_after_another(text: str) -> None:
    assert places_of(text) == slow_words(text)
    assert words_in(text) == [word for _, _, word in slow_words(text)]


def test_words_of_many_kinds() -> None:
    assert words_in("Don’t BUY it, it's 5€ 'cheap'!!") == ["don't", "buy", "it", ",", "it's", "5", "€", "cheap", "!", "!"]
    assert words_in("Größe STRASSE ΣΊΣΥΦΟΣ İx") == ["größe", "strasse", "σίσυφοσ", "i̇x" if len("İ".casefold()) == 1 else "İx"]
    assert words_in("日本 สวย") == ["日", "本", "ส", "ว", "ย"]
    assert words_in("👍🏽👍 ❤️ so\u00adft") == ["👍", "👍", "❤", "soft"]
    assert words_in("call 08001234567 or 1234") == ["call", "00000000000", "or", "1234"]
    assert words_in("08001\u00ad234567\u202c") == ["00000000000"]  # what is skipped makes no other number of it
    assert gram_text("call 00000000000") == "call [11 digits]"


def test_small_letters_are_of_the_kind_of_their_capitals() -> None:
    assert folded_letters()[ord("Å")] == ord("å")
    assert all(kind(code) == kind(small) for code, small in folded_letters().items())
    assert all(FOLDS[small] == small for small in folded_letters().values())  # to fold twice changes nothing


def test_what_stands_in_texts() -> None:
    texts = ["a b", None, "b a b", "", "c a b"]
    own = find_grams(texts, "t", 0)
    held = [{own.known[number] for number in own.numbers[a:b]} for a, b in zip(own.starts, own.starts[1:], strict=False)]
    assert held == [{"a", "b", "a b"}, set(), {"a", "b", "a b", "b a"}, set(), {"a", "b", "c", "a b", "c a"}]
    np.testing.assert_array_equal(own.lengths, [2, np.nan, 3, 0, 3])
    rows = np.array([4, 1, 0, 4])
    part, alone = own.at(rows), find_grams([texts[row] for row in rows], "t", 0)
    assert _sets(part) == _sets(alone)
    assert set(find_grams(texts, "t", 0, fewest=2).known) == {"a", "b", "a b"}


def _sets(own: Grams) -> list[set[str]]:
    ends = zip(own.starts.tolist(), own.starts.tolist()[1:], strict=False)
    return [{own.known[number] for number in own.numbers[begin:end]} for begin, end in ends]


def test_inputs_are_sums_over_different_words() -> None:
    texts = ["good good not good", "BAD, not bad", None, "", "nothing known"]
    wanted = [[30, -50, 4, 1, 1], [-20, 0, 4, 1, 0], [np.nan] * 5, [0, 0, 0, 0, 0], [0, 0, 2, 0, 0]]
    np.testing.assert_array_equal(text_inputs([COLUMN], [COLUMN.read(texts)]), wanted)
    np.testing.assert_array_equal(text_inputs([COLUMN], [find_grams(texts, "review", 1)]), wanted)  # of more words than it knows


@given(some.text(alphabet="not good bad film !", max_size=40))
def test_relevance_lands_on_words_and_adds_up(text: str) -> None:
    relevance = np.array([9.0, 1.5, -2.0, 0.25, 3.0, -0.5])
    shares, rest = COLUMN.shares(text, relevance)
    np.testing.assert_allclose(shares.sum() + rest, relevance[1:].sum(), atol=1e-12)
    for share, word in zip(shares, words_in(text), strict=True):
        assert share == 0 or word in ("not", "good", "bad")


def test_relevance_of_a_tally_goes_to_words_of_its_sign() -> None:
    shares, rest = COLUMN.shares("good bad film", np.array([0, 6.0, 0, 0, 0, 0]))
    assert (shares.tolist(), rest) == ([6, 0, 0], 0)  # 30 - 20 is positive
    shares, rest = COLUMN.shares("not good", np.array([0, 0, 0, 0, 0, 8.0]))
    assert (shares.tolist(), rest) == ([4, 4], 0)
    assert COLUMN.shares("film", np.array([0, 1.0, 2, 3, 4, 5]))[1] == 15


def metadata(**changes: Any) -> dict[str, Any]:
    return {"texts": {"review": {**COLUMN.to_dict(), **changes}}}


def test_metadata_of_texts_survives_a_file() -> None:
    config = TabularConfig(input_shape=(6,), n_encoded=6)
    kept = json.loads(json.dumps(check_metadata(metadata(), config)))
    (column,) = text_columns(kept)
    np.testing.assert_array_equal(column.weights, COLUMN.weights)
    assert (column.tallies, column.words, column.inputs) == (COLUMN.tallies, COLUMN.words, [1, 2, 3, 4, 5])
    assert [each.name for each in data_columns({**kept, "features": list("abcdef")}, 6)] == ["a", "review"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"place": -1}, "place"),
        ({"place": 2}, "a place of its own"),
        ({"first": 0, "asked": 3}, "5 inputs after 0 others"),
        ({"first": 2}, "begins at inputs 2 and 4"),
        ({"asked": "4"}, "asked"),
        ({"tallies": [[2, "words"], [1, "pairs"]]}, "tallies"),
        ({"tallies": [[1, "words"], [1, "letters"]]}, "tallies"),
        ({"tallies": [[1, "words"]]}, "1 lists of 3 whole numbers"),
        ({"grams": ["bad", "bad", "good"]}, "different words"),
        ({"grams": ["bad", "", "good"]}, "1 to 200 characters"),
        ({"words": [1, 2]}, "a list of words"),
        ({"words": ["not"]}, "4 inputs after 1 others"),
        ({"weights": [[1, 2, 3], [1, 2]]}, "2 lists of 3"),
        ({"weights": [[1, 2, 0.5], [1, 2, 3]]}, "whole numbers"),
        ({"weights": [[1, 2, 10**9], [1, 2, 3]]}, "whole numbers"),
        ({"weights": None}, "2 lists of 3"),
    ],
)
def test_metadata_of_texts_is_checked(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        check_metadata(metadata(**changes), TabularConfig(input_shape=(6,), n_encoded=6))


def test_numbers_above_which_words_speak_fit_a_double() -> None:
    config = TabularConfig(input_shape=(6,), n_encoded=6, n_classes=1)
    check_metadata(metadata(tallies=[[1e300, "words"], [1, "pairs"]]), config)
    with pytest.raises(ArgumentError, match="tallies"):
        check_metadata(metadata(tallies=[[10**400, "words"], [1, "pairs"]]), config)


def test_metadata_of_texts_is_a_table() -> None:
    model = Tabular(TabularConfig(input_shape=(6,), n_encoded=6))
    for wrong in ([], {}, {"review": 3}):
        with pytest.raises(ArgumentError, match=r"metadata\.texts"):
            check_metadata({"texts": wrong}, model.config)
