"""Each integration is optional: without its package it says so by name, and everything else works."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import warm

HIDDEN = ("transformers", "accelerate", "gguf", "onnx", "onnxscript", "onnxruntime", "tokenizers")
SCRIPT = f"""
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({HIDDEN!r}))  # as if none were installed
import torch, lutetia
from lutetia.errors import MissingFeatureError
for name in ("lutetia.integrations", "lutetia.integrations.onnx_import", "lutetia.cli.explain_hf", "lutetia.cli.commands"):
    importlib.import_module(name)
from lutetia.attention import decode_attention
from lutetia.integrations import onnx
from lutetia.cli import main
from lutetia.nn import LUT
layer = LUT(4, 2, 3, 2)
with torch.no_grad():
    onnx.in_plain_torch(layer)(torch.randn(2, 4))
for attempt in (
    lambda: importlib.import_module("lutetia.integrations.transformers"),
    lambda: onnx.export(layer, torch.zeros(1, 4), "never.onnx"),
):
    try:
        attempt()
    except MissingFeatureError as error:
        print(error)
print("code", main(["explain", "--hf", ".", "text"]))
assert not set({HIDDEN!r}) & {{name for name, module in sys.modules.items() if module is not None}}
"""


@pytest.fixture(scope="module")
def said() -> str:
    done = warm.run(["-c", SCRIPT], warm.Plain)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_each_names_its_package(said: str) -> None:
    assert "lutetia.integrations.transformers needs transformers, which" in said
    assert "pip install transformers" in said
    assert "ONNX export needs onnx, which" in said
    assert "lutetia explain --hf needs transformers" in said


def test_the_doctor_names_every_integration() -> None:
    from lutetia.doctor import ITEMS

    listed = {item.name: item.install for item in ITEMS}
    for name in HIDDEN[:-1]:
        assert listed[name] == f"pip install {name}"


NEEDS = {  # what each thing needs
    "generate": {"transformers"},
    "read a GGUF file": {"transformers", "gguf"},
    "write ONNX": {"onnx", "onnxscript"},
    "read ONNX": {"onnx"},
    "explain": set(),
    "explain for Quantus": set(),
    "the command": set(),
}
ONE = """
import sys
sys.modules[sys.argv[1]] = None  # as if it were not installed
from pathlib import Path
import torch
from lutetia import relevance
from lutetia.cli import main
from lutetia.errors import DataError, MissingFeatureError
from lutetia.integrations import onnx, onnx_import
from lutetia.nn import LUT

def generate():
    from lutetia.integrations.transformers import LutetiaCache, register
    from transformers import LlamaConfig, LlamaForCausalLM
    register()
    sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes, attn_implementation="lutetia", eos_token_id=None))
    prompt = torch.tensor([[1, 2]])
    made = model.generate(prompt, max_new_tokens=2, do_sample=False, past_key_values=LutetiaCache(model.config))
    assert made.shape == (1, 4)

def read_gguf():
    from lutetia.integrations.transformers import load_decoder
    Path("one").mkdir()
    Path("one/model.gguf").write_bytes(b"")
    try:
        load_decoder("one")
    except MissingFeatureError:
        raise
    except Exception:  # an empty file
        pass

def read_onnx():
    try:
        onnx_import.load("absent.onnx")
    except DataError:  # there is no such file
        pass

def explain():
    x = torch.randn(2, 4)
    assert relevance.attribute(LUT(4, 2, 3, 2), x)[x].shape == x.shape

def explain_for_quantus():
    found = relevance.for_quantus()(torch.nn.Linear(4, 2), torch.randn(2, 4).numpy(), [0, 1])
    assert found.shape == (2, 4)

def command():
    assert main(["info", "."]) == 1  # which holds no model

def write_onnx():
    onnx.export(LUT(4, 2, 3, 2), torch.zeros(1, 4), "layer.onnx")

things = [generate, read_gguf, write_onnx, read_onnx, explain, explain_for_quantus, command]
for name, thing in zip(sys.argv[2:], things, strict=True):
    try:
        thing()
        print("works:", name)
    except MissingFeatureError as error:
        print(f"lacks: {name}: {error}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [*HIDDEN[:-1], "quantus", "captum"])
def test_without_one_the_others_work(hidden: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ONE, hidden, *NEEDS],
        cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    absent = {hidden} | {name for name in HIDDEN if importlib.util.find_spec(name) is None}
    for name, needed in NEEDS.items():
        line = next(line for line in done.stdout.splitlines() if f"{line}:".startswith((f"works: {name}:", f"lacks: {name}:")))
        missing = needed & absent
        assert line.startswith("lacks" if missing else "works"), line
        assert not missing or any(f"pip install {each}" in line for each in missing)
