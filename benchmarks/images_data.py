"""Sets of images: scikit-learn's digits, squares of its two photos, drawn shapes, and MNIST from a folder."""

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


class ImageSet(NamedTuple):
    """Images uint8 [n, (3,) height, width] and their classes int64 [n], to fit and to test."""

    name: str
    x: Array
    y: Array
    test_x: Array
    test_y: Array


def load_sets(folder: Path | None) -> list[ImageSet]:
    """All sets, those of MNIST from a folder with its four files (.gz)."""
    sets = [digits(), photos(), shapes()]
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


def _inside(kind: int, down: Array, right: Array) -> Array:
    """Which pixels belong to a shape of radius 1 about the middle."""
    far, near = np.maximum(np.abs(down), np.abs(right)), np.minimum(np.abs(down), np.abs(right))
    round_ = down**2 + right**2 < 1
    square, triangle = far < 0.85, (down < 0.8) & (down > 2 * np.abs(right) - 1)
    return (round_, square, triangle, (near < 0.3) & (far < 1), round_ & (down**2 + right**2 > 0.35))[kind]


def _cut(name: str, x: Array, y: Array) -> ImageSet:
    count = len(y) * 3 // 4
    return ImageSet(name, x[:count], y[:count].astype(np.int64), x[count:], y[count:].astype(np.int64))
