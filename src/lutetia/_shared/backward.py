"""What a backward pass wants, and what is done when all of it is done."""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, Protocol, TypeVar

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, LutetiaError


class Ending(Protocol):
    """What the nodes of one backward pass collect."""

    def finish(self) -> None:
        """The pass has ended. One that fails never calls this."""


E = TypeVar("E", bound=Ending)
_endings: weakref.WeakValueDictionary[tuple[Any, int], Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()
BATCHED = re.compile(r"\bBatched\b")  # the name of a dispatch key


def at_end_of_pass(make: Callable[[], E]) -> E:
    """make(), once in the backward pass of this thread, which several threads may share; it is finished when the pass ends."""
    key = (make, torch._C._current_graph_task_id())
    with _lock:
        ending: E | None = _endings.get(key)
        if ending is None:
            ending = _endings[key] = make()
            # Only the engine's list of callbacks keeps it alive: that of a pass which fails is gone.
            torch.autograd.Variable._execution_engine.queue_callback(ending.finish)
    return ending


def is_wanted(ctx: Any, place: int) -> bool:
    """Whether this backward pass needs the gradient of an input, which `needs_input_grad` does not say."""
    if not ctx.needs_input_grad[place]:
        return False
    try:
        return torch._C._will_engine_execute_node(ctx.next_functions[place][0])
    except RuntimeError:  # torch.autograd.grad asks for a leaf, of which torch does not tell
        return True


def refuse_transforms() -> None:
    """Say what to do where torch.func.grad, vmap and the like reach an op that has only a backward pass."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise ArgumentError(
            "a LUT layer was called inside torch.func.grad, vmap or another transform of torch.func, expected a plain call: use "
            "loss.backward() or torch.autograd.grad, and for gradients of single samples one call for each"
        )


def refuse_batches(*grads: Tensor | None) -> None:
    """Say what to do where torch.autograd asks for several gradients at once: what it hands on then has no memory."""
    for grad in grads:
        try:
            if type(grad) is Tensor:
                grad.data_ptr()
        except RuntimeError:
            if BATCHED.search(str(torch._C._dispatch_keys(grad))):  # type: ignore[arg-type]
                raise ArgumentError(
                    "the gradients of a LUT layer were asked for in a batch (is_grads_batched=True, or vectorize=True of a "
                    "Jacobian), expected one at a time: leave that option out"
                ) from None


class Once(torch.autograd.Function):
    """A gradient that cannot be differentiated again, and the sentence that says so; sources are what it was made from, so that
    torch.autograd.grad, which walks only towards what it is asked for, comes by."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, why: str, *sources: Tensor) -> Tensor:
        same, ctx.why = gradient.view_as(gradient), why
        return same

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> NoReturn:
        raise LutetiaError(ctx.why)
