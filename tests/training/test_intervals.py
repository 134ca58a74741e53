"""Intervals of predicted numbers: nine in ten new rows are inside, whatever the tables of the spread have learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.models import Tabular, TabularConfig, load, save
from lutetia.models.tabular import LEAST_SPREAD
from lutetia.sklearn import LUTRegressor
from lutetia.training.boosting import Boosting
from lutetia.training.intervals import error_bound, half_widths, interval_bounds, row_spreads
from lutetia.training.tabular import Shape, TabularRows, fit_tabular


def rows_of(n: int, seed: int = 0) -> TabularRows:
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, (n, 2))
    return TabularRows(x, x[:, 0] + np.exp(2 * x[:, 1]) * random.normal(size=n), np.ones(n, np.float32))


def fitted(intervals: bool, rows: TabularRows) -> Tabular:
    return fit_tabular(rows, Shape(1, (0, 0), (2,)), Boosting(n_tables=20, intervals=intervals))[0]


def test_the_spread_changes_no_prediction_and_follows_the_noise() -> None:
    rows = rows_of(800)
    plain, own = (fitted(intervals, rows) for intervals in (False, True))
    x = torch.from_numpy(rows.x)
    torch.testing.assert_close(plain(x), own(x), rtol=0, atol=0)
    assert plain.spread is None
    assert (plain.spreads(x) == 1).all()
    spreads = own.spreads(x)
    assert spreads.mean().item() == pytest.approx(1, abs=0.1)  # a multiple of the mean error
    assert np.corrcoef(np.log(spreads.detach().numpy()), rows.x[:, 1])[0, 1] > 0.9
    assert own.first(5).spread is None


@pytest.mark.parametrize("learned", ["noise", "nothing", "nonsense"])
def test_nine_in_ten_are_inside_whatever_was_learned(learned: str) -> None:
    """The mean of many small calibrations, each of which holds (n + 1) 0.9 rounded up of n + 1: 0.9 to 0.9 + 1 / (n + 1)."""
    model = fitted(learned != "nothing", rows_of(400))
    if learned == "nonsense":
        assert model.spread is not None
        model.spread.weight.data = torch.randn(model.spread.weight.shape, generator=torch.Generator().manual_seed(0))
    inside = []
    for seed in range(1, 301):
        rows = rows_of(49 + 50, seed)
        model.metadata = interval_bounds(model, rows.x[:49], rows.y[:49])
        reach = half_widths(model, rows.x[49:])
        with torch.no_grad():
            errors = np.abs(model(torch.from_numpy(rows.x[49:]))[:, 0].numpy() - rows.y[49:])
        inside.append(float((errors <= reach).mean()))
    assert np.mean(inside) == pytest.approx(0.9, abs=0.012)  # the standard error is 0.004


def test_what_is_kept_of_the_errors() -> None:
    model, rows = fitted(True, rows_of(200)), rows_of(60, 1)
    assert half_widths(model, rows.x) is None
    assert interval_bounds(model, rows.x[:8], rows.y[:8]) == {}  # too few
    model.metadata = {"error_90": 2.0}
    np.testing.assert_array_equal(half_widths(model, rows.x), np.full(60, 2.0))
    model.metadata = interval_bounds(model, rows.x, rows.y)
    with torch.no_grad():
        errors = np.abs(model(torch.from_numpy(rows.x))[:, 0].double().numpy() - rows.y)
    assert model.metadata == {"error_90": error_bound(errors), "spread_90": error_bound(errors / row_spreads(model, rows.x))}
    model.spread.weight.data.fill_(-1.0)
    np.testing.assert_allclose(half_widths(model, rows.x), LEAST_SPREAD * model.metadata["spread_90"])


def test_a_perfect_fit_has_no_spread() -> None:
    rows = TabularRows(np.zeros((50, 1)), np.full(50, 3.0), np.ones(50, np.float32))
    model, _ = fit_tabular(rows, Shape(1, (0,), (1,)), Boosting(n_tables=3, intervals=True))
    assert model.spread is None


def test_the_spread_is_saved_and_older_folders_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(200)
    own, plain = fitted(True, rows), fitted(False, rows)
    own.metadata = interval_bounds(own, rows.x, rows.y)
    save(own, tmp_path / "own")
    again = load(tmp_path / "own")
    np.testing.assert_array_equal(half_widths(again, rows.x), half_widths(own, rows.x))
    fields = {name: value for name, value in plain.config.to_dict().items() if not name.startswith("spread")}
    monkeypatch.setattr(TabularConfig, "to_dict", lambda config: fields)
    save(plain, tmp_path / "old")
    assert load(tmp_path / "old").config == plain.config
    for wrong in ({"n_classes": 2}, {"n_classes": 3, "core": "gates", "gate_codes": (1,)}):
        with pytest.raises(ArgumentError, match="spread_tables is 3, expected 0: only a regression has a spread"):
            TabularConfig(spread_tables=3, **wrong)


def test_an_estimator_has_intervals() -> None:
    rows, new = rows_of(600), rows_of(2000, 1)
    model = LUTRegressor(n_tables=40, intervals=True, random_state=0).fit(rows.x, rows.y)
    low, high = model.predict_interval(new.x).T
    np.testing.assert_allclose((low + high) / 2, model.predict(new.x), atol=1e-6)
    assert 0.85 < ((low <= new.y) & (new.y <= high)).mean() < 0.95
    assert (high - low).max() > 3 * (high - low).min()
    plain = LUTRegressor(n_tables=3, random_state=0).fit(rows.x, rows.y)
    for call, message in (
        (lambda: plain.predict_interval(new.x), "fit it with intervals=True"),
        (lambda: LUTRegressor(intervals=True).fit(rows.x[:44], rows.y[:44]), "intervals is True with 44 samples, expected 45"),
        (lambda: LUTRegressor(intervals="yes").fit(rows.x, rows.y), "intervals is 'yes', expected True or False"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
