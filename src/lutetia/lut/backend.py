"""Which kernels run: `reference`, `cpu` or `triton`, and how each call is reported to `lutetia.flow`.

The backend modules hold plain functions; here they are gathered in one namespace per backend, and every call of a kernel that
is being recorded becomes a step named after it.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch

from lutetia import flow
from lutetia.errors import ArgumentError, MissingFeatureError, check_choice, require

BACKENDS = ("reference", "cpu", "triton")
NEEDS = {"cpu": "numba", "triton": "triton"}

# What the arguments of the kernels are called in a recorded flow; those not named here keep their own names.
INPUT_NAMES = {
    "x": "input",
    "weight": "weights",
    "grad": "output_gradients",
    "indices": "lookup_indices",
    "min_delta": "min_anchor_deltas",
    "min_delta_index": "min_anchor_delta_indices",
    "positions": "positional_embeddings",
    "pe_indices": "positional_lookup_indices",
    "pe_min_delta": "positional_min_deltas",
    "pe_min_delta_index": "positional_min_delta_indices",
    "stat": "firing_statistics",
    "alternatives": "alternative_indices",
    "a": "coefficients",
    "b": "alternative_coefficients",
    "da": "coefficient_gradients",
    "db": "alternative_coefficient_gradients",
}
_DETECTED = ("lookup_indices", "min_anchor_deltas", "min_anchor_delta_indices")
_GAINS = ("coefficient_gradients", "alternative_coefficient_gradients")
OUTPUT_NAMES = {
    "check_detectors": _DETECTED,
    "check_detectors_eval": ("lookup_indices",),
    "detect_and_fill_eval_fc": ("output",),
    "detect_and_fill_eval_sparse": ("output",),
    "detect_and_fill_fc": ("output", *_DETECTED),
    "detect_and_fill_sparse": ("output", *_DETECTED),
    "propagate_through_detectors_fc": ("input_gradients",),
    "propagate_through_detectors_sparse": ("input_gradients",),
    "gather_weight_gradients_fc": ("weight_gradients",),
    "gather_weight_gradients_sparse": ("weight_gradients",),
    "gather_weight_rows_fc": ("weight_slots", "weight_gradients"),
    "gather_weight_rows_sparse": ("weight_slots", "weight_gradients"),
    "check_positions": ("positional_lookup_indices", "positional_min_deltas", "positional_min_delta_indices"),
    "check_positions_eval": ("positional_lookup_indices",),
    "fill_firing_stat": ("firing_statistics",),
    "densify_firing_stat": ("firing_places", "firing_rows", "firing_counts"),
    "propagate_through_detectors_seq_fc": ("input_gradients", "positional_gradients"),
    "propagate_through_detectors_seq_sparse": ("input_gradients", "positional_gradients"),
    "propagate_through_cells_fc": ("input_gradients", "positional_gradients"),
    "gather_weight_gradients_seq_fc": ("weight_gradients",),
    "gather_weight_gradients_seq_sparse": ("weight_gradients",),
    "gather_weight_gradients_cells_fc": ("weight_gradients",),
    "detect_and_read_eval_fc": ("output",),
    "detect_and_read_eval_sparse": ("output",),
    "read_detectors": ("lookup_indices", "alternative_indices", "coefficients", "alternative_coefficients"),
    "row_gains_fc": _GAINS,
    "row_gains_sparse": _GAINS,
    "propagate_through_reads": ("input_gradients", "scalar_gradients"),
    "gather_weighted_gradients_fc": ("weight_gradients",),
    "gather_weighted_gradients_sparse": ("weight_gradients",),
    "gather_weighted_rows_fc": ("weight_slots", "weight_gradients"),
    "gather_weighted_rows_sparse": ("weight_slots", "weight_gradients"),
}

TWO_ROWS = ("blend", "confidence2")  # the reads that add a second row

# The fused entry points that a backend runs as one kernel. The others, and all of the general layout, are compositions: a
# recording shows their pieces.
FUSED = {
    "reference": (),
    "cpu": ("detect_and_fill_eval_fc", "detect_and_fill_eval_sparse"),
    "triton": (
        "detect_and_fill_eval_fc",
        "detect_and_fill_eval_sparse",
        "detect_and_fill_fc",
        "detect_and_fill_sparse",
        "detect_and_read_eval_fc",
        "detect_and_read_eval_sparse",
    ),
}

# The backend that `use_backend` chose, "" for the default. A module's variable and not a ContextVar: torch.compile can guard
# on the one and not read the other.
chosen = ""


def kernels(name: str) -> SimpleNamespace:
    """Every kernel of one backend, as the attributes of a namespace: `kernels("cpu").check_detectors(x, anchors)`."""
    check_choice("backend", name, BACKENDS)
    return _kernels(name)


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Run the LUT layers called in the block, and their backward passes wherever those run, on one backend.

    The choice is process-wide. Without it CUDA tensors run on `triton`, CPU tensors on `cpu`.
    """
    global chosen
    kernels(name)
    before, chosen = chosen, name
    try:
        yield
    finally:
        chosen = before


def kernels_for(backend: str, x: torch.Tensor) -> SimpleNamespace:
    """The kernels that run on the device of x: those of `backend`, or of the default when it is ""."""
    if not backend:
        return _default_kernels(x.device.type)
    if backend == "triton" and not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ArgumentError(
            f"the triton backend was chosen for a tensor on {x.device}, expected a CUDA tensor "
            "(or TRITON_INTERPRET=1 in the environment, set before triton is imported)"
        )
    if backend == "cpu" and x.device.type != "cpu":
        raise ArgumentError(f"the cpu backend was chosen for a tensor on {x.device}, expected a CPU tensor")
    return kernels(backend)


@cache
def _default_kernels(device: str) -> SimpleNamespace:
    if device == "cuda":
        return kernels("triton")
    if device != "cpu":
        return kernels("reference")
    try:
        return kernels("cpu")
    except MissingFeatureError as error:
        warnings.warn(f"LUT layers run on the slow reference backend: {error}", RuntimeWarning, stacklevel=2)
        return kernels("reference")


@cache
def _kernels(name: str) -> SimpleNamespace:
    if name in NEEDS:
        require(NEEDS[name], f"the {name} backend of lutetia.lut")
    modules = [import_module(f"lutetia.lut.{name}{suffix}") for suffix in ("", "_seq", "_reads")]
    module, sequences, _ = modules
    space = SimpleNamespace(name=name)
    for kernel in _kernel_names():
        source = next((each for each in modules if hasattr(each, kernel)), None)
        if source is not None:
            setattr(space, kernel, _reported(name, kernel, getattr(source, kernel)))
    if name == "reference":
        space.fill_outputs_cells_fc = _unless_recording(sequences.fill_outputs_cells_fc, _cells_in_pieces(space))
    for kernel, compose in _compositions(space).items():
        if kernel not in FUSED[name]:
            setattr(space, kernel, _unless_recording(getattr(module, kernel, compose), compose))
        elif kernel.endswith("_sparse"):
            setattr(space, kernel, _unless_general(getattr(space, kernel), compose))
    return space


def _kernel_names() -> list[str]:
    """The names that every backend shares: what the reference, which defines the kernels, makes public."""
    modules = [import_module(f"lutetia.lut.reference{suffix}") for suffix in ("", "_seq", "_reads")]
    return list(dict.fromkeys([name for module in modules for name in module.__all__] + list(OUTPUT_NAMES)))


def _algorithm(name: str) -> dict[str, str]:
    """Which of the two algorithms for sequences a kernel belongs to, as an attribute of its step."""
    if "_seq_" in name:
        return {"algorithm": "pairs"}
    return {"algorithm": "cells"} if "cells" in name or "firing" in name else {}


def _reported(backend: str, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, each call a step of the flow while something records."""
    parameters = [INPUT_NAMES.get(parameter, parameter) for parameter in inspect.signature(kernel).parameters]

    @wraps(kernel)
    def call(*args: Any, **options: Any) -> Any:
        if not flow.recording():
            return kernel(*args, **options)
        given = dict(zip(parameters, args, strict=False))
        given |= {INPUT_NAMES.get(option, option): value for option, value in options.items()}
        tensors = {key: value for key, value in given.items() if isinstance(value, torch.Tensor | tuple)}
        notes = {key: value for key, value in options.items() if isinstance(value, str | float | int)} | _algorithm(name)
        with flow.step(name, part="lut", inputs=tensors, backend=backend, **notes) as step:
            result = kernel(*args, **options)
            step.outputs(**_named(name, result, in_place=options.get("external_lr", -1.0) >= 0))
            return result

    return call


def _named(name: str, result: Any, in_place: bool) -> dict[str, torch.Tensor]:
    """What a kernel returned, under the names of the flow."""
    if isinstance(result, torch.Tensor):
        result = (result,)
    names = ("weights",) if in_place else OUTPUT_NAMES.get(name, ("output",))
    names = names + tuple(f"output_{k}" for k in range(len(names), len(result)))
    return dict(zip(names, result, strict=False))


def _compositions(space: SimpleNamespace) -> dict[str, Callable[..., Any]]:
    """The fused entry points as the pieces they are made of, each piece a step of its own."""

    def eval_fc(x: torch.Tensor, weight: torch.Tensor, anchors: torch.Tensor, **options: Any) -> torch.Tensor:
        return space.fill_outputs_fc(weight, space.check_detectors_eval(x, anchors), **options)

    def eval_sparse(x: torch.Tensor, weight: torch.Tensor, anchors: torch.Tensor, synapses: Any, **options: Any) -> torch.Tensor:
        return space.fill_outputs_sparse(weight, space.check_detectors_eval(x, anchors), synapses, **options)

    def train_fc(x: torch.Tensor, weight: torch.Tensor, anchors: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
        found = space.check_detectors(x, anchors)
        return space.fill_outputs_fc(weight, found[0], **options), *found

    def train_sparse(
        x: torch.Tensor, weight: torch.Tensor, anchors: torch.Tensor, synapses: Any, **options: Any
    ) -> tuple[torch.Tensor, ...]:
        found = space.check_detectors(x, anchors)
        return space.fill_outputs_sparse(weight, found[0], synapses, **options), *found

    def read_fc(x: torch.Tensor, weight: torch.Tensor, *rest: Any, read: str, **options: Any) -> torch.Tensor:
        found = space.read_detectors(x, *rest, read=read, exact=options.get("sums") == "fixed")
        return space.fill_outputs_weighted_fc(weight, *found, two=read in TWO_ROWS, **options)

    def read_sparse(
        x: torch.Tensor, weight: torch.Tensor, *rest: Any, read: str, synapses: Any = None, **options: Any
    ) -> torch.Tensor:
        *rest, synapses = rest if synapses is None else (*rest, synapses)  # type: ignore[assignment]
        found = space.read_detectors(x, *rest, read=read, exact=options.get("sums") == "fixed")
        return space.fill_outputs_weighted_sparse(weight, *found, synapses, two=read in TWO_ROWS, **options)

    return {
        "detect_and_read_eval_fc": read_fc,
        "detect_and_read_eval_sparse": read_sparse,
        "detect_and_fill_eval_fc": eval_fc,
        "detect_and_fill_eval_sparse": eval_sparse,
        "detect_and_fill_fc": train_fc,
        "detect_and_fill_sparse": train_sparse,
    }


def _cells_in_pieces(space: SimpleNamespace) -> Callable[..., torch.Tensor]:
    """The forward pass by cells, as the steps it is made of."""
    from lutetia.lut.reference_seq import anchors_of_rows

    def fill(
        weight: torch.Tensor,
        indices: torch.Tensor,
        pe_indices: torch.Tensor,
        positional_dim: int,
        *,
        precision: str = "float32",
        budget: int | None = None,
        **options: Any,
    ) -> torch.Tensor:
        n_anchors = anchors_of_rows(weight.shape[1], positional_dim)
        stat = space.fill_firing_stat(indices, pe_indices, positional_dim, n_anchors)
        firings = space.densify_firing_stat(stat, indices, n_anchors)
        return space.fill_outputs_by_firings(weight, firings, *indices.shape[:2], **options)

    return fill


def _unless_recording(kernel: Callable[..., Any], compose: Callable[..., Any]) -> Callable[..., Any]:
    """The backend's own composition, or while something records the one whose pieces are steps."""

    @wraps(kernel)
    def call(*args: Any, **options: Any) -> Any:
        return compose(*args, **options) if flow.recording() else kernel(*args, **options)

    return call


def _unless_general(kernel: Callable[..., Any], compose: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, or while something records the general layout the composition whose pieces are steps."""

    @wraps(kernel)
    def call(*args: Any, **options: Any) -> Any:
        synapses = options["synapses"] if "synapses" in options else args[-1]
        split = synapses.layout == "general" and flow.recording()
        return (compose if split else kernel)(*args, **options)

    return call
