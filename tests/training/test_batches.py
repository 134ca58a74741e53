"""Batches: every sample once an epoch, the same ones for the same place, whoever computes which part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.training import batches as module
from lutetia.training.batches import Batches, derive, in_order, moved, shifted, warped
from lutetia.training.data import Samples, Text


def samples(n: int = 23, dtype: type = np.float32) -> Samples:
    return Samples(np.arange(n * 6).reshape(n, 2, 3).astype(dtype), np.arange(n))


def text(n: int = 1000) -> Text:
    return Text(np.random.default_rng(0).integers(256, size=n).astype(np.uint8))


def all_of(batches: Batches, epoch: int) -> list[tuple[Tensor, Tensor]]:
    return [part for index in range(batches.per_epoch) for part in batches.take(epoch, index)]


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    data = samples(20)
    batches = Batches(data, 5, seed=3)
    orders = []
    for epoch in (0, 1):
        parts = all_of(batches, epoch)
        classes = torch.cat([y for _, y in parts])
        assert sorted(classes.tolist()) == list(range(20))
        assert torch.equal(torch.cat([x for x, _ in parts]), torch.from_numpy(data.x)[classes])
        orders.append(classes.tolist())
    assert orders[0] != orders[1]
    assert orders[0] != torch.cat([y for _, y in all_of(Batches(data, 5, seed=4), 0)]).tolist()
    assert batches.at(9) == (2, 1)


def test_a_place_has_the_same_batch_however_one_came_there() -> None:
    for data, options in ((samples(), {"shift": 1, "warp": 0.1}), (text(), {"context": 7})):
        walked, jumped = (Batches(data, 4, seed=1, **options) for _ in range(2))
        before = [all_of(walked, epoch) for epoch in range(3)]
        for ours, theirs in zip(before[2][1], next(iter(jumped.take(2, 1))), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_ranks_and_parts_share_the_batch(world: int, parts: int) -> None:
    for data, options in ((samples(), {"shift": 1, "warp": 0.1}), (text(), {"context": 7})):
        whole = Batches(data, 12, seed=1, **options)
        shares = [Batches(data, 12, seed=1, rank=rank, world=world, parts=parts, **options) for rank in range(world)]
        ((x, y),) = whole.take(1, 0)
        taken = [list(share.take(1, 0)) for share in shares]
        pieces = [taken[rank][part] for part in range(parts) for rank in range(world)]
        assert torch.equal(torch.cat([piece[0] for piece in pieces]), x)
        assert torch.equal(torch.cat([piece[1] for piece in pieces]), y)


def test_text_comes_in_windows_with_the_byte_that_follows() -> None:
    data = text()
    batches = Batches(data, 10, context=7, seed=0)
    bytes_ = torch.from_numpy(data.bytes).long()
    offsets = set()
    for epoch in range(4):
        starts = []
        for x, y in all_of(batches, epoch):
            assert torch.equal(x[:, 1:], y[:, :-1])
            for row, last in zip(x, y[:, -1], strict=True):
                at = [i for i in range(len(bytes_) - 7) if torch.equal(bytes_[i : i + 7], row)]
                assert len(at) == 1
                assert bytes_[at[0] + 7] == last
                starts += at
        assert len(set(starts)) == len(starts) == batches.per_epoch * 10
        assert len({start % 7 for start in starts}) == 1
        offsets.add(starts[0] % 7)
    assert len(offsets) > 1


@pytest.mark.parametrize("length", [8, 9, 14, 15, 16, 22, 100])
def test_windows_stay_inside_of_short_texts(length: int) -> None:
    batches = Batches(text(length), 1, context=7)
    for epoch in range(20):
        for x, y in all_of(batches, epoch):
            assert x.shape == y.shape == (1, 7)


def test_bytes_become_shades() -> None:
    data = samples(5, np.uint8)
    ((x, y),) = Batches(data, 5).take(0, 0)
    assert x.dtype == torch.float32
    assert torch.equal(x, torch.from_numpy(data.x)[y].float() / 255)


@pytest.mark.parametrize("shape", [(6, 5, 4), (3, 2, 5, 4)])
def test_shifting_moves_each_image_by_its_own(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    moves = torch.tensor([[0, 0], [2, -1], [-2, 1], [1, 2], [-1, -2], [2, 2]])[: shape[0]]
    wanted = torch.zeros_like(x)
    for image, (down, right), out in zip(x, moves.tolist(), wanted, strict=True):
        for row in range(5):
            for column in range(4):
                if 0 <= row + down < 5 and 0 <= column + right < 4:
                    out[..., row + down, column + right] = image[..., row, column]
    assert torch.equal(shifted(x, moves, 2), wanted)


@pytest.mark.parametrize("shape", [(3, 5, 5), (3, 2, 5, 5)])
def test_warping_maps_each_image_by_its_own(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    maps = torch.stack([torch.eye(2), quarter, -torch.eye(2)])
    wanted = torch.stack([x[0], torch.rot90(x[1], 1, (-2, -1)), x[2].flip(-2, -1)])
    torch.testing.assert_close(warped(x, maps), wanted)


def test_a_warped_batch_differs_by_little_and_from_epoch_to_epoch() -> None:
    data = samples(8)
    plain, first, again = (next(iter(Batches(data, 8, warp=warp).take(0, 0)))[0] for warp in (0.0, 0.05, 0.05))
    assert torch.equal(first, again)
    assert not torch.equal(first, plain)
    assert (first - plain).abs().mean() < plain.abs().mean()


def test_evaluation_sees_all_in_order_and_once() -> None:
    data = samples()
    shares = [list(in_order(data, 5, rank=rank, world=2)) for rank in range(2)]
    assert sorted(torch.cat([y for share in shares for _, y in share]).tolist()) == list(range(23))
    alone = list(in_order(data, 5))
    assert torch.cat([y for _, y in alone]).tolist() == list(range(23))
    assert torch.equal(torch.cat([x for x, _ in alone]), torch.from_numpy(data.x))
    assert sum(len(y) for _, y in in_order(data, 5, limit=2)) == 10
    words = text(50)
    bytes_ = torch.from_numpy(words.bytes).long()
    assert torch.equal(torch.cat([x.flatten() for x, _ in in_order(words, 2, context=7)]), bytes_[:49])
    assert torch.equal(torch.cat([y.flatten() for _, y in in_order(words, 2, context=7)]), bytes_[1:50])


def test_batches_that_cannot_be_are_refused() -> None:
    with pytest.raises(ArgumentError, match="batch_size is 24, expected at most the 23 samples there are to train on"):
        Batches(samples(), 24)
    with pytest.raises(ArgumentError, match="batch_size is 5, expected at most the 2 windows of 7 bytes"):
        Batches(text(22), 5, context=7)
    with pytest.raises(ArgumentError, match="batch_size is 8, expected a multiple of 6, for 2 processes × 3 parts"):
        Batches(samples(), 8, world=2, parts=3)
    with pytest.raises(ArgumentError, match="a text of 7 bytes has no window of 7 bytes"):
        list(in_order(text(7), 1, context=7))


def test_derived_seeds_depend_on_all_they_are_given() -> None:
    seeds = [
        derive(0),
        derive(1),
        derive(0, "a"),
        derive(0, "a", 1),
        derive(0, "a", 2),
        derive(0, "b", 1),
        derive(0, 11),
        derive(0, 1, 1),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive(0, "a", 1) == derive(0, "a", 1)


def test_what_goes_to_a_gpu_is_pinned_first(monkeypatch: pytest.MonkeyPatch) -> None:
    x, pinned = torch.arange(3), []
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: (pinned.append(tensor), tensor.clone())[1])
    assert moved(x, torch.device("cpu")) is x
    assert not pinned
    monkeypatch.setattr(Tensor, "to", lambda tensor, device, non_blocking=False: (tensor, str(device), non_blocking))
    there: Any = moved(x, torch.device("cuda:1"))
    assert pinned == [x]
    assert there[0] is not x
    assert there[1:] == ("cuda:1", True)


@pytest.mark.gpu
def test_a_batch_does_not_wait_for_the_work_before_it() -> None:
    """A GPU that is busy for about half a second is still busy when the batch has been taken."""
    for limit in (module.ON_DEVICE, 0):  # the text on the GPU, and on the host
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "ON_DEVICE", limit)
            here, there = (Batches(text(), 4, context=7, seed=1, device=device) for device in ("cpu", "cuda"))
        list(there.take(0, 0))  # memory is pinned, kernels are loaded
        torch.cuda._sleep(10**9)
        ((x, y),) = there.take(0, 1)
        assert not torch.cuda.current_stream().query()
        ((wanted_x, wanted_y),) = here.take(0, 1)
        assert torch.equal(x.cpu(), wanted_x)
        assert torch.equal(y.cpu(), wanted_y)
