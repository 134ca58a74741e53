"""Relevance of a decoder beside LXT, which patches the model's classes: in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tools import optional_module

pytest.importorskip("transformers")

SCRIPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama
from lutetia import relevance

torch.manual_seed(0)
sizes = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
config = LlamaConfig(vocab_size=100, **sizes, initializer_range=0.15, attn_implementation="sdpa")
model = LlamaForCausalLM(config).eval()
tokens = torch.randint(100, (3, 24))
target = lambda output: output.logits[:, -1].amax(-1)
r = relevance.attribute(model, {"input_ids": tokens}, target=target, rules=relevance.presets.attnlrp(eps=1e-9))
ours, absorbed = r[tokens], r.report.absorbed
elsewhere = sum(row.absorbed for row in r.report if not row.ends and not row.name.startswith("ScaledDotProduct"))

# LXT imports all models that it can patch, also those for which this machine or this version of transformers lacks something.
import sys
from unittest.mock import MagicMock
from transformers import pytorch_utils
pytorch_utils.find_pruneable_heads_and_indices = pytorch_utils.prune_linear_layer = None
sys.modules.update({"torchvision": MagicMock(), "torchvision.models": MagicMock()})
from lxt.efficient import monkey_patch
monkey_patch(modeling_llama)
Table = type("Table", (dict,), {"get_interface": dict.get})  # LXT leaves a plain dict, of which newer models ask more
modeling_llama.ALL_ATTENTION_FUNCTIONS = Table(modeling_llama.ALL_ATTENTION_FUNCTIONS)
for parameter in model.parameters():
    parameter.requires_grad_(False)
embedded = model.get_input_embeddings()(tokens).requires_grad_()
scores = target(model(inputs_embeds=embedded, use_cache=False))
scores.sum().backward()
theirs = (embedded * embedded.grad).sum(-1)
total = float(scores.sum())
print(float((ours - theirs).norm() / theirs.norm()), (float(ours.sum()) + absorbed - total) / total, elsewhere / total)
"""


def test_as_lxt_finds_it() -> None:
    """AttnLRP by both. Of the score only the softmax of attention keeps a share: its expansion has a constant part."""
    optional_module("lxt")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    difference, lost, absorbed_elsewhere = map(float, done.stdout.split()[-3:])
    assert difference < 1e-3
    assert abs(lost) < 1e-3
    assert abs(absorbed_elsewhere) < 0.01
