"""Characters that are split over several tokens are shown whole, with the relevance of all of their tokens."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lutetia.cli import main
from lutetia.cli.hf_shared import shown_tokens
from lutetia.errors import ArgumentError

pytest.importorskip("transformers")

import transformers

from integrations.hf_folders import byte_tokenizer, save, word_tokenizer
from lutetia.integrations.transformers import ByteTokenizer, WholePieces, whole_pieces

Capture = pytest.CaptureFixture[str]
BROKEN = "\N{REPLACEMENT CHARACTER}"


def fallback_tokenizer() -> Any:
    """As SentencePiece writes bytes: <0xC3>. Several that are no text become as many signs, and the first space is left out."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, **{f"<0x{byte:02X}>": 4 + byte for byte in range(256)}}
    pieces = Tokenizer(models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    pieces.decoder = decoders.Sequence(steps)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, unk_token="<unk>")


# Fast and slow ones; that of ByT5 writes nothing for a part of a character.
TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte-level": byte_tokenizer,
    "fallback": fallback_tokenizer,
    "ours": ByteTokenizer,
    "ByT5": lambda: transformers.ByT5Tokenizer(),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_character_is_a_piece(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    rng = random.Random(3)
    for _ in range(50):
        text = "".join(rng.choice("abé😀你好ßñ🇫\u200d") for _ in range(rng.randrange(1, 12)))
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = whole_pieces(tokenizer, tokens)
        assert [piece for piece in found.texts if piece] == list(text)  # the mark of a first space is empty
        sizes = [size for piece, size in zip(found.texts, found.sizes, strict=True) if piece]
        assert sizes == [1 if kind == "fallback" and each in "ab" else len(each.encode()) for each in text]
        assert sum(found.sizes) == len(tokens)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_sign_for_a_broken_character_may_be_typed(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    tokens = tokenizer(f"{BROKEN}é{BROKEN}", add_special_tokens=False)["input_ids"]
    assert [piece for piece in whole_pieces(tokenizer, tokens).texts if piece] == [BROKEN, "é", BROKEN]


def test_a_token_that_holds_more_than_its_part_of_a_character() -> None:
    tokenizer = byte_tokenizer()
    tokens = tokenizer("a 😀b")["input_ids"]
    assert whole_pieces(tokenizer, tokens) == WholePieces(["<s>", "a", " 😀", "b"], [1, 1, 4, 1])


def test_bytes_that_are_no_text_stay_as_they_are() -> None:
    tokens = [0x80, 0x80, 0xC3, 0xA9, 0xE4, 0xBD, 0x41, 0xE4]
    assert whole_pieces(ByteTokenizer(), tokens) == WholePieces(
        [BROKEN, BROKEN, "é", BROKEN, "A", BROKEN], [1, 1, 2, 2, 1, 1]
    )  # E4 BD is the beginning of one character
    many = whole_pieces(ByteTokenizer(), [0xFF] * 200 + [0xC3, 0xA9])
    assert many == WholePieces([BROKEN] * 200 + ["é"], [1] * 200 + [2])


def test_words_and_spaces_stay_single() -> None:
    words = word_tokenizer()
    assert whole_pieces(words, words("the cat")["input_ids"]) == WholePieces(["<s>", "the", "cat", "</s>"], [1] * 4)
    spaces = fallback_tokenizer()
    assert whole_pieces(spaces, spaces("   a")["input_ids"]).sizes == [1] * 4  # the first of them decodes to nothing


def test_relevance_is_added_up() -> None:
    pieces = WholePieces(["é", "x", "你"], [2, 1, 3])
    values = torch.tensor([[1.0, 2, 4, 8, 16, 32], [0, 0, 0, 0, 0, -1]])
    assert pieces.summed(values).tolist() == [[3, 4, 56], [0, 0, -1]]
    for wrong in (values[:, :5], torch.tensor(1.0), None):
        with pytest.raises(ArgumentError, match="relevance"):
            pieces.summed(wrong)  # type: ignore[arg-type]
    for tokens in ("abc", [1.5], [True]):
        with pytest.raises(ArgumentError, match="tokens"):
            whole_pieces(ByteTokenizer(), tokens)  # type: ignore[arg-type]


def test_unknown_words_are_words_unless_they_begin_texts() -> None:
    words = word_tokenizer()
    shown = shown_tokens(words, words("the zebra sat")["input_ids"])
    assert (shown.texts[2], shown.special) == ("<unk>", [0, 4])
    assert shown.limit(torch.tensor([9.0, 1.0, -3.0, 2.0, 7.0])) == 3
    assert shown.limit(torch.tensor([9.0, 0.0, 0.0, 0.0, 7.0])) is None
    words.unk_token = "<s>"  # as in GPT-2
    assert shown_tokens(words, [1, 5]).special == [0]
    assert shown_tokens(words, [5, 7]).legend() == ""


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama", "masked", "classes"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(request.param, tmp_path_factory.mktemp(request.param), byte_tokenizer())


def test_screen_page_and_json_show_characters(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    page, typed = tmp_path / "why.html", "é<b>你" + ("<mask>" if "masked" in folder.name else "")
    words = ["explain", "--hf", str(folder), typed, *([] if "classes" in folder.name else ["--target", "x", "--against", "y"])]
    assert main([*words, "--json", "--html", str(page), "--png", str(tmp_path / "why.png")]) == 0
    told = json.loads(capsys.readouterr().out)
    special = ["<mask>"] if "masked" in folder.name else []
    assert [each["text"] for each in told["shown"]] == ["<s>", "é", "<", "b", ">", "你", *special]
    assert [each["tokens"] for each in told["shown"]] == [1, 2, 1, 1, 1, 3, *[1 for _ in special]]
    assert len(told["relevance"]) == len(told["tokens"]) == 9 + len(special)
    assert told["shown"][1]["relevance"] == pytest.approx(sum(told["relevance"][1:3]), rel=1e-5, abs=1e-7)
    assert told["shown"][5]["relevance"] == pytest.approx(sum(told["relevance"][6:9]), rel=1e-5, abs=1e-7)
    assert main(words) == 0
    screen = capsys.readouterr().out
    for shown in (screen, page.read_text("utf-8")):
        assert BROKEN not in shown
        assert "é" in shown
        assert "你" in shown
    assert "Special tokens such as '<s>' do not set the scale, the other tokens do." in screen
    assert "do not set the scale, the other tokens do." in page.read_text("utf-8")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes "é" again and again after a text that ends in one: each next token is looked up from the last."""
    tokenizer = byte_tokenizer()
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=False,
            eos_token_id=None,
        )
    )
    first, second = tokenizer("é", add_special_tokens=False)["input_ids"]
    torch.manual_seed(0)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_()
        model.lm_head.weight.zero_()
        for this, following in ((first, second), (second, first)):
            model.lm_head.weight[following] += 5 * model.get_input_embeddings().weight[this]
    path = tmp_path_factory.mktemp("decoder")
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_an_answer_of_split_characters(decoder: Path, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "why.html"
    words = ["explain", "--hf", str(decoder), "x é", "--answer", "5"]
    assert main([*words, "--json", "--html", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["answer_text"].startswith("éé")
    assert [(each["text"], each["tokens"]) for each in told["answer_shown"]] == [("é", 2), ("é", 2), (BROKEN, 1)]
    assert told["answer_shown"][1]["probability"] == pytest.approx(told["probabilities"][2] * told["probabilities"][3])
    every = [1, 1, 1, 2, 2, 2, 1]  # tokens: <s>, x, a space, é; é, é, and the first half of one
    firsts = [sum(every[:at]) for at in range(len(every))]
    for at, rows in enumerate(([0, 1], [2, 3], [4])):
        sums = [sum(told["relevance"][row][place] for row in rows for place in range(first, first + size))
                for first, size in zip(firsts, every, strict=True)]  # fmt: skip
        assert told["answer_shown"][at]["own"] == pytest.approx(sums[4 + at], rel=1e-4, abs=1e-5)
        sums[4 + at :] = [0] * (3 - at)
        assert told["answer_shown"][at]["relevance"] == pytest.approx(sums, rel=1e-4, abs=1e-5)
    assert [abs(each["own"]) > 1 for each in told["answer_shown"]] == [True, True, False]
    data = re.search(r'id="answer-data">(.*?)</script>', page.read_text("utf-8"))
    assert data is not None
    notes = [row["note"] for row in json.loads(data[1])["rows"]]
    assert notes[0].startswith("'é' had a probability of ")
    assert "the scores of its 2 tokens are" in notes[0]
    assert f"its own tokens {told['answer_shown'][0]['own']:.3g}." in notes[0]
    assert notes[2].startswith("a part of a character (token ")
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    written = [line for line in lines if re.search(r"% +from ", line)]
    assert [line.partition("  ")[0].strip() for line in written][:1] == ["'é'"]
    assert len(written) == 3
    assert BROKEN not in "\n".join(written)
