"""Tensors of a kernel that belong together and are not equally long: refused by name, before a loop reads past the shorter one.

Kernels that are called by name check this, and the compiled primitives behind them, which torch's ops call, check it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_cases import make_layer
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.lut import kernels
from lutetia.lut.connectivity.anchors import Comparisons
from lutetia.lut.kernels.protocol import Coefficients, Detected, Read
from lutetia.lut.sums import Sums
from tools import require_module

require_module("numba")
LAYER = make_layer((5, 6, 4, 7, 3))
DETECTED = kernels("reference").check_detectors(LAYER.x, LAYER.anchors)
LOGS = tuple(torch.zeros(()) for _ in range(3))
PARTS: dict[str, Tensor] = {
    **dict(zip(("indices", "min_delta", "min_delta_index"), DETECTED, strict=True)),
    "alternatives": DETECTED[0] ^ 1,
    **{name: torch.rand(5, 7) for name in ("a", "b", "da", "db")},
}
Parts = dict[str, Tensor]

# What each takes, and calls of it with these.
NAMED: dict[str, tuple[str, Callable[[Any, Parts], object]]] = {
    "fill_outputs_weighted_fc": (
        "alternatives a b",
        lambda k, p: k.fill_outputs_weighted_fc(LAYER.weight, p["indices"], p["alternatives"], p["a"], p["b"], two=True),
    ),
    "row_gains_fc": (
        "alternatives",
        lambda k, p: k.row_gains_fc(LAYER.grad, LAYER.weight, p["indices"], p["alternatives"], for_b=True),
    ),
    "gather_weighted_gradients_fc": (
        "alternatives a b",
        lambda k, p: k.gather_weighted_gradients_fc(LAYER.grad, p["indices"], p["alternatives"], p["a"], p["b"], 8, two=True),
    ),
    "gather_weighted_rows_fc": (
        "alternatives a b",
        lambda k, p: k.gather_weighted_rows_fc(LAYER.grad, p["indices"], p["alternatives"], p["a"], p["b"], 8, two=True),
    ),
    "propagate_through_detectors_fc": (
        "min_delta min_delta_index",
        lambda k, p: k.propagate_through_detectors_fc(
            LAYER.grad, LAYER.weight, p["indices"], p["min_delta"], p["min_delta_index"], LAYER.anchors, 6
        ),
    ),
    "propagate_through_reads": (
        "da db",
        lambda k, p: k.propagate_through_reads(LAYER.x, LAYER.anchors, *LOGS, p["da"], p["db"], read="confidence2"),
    ),
}
COMPILED: dict[str, tuple[str, Callable[[Any, Parts], object]]] = {
    "fill_rows": (
        "alternatives a b",
        lambda b, p: b.fill_rows(LAYER.weight, LAYER.connectivity, p["indices"], _coefficients(p), Sums()),
    ),
    "row_gains": (
        "alternatives",
        lambda b, p: b.row_gains(LAYER.grad, LAYER.weight, LAYER.connectivity, (p["indices"], p["alternatives"]), Sums()),
    ),
    "gather_rows": (
        "alternatives a b",
        lambda b, p: b.gather_rows(LAYER.grad, LAYER.connectivity, p["indices"], _coefficients(p), Sums(), None),
    ),
    "propagate": (
        "min_delta min_delta_index",
        lambda b, p: b.propagate(
            LAYER.grad,
            LAYER.weight,
            LAYER.connectivity,
            Detected(p["indices"], p["min_delta"], p["min_delta_index"]),
            LAYER.anchors,
            6,
            Sums(),
        ),
    ),
    "send_slopes": (
        "da db",
        lambda b, p: b.send_slopes(
            LAYER.x, Comparisons(LAYER.anchors), Read("confidence2", *LOGS), (p["da"], p["db"]), Sums(), True
        ),
    ),
}


def _coefficients(parts: Parts) -> Coefficients:
    return Coefficients(parts["a"], parts["b"], parts["alternatives"])


def _cases(calls: dict[str, tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(name, spoiled) for name, (parts, _) in calls.items() for spoiled in parts.split()]


def _refused(call: Callable[[Any, Parts], object], of: Any, spoiled: str) -> None:
    call(of, PARTS)
    for part in (PARTS[spoiled][:2], torch.cat([PARTS[spoiled]] * 2), PARTS[spoiled][:, :5]):
        with pytest.raises(ArgumentError, match=rf"^{spoiled} is .*expected shape"):
            call(of, {**PARTS, spoiled: part})


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(("name", "spoiled"), _cases(NAMED))
def test_a_kernel_called_by_name(name: str, spoiled: str, backend: str) -> None:
    _refused(NAMED[name][1], kernels(backend), spoiled)


@pytest.mark.parametrize(("name", "spoiled"), _cases(COMPILED))
def test_a_compiled_primitive(name: str, spoiled: str) -> None:
    _refused(COMPILED[name][1], kernels("cpu").backend, spoiled)
