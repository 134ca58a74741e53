"""The language model: what a position may know, how the cache agrees with the whole, and that everything learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lutetia import flow
from lutetia.errors import ArgumentError
from lutetia.lut import use_backend
from lutetia.models import DenseTransformer, LUTTransformer, TransformerConfig
from tools import require_module

require_module("numba")

SMALL: dict[str, Any] = {
    "context": 13,
    "width": 12,
    "n_layers": 2,
    "n_heads": 2,
    "n_detectors": 3,
    "n_anchors": 2,
    "positional_dim": 2,
    "ff_detectors": 5,
    "ff_anchors": 3,
    "ff_heads": 2,
    "ff_head_width": 6,
    "unembedding_detectors": 7,
    "unembedding_anchors": 3,
    "initial_noise": 1.0,
    "seed": 0,
}
KINDS: dict[str, dict[str, Any]] = {
    "all tables": {"unembedding": "lut", "norm": "none"},
    "lut, linear": {},
    "shared positions": {"shared_positions": True, "norm": "layer", "algorithm": "pairs"},
    "no positions": {"positional_dim": 0, "feed_forward": "dense", "algorithm": "cells"},
    "blend": {"read": "blend", "unembedding": "lut"},
    "confidence": {"read": "confidence", "feed_forward": "lut"},
    "projected": {"feed_forward": "projected", "read": "confidence2"},
    "softmax": {"attention": "softmax", "feed_forward": "projected", "read": "confidence2"},
    "grouped": {"attention": "softmax", "n_heads": 6, "n_kv_heads": 2, "norm": "layer"},
    "one key": {"attention": "softmax", "n_heads": 3, "n_kv_heads": 1, "feed_forward": "dense"},
}
EVERY = pytest.mark.parametrize("kind", KINDS)


def make(kind: str = "lut, linear", dtype: torch.dtype = torch.float64, **more: Any) -> LUTTransformer:
    """A small model all of whose parameters matter: what starts at zero is shaken."""
    model = LUTTransformer(**{**SMALL, **KINDS[kind], **more}, dtype=dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "log_" not in name and "positions" not in name:
                parameter += torch.randn(parameter.shape, generator=generator).to(dtype) * 0.3
    return model


def some_tokens(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(2))


# ---- forward ---------------------------------------------------------------------------------------------------------


@EVERY
def test_what_comes_later_changes_nothing_before(kind: str) -> None:
    model, tokens = make(kind), some_tokens(2, 13)
    with torch.no_grad():
        before = model(tokens)
        for at in range(13):
            changed = tokens.clone()
            changed[:, at] = (changed[:, at] + 101) % 256
            after = model(changed)
            torch.testing.assert_close(after[:, :at], before[:, :at], rtol=0, atol=1e-12)
            assert (after[:, at] != before[:, at]).any()
            if at < 12:
                assert (after[:, at + 1 :] != before[:, at + 1 :]).any()


@EVERY
def test_every_parameter_learns(kind: str) -> None:
    model, tokens = make(kind), some_tokens(8, 13)
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or not parameter.numel(), name


@pytest.mark.parametrize("kind", ["projected", "one key"])
def test_the_loss_s_gradient_is_its_slope(kind: str) -> None:
    """By finite differences along random directions, of what is smooth: all but the comparisons of the tables."""
    model, tokens = make(kind), some_tokens(2, 9)
    smooth = [
        p for name, p in model.named_parameters() if name.startswith(("unembedding", "norm", "blocks.1.feed_forward.decom"))
    ]
    if kind == "one key":
        smooth = list(model.parameters())
    directions = [torch.randn_like(parameter) for parameter in smooth]
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    slope = sum((g * d).sum() for g, d in zip(torch.autograd.grad(loss, smooth), directions, strict=True))

    def moved(step: float) -> Tensor:
        with torch.no_grad():
            for parameter, direction in zip(smooth, directions, strict=True):
                parameter += step * direction
            value = model.loss(tokens[:, :-1], tokens[:, 1:])
            for parameter, direction in zip(smooth, directions, strict=True):
                parameter -= step * direction
        return value

    torch.testing.assert_close((moved(1e-6) - moved(-1e-6)) / 2e-6, slope.detach(), rtol=1e-6, atol=1e-8)


def test_softmax_attention_is_what_its_formula_says() -> None:
    """One head at a time, one query at a time, positions as rotations of complex numbers."""
    model = make("grouped")
    attention: Any = model.blocks[0].attention
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    q, k, v = (project(x).detach() for project in (attention.query, attention.key, attention.value))
    speed = 10000.0 ** -torch.arange(0, 1, dtype=torch.float64)  # head_dim 2: a single pair

    def turned(pair: Tensor, at: int) -> Tensor:
        return torch.view_as_complex(pair.contiguous()) * torch.polar(torch.ones(()).double(), at * speed[0])

    y = torch.zeros(2, 7, 12, dtype=torch.float64)
    for b in range(2):
        for h in range(6):
            group = h // 3
            for j in range(7):
                query = turned(q[b, j, 2 * h : 2 * h + 2], j)
                keys = torch.stack([turned(k[b, i, 2 * group : 2 * group + 2], i) for i in range(j + 1)])
                shares = ((query * keys.conj()).real / 2**0.5).softmax(0)
                y[b, j, 2 * h : 2 * h + 2] = shares @ v[b, : j + 1, 2 * group : 2 * group + 2]
    torch.testing.assert_close(attention(x), attention.out(y))


def test_the_model_is_what_its_config_says() -> None:
    """A forward pass put together by hand from the pieces."""
    model, tokens = make("lut, linear"), some_tokens(3, 13)

    def rms(norm: Any, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * norm.weight

    x = model.embedding.weight[tokens]
    for block in model.blocks:
        x = x + block.attention(rms(block.attention_norm, x))
        x = x + block.feed_forward(rms(block.feed_forward_norm, x))
    torch.testing.assert_close(model(tokens), rms(model.norm, x) @ model.unembedding.weight.t())
    assert model.blocks[0].attention.weight.shape == (6, 2 ** (2 * 2 + 2), 12)  # 2 heads × 3 detectors
    targets = some_tokens(3, 13).flip(0)
    by_hand = -model(tokens).log_softmax(-1).gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(model.loss(tokens, targets), by_hand)


@EVERY
def test_lengths_hide_what_is_past_them(kind: str) -> None:
    model, tokens, lengths = make(kind), some_tokens(3, 11), torch.tensor([11, 1, 6])
    logits = model(tokens, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = model(tokens[row : row + 1, :length])
        torch.testing.assert_close(logits[row, :length], alone[0], rtol=1e-12, atol=1e-12)
    targets = some_tokens(3, 11)
    each = [F.cross_entropy(logits[row, :n], targets[row, :n], reduction="sum") for row, n in enumerate(lengths.tolist())]
    torch.testing.assert_close(model.loss(tokens, targets, lengths), sum(each) / lengths.sum())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_tokens_are_integers(dtype: torch.dtype) -> None:
    model, tokens = make(), some_tokens(2, 5)
    assert torch.equal(model(tokens.to(dtype)), model(tokens))


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.zeros(2, 3), "tokens is float32"),
        (torch.zeros(3, dtype=torch.int64), "expected shape"),
        (torch.zeros(1, 14, dtype=torch.int64), "1 to 13 tokens in a row"),
        (torch.zeros(1, 0, dtype=torch.int64), "1 to 13 tokens in a row"),
        (torch.tensor([[3, 256]]), "tokens has 256, expected 0 to 255"),
        (torch.tensor([[3, -1]]), "tokens has -1, expected 0 to 255"),
        ("text", "tokens is 'text'"),
    ],
)
def test_bad_tokens_are_named(tokens: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()(tokens)


def test_an_empty_batch() -> None:
    for kind in ("lut, linear", "softmax"):
        assert make(kind)(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 5, 256)


# ---- cache -----------------------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("prompt", [1, 6])
def test_step_by_step_is_the_whole(kind: str, prompt: int) -> None:
    model, tokens = make(kind), some_tokens(3, 13)
    with torch.no_grad():
        whole = model(tokens)
        cache = model.new_cache(3)
        parts = [model(tokens[:, :prompt], cache=cache)]
        parts += [model(tokens[:, at : at + 1], cache=cache) for at in range(prompt, 13)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-10)
    assert cache.lengths.tolist() == [13, 13, 13]
    assert all(layer.lengths.tolist() == [13, 13, 13] for layer in cache.layers)
    assert not parts[0].requires_grad


@EVERY
def test_rows_move_on_by_different_amounts(kind: str) -> None:
    model, tokens = make(kind), some_tokens(3, 13)
    moves = [[4, 1, 7], [2, 0, 3], [1, 1, 1], [1, 1, 1], [3, 5, 0], [1, 1, 1]]
    with torch.no_grad():
        whole, cache = model(tokens), model.new_cache(3)
        for move in moves:
            before, lengths = cache.lengths.tolist(), torch.tensor(move)
            new = torch.zeros(3, max(move), dtype=torch.int64)
            for row, (at, n) in enumerate(zip(before, move, strict=True)):
                new[row, :n] = tokens[row, at : at + n]
            logits = model(new, None if move == [1, 1, 1] else lengths, cache)
            for row, (at, n) in enumerate(zip(before, move, strict=True)):
                torch.testing.assert_close(logits[row, :n], whole[row, at : at + n], rtol=1e-10, atol=1e-10)
    assert cache.lengths.tolist() == [12, 9, 13]


def test_exact_sums_give_the_same_bits() -> None:
    model, tokens = make("all tables", torch.float32, sums="fixed"), some_tokens(3, 13)
    with torch.no_grad():
        whole, cache = model(tokens), model.new_cache(3)
        steps = torch.cat([model(tokens[:, at : at + 1], cache=cache) for at in range(13)], 1)
        assert torch.equal(steps, whole)
        assert torch.equal(model(tokens[1:2]), whole[1:2])


@pytest.mark.parametrize("kind", ["lut, linear", "grouped"])
def test_float32_agrees_too(kind: str) -> None:
    model, tokens = make(kind, torch.float32), some_tokens(2, 13)
    with torch.no_grad():
        whole, cache = model(tokens), model.new_cache(2)
        steps = torch.cat([model(tokens[:, at : at + 1], cache=cache) for at in range(13)], 1)
    torch.testing.assert_close(steps, whole, rtol=1e-4, atol=1e-4)


def test_the_short_step_is_the_general_one() -> None:
    """A step of one position is the same with lengths, which take the general way; and a recording shows the step that runs."""
    model = make("lut, linear")
    attention: Any = model.blocks[0].attention
    general, short, ones = attention.new_cache(3), attention.new_cache(3), torch.ones(3, dtype=torch.int64)
    x = torch.randn(3, 9, 12, dtype=torch.float64)
    lengths = torch.tensor([4, 0, 2])
    for cache in (general, short):
        attention(x[:, :4], lengths, cache)
    for at in range(4, 9):
        one = x[:, at : at + 1]
        torch.testing.assert_close(attention(one, None, short), attention(one, ones, general))
        assert torch.equal(short.indices, general.indices)
    with use_backend("reference"):
        torch.testing.assert_close(attention(x[:, :1], None, short), attention(x[:, :1], ones, general))
    with flow.record() as run:
        torch.testing.assert_close(attention(x[:, :1], None, short), attention(x[:, :1], ones, general))
    assert [step.name for step in run.steps] == [
        "fill_outputs_step",
        "check_positions_eval",
        "check_detectors_eval",
        "fill_outputs_fc",
    ]


def test_positions_that_change_are_seen() -> None:
    model, tokens = make("lut, linear"), some_tokens(1, 13)
    with torch.no_grad():
        cache = model.new_cache(1)
        model(tokens[:, :5], cache=cache)
        model(tokens[:, 5:6], cache=cache)
        for block in model.blocks[1:]:  # in the last block no later position remembers the change
            block.attention.positions.neg_()
        torch.testing.assert_close(model(tokens[:, 6:7], cache=cache), model(tokens[:, :7])[:, -1:])


@pytest.mark.parametrize("kind", ["lut, linear", "grouped"])
def test_a_cache_is_reordered_and_reset(kind: str) -> None:
    model, tokens = make(kind), some_tokens(3, 13)
    with torch.no_grad():
        whole, cache = model(tokens), model.new_cache(3)
        model(tokens[:, :7], torch.tensor([7, 3, 5]), cache)
        cache.reorder(torch.tensor([2, 0, 2]))
        assert cache.lengths.tolist() == [5, 7, 5]
        logits = model(tokens[[2, 0, 2], [5, 7, 5]][:, None], cache=cache)
        torch.testing.assert_close(logits[:, 0], whole[[2, 0, 2], [5, 7, 5]], rtol=1e-10, atol=1e-10)
        cache.reset()
        torch.testing.assert_close(model(tokens[:, :7], cache=cache), whole[:, :7], rtol=1e-10, atol=1e-10)
        with pytest.raises(ArgumentError, match="rows from 0 to 2"):
            cache.reorder(torch.tensor([3]))


@pytest.mark.parametrize("kind", ["lut, linear", "grouped"])
def test_a_full_cache_is_refused_and_left_alone(kind: str) -> None:
    model, tokens = make(kind), some_tokens(2, 13)
    cache = model.new_cache(2)
    model(tokens[:, :12], torch.tensor([12, 4]), cache)
    with pytest.raises(ArgumentError, match="row 0 of the cache holds 12 tokens and 2 more are brought"):
        model(tokens[:, :2], cache=cache)
    assert cache.lengths.tolist() == [12, 4]
    assert [layer.lengths.tolist() for layer in cache.layers] == [[12, 4]] * 2
    with pytest.raises(ArgumentError, match="2 rows, as the cache has"):
        model(tokens[:1, :1], cache=cache)
    with pytest.raises(ArgumentError, match="a ModelCache"):
        model(tokens, cache="mine")  # type: ignore[arg-type]
    assert "lengths=[12, 4]" in repr(cache)


def test_an_index_cache_is_small() -> None:
    lut, softmax = make("lut, linear").new_cache(4), make("softmax", torch.float32).new_cache(4)
    assert lut.nbytes == 2 * (4 * 6 * 13) * 2  # layers × [B, N_t, context] × int16
    assert softmax.nbytes == 2 * 2 * (4 * 2 * 13 * 6) * 4  # layers × (k, v) × [B, H, context, d] × float32


# ---- making ----------------------------------------------------------------------------------------------------------


def test_a_seed_makes_the_same_model_and_touches_nothing() -> None:
    state = torch.get_rng_state()
    one, two = LUTTransformer(**SMALL), LUTTransformer(**SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    other = LUTTransformer(**{**SMALL, "seed": 1})
    assert not torch.equal(one.embedding.weight, other.embedding.weight)
    assert not torch.equal(one.blocks[0].attention.anchors, one.blocks[1].attention.anchors)
    free = {**SMALL, "seed": None}
    assert not torch.equal(LUTTransformer(**free).embedding.weight, LUTTransformer(**free).embedding.weight)


def test_how_a_model_starts() -> None:
    model = LUTTransformer(**{**SMALL, **KINDS["projected"], "width": 64, "initial_noise": 1e-3})
    block: Any = model.blocks[0]
    assert 0 < block.attention.weight.abs().max() <= 1e-3
    assert not block.feed_forward.decompress.weight.any()
    assert block.feed_forward.compress.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.unembedding.weight.std().item() == pytest.approx(0.02, rel=0.1)
    tokens = some_tokens(4, 13)
    assert model.loss(tokens, tokens).item() == pytest.approx(torch.tensor(256.0).log().item(), abs=0.05)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_number_types(dtype: torch.dtype) -> None:
    wide = LUTTransformer(**{**SMALL, **KINDS["projected"]})
    model = LUTTransformer(**{**SMALL, **KINDS["projected"]}, dtype=dtype)
    assert torch.equal(model.embedding.weight, wide.embedding.weight.to(dtype))
    assert model(some_tokens(2, 5)).dtype == dtype
    scalars = [p for name, p in model.named_parameters() if "log_" in name]
    assert len(scalars) == 2 * 3
    assert all(p.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype) for p in scalars)


def test_table_dropout_is_for_training() -> None:
    model, tokens = make("lut, linear", table_dropout=0.5), some_tokens(2, 13)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_dropout_is_for_training_and_for_the_twin_too() -> None:
    tokens = some_tokens(2, 13)
    for model in (make("softmax", dropout=0.5), make("softmax", dropout=0.5).dense_twin()):
        plain = type(model)(replace(model.config, dropout=0.0), dtype=torch.float64)
        plain.load_state_dict(model.state_dict())
        assert not torch.equal(model(tokens), model(tokens))
        assert torch.equal(model.eval()(tokens), plain.eval()(tokens))


@pytest.mark.parametrize("gradient", ["sparse", "in_place"])
def test_gradient_policies_reach_the_tables(gradient: str) -> None:
    model, tokens = make("all tables", torch.float32, gradient=gradient), some_tokens(2, 13)
    tables = [module for module in model.modules() if hasattr(module, "external_lr")]
    assert len(tables) == 5
    for table in tables:
        table.external_lr = 0.1
    before = [table.weight.detach().clone() for table in tables]
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    for table, was in zip(tables, before, strict=True):
        if gradient == "sparse":
            assert table.weight.grad.is_sparse
        else:
            assert table.weight.grad is None
            assert not torch.equal(table.weight, was)
    assert torch.isfinite(torch.as_tensor(model.generate(torch.tensor([1]), 3, temperature=0))).all()


def test_it_compiles_whole() -> None:
    model, tokens = make("lut, linear"), some_tokens(2, 13)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens), model(tokens))


# ---- the twin --------------------------------------------------------------------------------------------------------


@EVERY
def test_the_twin_has_the_same_shapes_and_no_tables(kind: str) -> None:
    model, tokens = make(kind, torch.float32), some_tokens(2, 13)
    twin = model.dense_twin()
    assert isinstance(twin, DenseTransformer)
    assert twin.config == model.config
    assert twin(tokens).shape == model(tokens).shape
    assert not [name for name, module in twin.named_modules() if "LUT" in type(module).__name__ and name]
    assert all(isinstance(block.feed_forward[0], nn.Linear) for block in twin.blocks)
    assert twin.blocks[0].feed_forward[0].weight.shape == (48, 12)
    cache = twin.new_cache(2)
    with torch.no_grad():
        twin(tokens[:, :12], cache=cache)
        torch.testing.assert_close(twin(tokens[:, 12:], cache=cache)[:, 0], twin(tokens)[:, -1], rtol=1e-4, atol=1e-5)


def test_the_twin_has_heads_that_divide_the_width() -> None:
    model = LUTTransformer(**{**SMALL, "n_heads": 5})
    assert model.dense_twin().blocks[0].attention.n_heads == 6  # of 1, 2, 3 and 6, which divide the 6 pairs of its width
    assert LUTTransformer(**{**SMALL, "width": 1024, "n_heads": 1}).dense_twin().blocks[0].attention.head_dim == 256
    assert model.dense_twin().n_parameters == sum(p.numel() for p in model.dense_twin().parameters())
    with pytest.raises(ArgumentError, match="width is 13, expected an even number for the dense twin"):
        LUTTransformer(**{**SMALL, "width": 13}).dense_twin()
    assert TransformerConfig(**SMALL) == model.config.__class__(**{**model.config.to_dict(), "n_heads": 2})
