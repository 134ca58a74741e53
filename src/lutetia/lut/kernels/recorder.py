"""How a call of a kernel is reported to `lutetia.flow`: a step under the kernel's public name, with named inputs and outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from lutetia import flow
from lutetia.lut.kernels.protocol import Coefficients, Detected, Full, Read, Sequence, Sums

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

DETECTED = ("lookup_indices", "min_anchor_deltas", "min_anchor_delta_indices")
POSITIONAL = ("positional_lookup_indices", "positional_min_deltas", "positional_min_delta_indices")
COEFFICIENTS = ("coefficients", "alternative_coefficients", "alternative_indices")
GAINS = ("coefficient_gradients", "alternative_coefficient_gradients")
FIRINGS = ("firing_places", "firing_rows", "firing_counts")
# Each primitive: its public name, and those of what it gives. {wiring} is fc or sparse, {eval} is _eval or nothing, {weight} is
# weighted with coefficients, and what counts cells instead of walking pairs has a name of its own.
PRIMITIVES: dict[str, tuple[str, tuple[str, ...]]] = {
    "detect": ("check_detectors{eval}", DETECTED),
    "read": ("read_detectors", ("lookup_indices", *COEFFICIENTS)),
    "fill_rows": ("fill_outputs{_weighted}_{wiring}", ("output",)),
    "detect_and_fill": ("detect_and_fill{eval}_{wiring}", ("output", *DETECTED)),
    "read_and_fill": ("detect_and_read_eval_{wiring}", ("output",)),
    "row_gains": ("row_gains_{wiring}", GAINS),
    "propagate": ("propagate_through_detectors_{wiring}", ("input_gradients",)),
    "send_slopes": ("propagate_through_reads", ("input_gradients", "scalar_gradients")),
    "gather_rows": ("gather_{weight}_gradients_{wiring}", ("weight_gradients",)),
    "gather_compact": ("gather_{weight}_rows_{wiring}", ("weight_slots", "weight_gradients")),
    "detect_positions": ("check_positions{eval}", POSITIONAL),
    "fill_sequence": ("fill_outputs_{seq}_{wiring}", ("output",)),
    "propagate_sequence": ("propagate_through_{detectors_seq}_{wiring}", ("input_gradients", "positional_gradients")),
    "gather_sequence": ("gather_weight_gradients_{seq}_{wiring}", ("weight_gradients",)),
    "count_firings": ("fill_firing_stat", ("firing_statistics",)),
    "list_firings": ("densify_firing_stat", FIRINGS),
    "fill_firings": ("fill_outputs_by_firings", ("output",)),
    "fill_step": ("fill_outputs_step", ("output",)),
}
# What the arguments are called in a recorded flow; tensors that are not named here keep their own names.
INPUTS: dict[str, tuple[str, ...]] = {
    "x": ("input",),
    "weight": ("weights",),
    "into": ("weights",),
    "grad": ("output_gradients",),
    "indices": ("lookup_indices",),
    "positions": ("positional_embeddings",),
    "stat": ("firing_statistics",),
    "comparisons": ("anchors", "thresholds"),
    "detected": DETECTED,
    "sequence": (*DETECTED, *POSITIONAL),
    "coefficients": COEFFICIENTS,
    "read": ("log_beta", "log_gamma", "log_tau"),
    "rows": ("lookup_indices", "alternative_indices"),
    "gains": GAINS,
    "firings": FIRINGS,
    "cache": ("index_cache",),
    "places": POSITIONAL[:1],
}


def kernel(function: Kernel) -> Kernel:
    """A primitive of a backend, each call of it a step while something records."""
    name, backend = function.__name__.lstrip("_"), function.__module__.split(".")[3]
    parameters = inspect.signature(function).parameters

    @wraps(function)
    def call(*args: Any) -> Any:
        if not flow.recording():
            return function(*args)
        given = {key: value.default for key, value in parameters.items()} | dict(zip(parameters, args, strict=False))
        with flow.step(
            _name(name, given), part="lut", inputs=_inputs(name, given), backend=backend, **_notes(name, given)
        ) as step:
            result = function(*args)
            step.outputs(**_outputs(name, given, result))
            return result

    return call  # type: ignore[return-value]


def unrecorded(function: Kernel) -> Kernel:
    """The same primitive as a part of another, which is the step."""
    return function.__wrapped__  # type: ignore[attr-defined]


def _name(name: str, given: dict[str, Any]) -> str:
    weighted, cells = given.get("coefficients") is not None, getattr(given.get("sequence"), "products", None) is not None
    return PRIMITIVES[name][0].format(
        eval="" if given.get("train") else "_eval",
        wiring="fc" if isinstance(given.get("connectivity"), Full) else "sparse",
        weight="weighted" if weighted else "weight",
        _weighted="_weighted" if weighted else "",
        seq="cells" if cells else "seq",
        detectors_seq="cells" if cells else "detectors_seq",
    )


def _inputs(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The tensors among the arguments, each under its name."""
    tensors: dict[str, Any] = {}
    for parameter, value in given.items():
        names = INPUTS.get(parameter, (parameter,))
        if isinstance(value, Sequence):
            parts = value.x if name.startswith(("propagate", "detect")) else value.x[:1]
            distances = value.positions if name.startswith("propagate") else value.positions[:1]
            pairs = [*zip(DETECTED, parts, strict=False), *zip(POSITIONAL, distances, strict=False)]
        elif isinstance(value, Read):
            pairs = [*zip(names, value.logs, strict=True)]
        elif isinstance(value, torch.Tensor | tuple) and not isinstance(value, Sums):
            pairs = [*zip(names, value if isinstance(value, tuple) else (value,), strict=False)]
        else:
            continue
        tensors |= {key: tensor for key, tensor in pairs if isinstance(tensor, torch.Tensor)}
    return tensors


def _notes(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Further notes on a call."""
    notes: dict[str, Any] = {}
    if "sums" in given:
        notes |= {"sums": given["sums"].kind, "int_rescaler": given["sums"].rescaler}
    if isinstance(given.get("read"), Read):
        notes["read"] = given["read"].name
    if given.get("into") is not None:
        notes["external_lr"] = given["into"].rate
    if "sequence" in given or "firings" in name:
        notes["algorithm"] = "cells" if "firings" in name or given["sequence"].products is not None else "pairs"
    return notes


def _outputs(name: str, given: dict[str, Any], result: Any) -> dict[str, torch.Tensor]:
    """The tensors of a result, under the names of the flow."""
    names = ("weights",) if given.get("into") is not None else PRIMITIVES[name][1]
    flat: list[Any] = []
    for part in result if isinstance(result, tuple) else (result,):
        flat += part if isinstance(part, Detected | Coefficients) else [part]
    return {key: value for key, value in zip(names, flat, strict=False) if isinstance(value, torch.Tensor)}
