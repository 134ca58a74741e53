"""Shapley values of the words of a text, for models of transformers: by their definition."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from lutetia.cli import main
from lutetia.errors import ArgumentError

pytest.importorskip("transformers")

from integrations.hf_folders import TEXT, byte_tokenizer, save, tiny, word_tokenizer
from lutetia.integrations.transformers import (
    ByteTokenizer,
    ShapleyValues,
    explain_answer,
    explain_masked_token,
    explain_next_token,
    explain_similarity,
    explain_text_class,
    explain_text_classes,
)
from lutetia.integrations.transformers.shapley import word_groups

Capture = pytest.CaptureFixture[str]
SHORT = "not very good"


def by_definition(count: int, score: Callable[[set[int]], float]) -> list[float]:
    """What each word adds when it joins, averaged over all orders."""
    orders = list(permutations(range(count)))
    values = [0.0] * count
    for order in orders:
        for at, word in enumerate(order):
            values[word] += (score({*order[: at + 1]}) - score({*order[:at]})) / len(orders)
    return values


@pytest.mark.parametrize("baseline", [None, 0, "none"])
def test_a_class_by_the_definition(baseline: Any) -> None:
    model, tokenizer = tiny("classes"), word_tokenizer()
    found = explain_text_class(model, tokenizer, SHORT, rules=ShapleyValues(baseline=baseline, at_once=3))
    begin, *words, end = found.tokens
    blank = tokenizer.mask_token_id if baseline is None else baseline

    def score(there: set[int]) -> float:
        row = [token if at in there else blank for at, token in enumerate(words)]
        row = [token for token in row if token != "none"]
        logits = model(input_ids=torch.tensor([[begin, *row, end]])).logits[0].detach()
        return float(logits[found.target] - logits[found.against])

    assert found.relevance.tolist() == pytest.approx([0, *by_definition(3, score), 0], abs=1e-6)
    assert found.absorbed == pytest.approx(score(set()))
    assert (found.exact, found.runs) == (True, 9)  # the text, and every part of it
    assert float(found.relevance.sum()) + found.absorbed == pytest.approx(found.explained, abs=1e-6)


def test_the_next_token_by_the_definition() -> None:
    """Words are left out; special tokens are not."""
    model, tokenizer = tiny("llama"), word_tokenizer()
    tokenizer.mask_token = None
    found = explain_next_token(model, tokenizer, SHORT, rules="shapley")
    begin, *words = found.tokens

    def score(there: set[int]) -> float:
        row = [begin, *(token for at, token in enumerate(words) if at in there)]
        logits = model(input_ids=torch.tensor([row])).logits[0, -1].detach()
        return float(logits[found.target] - logits[found.against])

    assert found.relevance.tolist() == pytest.approx([0, *by_definition(3, score)], abs=1e-6)
    assert found.layers.numel() == found.heads.numel() == 0


def test_where_no_token_is_left_the_first_is_read() -> None:
    model, tokenizer = tiny("llama", vocab_size=300), ByteTokenizer()
    found = explain_next_token(model, tokenizer, "ab c", rules=ShapleyValues(baseline="none"))

    def score(*row: int) -> float:
        logits = model(input_ids=torch.tensor([row])).logits[0, -1].detach()
        return float(logits[found.target] - logits[found.against])

    *begin, last = found.tokens
    nothing, first, second, both = score(tokenizer.pad_token_id), score(*begin), score(last), score(*begin, last)
    shares = [(first - nothing + both - second) / 6] * 3  # a space belongs to the word before
    assert found.relevance.tolist() == pytest.approx([*shares, (second - nothing + both - first) / 2], abs=1e-6)


def test_orders_that_are_drawn_add_up_and_come_near() -> None:
    model, tokenizer = tiny("classes"), word_tokenizer()
    every = explain_text_class(model, tokenizer, TEXT, rules=ShapleyValues(25))
    assert every.exact
    assert every.runs == 2**6 + 1
    drawn = explain_text_class(model, tokenizer, TEXT, rules=ShapleyValues(10, at_once=7))
    assert (drawn.exact, drawn.runs) == (False, 1 + 2 + 10 * 5)
    assert float(drawn.relevance.sum()) + drawn.absorbed == pytest.approx(drawn.explained, abs=1e-6)
    largest = float(every.relevance.abs().max())
    torch.testing.assert_close(drawn.relevance, every.relevance, rtol=0, atol=0.35 * largest)
    assert not torch.allclose(drawn.relevance, every.relevance, atol=1e-4)
    other = explain_text_class(model, tokenizer, TEXT, rules=ShapleyValues(10, seed=1))
    assert not torch.allclose(drawn.relevance, other.relevance, atol=1e-4)


def test_a_masked_word_and_many_texts() -> None:
    masked, tokenizer = tiny("masked"), word_tokenizer()
    found = explain_masked_token(masked, tokenizer, "the cat <mask> on", rules=ShapleyValues(baseline=0))
    place = found.tokens.index(tokenizer.mask_token_id)
    assert found.relevance[place] == 0
    assert float(found.relevance.sum()) + found.absorbed == pytest.approx(found.explained, abs=1e-6)
    model = tiny("classes")
    texts = explain_text_classes(model, tokenizer, [SHORT, TEXT], rules="shapley").texts
    for each in texts:
        alone = explain_text_class(model, tokenizer, each.text, rules="shapley")
        torch.testing.assert_close(each.relevance, alone.relevance)
        assert each.rest == pytest.approx(alone.absorbed, abs=1e-5)


def test_words_of_tokens() -> None:
    tokenizer = word_tokenizer()
    both = tokenizer("not good", "the cat")["input_ids"]
    assert word_groups(tokenizer, both, ("not good", "the cat")) == [-1, 0, 1, -1, 2, 3, -1]
    for bytes_, text in ((byte_tokenizer(), "a cat's é, ok"), (ByteTokenizer(), "a cat's é, ok")):
        tokens = [token for token in bytes_(text)["input_ids"] if bytes_.decode([token]) not in ("<s>", bytes_.eos_token)]
        expected = [0, 0, *[1] * 6, 2, 2, 3, 3, 4, 4]
        for texts in ((), (text,)):
            groups = word_groups(bytes_, tokens, texts)
            assert [each - groups[0] for each in groups] == expected, texts


def test_the_command(tmp_path: Path, capsys: Capture) -> None:
    folder, page = str(save("classes", tmp_path / "model")), tmp_path / "why.html"
    words = ["explain", "--hf", folder, TEXT, "--rule", "shapley"]
    assert main([*words, "--samples", "4", "--baseline", "pad", "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["samples"], told["baseline"], told["runs"], told["exact"]) == (4, "pad", 1 + 2 + 4 * 5, False)
    found = explain_text_class(tiny("classes"), word_tokenizer(), TEXT, rules=ShapleyValues(4, 0))
    assert told["relevance"] == pytest.approx(found.relevance.tolist(), abs=1e-5)
    assert "Shapley values: " in page.read_text()
    assert main(words) == 0
    assert "without any words; the model read 65 texts, exact (rule shapley)" in capsys.readouterr().out
    for more, reason in (
        (["--samples", "0"], "--samples is 0, expected 1 to 10,000"),
        (["--samples", "3", "--rule", "gradient"], "--samples is for --rule shapley"),
        (["--steps", "3"], "--steps is for --rule integrated"),
        (["--baseline", "mean"], "--baseline is 'mean', expected none, pad"),
    ):
        assert main([*words, *more]) == 2
        assert reason in capsys.readouterr().err
    writer = str(save("gpt2", tmp_path / "writer"))
    assert main(["explain", "--hf", writer, TEXT, "--rule", "shapley", "--answer", "2"]) == 2
    assert "--rule shapley is for a token or a class" in capsys.readouterr().err
    assert main(["explain", "--hf", writer, SHORT, "--rule", "shapley", "--baseline", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 9


def test_what_is_refused() -> None:
    tokenizer = word_tokenizer()
    for given, reason in (
        (lambda: ShapleyValues(0), "samples is 0"),
        (lambda: ShapleyValues(baseline="mean"), "baseline is 'mean', expected 'none', the number of a token"),
        (lambda: explain_text_class(tiny("classes"), tokenizer, TEXT, rules=ShapleyValues(baseline=999)), "baseline is 999"),
        (lambda: explain_masked_token(tiny("masked"), tokenizer, "a <mask>", rules=ShapleyValues(baseline="none")), "its place"),
        (lambda: explain_masked_token(tiny("masked"), tokenizer, "<mask>", rules="shapley"), "special tokens alone"),
        (lambda: explain_answer(tiny("llama"), tokenizer, TEXT, 2, "shapley"), "rules is 'shapley', expected other rules"),
        (lambda: explain_similarity(tiny("encoder"), tokenizer, (TEXT, SHORT), rules=ShapleyValues()), "rules is "),
    ):
        with pytest.raises(ArgumentError, match=reason):
            given()
