"""`lutetia generate`, as a user and a script meet it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lutetia.cli import generate, main
from lutetia.cli.generate import safe
from lutetia.models import LUTClassifier, LUTTransformer, load
from tools import require_module

require_module("typer")
require_module("numba")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = LUTTransformer(context=32, width=16, n_layers=1, n_detectors=2, ff_detectors=4, ff_anchors=3, seed=0)
    torch.nn.init.normal_(model.embedding.weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.normal_(model.unembedding.weight, generator=torch.Generator().manual_seed(2))
    path = tmp_path_factory.mktemp("models") / "[red]model"
    model.save_pretrained(path)
    return path


def run_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    assert main(["generate", *arguments, "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


def error(capsys: Capture, *arguments: str, code: int = 1) -> str:
    """The one sentence that is printed when the command fails."""
    assert main(["generate", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_it_writes_what_the_model_writes(checkpoint: Path, capsys: Capture) -> None:
    model = load(checkpoint)
    wanted = model.generate(b"Hello", 40, temperature=0)
    told = run_json(capsys, str(checkpoint), "--prompt", "Hello", "--max-new", "40", "--temperature", "0")
    assert bytes(told["tokens"]) == wanted
    assert told["text"] == wanted.decode("utf-8", "replace")
    assert told["prompt"] == "Hello"
    assert main(["generate", str(checkpoint), "--prompt", "Hello", "--max-new", "40", "--temperature", "0"]) == 0
    said = capsys.readouterr()
    assert said.out == safe("Hello" + wanted.decode("utf-8", "replace")) + "\n"
    assert said.err.startswith("next: lutetia explain ")
    assert said.err.count("\n") == 1


def test_the_speed_is_that_of_writing_and_not_of_compiling(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    clock = iter([0.0, 100.0, 104.0])  # the start, after two tokens, the end
    monkeypatch.setattr(generate, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    told = run_json(capsys, str(checkpoint), "--max-new", "10", "--temperature", "0")
    assert (told["seconds"], told["tokens_per_second"]) == (104.0, 2.0)
    clock = iter([0.0, 4.0])
    told = run_json(capsys, str(checkpoint), "--max-new", "1", "--temperature", "0")
    assert (told["seconds"], told["tokens_per_second"]) == (4.0, 0.25)


def test_options_reach_the_model(checkpoint: Path, capsys: Capture) -> None:
    model = load(checkpoint)
    options = ["--max-new", "30", "--temperature", "0.7", "--top-k", "9", "--top-p", "0.8", "--seed", "5"]
    told = run_json(capsys, str(checkpoint), *options)
    wanted = model.generate(b"\n", 30, temperature=0.7, top_k=9, top_p=0.8, seed=5)
    assert bytes(told["tokens"]) == wanted
    first = next(chr(byte) for byte in wanted if byte < 128)
    stopped = run_json(capsys, str(checkpoint), *options, "--stop", "never there", "--stop", first)
    assert bytes(stopped["tokens"]) == wanted[: wanted.index(first.encode())]
    assert bytes(run_json(capsys, str(checkpoint), *options)["tokens"]) == wanted


def test_generated_bytes_cannot_steer_the_terminal(checkpoint: Path, capsys: Capture) -> None:
    assert safe("a\x1b[2J\x07\r\n\tb\x9b\u202e\ufffdß") == "a\\x1b[2J\\x07\\r\n\tb\\x9b\\u202e\ufffdß"
    for seed in range(3):
        assert main(["generate", str(checkpoint), "--prompt", "\x1b]0;x\x07", "--max-new", "200", "--seed", str(seed)]) == 0
        text = capsys.readouterr().out
        assert text.startswith("\\x1b]0;x\\x07")
        assert all(c.isprintable() or c in "\n\t" for c in text)


def test_a_prompt_that_is_no_utf8(checkpoint: Path, capsys: Capture) -> None:
    told = run_json(capsys, str(checkpoint), "--prompt", "a\udcff", "--max-new", "3", "--temperature", "0")
    assert bytes(told["tokens"]) == load(checkpoint).generate(b"a\xff", 3, temperature=0)
    assert told["prompt"] == "a\ufffd"


def test_the_folder_of_a_run_stands_for_its_best_checkpoint(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run"
    load(checkpoint).save_pretrained(run / "checkpoints" / "step-000001")
    LUTTransformer(context=8, width=8, n_layers=1, seed=3).save_pretrained(run / "checkpoints" / "step-000002")
    (run / "config.toml").write_text("")
    for name, step in (("last", 2), ("best", 1)):
        (run / "checkpoints" / name).symlink_to(f"step-00000{step}")
    told = run_json(capsys, str(run), "--max-new", "9", "--temperature", "0")
    assert bytes(told["tokens"]) == load(checkpoint).generate(b"\n", 9, temperature=0)
    (run / "checkpoints" / "best").unlink()
    assert load(run).config.context == 8


def test_what_is_wrong_is_one_sentence(checkpoint: Path, tmp_path: Path, capsys: Capture) -> None:
    assert "nowhere does not exist, expected the folder of a saved model" in error(capsys, str(tmp_path / "nowhere"))
    assert "it holds no config.toml" in error(capsys, str(tmp_path))
    (tmp_path / "file").write_text("x")
    assert "is a file, expected the folder" in error(capsys, str(tmp_path / "file"))
    LUTClassifier(input_shape=(4,), layers=()).save_pretrained(tmp_path / "classifier")
    assert "holds a LUTClassifier, which writes no text: expected a language model" in error(capsys, str(tmp_path / "classifier"))
    load(checkpoint).save_pretrained(tmp_path / "[red]torn")
    tensors = tmp_path / "[red]torn" / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert "[red]torn/model.safetensors has" in error(capsys, str(tmp_path / "[red]torn"))
    assert "prompt 0 is empty" in error(capsys, str(checkpoint), "--prompt", "")
    assert "temperature is -1.0" in error(capsys, str(checkpoint), "--temperature", "-1")
    assert "top_p is 3.0" in error(capsys, str(checkpoint), "--top-p", "3")
    assert "max_new_tokens is -1" in error(capsys, str(checkpoint), "--max-new", "-1")
    assert "seed is -1" in error(capsys, str(checkpoint), "--seed", "-1")
    error(capsys, str(checkpoint), "--max-new", "many", code=2)
    assert main(["generate", str(tmp_path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "data"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of transformers, a classifier, and a model that answers."""
    pytest.importorskip("transformers")
    from integrations.hf_folders import save

    place = tmp_path_factory.mktemp("hf")
    for kind in ("llama", "classes", "t5"):
        save(kind, place / kind)
    return place


def test_a_decoder_of_transformers_writes(folders: Path, capsys: Capture) -> None:
    """The tokens that the library itself takes, through its own attention and cache."""
    from lutetia.integrations.transformers import load_decoder

    model, tokenizer = load_decoder(folders / "llama", attn_implementation="sdpa")
    tokens = tokenizer("the cat", return_tensors="pt")["input_ids"][:, :-1]  # without the end of a text
    expected = model.generate(tokens, max_new_tokens=9, do_sample=False)[0, tokens.shape[1] :]
    asked = ("--hf", str(folders / "llama"), "--prompt", "the cat", "--max-new", "9")
    found = run_json(capsys, *asked, "--temperature", "0")
    assert found["tokens"] == expected.tolist()
    assert found["text"] == tokenizer.decode(expected, skip_special_tokens=True)
    drawn = [run_json(capsys, *asked, "--seed", seed)["tokens"] for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert main(["generate", *asked, "--temperature", "0"]) == 0
    said = capsys.readouterr()
    assert said.out.strip().endswith(found["text"].strip())
    assert said.err == f"next: lutetia explain --hf {folders / 'llama'} 'the cat'\n"
    assert main(["generate", *asked, "--temperature", "1e-40", "--chat"]) == 0  # scores divided by so little would overflow
    chat = capsys.readouterr()
    assert chat.out == run_json(capsys, *asked, "--temperature", "0", "--chat")["text"] + "\n"  # nothing of the template
    assert chat.err == f"next: lutetia explain --hf {folders / 'llama'} --chat 'the cat'\n"
    long = run_json(capsys, "--hf", str(folders / "llama"), "--prompt", "the cat", "--max-new", "500", "--temperature", "0")
    assert len(long["tokens"]) == 32 - 3  # as many as the model has positions for


def test_a_decoder_without_a_cache_writes(tmp_path: Path, capsys: Capture) -> None:
    """The first GPT computes every token anew."""
    transformers = pytest.importorskip("transformers")
    from integrations.hf_folders import WORDS, word_tokenizer

    torch.manual_seed(0)
    config = transformers.OpenAIGPTConfig(vocab_size=len(WORDS), n_embd=8, n_layer=1, n_head=2, n_positions=16)
    model = transformers.OpenAIGPTLMHeadModel(config).eval()
    model.save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    capsys.readouterr()
    found = run_json(capsys, "--hf", str(tmp_path), "--prompt", "the cat", "--max-new", "5", "--temperature", "0")
    expected = torch.tensor([[1, 5, 7]])
    with torch.no_grad():
        for _ in range(5):
            expected = torch.cat([expected, model(expected).logits[:, -1:].argmax(-1)], 1)
    assert found["tokens"] == expected[0, 3:].tolist()


def test_the_end_of_what_a_model_reads_is_said(folders: Path, capsys: Capture) -> None:
    options = ["generate", "--hf", str(folders / "llama"), "--prompt", "the cat", "--temperature", "0", "--max-new"]
    assert main([*options, "100"]) == 0
    assert "stopped after 29 tokens: the model reads 32, prompt included\n" in capsys.readouterr().err
    assert main([*options, "29"]) == 0
    assert "stopped" not in capsys.readouterr().err


def test_what_does_not_write_with_transformers(folders: Path, capsys: Capture) -> None:
    llama = ("--hf", str(folders / "llama"))
    assert "gives a text class, expected a decoder" in error(capsys, "--hf", str(folders / "classes"))
    assert "gives an answer, expected a decoder" in error(capsys, "--hf", str(folders / "t5"))
    assert "the prompt has 41 tokens, expected at most 31" in error(capsys, *llama, "--prompt", "the " * 40)
    assert "--stop is not for --hf" in error(capsys, *llama, "--stop", "x", code=2)
    assert "--chat is for models of transformers" in error(capsys, str(folders / "llama"), "--chat", code=2)
    assert "--max-new is 0, expected" in error(capsys, *llama, "--max-new", "0")
    assert "--seed is 99999999999999999999, expected" in error(capsys, *llama, "--seed", "9" * 20)
    assert "which lutetia explain --hf explains and, if it writes text, lutetia generate --hf runs" in error(
        capsys, str(folders / "llama")
    )
