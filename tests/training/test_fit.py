"""`lutetia.training.fit` and boosting, against what can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from lutetia import training
from lutetia.errors import ArgumentError
from lutetia.lut import use_backend
from lutetia.models import LUTClassifier
from lutetia.training.boosting import Boosting, boost, refit, score
from lutetia.training.goals import Classes, Numbers


@pytest.fixture(autouse=True)
def on_reference() -> Iterator[None]:
    with use_backend("reference"):  # nothing to compile
        yield


def small() -> LUTClassifier:
    layers = [{"kind": "lut", "n_outputs": 3, "n_detectors": 16, "n_anchors": 3}]
    return LUTClassifier(input_shape=(6,), n_classes=3, layers=layers, readout="none", seed=0)


def samples(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(1)


def test_fit_trains_any_model_on_arrays() -> None:
    model, (x, y) = small(), samples()
    history = training.fit(model, (x.numpy(), y.numpy()), epochs=15, lr=0.05)
    assert history["epochs"] == 15
    assert history["losses"]["train"][-1] < 0.5 * history["losses"]["train"][0]
    assert not model.training
    again = small()
    assert training.fit(again, (x, y), epochs=15, lr=0.05)["losses"] == history["losses"]


def test_fit_keeps_the_best_epoch_and_stops_without_progress() -> None:
    model, (x, y) = small(), samples()
    noise = torch.randint(3, (40,), generator=torch.Generator().manual_seed(1))
    history = training.fit(model, (x, y), valid=(torch.randn(40, 6), noise), epochs=60, lr=0.2, patience=3)
    assert history["epochs"] < 60
    assert len(history["losses"]["valid"]) - 1 - int(np.argmin(history["losses"]["valid"])) == 3


def test_fit_weighs_samples() -> None:
    model, (x, y) = small(), samples()
    weight = (y == 0).float()
    training.fit(model, (x, y, weight), epochs=10, lr=0.05)
    assert (model(x).argmax(1) == 0).float().mean() > 0.95


def test_fit_refuses_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match="data"):
        training.fit(small(), (torch.randn(4, 6), torch.zeros(3, dtype=torch.long)))
    with pytest.raises(ArgumentError, match="epochs"):
        training.fit(small(), samples(), epochs=0)
    x, y = samples(9)
    wrong = {"y is .*, expected numbers; classes are numbered from 0": np.array(["a", "b", "c"])[y], "finite": y / 0}
    for message, target in {
        **wrong,
        "'1 to 3', expected classes from 0 to 2": y % 3 + 1,
        "'-1 to 0'": y * 0 - (y > 0).long(),
    }.items():
        model = small()
        before = [each.clone() for each in model.parameters()]
        with pytest.raises(ArgumentError, match=message):
            training.fit(model, (x, target), epochs=1)
        assert all(map(torch.equal, before, model.parameters()))


# ---- boosting --------------------------------------------------------------------------------------------------------


def test_one_table_of_a_regression_holds_shrunken_means() -> None:
    codes = np.array([[1, 1, 1, 2, 2, 2]], np.uint8)
    y = np.array([0.0, 1.0, 2.0, 10.0, 11.0, 12.0])
    settings = Boosting(n_tables=1, n_anchors=1, rate=0.5, smoothing=1.0, pairs=0.0)
    fitted = boost(codes, np.array([2]), Numbers(y, np.ones(6, np.float32)), settings)
    assert fitted.base == pytest.approx(6.0)
    # Both cells are 5 away from the mean, times 3 samples of 4, times the rate.
    scores = np.tile(fitted.base, (6, 1))
    score(codes, fitted.anchors, fitted.weight, scores)
    if fitted.anchors[0, 0, 1] == 2:  # code > 1
        np.testing.assert_allclose(scores[:, 0], [6 - 1.875] * 3 + [6 + 1.875] * 3)
    else:  # code > 0 tells nothing apart
        np.testing.assert_allclose(scores[:, 0], 6.0)


def test_gradients_of_classes_are_those_of_autograd() -> None:
    random = np.random.default_rng(0)
    scores, y, weight = random.normal(size=(7, 4)), random.integers(4, size=7), random.uniform(size=7).astype(np.float32)
    goal = Classes(y, 4, weight)
    residuals = goal.residuals(scores)
    (missing, curvature), other = goal.sums(np.arange(7, dtype=np.uint16), residuals, 7), residuals[0]
    np.testing.assert_array_equal(missing, other)  # each sample alone in its row
    leaf = torch.from_numpy(scores).requires_grad_()
    loss = (torch.nn.functional.cross_entropy(leaf, torch.from_numpy(y), reduction="none") * torch.from_numpy(weight)).sum()
    (slope,) = torch.autograd.grad(loss, leaf)
    np.testing.assert_allclose(missing, -slope.numpy(), atol=1e-6)
    chance = leaf.detach().softmax(1).numpy()
    np.testing.assert_allclose(curvature, weight[:, None] * chance * (1 - chance), atol=1e-6)


def test_more_tables_lower_the_training_loss() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(1, 20, size=(5, 300)).astype(np.uint8)
    y = (codes[0] > codes[1]).astype(np.int64) + (codes[2] > 9)
    fitted = boost(codes, np.full(5, 19), Classes(y, 3, np.ones(300, np.float32)), Boosting(n_tables=60))
    losses = fitted.losses["train"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.1


def test_rounds_of_a_refit_by_hand() -> None:
    """Two tables of one threshold each, a regression: the rows of each move by half of the mean that is missing in them."""
    codes = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], np.uint8)
    y = np.array([0.0, 4.0, 2.0, 8.0])
    anchors, weight = np.array([[[0, 2]], [[1, 2]]]), np.zeros((2, 2, 1))  # each column above the constant 0
    settings = Boosting(rate=0.5, smoothing=0.0)
    goal = Numbers(y, np.ones(4, np.float32))
    once = refit(codes, goal, anchors, weight, 1, settings)
    np.testing.assert_allclose(once[:, :, 0], [[1.0, 2.5], [0.0, 0.0]])
    both = refit(codes, goal, anchors, weight, 2, settings)  # missing: -1, 3, -0.5, 5.5
    np.testing.assert_allclose(both[:, :, 0], [[1.0, 2.5], [-0.375, 2.125]])
    again = refit(codes, goal, anchors, both, 1, settings)  # from what they hold; missing: -0.625, 0.875, -0.125, 3.375
    np.testing.assert_allclose(again[:, :, 0], [[1.0625, 3.3125], [-0.375, 2.125]])
    assert not weight.any()


def test_a_refit_makes_up_for_tables_that_are_left_out() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 20, (5, 600), dtype=np.uint8)
    y = (codes[0] > 9) + (codes[1] > codes[2]).astype(np.int64)
    goal = Classes(y, 3, np.ones(600, np.float32))
    settings = Boosting(n_tables=100, n_anchors=3)
    fitted = boost(codes, np.full(5, 19), goal, settings)
    fitted.weight[0] += fitted.base
    losses = []
    for weight in (fitted.weight[:10], refit(codes, goal, fitted.anchors[:10], fitted.weight[:10], 90, settings)):
        scores = np.zeros((600, 3))
        score(codes, fitted.anchors[:10], weight, scores)
        losses.append(goal.loss(scores))
    assert losses[1] < 0.5 * losses[0]


@pytest.mark.parametrize("n", [0, 1, 8, 9, 300])
def test_scores_are_the_rows_that_are_read_whether_samples_are_few_or_many(n: int) -> None:
    draw = np.random.default_rng(n)
    codes = draw.integers(0, 256, (5, n)).astype(np.uint8)
    anchors = np.stack([draw.integers(0, 5, (7, 3)), draw.integers(0, 5 + 255, (7, 3))], 2)
    weight = draw.normal(size=(7, 8, 2)).astype(np.float32)
    given = draw.normal(size=(n, 2)).astype(np.float32)
    expected = given.astype(np.float64)
    for sample in range(n):
        inputs = [*codes[:, sample].tolist(), *range(255)]
        for table in range(7):
            bits = [inputs[left] > inputs[right] for left, right in anchors[table]]
            expected[sample] += weight[table, sum(bit << place for place, bit in enumerate(bits))]
    score(codes, anchors, weight, given)
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)
