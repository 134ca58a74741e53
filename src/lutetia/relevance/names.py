"""Names for places in the graph: `checkpoint` marks a tensor, `watch` notes which module made which nodes.

Both write into the graph itself (`grad_fn.metadata` lives and dies with its node), so `explain` needs no model.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from lutetia.errors import check_tensor, fail
from lutetia.relevance.graph import CONSTANT, MODULES, Graph


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
    """While open, calls of the model leave module names, and the constants autograd does not keep, in the graph they make.

    `explain` then knows `wrt=["layers.3"]`, `Rules.named` works, and the share of a constant in a sum is known.
    The model's own hooks are not touched.
    """
    if not isinstance(model, nn.Module):
        fail("model", model, "an nn.Module")
    names = {id(module): name for name, module in model.named_modules()}
    began: list[int] = []

    def before(module: nn.Module, inputs: Any) -> None:
        if id(module) in names:
            began.append(_get_sequence_nr())

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if id(module) in names:
            _mark(names[id(module)], began.pop(), output)

    handles: list[RemovableHandle] = [
        nn.modules.module.register_module_forward_pre_hook(before),
        nn.modules.module.register_module_forward_hook(after, always_call=False),
    ]
    try:
        with Constants():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _mark(name: str, start: int, output: Any) -> None:
    """Note at the nodes of a module's outputs that it made them: the first bears its name, the others "name:1" and so on."""
    end, place = _get_sequence_nr(), 0
    for tensor in _tensors(output):
        if tensor.grad_fn is not None:
            label = f"{name}:{place}" if place else name
            tensor.grad_fn.metadata.setdefault(MODULES, []).append((label, name, start, end, tensor.output_nr))  # type: ignore[attr-defined]
            place += 1


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


class Constants(TorchFunctionMode):
    """Keeps the other operands of sums and fills, which do not require grad: masks, scalars, frozen biases."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _WATCHED and isinstance(result, Tensor) and result.grad_fn is not None:
            _note_constant(name, result.grad_fn, args, kwargs)
        return result


_SUMS = frozenset(
    {"add", "__add__", "__radd__", "add_", "__iadd__", "sub", "__sub__", "__rsub__", "rsub", "sub_", "__isub__", "subtract"}
)
_FILLS = frozenset({"masked_fill", "masked_fill_", "where"})
_LINEAR = frozenset(
    {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "addmm", "baddbmm"}
)
_ATTENTION = "scaled_dot_product_attention"
_WATCHED = _SUMS | _FILLS | _LINEAR | {_ATTENTION}


def _note_constant(name: str, fn: Any, args: Any, kwargs: Any) -> None:
    if name == _ATTENTION:
        constant = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        found = _sum_below(fn) if isinstance(constant, Tensor) and constant.is_floating_point() else None
        if found is None:
            return
        fn = found
    elif name in _LINEAR:
        first = name in ("addmm", "baddbmm")
        constant = args[0] if first else kwargs.get("bias", args[2] if len(args) > 2 else None)
        fn = _behind_views(fn)
    elif name in _SUMS:
        constant = next((arg for arg in (*args[:2], *_named(kwargs)) if not _has_node(arg)), None)
    else:
        constant = next((arg for arg in (*args[:3], *_named(kwargs)) if not _has_node(arg) and not _is_mask(arg)), None)
    if constant is not None and not _has_node(constant):
        fn.metadata[CONSTANT] = constant


def _sum_below(fn: Any) -> Any:
    """Where attention that runs in parts adds its mask: the first sum on the way from its output to its scores."""
    for _ in range(10):
        if fn is None or fn.name() == "AddBackward0":
            return fn
        fn = fn.next_functions[0][0] if fn.next_functions else None
    return None


def _named(kwargs: Any) -> list[Any]:
    return [kwargs[name] for name in ("input", "other", "value") if name in kwargs]


def _has_node(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def _behind_views(fn: Any) -> Any:
    """The node of the operation itself: `linear` on three dimensions ends in a view."""
    while (
        fn.name() in ("ViewBackward0", "UnsafeViewBackward0", "SqueezeBackward1", "ReshapeAliasBackward0")
        and fn.next_functions[0][0]
    ):
        fn = fn.next_functions[0][0]
    return fn


def read_names(graph: Graph) -> dict[str, list[tuple[Any, int]]]:
    """The (node, output number) of each name; also sets the innermost module that each node ran in."""
    named: dict[str, list[tuple[Any, int]]] = {}
    spans: list[tuple[int, int, str]] = []
    for node in graph.nodes:
        if node.name == "CheckpointBackward":
            named.setdefault(node.fn.label, []).append((node, 0))
        for label, name, start, end, nr in node.fn.metadata.get(MODULES, ()):
            named.setdefault(label, []).append((node, nr))
            spans.append((start, end, name))
    if spans:
        # A module's nodes are numbered within its span; the shortest span that holds a node is the innermost module.
        spans = sorted(set(spans), key=lambda span: (span[0], -span[1]))
        ordered = sorted((node.fn._sequence_nr(), place) for place, node in enumerate(graph.nodes))
        inside: list[tuple[int, int, str]] = []
        at = 0
        for number, place in ordered:
            while at < len(spans) and spans[at][0] <= number:
                inside.append(spans[at])
                at += 1
            while inside and inside[-1][1] <= number:
                inside.pop()
            graph.nodes[place].outer = inside[-1][2] if inside else ""
    return named
