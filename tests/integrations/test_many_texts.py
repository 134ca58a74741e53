"""The classes of many texts: each as if it was alone, words made of tokens, and the sums over all texts."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from lutetia.cli import main
from lutetia.errors import ArgumentError

pytest.importorskip("transformers")

import transformers

from integrations.hf_folders import IDS, SIZES, WORDS, byte_tokenizer, save, tiny, word_tokenizer
from lutetia.integrations.transformers import ByteTokenizer, explain_text_class, explain_text_classes, many_texts

Capture = pytest.CaptureFixture[str]
TEXTS = ["the cat sat on the mat", "Good dog", " \n", "very very bad", "a dog ran in the house not bad", "not", "not good"]


def reader(kind: str) -> Any:
    if kind == "bert":
        return tiny("classes")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SIZES, vocab_size=len(WORDS), max_position_embeddings=32, num_labels=3, **IDS)
    return transformers.LlamaForSequenceClassification(config).eval().double()


@pytest.mark.parametrize("kind", ["bert", "decoder"])
def test_a_text_among_many_is_explained_as_it_is_alone(kind: str) -> None:
    model, tokenizer = reader(kind), word_tokenizer()
    steps: list[tuple[int, int]] = []
    found = explain_text_classes(model, tokenizer, TEXTS, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(6, 6)]  # all in one run of the model, padded
    assert found.skipped == {2: "there are no words in it"}
    assert [each.row for each in found.texts] == [0, 1, 3, 4, 5, 6]
    for each in found.texts:
        alone = explain_text_class(model, tokenizer, each.text)
        assert (each.tokens, each.pieces) == (alone.tokens, alone.pieces)
        assert (each.prediction, each.target, each.against) == (alone.prediction, alone.target, alone.against)
        assert each.probability == pytest.approx(float(alone.probabilities[alone.prediction]), rel=1e-6)
        torch.testing.assert_close(each.relevance, alone.relevance, rtol=1e-4, atol=1e-6)
        assert each.rest == pytest.approx(alone.absorbed + alone.elsewhere, abs=1e-5)
        assert each.words == each.text.split()
        assert each.word_relevance == pytest.approx(alone.relevance[1:-1].tolist(), abs=1e-5)  # without <s> and </s>


@pytest.mark.parametrize("rules", ["gradient", None])
def test_texts_are_read_one_by_one_where_they_must_be(rules: str | None) -> None:
    model, tokenizer = tiny("classes"), word_tokenizer()
    if rules is None:
        model.config.pad_token_id = None  # a decoder could not tell what is padding
    steps: list[int] = []
    found = explain_text_classes(model, tokenizer, TEXTS[:2], "bad", "good", rules, lambda done, _: steps.append(done))
    assert steps == [1, 2]
    for each in found.texts:
        alone = explain_text_class(model, tokenizer, each.text, "bad", "good", rules)
        assert (each.target, each.against) == (0, 2)
        torch.testing.assert_close(each.relevance, alone.relevance)


def test_runs_of_the_model_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_texts, "TOKENS", 20)
    monkeypatch.setattr(many_texts, "AT_ONCE", 3)
    model, tokenizer = tiny("classes"), word_tokenizer()
    shapes: list[tuple[int, ...]] = []
    model.register_forward_pre_hook(lambda _, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True)
    explain_text_classes(model, tokenizer, TEXTS)
    assert shapes == [(2, 10), (3, 5), (1, 3)]


def test_the_words_of_a_class_are_added_up_over_all_texts() -> None:
    found = explain_text_classes(tiny("classes"), word_tokenizer(), TEXTS)
    for number, name in enumerate(found.names):
        totals: dict[str, float] = defaultdict(float)
        texts: dict[str, set[int]] = defaultdict(set)
        for each in found.texts:
            if number in (each.target, each.against):
                for word, value in zip(each.words, each.word_relevance, strict=True):
                    totals[word.lower()] += value if each.target == number else -value
                    texts[word.lower()].add(each.row)
        shares = found.words(name)
        assert {share.word: share.total for share in shares} == pytest.approx(dict(totals))
        assert {share.word: share.n_texts for share in shares} == {word: len(rows) for word, rows in texts.items()}
        assert [share.total for share in shares] == sorted(totals.values(), reverse=True)
        if shares:
            told = found.summary(most=2)[name]
            assert [share.word for share in told["for"]] == [share.word for share in shares[:2] if share.total > 0]
            assert [share.word for share in told["against"]] == [share.word for share in shares[:-3:-1] if share.total < 0]
        else:
            assert name not in found.summary()
    assert next(share.count for share in found.words(found.texts[2].target) if share.word == "very") == 2


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), ByteTokenizer()], ids=["fast", "slow"])
def test_tokens_are_put_together_to_words(tokenizer: Any) -> None:
    texts = ["Don't, héllo  wörld! 😀 ok", "中文很好 yes-no", "x\n\ny_1"]
    found = explain_text_classes(tiny("classes", vocab_size=len(tokenizer), max_position_embeddings=64), tokenizer, texts)
    assert [each.words for each in found.texts] == [
        ["Don't", ",", "héllo", "wörld", "!", "😀", "ok"],
        ["中", "文", "很", "好", "yes", "-", "no"],
        ["x", "y_1"],
    ]
    for each in found.texts:
        plain = [token not in (tokenizer.bos_token_id, tokenizer.eos_token_id) for token in each.tokens]
        spaces = [not piece.strip() and "\N{REPLACEMENT CHARACTER}" not in piece for piece in each.pieces]
        mine = sum(value for value, keep, space in zip(each.relevance.tolist(), plain, spaces, strict=True) if keep and not space)
        assert sum(each.word_relevance) == pytest.approx(mine, abs=1e-5)


def test_long_texts_are_cut() -> None:
    found = explain_text_classes(tiny("classes"), word_tokenizer(), ["the cat " * 40, "good"])
    long, short = found.texts
    assert (long.n_cut, len(long.tokens), len(long.words), short.n_cut) == (50, 32, 30, 0)
    assert "its last 50 tokens were not read" in found.to_html()


def test_what_is_refused() -> None:
    model, tokenizer = tiny("classes"), word_tokenizer()
    for texts in ("the cat", b"cat", [1], None):
        with pytest.raises(ArgumentError, match="a list of texts"):
            explain_text_classes(model, tokenizer, texts)  # type: ignore[arg-type]
    for texts in ([], ["", " "]):
        with pytest.raises(ArgumentError, match="no words, expected some"):
            explain_text_classes(model, tokenizer, texts)
    with pytest.raises(ArgumentError, match="which refuses input_ids"):
        explain_text_classes(tiny("images"), tokenizer, TEXTS)
    with pytest.raises(ArgumentError, match="did you mean good"):
        explain_text_classes(model, tokenizer, TEXTS, "goood")
    with pytest.raises(ArgumentError, match="did you mean good"):
        explain_text_classes(model, tokenizer, TEXTS).words("goood")


def test_a_table_and_html() -> None:
    found = explain_text_classes(tiny("classes"), word_tokenizer(), ["the <b> cat", "not good"])
    row = found.table()[0]
    assert row["text"] == "the <b> cat"
    assert set(row["words"]) == {"the", "<b>", "cat"}
    assert "<b>" not in found.to_html()
    assert "&lt;b&gt;" in found._repr_html_()
    assert repr(found).startswith("<TextClasses: 2 texts: ")


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("many")
    save("classes", here / "reader")
    (here / "reviews.csv").write_text('id,Text,stars\n1,"the cat, <b>",1\n2,very bad,5\n3,,2\n4,not good,3\n')
    (here / "lines.txt").write_text("the cat\n\nnot bad\n")
    return here


def test_a_column_of_texts(folder: Path, capsys: Capture, tmp_path: Path) -> None:
    page = tmp_path / "why.html"
    ask = ["explain", "--hf", str(folder / "reader"), "--texts", str(folder / "reviews.csv")]
    assert main([*ask, "--json", "--html", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["column"] == "Text"
    assert [(each["row"], each["line"], each["text"]) for each in told["texts"]] == [
        (0, 2, "the cat, <b>"),
        (1, 3, "very bad"),
        (3, 5, "not good"),
    ]
    assert told["skipped"] == [{"row": 2, "line": 4, "why": "there are no words in it"}]
    first = told["texts"][0]
    assert first["explained"] == pytest.approx(sum(first["relevance"]) + first["rest"], abs=1e-5)
    assert set(told["summary"]) <= set(told["classes"])
    assert "<b>" not in page.read_text()
    assert main(ask) == 0
    shown = capsys.readouterr()
    assert "of 3 texts" in shown.out
    assert "1 of 4 texts is without words, and skipped (line 4)" in shown.err
    assert "--texts" in shown.err  # what to do next


def test_a_file_of_lines(folder: Path, capsys: Capture) -> None:
    assert main(["explain", "--hf", str(folder / "reader"), "--texts", str(folder / "lines.txt"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(each["line"], each["text"]) for each in told["texts"]] == [(1, "the cat"), (3, "not bad")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--texts", "reviews.csv", "--column", "Texts"], "did you mean Text?"),
        (["--texts", "lines.txt", "--column", "text"], "--column is for tables"),
        (["--texts", "two.csv"], "has 2 columns ('a', 'b'), expected --column NAME"),
        (["--texts", "commas.csv"], "a text with commas needs quotes around it"),
        (["--texts", "empty.txt"], "has no texts, expected one in each line"),
        (["--texts", "no.txt"], "does not exist"),
        (["--texts", "reviews.csv", "a text"], "expected one of the two: INPUT, or --texts"),
        ([], "expected one of the two: INPUT, or --texts"),
        (["--column", "text", "a text"], "--column is a column of the file of --texts"),
        (["--texts", "lines.txt", "--png", "a.png"], "--png is for one text"),
        (["--texts", "lines.txt", "--check"], "--check is for one text"),
        (["--texts", "lines.txt", "--answer", "3"], "--answer is for models that write text"),
        (["reviews.csv"], "reviews.csv is a table, expected a text: --texts reviews.csv"),
    ],
)
def test_what_the_command_refuses(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(folder)
    Path("two.csv").write_text("a,b\nx,y\nz,w\n")
    Path("commas.csv").write_text("review\nGood, very\nbad\n")
    Path("empty.txt").write_text("\n \n")
    assert main(["explain", "--hf", "reader", *words]) != 0
    assert said in capsys.readouterr().err


def test_texts_are_for_models_of_transformers(capsys: Capture) -> None:
    assert main(["explain", "run", "--texts", "a.csv"]) != 0
    assert "--texts is for models of transformers: --hf" in capsys.readouterr().err
    assert main(["explain", "run"]) != 0
    assert "missing argument 'INPUT'" in capsys.readouterr().err
