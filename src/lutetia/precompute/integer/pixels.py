"""From the pixels of an image, whole numbers from 0 to 255, to the inputs of a model that counts patterns.

Each input is a pixel or a count, and its code is one more than the number of its edges that are below it. Edges are whole numbers
here: of a count that which it has to exceed, of a pixel the level.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lutetia.errors import ArgumentError
from lutetia.precompute.integer.classifier import IntegerClassifier

Array = np.ndarray[Any, Any]
LEVELS = 256


def has_patches(model: IntegerClassifier) -> bool:
    """Whether a model counts patterns in images."""
    return getattr(model.model, "patches", None) is not None


def pixel_values(model: Any) -> Array:
    """The value of each level of a pixel, in the numbers of a float model that counts patterns: float64 [256]."""
    low, high = model.patches.span.tolist()
    return np.arange(LEVELS) / (LEVELS - 1) * (high - low) + low


def pixel_inputs(model: IntegerClassifier, pixels: Array) -> Array:
    """Pixels, whole numbers [n, pixels] from 0 to 255, as the inputs of a model: int64 [n, n_inputs]."""
    values = torch.from_numpy(pixel_values(model.model)[pixels].reshape(-1, *model.model.config.input_shape))
    return model.quantise(values).numpy()


def whole_edges(model: IntegerClassifier) -> list[Array]:
    """The edges of each input as whole numbers, int64 [n_edges] each: the code is one more than the edges below the number."""
    encoding, values, n_pixels = model.model.encoding, pixel_values(model.model), model.model.n_columns
    if encoding.source.tolist() != list(range(model.n_inputs)):
        raise ArgumentError("the inputs of the model are not its pixels and counts in order, as lutetia train leaves them")
    found = []
    for number, row in enumerate(encoding.edges.cpu().numpy()):
        edges = row[np.isfinite(row)]
        found.append(np.searchsorted(values, edges, "right") - 1 if number < n_pixels else np.floor(edges).astype(np.int64))
    return found
