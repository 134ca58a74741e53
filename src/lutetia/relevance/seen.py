"""What `watch` records because autograd does not keep it: constants, writes into slices, values without a rule."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lutetia.relevance.graph import CONSTANT, OPERANDS, OUTPUT, SMALL, VALUE, WRITE
from lutetia.relevance.opened import is_opened, run_open
from lutetia.relevance.registry import wants_output
from lutetia.relevance.replaced import replaced, watching


class Constants(TorchFunctionMode):
    """Keeps the other operands of sums and fills, which do not require grad: masks, scalars, frozen biases."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _QUIET:
            return func(*args, **kwargs) if kwargs else func(*args)
        if func in _PRODUCTS and not kwargs:  # the most frequent of those that are recorded
            result = func(*args)
            fn: Any = result.grad_fn
            if fn is not None:
                note_constant("linear", fn, args, {})
                _behind_views(fn).metadata[OUTPUT] = KeptTensor(result)
            return result
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        writes = name in _IN_PLACE or (name.endswith("_") and not name.startswith("_"))
        before = _constant_base(args) if writes else None
        result = func(*args, **kwargs)
        if writes:
            _note_write(func, args, kwargs, before)
        fn = result.grad_fn if isinstance(result, Tensor) else None
        if fn is not None:
            if name in _WATCHED:
                note_constant(name, fn, args, kwargs)
                if name in _LAYERS:
                    _behind_views(fn).metadata[OUTPUT] = KeptTensor(result)
                elif name in _SUMS and not writes and result.numel() <= SMALL:
                    fn.metadata[OPERANDS] = [KeptTensor(arg) if _has_node(arg) else None for arg in args[:2]]
            elif name not in _FAMILIAR:
                if wants_output(fn.name()):
                    note_value(fn, result)
                else:
                    _FAMILIAR.add(name)
            elif not writes and isinstance(func, _BUILT_IN):
                _QUIET.add(func)
        elif name == "__get__" and not isinstance(result, Tensor):
            _QUIET.add(func)
        return result


class KeptTensor:
    """A value that a rule will read. It shares the tensor's memory, and counts as lost once that is overwritten."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self._version = self._tensor._version

    def value(self) -> Tensor | None:
        """The tensor as it was; None if something was written into it."""
        return self._tensor if self._tensor._version == self._version else None


# ---- writes into slices ------------------------------------------------------------------------------------------------

_IN_PLACE = frozenset({"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__"})
_OPERAND = object()  # stands for an argument that has a node


class Write:
    """An in-place operation on a view of a base, to be repeated: the view's place in the base, and constant arguments."""

    def __init__(
        self, func: Callable[..., Any], view: Tensor, base: Tensor, args: Any, kwargs: Any, before: Tensor | None
    ) -> None:
        self._func, self._before = func, before
        self.adds = getattr(func, "__name__", "") in _ADDING  # whether what was there before is part of a sum
        self._view = (view.size(), view.stride(), view.storage_offset() - base.storage_offset())
        self._base = (base.size(), base.stride(), base.dtype, base.device)
        # Tensors with a node come by the graph. Kept here, one that shares the base would keep its own graph alive.
        self._args = [_OPERAND if _has_node(arg) else arg for arg in args[1:]]
        self._kwargs = {name: _OPERAND if _has_node(arg) else arg for name, arg in kwargs.items()}
        self.operands = sum(arg is _OPERAND for arg in (*self._args, *self._kwargs.values()))

    def again(self, args: Any) -> Tensor:
        """The base after the write, from its value before and the operands with a node."""
        size, stride, dtype, device = self._base
        base = torch.empty_strided(size, stride, dtype=dtype, device=device)
        start = self._before if args[0] is None else args[0]
        base.copy_(start) if start is not None else base.zero_()
        operands = iter([arg for arg in args[1:] if arg is not None])
        places = [next(operands) if arg is _OPERAND else arg for arg in self._args]
        named = {name: next(operands) if arg is _OPERAND else arg for name, arg in self._kwargs.items()}
        with torch.no_grad():
            self._func(base.as_strided(*self._view), *places, **named)
        return base


def _base_of(args: Any) -> Tensor | None:
    if not args or not isinstance(args[0], Tensor):
        return None
    view = args[0]
    return view._base if view._is_view() else view


def _constant_base(args: Any) -> Tensor | None:
    """The value of a base that has no node yet, before something with a node is written into it."""
    base = _base_of(args)
    if base is None or base.requires_grad or not any(_has_node(arg) for arg in args[1:]):
        return None
    return base.detach().clone()


def _note_write(func: Callable[..., Any], args: Any, kwargs: Any, before: Tensor | None) -> None:
    base = _base_of(args)
    if base is None or base.grad_fn is None:
        return
    if base.grad_fn.name().endswith("CopySlices"):
        base.grad_fn.metadata[WRITE] = Write(func, args[0], base, args, kwargs, before)  # type: ignore[index]
    elif before is not None and base is args[0]:  # a constant that something with a node was added to, or written into
        base.grad_fn.metadata[CONSTANT] = before  # type: ignore[index]


# ---- values of operations without a rule -------------------------------------------------------------------------------

_FAMILIAR: set[str] = set()  # names of functions whose outputs no rule wants
_QUIET: set[Any] = set()  # functions and attributes that nothing is recorded of: most calls of a model
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)


def note_value(fn: Any, result: Tensor) -> None:
    """Keep the output of an operation at its node."""
    fn.metadata[VALUE] = KeptTensor(result)


@contextmanager
def attention_seen() -> Iterator[None]:
    """While active, `F.multi_head_attention_forward` is recorded operation by operation, like every other function."""

    def make(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
        return lambda tensors: not watching() and original(tensors)

    with replaced(torch.nn.functional, "has_torch_function", make):
        yield


@contextmanager
def custom_functions_seen() -> Iterator[None]:
    """While active, custom autograd functions without a rule keep their output in the graph, or run as their operations."""
    with replaced(_APPLIES, "apply", lambda original: classmethod(_apply)), replaced(_META, "__getattribute__", _look_up):
        yield


_META = type(torch.autograd.Function)
_SINGLE = torch.autograd.function._SingleLevelFunction
_APPLIES: Any = _SINGLE if isinstance(torch.autograd.Function.apply, types.MethodType) else torch.autograd.Function  # torch 2.15
_NO_SET_UP = _SINGLE.setup_context
_RUN = torch._C._FunctionBase.__dict__["apply"]


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`apply` of a custom function."""
    return run_open(cls, args) if watching() and is_opened(cls) else _RUN.__get__(None, cls)(*args, **kwargs)


def _look_up(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """What finds an attribute of a custom function. torch looks for these at each call, even where `apply` was bound before."""

    def look_up(cls: Any, name: str) -> Any:
        value = original(cls, name)
        if name not in ("forward", "setup_context") or not watching():
            return value
        has_context = original(cls, "setup_context") is _NO_SET_UP  # forward is given it
        if name == "forward":
            return partial(_forward, value) if has_context else value
        return value if has_context else partial(_set_up, value)

    return look_up


def _forward(forward: Callable[..., Any], ctx: Any, *args: Any) -> Any:
    output = forward(ctx, *args)
    _note_output(ctx, output)
    return output


def _set_up(setup_context: Callable[..., Any], ctx: Any, inputs: Any, output: Any) -> Any:
    _note_output(ctx, output)
    return setup_context(ctx, inputs, output)


def _note_output(ctx: Any, output: Any) -> None:
    """Keep what a custom function gives at its node, which its context is."""
    if isinstance(output, Tensor) and isinstance(ctx, torch.autograd.graph.Node) and wants_output(ctx.name()):
        note_value(ctx, output)


# ---- constants ---------------------------------------------------------------------------------------------------------

_SUMS = frozenset(
    {"add", "__add__", "__radd__", "add_", "__iadd__", "sub", "__sub__", "__rsub__", "rsub", "sub_", "__isub__", "subtract"}
)
_ADDING = _SUMS | {"index_add_", "scatter_add_"}
_FILLS = frozenset({"masked_fill", "masked_fill_", "where"})
_LINEAR = frozenset(
    {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "addmm", "baddbmm"}
    | {"convolution"}
)
_LAYERS = frozenset({"linear", "addmm"})  # whose outputs are worth keeping: a rule would multiply matrices again for them
_PRODUCTS = frozenset({torch.nn.functional.linear})
_ATTENTION = "scaled_dot_product_attention"
_JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
_PLACES = frozenset({"index_add", "index_copy", "index_put", "masked_scatter", "scatter", "scatter_add", "scatter_reduce"})
_LOSS = "cross_entropy"
_WATCHED = _SUMS | _FILLS | _LINEAR | _JOINS | _PLACES | {_ATTENTION, _LOSS}


def note_constant(name: str, fn: Any, args: Any, kwargs: Any) -> None:
    """Keep an operand that has no node at the node of its operation, if constants of that operation take a share."""
    if name not in _WATCHED:
        return
    if name == "linear":
        constant: Any = kwargs.get("bias", args[2] if len(args) > 2 else None)
        if constant is None or constant.requires_grad:
            return
        fn = _behind_views(fn)
    elif name in _JOINS:
        tensors = args[0] if args else kwargs.get("tensors", ())
        constant = [None if _has_node(tensor) else tensor for tensor in tensors]
        constant = constant if any(tensor is not None for tensor in constant) else None
    elif name == _ATTENTION:
        place = _sum_below(fn)
        if place is None:
            return
        fn, constant = place, _mask(args, kwargs)
    elif name in _LINEAR:
        first = name in ("addmm", "baddbmm")
        constant = args[0] if first else kwargs.get("bias", args[2] if len(args) > 2 else None)
        fn = _behind_views(fn)
    elif name == _LOSS:
        fn, constant = _first_below(fn, "MaskedFillBackward0"), 0.0  # rows that smoothing leaves out count as 0
        if fn is None:
            return
    elif name in _PLACES:
        base = args[0] if args else kwargs.get("input")
        constant = None if _has_node(base) else base
    elif name in _SUMS:
        if len(args) == 2 and _has_node(args[0]) and _has_node(args[1]):
            return
        constant = next((arg for arg in (*args[:2], *_named(kwargs)) if not _has_node(arg)), None)
    else:
        constant = next((arg for arg in (*args[:3], *_named(kwargs)) if not _has_node(arg) and not _is_mask(arg)), None)
    if constant is not None and not _has_node(constant):
        fn.metadata[CONSTANT] = constant


def _sum_below(fn: Any) -> Any:
    """Where attention that runs in parts adds its mask: the first sum on the way from its output to its scores."""
    for _ in range(10):
        if fn is None or fn.name().startswith("ScaledDotProduct"):  # which keeps its mask, or has none
            return None
        if fn.name() == "AddBackward0":
            return fn if any(child is None for child, _ in fn.next_functions) else None
        fn = fn.next_functions[0][0] if fn.next_functions else None
    return None


def _first_below(fn: Any, name: str) -> Any:
    """The first node of this name among the nodes of one function, breadth first; None where there is none."""
    level = [fn]
    for _ in range(8):
        match = next((node for node in level if node.name() == name), None)
        if match is not None:
            return match
        level = [child for node in level for child, _ in node.next_functions if child is not None]
    return None


def _mask(args: Any, kwargs: Any) -> Tensor | None:
    """The attention mask as it is added to the scores: -∞ where a key is masked."""
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    query, key = args[0] if args else kwargs["query"], args[1] if len(args) > 1 else kwargs["key"]
    if mask is None and kwargs.get("is_causal", args[5] if len(args) > 5 else False):
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)


def _named(kwargs: Any) -> list[Any]:
    return [kwargs[name] for name in ("input", "other", "value") if name in kwargs]


def _has_node(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _is_mask(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool


def _behind_views(fn: Any) -> Any:
    """The node of the operation itself: `linear` on three dimensions ends in a view."""
    while fn.name() in _VIEWS and (below := fn.next_functions[0][0]) is not None:
        fn = below
    return fn


_VIEWS = frozenset({"ViewBackward0", "UnsafeViewBackward0", "SqueezeBackward1", "ReshapeAliasBackward0"})
