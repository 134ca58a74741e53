"""Sets of images: scikit-learn's digits, also placed anywhere, squares of its photos, drawn shapes and textures, and MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lutetia.training import read_idx

Array = np.ndarray[Any, Any]
SIDE = 16  # pixels of a square of a photo
STRIP = 80  # pixels of a strip of a photo, of which each fourth is tested
SHAPES, SHAPE_SIDE = 4000, 20  # drawn images, and their pixels across
SOME = 10_000  # images of MNIST in the small set
PLACED_SIDE = 28  # pixels of an image in which a digit lies anywhere
TEXTURES, TEXTURE_SIDE = 2400, 24


class ImageSet(NamedTuple):
    """Images uint8 [n, (3,) height, width] and their classes int64 [n], to fit and to test."""

    name: str
    x: Array
    y: Array
    test_x: Array
    test_y: Array


def load_sets(folder: Path | None) -> list[ImageSet]:
    """All sets, those of MNIST from a folder with its four files (.gz)."""
    sets = [digits(), placed_digits(), photos(), shapes(), textures()]
    if folder is None:
        return sets
    parts = [
        read_idx(folder / f"{part}-{kind}-ubyte.gz") for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
    ]
    x, y, test_x, test_y = parts
    whole = ImageSet("MNIST", x, y.astype(np.int64), test_x, test_y.astype(np.int64))
    return [*sets, whole._replace(name=f"MNIST, {SOME:,} images", x=x[:SOME], y=whole.y[:SOME]), whole]


def digits() -> ImageSet:
    """Handwritten digits of 8 × 8 pixels; a quarter is tested."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return _cut("digits", found.images[order].astype(np.uint8), found.target[order])


def placed_digits() -> ImageSet:
    """The same digits, each pixel twice as high and wide, anywhere in an image of 28 × 28 pixels."""
    found, random = digits(), np.random.default_rng(1)

    def placed(x: Array) -> Array:
        images = np.zeros((len(x), PLACED_SIDE, PLACED_SIDE), np.uint8)
        for image, own in zip(images, x, strict=True):
            large = np.kron(own * 15, np.ones((2, 2), np.uint8))
            top, left = random.integers(0, PLACED_SIDE - len(large) + 1, 2)
            image[top : top + len(large), left : left + len(large)] = large
        return images

    return found._replace(name="digits anywhere", x=placed(found.x), test_x=placed(found.test_x))


def photos() -> ImageSet:
    """Squares of the two photos that come with scikit-learn, in colour: which photo is it? Strips of the photos are tested."""
    from sklearn.datasets import load_sample_images

    images, classes, tested = [], [], []
    for number, photo in enumerate(load_sample_images().images):
        height, width, _ = photo.shape
        for top in range(0, height - SIDE + 1, SIDE // 2):
            for left in range(0, width - SIDE + 1, SIDE // 2):
                strip = left // STRIP
                if (left + SIDE - 1) // STRIP == strip:  # no pixel is fitted and tested
                    images.append(np.moveaxis(photo[top : top + SIDE, left : left + SIDE], -1, 0))
                    classes.append(number)
                    tested.append(strip % 4 == 3)
    x, y, test = np.stack(images), np.array(classes), np.array(tested)
    return ImageSet("photos", x[~test], y[~test], x[test], y[test])


def shapes() -> ImageSet:
    """A disc, a square, a triangle, a cross or a ring, of any colour, size and place, with noise; a quarter is tested."""
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[:SHAPE_SIDE, :SHAPE_SIDE] + 0.5
    x = np.empty((SHAPES, 3, SHAPE_SIDE, SHAPE_SIDE), np.uint8)
    y = random.integers(0, 5, SHAPES)
    for image, kind in zip(x, y.tolist(), strict=True):
        radius = random.uniform(0.22, 0.38) * SHAPE_SIDE
        middle = random.uniform(radius, SHAPE_SIDE - radius, 2)
        down, right = (rows - middle[0]) / radius, (columns - middle[1]) / radius
        ground, ink = random.uniform(0, 255, (2, 3))
        while np.abs(ground - ink).sum() < 150:
            ground, ink = random.uniform(0, 255, (2, 3))
        drawn = np.where(_inside(kind, down, right), ink[:, None, None], ground[:, None, None])
        image[:] = np.clip(drawn + random.normal(0, 12, drawn.shape), 0, 255)
    return _cut("shapes", x, y)


def textures() -> ImageSet:
    """Stripes, checks, dots, bricks, waves or a weave, of many scales and directions, with noise; a quarter is tested."""
    random = np.random.default_rng(2)
    rows, columns = np.mgrid[:TEXTURE_SIDE, :TEXTURE_SIDE].astype(np.float64)
    x = np.empty((TEXTURES, TEXTURE_SIDE, TEXTURE_SIDE), np.uint8)
    y = random.integers(0, 6, TEXTURES)
    for image, kind in zip(x, y.tolist(), strict=True):
        period, turn = random.uniform(4, 7), random.uniform(-0.5, 0.5)
        down = (rows * np.cos(turn) - columns * np.sin(turn)) / period + random.uniform(0, 1)
        right = (rows * np.sin(turn) + columns * np.cos(turn)) / period + random.uniform(0, 1)
        drawn = _texture(kind, down, right)
        level, contrast = random.uniform(70, 180), random.uniform(25, 70) * random.choice([-1, 1])
        image[:] = np.clip(level + contrast * drawn + random.normal(0, 15, drawn.shape), 0, 255)
    return _cut("textures", x, y)


def _texture(kind: int, down: Array, right: Array) -> Array:
    """A pattern of period 1, from 0 to 1."""
    a, b = down % 1, right % 1
    odd = np.floor(down) % 2
    return (
        (a < 0.5) * 1.0,
        ((a < 0.5) ^ (b < 0.5)) * 1.0,
        ((a - 0.5) ** 2 + (b - 0.5) ** 2 < 0.09) * 1.0,
        ((a < 0.25) | ((right + odd / 2) % 1 < 0.2)) * 1.0,
        0.5 + 0.5 * np.sin(2 * np.pi * (down + 0.3 * np.sin(2 * np.pi * right))),
        np.where(((np.floor(down) + np.floor(right)) % 2) == 0, (a > 0.3) * 1.0, (b > 0.3) * 1.0),
    )[kind]


def _inside(kind: int, down: Array, right: Array) -> Array:
    """Which pixels belong to a shape of radius 1 about the middle."""
    far, near = np.maximum(np.abs(down), np.abs(right)), np.minimum(np.abs(down), np.abs(right))
    round_ = down**2 + right**2 < 1
    square, triangle = far < 0.85, (down < 0.8) & (down > 2 * np.abs(right) - 1)
    return (round_, square, triangle, (near < 0.3) & (far < 1), round_ & (down**2 + right**2 > 0.35))[kind]


def _cut(name: str, x: Array, y: Array) -> ImageSet:
    count = len(y) * 3 // 4
    return ImageSet(name, x[:count], y[:count].astype(np.int64), x[count:], y[count:].astype(np.int64))
