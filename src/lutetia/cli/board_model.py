"""What is on a board, made again from board/ of a build: which questions to ask it, and what it must answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lutetia.cli.build_patches import PATCHES, image_levels
from lutetia.cli.build_readings import asked_readings
from lutetia.cli.inputs import NamedInputs, read_usable
from lutetia.cli.windows import recorded_windows
from lutetia.errors import DataError
from lutetia.models import Classifier, Model, Tabular, VotesClassifier
from lutetia.precompute import (
    Core,
    IntegerClassifier,
    LUTNetwork,
    circuit_answers,
    circuit_questions,
    core_answers,
    core_questions,
    integer_model,
    lut_network,
)

if TYPE_CHECKING:
    from lutetia.cli.build import BuildRequest

CIRCUIT = "circuit"


class Asked(NamedTuple):
    """Inputs by their names, each as the payload of a question, and what the integer model answers, int64 [n]; how answers
    are read from what comes back; and what a number of a regression is multiplied by, `unit`."""

    names: list[str]
    questions: list[bytes]
    expected: Tensor
    read: Callable[[Sequence[bytes]], Tensor]
    unit: float | None


# ---- recipes ---------------------------------------------------------------------------------------------------------


def circuit_recipe(request: BuildRequest, bits: int, weight_bits: int, ends: tuple[Any, Any]) -> dict[str, Any]:
    """How the integer model of a circuit was made of its model."""
    numbers = {"kind": CIRCUIT, "bits": bits, "weight_bits": weight_bits, "low": ends[0], "high": ends[1]}
    return {**numbers, "readings": list(request.readings), "reading_bits": request.input_bits}


def circuit_network(model: Classifier, recipe: Mapping[str, Any]) -> LUTNetwork:
    """The integer model again."""
    if isinstance(model, Tabular):
        network = model.network(recipe["weight_bits"])
        bits, readings = recipe["reading_bits"], recipe["readings"]
        return model.on_values(network, bits, asked_readings(readings)) if readings or bits is not None else network
    if isinstance(model, VotesClassifier):
        made = integer_model(model)
        assert isinstance(made, IntegerClassifier)
        return made.network
    ends = {"low": recipe["low"], "high": recipe["high"]}
    return lut_network(model, bits=recipe["bits"], weight_bits=recipe["weight_bits"], **ends)


def core_recipe(kind: str, request: BuildRequest, weight_bits: int) -> dict[str, Any]:
    """How a core was made of its model."""
    return {"kind": kind, "weight_bits": weight_bits, "reuse": request.reuse or 1}


def _core(model: Tabular, recipe: Mapping[str, Any]) -> Core:
    whole = IntegerClassifier(model.network(recipe["weight_bits"]))
    return whole.emit_images(reuse=recipe["reuse"]) if recipe["kind"] == PATCHES.name else whole.emit_signals()


# ---- questions -------------------------------------------------------------------------------------------------------


def questions(model: Model[Any], recipe: Mapping[str, Any], given: Sequence[str], identity: int) -> Asked:
    """The questions for inputs as `predict` takes them."""
    if recipe["kind"] == CIRCUIT:
        assert isinstance(model, Classifier)
        return _of_circuit(model, circuit_network(model, recipe), read_usable(model, given)[0])
    assert isinstance(model, Tabular)
    core = _core(model, recipe)
    if core.identity != identity:
        raise DataError(f"the model makes the core {core.identity:#010x}, and {identity:#010x} was built: build it again")
    return _of_images(core, model, given) if recipe["kind"] == PATCHES.name else _of_windows(core, model, given)


def _of_circuit(model: Classifier, network: LUTNetwork, files: Sequence[NamedInputs]) -> Asked:
    graph = network.graph
    codes = torch.cat([network.quantise(file.x) for file in files])
    is_number = isinstance(model, Tabular) and model.is_regression
    return Asked(
        [name for file in files for name in file.names],
        circuit_questions(graph, codes),
        graph(codes)[:, 0],
        lambda replies: circuit_answers(graph, replies)[:, 0],
        float(graph.output_edge.scale[0]) if is_number else None,
    )


def _of_images(core: Core, model: Tabular, given: Sequence[str]) -> Asked:
    files, _ = read_usable(model, given)
    levels = np.concatenate([image_levels(model, file.x) for file in files])
    names = [name for file in files for name in file.names]
    return Asked(
        names, core_questions(core, levels), core.answers(levels), lambda replies: core_answers(core, replies), _unit(core)
    )


def _of_windows(core: Core, model: Tabular, given: Sequence[str]) -> Asked:
    names: list[str] = []
    windows: list[np.ndarray[Any, Any]] = []
    for each in given:
        own, samples = recorded_windows(model, Path(each))
        names += own
        windows += samples
    expected = core.answers(windows)
    return Asked(names, core_questions(core, windows), expected, lambda replies: core_answers(core, replies), _unit(core))


def _unit(core: Core) -> float | None:
    return float(core.model.graph.output_edge.scale[0]) if core.model.n_outputs == 1 else None
