"""Decoders of transformers from anybody's folder: what the files do not hold is neither built nor drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import warm
from lutetia.errors import ArgumentError, DataError
from tools import optional_module

transformers = optional_module("transformers")
from integrations.hf_folders import save  # noqa: E402  # needs the package
from lutetia.integrations.transformers import load_decoder, load_model, loading  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    sizes = {"vocab_size": 9, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_key_value_heads=1, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="b"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="b", eos_token="b").save_pretrained(tmp_path)
    return tmp_path


def forge(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_tied_weights_are_not_missed(folder: Path) -> None:
    model, tokenizer = load_decoder(folder, "eager")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.padding_side == "left"


@pytest.mark.parametrize("sizes", [{"num_hidden_layers": 10**6}, {"vocab_size": 10**8}, {"intermediate_size": 10**8}])
def test_a_config_cannot_ask_for_more_than_the_files_hold(
    sizes: dict[str, int], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(folder, **sizes)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("was built"))
    with pytest.raises(DataError, match=r"config.json describes .* but the weights are 20 tensors"):
        load_decoder(folder, "eager")


def test_weights_that_are_not_there_are_not_drawn(folder: Path) -> None:
    forge(folder, num_hidden_layers=3)
    with pytest.raises(DataError, match=r"its files lack model\.layers\.2\."):
        load_decoder(folder, "eager")


def test_nothing_need_be_registered_first(folder: Path) -> None:
    """In a process of its own: what another test registered would stay."""
    code = "import sys; assert not any(name.startswith('lutetia.integrations') for name in sys.modules); "
    code += f"from lutetia.integrations.transformers import load_decoder; load_decoder({str(folder)!r})"
    done = warm.run(["-c", code])
    assert done.returncode == 0, done.stderr[-2000:]


SIZES = {"vocab_size": 9, "n_layer": 2, "n_head": 2}
OWN_ATTENTION = {  # of models that know one attention, or a table of their own: what their config asks of it
    "BloomConfig": {**SIZES, "hidden_size": 8},
    "CodeGenConfig": {**SIZES, "n_head": 4, "n_embd": 16, "n_positions": 16, "rotary_dim": 4},
    "GPTJConfig": {**SIZES, "n_embd": 8, "n_positions": 16, "rotary_dim": 4},
    "FalconConfig": {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
}


@pytest.mark.parametrize("kind", OWN_ATTENTION)
def test_a_model_keeps_its_attention_where_no_other_has_a_place(kind: str, folder: Path) -> None:
    """BLOOM would take the mask of ours and add it to its scores: every token would see those after it."""
    torch.manual_seed(0)
    (folder / "model.safetensors").unlink()
    transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**OWN_ATTENTION[kind])).save_pretrained(folder)
    model, _ = load_decoder(folder)
    assert (model.config._attn_implementation == "lutetia") == (kind in ("FalconConfig", "GPTJConfig"))
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = torch.tensor([[1, 5, 7, 3]])
    with torch.no_grad():
        scores = model(tokens).logits
        torch.testing.assert_close(scores, plain(tokens).logits)
        torch.testing.assert_close(scores[:, :3], model(tokens[:, :3]).logits)


def test_a_model_that_only_takes_the_mask_is_refused() -> None:
    config = transformers.BloomConfig(**OWN_ATTENTION["BloomConfig"])
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="lutetia")
    with pytest.raises(ArgumentError, match=r"bloom computes attention in its own way, .* without attn_implementation='lutetia'"):
        model(torch.tensor([[1, 5, 7, 3]]))


def test_a_gguf_file_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    plain = SimpleNamespace(GGUFReader=lambda path: calls.append(path) or [path], get_tensor_name_map=lambda arch, n: (arch, n))
    gguf = SimpleNamespace(**vars(plain))
    monkeypatch.setitem(sys.modules, "gguf", gguf)
    with loading._parsed_once():
        assert gguf.GGUFReader("a") is gguf.GGUFReader("a")
        assert gguf.GGUFReader("b") == ["b"]
        assert gguf.get_tensor_name_map("llama", 2) == ("llama", 2)
    assert calls == ["a", "b"]
    assert gguf == plain


def test_a_model_that_was_downloaded_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    home = tmp_path / "models--someone--tiny"
    save("classes", home / "snapshots" / "abc")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    task, model, _ = load_model("someone/tiny")
    assert (task, model.config.num_labels) == ("text class", 3)
    with pytest.raises(DataError, match=r"nor a model that was downloaded, .*; `hf download someone/else` fetches"):
        load_model("someone/else")
    home.rename(tmp_path / "models--tiny")
    assert load_model("tiny").task == "text class"  # the oldest models have no owner
    with pytest.raises(DataError, match=r"^elsewhere is not a folder, nor a model that was downloaded, expected one with"):
        load_model("elsewhere")
    with pytest.raises(DataError, match=r"^some/where/else is not a folder, expected one with"):
        load_model("some/where/else")
