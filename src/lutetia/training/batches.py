"""Batches as a pure function of (seed, epoch, index): the position in the data is two integers, from which a run can continue."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lutetia.errors import ArgumentError
from lutetia.training.data import Samples, Text
from lutetia.training.formats import Array

ON_DEVICE = 4 << 30  # bytes of data that may live on a GPU, where taking a batch costs no copy
AHEAD = 8


def derive(seed: int, *words: int | str) -> int:
    """A seed for one purpose: 63 bits that depend on all arguments."""
    text = " ".join(map(str, (seed, *words)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, *words: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(derive(seed, *words))


class Batches:
    """The batches of one split: x and the target of each, for rank `rank` of `world`, in `parts` parts.

    Samples: x [b, ...] float32 and classes [b]. Text: windows of `context` bytes, x [b, context] int64, and the bytes that follow
    each of them, [b, context]. Every epoch has its own order, and for text its own offset of the windows.
    """

    def __init__(
        self,
        split: Samples | Text,
        batch_size: int,
        *,
        context: int | None = None,
        seed: int = 0,
        shift: int = 0,
        warp: float = 0.0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world: int = 1,
        parts: int = 1,
    ) -> None:
        self.split, self.batch_size, self.context = split, batch_size, context
        self.seed, self.shift, self.warp, self.device = seed, shift, warp, torch.device(device)
        self.rank, self.world, self.parts = rank, world, parts
        if batch_size % (world * parts):
            shares = f"{world} processes × {parts} parts" if parts > 1 else f"{world} processes"
            raise ArgumentError(f"train.batch_size is {batch_size}, expected a multiple of {world * parts}, for {shares}")
        self.n = n_windows(len(split), context) if context else len(split)
        self.per_epoch = self.n // batch_size
        if not self.per_epoch:
            unit = f"windows of {context} bytes" if context else "samples"
            raise ArgumentError(f"train.batch_size is {batch_size}, expected at most the {self.n} {unit} there are to train on")
        self._arrays = _tensors(split, self.device)
        self._epoch = -1
        self._order, self._offset = torch.empty(0), 0

    def at(self, step: int) -> tuple[int, int]:
        """The place of a step: its epoch and its index there."""
        return step // self.per_epoch, step % self.per_epoch

    def take(self, epoch: int, index: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The parts of one batch that this rank computes."""
        self._turn_to(epoch)
        whole = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        moves, maps = self._moves(epoch, index), self._maps(epoch, index)
        size = self.batch_size // (self.world * self.parts)
        for part in range(self.parts):
            begin = (part * self.world + self.rank) * size
            chosen = whole[begin : begin + size]
            if self.context:
                yield windows(self._arrays[0], chosen * self.context + self._offset, self.context, self.device)
            else:
                x, y = rows(self._arrays, chosen, self.device)
                if moves is not None:
                    x = shifted(x, moved(moves[begin : begin + size], self.device), self.shift)
                if maps is not None:
                    x = warped(x, moved(maps[begin : begin + size], self.device))
                yield x, y

    def ahead(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The parts of the next few batches, to evaluate a model on."""
        for number in range(step, step + AHEAD):
            yield from self.take(*self.at(number))

    def _turn_to(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._epoch = epoch
        self._order = torch.randperm(self.n, generator=generator(self.seed, "order", epoch))
        if self.context:
            spare = len(self.split) - 1 - self.n * self.context
            self._offset = int(torch.randint(spare + 1, (), generator=generator(self.seed, "offset", epoch)))

    def _moves(self, epoch: int, index: int) -> Tensor | None:
        """How far each image of the whole batch moves, [batch_size, 2]; drawn for the whole batch, so that ranks agree."""
        if not self.shift:
            return None
        draw = generator(self.seed, "shift", epoch, index)
        return torch.randint(-self.shift, self.shift + 1, (self.batch_size, 2), generator=draw)

    def _maps(self, epoch: int, index: int) -> Tensor | None:
        """The linear map of each image of the whole batch, [batch_size, 2, 2]."""
        if not self.warp:
            return None
        draw = generator(self.seed, "warp", epoch, index)
        return torch.eye(2) + self.warp * (2 * torch.rand(self.batch_size, 2, 2, generator=draw) - 1)


def n_windows(length: int, context: int) -> int:
    """Windows in a text, one fewer than fit, so that there is room to move them all."""
    return max(min(1, (length - 1) // context), (length - 1) // context - 1)


def in_order(
    split: Samples | Text,
    batch_size: int,
    *,
    context: int | None = None,
    device: torch.device | str = "cpu",
    rank: int = 0,
    world: int = 1,
    limit: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """All of a split once, in order and without augmentation, for evaluation: the share of one rank; `limit` counts batches."""
    device = torch.device(device)
    n = max((len(split) - 1) // context, 0) if context else len(split)
    if context and not n:
        raise ArgumentError(f"a text of {len(split)} bytes has no window of {context} bytes and one more, expected a longer one")
    arrays = _tensors(split, torch.device("cpu"))
    starts = range(0, n, batch_size)
    for start in starts[:limit] if limit else starts:
        chosen = torch.arange(start, min(start + batch_size, n))[rank::world]
        if not len(chosen):
            continue
        if context:
            yield windows(arrays[0], chosen * context, context, device)
        else:
            yield rows(arrays, chosen, device)


def rows(arrays: list[Tensor], chosen: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Samples by their numbers [b]: x [b, ...] float32, bytes as shades from 0 to 1, and y [b]."""
    x, y = (moved(array[moved(chosen, array.device)], device) for array in arrays)
    return (x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x), y


def windows(text: Tensor, starts: Tensor, context: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """text [n] uint8, starts [b] -> the bytes from each start [b, context], and the byte after each of them, as int64."""
    places = moved(starts, text.device)[:, None] + torch.arange(context + 1, device=text.device)
    taken = moved(text[places], device).to(torch.int64)
    return taken[:, :-1].contiguous(), taken[:, 1:].contiguous()


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. To a GPU it goes from pinned memory: the host does not wait for the steps before it."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def shifted(x: Tensor, moves: Tensor, reach: int) -> Tensor:
    """Images x [b, (channels,) height, width], each moved by its own moves [b, 2] down and right, by `reach` at most.

    Pixels from outside are 0.
    """
    height, width = x.shape[-2:]
    padded = F.pad(x.unflatten(0, (len(x), 1)).flatten(1, -3), (reach,) * 4)
    down = reach - moves[:, :1] + torch.arange(height, device=x.device)
    right = reach - moves[:, 1:] + torch.arange(width, device=x.device)
    channels = torch.arange(padded.shape[1], device=x.device)
    samples = torch.arange(len(x), device=x.device)
    taken = padded[samples[:, None, None, None], channels[:, None, None], down[:, None, :, None], right[:, None, None, :]]
    return taken.reshape(x.shape)


def warped(x: Tensor, maps: Tensor) -> Tensor:
    """Images x [b, (channels,) height, width], each seen through its own linear map [b, 2, 2] about the middle.

    Pixels are interpolated; those from outside are 0.
    """
    images = x.reshape(len(x), -1, *x.shape[-2:])
    places = F.affine_grid(F.pad(maps.to(x.dtype), (0, 1)), list(images.shape), align_corners=False)
    return F.grid_sample(images, places, align_corners=False).reshape(x.shape)


def _tensors(split: Samples | Text, device: torch.device) -> list[Tensor]:
    """A split as tensors that share its memory, or on the GPU if there is room."""
    arrays = [split.bytes] if isinstance(split, Text) else [split.x, split.y]
    tensors = [_as_tensor(array) for array in arrays]
    if device.type != "cpu" and sum(tensor.nbytes for tensor in tensors) <= ON_DEVICE:
        return [tensor.to(device) for tensor in tensors]
    return tensors


def _as_tensor(array: Array) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nor do we write
        return torch.from_numpy(np.ascontiguousarray(array))
