"""Triton's interpreter, which does the same things again at each call: here it remembers them, which saves half of its time."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from typing import Any


def remember() -> None:
    """Once, before any kernel has run: while one runs, the language's own functions have others in their place."""
    if os.environ.get("TRITON_INTERPRET") != "1" or "triton.runtime.interpreter" not in sys.modules:
        return
    from triton.runtime import interpreter

    language = interpreter.tl
    places = [language, language.core, language.tensor, language.math, language.core.tensor_descriptor_base]
    names = {place: [name for name, member in inspect.getmembers(place) if language.core.is_builtin(member)] for place in places}

    def patch_builtin(place: Any, builder: Any, scope: Any) -> None:
        """Replace the functions of a module or a class, among all that it has, by those that compute at once."""
        for name in names[place]:
            member = getattr(place, name)
            if language.core.is_builtin(member):
                interpreter._patch_attr(place, name, member, builder, scope)

    dtypes: dict[str, Any] = {}
    dtype_of = interpreter._get_np_dtype

    def get_np_dtype(dtype: Any) -> Any:
        """numpy's name for a dtype, or for that of the elements of a block."""
        name = dtype.scalar.name
        if name not in dtypes:
            dtypes[name] = dtype_of(dtype)
        return dtypes[name]

    interpreter._patch_builtin, interpreter._get_np_dtype = patch_builtin, get_np_dtype
    replace_once_per_launch(interpreter)
    remember_shapes(language.core)
    builder = interpreter.interpreter_builder
    if not builder.options.debug:  # without it, what was found out about overflows is thrown away
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def replace_once_per_launch(interpreter: Any) -> None:
    """Replace the functions of the language's modules once in a launch, and not whenever its kernel calls another one."""
    launch, call = interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__
    replaced: list[frozenset[int]] = []  # the modules of the launch under way
    known: dict[Any, frozenset[int]] = {}

    def languages(function: Any) -> frozenset[int]:
        if function not in known:
            places = (interpreter.tl, interpreter.tl.core)
            known[function] = frozenset(
                id(place) for place in places if any(place is each for each in function.__globals__.values())
            )
        return known[function]

    def launch_once(self: Any, *arguments: Any, **named: Any) -> Any:
        replaced.append(languages(self.fn))
        try:
            return launch(self, *arguments, **named)
        finally:
            replaced.pop()

    def call_within(self: Any, *arguments: Any, **named: Any) -> Any:
        function = self.rewrite()
        if not replaced or not languages(function) <= replaced[-1]:
            if replaced:
                replaced[-1] |= languages(function)  # which this call replaces
            return call(self, *arguments, **named)
        try:
            return function(*arguments, **named)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter.GridExecutor.__call__, interpreter.InterpretedFunction.__call__ = launch_once, call_within


def remember_shapes(core: Any) -> None:
    """Make what a block's type and a tensor say of their shape once for each shape."""
    types: dict[tuple[str, tuple[int, ...]], tuple[Any, ...]] = {}
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple(shape.values if type(shape) is core.tuple else shape)
        known = types.get((element_ty.name, sizes)) if all(type(size) is int for size in sizes) else None
        if known is None:
            make_type(self, element_ty, shape)
            types[element_ty.name, tuple(self.shape.values)] = (self.shape, self.numel, self.name)
        else:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = known

    def tensor(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape.values) if type.is_block() else ()
        known = shapes.get(sizes)
        if known is None:
            make_tensor(self, handle, type)
            shapes[sizes] = (self.shape, self.numel)
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor
