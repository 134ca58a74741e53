"""Tensors as the arrays that numpy and compiled loops take."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia._shared.dtypes import INTEGER_DTYPES
from lutetia.errors import ArgumentError, fail

BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}  # numba has neither: `loops.load` decodes the bits


def array_of(tensor: Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, or of a contiguous copy; int32 as unsigned, halves as their bits."""
    # Looking before each step is quicker than taking it: for a small kernel these few calls cost as much as it does.
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    if tensor.dtype in BITS:
        tensor = tensor.view(BITS[tensor.dtype])
    array = tensor.numpy()
    return array.view(np.uint32) if array.dtype == np.int32 else array


def float_array_of(tensor: Tensor) -> np.ndarray:
    """The same, with halves as float32."""
    return array_of(tensor.float() if tensor.dtype in BITS else tensor)


def new_array(shape: tuple[int, ...], *operands: Tensor) -> np.ndarray:
    """An uninitialised array for sums of these operands: float32, or float64 when one of them is."""
    return np.empty(shape, np.float64 if any(tensor.dtype == torch.float64 for tensor in operands) else np.float32)


def integers_of(name: str, values: Any) -> np.ndarray:
    """A tensor, array or list of integers as int64."""
    if not isinstance(values, Tensor):
        try:
            values = torch.from_numpy(np.asarray(values))
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{name} is not an array of integers: {error}") from error
    if values.dtype not in INTEGER_DTYPES or values.layout != torch.strided or values.is_meta:
        fail(name, values, "an integer dtype, dense and not on meta")
    return values.cpu().numpy().astype(np.int64)


def first_repeat(values: np.ndarray) -> tuple[int, int] | None:
    """The first of values [n] that was there before, and where: their places; None where all differ."""
    ordered = np.sort(values)
    if not (ordered[1:] == ordered[:-1]).any():
        return None
    _, first, group = np.unique(values, return_index=True, return_inverse=True)
    earlier = first[group]
    k = int((earlier != np.arange(len(values))).argmax())
    return k, int(earlier[k])


def check_each_below(thing: str, name: str, values: np.ndarray, end: int) -> None:
    """Check that values [n], the numbers called `name` of n things, are from 0 to end - 1."""
    outside = (values < 0) | (values >= end)
    if outside.any():
        k = int(outside.argmax())
        raise ArgumentError(f"{thing} {k} has {name} {values[k]}, expected 0 to {end - 1}")
