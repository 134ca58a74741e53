"""The CUDA driver: a plain C interface that is stable between versions. torch has loaded it."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from lutetia.errors import LutetiaError

INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


@cache
def driver() -> ctypes.CDLL:
    """Its functions."""
    return ctypes.CDLL("libcuda.so.1")


@cache
def address_of(function: str) -> int:
    """Where one of its functions is."""
    return int(ctypes.cast(getattr(driver(), function), ctypes.c_void_p).value or 0)


@cache
def _context(device: int) -> ctypes.c_void_p:
    """The primary context of a device, which is torch's as well."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    check(driver().cuDeviceGet(ctypes.byref(handle), device), f"finding GPU {device}")
    check(driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), f"the context of GPU {device}")
    return context


def call(function: str, what: str, *arguments: Any) -> None:
    """Call a function; an error says what failed."""
    result = getattr(driver(), function)(*arguments)
    if result:
        recover(result, what)
        check(getattr(driver(), function)(*arguments), what)


def recover(result: int, what: str) -> None:
    """Give this thread its GPU if that is what a call lacked, so that it may be made again; else raise.

    A thread has no context before torch first calls the CUDA runtime in it. In the thread of the backward pass a kernel of ours
    may be the first thing that runs.
    """
    if result != INVALID_CONTEXT:
        check(result, what)
    check(driver().cuCtxSetCurrent(_context(torch.cuda.current_device())), "giving a thread its GPU")


def check(result: int, what: str) -> None:
    """Raise where a call failed."""
    if result:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(result, ctypes.byref(text))
        raise LutetiaError(f"{what} failed: {(text.value or b'unknown CUDA error').decode()}")


def parameter_sizes(function: int) -> list[int] | None:
    """The bytes of each parameter of a kernel; None where the driver is too old to tell (before CUDA 12.4)."""
    if not hasattr(driver(), "cuFuncGetParamInfo"):
        return None
    sizes: list[int] = []
    handle, offset, size = ctypes.c_void_p(function), ctypes.c_size_t(), ctypes.c_size_t()
    where = (ctypes.byref(offset), ctypes.byref(size))
    while not driver().cuFuncGetParamInfo(handle, ctypes.c_size_t(len(sizes)), *where):
        sizes.append(size.value)
    return sizes
