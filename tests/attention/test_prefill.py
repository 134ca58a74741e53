"""Prefill by torch's attention, against decoding the same tokens one by one and against a softmax written out."""

from __future__ import annotations

import pytest
import torch

from lutetia.attention import decode_attention, prefill
from lutetia.errors import ArgumentError


@pytest.mark.parametrize("window", [None, 1, 4, 50])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_as_if_token_by_token(window: int | None, sink: bool, heads: tuple[int, int]) -> None:
    q, k, v = torch.randn(2, heads[0], 11, 8), torch.randn(2, heads[1], 11, 8), torch.randn(2, heads[1], 11, 8)
    logits = torch.randn(heads[0]) if sink else None
    lengths = torch.tensor([11, 4])
    out = prefill(q, k, v, lengths=lengths, window=window, sink=logits, scale=0.3)
    for i in range(11):
        one = torch.tensor([i + 1, i + 1], dtype=torch.int32)
        wanted, _ = decode_attention(q[:, :, i : i + 1], k, v, seq_lens=one, window=window, sink=logits, scale=0.3)
        torch.testing.assert_close(out[0, :, i], wanted[0, :, 0], rtol=1e-5, atol=1e-6)
        if i < 4:
            torch.testing.assert_close(out[1, :, i], wanted[1, :, 0], rtol=1e-5, atol=1e-6)
    assert not out[1, :, 4:].any()


@pytest.mark.parametrize("window", [None, 3])
def test_after_what_is_in_the_cache(window: int | None) -> None:
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 20, 8), torch.randn(2, 2, 20, 8)
    start = torch.tensor([7, 0])
    k[1, :, 9:] = v[1, :, 9:] = float("nan")
    out = prefill(q, k, v, start=start, window=window)
    whole = torch.randn(1, 4, 16, 8)
    whole[:, :, 7:] = q[:1]
    torch.testing.assert_close(out[:1], prefill(whole, k[:1], v[:1], window=window)[:, :, 7:])
    torch.testing.assert_close(out[1:], prefill(q[1:], k[1:, :, :9], v[1:, :, :9], window=window))


def test_gradients_are_those_of_a_softmax() -> None:
    q, k, v, sink = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((1, 2, 5, 4), *[(1, 2, 5, 4)] * 2, (2,))
    )
    assert torch.autograd.gradcheck(lambda *tensors: prefill(*tensors[:3], sink=tensors[3], window=3), (q, k, v, sink))


def test_what_does_not_fit_is_refused() -> None:
    q, k = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8)
    for wrong, message in (
        (lambda: prefill(q, torch.zeros(1, 3, 3, 8), torch.zeros(1, 3, 3, 8)), "q has 4 heads and k 3"),
        (lambda: prefill(q, k[:, :, :2], k[:, :, :2]), "q has 3 tokens and k 2"),
        (lambda: prefill(q, k, k, window=0), "window is 0"),
        (lambda: prefill(q, k, k, sink=torch.zeros(2)), "sink is .* expected shape"),
        (lambda: prefill(q, k, k, lengths=torch.zeros(2, dtype=torch.int64)), "lengths is .* expected shape"),
    ):
        with pytest.raises(ArgumentError, match=message):
            wrong()
    assert prefill(q[:0], k[:0], k[:0]).shape == (0, 4, 3, 8)
