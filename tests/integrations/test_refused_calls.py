"""Explanations of models of `transformers`: wrong arguments are refused, and the error says what was expected."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lutetia.errors import LutetiaError

pytest.importorskip("transformers")

import transformers

from integrations.hf_folders import TEXT, byte_tokenizer, tiny, word_tokenizer
from lutetia.integrations.transformers import (
    explain_answer,
    explain_image_class,
    explain_masked_token,
    explain_next_token,
    explain_text_class,
    leave_out,
    load_decoder,
    load_model,
    whole_pieces,
)

WORDS, BYTES = word_tokenizer(), byte_tokenizer()
PIXELS = transformers.ViTImageProcessor(size={"height": 16, "width": 16})
MASKED, IMAGE = "the <mask> sat", torch.rand(3, 16, 16)
KINDS: dict[str, Any] = {}


def model(kind: str) -> Any:
    if kind not in KINDS:
        KINDS[kind] = tiny(kind).float()
    return KINDS[kind]


def talking() -> Any:
    """A tokenizer whose chat template refuses what it is given."""
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    return tokenizer


def left_out(**changes: Any) -> object:
    found = explain_text_class(model("classes"), WORDS, TEXT)
    return leave_out(**{"model": model("classes"), "tokenizer": WORDS, "found": found, **changes})


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "no model": (lambda: explain_answer(3, WORDS, TEXT), "model is 3, expected a model of transformers"),
    "no model for a class": (lambda: explain_text_class("x", WORDS, TEXT), "model is 'x'"),
    "no model for an image": (lambda: explain_image_class(torch.nn.Linear(1, 1), PIXELS, IMAGE), "model is Linear"),
    "no tokenizer": (lambda: explain_answer(model("llama"), b"ab", TEXT), "tokenizer is "),
    "an image processor for a token": (
        lambda: explain_next_token(model("llama"), PIXELS, TEXT),
        "tokenizer is ViTImage",
    ),
    "a tokenizer for an image": (lambda: explain_image_class(model("images"), WORDS, IMAGE), "processor is TokenizersBackend"),
    "a reader that writes": (lambda: explain_answer(model("classes"), WORDS, TEXT), "model is BertFor.* one that writes text"),
    "a mask that writes": (lambda: explain_next_token(model("masked"), WORDS, TEXT), "model is BertFor.* one that writes text"),
    "a next token of T5": (lambda: explain_next_token(model("t5"), WORDS, TEXT), "model is T5.*explain_answer"),
    "a class of T5": (lambda: explain_text_class(model("t5"), WORDS, TEXT), "model is T5.*, which refuses input_ids"),
    "a class of a decoder": (lambda: explain_text_class(model("gpt2"), WORDS, TEXT), "model is GPT2.* scores of classes"),
    "an image's mask": (lambda: explain_masked_token(model("images"), WORDS, MASKED), "model is ViT.*, which refuses input_ids"),
    "a text for an image": (lambda: explain_image_class(model("classes"), PIXELS, IMAGE), "model is Bert.*refuses pixel_values"),
    "another tokenizer": (lambda: explain_next_token(model("gpt2"), BYTES, TEXT), "the text has token .* its own tokenizer"),
    "another answer": (lambda: explain_answer(model("gpt2"), BYTES, TEXT, 1), "the text has token .* its own tokenizer"),
    "another class": (lambda: explain_text_class(model("classes"), BYTES, TEXT), "the text has token .* its own tokenizer"),
    "a prompt of bytes": (lambda: explain_answer(model("llama"), WORDS, b"ab"), "prompt is "),
    "a prompt of numbers": (lambda: explain_next_token(model("llama"), WORDS, [1, 2]), "prompt is "),
    "messages": (lambda: explain_answer(model("llama"), talking(), [{"role": "user"}]), "the chat template refuses.*alternate"),
    "a text of a number": (lambda: explain_masked_token(model("masked"), WORDS, 3), "text is 3, expected a text with one mask"),
    "three texts": (lambda: explain_text_class(model("classes"), WORDS, ("a", "b", "c")), "text is .*, or a pair of texts"),
    "no texts": (lambda: explain_text_class(model("classes"), WORDS, ()), "text is "),
    "half a character": (lambda: explain_answer(model("llama"), WORDS, "\ud800"), "the tokenizer refuses the text"),
    "an image of nothing": (
        lambda: explain_image_class(model("images"), PIXELS, None),
        "image is None, which the .* refuses",
    ),
    "a token that nobody knows": (
        lambda: explain_next_token(model("llama"), WORDS, TEXT, "ox"),
        "target is 'ox', which the tokenizer does not know",
    ),
    "a token of no kind": (lambda: explain_next_token(model("llama"), WORDS, TEXT, 1.5), "target is 1.5, expected an integer"),
    "a class of no kind": (
        lambda: explain_text_class(model("classes"), WORDS, TEXT, 0, ()),
        r"against is \(\), expected an",
    ),
    "rules": (lambda: explain_answer(model("llama"), WORDS, TEXT, 1, {"a": 1}), "rules is "),
    "progress": (lambda: explain_answer(model("llama"), WORDS, TEXT, 1, None, 3), "advance is 3"),
    "a truth for an answer": (lambda: explain_answer(model("llama"), WORDS, TEXT, True), "answer is True"),
    "leaving out of no model": (lambda: left_out(model=3), "model is 3"),
    "leaving out without a tokenizer": (lambda: left_out(tokenizer={}), "tokenizer is "),
    "half a draw": (lambda: left_out(draws=1.5), "draws is 1.5"),
    "a seed": (lambda: left_out(seed="x"), "seed is 'x'"),
    "a folder of a number": (lambda: load_model(3), "folder is 3"),
    "a folder of bytes": (lambda: load_decoder(b"ab"), "folder is "),
    "a long name": (lambda: load_decoder("a" * 300), "a* is not a folder"),
    "no list": (lambda: whole_pieces(WORDS, 3), "tokens is 3"),
    "no token": (lambda: whole_pieces(WORDS, [-1]), "one of tokens is -1"),
    "a token without end": (lambda: whole_pieces(WORDS, [10**30]), "one of tokens is 1000"),
    "nothing that decodes": (lambda: whole_pieces("x", [1]), "tokenizer is 'x'"),
    "bytes that decode": (lambda: whole_pieces(b"x", [1]), "tokenizer is b'x'"),
    "eight bits": (lambda: whole_pieces(WORDS, [1]).summed(torch.ones(1).to(torch.float8_e4m3fn)), "relevance is float8"),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_refused(name: str) -> None:
    call, words = CALLS[name]
    with pytest.raises(LutetiaError, match=rf"^{words}"):
        call()


def test_what_is_right_is_not_refused() -> None:
    """The same calls without what is wrong in them."""
    assert explain_answer(model("llama"), WORDS, TEXT, 1, None, lambda done, count: None).answer
    assert explain_masked_token(model("masked"), WORDS, MASKED).tokens
    assert explain_text_class(model("classes"), WORDS, ["the cat", "a dog"]).tokens
    found = explain_image_class(model("images"), PIXELS, IMAGE)
    assert found.relevance.shape == (16, 16)
    with pytest.raises(LutetiaError, match="found is"):
        left_out(found=dataclasses.replace(found))
