"""Stronger peers of `images.py`: histograms of oriented gradients for estimators, and a small convolutional network."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

Array = np.ndarray[Any, Any]
ORIENTATIONS, CLIPPED = 9, 0.2
BATCH, WIDTH, RATE = 64, 32, 3e-3
SMALL_SIDE = 16  # pixels; cells of smaller images are half as wide
LEAST_STEPS = 20


def hog(x: Array) -> Array:
    """Histograms of oriented gradients (Dalal and Triggs, 2005): images uint8 [n, (3,) H, W] -> float32 [n, features].

    Of several channels the steepest counts at each pixel. Nine orientations without a sign, cells of 4 × 4 pixels (2 × 2 in small
    images), blocks of 2 × 2 cells, normalised, clipped at 0.2 and normalised again.
    """
    images = (x if x.ndim == 4 else x[:, None]).astype(np.float32) / 255
    down, right = np.gradient(images, axis=(2, 3))
    size = np.hypot(down, right)
    steepest = size.argmax(1)[:, None]
    size, down, right = (np.take_along_axis(each, steepest, 1)[:, 0] for each in (size, down, right))
    place = (np.arctan2(down, right) % np.pi) / np.pi * ORIENTATIONS
    first = np.floor(place).astype(int)
    second_share = place - first
    cell = 4 if min(x.shape[-2:]) >= SMALL_SIDE else 2
    rows, columns = x.shape[-2] // cell, x.shape[-1] // cell
    cells = np.zeros((len(x), rows, columns, ORIENTATIONS), np.float32)
    for step, share in ((0, 1 - second_share), (1, second_share)):
        for orientation in range(ORIENTATIONS):
            own = np.where((first + step) % ORIENTATIONS == orientation, size * share, 0)[:, : rows * cell, : columns * cell]
            cells[..., orientation] += own.reshape(len(x), rows, cell, columns, cell).sum((2, 4))
    blocks = np.concatenate([cells[:, r : rows - 1 + r, c : columns - 1 + c] for r in (0, 1) for c in (0, 1)], -1)
    clipped = np.minimum(_unit(blocks), CLIPPED)
    return _unit(clipped).reshape(len(x), -1)


def _unit(blocks: Array) -> Array:
    return blocks / np.sqrt((blocks**2).sum(-1, keepdims=True) + 1e-4)


def fit_network(x: Array, y: Array, seconds: float) -> Callable[[Array], Array]:
    """A convolutional network, trained for this much processor time: images uint8 [n, (3,) H, W], classes [n].

    Four convolutions of 3 × 3 with batch norm, two poolings, a mean over all places, one linear layer; Adam, whose rate falls to
    zero over the time; each image is shifted by up to a pixel, as ours are.
    """
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    classes, numbers = np.unique(y, return_inverse=True)
    data = torch.from_numpy(x if x.ndim == 4 else x[:, None]).float() / 255
    mean, spread = data.mean((0, 2, 3), keepdim=True), data.std((0, 2, 3), keepdim=True) + 1e-6
    data, target = (data - mean) / spread, torch.from_numpy(numbers)
    model = _network(data.shape[1], len(classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    begun, steps = time.process_time(), 0
    while (spent := (time.process_time() - begun) / seconds) < 1 or steps < LEAST_STEPS:
        for group in optimizer.param_groups:
            group["lr"] = RATE * max(0.01, 1 - spent)
        rows = torch.from_numpy(random.choice(len(data), min(BATCH, len(data)), replace=False))
        down, right = random.integers(-1, 2, 2).tolist()
        loss = nn.functional.cross_entropy(model(data[rows].roll((down, right), (2, 3))), target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    model.eval()

    @torch.no_grad()
    def predict(given: Array) -> Array:
        images = (torch.from_numpy(given if given.ndim == 4 else given[:, None]).float() / 255 - mean) / spread
        return classes[torch.cat([model(part).argmax(1) for part in images.split(512)]).numpy()]

    return predict


def _network(channels: int, n_classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for number, (given, made) in enumerate(((channels, WIDTH), (WIDTH, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, 2 * WIDTH))):
        layers += [nn.Conv2d(given, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if number in (1, 2) else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * WIDTH, n_classes))
