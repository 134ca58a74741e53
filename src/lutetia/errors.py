"""What can go wrong, as a few kinds of error, and the checks that raise them.

Every message is one sentence that shows the offending value and says what was expected.
torch is imported by the checks, not by the module: the command line raises errors long before it needs tensors.
"""

from __future__ import annotations

import difflib
import importlib
import numbers
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    import torch

MAX_INT32 = 2**31 - 1
MOST_NAMES = 20  # that a message lists
LONGEST_FOREIGN = 200
LONGEST_REPR = 100  # a message is for reading: a list of a million numbers is cut here


class LutetiaError(Exception):
    """The parent of every error that Lutetia raises on purpose."""

    kind: ClassVar[str] = "error"  # what `lutetia --json` calls it


class ArgumentError(LutetiaError, ValueError):
    """An argument has the wrong shape, dtype, device or value."""

    kind = "argument"


class MissingFeatureError(LutetiaError, ImportError):
    """A feature needs a package or a program that is not installed."""

    kind = "missing_feature"


class DataError(LutetiaError):
    """A file is missing, truncated, damaged or of another kind."""

    kind = "data"


class OverflowInSumError(LutetiaError, ArithmeticError):
    """A fixed-point sum left the range of its integers."""

    kind = "overflow"


class JobError(LutetiaError):
    """A job of the command line ran and failed."""

    kind = "job"


class RankError(LutetiaError, RuntimeError):
    """Another process did not take part in an exchange: it ended, failed, or took longer than the time-out."""

    kind = "rank"


def describe(value: object) -> str:
    """A tensor as `float32 [2, 3] on cpu`, anything else as its repr, cut when it is long."""
    import torch

    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} {'of nested tensors' if value.is_nested else list(value.shape)} on {value.device}"
    text = repr(value)
    return text if len(text) <= LONGEST_REPR else text[: LONGEST_REPR - 1] + "…"


def in_one_line(error: BaseException) -> str:
    """An error of somebody else's code: its kind and its words, on one line, cut where they are long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_FOREIGN]


def fail(name: str, value: object, expected: str) -> NoReturn:
    """Raise the sentence that all argument checks share."""
    raise ArgumentError(f"{name} is {describe(value)}, expected {expected}")


def check_tensor(
    name: str,
    value: object,
    shape: Sequence[int | str | None] | None = None,
    dtype: torch.dtype | Sequence[torch.dtype] | None = None,
    device: torch.device | None = None,
) -> None:
    """Check a tensor argument.

    `shape` holds a size per dimension: a number must match, a string names a free size, None is free;
    a leading `...` allows any batch dimensions. `dtype` is one dtype or several allowed ones.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        fail(name, value, "a tensor")
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        fail(name, value, f"a dense tensor, not one of layout {layout}")
    if shape is not None and not _shape_fits(value.shape, shape):
        fail(name, value, f"shape [{', '.join('*' if size is None else str(size) for size in shape)}]")
    if dtype is not None and value.dtype is not dtype:
        allowed = (dtype,) if isinstance(dtype, torch.dtype) else dtype
        if value.dtype not in allowed:
            fail(name, value, "dtype " + " or ".join(str(d).removeprefix("torch.") for d in allowed))
    if device is not None and value.device != device:
        fail(name, value, f"a tensor on {device}")


def check_memory(name: str, value: torch.Tensor) -> None:
    """Check that a tensor holds numbers: those of the meta device have shapes alone."""
    if value.is_meta:
        fail(name, value, "a tensor that has memory")


def _shape_fits(actual: Sequence[int], wanted: Sequence[int | str | None]) -> bool:
    if wanted and wanted[0] == "...":
        wanted = wanted[1:]
        if len(actual) < len(wanted):
            return False
        actual = actual[len(actual) - len(wanted) :]
    if len(actual) != len(wanted):
        return False
    for a, w in zip(actual, wanted, strict=True):  # noqa: SIM110  (`all` takes twice as long, and every call of a layer asks)
        if a != w and isinstance(w, int):
            return False
    return True


def check_module(name: str, value: object) -> None:
    """Check that a value is a module of torch."""
    import torch

    if not isinstance(value, torch.nn.Module):
        fail(name, value, "a torch.nn.Module")


def check_choice(name: str, value: object, choices: Sequence[Any]) -> None:
    """Check that a value is one of a few."""
    if not any(value is each or (isinstance(value, type(each)) and value == each) for each in choices):
        fail(name, value, "one of " + ", ".join(map(repr, choices)))


def did_you_mean(word: object, names: Collection[str]) -> str:
    """The most similar name, or the first of them if none is similar: the end of a message about an unknown name."""
    if not names:
        return "none has a name"
    near = nearest(word, names)
    more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
    return f"expected one of {', '.join(list(names)[:MOST_NAMES])}{more}" if near is None else f"did you mean {near}?"


def nearest(word: object, names: Collection[str]) -> str | None:
    """The name that was probably meant: the same in another case, or the most similar; None if none is similar."""
    same = [name for name in names if name.casefold() == str(word).casefold()]
    return next(iter(same or difflib.get_close_matches(str(word), names, n=1)), None)


def check_range(name: str, value: Any, low: float | None = None, high: float | None = None) -> None:
    """Check that a number lies within [low, high]; None leaves an end open. NaN never does."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool) and value == value
    if not number or not ((low is None or value >= low) and (high is None or value <= high)):
        fail(name, value, f"a number{_bounds(low, high)}")


def check_int(name: str, value: Any, low: int = 0, high: int = MAX_INT32) -> None:
    """Check that a value is an integer within [low, high]."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        fail(name, value, f"an integer from {low} to {high}")


def _bounds(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""


def require(module: str, feature: str, package: str | None = None) -> ModuleType:
    """Import an optional module, or say which feature needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module.split(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] == module.split(".")[0]
        state = "is not installed" if absent else f"cannot be imported ({error})"
        raise MissingFeatureError(f"{feature} needs {package}, which {state}: pip install {package}") from error
