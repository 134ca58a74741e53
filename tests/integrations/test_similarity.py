"""Why an encoder of transformers finds two texts alike, and which tokens of one go with which of the other."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lutetia.cli import main
from lutetia.errors import ArgumentError, DataError

pytest.importorskip("transformers")

import transformers

from integrations.hf_folders import TEXT, WORDS, save, tiny, word_tokenizer
from lutetia import relevance
from lutetia.integrations.transformers import IntegratedGradients, explain_similarity, load_model, similarity
from lutetia.integrations.transformers.pooling import pooling_of

Capture = pytest.CaptureFixture[str]
TEXTS = (TEXT, "a dog ran in the house")
POOLED = {"mean": lambda h: h.mean(1), "first": lambda h: h[:, 0], "last": lambda h: h[:, -1], "max": lambda h: h.amax(1)}


class TwoTowers(nn.Module):
    """The cosine of both texts in one graph: the product of two activations, whose rule gives each half."""

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        self.model, self.pool = model, POOLED[pooling]

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        one, two = (self.pool(self.model(input_ids=each).last_hidden_state) for each in (first, second))
        return (one / one.norm(dim=-1, keepdim=True) * two / two.norm(dim=-1, keepdim=True)).sum(-1, keepdim=True)


@pytest.mark.parametrize("pooling", POOLED)
def test_both_texts_in_one_graph_get_the_same(pooling: str) -> None:
    model, tokenizer = tiny("encoder"), word_tokenizer()
    found = explain_similarity(model, tokenizer, TEXTS, pooling)
    ids = [tokenizer(each, return_tensors="pt")["input_ids"] for each in TEXTS]
    towers = TwoTowers(model, pooling).eval()
    plain = relevance.attribute(towers, tuple(ids), rules=relevance.presets.attnlrp())
    assert found.similarity == pytest.approx(float(towers(*ids).detach()), rel=1e-6)
    for mine, each in zip(found.relevance, ids, strict=True):
        torch.testing.assert_close(mine.double(), plain[each][0].double(), rtol=1e-3, atol=1e-6)
    added = sum(float(each.sum()) for each in found.relevance) + found.absorbed + found.elsewhere
    assert added == pytest.approx(found.similarity, rel=1e-5)
    assert found.absorbed == pytest.approx(plain.report.absorbed, rel=1e-3)
    assert found.tokens == tuple(each[0].tolist() for each in ids)
    assert found.pooling == pooling
    assert [each.shape for each in found.layers] == [(2, len(each)) for each in found.tokens]


@pytest.mark.parametrize("kind", ["encoder", "decoder", "t5"])
def test_gradient_times_input_is_that_of_the_cosine(kind: str) -> None:
    model, tokenizer = tiny("encoder" if kind == "encoder" else "llama" if kind == "decoder" else "t5"), word_tokenizer()
    model = {"encoder": lambda: model, "decoder": lambda: model.model, "t5": lambda: model.get_encoder()}[kind]()
    found = explain_similarity(model, tokenizer, TEXTS, "mean", rules="gradient")
    ids = [tokenizer(each, return_tensors="pt")["input_ids"] for each in TEXTS]
    embedded = [model.get_input_embeddings()(each).detach().requires_grad_() for each in ids]
    one, two = (model(inputs_embeds=each).last_hidden_state.mean(1)[0] for each in embedded)
    cosine = torch.cosine_similarity(one, two, 0)
    for mine, each, slope in zip(found.relevance, embedded, torch.autograd.grad(cosine, embedded), strict=True):
        torch.testing.assert_close(mine.double(), (each * slope).sum(-1)[0].detach() / 2, rtol=1e-4, atol=1e-7)
    assert found.similarity == pytest.approx(float(cosine.detach()), rel=1e-6)
    added = sum(float(each.sum()) for each in found.relevance) + found.absorbed + found.elsewhere
    assert added == pytest.approx(found.similarity, abs=1e-6)


def test_what_two_steps_of_integrated_gradients_miss() -> None:
    rules = IntegratedGradients(2)
    found = explain_similarity(tiny("encoder"), word_tokenizer(), TEXTS, rules=rules)
    assert abs(found.gap) > 1e-4
    added = sum(float(each.sum()) for each in found.relevance) + found.absorbed + found.elsewhere + found.gap
    assert added == pytest.approx(found.similarity, abs=1e-6)


class Plain(nn.Module):
    """An encoder without biases, linear between kinks: its LRP-0 is gradient times input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(model_type="plain", get_text_config=lambda: SimpleNamespace())
        self.device = torch.device("cpu")
        self.table = nn.Embedding(len(WORDS), 6)
        self.inner, self.outer = nn.Linear(6, 9, bias=False), nn.Linear(9, 5, bias=False)
        self.double()

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def states(self, x: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(x + 0.5 * x.mean(1, keepdim=True))))

    def forward(self, input_ids: Tensor, **rest: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self.states(self.table(input_ids)))


@pytest.mark.parametrize("numbers", [2**24, 1])
def test_pairs_are_products_of_two_jacobians(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """R_ij = Σ_k (∂a_k/∂x_i · x_i)(∂b_k/∂y_j · y_j) / |a||b|, and without biases they add up to the cosine."""
    monkeypatch.setattr(similarity, "NUMBERS", numbers)
    model, tokenizer = Plain(), word_tokenizer()
    done: list[tuple[int, int]] = []
    rules = relevance.presets.epsilon(eps=0.0)
    found = explain_similarity(model, tokenizer, TEXTS, "mean", True, rules, lambda *told: done.append(told))
    parts = []
    for each in TEXTS:
        x = model.table(tokenizer(each, return_tensors="pt")["input_ids"]).detach()
        slopes = torch.autograd.functional.jacobian(lambda given: model.states(given).mean(1)[0], x)[:, 0]
        parts.append((slopes * x).sum(-1) / model.states(x).mean(1).norm())  # [5, S]
    assert found.pairs is not None
    torch.testing.assert_close(found.pairs.double(), parts[0].T @ parts[1], rtol=1e-5, atol=1e-6)
    assert float(found.pairs.sum()) == pytest.approx(found.similarity, rel=1e-5)
    assert found.rest == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(found.pairs.sum(1) / 2, found.relevance[0], rtol=1e-5, atol=1e-6)
    assert done[-1] == (10, 10)  # five numbers in the embedding of each
    assert len(done) == (2 if numbers > 1 else 10)


def test_pairs_of_an_encoder_with_biases() -> None:
    model, tokenizer = tiny("encoder"), word_tokenizer()
    found, turned = (explain_similarity(model, tokenizer, texts, "mean", pairs=True) for texts in (TEXTS, TEXTS[::-1]))
    assert found.pairs is not None
    assert turned.pairs is not None
    assert found.pairs.shape == (8, 8)
    torch.testing.assert_close(found.pairs, turned.pairs.T, rtol=1e-4, atol=1e-7)
    assert float(found.pairs.double().sum()) + found.rest == pytest.approx(found.similarity, rel=1e-5)
    assert explain_similarity(model, tokenizer, TEXTS).pairs is None
    (one, two, value), *_ = found.strongest(3)
    assert value == pytest.approx(float(found.pairs[1:-1, 1:-1].max()))
    assert found.pairs[one, two] == pytest.approx(value)
    same = explain_similarity(model, tokenizer, (TEXT, TEXT))
    assert same.similarity == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(*same.relevance)


def test_a_text_with_markup_on_a_page() -> None:
    found = explain_similarity(tiny("encoder"), word_tokenizer(), ("the <b> cat", "<b> dog"), pairs=True)
    assert "&lt;b&gt;" in found.to_html()
    assert "<b>" not in found.to_html()
    assert repr(found) == f"<SimilarityExplanation: {found.said()}>"


def test_what_is_refused() -> None:
    model, tokenizer = tiny("encoder"), word_tokenizer()
    for given, reason in (
        ({"model": tiny("masked")}, r"model is BertForMaskedLM, expected an encoder.*model\.base_model"),
        ({"model": tiny("t5")}, "model is T5ForConditionalGeneration.*expected an encoder"),
        ({"texts": TEXT}, "texts is .*, expected a pair of texts"),
        ({"texts": (TEXT, 3)}, "texts is .*, expected a pair of texts"),
        ({"texts": (TEXT, " ")}, "the second text is empty, expected some words"),
        ({"texts": ("cat " * 40, TEXT)}, "42 tokens long, expected at most 32"),
        ({"pooling": "median"}, "pooling is 'median'"),
        ({"rules": 3}, "rules is 3"),
        ({"pairs": torch.ones(2)}, "pairs is "),
        ({"advance": 3}, "advance is 3"),
    ):
        with pytest.raises(ArgumentError, match=reason):
            explain_similarity(**{"model": model, "tokenizer": tokenizer, "texts": TEXTS, **given})


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("encoders")
    for kind in ("encoder", "masked"):
        save(kind, place / kind)
    return place


def pooled(folder: Path, told: object, *more: str) -> Path:
    kinds = ["models.Transformer", "models.Pooling", "models.Normalize", *more]
    modules = [{"type": f"sentence_transformers.{kind}", "path": "" if not at else f"{at}_x"} for at, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_x").mkdir(exist_ok=True)
    (folder / "1_x/config.json").write_text(json.dumps(told))
    return folder


def test_a_folder_says_how_states_are_pooled(folders: Path, tmp_path: Path) -> None:
    assert pooling_of(folders / "encoder") == "mean"
    assert pooling_of(tmp_path / "none") == "mean"
    for told, expected in (
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "max"}, "max"),
    ):
        assert pooling_of(pooled(tmp_path, told)) == expected
    for told, more, reason in (
        ({"pooling_mode_weightedmean_tokens": True}, (), "pools by weightedmean_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, (), "pools by cls_token and mean_tokens"),
        ({}, (), "pools by nothing"),
        ([], (), "pools by nothing"),
        ({"pooling_mode": "cls"}, ("models.Dense",), "changes embeddings by a Dense"),
    ):
        with pytest.raises(DataError, match=reason):
            pooling_of(pooled(tmp_path, told, *more))
    for text in ("{}", "[3]", '[{"type": "x.Pooling", "path": "../1_x"}]', '[{"type": "x.Pooling", "path": ".."}]', "["):
        (tmp_path / "modules.json").write_text(text)
        with pytest.raises(DataError, match=r"modules\.json"):
            pooling_of(tmp_path)
    # A model from such a folder is pooled like that, unless something else is asked for.
    save("encoder", tmp_path)
    task, model, tokenizer = load_model(pooled(tmp_path, {"pooling_mode_cls_token": True}))
    assert task == "embedding"
    assert explain_similarity(model, tokenizer, TEXTS).pooling == "first"
    assert explain_similarity(model, tokenizer, TEXTS, "mean").pooling == "mean"


def test_an_encoder_without_the_pooler_that_nothing_needs(tmp_path: Path) -> None:
    model = transformers.BertModel(tiny("encoder").config, add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    assert load_model(tmp_path).task == "embedding"


def test_the_command(folders: Path, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "why.html"
    command = ["explain", "--hf", str(folders / "encoder"), "the <b> cat", "--with", "a <b> dog"]
    assert main([*command, "--pairs", "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    _, model, tokenizer = load_model(folders / "encoder")
    found = explain_similarity(model, tokenizer, ("the <b> cat", "a <b> dog"), pairs=True)
    assert found.pairs is not None
    assert told["similarity"] == pytest.approx(found.similarity)
    assert [each["relevance"] for each in told["texts"]] == [pytest.approx(each.tolist()) for each in found.relevance]
    assert told["pairs"] == [pytest.approx(row) for row in found.pairs.tolist()]
    assert told["texts"][1]["pieces"] == ["<s>", "a", "<b>", "dog", "</s>"]
    shown = page.read_text().replace("<body>", "")
    assert "<b>" not in shown
    assert "dog" in shown
    assert main(command) == 0
    said = capsys.readouterr()
    assert f"similarity {found.similarity:.3f}" in said.out
    assert "next: lutetia explain --hf" in said.err
    assert "--with 'a <b> dog'" in said.err
    second = tmp_path / "second.txt"
    second.write_text("a <b> dog")
    assert main([*command[:-1], str(second), "--pairs"]) == 0
    assert "go together" in capsys.readouterr().out


def test_what_the_command_refuses(folders: Path, capsys: Capture) -> None:
    encoder, masked = str(folders / "encoder"), str(folders / "masked")
    for words, reason in (
        ([encoder, "x"], '--with "ANOTHER TEXT"'),
        ([masked, "the <mask>", "--with", "x"], "--with is for encoders of texts, and this model gives a masked token"),
        ([masked, "the <mask>", "--pairs"], "--pairs goes with --with"),
        ([encoder, "x", "--with", "y", "--target", "3"], "--target"),
        ([encoder, "x", "--with", "y", "--against", "3"], "--against"),
        ([encoder, "x", "--with", "y", "--check"], "--check"),
        ([encoder, "x", "--with", "y", "--png", "x.png"], "--png"),
        ([encoder, "x", "--with", "y", "--answer", "3"], "--answer"),
        ([encoder, "--texts", "x", "--with", "y"], "--with"),
    ):
        assert main(["explain", "--hf", *words]) == 2
        assert reason in capsys.readouterr().err
    assert main(["explain", encoder, "x", "--with", "y"]) == 2
    assert "--with is for models of transformers" in capsys.readouterr().err
