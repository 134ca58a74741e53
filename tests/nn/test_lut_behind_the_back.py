"""Layers whose anchors, synapses or caches were changed behind torch's back: an error that says so, or what was there before."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.lut import growth, kernels, use_backend
from lutetia.nn import LUT, LUTAttention

X = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
OUTSIDE = [6, 10**6, -1, 2**31 - 1]


def layer(read: str = "hard", **options: Any) -> LUT:
    return LUT(6, 4, 7, 3, read=read, seed=1, **options)


@pytest.mark.parametrize("how", ["data", "numpy"])
@pytest.mark.parametrize("value", OUTSIDE)
@pytest.mark.parametrize("read", ["hard", "confidence2"])
def test_anchors_that_changed_uncounted_are_refused(how: str, value: int, read: str) -> None:
    lut = layer(read)
    for x in (X, X[:1]):
        lut(x), lut.eval()(x)
    version = lut.anchors._version
    (lut.anchors.data if how == "data" else lut.anchors.numpy())[2, 1, 0] = value
    assert lut.anchors._version == version
    for run in (lut.eval(), lut.train()):
        with torch.no_grad(), pytest.raises(ArgumentError, match=r"anchor 1 of detector 2 .* expected inputs from 0 to 5"):
            run(X)
        with pytest.raises(ArgumentError, match="anchor 1 of detector 2"):
            run(X[:1])


@pytest.mark.parametrize("read", ["hard", "blend"])
def test_anchors_that_changed_before_the_backward_pass_are_refused(read: str) -> None:
    lut, x = layer(read), X.clone().requires_grad_()
    y = lut(x).sum()
    lut.anchors.numpy()[:] = 10**6
    with pytest.raises(ArgumentError, match="anchor 0 of detector 0"):
        y.backward()


def test_anchors_that_changed_uncounted_within_range_are_used() -> None:
    lut = layer()
    lut.eval()(X)
    lut.anchors.numpy()[0] = [[1, 0], [2, 0], [3, 0]]
    with use_backend("reference"):
        expected = lut(X)
    torch.testing.assert_close(lut(X), expected)


@pytest.mark.parametrize("batch", [1, 5])
def test_anchors_whose_data_is_another_tensor_are_used(batch: int) -> None:
    lut, x = layer(), X[:batch]
    with torch.no_grad():
        before = lut.eval()(x)
        assert torch.equal(lut(x), before)
        lut.anchors.data = lut.anchors.flip(0).contiguous()
        with use_backend("reference"):
            after = lut(x)
        assert not torch.equal(before, after)
        torch.testing.assert_close(lut(x), after)
        torch.testing.assert_close(lut(x), after)  # of what was prepared anew


@pytest.mark.parametrize("shared", [True, False])
def test_synapses_that_changed_uncounted_stay_those_that_were_checked(shared: bool) -> None:
    synapses = growth.random(7, 3, 4, 0.5, seed=2, shared=shared)
    lut = layer(synapses=synapses)
    before = lut(X).detach()
    for buffer in (lut.synapse_targets, lut.synapse_meta, lut.synapse_start):
        buffer.data.fill_(10**6)
    torch.testing.assert_close(lut(X).detach(), before, rtol=0, atol=0)
    lut(X).sum().backward()
    torch.testing.assert_close(lut.eval()(X).detach(), before)
    lut.synapse_targets.fill_(10**6)
    for enabled in (True, False):
        with (
            torch.set_grad_enabled(enabled),
            pytest.raises(ArgumentError, match=r"has output 1000000, expected 0 to 3|runs from"),
        ):
            lut(X)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_synapses_made_by_replace_are_checked(backend: str) -> None:
    synapses = growth.random(7, 3, 4, 0.5, seed=2)
    weight, indices = torch.zeros(synapses.n_weights), torch.zeros(5, 7, dtype=torch.int32)
    for changes in ({"owner_targets": synapses.owner_targets + 100}, {"owner_start": synapses.owner_start + 5}, {"n_outputs": 1}):
        with pytest.raises(ArgumentError):
            kernels(backend).fill_outputs_sparse(weight, indices, replace(synapses, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("spoiled", ["min_delta_index", "indices", "min_delta"])
def test_rows_of_a_kernels_arguments_must_be_as_many(backend: str, spoiled: str) -> None:
    lut = layer()
    found = dict(zip(("indices", "min_delta", "min_delta_index"), kernels("cpu").check_detectors(X, lut.anchors), strict=True))
    found[spoiled] = found[spoiled][:2]
    run = kernels(backend).propagate_through_detectors_fc
    named = "min_delta" if spoiled == "indices" else spoiled  # the first that differs from those before it
    with pytest.raises(ArgumentError, match=rf"^{named} is .*expected shape"):
        run(torch.zeros(5, 4), lut.weight.detach(), *found.values(), lut.anchors, 6)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_indices_past_32_bits_do_not_wrap(backend: str) -> None:
    indices = torch.zeros(5, 7, dtype=torch.int64)
    indices[3, 3] = 2**32 + 1
    with pytest.raises(ArgumentError, match="indices are from 0 to 4294967297, expected 0 to 7"):
        kernels(backend).fill_outputs_fc(torch.zeros(7, 8, 4), indices)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_whole_numbers_are_no_inputs(backend: str) -> None:
    with pytest.raises(ArgumentError, match=r"x is int32 .* expected dtype float32"):
        kernels(backend).check_detectors_eval(torch.tensor([[-1, 1]], dtype=torch.int32), torch.tensor([[[0, 1]]]))


# ---- caches ----------------------------------------------------------------------------------------------------------


def attention(seed: int = 1, max_length: int = 6, positional_dim: int = 1) -> LUTAttention:
    return LUTAttention(6, 4, 7, 2, positional_dim, max_length, seed=seed)


def token() -> torch.Tensor:
    return torch.randn(3, 1, 6, generator=torch.Generator().manual_seed(4))


def filled(lut: LUTAttention, steps: int = 2) -> Any:
    cache = lut.new_cache(3)
    for _ in range(steps):
        lut(token(), cache=cache)
    return cache


def test_a_cache_of_other_anchors_is_refused() -> None:
    mine, other = attention(1), attention(2)
    for rest in (token(), token().expand(3, 2, 6)):  # the fast step, and any number of positions
        with pytest.raises(ArgumentError, match="other anchors"):
            mine(rest, cache=filled(other))
    cache = filled(other)
    cache.reset()
    mine(token(), cache=cache)
    copy.deepcopy(mine)(token(), cache=cache)  # the same anchors


def test_a_cache_of_changed_anchors_is_refused() -> None:
    lut = attention()
    cache = filled(lut)
    lut.anchors = lut.anchors.flip(2)
    with pytest.raises(ArgumentError, match="other anchors"):
        lut(token(), cache=cache)


@pytest.mark.parametrize("value", [-1, 7, 10**9, -(2**40)])
def test_lengths_of_a_cache_that_cannot_be_are_refused(value: int) -> None:
    lut = attention()
    cache = filled(lut)
    cache.lengths[1] = value
    with pytest.raises(ArgumentError, match=f"lengths of the cache has {value} in row 1, expected 0 to 6"):
        lut(token(), cache=cache)


@pytest.mark.parametrize("value", [4, 30000, -1])
@pytest.mark.parametrize("positional_dim", [0, 1])
def test_indices_of_a_cache_that_cannot_be_are_refused(value: int, positional_dim: int) -> None:
    lut = attention(positional_dim=positional_dim)
    for rest in (token(), token().expand(3, 2, 6)):
        cache = filled(lut)
        cache.indices[1, 3, 0] = value
        with pytest.raises(ArgumentError, match="the cache holds"):
            lut(rest, cache=cache)


@pytest.mark.parametrize(
    "changes", [{"lengths": torch.zeros(2, dtype=torch.int64)}, {"lengths": torch.zeros(3)}, {"lengths": None}]
)
def test_tensors_of_a_cache_that_do_not_fit_are_refused(changes: dict[str, Any]) -> None:
    lut = attention()
    cache = filled(lut)
    vars(cache).update(changes)
    with pytest.raises(ArgumentError, match=r"lengths"):
        lut(token(), cache=cache)


def test_a_cache_of_another_batch_or_a_longer_context_is_refused() -> None:
    lut = attention()
    with pytest.raises(ArgumentError, match=r"cache.indices is int16 \[2, 7, 6\]"):
        lut(token(), cache=lut.new_cache(2))
    with pytest.raises(ArgumentError, match="a max_length of at most 6"):
        lut(token(), cache=attention(max_length=9).new_cache(3))


def test_lengths_set_to_zero_are_an_empty_cache() -> None:
    lut = attention(positional_dim=0, max_length=12)
    cache = filled(lut, 9)  # more positions than indices: counts are kept
    assert cache.counts is not None
    cache.lengths.zero_()
    again = [lut(token() * k, cache=cache) for k in range(1, 12)]
    fresh = lut.new_cache(3)
    for k, y in enumerate(again, 1):
        torch.testing.assert_close(y, lut(token() * k, cache=fresh))
