"""The dtypes that tensors of numbers may have."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER_DTYPES = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)


def without_rounding() -> AbstractContextManager[None]:
    """While active, operations keep the dtypes that they are given, which autocast would change."""
    return torch._C._DisableAutocast() if torch._C._is_any_autocast_enabled() else nullcontext()
