"""The contiguous cache: what was appended is there, a full one is an error, and nothing is half written."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from lutetia.attention import KVCache, PagedKVCache, decode_attention
from lutetia.errors import ArgumentError


def new(cache: KVCache, s: int, batch: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    _, heads, _, d = cache.k.shape
    shape = (len(cache.lengths) if batch is None else batch, heads, s, d)
    return torch.randn(shape), torch.randn(shape)


def test_rows_grow_by_what_is_appended() -> None:
    cache = KVCache(3, 2, 10, 4)
    assert cache.k.shape == cache.v.shape == (3, 2, 10, 4)
    assert cache.lengths.dtype == torch.int32
    first, ragged, last = new(cache, 2), new(cache, 5), new(cache, 1)
    cache.append(*first)
    cache.append(*ragged, torch.tensor([5, 0, 3]))
    cache.append(*last)
    assert cache.lengths.tolist() == [8, 3, 6]
    for of, kept in ((0, cache.k), (1, cache.v)):
        for b, count in enumerate((5, 0, 3)):
            wanted = torch.cat([first[of][b], ragged[of][b, :, :count], last[of][b]], 1)
            assert torch.equal(kept[b, :, : int(cache.lengths[b])], wanted)


def test_padding_without_a_slot_is_left_out() -> None:
    cache = KVCache(2, 1, 4, 2)
    cache.append(*new(cache, 3))
    k, v = new(cache, 3)
    before = cache.k[1].clone()
    cache.append(k, v, torch.tensor([1, 0]))
    assert torch.equal(cache.k[0, :, 3], k[0, :, 0])
    assert torch.equal(cache.k[1], before)
    assert cache.lengths.tolist() == [4, 3]


def test_a_full_cache_is_an_error_and_stays_as_it_was() -> None:
    cache = KVCache(2, 1, 4, 2)
    cache.append(*new(cache, 3), torch.tensor([3, 1]))
    before = cache.k.clone(), cache.v.clone(), cache.lengths.clone()
    with pytest.raises(
        ArgumentError, match="the cache is full: row 0 holds 3 tokens and 2 more were given, expected no more than"
    ):
        cache.append(*new(cache, 2))
    for was, now in zip(before, (cache.k, cache.v, cache.lengths), strict=True):
        assert torch.equal(was, now)
    cache.append(*new(cache, 2), torch.tensor([1, 2]))
    assert cache.lengths.tolist() == [4, 3]


def test_lengths_may_be_changed_from_outside() -> None:
    cache = KVCache(2, 1, 4, 2)
    cache.append(*new(cache, 4))
    cache.lengths[1] = 1
    cache.append(*new(cache, 2), torch.tensor([0, 2]))
    assert cache.lengths.tolist() == [4, 3]


@pytest.mark.parametrize(
    "rows", [[0, 2], torch.tensor([0, 2]), torch.tensor([True, False, True])], ids=["list", "tensor", "bool"]
)
def test_reset(rows: list[int] | torch.Tensor) -> None:
    cache = KVCache(3, 1, 4, 2)
    cache.append(*new(cache, 3))
    cache.reset(rows)
    assert cache.lengths.tolist() == [0, 3, 0]
    cache.reset()
    assert cache.lengths.tolist() == [0, 0, 0]
    cache.append(*new(cache, 4))


def test_what_does_not_fit_is_refused() -> None:
    cache = KVCache(2, 1, 4, 2)
    k, v = new(cache, 1)
    for wrong, message in (
        (lambda: cache.append(k[:1], v), "k_new is .* expected shape"),
        (lambda: cache.append(k, torch.zeros(2, 1, 2, 2)), "v_new is .* expected shape"),
        (lambda: cache.append(k, v, torch.tensor([2, 0])), "lengths has 2 in row 0, expected 0 to 1"),
        (lambda: cache.append(k, v, torch.tensor([1])), "lengths is .* expected shape"),
        (lambda: cache.reset([2]), r"rows is \[2\], expected rows from 0 to 1"),
        (lambda: KVCache(2, 0, 4, 2), "n_kv_heads is 0"),
        (lambda: KVCache(2, 1, 4, 2, dtype=torch.int16), "dtype is torch.int16"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong()
    assert cache.lengths.tolist() == [0, 0]


@pytest.mark.parametrize("scaled", [False, True])
def test_fp8(scaled: bool) -> None:
    cache = KVCache(2, 2, 8, 16, dtype=torch.float8_e4m3fn)
    if scaled:
        cache.k_scale, cache.v_scale = torch.tensor([0.5, 2.0]), torch.tensor([4.0, 0.25])
    k, v = new(cache, 5)
    cache.append(k, v)
    factor = torch.ones(2) if cache.k_scale is None else cache.k_scale
    kept = cache.k[:, :, :5].float() * factor[:, None, None]
    torch.testing.assert_close(kept, k, rtol=0.07, atol=0.01)
    q = torch.randn(2, 4, 1, 16)
    out, _ = decode_attention(q, cache.k, cache.v, seq_lens=cache.lengths, k_scale=cache.k_scale, v_scale=cache.v_scale)
    exact, _ = decode_attention(q, k, v, seq_lens=cache.lengths)
    assert (out - exact).abs().max() < 0.1


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        cache = KVCache(1, 1, 4, 2)
        cache.append(*new(cache, 1))
        cache.append(*new(cache, 1))
    assert cache.lengths.tolist() == [2]
    assert "lengths=[2]" in repr(cache)


def test_lengths_that_were_made_negative_are_refused() -> None:
    cache = KVCache(2, 1, 4, 8)
    cache.lengths[1] = -1
    with pytest.raises(ArgumentError, match="lengths of the cache has -1 in row 1, expected 0 to 4"):
        cache.append(torch.ones(2, 1, 1, 8), torch.ones(2, 1, 1, 8))
    assert not cache.k.any()


@pytest.mark.parametrize("paged", [False, True])
def test_int8_keeps_a_scale_for_each_token(paged: bool) -> None:
    """Tokens a thousand times larger than others lose no more of their own size; forks keep theirs."""
    torch.manual_seed(0)
    k, v = (torch.randn(2, 2, 9, 32) * 10.0 ** torch.arange(-4, 5)[:, None] / 100 for _ in range(2))
    q = torch.randn(2, 4, 1, 32) / 100
    if paged:
        cache = PagedKVCache(12, 4, 2, 32, dtype=torch.int8)
        rows = [cache.allocate(), cache.allocate()]
        cache.append(rows, k, v)
        copy = cache.fork(rows[0])
        cache.append([copy], k[:1, :, :1], v[:1, :, :1])  # takes a page of its own, with the scales of the other
        assert torch.equal(cache.k_scale[cache.page_table([copy])[0, 2], 0], cache.k_scale[cache.page_table(rows)[0, 2], 0])
        given = {"seq_lens": cache.lengths(rows), "page_table": cache.page_table(rows)}
    else:
        cache = KVCache(2, 2, 12, 32, dtype=torch.int8)
        cache.append(k, v)
        given = {"seq_lens": cache.lengths}
        assert ((cache.k[:, :, :9] * cache.k_scale[:, :, :9, None] - k).abs() <= 0.51 * cache.k_scale[:, :, :9, None]).all()
    found, _ = decode_attention(q, cache.k, cache.v, **given, k_scale=cache.k_scale, v_scale=cache.v_scale)
    wanted, _ = decode_attention(q, k, v, seq_lens=given["seq_lens"])
    assert (found - wanted).abs().max() <= 0.02 * wanted.abs().max()


@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn, torch.float32])
@pytest.mark.parametrize("paged", [False, True])
def test_new_tokens_of_8_bits_are_refused(kept: torch.dtype, paged: bool) -> None:
    new, pages = torch.zeros(1, 1, 1, 4), PagedKVCache(2, 2, 1, 4, dtype=kept)
    append: Any = partial(pages.append, [pages.allocate(0)]) if paged else KVCache(1, 1, 4, 4, dtype=kept).append
    with pytest.raises(ArgumentError, match=r"v_new is float8_e4m3fn .* expected dtype"):
        append(new, new.to(torch.float8_e4m3fn))
