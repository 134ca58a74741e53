"""The arguments of the kernels that are called by name: bound, and checked before a backend sees them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from lutetia._shared.arguments import Arguments
from lutetia.errors import MAX_INT32, ArgumentError, check_int, fail
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


def takes(text: str) -> Callable[[F], F]:
    """Let a kernel be given its arguments by place or by name, and check them: `text` is as `Arguments` reads it."""
    arguments = Arguments(text, WHOLE)

    def decorate(kernel: F) -> F:
        @wraps(kernel)
        def call(self: Any, *args: Any, **how: Any) -> Any:
            device = torch.device("cpu") if self.name == "cpu" else None
            given = _checked(arguments.bind(kernel.__name__, args, how), arguments, device)
            return kernel(self, *given.values(), **how)

        call.takes = tuple(arguments.wanted)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _checked(given: dict[str, Any], arguments: Arguments, device: torch.device | None) -> dict[str, Any]:
    """The arguments, once they are known to fit each other; synapses as a checked copy of them."""
    sizes: dict[str, Any] = {}
    for name, value in given.items():
        if name in NUMBERS:
            size, least, most = NUMBERS[name]
            check_int(name, value, least, most)
            sizes[size] = value
        elif name == "synapses":
            given[name] = value = synapses_of(*check_tensors(value), value.header_text)
            sizes |= {"N_t": value.n_detectors, "R": value.n_rows, "O": value.n_outputs, "W": value.weight_shape}
            device = value.device
    arguments.fit(given, sizes, device, last="grad")  # which has to fit what it is the gradient of
    _relate(given, sizes)
    arguments.check_ends(given, sizes)
    return given


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
