"""The scratch memory of a core: what is counted, what is kept, and what is said when it is full."""

from __future__ import annotations

import pytest
import torch

from lutetia.attention.scratch import ScratchError, ScratchManager
from lutetia.errors import ArgumentError

F32 = torch.float32


def test_scopes_count_and_give_back() -> None:
    sbm = ScratchManager(1000)
    a = sbm.allocate("a", (5, 5), F32)
    assert (a.shape, a.dtype, sbm.in_use) == ((5, 5), F32, 100)
    sbm.open_scope("outer")
    sbm.allocate("b", (50,), torch.float16)
    sbm.open_scope("inner")
    sbm.allocate("b", (3,), torch.bool)  # names are a scope's own
    assert (sbm.scope, sbm.in_use) == ("outer/inner", 203)
    sbm.close_scope()
    assert sbm.in_use == 200
    sbm.close_scope()
    assert (sbm.in_use, sbm.peak, sbm.scope) == (100, 203, "")


def test_new_buffers_hold_nan() -> None:
    sbm = ScratchManager()
    for dtype in (torch.float16, torch.bfloat16, F32, torch.float64):
        assert sbm.allocate(str(dtype), (3, 2), dtype).isnan().all()
    assert (sbm.allocate("i", (4,), torch.int32) == -1).all()
    assert sbm.allocate("nothing", (0, 7), F32).shape == (0, 7)


def test_a_full_scratch_names_the_buffer() -> None:
    sbm = ScratchManager(100, "core 3")
    sbm.allocate("small", (5,), F32)
    sbm.open_scope("fa_tile")
    sbm.allocate("large", (15,), F32)
    with pytest.raises(ScratchError) as caught:
        sbm.allocate("qk", (2, 3), F32)
    assert str(caught.value) == (
        "core 3 has no scratch for 'qk' (float32 [2, 3], 24 bytes) in scope 'fa_tile': "
        "80 of 100 bytes are in use (large 60, small 20); a smaller tile needs less"
    )
    assert isinstance(caught.value, MemoryError)
    assert (sbm.in_use, sbm.peak) == (80, 80)
    sbm.allocate("fits", (5,), F32)  # to the last byte


def test_double_buffers_take_turns() -> None:
    """Tile t + 1 leaves the buffers of tile t alone, tile t + 2 takes them over."""
    sbm = ScratchManager()
    places = []
    for tile in range(4):
        sbm.open_scope("tile", buffers=2)
        buffer = sbm.allocate("k", (4,), F32)
        assert buffer.isnan().all()
        places.append(buffer.fill_(tile))
        sbm.close_scope()
        assert sbm.in_use == min(tile + 1, 2) * 16
    addresses = [place.data_ptr() for place in places]
    assert addresses[0] == addresses[2] != addresses[1] == addresses[3]
    assert sbm.peak == 32


def test_double_buffers_of_growing_size() -> None:
    sbm = ScratchManager(3 * 4 + 4 * 4)
    for size in (1, 2, 3, 4):
        sbm.open_scope("tile", buffers=2)
        assert sbm.allocate("k", (size,), F32).shape == (size,)
        sbm.close_scope()
    assert sbm.in_use == 28
    sbm.open_scope("tile", buffers=2)
    with pytest.raises(ScratchError, match="no scratch for 'k'"):
        sbm.allocate("k", (5,), F32)


def test_what_stays_goes_with_the_scope_around_it() -> None:
    sbm = ScratchManager()
    sbm.open_scope("row")
    for name in ("x", "x", "y"):
        sbm.open_scope(name, buffers=3)
        sbm.allocate("k", (2,), F32)
        sbm.close_scope()
    assert sbm.in_use == 24
    sbm.close_scope()
    assert sbm.in_use == 0


def test_mistakes() -> None:
    sbm = ScratchManager()
    with pytest.raises(ArgumentError, match="the core closes a scope, but none is open"):
        sbm.close_scope()
    sbm.allocate("a", (1,), F32)
    with pytest.raises(ArgumentError, match="name is 'a', expected a name"):
        sbm.allocate("a", (1,), F32)
    with pytest.raises(ArgumentError, match="buffers is 0"):
        sbm.open_scope("s", 0)
    with pytest.raises(ArgumentError, match="budget is -5"):
        ScratchManager(-5)
