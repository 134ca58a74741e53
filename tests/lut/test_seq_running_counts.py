"""Decoding without positions: running counts of the indices seen stand in for the earlier positions, with the same result."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from lutetia.lut import IndexCache, decode, growth, use_backend
from lutetia.nn import LUTAttention

N_CELLS = 4  # 2 anchor pairs


def make(sums: str = "float", positional_dim: int = 0, **options: object) -> LUTAttention:
    return LUTAttention(6, 5, 3, 2, positional_dim, 24, sums=sums, seed=0, **options)  # type: ignore[arg-type]


def sequences() -> Tensor:
    return torch.randn(3, 24, 6, generator=torch.Generator().manual_seed(0))


def seen(cache: IndexCache) -> Tensor:
    """How often each index is in the cache, counted one by one: [B, N_t, C]."""
    counts = torch.zeros(*cache.indices.shape[:2], N_CELLS, dtype=torch.int32)
    for b, length in enumerate(cache.lengths.tolist()):
        for t in range(cache.indices.shape[1]):
            for index in cache.indices[b, t, :length].tolist():
                counts[b, t, index] += 1
    return counts


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_steps_by_counts_are_the_full_forward(sums: str, backend: str) -> None:
    layer, x = make(sums), sequences()
    with use_backend(backend), torch.no_grad():
        full, cache = layer(x), layer.new_cache(3)
        parts = [layer(x[:, :3], cache=cache)]
        for j in range(3, 24):
            parts.append(layer(x[:, j : j + 1], cache=cache))
            if j <= N_CELLS:
                assert cache.counts is None, "few positions are read as they are"
            else:
                assert torch.equal(cache.counts, seen(cache))
    steps = torch.cat(parts, dim=1)
    assert torch.equal(steps, full) if sums == "fixed" else torch.allclose(steps, full, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_rows_that_pause_jump_and_change_places(sums: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[decode.__module__], "NUMBERS_AT_ONCE", 2 * 3 * N_CELLS * 5)  # two rows at a time
    layer, x = make(sums), sequences()
    cache, done = layer.new_cache(3), [0, 0, 0]
    with torch.no_grad():
        full = layer(x)

        def advance(*new: int) -> None:
            width = max(new)
            chunk = torch.zeros(3, width, 6)
            for b, count in enumerate(new):
                chunk[b, :count] = x[b, done[b] : done[b] + count]
            y = layer(chunk, torch.tensor(new), cache)
            for b, count in enumerate(new):
                torch.testing.assert_close(y[b, :count], full[b, done[b] : done[b] + count])
                assert not y[b, count:].any()
                done[b] += count

        for new in [(7, 6, 2), (1, 1, 1), (1, 0, 1), (3, 1, 0), (1, 1, 1), (0, 1, 0), (1, 1, 1)]:
            advance(*new)
            before = cache.counts
        assert before is not None
        cache.reorder(torch.tensor([2, 0, 1]))
        x, full, done = x[[2, 0, 1]], full[[2, 0, 1]], [done[2], done[0], done[1]]
        advance(1, 1, 1)
        cache.lengths -= 2  # back by two
        done = [at - 2 for at in done]
        advance(1, 1, 1)
        assert torch.equal(cache.counts, seen(cache))
        cache.lengths -= 2  # and as far ahead again, with other positions
        done = [at - 2 for at in done]
        for b in range(3):
            x[b, done[b] :] *= -1.0
        full = layer(x)
        advance(2, 2, 2)
        advance(1, 1, 1)
        assert torch.equal(cache.counts, seen(cache))
        cache.reset()
        done = [0, 0, 0]
        advance(6, 5, 7)
        advance(1, 1, 1)
        assert torch.equal(cache.counts, seen(cache))


def test_where_a_distance_matters_or_synapses_are_missing_positions_are_read() -> None:
    synapses = growth.random(3, 4, 5, 0.5, seed=0)
    for layer in (make(positional_dim=1), make(synapses=synapses)):
        cache, x = layer.new_cache(3), sequences()
        with torch.no_grad():
            full = layer(x)
            layer(x[:, :20], cache=cache)
            torch.testing.assert_close(layer(x[:, 20:21], cache=cache), full[:, 20:21])
        assert cache.counts is None
