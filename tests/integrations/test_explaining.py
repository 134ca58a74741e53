"""Why a decoder predicts this token and not that one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from lutetia.cli import main
from lutetia.errors import ArgumentError
from lutetia.models import DenseTransformer

pytest.importorskip("transformers")

from integrations.decoders import build
from lutetia import relevance
from lutetia.integrations.transformers import ByteTokenizer, LutetiaForCausalLM, register
from lutetia.integrations.transformers.explaining import explain_next_token

PROMPT = "tables <b>look</b> up"
Capture = pytest.CaptureFixture[str]


def explain(name: str, **options: Any) -> Any:
    register()
    return explain_next_token(build(name, "lutetia", vocab_size=256), ByteTokenizer(), PROMPT, **options)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_relevance_adds_up_to_the_difference_of_two_scores(name: str) -> None:
    found = explain(name, target=97, against=98)
    assert found.explained == pytest.approx(float(found.logits[97] - found.logits[98]))
    assert float(found.relevance.sum()) + found.absorbed == pytest.approx(found.explained, rel=1e-3, abs=1e-3)
    assert found.layers.shape == (2, len(PROMPT))
    assert float(found.layers[-1].sum()) == pytest.approx(found.explained, rel=1e-3, abs=1e-3)
    assert found.heads.shape == (2, 4)
    assert found.pieces == list(PROMPT)


def test_the_other_way_round_is_the_opposite() -> None:
    one, other = explain("llama", target=97, against=98), explain("llama", target=98, against=97)
    torch.testing.assert_close(one.relevance, -other.relevance, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(one.heads, -other.heads, rtol=1e-3, atol=1e-5)


def test_the_tokens_are_those_of_one_walk_through_the_whole_graph() -> None:
    """Nothing computed again, and the seed given as numbers."""
    model = build("llama", "sdpa", vocab_size=256)
    found = explain_next_token(model, ByteTokenizer(), PROMPT, 97, 98)
    tokens = torch.tensor([list(PROMPT.encode())])
    seed = torch.zeros(1, len(PROMPT), 256, dtype=torch.float64)
    logits = model(tokens).logits[0, -1].detach()
    seed[0, -1, 97], seed[0, -1, 98] = logits[97], -logits[98]
    plain = relevance.attribute(model, {"input_ids": tokens}, target=seed, rules=relevance.presets.attnlrp())
    torch.testing.assert_close(found.relevance.double(), plain[tokens][0], rtol=1e-3, atol=1e-4)


def test_tokens_by_text() -> None:
    best = explain("llama")
    assert best.target == best.prediction
    assert best.against == best.logits.topk(2).indices.tolist()[1]
    assert explain("llama", target="a", against="b").target == ord("a")
    with pytest.raises(ArgumentError, match=r"target is 'ab', which is 2 tokens \(a · b\), expected one token"):
        explain("llama", target="ab")
    with pytest.raises(ArgumentError, match="target and against are both token 97"):
        explain("llama", target=97, against=97)
    with pytest.raises(ArgumentError, match="against is 256"):
        explain("llama", against=256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    register()
    place = tmp_path_factory.mktemp("model")
    LutetiaForCausalLM.wrap(DenseTransformer(width=16, n_layers=2, context=64, n_heads=2, seed=1)).save_pretrained(place)
    ByteTokenizer().save_pretrained(place)
    return place


def test_the_command(folder: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "why.html"
    assert main(["explain", "--hf", str(folder), PROMPT, "--target", "<", "--against", "#98", "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["target"], told["against"]) == (ord("<"), 98)
    assert len(told["relevance"]) == len(told["pieces"]) == len(PROMPT)
    assert sum(told["relevance"]) + told["absorbed"] == pytest.approx(told["explained"], abs=1e-3)
    assert "<b>" not in page.read_text().replace("<body>", "")
    assert "layer 1</th>" in page.read_text()
    assert main(["explain", "--hf", str(folder), PROMPT, "--png", str(tmp_path / "why.png")]) == 0
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(["explain", "--hf", str(folder), PROMPT]) == 0
    said = capsys.readouterr()
    assert "layer 1 head" in said.out
    assert "shown: what put" in said.out
    named = shlex.split(said.err.splitlines()[-1])
    assert named[:4] == ["next:", "lutetia", "explain", "--hf"]
    monkeypatch.chdir(tmp_path)
    page.unlink()
    assert main(named[2:]) == 0
    assert page.exists()
    assert shlex.split(capsys.readouterr().err.splitlines()[-1])[5:7] == ["--rule", "epsilon"]


def test_layers_stand_below_the_tokens_where_they_fit(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for columns, fits in (("400", True), ("40", False)):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["explain", "--hf", str(folder), "many words"]) == 0
        assert ("layer 1 \x1b" in capsys.readouterr().out) == fits


def test_what_the_command_refuses(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    for words, reason in (
        ([str(folder), "x", "--rule", "occlusion"], "there is no rule 'occlusion' with --hf"),
        ([str(folder), "x", "--row", "1"], "--row is not for"),
        ([str(folder), "x", "--png", str(tmp_path / "why.jpg")], "--png"),
        ([str(folder), "x", "--target", "#x"], "--target is '#x'"),
        ([str(folder), ""], "the prompt is empty"),
        ([str(tmp_path), "x"], "has no config.json"),
    ):
        assert main(["explain", "--hf", *words]) != 0
        assert reason in capsys.readouterr().err
    assert main(["explain", str(folder), "x", "--against", "a"]) == 2
    assert "--against is for models of transformers" in capsys.readouterr().err
