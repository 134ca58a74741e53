"""Checking that a module reads the windows that were claimed for it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.precompute.front.ops import Claimed, clone
from lutetia.precompute.tables.domains import Domain

MOST = 2**22  # numbers of a frame that is tried


def check_window(op: Claimed, domain: Domain | None) -> None:
    """Compare a module's answers to whole frames with its answers to each window by itself."""
    shape = op.window
    assert shape is not None
    fields = [(size - 1) * step + 1 for size, step in zip(shape.kernel, shape.dilation, strict=True)]
    sizes = [2 * field + 3 * step for field, step in zip(fields, shape.stride, strict=True)]
    channels = op.in_channels or 1
    if channels * math.prod(sizes) > MOST:
        raise ArgumentError(f"{op} claims a window over {fields} samples of {channels} channels, which is too large to check")
    x = draw(2, channels * math.prod(sizes), domain).reshape(2, channels, *sizes)
    padded = F.pad(x, [side for size in reversed(shape.padding) for side in (size, size)])
    counts = [(size - field) // step + 1 for size, field, step in zip(padded.shape[2:], fields, shape.stride, strict=True)]
    with torch.no_grad():
        try:
            found = clone(op.module).to(torch.float64).eval()(x)
        except (RuntimeError, IndexError) as error:  # what PyTorch says about frames that do not fit
            raise ArgumentError(f"{op} does not take frames of {sizes}: {error}") from error
        if list(found.shape) != [2, op.out_channels, *counts]:
            answered = f"answers {list(found.shape[1:])} to frames of {sizes}"
            raise ArgumentError(f"{op} {answered}, expected {[op.out_channels, *counts]}: not what was claimed")
        run = op.ready()
        for place in np.ndindex(*counts):
            ends = zip(place, shape.stride, fields, strict=True)
            taps: Any = (..., *(slice(at * step, at * step + field) for at, step, field in ends))
            here: Any = (..., *place)
            if not torch.allclose(found[here], run(padded[taps]).flatten(1), rtol=1e-9, atol=1e-9):
                raise ArgumentError(f"{op} reads more than its window at place {list(place)}: not what was claimed")


def draw(n: int, width: int, domain: Domain | None) -> Tensor:
    """Values of a domain, or of none: float64 [n, width]."""
    generator = torch.Generator().manual_seed(1)
    if domain is None:
        return torch.randn(n, width, generator=generator, dtype=torch.float64) * 2
    return domain.values()[torch.randint(domain.radix, (n, width), generator=generator)].to(torch.float64)
