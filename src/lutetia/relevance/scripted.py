"""TorchScript while a model is watched: its operations bypass torch's Python functions, so `Constants` does not see them.

A scripted function runs as the Python function that it was made from. The methods of scripted and traced modules have no such
function: their operations are recorded where torch dispatches them, and found in the graph afterwards by sequence number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode

from lutetia.relevance.registry import wants_output
from lutetia.relevance.replaced import replaced, watching
from lutetia.relevance.seen import note_constant, note_value

METHOD: Any = torch._C.ScriptMethod
FUSED = "DifferentiableGraphBackward"  # made by methods that ran before they were watched; many operations have its number
FUNCTION: Any = torch.jit.ScriptFunction


@contextmanager
def scripts_seen() -> Iterator[None]:
    """While active, the operations of TorchScript are recorded."""
    with replaced(FUNCTION, "__call__", _function), replaced(METHOD, "__call__", _method):
        yield


def _function(call: Any) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not watching():
            return call(self, *args, **kwargs)
        original = getattr(self, "_torchdynamo_inline", None)
        return _dispatched(lambda: call(self, *args, **kwargs)) if original is None else original(*args, **kwargs)

    return run


def _method(call: Any) -> Any:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _dispatched(lambda: call(self, *args, **kwargs)) if watching() else call(self, *args, **kwargs)

    return run


class _Dispatched(TorchDispatchMode):
    """Keeps the arguments of operations by the number of the autograd node that torch has just made for each."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[int, tuple[str, Any, Any, Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        number, kwargs = _get_sequence_nr() - 1, kwargs or {}
        result = func(*args, **kwargs)
        # The first with a number is the operation itself; others run inside it, or after it.
        self.calls.setdefault(number, (func.overloadpacket.__name__, result, args, kwargs))
        return result


def _dispatched(call: Callable[[], Any]) -> Any:
    """The result of a call, whose operations run one by one, each with a node of its own; constants are noted at these nodes."""
    start = _get_sequence_nr()
    with torch.jit.optimized_execution(False), _Dispatched() as seen:  # type: ignore[attr-defined]
        result = call()
    stack = [tensor.grad_fn for tensor in torch.utils._pytree.tree_leaves(result) if isinstance(tensor, Tensor)]
    known = set()
    while stack:
        fn: Any = stack.pop()
        if fn is None or fn in known or not start <= fn._sequence_nr() < 2**63 or fn.name().endswith(FUSED):
            continue
        known.add(fn)
        stack.extend(child for child, _ in fn.next_functions)
        name, made, args, kwargs = seen.calls.get(fn._sequence_nr(), ("", None, (), {}))
        note_constant(name, fn, args, kwargs)
        if isinstance(made, Tensor) and wants_output(fn.name()):
            note_value(fn, made)
    return result
