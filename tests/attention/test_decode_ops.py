"""The ops: torch.library's own checks, compiled as a whole, and a cache that a compiled step writes to."""

from __future__ import annotations

import torch

from lutetia.attention import KVCache, decode_attention
from tools import require_module

require_module("numba")

DEFAULTS = (None, None, None, None, None, None, 1, "auto", "lse", "auto", False, "cost")


def tensors(s_active: int = 2) -> tuple[torch.Tensor, ...]:
    q, new = torch.randn(3, 4, s_active, 16), torch.randn(3, 2, s_active, 16)
    return q, torch.randn(3, 2, 12, 16), torch.randn(3, 2, 12, 16), torch.tensor([12, 2, 7], dtype=torch.int32), new, new + 1


def test_opcheck() -> None:
    q, k, v, lengths, k_new, v_new = tensors()
    torch.library.opcheck(torch.ops.lutetia.decode_attention, (q, k, v, lengths, *DEFAULTS))
    options = (0.5, 5, torch.randn(4), None, torch.tensor(2.0), None, *DEFAULTS[6:])
    torch.library.opcheck(torch.ops.lutetia.decode_attention, (q, k, v, lengths, *options))
    torch.library.opcheck(torch.ops.lutetia.decode_attention_append, (q, k, v, lengths, k_new, v_new, *DEFAULTS))
    scales = (torch.rand(k.shape[:3]), torch.rand(k.shape[:3]))  # of each token: written to
    options = (*DEFAULTS[:4], *scales, *DEFAULTS[6:])
    torch.library.opcheck(torch.ops.lutetia.decode_attention_append, (q, k.char(), v.char(), lengths, k_new, v_new, *options))
    more = {"prefix": 1, "alibi": torch.rand(4), "rotary": torch.randn(2, 12, 8)}
    torch.library.opcheck(
        torch.ops.lutetia.decode_attention, (q[:1], k[:1], v[:1, :, :, :9], lengths[:1], *DEFAULTS), more | {"rotary": None}
    )
    torch.library.opcheck(torch.ops.lutetia.decode_attention, (q[:1], k[:1], v[:1], lengths[:1], *DEFAULTS), more)
    tree = torch.ones(2, 2, dtype=torch.bool)
    torch.library.opcheck(torch.ops.lutetia.decode_attention, (q, k, v, lengths, *DEFAULTS), {"tree": tree})


def test_compiled_as_a_whole() -> None:
    q, k, v, lengths, k_new, v_new = tensors()
    twin_k, twin_v = k.clone(), v.clone()

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, _ = decode_attention(q, k, v, seq_lens=lengths, k_new=k_new, v_new=v_new, window=6)
        again, lse = decode_attention(q + 1, k, v, seq_lens=lengths, k_scale=0.5)
        return out * 2 + again, lse

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), step(q, twin_k, twin_v))
    assert torch.equal(k, twin_k)
    assert torch.equal(v, twin_v)


def test_compiled_for_any_batch() -> None:
    compiled = torch.compile(
        lambda q, k, v, lengths: decode_attention(q, k, v, seq_lens=lengths)[0], fullgraph=True, backend="aot_eager", dynamic=True
    )
    for batch in (2, 3, 5):
        q, k, v = torch.randn(batch, 4, 1, 8), torch.randn(batch, 2, 9, 8), torch.randn(batch, 2, 9, 8)
        lengths = torch.arange(1, batch + 1, dtype=torch.int32)
        torch.testing.assert_close(compiled(q, k, v, lengths), decode_attention(q, k, v, seq_lens=lengths)[0])


def test_exported() -> None:
    class Step(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return decode_attention(q, k, v, seq_lens=lengths)[0]

    q, k, v, lengths, *_ = tensors()
    program = torch.export.export(Step(), (q, k, v, lengths))
    torch.testing.assert_close(program.module()(q, k, v, lengths), Step()(q, k, v, lengths))


def test_appending_then_reading_is_writing_new_keys() -> None:
    q, k, v, lengths, k_new, v_new = tensors()
    cache = KVCache(3, 2, 12, 16)
    cache.append(k, v, lengths - 2)
    whole = cache.k.clone(), cache.v.clone()
    cache.append(k_new, v_new)
    read = decode_attention(q, cache.k, cache.v, seq_lens=cache.lengths)
    written = decode_attention(q, *whole, seq_lens=lengths, k_new=k_new, v_new=v_new)
    torch.testing.assert_close(read, written)
    for b, length in enumerate(lengths.tolist()):
        assert torch.equal(whole[0][b, :, :length], cache.k[b, :, :length])
