"""Lutetia's language models as models of `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lutetia.errors import ArgumentError, DataError, LutetiaError
from lutetia.models import DenseTransformer, LUTTransformer

pytest.importorskip("transformers")

import transformers

from lutetia.integrations.transformers import ByteTokenizer, LutetiaForCausalLM, load_decoder, register
from tools import optional_module

SMALL: dict[str, Any] = {"width": 16, "n_layers": 2, "context": 64, "n_heads": 2, "ff_detectors": 8, "ff_anchors": 4, "seed": 3}
MODELS = {
    "tables": lambda: LUTTransformer(**SMALL, initial_noise=0.5),
    "tables with softmax attention": lambda: LUTTransformer(**SMALL, attention="softmax", unembedding="lut", initial_noise=0.5),
    "dense": lambda: DenseTransformer(**SMALL),
}
PROMPTS = ["The tables", "é", "look up, and add"]


@pytest.fixture(autouse=True)
def registered() -> None:
    register()


@pytest.fixture(params=MODELS)
def inner(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]().double().eval()


def test_greedy_generation_is_our_own(inner: LUTTransformer) -> None:
    """Rows of three lengths, padded on the left, against `LUTTransformer.generate`."""
    model, tokenizer = LutetiaForCausalLM.wrap(inner), ByteTokenizer()
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    found = model.generate(**batch, max_new_tokens=20, do_sample=False)[:, batch["input_ids"].shape[1] :]
    wanted = inner.generate([torch.tensor(list(prompt.encode())) for prompt in PROMPTS], 20, temperature=0)
    assert [row.tolist() for row in found] == [row.tolist() for row in wanted]


def test_beams_are_those_without_a_cache(inner: LUTTransformer) -> None:
    model, batch = LutetiaForCausalLM.wrap(inner), ByteTokenizer()(PROMPTS, return_tensors="pt", padding=True)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False}
    assert torch.equal(model.generate(**batch, **options), model.generate(**batch, **options, use_cache=False))


def test_saved_and_loaded_through_the_auto_classes(inner: LUTTransformer, tmp_path: Path) -> None:
    LutetiaForCausalLM.wrap(inner).save_pretrained(tmp_path)
    ByteTokenizer(model_max_length=64).save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".safetensors"}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(loaded.model) is type(inner)
    for name, tensor in inner.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name
    tokens = torch.tensor([[1, 2, 3, 200]])
    assert torch.equal(loaded(tokens).logits, inner(tokens))


def test_a_pipeline_writes_text(tmp_path: Path) -> None:
    model = LutetiaForCausalLM.wrap(MODELS["tables"]())
    model.save_pretrained(tmp_path)
    ByteTokenizer(model_max_length=64).save_pretrained(tmp_path)
    write = transformers.pipeline("text-generation", model=str(tmp_path), device="cpu")
    (said,) = write("The tables", max_new_tokens=8, do_sample=False)
    assert said["generated_text"].startswith("The tables")


def test_the_loss_is_ours_and_has_gradients(inner: LUTTransformer) -> None:
    model, tokens = LutetiaForCausalLM.wrap(inner), torch.randint(256, (2, 12))
    loss = model(tokens, labels=tokens).loss
    torch.testing.assert_close(loss, inner.loss(tokens[:, :-1], tokens[:, 1:]).to(loss.dtype))
    loss.backward()
    assert all(parameter.grad is not None for parameter in inner.parameters())


def test_padding_on_the_right_counts_as_little(inner: LUTTransformer) -> None:
    model, tokens = LutetiaForCausalLM.wrap(inner), torch.randint(1, 256, (2, 9))
    mask = torch.tensor([[1] * 9, [0, 0, 1, 1, 1, 1, 0, 0, 0]])
    logits = model(tokens, attention_mask=mask).logits
    torch.testing.assert_close(logits[1, 2:6], inner(tokens[1:, 2:6])[0])
    torch.testing.assert_close(logits[0], inner(tokens[:1])[0])


def test_bytes_in_bytes_out() -> None:
    tokenizer = ByteTokenizer()
    text = "".join(map(chr, range(0x800))) + "→𝄞\r\n\t "
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert len(tokenizer) == 256


def test_the_trainer_trains(tmp_path: Path) -> None:
    optional_module("accelerate")
    model = LutetiaForCausalLM.wrap(LUTTransformer(**SMALL))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    rows = [{"input_ids": list(b"abcabcabc"), "labels": list(b"abcabcabc")}] * 8
    options = {"max_steps": 2, "per_device_train_batch_size": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    trainer = transformers.Trainer(model, transformers.TrainingArguments(str(tmp_path), **options), train_dataset=rows)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded.model.embedding.weight, model.model.embedding.weight)
    assert not torch.equal(loaded.model.embedding.weight, before["model.embedding.weight"])


def test_what_is_refused(inner: LUTTransformer) -> None:
    model = LutetiaForCausalLM.wrap(inner)
    with pytest.raises(ArgumentError, match=r"attention_mask .* without a gap"):
        model(torch.ones(1, 3, dtype=torch.long), attention_mask=torch.tensor([[1, 0, 1]]))
    with pytest.raises(ArgumentError, match="past_key_values is"):
        model(torch.ones(1, 3, dtype=torch.long), past_key_values=transformers.DynamicCache())
    with pytest.raises(LutetiaError, match="context"):
        model.generate(torch.ones(1, 60, dtype=torch.long), max_new_tokens=10, do_sample=False)
    with pytest.raises(ArgumentError, match="model is"):
        LutetiaForCausalLM.wrap(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


def test_a_model_from_a_folder(tmp_path: Path) -> None:
    model = LutetiaForCausalLM.wrap(MODELS["tables"]())
    with pytest.raises(DataError, match="is not a folder"):
        load_decoder(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"has no config.json and 0 GGUF files"):
        load_decoder(tmp_path)
    model.config.save_pretrained(tmp_path)
    with pytest.raises(DataError, match=r"has no .safetensors file"):
        load_decoder(tmp_path)
    model.save_pretrained(tmp_path)
    ByteTokenizer().save_pretrained(tmp_path)
    loaded, tokenizer = load_decoder(tmp_path)
    tokens = tokenizer("abc", return_tensors="pt")["input_ids"]
    assert torch.equal(loaded(tokens).logits, model.eval()(tokens).logits)
    (tmp_path / "config.json").write_text('{"model_type": "no such model"}')
    with pytest.raises(DataError, match="cannot be read as a model of transformers"):
        load_decoder(tmp_path)


def test_code_in_a_folder_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anybody asked whether to run it."""
    monkeypatch.setattr("builtins.input", lambda *words: pytest.fail("asked"))
    code = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model", "AutoTokenizer": ["code.Tokenizer", None]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unknown", "auto_map": code}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": code}))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (tmp_path / "model.safetensors").write_bytes(b"no numbers")
    with pytest.raises(DataError, match="cannot be read as a model of transformers"):
        load_decoder(tmp_path)
    assert not (tmp_path / "ran").exists()
