"""Our ops in the code that torch's compiler writes: called as functions of Python, past torch's dispatcher.

That code calls an op through the dispatcher, which takes all arguments apart, puts them together again and asks for our function:
that takes longer than a small kernel. torch has a table of ops that are written in another way; there ours become a `Call`, one
for each place in the code where one stands. Where torch has no such table, the code calls the op.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia._shared.direct import is_quiet
from lutetia._shared.dtypes import without_rounding
from lutetia._shared.prepared import current_device
from lutetia._shared.replay import Replayed

TABLE = "torch._inductor.codegen.custom_extern_kernel_codegen"
TRIES, MOST = 64, 256  # calls after which one that is not replayed is given up; layers that one place may serve
implementations: dict[str, Callable[..., Any]] = {}
offered: list[str] = []  # ops that the compiler has not been told of


def offer(name: str, run: Callable[..., Any]) -> None:
    """Let compiled code call run(*arguments) where a graph calls the op."""
    implementations[name] = run
    offered.append(name)


def teach() -> None:
    """Tell the compiler, if it is loaded, of the ops that were offered: to be called while a graph is traced."""
    if not offered or (table := sys.modules.get(TABLE)) is None:
        return
    while offered:
        name = offered.pop()
        table.CUSTOM_EXTERN_KERNEL_CODEGEN[f"torch.ops.lutetia.{name}.default"] = table.CustomCodegen(python=Writer(name))


class Writer(NamedTuple):
    """What writes the line that calls an op."""

    name: str

    def __call__(self, node: Any, write: Callable[[str], None]) -> None:
        from torch._inductor.virtualized import V  # loaded: it calls this

        arguments, named, place = node.codegen_args(), node.codegen_kwargs(), node.get_name()
        call = f"torch.ops.lutetia.{self.name}.default"
        if _has_one_size(node):
            call = f"lutetia_{place}"
            V.graph.wrapper_code.add_import_once("from lutetia._shared.graph_calls import Call as LutetiaCall")
            V.graph.wrapper_code.add_import_once(f"{call} = LutetiaCall({self.name!r})")
            named = [each.split("=", 1)[1] for each in named if not each.endswith("=None")]  # no implementation is given defaults
        write(f"{place} = {call}({', '.join([*arguments, *named])})")


def _has_one_size(node: Any) -> bool:
    """Whether all tensors that an op is given have sizes that the graph knows."""
    sizes = (size for each in node.inputs for size in (*each.get_size(), *each.get_stride()))
    return not node.get_free_symbol_uses() and all(getattr(size, "is_number", True) for size in sizes)  # of sympy, or an int


class Settled(NamedTuple):
    """Calls whose steps are known."""

    steps: Callable[..., Any]
    forget: Callable[[], None]
    constants: list[tuple[int, Any, int]]  # place, weak reference and version
    aligned: list[tuple[int, int]]  # the place of each tensor, and its address but for multiples of 16
    device: int

    def fits(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a call may take them. Sizes, strides and dtypes are those of the graph, and no other call has them."""
        for place, constant, version in self.constants:
            if arguments[place] is not constant() or arguments[place]._version != version:
                return False
        for place, rest in self.aligned:
            if arguments[place].data_ptr() & 15 != rest:
                return False
        return self.device < 0 or self.device == current_device()


class Call:
    """One place in compiled code where an op is called, with tensors of one size."""

    __slots__ = ("run", "settled", "tries")

    def __init__(self, name: str) -> None:
        self.run: Any = implementations[name]
        self.tries = TRIES if isinstance(self.run, Replayed) else 0
        self.settled: dict[int, Settled] = {}  # by the first constant: equal code of several layers is loaded once

    def __call__(self, *arguments: Any) -> Any:
        if not self.tries:
            return self.run(*arguments)
        settled = self.settled.get(self.run.mark(arguments))
        if settled is None or not settled.fits(arguments) or self.run.watched() or not is_quiet():
            return self._learn(arguments)
        try:
            if not torch._C._is_any_autocast_enabled():
                return settled.steps(*arguments)
            with without_rounding():
                return settled.steps(*arguments)
        except torch.OutOfMemoryError:  # the steps were chosen when there was more of it
            self.settled.clear()
            settled.forget()
        return self.run(*arguments)

    def _learn(self, arguments: tuple[Any, ...]) -> Any:
        """The call of the op, and its steps once they are known."""
        result, kind = self.run(*arguments), self.run.kind_of(arguments)
        if kind is None:
            self.tries -= 1
            return result
        places = [place for place, each in enumerate(arguments) if isinstance(each, Tensor)]
        constants = [place for place in self.run.constants if place in places]
        if len(self.settled) >= MOST:
            self.settled.clear()
        self.settled[self.run.mark(arguments)] = Settled(
            kind.steps,
            kind.forget,
            [(place, weakref.ref(arguments[place]), arguments[place]._version) for place in constants],
            [(place, arguments[place].data_ptr() & 15) for place in places],
            arguments[0].get_device(),
        )
        return result
