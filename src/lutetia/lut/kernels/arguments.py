"""The arguments of the kernels that are called by name: bound, and checked before a backend sees them.

A compiled loop trusts its arguments: with sizes that do not fit, or an index past the end of a table, it would read or write out
of bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lutetia._shared.dtypes import FLOATS, INTEGER_DTYPES
from lutetia.errors import MAX_INT32, ArgumentError, check_int, check_memory, check_tensor, fail
from lutetia.lut.connectivity.anchors import MAX_ANCHORS
from lutetia.lut.connectivity.full import check_tensors, synapses_of

F = TypeVar("F", bound=Callable[..., Any])

# What `takes` reads. W stands for the shape of a weight, which the connectivity knows.
DETECTED = "indices B N_t <R, min_delta B N_t, min_delta_index B N_t <N_c, anchors N_t N_c 2, n_inputs"
SEQUENCE = "indices B S N_t <Q, pe_indices S-1 N_t <PE, positional_dim"
SEQUENCE_DETECTED = (
    "indices B S N_t <Q, min_delta B S N_t, min_delta_index B S N_t <N_c, pe_indices S-1 N_t <PE, pe_min_delta S-1 N_t, "
    "pe_min_delta_index S-1 N_t <N_pe, anchors N_t N_c 2, n_inputs, positional_dim"
)
ROWS = "indices B N_t <R, alternatives? B N_t <R, a B N_t, b? B N_t"
LOGS = "log_beta? [], log_gamma? [], log_tau? []"

# The arguments that are numbers: the name of the size that each gives, the least, and the most.
NUMBERS = {
    "n_inputs": ("I", 2, MAX_INT32),
    "n_rows": ("R", 1, 2**MAX_ANCHORS),
    "positional_dim": ("bits", 0, MAX_ANCHORS),
    "n_anchors": ("N_c", 1, MAX_ANCHORS),
    "batch": ("B", 0, MAX_INT32),
    "length": ("S", 1, MAX_INT32),
}
WHOLE = ("indices", "alternatives", "min_delta_index", "pe_indices", "pe_min_delta_index", "anchors", "stat")  # of integers


class Wanted(NamedTuple):
    """What an argument must be."""

    optional: bool  # whether it may be None
    shape: list[str]  # sizes, by name; empty for what is no tensor
    end: str  # the size below which its values must be, or ""


def takes(arguments: str) -> Callable[[F], F]:
    """Let a kernel be given its arguments by place or by name, and check them: `"name size size <end, name? size, ..."`.

    A size is a number, or a name that stands for the same number everywhere; `...` is any number of sizes, `[]` none. What has a
    `?` may be None, `<` says below which size the values must be.
    """
    wanted = dict(_wanted(argument.split()) for argument in arguments.split(", "))

    def decorate(kernel: F) -> F:
        @wraps(kernel)
        def call(self: Any, *args: Any, **how: Any) -> Any:
            if len(args) > len(wanted):
                raise TypeError(f"{kernel.__name__}() takes {len(wanted)} arguments by place, but {len(args)} were given")
            given = dict(zip(wanted, args, strict=False))
            for name in [*wanted][len(args) :]:
                if name not in how:
                    raise TypeError(f"{kernel.__name__}() is missing the argument {name!r}")
                given[name] = how.pop(name)
            return kernel(self, *_checked(given, wanted, "cpu" if self.name == "cpu" else None).values(), **how)

        call.takes = tuple(wanted)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _wanted(words: list[str]) -> tuple[str, Wanted]:
    name, *sizes = words
    end = sizes.pop()[1:] if sizes and sizes[-1].startswith("<") else ""
    return name.rstrip("?"), Wanted(name.endswith("?"), sizes, end)


def _checked(given: dict[str, Any], wanted: dict[str, Wanted], device: str | None) -> dict[str, Any]:
    """The arguments, once they are known to fit each other; synapses as a checked copy of them."""
    sizes: dict[str, Any] = {}
    where = None if device is None else torch.device(device)
    for name, value in given.items():
        if name in NUMBERS:
            size, least, most = NUMBERS[name]
            check_int(name, value, least, most)
            sizes[size] = value
        elif name == "synapses":
            given[name] = value = synapses_of(*check_tensors(value), value.header_text)
            sizes |= {"N_t": value.n_detectors, "R": value.n_rows, "O": value.n_outputs, "W": value.weight_shape}
            where = value.device
    for name in sorted(wanted, key="grad".__eq__):  # a gradient last: it has to fit what it is the gradient of
        optional, shape, _ = wanted[name]
        if shape and not (optional and given[name] is None):
            _fit(name, given[name], shape, sizes, where)
            where = given[name].device
    _relate(given, sizes)
    for name, (_, _, end) in wanted.items():
        if end in sizes and given[name] is not None:
            check_below(f"{name} are", given[name], sizes[end])
    return given


def _fit(name: str, tensor: Any, shape: list[str], sizes: dict[str, Any], device: torch.device | None) -> None:
    """Check one tensor, and learn the sizes that were not known."""
    if shape == ["W"]:
        names: list[Any] = list(sizes["W"])
    else:
        known = sizes if "S" not in sizes else sizes | {"S-1": sizes["S"] - 1}
        names = [known.get(size, int(size) if size.isdigit() else size) for size in shape if size != "[]"]
    check_tensor(name, tensor, names, INTEGER_DTYPES if name in WHOLE else FLOATS, device)
    check_memory(name, tensor)
    if shape[0] not in ("...", "W"):
        sizes.update((size, n) for size, n in zip(shape, tensor.shape, strict=False) if not size.isdigit())


def _relate(given: dict[str, Any], sizes: dict[str, Any]) -> None:
    """Check that a table has the rows that anchors and positions can name: Q and PE are how many each of these can be."""
    n_rows, n_anchors, n_pe = sizes.get("R"), sizes.get("N_c"), sizes.get("bits")
    if n_anchors is not None and not 1 <= n_anchors <= MAX_ANCHORS:
        fail("anchors", given["anchors"], f"1 to {MAX_ANCHORS} anchor pairs per detector")
    if n_rows == 0:
        fail("weight", given["weight"], "tables that have rows")
    if n_pe is None:
        if n_rows is not None and n_anchors is not None and n_rows != 1 << n_anchors:
            raise ArgumentError(
                f"a table has {n_rows} rows, expected {1 << n_anchors}: 2**N_c, and anchors have N_c = {n_anchors}"
            )
        return
    if n_anchors is None:
        assert n_rows is not None
        n_anchors = (n_rows.bit_length() - 1 - n_pe) // 2
    if n_anchors < 1 or 2 * n_anchors + n_pe > MAX_ANCHORS or n_rows not in (None, 1 << (2 * n_anchors + n_pe)):
        raise ArgumentError(
            f"a table has {n_rows} rows, expected 2**(2 N_c + {n_pe}) of them: for N_c anchor pairs, at least one, and no more "
            f"than 2**{MAX_ANCHORS}"
        )
    sizes |= {"Q": 1 << n_anchors, "PE": 1 << n_pe, "N_pe": max(n_pe, 1)}


def check_below(what: str, values: Tensor, end: int) -> None:
    """Check that values [...] are from 0 to end - 1, where they can be read without waiting for a device.

    `what` and its verb begin the message.
    """
    if values.device.type == "cpu" and values.numel():
        low, high = (int(each) for each in values.aminmax())
        if low < 0 or high >= end:
            raise ArgumentError(f"{what} from {low} to {high}, expected 0 to {end - 1}")
