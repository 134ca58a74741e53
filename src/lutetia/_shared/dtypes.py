"""The dtypes that tensors of numbers may have."""

from __future__ import annotations

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGER_DTYPES = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
