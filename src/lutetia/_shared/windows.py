"""Windows of images: how large they are, where they begin, and the pixels that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from lutetia.errors import check_int, fail

Pair: TypeAlias = tuple[int, int]  # height and width, or down and across
Size: TypeAlias = int | Pair  # one number stands for both


def pair_of(name: str, size: Size | None) -> Pair:
    """A size as two numbers, checked."""
    pair = (size, size) if isinstance(size, int) else size
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        fail(name, size, "a number or a pair (height, width)")
    for number in pair:
        check_int(name, number, 1)
    return pair[0], pair[1]


def room_for(name: str, window: Pair, of: str, image: Pair) -> Pair:
    """The last offsets, down and across, at which a window still lies inside its image; these are called `name` and `of`."""
    if window[0] > image[0] or window[1] > image[1]:
        fail(name, window, f"no larger than {of}, which is {image}")
    return image[0] - window[0], image[1] - window[1]


def offsets(rooms: Sequence[Pair], grid: Pair | None, stride: Pair | None) -> list[list[np.ndarray]]:
    """The offsets of windows, down and across, in each of some images that have this room for them.

    A grid is so many of them, evenly spread; a single one lies in the middle. Or they are a stride apart in the first image, as
    many as fit, and lie as far across the others.
    """
    if grid is not None:
        return [[rescale(np.arange(n), n - 1, space) for n, space in zip(grid, room, strict=True)] for room in rooms]
    assert stride is not None
    steps = [np.arange(0, space + 1, step) for space, step in zip(rooms[0], stride, strict=True)]
    return [steps, *([rescale(*axis) for axis in zip(steps, rooms[0], room, strict=True)] for room in rooms[1:])]


def corners_of(axes: list[np.ndarray]) -> np.ndarray:
    """The top left of every window that begins at one of the offsets down and one across: int64 [n, 2]."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)


def rescale(offset: np.ndarray, old: int, new: int) -> np.ndarray:
    """Offsets in 0..old moved to 0..new, rounded half up; the middle of new where old is 0."""
    return (2 * offset * new + old) // (2 * old) if old else np.full_like(offset, new // 2)


def pixels_of(corner: np.ndarray, image: Pair, window: Pair, channels: int) -> np.ndarray:
    """The pixels of each window, increasing, int32 [n, channels·height·width]; corner [n, 2] is its top left.

    Images are flattened channel, row, column.
    """
    channel = np.arange(channels)[:, None, None] * image[0] * image[1]
    inside = channel + np.arange(window[0])[:, None] * image[1] + np.arange(window[1])
    return (corner @ np.array([image[1], 1]))[:, None].astype(np.int32) + inside.reshape(-1).astype(np.int32)
