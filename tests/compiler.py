"""numba's compiler without what nobody asks for, which is a twentieth of its time; the code that it makes is the same."""

from __future__ import annotations

from typing import Any


def quicken() -> None:
    """Once, in a process that imports numba for others."""
    from numba.core import codegen, event, targetconfig

    event.start_event = event.end_event = lambda *_, **__: None  # nobody listens
    compare_settings(targetconfig.TargetConfig)
    leave_declarations(codegen.CPUCodeLibrary)


def compare_settings(settings: Any) -> None:
    """Settings that were given alike are equal; only others are compared one by one, with their defaults."""
    compare = settings.__eq__

    def equal(self: Any, other: Any) -> Any:
        return (type(self) is type(other) and self._values == other._values) or compare(self, other)

    settings.__eq__ = equal
    settings.__hash__ = lambda self: hash(type(self))  # numba's is of the names of all settings: not their values either


def leave_declarations(library: Any) -> None:
    """Make no passes over functions that are only declared, which most are."""

    def optimize_functions(self: Any, module: Any) -> None:
        module.data_layout = self._codegen._data_layout
        for function in module.functions:
            if not function.is_declaration:
                passes, builder = self._codegen._function_pass_manager()
                passes.run(function, builder)

    library._optimize_functions = optimize_functions
