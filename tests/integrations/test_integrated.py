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

from integrations.hf_folders import TEXT, save, tiny, word_tokenizer
from lutetia.integrations.transformers import IntegratedGradients, explain_answer, explain_next_token, explain_text_class
from lutetia.integrations.transformers.explaining import attribute_score

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("kind", "steps"), [("llama", 20), ("gpt2", 7), ("classes", 20)])
def test_tokens_as_captum_has_them(kind: str, steps: int) -> None:
    captum = optional_module("captum.attr")
    model, tokenizer = tiny(kind), word_tokenizer()
    explain = explain_text_class if kind == "classes" else explain_next_token
    found = explain(model, tokenizer, TEXT, rules=IntegratedGradients(steps, at_once=8))
    tokens, table = torch.tensor([found.tokens]), model.get_input_embeddings()

    def score(x: torch.Tensor) -> torch.Tensor:
        logits = model(inputs_embeds=x).logits
        logits = logits if kind == "classes" else logits[:, -1]
        return logits[:, found.target] - logits[:, found.against]

    x = table(tokens).detach()
    nothing = table.weight.detach().mean(0).expand_as(x).contiguous()
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


def test_the_command(tmp_path: Path, capsys: Capture) -> None:
    folder = str(save("classes", tmp_path / "model"))
    page = tmp_path / "why.html"
    words = ["explain", "--hf", folder, TEXT, "--rule", "integrated"]
    assert main([*words, "--steps", "9", "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(told["relevance"]) + told["absorbed"] + told["gap"] == pytest.approx(told["explained"], rel=1e-3, abs=1e-4)
    assert "Integrated gradients: " in page.read_text()
    assert main(words) == 0
    assert "of it without any input; the steps miss " in capsys.readouterr().out
    writer = str(save("gpt2", tmp_path / "writer"))
    assert main(["explain", "--hf", writer, TEXT, "--rule", "integrated", "--steps", "4", "--answer", "2"]) == 0
    assert "(rule integrated); the steps miss up to " in capsys.readouterr().out
    for more, reason in (
        (["--steps", "0"], "--steps is 0, expected 1 to 10,000"),
        (["--steps", "5", "--rule", "gradient"], "--steps is for --rule integrated"),
    ):
        assert main([*words, *more]) == 2
        assert reason in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="steps is 0"):
        IntegratedGradients(0)
    with pytest.raises(ArgumentError, match="rules is 'integral'"):
        explain_next_token(tiny("llama"), word_tokenizer(), TEXT, rules="integral")
