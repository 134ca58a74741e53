"""What was worked out from tensors, kept as long as they live and do not change."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor


class Memo:
    """Values that were made from tensors. Inference tensors do not count their changes: `trusting` takes them as constant, else
    nothing made from them is kept."""

    def __init__(self, make: Callable[..., Any], trusting: bool = True) -> None:
        self.make, self.trusting = make, trusting
        self.known: dict[Any, tuple[list[tuple[weakref.ref[Tensor], int]], Any]] = {}

    def get(self, tensors: tuple[Tensor, ...], extra: Any) -> Any:
        """make(*tensors, extra), or what it gave the last time."""
        key = (id(tensors[0]), extra)
        entry = self.known.get(key)
        if entry is not None:
            for tensor, (seen, version) in zip(tensors, entry[0], strict=True):
                if seen() is not tensor or version != (-1 if tensor.is_inference() else tensor._version):
                    break
            else:
                return entry[1]
        value = self.make(*tensors, extra)
        if self.trusting or not any(tensor.is_inference() for tensor in tensors):
            forget = lambda _: self.known.pop(key, None)  # noqa: E731
            self.known[key] = ([(weakref.ref(tensor, forget), _version(tensor)) for tensor in tensors], value)
        return value


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; -1 for tensors that do not count."""
    return -1 if tensor.is_inference() else tensor._version
