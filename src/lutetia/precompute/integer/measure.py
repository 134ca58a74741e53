"""What whole numbers cost a language model: bits per byte next to the float model's, and where the two differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lutetia.errors import ArgumentError, fail
from lutetia.precompute.integer.language import IntegerTransformer

BATCH = 16  # windows at once


def report(model: IntegerTransformer, data: bytes, most_windows: int = 64) -> dict[str, Any]:
    """Bits per byte of both models on windows of `data`, spread over it; by layer, the share of indices that are the same.

    An index of the float model is compared with the one at the same place in the same window, so differences add up from layer
    to layer.
    """
    windows = _windows(model, data, most_windows)
    given, wanted = windows[:, :-1], windows[:, 1:]
    scores, indices = _traced(model, given)
    float_scores, float_indices = _float_traced(model, given)
    return {
        "bytes": int(wanted.size),
        "float_bits_per_byte": _bits_per_byte(float_scores, wanted),
        "integer_bits_per_byte": _bits_per_byte(np.ldexp(scores.astype(np.float64), -model.unembedding.fraction), wanted),
        "same_byte": float((scores.argmax(-1) == float_scores.argmax(-1)).mean()),
        "layers": [
            {"layer": name, "same_indices": float((indices[name] == float_indices[name]).mean())} for name in model.layers
        ],
    }


def _windows(model: IntegerTransformer, data: bytes, most: int) -> np.ndarray:
    """Windows of context + 1 bytes: int64 [n, context + 1]."""
    if not isinstance(data, bytes | bytearray):
        fail("data", data, "bytes of text to measure on")
    length = model.context + 1
    if len(data) < length:
        raise ArgumentError(f"data has {len(data)} bytes, expected at least {length}, one more than the context")
    starts = np.linspace(0, len(data) - length, min(most, len(data) // length)).astype(np.int64)
    windows = np.frombuffer(bytes(data), dtype=np.uint8)[starts[:, None] + np.arange(length)].astype(np.int64)
    if windows.max() >= model.vocab:
        raise ArgumentError(f"data has the byte {windows.max()}, expected 0 to {model.vocab - 1}, the vocabulary of the model")
    return windows


def _traced(model: IntegerTransformer, tokens: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Scores int64 [n, S, vocab], and the indices of every layer [n, S, T]."""
    parts = []
    for start in range(0, len(tokens), BATCH):
        indices: dict[str, np.ndarray] = {}
        parts.append((model.scores(tokens[start : start + BATCH], indices), indices))
    return np.concatenate([part[0] for part in parts]), {
        name: np.concatenate([part[1][name] for part in parts]) for name in model.layers
    }


@torch.no_grad()
def _float_traced(model: IntegerTransformer, tokens: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same for the float model."""
    network, indices = model.model, {}
    modules = dict(network.named_modules())
    device = network.embedding.weight.device

    def keep(name: str) -> Any:
        def hook(layer: Any, given: tuple[Any, ...]) -> None:
            left, right = layer.anchors.long().unbind(-1)
            bits = (given[0][..., left] > given[0][..., right]).long().cpu()
            indices[name] = (bits << torch.arange(bits.shape[-1])).sum(-1).numpy()

        return hook

    hooks = [modules[name].register_forward_pre_hook(keep(name)) for name in model.layers]
    was_training = network.training
    try:
        scores = network.eval()(torch.from_numpy(tokens).to(device))
    finally:
        network.train(was_training)
        for hook in hooks:
            hook.remove()
    return scores.double().cpu().numpy(), indices


def _bits_per_byte(scores: np.ndarray, wanted: np.ndarray) -> float:
    """Bits per byte of float scores [n, S, vocab], given the bytes that followed [n, S]."""
    shifted = scores - scores.max(-1, keepdims=True)
    surprise = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, wanted[..., None], -1)[..., 0]
    return float(surprise.mean() / np.log(2))
