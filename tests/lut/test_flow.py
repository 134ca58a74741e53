"""The recorded flow of one training step, against the diagrams of the data flow: their boxes, edges and shapes."""

from __future__ import annotations

import pytest
import torch

from lut.oracle import WIRINGS, make_case
from lutetia import flow
from lutetia.lut import lut, use_backend

B, I, O, N_T, N_C = 7, 8, 5, 3, 4  # noqa: E741  (the letters of the diagrams)


def record(wiring: str, backend: str, gradient: str = "dense", learning: bool = True) -> flow.Flow:
    case = make_case(wiring, (B, I, O, N_T, N_C), dtype=torch.float32)
    x, weight = case.x.requires_grad_(learning), case.weight.requires_grad_(learning)
    with use_backend(backend), flow.record() as recorded:
        y = lut(x, weight, case.anchors, gradient=gradient, external_lr=0.1, **case.options)
        if learning:
            y.backward(case.grad)
    return recorded


def edges(recorded: flow.Flow) -> set[tuple[str, str, str]]:
    """Who made what for whom."""
    steps = recorded.steps
    return {(steps[edge.source].name, edge.input, steps[edge.target].name) for edge in recorded.edges}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_a_training_step_is_drawn_as_in_the_diagrams(backend: str, wiring: str) -> None:
    recorded = record(wiring, backend)
    suffix = "fc" if wiring == "fc" else "sparse"
    fill, propagate, gather = (
        f"{name}_{suffix}" for name in ("fill_outputs", "propagate_through_detectors", "gather_weight_gradients")
    )
    steps = {step.name: step for step in recorded.steps}
    assert [step.name for step in recorded.steps] == ["check_detectors", fill, propagate, gather]
    assert {step.part for step in recorded.steps} == {"lut"}
    assert all(step.parent is None and not step.failed for step in recorded.steps)

    n_weights = steps[fill].inputs[0].shape
    found = {"lookup_indices": (B, N_T), "min_anchor_deltas": (B, N_T), "min_anchor_delta_indices": (B, N_T)}
    assert n_weights == (N_T, 2**N_C, O) if wiring == "fc" else len(n_weights) == 1
    assert shapes(steps["check_detectors"].inputs) == {"input": (B, I), "anchors": (N_T, N_C, 2)}
    assert shapes(steps["check_detectors"].outputs) == found
    assert shapes(steps[fill].inputs) == {"weights": n_weights, "lookup_indices": (B, N_T)}
    assert shapes(steps[fill].outputs) == {"output": (B, O)}
    assert shapes(steps[propagate].inputs) == {
        "output_gradients": (B, O), "weights": n_weights, "anchors": (N_T, N_C, 2), **found,
    }  # fmt: skip
    assert shapes(steps[propagate].outputs) == {"input_gradients": (B, I)}
    assert shapes(steps[gather].inputs) == {"output_gradients": (B, O), "lookup_indices": (B, N_T)}
    assert shapes(steps[gather].outputs) == {"weight_gradients": n_weights}

    assert edges(recorded) == {
        ("check_detectors", "lookup_indices", fill),
        *(("check_detectors", name, propagate) for name in found),
        ("check_detectors", "lookup_indices", gather),
    }
    # The gradient that enters is one value, which both backward kernels read.
    values = {info.value for step in recorded.steps for info in step.inputs if info.name == "output_gradients"}
    assert len(values) == 1


def shapes(tensors: tuple[flow.TensorInfo, ...]) -> dict[str, tuple[int, ...]]:
    return {info.name: info.shape for info in tensors}


def test_the_picture_reads_like_the_diagram() -> None:
    drawn = record("fc", "reference").mermaid(symbols={"B": B, "I": I, "O": O, "N_t": N_T})
    for label in ("check_detectors", "fill_outputs_fc", "propagate_through_detectors_fc", "gather_weight_gradients_fc"):
        assert drawn.count(label) == 1
    for name, shape in (
        ("Input", "[B × I]"),
        ("Lookup Indices", "[B × N_t]"),
        ("Min Anchor Deltas", "[B × N_t]"),
        ("Min Anchor Delta Indices", "[B × N_t]"),
        ("Output", "[B × O]"),
        ("Output Gradients", "[B × O]"),
        ("Input Gradients", "[B × I]"),
    ):
        assert f"{name}<br/>{shape}" in drawn, (name, drawn)


@pytest.mark.parametrize(
    ("backend", "wiring", "expected"),
    [
        ("reference", "fc", ["check_detectors_eval", "fill_outputs_fc"]),
        ("reference", "shared", ["check_detectors_eval", "fill_outputs_sparse"]),
        ("cpu", "fc", ["detect_and_fill_eval_fc"]),
        ("cpu", "shared", ["detect_and_fill_eval_sparse"]),
        ("cpu", "general", ["detect_and_fill_eval_sparse"]),
        ("triton", "fc", ["detect_and_fill_eval_fc"]),
        ("triton", "shared", ["detect_and_fill_eval_sparse"]),
        ("triton", "general", ["check_detectors_eval", "fill_outputs_sparse"]),
    ],
)
def test_kernels_that_run_as_one_are_one_step(backend: str, wiring: str, expected: list[str]) -> None:
    recorded = record(wiring, backend, learning=False)
    assert [step.name for step in recorded.steps] == expected
    assert shapes(recorded.steps[-1].outputs) == {"output": (B, O)}
    assert {step.attributes["backend"] for step in recorded.steps} == {backend}


def test_a_sparse_gradient_shows_its_rows() -> None:
    step = record("fc", "reference", gradient="sparse").steps[-1]
    rows = step.outputs[0].shape[0]
    assert step.name == "gather_weight_rows_fc"
    assert shapes(step.outputs) == {"weight_slots": (rows,), "weight_gradients": (rows * O,)}


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("wiring", ["fc", "shared"])
def test_a_step_in_place_overwrites_the_weights(backend: str, wiring: str) -> None:
    recorded = record(wiring, backend, gradient="in_place")
    step = recorded.steps[-1]
    assert step.name.startswith("gather_weight_gradients")
    assert [info.name for info in step.outputs] == ["weights"]
    assert step.attributes["external_lr"] == 0.1
    before = next(info for info in step.inputs if info.name == "weights")
    assert step.outputs[0].value != before.value, "a new value in the same place"


def test_nothing_is_reported_while_nothing_records() -> None:
    recorded = record("fc", "reference")
    seen = len(recorded)
    case = make_case("fc")
    with use_backend("reference"):
        lut(case.x, case.weight, case.anchors)
    assert len(recorded) == seen
