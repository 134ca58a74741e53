"""Explanations of models of transformers in a notebook: one sentence as text, coloured tokens or pixels as HTML."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from integrations.hf_folders import TEXT, tiny, word_tokenizer
from lutetia.integrations.transformers import ClassExplanation, explain_answer, explain_next_token
from lutetia.relevance import pictures


def shown(piece: str) -> str:
    """The text of a piece of HTML."""
    return unescape(re.sub(r"<[^>]+>", "|", piece))


def test_a_token_is_told_by_its_text_and_drawn_with_all_others(tmp_path: Path) -> None:
    found = explain_next_token(tiny("llama"), word_tokenizer(), TEXT, target="dog", against="cat")
    assert repr(found) == f"<TokenExplanation: what put 'dog' {found.explained:.4g} above 'cat'>"
    piece = found._repr_html_()
    assert [unescape(each) for each in re.findall(r'title="[^"]*">([^<]*)<', piece)] == found.pieces
    assert found.said() in shown(piece)
    assert piece in pictures.page(found.to_html(), path=tmp_path / "why.html")
    assert piece in (tmp_path / "why.html").read_text(encoding="utf-8")


def test_an_answer_is_drawn_as_its_prompt_and_a_row_for_each_token() -> None:
    found = explain_answer(tiny("llama"), word_tokenizer(), TEXT, "a dog ran")
    assert repr(found) == f"<AnswerExplanation: what 3 tokens of an answer to {len(found.tokens)} tokens were made from>"
    piece = found._repr_html_()
    for at, word in enumerate(("a", "dog", "ran")):
        best = int(found.relevance[at].argmax())
        source = f"{[*found.pieces, *found.answer_pieces][best]!r} {float(found.relevance[at, best]):+.3g}"
        row = f"|{word!r}||{float(found.probabilities[at]):.1%}||{found.rival_pieces[at]!r}||{source}"
        assert row in shown(piece)


@pytest.mark.parametrize("is_image", [True, False])
def test_a_class_is_told_by_its_name_which_is_escaped(is_image: bool) -> None:
    logits, empty = torch.tensor([1.0, 3.5]), torch.zeros(0, 0)
    names, pieces = ["<cat>", "dog"], [] if is_image else ["<s>", "bark"]
    relevance, pixels = (torch.eye(3), torch.rand(3, 3, 3)) if is_image else (torch.tensor([0.5, 2.0]), None)
    found = ClassExplanation(names, logits, 1, 0, True, 1, relevance, 0.0, 0.0, [4, 5][: len(pieces)], pieces, empty, pixels)
    assert repr(found) == "<ClassExplanation: what put dog 2.5 above <cat>>"
    piece = found._repr_html_()
    assert "what put dog 2.5 above &lt;cat&gt;" in piece
    assert "<cat>" not in piece
    assert "<s>" not in piece
    assert ("data:image/png" in piece) == is_image
    alone = ClassExplanation(names, logits, 1, None, False, 1, relevance, 0.0, 0.0, [4, 5][: len(pieces)], pieces, empty, pixels)
    assert alone.said() == "what put dog 3.5 above 0"
