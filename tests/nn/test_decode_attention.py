"""`DecodeAttention`: a sequence at once, or from a cache in any pieces, is the same; and torch's own layer agrees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lutetia.attention import KVCache
from lutetia.errors import ArgumentError
from lutetia.nn import DecodeAttention
from tools import require_module

require_module("numba")


LAYERS: list[dict[str, Any]] = [
    {},
    {"n_kv_heads": 2},
    {"window": 3},
    {"sink": True, "n_kv_heads": 1, "window": 7},
    {"rope_base": 100.0, "n_kv_heads": 2},
    {"alibi": True, "sink": True},
]


@pytest.mark.parametrize("options", LAYERS, ids=str)
@pytest.mark.parametrize("pieces", [(17,), (1,) * 17, (9, 8), (3, 12, 1, 1)])
def test_in_pieces(options: dict[str, Any], pieces: tuple[int, ...]) -> None:
    layer = DecodeAttention(24, 4, **options)
    if layer.sink is not None:
        nn.init.normal_(layer.sink)
    x = torch.randn(2, 17, 24)
    cache = layer.new_cache(2, 20)
    found = torch.cat([layer(piece, cache=cache) for piece in x.split(pieces, dim=1)], 1)
    torch.testing.assert_close(found, layer(x), rtol=1e-5, atol=1e-6)
    assert cache.lengths.tolist() == [17, 17]


def test_positions_are_relative() -> None:
    """With rotary positions or slopes the last of three tokens gives the same wherever the three stand; the order counts."""
    for options in ({"rope_base": 100.0}, {"alibi": True}):
        layer = DecodeAttention(24, 4, window=3, **options)
        x = torch.randn(1, 3, 24)
        later = torch.cat([torch.randn(1, 5, 24), x], 1)
        torch.testing.assert_close(layer(later)[:, -1], layer(x)[:, -1])
        assert not torch.allclose(layer(x[:, [1, 0, 2]])[:, -1], layer(x)[:, -1], atol=1e-3)
    assert DecodeAttention(24, 4, alibi=True).slopes.tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
    with pytest.raises(ArgumentError, match="head_dim is 3, expected an even number"):
        DecodeAttention(24, 8, rope_base=100.0)


def test_torch_agrees() -> None:
    layer = DecodeAttention(24, 4, bias=True)
    theirs = nn.MultiheadAttention(24, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([layer.q.weight, layer.k.weight, layer.v.weight]))
        theirs.in_proj_bias.copy_(torch.cat([layer.q.bias, layer.k.bias, layer.v.bias]))
        theirs.out_proj.load_state_dict(layer.out.state_dict())
    x = torch.randn(2, 9, 24)
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    wanted, _ = theirs(x, x, x, attn_mask=later, need_weights=False)
    torch.testing.assert_close(layer(x), wanted)


def test_ragged_prompts() -> None:
    layer = DecodeAttention(16, 4, 2, window=5, sink=True)
    x, step = torch.randn(3, 7, 16), torch.randn(3, 1, 16)
    lengths = torch.tensor([7, 3, 0])
    cache = layer.new_cache(3, 12)
    first = layer(x, lengths, cache)
    then = layer(step, cache=cache)
    assert cache.lengths.tolist() == [8, 4, 1]
    for b, length in enumerate(lengths.tolist()):
        alone = layer(torch.cat([x[b : b + 1, :length], step[b : b + 1]], 1))
        torch.testing.assert_close(first[b, :length], alone[0, :-1], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(then[b], alone[0, -1:], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer(x, lengths)[1, :3], first[1, :3], rtol=1e-5, atol=1e-6)


def test_it_trains() -> None:
    layer = DecodeAttention(16, 4, 2, sink=True)
    layer(torch.randn(2, 6, 16)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_a_smaller_cache(dtype: torch.dtype) -> None:
    layer = DecodeAttention(32, 4)
    x = torch.randn(2, 12, 32)
    cache = layer.new_cache(2, 12, dtype=dtype)
    found = torch.cat([layer(x[:, :9], cache=cache), layer(x[:, 9:], cache=cache)], 1)
    assert (found - layer(x)).abs().max() < (0.02 if dtype == torch.bfloat16 else 0.1)


def test_what_does_not_fit_is_refused() -> None:
    layer = DecodeAttention(16, 4)
    cache = layer.new_cache(2, 4)
    layer(torch.randn(2, 3, 16), cache=cache)
    before = cache.k.clone()
    with pytest.raises(ArgumentError, match="the cache is full"):
        layer(torch.randn(2, 2, 16), cache=cache)
    assert torch.equal(cache.k, before)
    for wrong, message in (
        (lambda: DecodeAttention(16, 3), "n_inputs is 16, expected a multiple of n_heads 3"),
        (lambda: DecodeAttention(16, 4, 3), "n_heads is 4 and n_kv_heads 3"),
        (lambda: layer(torch.randn(2, 3, 15)), "x is .* expected shape"),
        (lambda: layer(torch.randn(2, 3, 16), cache=object()), "cache is .* expected a KVCache"),
        (lambda: layer(torch.randn(3, 1, 16), cache=cache), "k_new is .* expected shape"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong()
    assert isinstance(cache, KVCache)
    assert "window" not in repr(layer)


def test_a_cache_is_of_one_layer() -> None:
    layer, other, x = DecodeAttention(8, 2), DecodeAttention(8, 2), torch.randn(2, 1, 8)
    cache = layer.new_cache(2, 4)
    with pytest.raises(ArgumentError, match="full"):
        layer(torch.randn(2, 5, 8), cache=cache)
    wanted = other(x, cache=other.new_cache(2, 4))
    assert cache.owner is None  # nothing was written
    layer(x, cache=cache)
    held = cache.k.clone()
    with pytest.raises(ArgumentError, match="a cache that this layer has filled"):
        other(x, cache=cache)
    assert torch.equal(cache.k, held)
    cache.reset()
    torch.testing.assert_close(other(x, cache=cache), wanted)
