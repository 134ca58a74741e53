"""Names for places in the graph: `checkpoint` marks a tensor, `watch` records which module made which nodes.

Both write into the graph itself (`grad_fn.metadata` lives and dies with its node), so `explain` needs no model.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils.hooks import RemovableHandle

from lutetia.errors import check_tensor, fail
from lutetia.relevance.graph import MODULES, WEIGHT, AutogradGraph
from lutetia.relevance.inputs import named_modules
from lutetia.relevance.replaced import watching_here
from lutetia.relevance.scripted import scripts_seen
from lutetia.relevance.seen import Constants, attention_seen, custom_functions_seen


class Checkpoint(torch.autograd.Function):
    """The identity, with a name."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str) -> Tensor:
        ctx.label = name
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


def checkpoint(x: Tensor, name: str) -> Tensor:
    """`x`, of any shape, marked: the relevance that passes here is kept under `name`. Costs nothing else."""
    check_tensor("x", x)
    if not isinstance(name, str) or not name:
        fail("name", name, "a name for the checkpoint")
    return Checkpoint.apply(x, name) if x.requires_grad and torch.is_grad_enabled() else x


@contextmanager
def watch(model: nn.Module) -> Iterator[None]:
    """While active, calls of the model record module names, and constants that autograd does not keep, in their graph.

    `explain` then knows `wrt=["layers.3"]`, `Rules.named` works, and the share of a constant in a sum is known.
    The model's own hooks are not touched.
    """
    if not isinstance(model, nn.Module):
        fail("model", model, "an nn.Module")
    modules = named_modules(model)
    names = {id(module): name for name, module in modules.items()}
    recurrent = {id(module) for module in modules.values() if isinstance(module, (nn.RNNBase, nn.RNNCellBase))}
    began: list[int] = []
    here = threading.get_ident()  # the hooks are called in all threads

    def before(module: nn.Module, inputs: object) -> None:
        if id(module) in names and threading.get_ident() == here:
            began.append(_get_sequence_nr())

    def after(module: nn.Module, inputs: object, output: object) -> None:
        name = names.get(id(module))
        if name is None or threading.get_ident() != here:
            return
        with torch._C.DisableTorchFunction():  # what is read here is no call of the model
            if module._forward_pre_hooks or isinstance(module, ParametrizationList):
                for weight in _computed_weights(module, output):
                    weight.grad_fn.metadata[WEIGHT] = True  # type: ignore[index, union-attr]
            _mark(name, began.pop(), output, id(module) in recurrent)

    handles: list[RemovableHandle] = [
        nn.modules.module.register_module_forward_pre_hook(before),
        nn.modules.module.register_module_forward_hook(after, always_call=False),
    ]
    try:
        with operations_seen():
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def operations_seen() -> Iterator[None]:
    """While active, models record what autograd does not keep, and not which module ran when."""
    with watching_here(), Constants(), attention_seen(), custom_functions_seen(), scripts_seen():
        yield


def _computed_weights(module: nn.Module, output: object) -> list[Tensor]:
    """Weights that a call of a module computed: what a parametrisation returned, or what the hook of a spectral norm left."""
    made = [output] if isinstance(module, ParametrizationList) else []
    made += [getattr(module, hook.name) for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
    return [each for each in made if isinstance(each, Tensor) and each.grad_fn is not None]


def _mark(name: str, start: int, output: object, recurrent: bool) -> None:
    """Mark the nodes of a module's outputs with its name: the first is "name", the others "name:1" and so on."""
    end, place = _get_sequence_nr(), 0
    for tensor in (output,) if isinstance(output, Tensor) else _tensors(output):
        fn: Any = tensor.grad_fn
        if fn is not None:
            label = f"{name}:{place}" if place else name
            fn.metadata.setdefault(MODULES, []).append((label, name, start, end, tensor.output_nr, recurrent))
            place += 1


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


class Modules:
    """Which module ran when, by the numbers that autograd gives to nodes one after the other."""

    def __init__(self, spans: Iterable[tuple[int, int, str, bool]]) -> None:
        """`spans`: of each call of a module the number before its first node, the one after its last, its name, whether it is
        recurrent."""
        self._spans = sorted(set(spans), key=lambda span: (span[0], -span[1]))
        self._starts = [span[0] for span in self._spans]
        self._around: list[int] = []  # which call a call lies in
        around: list[int] = []
        for at, (start, _, _, _) in enumerate(self._spans):
            while around and self._spans[around[-1]][1] <= start:
                around.pop()
            self._around.append(around[-1] if around else -1)
            around.append(at)
        self.recurrent = any(span[3] for span in self._spans)

    def around(self, number: int) -> tuple[str, bool]:
        """The innermost module that a node ran in, and whether it is recurrent."""
        at = bisect.bisect_right(self._starts, number) - 1
        while at >= 0 and self._spans[at][1] <= number:
            at = self._around[at]
        return self._spans[at][2:] if at >= 0 else ("", False)


def read_names(graph: AutogradGraph) -> dict[str, list[tuple[Any, int]]]:
    """The (node, output number) of each name; nodes can say from then on which module they ran in."""
    named: dict[str, list[tuple[Any, int]]] = {}
    spans: list[tuple[int, int, str, bool]] = []
    for node in graph.nodes:
        if node.name == "CheckpointBackward":
            named.setdefault(node.fn.label, []).append((node, 0))
        if node.notes:
            for label, name, start, end, nr, recurrent in node.notes.get(MODULES, ()):
                named.setdefault(label, []).append((node, nr))
                spans.append((start, end, name, recurrent))
    if spans:
        modules = Modules(spans)
        for node in graph.nodes:
            node.modules = modules
        if modules.recurrent:
            for node in graph.nodes:
                node.recurrent = modules.around(node.fn._sequence_nr())[1]
    return named
