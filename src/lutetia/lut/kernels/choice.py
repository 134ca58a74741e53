"""Which kernels run: `reference`, `cpu` or `triton`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from lutetia.errors import ArgumentError, MissingFeatureError, check_choice, require
from lutetia.lut.kernels.backend import Backend
from lutetia.lut.kernels.names import Kernels

BACKENDS = ("reference", "cpu", "triton")
NEEDS = {"cpu": "numba", "triton": "triton"}

# The backend that `use_backend` chose, "" for the default. A module's variable and not a ContextVar: torch.compile can guard
# on the one and not read the other.
chosen = ""


def kernels(name: str) -> Kernels:
    """Every kernel of one backend, as the attributes of a namespace: `kernels("cpu").check_detectors(x, anchors)`."""
    check_choice("backend", name, BACKENDS)
    return _kernels(name)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run the LUT layers called in the block, and their backward passes wherever those run, on one backend.

    The choice is process-wide. Without it CUDA tensors run on `triton`, CPU tensors on `cpu`.
    """
    global chosen
    kernels(name)
    before, chosen = chosen, name
    try:
        yield
    finally:
        chosen = before


def backend_for(name: str, x: torch.Tensor) -> Backend:
    """The primitives that run on the device of x: those of the backend of this name, or of the default when it is ""."""
    if not name:
        return _default_backend(x.device.type)
    if name == "triton" and not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ArgumentError(
            f"the triton backend was chosen for a tensor on {x.device}, expected a CUDA tensor "
            "(or TRITON_INTERPRET=1 in the environment, set before triton is imported)"
        )
    if name == "cpu" and x.device.type != "cpu":
        raise ArgumentError(f"the cpu backend was chosen for a tensor on {x.device}, expected a CPU tensor")
    return kernels(name).backend


def backend_name(x: torch.Tensor) -> str:
    """The name of the backend that runs on x: for kernels of other packages that follow the same choice."""
    backend_for(chosen, x)
    return chosen or _default_name(x.device.type)


@cache
def _default_backend(device: str) -> Backend:
    return kernels(_default_name(device)).backend


@cache
def _default_name(device: str) -> str:
    if device != "cpu":
        return "triton" if device == "cuda" else "reference"
    try:
        return kernels("cpu").name
    except MissingFeatureError as error:
        warnings.warn(f"LUT layers run on the slow reference backend: {error}", RuntimeWarning, stacklevel=2)
        return "reference"


@cache
def _kernels(name: str) -> Kernels:
    if name in NEEDS:
        require(NEEDS[name], f"the {name} backend of lutetia.lut")
    return Kernels(name, Backend(name))
