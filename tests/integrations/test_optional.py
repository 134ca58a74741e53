"""Each integration is optional: without its package it says so by name, and everything else works."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False)
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
