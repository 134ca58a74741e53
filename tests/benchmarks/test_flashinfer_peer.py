"""What FlashInfer is given is what we read: a stand-in with its calls, in plain torch, finds our outputs in the same memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from lutetia.attention import decode_attention

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """q [H_q, d] on [S, H_kv, d]: out and the logarithm of the sum, to base 2 as FlashInfer has it."""
    share = q.shape[0] // keys.shape[1]
    keys, values = (each.double().repeat_interleave(share, 1) for each in (keys, values))
    scores = torch.einsum("hd,shd->hs", q.double(), keys) * scale
    return torch.einsum("hs,shd->hd", scores.softmax(1), values), scores.logsumexp(1) / torch.tensor(2.0).log()


def keys_of(cache: Tensor, listed: Tensor, last: int, layout: str) -> Tensor:
    """[S, H_kv, d] out of some pages."""
    pages = cache[listed.long()] if layout == "NHD" else cache[listed.long()].transpose(1, 2)
    return pages.flatten(0, 1)[: (len(listed) - 1) * pages.shape[1] + last]


class Wrapper:
    """BatchDecodeWithPagedKVCacheWrapper, and with `queries` BatchPrefillWithPagedKVCacheWrapper without a mask."""

    def __init__(self, workspace: Tensor, layout: str, use_cuda_graph: bool, *buffers: Tensor, **named: Any) -> None:
        self.layout, self.graph, self.buffers = layout, use_cuda_graph, [*buffers, *named.values()]

    def plan(self, *given: Any, q_data_type: torch.dtype, kv_data_type: torch.dtype | None = None) -> None:
        *arrays, self.heads, self.kv_heads, self.d, self.size = given
        assert all(each.dtype == torch.int32 for each in arrays)
        self.queries, (self.first, self.listed, self.last) = arrays[0] if len(arrays) == 4 else None, arrays[-3:]
        if self.queries is None:
            self.queries = torch.arange(len(self.last) + 1)

    def run(self, q: Tensor, cache: tuple[Tensor, Tensor], return_lse: bool = False) -> Any:
        assert q.shape[1:] == (self.heads, self.d)
        assert cache[0].shape[1:] in ((self.size, self.kv_heads, self.d), (self.kv_heads, self.size, self.d))
        out, lse = torch.zeros_like(q), q.new_zeros(q.shape[:2], dtype=torch.float32)
        for row, last in enumerate(self.last.tolist()):
            listed = self.listed[self.first[row] : self.first[row + 1]]
            keys, values = (keys_of(each, listed, last, self.layout) for each in cache)
            for query in range(int(self.queries[row]), int(self.queries[row + 1])):
                out[query], lse[query] = attend(q[query], keys, values, self.d**-0.5)
        return (out, lse) if return_lse else out


def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    weight = torch.sigmoid((other_lse - lse) * torch.tensor(2.0).log())[..., None]
    out.copy_(out * (1 - weight) + other * weight)


class Cascade:
    """MultiLevelCascadeAttentionWrapper."""

    def __init__(self, n: int, workspace: Tensor, layout: str, use_cuda_graph: bool, *buffers: list[Tensor]) -> None:
        self.wrappers = [Wrapper(workspace, layout, use_cuda_graph, *(each[i] for each in buffers)) for i in range(n)]

    def plan(self, *given: Any, q_data_type: torch.dtype) -> None:
        for i, each in enumerate(self.wrappers):
            each.plan(*(array[i] for array in given[:4]), *given[4:], q_data_type=q_data_type)

    def run(self, q: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        out, lse = self.wrappers[1].run(q, cache, return_lse=True)
        merge(out, lse, *self.wrappers[0].run(q, cache, return_lse=True))
        return out


class Latent:
    """BatchMLAPagedAttentionWrapper."""

    def __init__(self, workspace: Tensor, use_cuda_graph: bool, *buffers: Tensor, backend: str) -> None:
        pass

    def plan(self, *, metadata: Any, head_dim_ckv: int, sm_scale: float, **rest: Any) -> None:
        self.metadata, self.value, self.scale = metadata, head_dim_ckv, sm_scale

    def run(self, *, query: Tensor, kv_cache: Tensor) -> Tensor:
        _, first, listed, lengths = self.metadata
        rows = [kv_cache[listed[first[row] : first[row + 1]].long()].flatten(0, 1)[:n] for row, n in enumerate(lengths.tolist())]
        outs = [attend(q, keys[:, None], keys[:, None, : self.value], self.scale)[0] for q, keys in zip(query, rows, strict=True)]
        return torch.stack(outs).to(query.dtype)


def xqa(q: Tensor, cache: Any, workspace: Tensor, table: Tensor, lengths: Tensor, longest: int, **given: Any) -> Tensor:
    """xqa_batch_decode_with_kv_cache."""
    layout = given["kv_layout"]
    rows = []
    for row, length in enumerate(lengths.tolist()):
        size = cache[0].shape[layout.index("N") + 1]
        count = -(-length // size)
        keys, values = (keys_of(each, table[row, :count], length - (count - 1) * size, layout) for each in cache)
        rows.append(attend(q[row], keys, values, given["bmm1_scale"])[0])
    return torch.stack(rows).to(q.dtype)


STAND_IN = SimpleNamespace(
    __version__="0",
    BatchDecodeWithPagedKVCacheWrapper=Wrapper,
    BatchPrefillWithPagedKVCacheWrapper=Wrapper,
    MultiLevelCascadeAttentionWrapper=Cascade,
    BatchMLAPagedAttentionWrapper=Latent,
    merge_state_in_place=merge,
    decode=SimpleNamespace(xqa_batch_decode_with_kv_cache=xqa),
    mla=SimpleNamespace(MLAPlanMetadata=SimpleNamespace(csr=lambda *arrays: arrays)),
)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """benchmarks/flashinfer_peer.py, with the stand-in and on the CPU."""
    names = set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("flashinfer_peer")
    monkeypatch.setattr(module, "flashinfer", STAND_IN)
    monkeypatch.setattr(module, "workspace", lambda of: torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    yield module
    for name in set(sys.modules) - names:
        if name in ("flashinfer_peer", "results"):
            del sys.modules[name]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.bfloat16)


def found(peer: ModuleType, calls: Any, caches: Any, ours: Tensor) -> list[str]:
    """The calls that gave what we gave."""
    return list(peer.ways("here", calls, caches, ours[:, :, 0], lambda caches, call: call))


KERNELS = ["CUDA cores", "tensor cores", "XQA"]


@pytest.mark.parametrize("lengths", [[128, 128, 128], [1, 65, 128]])
def test_a_contiguous_cache_is_read_in_place(peer: ModuleType, lengths: list[int]) -> None:
    q, k, v = random(3, 4, 1, 16), random(3, 2, 128, 16), random(3, 2, 128, 16)
    live = torch.tensor(lengths, dtype=torch.int32)
    views = [(peer.in_pages(k), peer.in_pages(v))]
    assert views[0][0].data_ptr() == k.data_ptr()
    ours, _ = decode_attention(q, k, v, seq_lens=live)
    assert found(peer, peer.decoders(q, views[0][0], live, peer.pages_of(k)), views, ours) == KERNELS


def test_pages_are_read_as_they_are(peer: ModuleType) -> None:
    q, k, v = random(2, 4, 1, 16), random(9, 16, 2, 16), random(9, 16, 2, 16)
    live, table = torch.tensor([64, 33], dtype=torch.int32), torch.tensor([[7, 1, 0, 4], [2, 8, 3, 5]], dtype=torch.int32)
    ours, _ = decode_attention(q, k, v, seq_lens=live, page_table=table)
    assert found(peer, peer.decoders(q, k, live, peer.Pages(table, 16, "NHD")), [(k, v)], ours) == KERNELS
    assert max(peer.DIFFERENCES.values()) < 0.01
    assert peer.LEFT_OUT == []


def test_a_prefix_is_shared(peer: ModuleType) -> None:
    q, k, v = random(3, 4, 1, 16), random(3, 2, 64, 16), random(3, 2, 64, 16)
    live = torch.full((3,), 64, dtype=torch.int32)
    ours, _ = decode_attention(q, k, v, seq_lens=live, prefix=32)
    views = [(peer.in_pages(k, 16), peer.in_pages(v, 16))]
    calls = peer.cascades(q, views[0][0], 32, live, peer.pages_of(k, 16))
    assert found(peer, calls, views, ours) == ["cascade", "cascade, fa2"]


def test_latent_attention_has_the_same_scale(peer: ModuleType) -> None:
    q, k = random(2, 4, 1, 96), random(2, 1, 128, 96)
    live = torch.full((2,), 128, dtype=torch.int32)
    ours, _ = decode_attention(q, k, k[..., :64], seq_lens=live)
    assert found(peer, peer.latents(q, live, 128, 64), [(k, k[..., :64])], ours) == ["MLA, fa2", "MLA, fa3"]


def test_what_differs_or_fails_is_left_out_and_told(peer: ModuleType) -> None:
    ours = torch.ones(1, 1, 1, 4, dtype=torch.bfloat16)

    def broken() -> Any:
        raise RuntimeError("no kernel\n for this")

    calls = {"right": lambda: lambda k, v: k, "wrong": lambda: lambda k, v: k * 1.02, "NaN": lambda: lambda k, v: k / 0 * 0}
    k = torch.ones(1, 1, 4, dtype=torch.bfloat16)
    assert found(peer, {**calls, "broken": broken}, [(k, k)], ours) == ["right"]
    wrong, nan, failed = peer.LEFT_OUT
    assert wrong.startswith("wrong on here: differs from ours by 2.")
    assert nan.startswith("NaN on here")
    assert failed == "broken on here: no kernel for this"
    assert failed in peer.described()[0]["mode"]


def test_without_it_nothing_is_measured(peer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "flashinfer", None)
    q, k, live = random(1, 4, 1, 16), random(1, 2, 64, 16), torch.tensor([64], dtype=torch.int32)
    assert peer.decoders(q, k, live, peer.pages_of(k)) == peer.latents(q, live, 64, 8) == {}
    assert peer.cascades(q, k, 16, live, peer.pages_of(k, 16)) == {}
    assert peer.beside({"Lutetia": 1.0}, "Lutetia") == {}
    assert peer.described()[0]["mode"] == "not installed, so not measured"


def test_the_fastest_of_its_kernels_counts(peer: ModuleType) -> None:
    times = {"Lutetia": 2.0, "FlashInfer XQA": 5.0, "FlashInfer tensor cores": 3.0, "FlashInfer CUDA cores": None}
    assert peer.beside(times, "Lutetia") == {"FlashInfer": 3.0, "FlashInfer / Lutetia": 1.5}
