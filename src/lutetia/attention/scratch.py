"""The scratch memory of a core: buffers in scopes, counted against a budget.

A core of an accelerator has a few megabytes of local memory, and a kernel decides what is kept there and for how long.
`ScratchManager` keeps that account: `open_scope` and `close_scope` bracket what a tile needs, `allocate` hands out a buffer.

A scope opened with `buffers=2` is double-buffered: when it closes, its buffers stay until the second next scope of that name
opens, which takes them over. So the loads of one tile may run while the tile before it is still being worked on; the price is
the memory of two.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lutetia.attention.arguments import check_int
from lutetia.errors import ArgumentError, LutetiaError, fail


class ScratchError(LutetiaError, MemoryError):
    """A buffer does not fit into the scratch memory of a core."""

    kind = "scratch"


@dataclass
class _Scope:
    name: str
    buffers: int = 1  # how many scopes of this name may be there at once
    section: int = 0  # which of them this one is
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of each buffer
    opened: dict[str, int] = field(default_factory=dict)  # how often a scope of each name was opened in this one
    closed: dict[str, deque[_Scope]] = field(default_factory=dict)  # scopes in this one that are closed, but whose buffers stay

    def all_sizes(self) -> Iterator[tuple[str, int]]:
        """Every buffer in here, those of closed scopes included."""
        yield from self.sizes.items()
        for scopes in self.closed.values():
            for scope in scopes:
                yield from scope.all_sizes()


class ScratchManager:
    """Buffers in scopes, at most `budget` bytes at any time; None sets no limit.

    `owner`, such as "core 0", is named in errors. `in_use` and `peak` are bytes. New buffers hold NaN (-1 where they are
    integers), so that reading before writing shows.
    """

    def __init__(self, budget: int | None = None, owner: str = "the core", device: torch.device | str | None = None) -> None:
        if budget is not None:
            check_int("budget", budget, 0)
        self.budget = budget
        self.owner = owner
        self.in_use = 0
        self.peak = 0
        self._device = device
        self._scopes = [_Scope("")]
        self._storage: dict[tuple[object, ...], Tensor] = {}

    def open_scope(self, name: str, buffers: int = 1) -> None:
        """Begin a scope inside the current one; with `buffers` > 1, up to that many of this name keep their buffers at once."""
        check_int("buffers", buffers, 1)
        outer = self._scopes[-1]
        count = outer.opened.get(name, 0)
        outer.opened[name] = count + 1
        stays = outer.closed.setdefault(name, deque())
        while len(stays) >= buffers:
            self._free(stays.popleft())
        self._scopes.append(_Scope(name, buffers, count % buffers))

    def close_scope(self) -> None:
        """End the innermost scope."""
        if len(self._scopes) == 1:
            raise ArgumentError(f"{self.owner} closes a scope, but none is open")
        scope = self._scopes.pop()
        if scope.buffers > 1:
            self._scopes[-1].closed[scope.name].append(scope)
        else:
            self._free(scope)

    def allocate(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A buffer of this shape in the innermost scope; ScratchError, naming it, where the budget has no room."""
        scope = self._scopes[-1]
        if name in scope.sizes:
            fail("name", name, f"a name that scope {self.scope!r} has no buffer of yet")
        size = math.prod(shape) * dtype.itemsize
        if self.budget is not None and self.in_use + size > self.budget:
            raise ScratchError(self._no_room(name, shape, dtype, size))
        scope.sizes[name] = size
        self.in_use += size
        self.peak = max(self.peak, self.in_use)
        return self._bytes(name, size, dtype).view(dtype).view(tuple(shape))

    @property
    def scope(self) -> str:
        """The path of the innermost scope: "attention_tkg/fa_tile"."""
        return "/".join(scope.name for scope in self._scopes[1:])

    def _bytes(self, name: str, size: int, dtype: torch.dtype) -> Tensor:
        """Storage for a buffer: reused from the same scope and name if it is large enough."""
        key = (*((scope.name, scope.section) for scope in self._scopes), name)
        kept = self._storage.get(key)
        if kept is None or kept.numel() < size:
            kept = self._storage[key] = torch.empty(size, dtype=torch.uint8, device=self._device)
        return kept[:size].fill_(1 if dtype == torch.bool else 0xFF)  # all bits set are NaN in every float type

    def _free(self, scope: _Scope) -> None:
        self.in_use -= sum(size for _, size in scope.all_sizes())

    def _no_room(self, name: str, shape: Sequence[int], dtype: torch.dtype, size: int) -> str:
        there = [(other, other_size) for scope in self._scopes for other, other_size in scope.all_sizes() if other_size]
        largest = sorted(there, key=lambda each: -each[1])
        what = f"{str(dtype).removeprefix('torch.')} {list(shape)}"
        held = ", ".join(f"{other} {other_size}" for other, other_size in largest[:6]) + (", …" if len(largest) > 6 else "")
        return (
            f"{self.owner} has no scratch for {name!r} ({what}, {size} bytes) in scope {self.scope!r}: "
            f"{self.in_use} of {self.budget} bytes are in use{f' ({held})' if held else ''}; a smaller tile needs less"
        )
