"""Untrusted image files as pixels: only plain formats are opened, and only allowed sizes are decoded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lutetia.errors import DataError, require
from lutetia.training.formats import Array, check_file

IMAGES = (".png", ".pgm", ".ppm", ".pbm", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
FORMATS = ("PNG", "PPM", "JPEG", "BMP", "GIF", "WEBP", "TIFF")  # no others: some of pillow's run programs


def read_pixels(path: Path, mode: str, check_size: Callable[[int, int], object]) -> Array:
    """An image as uint8: [H, W] in mode "L", grey, or [H, W, 3] in "RGB".

    `check_size(width, height)` may refuse it before a pixel is decoded.
    """
    pillow: Any = require("PIL.Image", "reading images", "pillow")
    check_file(path, "an image")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path, formats=FORMATS) as image:
                check_size(*image.size)
                return np.asarray(image.convert(mode)).copy()
    except DataError:
        raise
    except Exception as error:  # decoders raise nearly anything for a damaged file
        raise DataError(f"{path} is not an image that can be read, or is damaged: {error or type(error).__name__}") from error
