"""Untrusted image files as pixels: only plain formats are opened, and only allowed sizes are decoded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lutetia.errors import DataError, require
from lutetia.training.formats import Array, check_expansion, check_file

T = TypeVar("T")
IMAGES = (".png", ".pgm", ".ppm", ".pbm", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "PPM", "JPEG", "BMP", "GIF", "WEBP", "TIFF")  # no others: some of pillow's run programs
LONGEST_SIDE = 32  # pixels of images of several sizes, which are made alike
LOOKED_AT = 64  # images that show whether there are colours
COLOURED = 16  # levels between the channels of a pixel, more than JPEG makes of a grey one
SOME_PIXELS = 0.01  # of an image, at least, that are coloured in one with colours
CHANNELS = (1, 3)  # grey, or red, green and blue
ORIENTATION = 0x0112  # the EXIF tag that says how a camera was held, from 1, upright
# How an image is put upright, by that tag; from 5 on its sides change places.
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


class ImageSettings(NamedTuple):
    """How images are read: their size (height, width), None as it is, and whether they keep their colours."""

    size: tuple[int, int] | None = None
    colour: bool = False


def read_pixels(path: Path, mode: str, check_size: Callable[[int, int], object], size: tuple[int, int] | None = None) -> Array:
    """An image as uint8: [H, W] in mode "L", grey, or [H, W, 3] in "RGB"; resized to `size`, (height, width), where given.

    It is turned as its EXIF data say. `check_size(width, height)` may refuse it, upright, before a pixel is decoded. What is
    transparent becomes white.
    """
    pillow: Any = require("PIL.Image", "reading images", "pillow")
    check_file(path, "an image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path, formats=FORMATS) as image:
                turn = _turn(pillow, image)
                check_size(*_upright_size(image, turn))
                pixels = _in_8_bits(pillow, path, image).convert(mode)
                pixels = pixels.transpose(pillow.Transpose[TURNS[turn]]) if turn in TURNS else pixels
                return np.asarray(pixels if size is None else pixels.resize(size[::-1], pillow.Resampling.BILINEAR)).copy()
    except DataError:
        raise
    except Exception as error:  # decoders raise nearly anything for a damaged file
        raise DataError(f"{path} is not an image that can be read, or is damaged: {error or type(error).__name__}") from error


def _turn(pillow: Any, image: Any) -> int:
    """How an image is to be turned, by its EXIF data: a key of `TURNS`, or 1. No pixel is decoded."""
    if image.format == "TIFF":
        return 1  # which pillow turns itself
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # The method of the parent: that of PNG decodes the whole image to look behind it.
            return int(pillow.Image.getexif(image).get(ORIENTATION, 1))
    except Exception:  # damaged EXIF data do not make the pixels unreadable
        return 1


def _upright_size(image: Any, turn: int) -> tuple[int, int]:
    """The width and the height of an image once it is turned."""
    width, height = image.size
    return (height, width) if turn in (5, 6, 7, 8) else (width, height)


def _in_8_bits(pillow: Any, path: Path, image: Any) -> Any:
    """An image without transparency, of 8 bits: pillow would cut off 16 bits at 255."""
    if image.mode.startswith("I;16"):
        return pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(f"{path} has pixels of 32 bits, expected 8 or 16")
    if "A" in image.getbands() or "transparency" in image.info:
        clear = image.convert("RGBA")
        return pillow.alpha_composite(pillow.new("RGBA", clear.size, "white"), clear)
    return image


def has_colours_last(shape: tuple[int, ...]) -> bool:
    """Whether arrays of a shape [n, ...] look like images [n, height, width, channels]."""
    return len(shape) == 4 and shape[-1] in CHANNELS and shape[1] not in CHANNELS


def colours_first(x: Array, shape: tuple[int, ...]) -> Array:
    """Samples x [n, ...] in the shape of a model: images [n, height, width, channels] as [n, channels, height, width], if that is
    its shape."""
    is_last = x.ndim == 4 and x.shape[1:] != shape == (x.shape[3], *x.shape[1:3])
    return np.moveaxis(x, -1, 1).copy() if is_last else x


# ---- folders of folders ----------------------------------------------------------------------------------------------


def labelled_images(path: Path) -> list[tuple[Path, str]]:
    """The images of a folder of folders, each with the name of its class, which is that of its folder."""
    return [(image, folder.name) for folder in class_folders(path) for image in images_in(folder)]


def class_folders(path: Path) -> list[Path]:
    """The folders in a folder, sorted by name, without hidden ones."""
    return sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith("."))


def images_in(folder: Path) -> list[Path]:
    """The images in a folder, sorted by name, without hidden files, which some systems leave beside them."""
    return sorted(each for each in folder.iterdir() if each.suffix.lower() in IMAGES and not each.name.startswith("."))


def where_images_lie(path: Path) -> str:
    """A hint for a folder without folders of images: where images are instead, or nothing."""
    if count := len(images_in(path)):
        return f"; {count:,} image{' lies' if count == 1 else 's lie'} directly in it: each class needs a folder of its own"
    deeper = next((each for each in class_folders(path) if labelled_images(each)), None)
    return "" if deeper is None else f"; {deeper} does: name that one"


def read_images(images: Sequence[Path], settings: ImageSettings, skip: bool | None = None) -> tuple[Array, list[Path]]:
    """Images as numbers from 0 to 1: float64 [n, H, W], or in colour [n, 3, H, W]; and those that were damaged and skipped.

    Without `skip` a damaged image is an error. If it is False, which a run can change, the error says how.
    """
    pixels: dict[Path, Array] = {}
    for image in images:
        first = next(iter(pixels), image)
        wanted = pixels[first].shape[:2] if pixels and settings.size is None else None
        check = partial(_check_size, image, wanted, first)
        read = _or_skip(partial(read_pixels, image, "RGB" if settings.colour else "L", check, settings.size), image, skip)
        if read is not None:
            pixels[image] = read
    if not pixels:
        raise DataError(f"none of the {len(images)} images can be read, the first of which is {images[0]}")
    x = np.stack([*pixels.values()]).astype(np.float64) / 255
    return np.moveaxis(x, -1, 1).copy() if settings.colour else x, [image for image in images if image not in pixels]


def _or_skip(read: Callable[[], T], image: Path, skip: bool | None) -> T | None:
    """What `read` gives for an image; None for a damaged one, with `skip`. See `read_images`."""
    try:
        return read()
    except DataError as error:
        if skip is None or not is_damaged(image):
            raise
        if not skip:
            raise DataError(f"{error}; remove it, or skip such images: --set data.skip_unusable=true") from error
        return None


def is_damaged(image: Path) -> bool:
    """Whether an image cannot be read, of whatever size it is."""
    try:
        read_pixels(image, "L", partial(_check_size, image, None, image))
    except DataError:
        return True
    return False


def _check_size(image: Path, wanted: tuple[int, ...] | None, first: Path, width: int, height: int) -> None:
    """Refuse an image of another size than is wanted, (height, width), and a large one in a small file."""
    check_expansion(image, width * height * np.dtype(np.float64).itemsize)
    if wanted is not None and (height, width) != wanted:
        sizes = f"{height} × {width} pixels, expected {wanted[0]} × {wanted[1]} as {first} has"
        raise DataError(f"{image} has {sizes}; data.size = [height, width] resizes all of them")


def guess_images(images: Sequence[Path], skip: bool | None = None) -> ImageSettings:
    """How images are best read: made alike where they have several sizes, in colour where some have colours."""
    sizes = [size for image in images if (size := _or_skip(partial(_size, image), image, skip)) is not None]
    size = None
    if len(set(sizes)) > 1:
        middle = np.median(np.array(sizes), 0)
        small = np.maximum(1, np.round(middle * min(1.0, LONGEST_SIDE / middle.max()))).astype(int)
        size = (int(small[0]), int(small[1]))
    step = max(1, len(images) // LOOKED_AT)
    return ImageSettings(size, any(_or_skip(partial(_has_colours, image), image, skip) for image in images[::step]))


def _size(image: Path) -> tuple[int, int]:
    """The height and the width of an image, from its header."""
    pillow: Any = require("PIL.Image", "reading images", "pillow")
    check_file(image, "an image")
    try:
        with pillow.open(image, formats=FORMATS) as opened:
            width, height = _upright_size(opened, _turn(pillow, opened))
            return height, width
    except Exception as error:  # decoders raise nearly anything for a damaged file
        raise DataError(f"{image} is not an image that can be read, or is damaged: {error or type(error).__name__}") from error


def _has_colours(image: Path) -> bool:
    pixels = read_pixels(image, "RGB", partial(_check_size, image, None, image))
    return bool((np.ptp(pixels, axis=2) > COLOURED).mean() >= SOME_PIXELS)
