"""Integrated gradients of models of transformers, beside captum's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lutetia.cli import main
from lutetia.errors import ArgumentError
from tools import optional_module

pytest.importorskip("transformers")

import transformers

from integrations.hf_folders import TEXT, save, tiny, word_tokenizer
from lutetia.integrations.transformers import IntegratedGradients, explain_answer, explain_next_token, explain_text_class
from lutetia.integrations.transformers.explaining import attribute_score

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("kind", "steps", "baseline"), [("llama", 20, "mean"), ("gpt2", 7, "mean"), ("classes", 20, 3), ("llama", 9, "zero")]
)
def test_tokens_as_captum_has_them(kind: str, steps: int, baseline: str | int) -> None:
    captum = optional_module("captum.attr")
    model, tokenizer = tiny(kind), word_tokenizer()
    explain = explain_text_class if kind == "classes" else explain_next_token
    found = explain(model, tokenizer, TEXT, rules=IntegratedGradients(steps, at_once=8, baseline=baseline))
    tokens, table = torch.tensor([found.tokens]), model.get_input_embeddings()

    def score(x: torch.Tensor) -> torch.Tensor:
        logits = model(inputs_embeds=x).logits
        logits = logits if kind == "classes" else logits[:, -1]
        return logits[:, found.target] - logits[:, found.against]

    x = table(tokens).detach()
    rows = table.weight.detach()
    nothing = rows.mean(0) if baseline == "mean" else torch.zeros(()) if baseline == "zero" else rows[baseline]
    nothing = nothing.expand_as(x).contiguous()
    theirs, missed = captum.IntegratedGradients(score).attribute(x, nothing, n_steps=steps, return_convergence_delta=True)
    torch.testing.assert_close(found.relevance.double(), theirs.sum(-1)[0], rtol=1e-6, atol=1e-7)
    assert found.gap == pytest.approx(-float(missed), rel=1e-5, abs=1e-6)  # captum's steps are in float32
    assert found.absorbed == pytest.approx(float(score(nothing).detach()), rel=1e-9)
    assert float(found.relevance.double().sum()) + found.absorbed + found.gap == pytest.approx(found.explained, rel=1e-5)


def test_pixels_as_captum_has_them_in_float64() -> None:
    captum = optional_module("captum.attr")
    model = tiny("images")
    pixels = torch.randn(1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    inputs, score = {"pixel_values": pixels}, lambda logits: logits[0, 2] - logits[0, 0]
    found: Any = attribute_score(model, inputs, score, IntegratedGradients(16, at_once=3), dims=2)
    theirs = captum.IntegratedGradients(lambda x: model(pixel_values=x).logits @ torch.tensor([-1.0, 0.0, 1.0]).double())
    torch.testing.assert_close(found[pixels], theirs.attribute(pixels, n_steps=16), rtol=1e-5, atol=1e-7)  # steps in float32
    mean = torch.zeros_like(pixels)
    for place, weight in zip(*numpy.polynomial.legendre.leggauss(16), strict=True):
        x = (pixels * (place + 1) / 2).requires_grad_()
        mean += weight / 2 * torch.autograd.grad(score(model(pixel_values=x).logits), x)[0]
    torch.testing.assert_close(found[pixels], pixels * mean, rtol=1e-9, atol=1e-12)


def test_a_token_like_the_baseline_gets_nothing() -> None:
    model, tokenizer = tiny("classes"), word_tokenizer()
    tokens = explain_text_class(model, tokenizer, TEXT).tokens
    found = explain_text_class(model, tokenizer, TEXT, rules=IntegratedGradients(3, baseline=tokens[1]))
    same = torch.tensor(tokens) == tokens[1]
    assert not found.relevance[same].any()
    assert found.relevance[~same].all()


def test_more_steps_miss_less_and_batches_change_nothing() -> None:
    model, tokenizer = tiny("classes"), word_tokenizer()
    few, many, batched = (
        explain_text_class(model, tokenizer, TEXT, rules=IntegratedGradients(*how)) for how in ((2, 8), (60, 8), (60, 60))
    )
    assert abs(many.gap) < 1e-5 < abs(few.gap)
    torch.testing.assert_close(many.relevance, batched.relevance)
    default = explain_text_class(model, tokenizer, TEXT, rules="integrated")
    torch.testing.assert_close(default.relevance, many.relevance, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_tokens_of_an_answer_add_up(kind: str) -> None:
    found = explain_answer(tiny(kind), word_tokenizer(), TEXT, "a dog", IntegratedGradients(30))
    added = found.relevance.sum(1) + found.absorbed + found.elsewhere + found.gap
    torch.testing.assert_close(added, found.explained, rtol=1e-4, atol=1e-5)
    if kind == "llama":
        alone = explain_next_token(tiny(kind), word_tokenizer(), TEXT, found.answer[0], found.rivals[0], IntegratedGradients(30))
        torch.testing.assert_close(found.relevance[0, : len(found.tokens)], alone.relevance, rtol=1e-5, atol=1e-6)


def test_the_baseline_of_the_command(tmp_path: Path, capsys: Capture) -> None:
    folder, page = str(save("classes", tmp_path / "model")), tmp_path / "why.html"
    tokenizer: Any = word_tokenizer()
    words = ["explain", "--hf", folder, TEXT, "--rule", "integrated", "--steps", "5", "--json"]
    for typed, meant in (("zero", "zero"), ("pad", tokenizer.pad_token_id), ("#4", 4)):
        assert main([*words, "--baseline", typed, "--html", str(page)]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["baseline"], told["steps"]) == (typed, 5)
        found = explain_text_class(tiny("classes"), tokenizer, TEXT, rules=IntegratedGradients(5, baseline=meant))
        assert told["relevance"] == pytest.approx(found.relevance.tolist(), rel=1e-5, abs=1e-6)
        assert told["absorbed"] == pytest.approx(found.absorbed, rel=1e-5)
    assert "The baseline is the token #4, in place of every token." in page.read_text()
    images = str(save("images", tmp_path / "images"))
    assert main(["explain", "--hf", images, "x.png", "--rule", "integrated", "--baseline", "zero"]) == 2
    assert "--baseline is for tokens, and this model reads images" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: Capture) -> None:
    folder = str(save("classes", tmp_path / "model"))
    page = tmp_path / "why.html"
    words = ["explain", "--hf", folder, TEXT, "--rule", "integrated"]
    assert main([*words, "--steps", "9", "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(told["relevance"]) + told["absorbed"] + told["gap"] == pytest.approx(told["explained"], rel=1e-3, abs=1e-4)
    assert "Integrated gradients: " in page.read_text()
    assert main(words) == 0
    assert "of it at the baseline; the 50 steps miss " in capsys.readouterr().out
    writer = str(save("gpt2", tmp_path / "writer"))
    assert main(["explain", "--hf", writer, TEXT, "--rule", "integrated", "--steps", "4", "--answer", "2"]) == 0
    assert "(rule integrated); the 4 steps miss up to " in capsys.readouterr().out
    for more, reason in (
        (["--steps", "0"], "--steps is 0, expected 1 to 10,000"),
        (["--steps", "5", "--rule", "gradient"], "--steps is for --rule integrated"),
        (["--baseline", "zero", "--rule", "gradient"], "--baseline is for --rule integrated"),
        (["--baseline", "half"], "--baseline is 'half', expected mean, zero, "),
        (["--baseline", "#99999"], "--baseline is #99999, expected # and a number below "),
    ):
        assert main([*words, *more]) == 2
        assert reason in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="steps is 0"):
        IntegratedGradients(0)
    for wrong in ("median", 2.5, None, True):
        with pytest.raises(ArgumentError, match=r"baseline is .*, expected 'mean', 'zero', or the number of a token"):
            IntegratedGradients(baseline=wrong)  # type: ignore[arg-type]
    for number in (-1, 10**6):
        with pytest.raises(ArgumentError, match=f"baseline is {number}"):
            explain_next_token(tiny("llama"), word_tokenizer(), TEXT, rules=IntegratedGradients(baseline=number))
    with pytest.raises(ArgumentError, match="rules is 'integral'"):
        explain_next_token(tiny("llama"), word_tokenizer(), TEXT, rules="integral")


def test_a_model_that_scales_its_embeddings_in_place() -> None:
    sizes = {"n_embd": 16, "dff": 24, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": len(word_tokenizer())}
    torch.manual_seed(3)
    model = transformers.CTRLLMHeadModel(transformers.CTRLConfig(**sizes)).eval()
    found = explain_next_token(model, word_tokenizer(), TEXT, rules=IntegratedGradients(40))
    assert abs(found.gap) < 1e-3 * found.relevance.abs().sum()
    assert float(found.relevance.sum()) + found.absorbed + found.gap == pytest.approx(found.explained, abs=1e-4)
