"""How the Triton kernel is launched: into which pieces it cuts the keys, and that results do not depend on it."""

from __future__ import annotations

import pytest
import torch

from attention.decode_cases import agree, decode, device_of, solved
from attention.decode_oracle import expected, make
from lutetia.attention.arguments import check_call
from tools import require_module

require_module("triton")


@pytest.mark.parametrize("lengths", [(70, 7, 0, 35, 20), (70, 70, 69, 70, 68)], ids=["uneven", "even"])
@pytest.mark.parametrize("pieces", [(1, 0), (1, 1), (1, 10), (2, 7), (2, 20), (3, 30)], ids=str)
def test_pieces_follow_the_lengths(pieces: tuple[int, int], lengths: tuple[int, ...]) -> None:
    """However many there are of each of equal rows, and programs to share unequal ones, as the kernel finds out. Owners: ten."""
    from lutetia.attention import triton

    case = make(batch=5, lengths=lengths, capacity=70, s_active=2, new=True, sink=1.0, head_dim=16)
    there = case.to(device_of("triton"))
    out, lse = triton.launch(check_call(there.q, there.k, there.v, **there.arguments), triton.LaunchConfig(16, 4, 2, 16, *pieces))
    agree((out.cpu(), lse.cpu()), expected(case))


@pytest.mark.parametrize("sharers", [1, 3, 20, 110])
def test_many_uneven_rows(sharers: int) -> None:
    """More than sixteen, the longest first, last and in between; shared by few programs, many, and more than are launched."""
    from lutetia.attention import triton

    lengths = (70, *range(45, 0, -5), 0, 70, *range(2, 37, 5), 70)
    case = make(batch=20, lengths=lengths, capacity=70, head_dim=16, n_q_heads=2, n_kv_heads=1)
    there = case.to(device_of("triton"))
    config = triton.LaunchConfig(16, 4, 2, 16, 1, min(sharers, 20))
    out, lse = triton.launch(check_call(there.q, there.k, there.v, **there.arguments), config)
    agree((out.cpu(), lse.cpu()), expected(case))


def test_programs_share_uneven_rows_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in the partial results: nobody writes those of pieces that there are not. Four programs, tiles of 16 keys."""
    from lutetia.attention import triton

    partials: list[torch.Tensor] = []
    workspace = triton.workspace

    def kept(owners: int, numbers: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        arrived, scratch = workspace(owners, numbers, device)
        partials.append(scratch[:numbers].fill_(float("nan")))
        return arrived, scratch

    monkeypatch.setattr(triton, "workspace", kept)
    written = []
    for lengths in ((150, 150), (150, 80), (20, 150), (150, 0)):
        case = make(batch=2, lengths=lengths, capacity=150, head_dim=16, n_q_heads=2, n_kv_heads=1).to(device_of("triton"))
        triton.launch(check_call(case.q, case.k, case.v, **case.arguments), triton.LaunchConfig(16, 4, 2, 16, 2, 4))
        ml = partials[-1].cpu()[-6 * 2 * 16 :].view(6, 2, 16)[:, 0, :2]
        written.append((~ml.isnan()).all(-1).tolist())
    assert written[0] == [True] * 4 + [False] * 2  # equal rows: two and two
    assert written[1] == [True] * 5 + [
        False
    ]  # 15 tiles, four each: the third program has the end of one row and begins the other
    assert written[2] == [False] + [True] * 4 + [False]  # 12, three each: the first row is one piece, no partial result
    assert written[3] == [True] * 4 + [False] * 2  # 11: a row without keys is one piece


@pytest.mark.parametrize(("batch", "splits", "sharers"), [(1, 16, 0), (8, 4, 256), (32, 1, 256), (64, 1, 264)])
def test_how_pages_are_cut_on_132_multiprocessors(batch: int, splits: int, sharers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As swept: where pieces would be long, two programs on each multiprocessor, also to share uneven rows."""
    from lutetia.attention import triton

    monkeypatch.setattr(triton, "device_of", lambda tensor: triton.LaunchDevice(132, 227 << 10, True))
    pages = torch.empty(4, 16, 8, 128, dtype=torch.bfloat16)
    table, lengths = torch.zeros(batch, 512, dtype=torch.int32), torch.zeros(batch, dtype=torch.int32)
    call = check_call(torch.empty(batch, 32, 1, 128, dtype=torch.bfloat16), pages, pages, lengths, page_table=table)
    assert triton.configure(call) == triton.LaunchConfig(64, 4, 3, 128, splits, sharers)


@pytest.mark.parametrize(
    ("batch", "length", "expected"),
    [  # as swept: keys of a tile, warps, stages, fewest keys, splits; programs where rows differ
        (1, 8192, (64, 4, 4, 128, 16, 0)),
        (1, 131072, (64, 4, 4, 128, 16, 0)),
        (8, 8192, (64, 4, 4, 128, 2, 128)),
        (32, 4096, (64, 4, 3, 128, 1, 256)),
        (64, 8192, (64, 4, 3, 128, 1, 264)),
        (48, 8192, (64, 4, 3, 128, 2, 264)),
    ],
)
def test_how_the_keys_are_cut_on_132_multiprocessors(
    batch: int, length: int, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lutetia.attention import triton

    monkeypatch.setattr(triton, "device_of", lambda tensor: triton.LaunchDevice(132, 227 << 10, True))
    q, cache = (torch.zeros(1, dtype=torch.bfloat16).expand(batch, *shape, 128) for shape in ((32, 1), (8, length)))
    call = check_call(q, cache, cache, torch.full((batch,), length))
    assert triton.configure(call) == triton.LaunchConfig(*expected)
    assert triton.configure(call, batch_invariant=True)[:5] == (64, 4, 3, triton.INVARIANT_KEYS, length // triton.INVARIANT_KEYS)


@pytest.mark.parametrize(("batch", "length", "splits"), [(1, 8192, 16), (1, 131072, 33), (8, 8192, 4), (64, 8192, 1)])
def test_how_8_bits_are_cut_on_132_multiprocessors(batch: int, length: int, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pieces would be long, two programs on each multiprocessor."""
    from lutetia.attention import triton

    monkeypatch.setattr(triton, "device_of", lambda tensor: triton.LaunchDevice(132, 227 << 10, True))
    q, cache = (torch.zeros(1, dtype=torch.bfloat16).expand(batch, *shape, 128) for shape in ((32, 1), (8, length)))
    call = check_call(q, cache, cache, torch.full((batch,), length))
    narrow = call._replace(k_cache=torch.zeros(1, dtype=torch.float8_e4m3fn).expand(cache.shape))
    sharers = 0 if batch == 1 else min(8 * batch * splits, 264)
    assert triton.configure(narrow) == triton.LaunchConfig(128, 4, 3, 128, splits, sharers)


@pytest.mark.parametrize(("kilobytes", "stages"), [(227, 4), (163, 4), (99, 3), (64, 2)])
def test_tiles_fit_into_shared_memory(kilobytes: int, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What programs of compute capability 9.0, 8.0, 8.9 and 7.5 can have; 8 KB for other things."""
    from lutetia.attention import triton

    monkeypatch.setattr(triton, "device_of", lambda tensor: triton.LaunchDevice(132, kilobytes << 10, False))
    q, cache = (torch.zeros(1, dtype=torch.bfloat16).expand(1, *shape, 128) for shape in ((32, 1), (8, 8192)))
    assert triton.configure(check_call(q, cache, cache, torch.full((1,), 8192))).stages == stages


@pytest.mark.parametrize("name", ["plain", "three new keys", "everything", "a prefix of pages"])
def test_places_in_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the slots or pages of a cache are too far apart for less; the results are the same numbers."""
    from lutetia.attention import triton

    case, wanted = solved(name)
    near = decode(case, "triton")
    monkeypatch.setattr(triton, "FAR", 0)
    agree(decode(case, "triton"), wanted)
    assert all(torch.equal(one, other) for one, other in zip(decode(case, "triton"), near, strict=True))


@pytest.mark.parametrize(("slot", "plain"), [(64, True), (2**24 - 64, True), (2**24, False), (2**40, False)])
def test_which_places_need_64_bits(slot: int, plain: bool) -> None:
    from lutetia.attention import triton

    cache = torch.empty_strided((1, 1, 8, 16), (1, 1, slot, 1), dtype=torch.bfloat16, device="meta")
    case = make()
    call = check_call(case.q, case.k, case.v, **case.arguments)._replace(k_cache=cache, v_cache=cache)
    assert triton._plain(call, 128) is plain


@pytest.mark.parametrize(("page", "narrow"), [(64, True), (2**28 - 1024, True), (2**28, False)])
def test_which_pages_need_64_bits(page: int, narrow: bool) -> None:
    from lutetia.attention import triton

    cache = torch.empty_strided((8, 4, 1, 16), (page, 16, 1, 1), dtype=torch.bfloat16, device="meta")
    case = make(page_len=16)
    call = check_call(case.q, case.k, case.v, **case.arguments)._replace(k_cache=cache, v_cache=cache)
    assert triton._narrow(call) is narrow
    assert not triton._narrow(call._replace(page_table=None))
