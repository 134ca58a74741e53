"""Small jobs run in plain torch, large ones on the compiled loops, and both give the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lutetia import models
from lutetia.cli import backend
from lutetia.lut.kernels import choice
from lutetia.models.softmax_attention import SoftmaxAttention
from said import told

Capture = pytest.CaptureFixture[str]
SMALL = {"context": 16, "width": 8, "n_layers": 1, "n_detectors": 2, "ff_detectors": 4, "ff_anchors": 3}


@pytest.mark.parametrize(
    ("words", "exact", "close"),
    [
        (["predict", "runs/iris", "flowers.csv"], lambda said: [each["class"] for each in said["predictions"]],
         lambda said: [each["probabilities"] for each in said["predictions"]]),
        (["predict", "runs/stdlib", "def f(", "return"], lambda said: [each["class"] for each in said["predictions"]],
         lambda said: [each["probabilities"] for each in said["predictions"]]),
        (["explain", "runs/digits", "digit.png"], lambda said: said["prediction"], lambda said: said["relevance"]),
        (["explain", "runs/digits", "digit.png", "--rule", "occlusion"], lambda said: said["prediction"],
         lambda said: said["relevance"]),
        (["explain", "runs/stdlib", "def f("], lambda said: said["prediction"], lambda said: said["relevance"]),
        (["generate", "runs/stdlib", "--prompt", "def ", "--max-new", "40", "--seed", "1"], lambda said: said["tokens"],
         lambda said: 0.0),
    ],
)  # fmt: skip
def test_both_ways_answer_the_same(
    words: list[str], exact: Any, close: Any, trained: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained)
    in_torch = told(capsys, *words)
    monkeypatch.setattr(backend, "MOST_NUMBERS", -1)
    compiled = told(capsys, *words)
    assert (in_torch["backend"], compiled["backend"]) == ("reference", "cpu")
    assert exact(in_torch) == exact(compiled)
    np.testing.assert_allclose(close(in_torch), close(compiled), rtol=1e-4, atol=1e-6)


def test_the_work_of_layers_is_counted_by_hand() -> None:
    layers = [models.LUTLayer(n_outputs=7, n_detectors=5, n_anchors=3, read="confidence2")]
    model = models.LUTClassifier(input_shape=(4,), n_classes=7, layers=layers, readout="none")
    call = backend.CALL
    assert backend.forward_work(model, 11) == (11 * 2 * 5 * 7 + call, 11 * 2 * 5 * 7)
    half = model.bfloat16()  # each call makes a table in float32
    assert backend.forward_work(half, 11) == (11 * 2 * 5 * 7 + 5 * 8 * 7 + call, 11 * 2 * 5 * 7 + 5 * 8 * 7)


def test_the_work_of_writing_is_that_of_its_passes() -> None:
    model = models.LUTTransformer(**SMALL)
    work = backend.generation_work(model, 4, 31)
    passes = [backend.forward_work(model, 1, 4)]
    passes += [backend.forward_work(model, 1, 1, earlier) for earlier in range(4, 16)]
    passes += [backend.forward_work(model, 1, 16)] * 18
    assert work.numbers == pytest.approx(sum(each.numbers for each in passes), rel=0.01)
    assert backend.generation_work(model, 100, 1) == backend.forward_work(model, 1, 16)


def test_a_window_that_slides_counts_for_more_than_a_step() -> None:
    model = models.LUTTransformer(**SMALL)
    inside = backend.generation_work(model, 1, 16).numbers
    assert backend.generation_work(model, 1, 32).numbers > 3 * inside


@pytest.mark.parametrize("attention", ["lut", "softmax"])
def test_kernels_are_chosen_for_the_block_only(attention: str) -> None:
    model = models.LUTTransformer(attention=attention, n_heads=2, **SMALL).eval()
    attentions = [module for module in model.modules() if isinstance(module, SoftmaxAttention)]
    with backend.kernels_for(model, backend.TableWork(1, 1)) as name:
        assert (name, choice.chosen) == ("reference", "reference")
        assert {each.backend for each in attentions} <= {"reference"}
        small = model.generate(b"abc", 6, temperature=0)
    assert choice.chosen == ""
    assert {each.backend for each in attentions} <= {"auto"}
    for work in (backend.TableWork(backend.MOST_NUMBERS + 1, 1), backend.TableWork(1, backend.MOST_AT_ONCE + 1)):
        with backend.kernels_for(model, work) as name:
            assert (name, choice.chosen) == ("cpu", "")
            assert model.generate(b"abc", 6, temperature=0) == small


def test_batches_of_a_wide_model_fit_in_memory(trained: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    forward = models.LUTClassifier.forward

    def watch(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(models.LUTClassifier, "forward", watch)
    monkeypatch.setattr("lutetia.cli.predict.MOST_AT_ONCE", 6 * 3 * 20)  # twenty rows of 6 detectors and 3 outputs
    told(capsys, "predict", trained / "runs/iris", trained / "flowers.csv")
    assert seen == [20, 20, 10]
