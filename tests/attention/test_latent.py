"""Latent attention of many query rows: which calls the CUDA kernel takes, that it compiles, and on a GPU what it gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lut import on_host
from lutetia._shared import nvrtc
from lutetia.attention import decode_attention, reference
from lutetia.attention.arguments import DecodeCall, check_call
from tools import require_module, require_tool

require_module("triton")

from lutetia.attention.cuda import latent  # noqa: E402  (needs triton)

CONSTANTS = [{"BF16": 1, "PAGED": 0, "FIXED": 0}, {"BF16": 0, "PAGED": 1, "FIXED": 8}]
LARGE, SMALL = (64, 8192), (16, 4096)  # rows of a batch, and their keys


@pytest.mark.parametrize("constants", CONSTANTS, ids=str)
def test_the_source_compiles_for_a_gpu(constants: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if nvrtc.compiler() is None:
        pytest.skip("NVRTC is not installed")
    monkeypatch.setenv("LUTETIA_CACHE", str(tmp_path))
    code = nvrtc.compiled.__wrapped__(latent.SOURCES / "latent.cu", tuple(constants.items()), "sm_90a")
    assert code.startswith(b"\x7fELF")


def make(rows: tuple[int, int] = (32, 1), dtype: torch.dtype = torch.bfloat16, **options: Any) -> DecodeCall:
    """A call that the kernel takes, but for the options."""
    n_heads, s_active = rows
    cache = torch.zeros(2, 1, 100, 576, dtype=options.pop("cache", dtype))
    q = torch.zeros(2, n_heads, s_active, 576, dtype=dtype)
    width = options.pop("width", 512)
    return check_call(q, cache, cache[..., :width], torch.tensor([100, 40]), **options)


def new(dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(2, 1, 1, 576, dtype=dtype)


TAKEN: dict[str, Callable[[], DecodeCall]] = {
    "plain": make,
    "float16": lambda: make(dtype=torch.float16),
    "few heads, many tokens": lambda: make((3, 6)),
    "padding on the left": lambda: make(starts=torch.tensor([5, 0])),
    "new keys": lambda: make(k_new=new(), v_new=new()[..., :512]),
    "a scale": lambda: make(scale=-0.1),
}
LEFT: dict[str, Callable[[], DecodeCall]] = {
    "float32": lambda: make(dtype=torch.float32),
    "an 8-bit cache": lambda: make(cache=torch.float8_e4m3fn),
    "narrower values": lambda: make(width=448),
    "a window": lambda: make(window=30),
    "sinks": lambda: make(sink=torch.zeros(32)),
    "a soft cap": lambda: make(softcap=3.0),
    "a prefix": lambda: make(prefix=16),
    "slopes": lambda: make(alibi=torch.zeros(32)),
    "a tree": lambda: make((16, 2), tree=torch.ones(2, 2).tril().bool()),
    "a factor of the cache": lambda: make(k_scale=2.0),
    "a scale of zero": lambda: make(scale=0.0),
    "new keys of another type": lambda: make(k_new=new(torch.float16), v_new=new(torch.float16)[..., :512]),
    "new keys after padding": lambda: make(k_new=new(), v_new=new()[..., :512], starts=torch.tensor([5, 0])),
    "queries that begin at an odd place": lambda: make()._replace(q=torch.zeros(36865).bfloat16()[1:].view(2, 32, 1, 576)),
    "keys with gaps": lambda: odd_keys(),
}  # fmt: skip


def odd_keys() -> DecodeCall:
    """Each key begins two bytes after a multiple of sixteen."""
    cache = torch.zeros(2, 1, 100, 577, dtype=torch.bfloat16)[..., :576]
    return make()._replace(k_cache=cache, v_cache=cache[..., :512])


@pytest.mark.parametrize("name", TAKEN)
def test_calls_that_the_kernel_takes(name: str) -> None:
    assert latent.is_latent(TAKEN[name]())
    assert not latent.is_latent(TAKEN[name](), cores=2)
    assert not latent.fits(TAKEN[name]())  # not on a CPU


@pytest.mark.parametrize("name", LEFT)
def test_calls_that_are_left_to_triton(name: str) -> None:
    assert not latent.is_latent(LEFT[name]())


@pytest.mark.parametrize(
    ("rows", "sizes", "large"),
    [
        (16, LARGE, False),
        (17, LARGE, True),
        (63, SMALL, False),
        (64, SMALL, True),
        (128, (1, 1025), True),
        (128, (1, 1024), False),
    ],
)
def test_small_calls_are_left_to_triton(rows: int, sizes: tuple[int, int], large: bool) -> None:
    q, cache = torch.zeros(1, rows, 1, 576, dtype=torch.bfloat16), torch.zeros(1, 1, 1, 576, dtype=torch.bfloat16)
    (batch, keys), lengths = sizes, torch.zeros(1, dtype=torch.int32)
    cache = cache.expand(batch, 1, keys, 576)
    call = check_call(q.expand(batch, rows, 1, 576), cache, cache[..., :512], lengths.expand(batch))
    assert latent.is_large(call) is large


def test_values_that_are_not_part_of_the_keys_are_left_to_triton() -> None:
    call = make()
    assert not latent.is_latent(call._replace(v_cache=call.v_cache.clone()))


# ---- on a CPU, by a stand-in for CUDA ------------------------------------------------------------------------------


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    require_tool("g++")
    monkeypatch.setattr(nvrtc, "kernel", on_host.HostKernel)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, device: str = "cpu") -> Tensor:
    return torch.randn(*shape, device=device, dtype=dtype)


def check(q: Tensor, cache: Tensor, batch_invariant: bool = False, **given: Any) -> tuple[Tensor, Tensor]:
    """Run the kernel: its result agrees with the reference in float64, and new keys are written."""
    call = check_call(q, cache, cache[..., :512], **given)
    assert latent.is_latent(call)
    if q.is_cuda and not latent.available(q.get_device()):
        pytest.skip("for compute capability 9.x")
    exact, new = cache.double().nan_to_num(), given.get("k_new")
    doubled = given if new is None else {**given, "k_new": new.double(), "v_new": new.double()[..., :512]}
    wanted = reference.decode(check_call(q.double(), exact, exact[..., :512], **doubled))
    out, lse = latent.plan_of(call, batch_invariant).start(call)
    torch.testing.assert_close((out.double(), lse.double()), wanted, rtol=2e-2, atol=2e-2)
    assert torch.equal(cache.double().nan_to_num(), exact)  # where the reference has written them
    return out, lse


def test_odd_lengths_on_a_cpu(on_cpu: None) -> None:
    """Rows that share blocks, one that is empty, and NaN past their ends."""
    cache, lengths = random(5, 1, 200, 576), (200, 65, 0, 64, 1)
    for row, length in enumerate(lengths):
        cache[row, :, length:] = float("nan")
    check(random(5, 17, 1, 576), cache, seq_lens=torch.tensor(lengths))


def test_uneven_rows_of_several_tokens_on_a_cpu(on_cpu: None) -> None:
    """Scores are large enough for sums to be scaled anew."""
    starts = torch.tensor([0, 3, 70])
    check(random(3, 23, 3, 576), random(3, 1, 500, 576), seq_lens=torch.tensor([500, 64, 300]), starts=starts, scale=-1.0)


def test_pages_and_new_keys_on_a_cpu(on_cpu: None) -> None:
    new, table = random(2, 1, 2, 576), torch.randperm(12).view(2, 6).int()
    given = {"k_new": new, "v_new": new[..., :512], "page_table": table}
    check(random(2, 33, 2, 576), random(12, 50, 1, 576), seq_lens=torch.tensor([290, 1]), **given)


@pytest.mark.parametrize(("piece", "lengths"), [(64, (620, 100)), (128, (300, 100, 200))], ids=["in two rounds", "odd tiles"])
def test_a_row_alone_has_the_same_bits_on_a_cpu(
    piece: int, lengths: tuple[int, ...], on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten pieces of a row are added in two rounds; rows of an odd number of tiles end within a piece."""
    monkeypatch.setattr(latent, "INVARIANT_KEYS", piece)
    batch, live = len(lengths), torch.tensor(lengths)
    q, cache = random(batch, 17, 1, 576), random(batch, 1, max(lengths), 576)
    together = check(q, cache, batch_invariant=True, seq_lens=live)
    alone = check(q[1:2], cache[1:2], batch_invariant=True, seq_lens=live[1:2])
    assert torch.equal(alone[0], together[0][1:2])
    assert torch.equal(alone[1], together[1][1:2])


# ---- on a GPU --------------------------------------------------------------------------------------------------------


def on_gpu(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return random(*shape, dtype=dtype, device="cuda")


def lengths_of(*lengths: int) -> Tensor:
    return torch.tensor(lengths, dtype=torch.int32, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_heads", [17, 64, 100, 128])
def test_odd_lengths(n_heads: int, dtype: torch.dtype) -> None:
    lengths = lengths_of(1, 63, 64, 65, 200, 0, 129, 500)
    q, cache = on_gpu(8, n_heads, 1, 576, dtype=dtype), on_gpu(8, 1, 500, 576, dtype=dtype)
    for row, length in enumerate(lengths.tolist()):
        cache[row, :, length:] = float("nan")
    check(q, cache, seq_lens=lengths)


@pytest.mark.gpu
@pytest.mark.parametrize("scale", [None, -0.1, 1.0])
def test_several_tokens_and_padding(scale: float | None) -> None:
    q, cache = on_gpu(4, 40, 3, 576), on_gpu(4, 1, 700, 576)
    given = {"seq_lens": lengths_of(700, 64, 2, 130), "scale": scale}
    check(q, cache, **given)
    check(q, cache, **given, starts=lengths_of(10, 64, 0, 129))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(1, 20000, 128), (3, 9000, 64), (70, 700, 128), (2, 12000, 20), (150, 300, 64)], ids=str)
@pytest.mark.parametrize("uneven", [False, True])
def test_rows_in_pieces(sizes: tuple[int, int, int], uneven: bool) -> None:
    """One row in many pieces, equal rows, rows that share blocks, and more rows than blocks."""
    batch, length, n_heads = sizes
    q, cache = on_gpu(batch, n_heads, 1, 576), on_gpu(batch, 1, length, 576)
    lengths = torch.randint(0, length + 1, (batch,), device="cuda") if uneven else torch.full((batch,), length, device="cuda")
    check(q, cache, seq_lens=lengths.int())


@pytest.mark.gpu
@pytest.mark.parametrize("page_len", [1, 7, 64, 100])
def test_pages(page_len: int) -> None:
    n_pages = -(-700 // page_len)
    cache = on_gpu(5 * n_pages + 3, page_len, 1, 576)
    table = torch.randperm(len(cache), device="cuda")[: 5 * n_pages].reshape(5, n_pages).int()
    check(on_gpu(5, 128, 1, 576), cache, seq_lens=lengths_of(700, 1, 64, 333, 0), page_table=table)


@pytest.mark.gpu
@pytest.mark.parametrize("page_len", [0, 16])
@pytest.mark.parametrize("s_active", [1, 3])
def test_new_keys_are_seen_and_written(s_active: int, page_len: int) -> None:
    table = torch.randperm(4 * 44, device="cuda").reshape(4, 44).int() if page_len else None
    cache = on_gpu(4 * 44, 16, 1, 576) if page_len else on_gpu(4, 1, 704, 576)
    new, lengths = on_gpu(4, 1, s_active, 576), lengths_of(700, s_active, 65, 2)
    check(on_gpu(4, 64, s_active, 576), cache, seq_lens=lengths, k_new=new, v_new=new[..., :512], page_table=table)


@pytest.mark.gpu
def test_a_row_alone_has_the_same_bits() -> None:
    q, cache = on_gpu(20, 128, 1, 576), on_gpu(20, 1, 6000, 576)
    lengths = torch.randint(0, 6001, (20,), device="cuda", dtype=torch.int32)
    together = check(q, cache, batch_invariant=True, seq_lens=lengths)
    called = decode_attention(q, cache, cache[..., :512], seq_lens=lengths, batch_invariant=True)
    assert torch.equal(called[0], together[0])  # which is what a call runs
    for b in (0, 7, 19):
        row = slice(b, b + 1)
        alone = decode_attention(q[row], cache[row], cache[row, ..., :512], seq_lens=lengths[row], batch_invariant=True)
        assert torch.equal(alone[0], together[0][row])
        assert torch.equal(alone[1], together[1][row])


@pytest.mark.gpu
def test_a_captured_graph_follows_the_lengths_with_the_same_bits() -> None:
    q, cache, lengths = on_gpu(9, 128, 1, 576), on_gpu(9, 1, 5000, 576), lengths_of(*[1] * 9)
    check(q, cache, seq_lens=lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = decode_attention(q, cache, cache[..., :512], seq_lens=lengths)
    for _ in range(5):
        lengths.copy_(torch.randint(0, 5001, (9,), device="cuda"))
        graph.replay()
        first = out.clone(), lse.clone()
        for _ in range(50):
            graph.replay()
            assert torch.equal(out, first[0])
            assert torch.equal(lse, first[1])
        torch.testing.assert_close(first, check(q, cache, seq_lens=lengths), rtol=0, atol=0)


@pytest.mark.gpu
def test_a_nan_among_the_keys_shows() -> None:
    q, cache = on_gpu(2, 64, 1, 576), on_gpu(2, 1, 600, 576)
    cache[0, 0, 250, 3] = float("nan")
    out, lse = decode_attention(q, cache, cache[..., :512], seq_lens=lengths_of(300, 300))
    assert out[0].isnan().all()
    assert lse[0].isnan().all()
    assert out[1].isfinite().all()
