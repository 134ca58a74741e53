"""The whole-number language model against the float model on a grid, a slow oracle, and bad input."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from whole import PROMPTS, language, languages

from lutetia.errors import ArgumentError
from lutetia.lut import use_backend
from lutetia.models import DenseTransformer, LUTTransformer
from lutetia.precompute import integer_model
from lutetia.precompute.integer.sampling import Draws, weights


def on_grid(model: LUTTransformer) -> LUTTransformer:
    """Weights that numbers of 8 bits hold exactly, and gains of ±1: then nothing is rounded."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "positions" in name:
                continue
            if "norm" in name:
                parameter.copy_(parameter.sign())
            else:
                parameter.copy_((parameter * 20).round().clamp(-127, 127) / 16)
    return model


@pytest.mark.parametrize("number", range(3))
def test_is_the_float_model_where_nothing_is_rounded(number: int) -> None:
    model = on_grid(languages()[number]).double()
    whole = integer_model(model)
    for prompt in PROMPTS:
        wrote = whole.generate(prompt, 40)  # far past the context of 4 to 9 bytes
        with use_backend("reference"):
            assert wrote == model.generate(prompt, 40, temperature=0.0)
        assert len(set(wrote)) > 3
    tokens = torch.randint(256, (3, whole.context), generator=torch.Generator().manual_seed(0))
    scores = np.ldexp(whole.scores(tokens.numpy()).astype(np.float64), -whole.unembedding.fraction)
    with use_backend("reference"):
        assert np.array_equal(scores, model(tokens).detach().numpy())


def oracle(model: Any, window: bytes) -> list[int]:
    """The scores after a window, by loops over the definition."""

    def indices(layer: Any, x: list[int]) -> list[int]:
        gain = [1] * len(x) if layer.gains is None else layer.gains.tolist()
        return [sum((x[a] * gain[a] > x[b] * gain[b]) << r for r, (a, b) in enumerate(own)) for own in layer.anchors.tolist()]

    streams = [[int(v) << model.embedding_shift for v in model.embedding[byte]] for byte in window]
    for block in model.blocks:
        layer = block.attention
        keys = [indices(layer, x) for x in streams]
        for j, x in enumerate(streams):
            for i in range(j):
                for t, (q, k) in enumerate(zip(keys[j], keys[i], strict=True)):
                    pe = int(layer.positions[j - i - 1, t])
                    cell = ((q << layer.anchors.shape[1] | k) << layer.position_bits) | pe
                    for c in range(len(x)):
                        x[c] += int(layer.numbers[t, cell, c]) << layer.shift
        for x in streams:
            rows = indices(block.feed_forward, x)
            for c in range(len(x)):
                x[c] += sum(int(block.feed_forward.numbers[t, row, c]) for t, row in enumerate(rows)) << block.feed_forward.shift
    last = model.unembedding
    rows = indices(last, streams[-1])
    return [sum(int(last.numbers[t, row, c]) for t, row in enumerate(rows)) for c in range(model.vocab)]


@pytest.mark.parametrize("number", range(3))
def test_follows_its_definition(number: int) -> None:
    whole = integer_model(languages()[number])
    text = bytearray(b"ab")
    for byte in whole.generate(b"ab", 12):
        scores = oracle(whole, bytes(text[-whole.context :]))
        assert byte == scores.index(max(scores))  # the lowest of equals
        text.append(byte)


def test_widths_hold_and_are_reached() -> None:
    whole = integer_model(language(gains=False, n_layers=1))
    bits = whole.widths()
    attention = whole.blocks[0].attention
    worst = np.abs(attention.numbers.astype(int)).max(1).sum(0).max() * (whole.context - 1)
    assert worst < 2 ** (bits["blocks.0.attention"] - 1) <= 2 * worst
    assert bits["compared"] <= bits["stream"] <= 31


def test_a_stream_that_would_be_too_wide_gets_a_coarser_scale() -> None:
    model = language(gains=False)
    with torch.no_grad():
        model.embedding.weight.mul_(1e6)
        model.blocks[0].attention.weight.mul_(1e-6)
    whole = integer_model(model)
    assert whole.widths()["stream"] <= 31
    assert max(layer.shift for layer in whole.layers.values()) <= 16


def test_a_reset_and_a_reader() -> None:
    whole = integer_model(language())
    reader = whole.reader()
    with pytest.raises(ArgumentError, match="no byte was read"):
        reader.scores()
    reader.put(65)
    first = reader.scores()
    for byte in b"some other text, longer than the context":
        reader.put(byte)
    assert not np.array_equal(reader.scores(), first)
    reader.reset()
    reader.put(65)
    assert np.array_equal(reader.scores(), first)
    assert all(len(keys) == 1 for keys in reader.keys)


def test_draws_follow_the_stated_generator() -> None:
    draws = Draws(1, 1.0, 5)
    assert [draws.next() for _ in range(3)] == [270369, 67634689, 2647435461]  # of xorshift32 by hand
    assert Draws(0, 1.0, 5).state == 2463534242
    whole = integer_model(language())
    assert whole.generate(b"a", 30, seed=7) == whole.generate(b"a", 30, seed=7) != whole.generate(b"a", 30, seed=8)
    assert whole.generate(b"a", 30, seed=7, temperature=2**-10) == whole.generate(b"a", 30)


def test_draws_have_the_probabilities_of_the_scores() -> None:
    whole = integer_model(language(vocab=4))
    reader = whole.reader()
    reader.put(1)
    logits = np.ldexp(reader.scores().astype(float), -whole.unembedding.fraction)
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    counts = Counter(whole.generate(b"\1", 1, seed=seed)[0] for seed in range(1, 4001))
    share = np.array([counts[byte] / 4000 for byte in range(4)])
    assert np.abs(share - expected).max() < 0.04


def test_weights_of_draws_are_short_tables() -> None:
    drop, table = weights(1.0, 12)
    assert (drop, table[0], table[-1]) == (7, 65535, 1)
    assert len(table) < 400
    assert weights(0.5, 3)[0] == 0


def test_report_says_where_the_models_part() -> None:
    model = language()
    whole = integer_model(model)
    text = bytes(np.random.default_rng(0).integers(97, 105, 400, dtype=np.uint8))
    with use_backend("reference"):
        told = whole.report(text)
    assert abs(told["integer_bits_per_byte"] - told["float_bits_per_byte"]) < 0.5
    assert [each["layer"] for each in told["layers"]] == list(whole.layers)
    assert all(0.9 < each["same_indices"] <= 1 for each in told["layers"])
    exact = on_grid(language()).double()
    with use_backend("reference"):
        same = integer_model(exact).report(text)
    assert same["integer_bits_per_byte"] == pytest.approx(same["float_bits_per_byte"], abs=1e-12)
    assert all(each["same_indices"] == 1 for each in same["layers"])
    assert same["same_byte"] == 1
    with pytest.raises(ArgumentError, match="data has 3 bytes, expected at least 8"):
        whole.report(b"abc")


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    model = language()
    model.save_pretrained(tmp_path / "model")
    assert integer_model(tmp_path / "model").generate(b"x", 9) == integer_model(model).generate(b"x", 9)


REFUSED = {
    "softmax": (dict(attention="softmax", n_heads=2), r"blocks\.0\.attention is softmax attention.*--set model\.attention=lut"),
    "n-grams": (dict(ngrams=(2,), ngram_rows=8), r"ngrams, the n-gram tables, enter through gates.*--set model\.ngrams=\[\]"),
    "dense": (dict(feed_forward="dense"), r"blocks\.0\.feed_forward is 'dense'.*--set model\.feed_forward=lut"),
    "projected": (dict(feed_forward="projected"), r"blocks\.0\.feed_forward is 'projected'.*feed_forward=lut"),
    "linear": (dict(unembedding="linear"), r"unembedding is linear.*--set model\.unembedding=lut"),
    "read": (dict(read="confidence2"), r"blocks\.0\.feed_forward reads its tables by 'confidence2'.*--set model\.read=hard"),
    "norm": (dict(norm="layer"), r"blocks\.0\.attention_norm is a layer norm.*--set model\.norm=rms"),
    "vocab": (dict(vocab=300), r"vocab is 300, expected at most 256"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_says_which_layer_and_what_to_train(case: str) -> None:
    fields, message = REFUSED[case]
    with pytest.raises(ArgumentError, match=message):
        integer_model(language(gains=False, **fields))


def test_refuses_what_it_cannot_use() -> None:
    with pytest.raises(ArgumentError, match="DenseTransformer multiplies in every layer"):
        integer_model(DenseTransformer(width=8, n_layers=1, n_heads=1, context=4))
    whole = integer_model(language(vocab=100))
    for prompt, message in (
        (b"", "prompt is empty"),
        ("text", "expected bytes"),
        (b"\xc8", "has the byte 200, expected 0 to 99"),
    ):
        with pytest.raises(ArgumentError, match=message):
            whole.generate(prompt, 3)  # type: ignore[arg-type]
    for n in (-1, 1.5, True):
        with pytest.raises(ArgumentError, match="n is "):
            whole.generate(b"a", n)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="seed is -1"):
        whole.generate(b"a", 3, seed=-1)
    with pytest.raises(ArgumentError, match="temperature is 0"):
        whole.generate(b"a", 3, seed=1, temperature=0)
    with pytest.raises(ArgumentError, match="byte is 100, expected 0 to 99"):
        whole.reader().put(100)
    assert whole.generate(b"a", 0) == b""
