"""What a function takes, as a line of text: tensors whose sizes have names, checked to fit each other before anything is read.

A compiled loop trusts its arguments: with sizes that do not fit, or an index past the end of a table, it would read or write out
of bounds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia._shared.dtypes import FLOATS, INTEGER_DTYPES
from lutetia.errors import ArgumentError, check_memory, check_tensor


class Wanted(NamedTuple):
    """What an argument must be."""

    optional: bool  # whether it may be None
    shape: list[str]  # sizes, by name; empty for what is no tensor
    end: str  # the size below which its values must be, or ""


class Arguments:
    """The arguments `"name size size <end, name? size, ..."` of a function.

    A size is a number, or a name that stands for the same number everywhere, or for a whole shape; `S-1` is one less than S,
    `...` any number of sizes, `[]` none. What has a `?` may be None, `<` says below which size the values must be. Tensors
    hold floats, or integers where they are named among these.
    """

    def __init__(self, text: str, integers: Collection[str] = ()) -> None:
        self.wanted: dict[str, Wanted] = {}
        self.integers = integers
        for words in text.split(", "):
            name, *sizes = words.split()
            end = sizes.pop()[1:] if sizes and sizes[-1].startswith("<") else ""
            self.wanted[name.rstrip("?")] = Wanted(name.endswith("?"), sizes, end)

    def bind(self, function: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, of a call of the function: those not given by place are taken from the keywords."""
        if len(args) > len(self.wanted):
            raise TypeError(f"{function}() takes {len(self.wanted)} arguments by place, but {len(args)} were given")
        given = dict(zip(self.wanted, args, strict=False))
        for name in [*self.wanted][len(args) :]:
            if name not in keywords:
                raise TypeError(f"{function}() is missing the argument {name!r}")
            given[name] = keywords.pop(name)
        return given

    def fit(self, given: dict[str, Any], sizes: dict[str, Any], device: torch.device | None, last: str) -> None:
        """Check all tensors, `last` after the others; sizes that are not known yet are learned from them."""
        for name in sorted(self.wanted, key=last.__eq__):
            optional, shape, _ = self.wanted[name]
            if shape and not (optional and given[name] is None):
                self._fit(name, given[name], shape, sizes, device)
                device = given[name].device

    def _fit(self, name: str, tensor: Any, shape: list[str], sizes: dict[str, Any], device: torch.device | None) -> None:
        whole = sizes.get(shape[0]) if len(shape) == 1 else None
        if isinstance(whole, tuple):
            names: list[Any] = list(whole)
        else:
            known = sizes | {f"{size}-1": n - 1 for size, n in sizes.items() if isinstance(n, int)}
            names = [known.get(size, int(size) if size.isdigit() else size) for size in shape if size != "[]"]
        check_tensor(name, tensor, names, INTEGER_DTYPES if name in self.integers else FLOATS, device)
        check_memory(name, tensor)
        if shape[0] != "..." and not isinstance(whole, tuple):
            sizes.update((size, n) for size, n in zip(shape, tensor.shape, strict=False) if not size.isdigit())

    def check_ends(self, given: dict[str, Any], sizes: dict[str, Any]) -> None:
        """Check the values that must lie below a size."""
        for name, (_, _, end) in self.wanted.items():
            if end in sizes and given[name] is not None:
                check_below(f"{name} are", given[name], sizes[end])


def check_below(what: str, values: Tensor, end: int) -> None:
    """Check that values [...] are from 0 to end - 1, where they can be read without waiting for a device.

    `what` and its verb begin the message.
    """
    if values.device.type == "cpu" and values.numel():
        low, high = (int(each) for each in values.aminmax())
        if low < 0 or high >= end:
            raise ArgumentError(f"{what} from {low} to {high}, expected 0 to {end - 1}")
