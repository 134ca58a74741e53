"""What only a GPU can show of decode attention: replays, captured graphs, more than 2**31 elements, hardware rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lutetia.attention import KVCache, PagedKVCache, decode_attention, processes, reference
from lutetia.attention.arguments import check_call
from lutetia.attention.messages import Core
from lutetia.attention.scratch import ScratchManager
from lutetia.errors import ArgumentError
from ports import free_port

pytestmark = pytest.mark.gpu


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def lengths_of(*lengths: int) -> Tensor:
    return torch.tensor(lengths, dtype=torch.int32, device="cuda")


def plain(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> tuple[Tensor, Tensor]:
    """The reference, in float64."""
    return reference.decode(check_call(q.double(), k.double(), v.double(), **arguments))


def captured(call: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph, found


def test_a_thousand_replays_have_the_same_bits() -> None:
    q, k, v = random(4, 32, 2, 128), random(4, 8, 4096, 128), random(4, 8, 4096, 128)
    lengths = lengths_of(4096, 17, 0, 2049)
    graph, (out, lse) = captured(lambda: decode_attention(q, k, v, seq_lens=lengths))
    graph.replay()
    first = out.clone(), lse.clone()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        out.zero_()
        graph.replay()
        wrong += (out != first[0]).sum() + (lse != first[1]).sum()
    assert not int(wrong)
    torch.testing.assert_close(first[0].double(), plain(q, k, v, seq_lens=lengths)[0], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("paged", [False, True])
def test_a_captured_graph_follows_the_lengths(paged: bool) -> None:
    q, k_new = random(3, 8, 1, 64), random(3, 2, 1, 64)
    lengths = lengths_of(1, 1, 1)
    shape = (3 * 32, 64, 2, 64) if paged else (3, 2, 2048, 64)
    k, v = (torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    table = torch.randperm(96, device="cuda").reshape(3, 32).int() if paged else None
    twin_k, twin_v = k.clone(), v.clone()
    graph, (out, lse) = captured(lambda: decode_attention(q, k, v, seq_lens=lengths, k_new=k_new, v_new=k_new, page_table=table))
    live = torch.zeros(3, dtype=torch.int32, device="cuda")
    for _ in range(40):
        live += 1
        lengths.copy_(live)
        q.normal_()
        k_new.normal_()
        graph.replay()
        call = check_call(q, twin_k, twin_v, lengths, k_new, k_new, page_table=table)
        wanted = reference.decode(call)
        torch.testing.assert_close((out, lse), wanted, rtol=2e-2, atol=2e-2)
        assert torch.equal(k.nan_to_num(), twin_k.nan_to_num())


def test_what_the_kernel_before_writes_is_waited_for() -> None:
    """The kernel is launched before that one has ended: a slow copy of the keys, or this kernel itself, for its queries."""
    q, lengths = random(1, 32, 1, 128), lengths_of(32768)
    caches = [random(1, 8, 32768, 128) for _ in range(4)]
    k = torch.empty_like(caches[0])

    def walk(pause: Any = lambda: None) -> tuple[Tensor, ...]:
        found = []
        for cache in caches:
            k.copy_(cache)
            pause()
            found.append(decode_attention(q, k, k, seq_lens=lengths)[0])
            pause()
            found.append(decode_attention(found[-1], k, k, seq_lens=lengths)[0])
            pause()
        return tuple(found)

    wanted, at_once = walk(torch.cuda.synchronize), walk()
    graph, replayed = captured(walk)
    graph.replay()
    assert all(torch.equal(one, other) for one, other in zip(wanted, at_once, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(wanted, replayed, strict=True))


def test_graphs_beside_each_other_do_not_share_counters() -> None:
    cases = [(random(2, 8, 1, 128), random(2, 2, 8192, 128), random(2, 2, 8192, 128)) for _ in range(2)]
    lengths = lengths_of(8192, 5000)
    graphs = [captured(lambda case=case: decode_attention(*case, seq_lens=lengths)) for case in cases]
    wanted = [decode_attention(*case, seq_lens=lengths)[0] for case in cases]
    streams = [torch.cuda.Stream() for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(200):
        for stream, (graph, _) in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (_, (out, _)), want in zip(graphs, wanted, strict=True):
        assert torch.equal(out, want)


def test_a_row_alone_equals_the_row_in_a_batch_of_64() -> None:
    q, k, v = random(64, 16, 1, 128), random(64, 4, 3000, 128), random(64, 4, 3000, 128)
    lengths = torch.randint(0, 3001, (64,), device="cuda", dtype=torch.int32)
    out, lse = decode_attention(q, k, v, seq_lens=lengths, batch_invariant=True)
    for b in (0, 1, 31, 63):
        row = slice(b, b + 1)
        alone = decode_attention(q[row], k[row], v[row], seq_lens=lengths[row], batch_invariant=True)
        assert torch.equal(alone[0], out[row])
        assert torch.equal(alone[1], lse[row])


def test_more_than_two_to_the_31_elements() -> None:
    """Many rows, of which the last lives; pages at the end of a large pool; and one row that is itself as long."""
    q = random(33, 8, 1, 128)
    k, v = (torch.empty(33, 8, 65536, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    k[-1].normal_()
    v[-1].normal_()
    lengths = torch.zeros(33, dtype=torch.int32, device="cuda")
    lengths[-1] = 1000
    assert k.numel() > 2**31
    out, _ = decode_attention(q, k, v, seq_lens=lengths)
    wanted = plain(q[-1:], k[-1:, :, :1000], v[-1:, :, :1000], seq_lens=lengths[-1:])[0]
    torch.testing.assert_close(out[-1:].double(), wanted, rtol=2e-2, atol=2e-2)
    assert not out[:-1].any()

    pages_k, pages_v = k.view(-1, 64, 8, 128), v.view(-1, 64, 8, 128)
    table = (len(pages_k) - 1 - torch.arange(16, device="cuda")).int()[None]
    out, _ = decode_attention(q[-1:], pages_k, pages_v, seq_lens=lengths[-1:], page_table=table)
    some = (pages_k[-16:], pages_v[-16:], torch.arange(15, -1, -1, device="cuda").int()[None])
    wanted = plain(q[-1:], *some[:2], seq_lens=lengths[-1:], page_table=some[2])[0]
    torch.testing.assert_close(out.double(), wanted, rtol=2e-2, atol=2e-2)

    long_k, long_v = k.view(1, 1, -1, 128), v.view(1, 1, -1, 128)
    n = long_k.shape[2]
    out, _ = decode_attention(q[-1:], long_k, long_v, seq_lens=lengths_of(n), window=500)
    wanted = plain(q[-1:], long_k[:, :, -500:], long_v[:, :, -500:], seq_lens=lengths_of(500))[0]
    torch.testing.assert_close(out.double(), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_as_exact_as_torch(dtype: torch.dtype) -> None:
    q, k, v = random(4, 32, 1, 128, dtype=dtype), random(4, 8, 2000, 128, dtype=dtype), random(4, 8, 2000, 128, dtype=dtype)
    wanted, _ = plain(q, k, v, seq_lens=lengths_of(*[2000] * 4))
    theirs = scaled_dot_product_attention(q, k, v, enable_gqa=True)
    ours, _ = decode_attention(q, k, v, seq_lens=lengths_of(*[2000] * 4))
    assert (ours.double() - wanted).abs().max() <= 2 * (theirs.double() - wanted).abs().max()


def test_float32_to_1e_5() -> None:
    q, k, v = (random(2, heads, length, 128, dtype=torch.float32) for heads, length in ((8, 1), (2, 5000), (2, 5000)))
    wanted = plain(q, k, v, seq_lens=lengths_of(5000, 4999))
    found = decode_attention(q, k, v, seq_lens=lengths_of(5000, 4999))
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=0, atol=1e-5)


def test_fp8_is_rounded_as_torch_rounds() -> None:
    q, new = random(2, 8, 4, 128), random(2, 2, 4, 128)
    k, v = (torch.zeros(2, 2, 300, 128, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    decode_attention(q, k, v, seq_lens=lengths_of(300, 4), k_new=new, v_new=new, k_scale=0.3, v_scale=0.7)
    for cache, factor in ((k, 0.3), (v, 0.7)):
        wanted, _ = reference.to_cache(new, torch.float8_e4m3fn, torch.full((2,), factor, device="cuda"))
        assert torch.equal(cache[0, :, 296:].view(torch.uint8), wanted[0].view(torch.uint8))
        assert torch.equal(cache[1, :, :4].view(torch.uint8), wanted[1].view(torch.uint8))


@pytest.fixture
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_nothing_waits_for_the_device(request: pytest.FixtureRequest) -> None:
    cache = KVCache(2, 2, 64, 64, dtype=torch.bfloat16, device="cuda")
    q, new = random(2, 4, 1, 64), random(2, 2, 1, 64)

    def step() -> None:
        cache.append(new, new)
        decode_attention(q, cache.k, cache.v, seq_lens=cache.lengths)

    step()
    request.getfixturevalue("no_waiting")
    for _ in range(5):
        step()


def test_a_paged_cache() -> None:
    cache = PagedKVCache(64, 16, 2, 64, dtype=torch.bfloat16, device="cuda")
    first = cache.allocate()
    cache.append([first], random(1, 2, 100, 64), random(1, 2, 100, 64))
    second = cache.fork(first)
    cache.append([first, second], random(2, 2, 1, 64), random(2, 2, 1, 64))
    q = random(2, 4, 1, 64)
    arguments = {"seq_lens": cache.lengths([first, second]), "page_table": cache.page_table([first, second])}
    out, _ = decode_attention(q, cache.k, cache.v, **arguments)
    torch.testing.assert_close(out.double(), plain(q, cache.k, cache.v, **arguments)[0], rtol=2e-2, atol=2e-2)


def test_compiled() -> None:
    q, k, v = random(2, 8, 1, 64), random(2, 2, 500, 64), random(2, 2, 500, 64)
    lengths = lengths_of(500, 3)
    call = torch.compile(
        lambda *tensors: decode_attention(*tensors, seq_lens=lengths)[0] + 1, fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(call(q, k, v), decode_attention(q, k, v, seq_lens=lengths)[0] + 1)


def test_over_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank, for there is one GPU: what is sent must be where NCCL can read it, and come back as it was."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))
    try:
        core = Core(0, 1, ScratchManager(device="cuda"))
        sent = random(3, 5, dtype=torch.float32)
        (received,) = processes.all_gather(core, sent, [(3, 5)], "sums", processes.Meeting(None, 60.0))
        assert torch.equal(received, sent)
        q, k, v = random(3, 8, 1, 64), random(3, 2, 300, 64), random(3, 2, 300, 64)
        lengths = lengths_of(300, 7, 0)
        expected = decode_attention(q, k, v, seq_lens=lengths)
        for shard, sync in [("sequence", "lse"), ("sequence", "deferred"), ("sequence", "lockstep"), ("batch", "lse")]:
            found = processes.decode_attention(q, k, v, seq_lens=lengths, shard=shard, sync=sync)
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    finally:
        torch.distributed.destroy_process_group()


def test_an_option_that_is_none_is_named_after_a_good_call() -> None:
    """A call that cannot be looked up goes through the checks, as the first one did."""
    q, k, v = random(1, 4, 1, 64), random(1, 2, 64, 64), random(1, 2, 64, 64)
    decode_attention(q, k, v, seq_lens=lengths_of(40))
    with pytest.raises(ArgumentError, match="window"):
        decode_attention(q, k, v, seq_lens=lengths_of(40), window=[3])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="seq_lens"):
        decode_attention(q, k, v, seq_lens=lengths_of(40, 30))


def test_a_prefix_has_the_same_bits_in_every_replay() -> None:
    """Its kernel runs beside the one that joins it with the rest, which writes new keys."""
    batch, prefix = 16, 2048
    q, new = random(batch, 32, 2, 128), random(batch, 8, 2, 128)
    k, v = (random(batch, 8, 2300, 128) for _ in range(2))
    lengths = lengths_of(*(prefix + 2 + 15 * row if row % 5 else 0 for row in range(batch)))
    twin_k, twin_v = k.clone(), v.clone()
    graph, (out, lse) = captured(lambda: decode_attention(q, k, v, seq_lens=lengths, k_new=new, v_new=new, prefix=prefix))
    graph.replay()
    first = out.clone(), lse.clone()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(300):
        out.zero_()
        graph.replay()
        wrong += (out != first[0]).sum() + (lse != first[1]).sum()
    assert not int(wrong)
    wanted = reference.decode(check_call(q, twin_k, twin_v, lengths, new, new, prefix=prefix))
    torch.testing.assert_close(first, wanted, rtol=2e-2, atol=2e-2)
    assert torch.equal(k, twin_k)


def test_int8_tokens_are_rounded_as_torch_rounds() -> None:
    q, new = random(2, 8, 4, 128), random(2, 2, 4, 128)
    cache = KVCache(2, 2, 300, 128, dtype=torch.int8, device="cuda")
    given = {"seq_lens": lengths_of(300, 4), "k_scale": cache.k_scale, "v_scale": cache.v_scale}
    decode_attention(q, cache.k, cache.v, k_new=new, v_new=new, **given)
    stored, scales = reference.to_cache(new, torch.int8, cache.k_scale)
    assert (cache.k[0, :, 296:].int() - stored[0].int()).abs().max() <= 1  # a quotient may differ by its last bit
    assert (cache.k[0, :, 296:] == stored[0]).float().mean() > 0.99
    torch.testing.assert_close(cache.k_scale[1, :, :4], scales[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("n_heads", [16, 128])
def test_latent_attention(n_heads: int) -> None:
    q, cache = random(3, n_heads, 1, 576), random(3, 1, 1000, 576)
    lengths = lengths_of(1000, 17, 0)
    out, lse = decode_attention(q, cache, cache[..., :512], seq_lens=lengths)
    exact = cache.double()
    wanted = reference.decode(check_call(q.double(), exact, exact[..., :512], lengths))  # values must stay part of the keys
    torch.testing.assert_close((out.double(), lse.double()), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("options", [{}, {"head_dim": 256}, {"dtype": torch.float32}], ids=str)
def test_a_chunk_and_a_prefix_in_every_tile(options: dict[str, Any]) -> None:
    """Many rows of queries of other widths and types fit the shared memory, and agree."""
    d, dtype = options.get("head_dim", 128), options.get("dtype", torch.bfloat16)
    k, v = (random(4, 2, 700, d, dtype=dtype) for _ in range(2))
    for s, prefix in ((300, None), (1, 512), (20, 512)):
        q, lengths = random(4, 8, s, d, dtype=dtype), lengths_of(700, 560, 690, 600)
        found = decode_attention(q, k, v, seq_lens=lengths, prefix=prefix)
        wanted = plain(q, k, v, seq_lens=lengths, prefix=prefix)
        torch.testing.assert_close((found[0].double(), found[1].double()), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("n_new", [20, 70])
@pytest.mark.parametrize("values", ["apart", "in the keys"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_new_keys_of_many_query_rows(dtype: torch.dtype, values: str, n_new: int) -> None:
    """Tiles that a whole warp group multiplies write new keys too, in a captured graph as well."""
    q, k, new = (random(2, heads, length, 64, dtype=dtype) for heads, length in ((8, n_new), (2, 300), (2, n_new)))
    v, v_new = (k[..., :48], new[..., :48]) if values == "in the keys" else (torch.randn_like(k), torch.randn_like(new))
    given = {"seq_lens": lengths_of(300, n_new + 7), "k_new": new, "v_new": v_new}
    wanted, wanted_lse = plain(q, k.clone(), v.clone(), **{**given, "k_new": new.double(), "v_new": v_new.double()})
    graph, (out, lse) = captured(lambda: decode_attention(q, k, v, **given))
    out.zero_()
    graph.replay()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=tolerance, atol=tolerance)
    assert torch.equal(k[0, :, 300 - n_new : 300], new[0])
    assert torch.equal(v[1, :, 7 : n_new + 7], v_new[1])
