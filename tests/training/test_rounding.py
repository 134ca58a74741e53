"""Tables that are rounded while they train: as whole-number models round them, with gradients straight through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from lutetia import models
from lutetia.errors import ArgumentError
from lutetia.nn import table_parameters
from lutetia.precompute import integer_model
from lutetia.precompute.integer.scales import scaled
from lutetia.training import loop, run, train
from lutetia.training.batches import Batches
from lutetia.training.data import open_data
from lutetia.training.rounding import rounded, rounded_tables
from lutetia.training.task import build_model, loss_of
from small import classifier_config, transformer_config, write_samples, write_text

SGD = {"kind": "sgd", "lr": 0.5, "weight_decay": 0.0}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_samples(tmp_path)
    write_text(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "draw", lambda folder, title: folder / "loss.png")


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("spread", [1e-6, 1.0, 300.0])
def test_rounds_as_whole_number_models_do(bits: int, spread: float) -> None:
    weight = torch.randn(3, 8, 5, generator=torch.Generator().manual_seed(bits)) * spread
    weight[0, 0, 0] *= 4  # one that a finer scale cuts off
    numbers = scaled(weight.double().numpy(), bits)
    assert torch.equal(
        rounded(weight, bits).double(), torch.from_numpy(np.ldexp(numbers.numbers.astype(float), -numbers.fraction))
    )


@pytest.mark.parametrize("weight", [torch.zeros(2, 4, 3), torch.zeros(0, 4, 3)])
def test_nothing_stays_nothing(weight: torch.Tensor) -> None:
    assert torch.equal(rounded(weight, 8), weight)


@pytest.mark.parametrize("gradient", ["dense", "sparse"])
def test_a_step_moves_exact_tables_by_the_gradient_of_rounded_ones(gradient: str) -> None:
    config = classifier_config(
        model={"gradient": gradient}, optimizer={"tables": SGD, "rest": SGD}, train={"steps": 1, "table_bits": 2},
        schedule={"kind": "constant", "warmup": 0},
    )  # fmt: skip
    train(config, "out")
    torch.manual_seed(config.train.seed)
    model = build_model(config.model)
    ((x, y),) = Batches(open_data(config.data, ".").splits["train"], config.train.batch_size, seed=config.train.seed).take(0, 0)
    exact = [table.detach().clone() for table in table_parameters(model)]
    with rounded_tables(model, 2):
        assert not any(torch.equal(*pair) for pair in zip(table_parameters(model), exact, strict=True))
        loss_of(model(x), y).backward()
    moved = load_file("out/checkpoints/last/model.safetensors")
    for name, parameter in model.named_parameters():
        slope = parameter.grad
        assert slope is not None
        slope = slope.to_dense() if slope.is_sparse else slope
        torch.testing.assert_close(moved[name], parameter.detach() - 0.5 * slope.view_as(parameter), rtol=1e-4, atol=1e-6)


def test_an_evaluation_is_of_the_rounded_tables() -> None:
    summary = train(classifier_config(train={"table_bits": 3}), "out")
    model = models.load(summary["checkpoint"]).eval()
    arrays = np.load("samples.npz")
    x, y = torch.from_numpy(arrays["x"][35:45]), torch.from_numpy(arrays["y"][35:45])
    exact = loss_of(model(x), y).item()
    with rounded_tables(model, 3):
        loss = loss_of(model(x), y).item()
    assert abs(loss - exact) > 1e-4
    assert summary["valid"]["loss"] == pytest.approx(loss, rel=1e-5)


def test_a_language_model_is_rounded_to_what_it_is_built_from() -> None:
    tables = {"attention": "lut", "feed_forward": "lut", "unembedding": "lut", "read": "hard"}
    train(transformer_config(model=tables, train={"table_bits": 8}), "out")
    model = models.load("out")
    whole = integer_model(model)
    with rounded_tables(model, 8):
        for name, layer in whole.layers.items():
            table = dict(model.named_modules())[name].weight
            assert torch.equal(table.detach().double(), torch.from_numpy(np.ldexp(layer.numbers.astype(float), -layer.fraction)))


def test_a_run_of_exact_tables_goes_on_with_rounded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its best evaluation is one of rounded tables, however good the exact ones were."""
    monkeypatch.setattr(loop, "is_better", lambda new, old: old is None)
    settings = {"steps": 4, "eval_every": 2}
    train(classifier_config(train=settings), "out")
    assert Path("out/checkpoints/best").resolve().name == "step-000002"
    train(classifier_config(train={**settings, "steps": 8, "table_bits": 2}), "out", resume=True)
    assert Path("out/checkpoints/best").resolve().name == "step-000006"


def test_steps_in_place_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r'train\.table_bits is 8, expected gradient = "dense" or "sparse"'):
        train(classifier_config(model={"gradient": "in_place"}, train={"table_bits": 8}), "out")
    with pytest.raises(ArgumentError, match="table_bits"):
        classifier_config(train={"table_bits": 1})
    assert not Path("out").exists()
