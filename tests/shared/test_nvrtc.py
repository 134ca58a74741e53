"""Kernels of CUDA C++ are launched from any thread; the driver is played here."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lutetia._shared import driver as driver_module
from lutetia._shared import nvrtc
from lutetia.errors import LutetiaError

OUT_OF_MEMORY = 2


class Driver:
    """A thread without a context, on which the driver does nothing until it is given one."""

    def __init__(self, result: int = 0) -> None:
        self.current, self.result, self.launched = 0, result, []  # type: ignore[var-annotated]

    def cuDeviceGet(self, handle: Any, device: int) -> int:
        handle._obj.value = device + 40
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: ctypes.c_int) -> int:
        context._obj.value = handle.value + 100
        return 0

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:
        self.current = context.value or 0
        return 0

    def cuModuleGetFunction(self, *_: Any) -> int:
        return 0 if self.current else driver_module.INVALID_CONTEXT

    def cuLaunchKernel(self, *arguments: Any) -> int:
        if not self.current:
            return driver_module.INVALID_CONTEXT
        self.launched.append(arguments[1:8])
        return self.result

    def cuGetErrorString(self, result: int, text: Any) -> int:
        text._obj.value = f"error {result}".encode()
        return 0


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0, raising=False)

    def play(driver: Driver) -> Driver:
        monkeypatch.setattr(driver_module, "driver", lambda: driver)
        return driver

    driver_module._context.cache_clear()
    yield play
    driver_module._context.cache_clear()


def test_a_thread_without_a_context_is_given_that_of_its_device(play: Any) -> None:
    driver = play(Driver())
    kernel = nvrtc.Kernel(ctypes.c_void_p(1), "read", threads=64, shared=0)
    assert driver.current == 141
    driver.current = 0  # as in another thread
    kernel((2, 3, 1), 5)
    assert driver.launched == [(2, 3, 1, 64, 1, 1, 0)]


def test_other_errors_are_told_at_once(play: Any) -> None:
    driver = play(Driver(OUT_OF_MEMORY))
    kernel = nvrtc.Kernel(ctypes.c_void_p(1), "read", threads=64, shared=0)
    with pytest.raises(LutetiaError, match="launching read failed: error 2"):
        kernel((1, 1, 1))
    assert len(driver.launched) == 1
