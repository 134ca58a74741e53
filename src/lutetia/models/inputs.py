"""Inputs as models compute with them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lutetia.models.tabular import Tabular


def as_floats(model: nn.Module, x: Tensor) -> Tensor:
    """Inputs as the numbers that the model computes with; uint8 pixels from 0 to 1."""
    own = next(model.parameters())
    if isinstance(model, Tabular) and x.dtype != torch.uint8:
        return x.to(own.device, torch.float64)  # its edges are doubles, which a number must not be rounded past
    return x.to(own.device, own.dtype) / 255 if x.dtype == torch.uint8 else x.to(own.device, own.dtype)
