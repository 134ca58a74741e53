"""Whole numbers as a page holds them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np


def packed_numbers(values: np.ndarray[Any, Any]) -> dict[str, str]:
    """Whole numbers in the smallest kind that holds them, little endian, in base64."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    sign = "u" if low >= 0 else "i"
    bits = high.bit_length() if low >= 0 else max(high.bit_length(), (-low - 1).bit_length()) + 1
    size = next(n for n in (1, 2, 4) if bits <= 8 * n)
    data = np.ascontiguousarray(values).astype(f"<{sign}{size}").tobytes()
    return {"kind": f"{sign}{size}", "base64": base64.b64encode(data).decode()}
