"""`LUTOutlierDetector`: what it flags and why, frames with categories and missing cells, folders, C and circuits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.base import clone

from lutetia.errors import DataError
from lutetia.precompute import integer_model
from lutetia.sklearn import LUTClassifier, LUTOutlierDetector
from tools import require_tool

SMALL: dict[str, Any] = {"n_tables": 200, "n_anchors": 7, "random_state": 0, "n_jobs": 1}


def pumps(n: int, seed: int) -> pandas.DataFrame:
    """The load of pumps, a temperature that follows it, and how they are run; some cells are missing."""
    random = np.random.default_rng(seed)
    load = random.uniform(0, 10, n)
    heat = 20 + 5 * load + random.normal(size=n)
    frame = pandas.DataFrame({"load": load, "heat": heat, "mode": pandas.Categorical(random.choice(["idle", "run"], n))})
    frame.loc[random.random(n) < 0.1, "load"] = np.nan
    return frame


@pytest.fixture(scope="module")
def fitted() -> LUTOutlierDetector:
    return LUTOutlierDetector(**SMALL, contamination="auto").fit(pumps(500, 0))


def hot() -> pandas.DataFrame:
    """A pump that is hot with little load."""
    return pandas.DataFrame({"load": [1.0], "heat": [65.0], "mode": pandas.Categorical(["run"])})


def test_hot_pump_is_flagged_for_its_heat(fitted: LUTOutlierDetector) -> None:
    assert fitted.predict(hot()).tolist() == [-1]
    assert fitted.rarity(hot())[0] > 0.95
    assert (fitted.predict(pumps(1000, 1)) == -1).mean() < 0.04
    told = fitted.explain(hot())
    assert told.classes[told.targets[0]] == "unusual"
    shares = dict(zip(told.features, told.relevance[0], strict=True))
    assert shares["heat"] > 0
    assert max(shares, key=lambda name: shares[name]) in ("heat", "load")
    assert {each.feature for each in told.comparisons[0][:3]} <= {"heat", "load"}
    assert all(each.effect > 0 for each in told.comparisons[0])
    with pytest.raises(ValueError, match="target is 'odd'"):
        fitted.explain(hot(), target="odd")


def test_shapley_values_add_up(fitted: LUTOutlierDetector) -> None:
    told = fitted.explain(hot(), rule="shapley", background=pumps(40, 2))
    assert told.average is not None
    assert told.relevance[0].sum() + told.average[0] == pytest.approx(-fitted.decision_function(hot())[0], rel=1e-5)


def test_scores_agree(fitted: LUTOutlierDetector) -> None:
    frame = pumps(200, 3)
    decided = fitted.decision_function(frame)
    np.testing.assert_array_equal(fitted.predict(frame), np.where(decided < 0, -1, 1))
    np.testing.assert_array_equal(fitted.score_samples(frame) - fitted.offset_, decided)
    order = np.argsort(decided)
    assert (np.diff(fitted.rarity(frame)[order]) <= 0).all()


def test_unknown_categories_count_as_missing(fitted: LUTOutlierDetector) -> None:
    frame = pumps(3, 1).assign(mode=["turbo", None, "turbo"])
    assert len(set(fitted.decision_function(frame.assign(load=1.0, heat=25.0)))) == 1
    strict = LUTOutlierDetector(**SMALL, handle_unknown="error").fit(pumps(100, 0))
    with pytest.raises(ValueError, match="turbo"):
        strict.predict(frame)


def test_folder_keeps_all(fitted: LUTOutlierDetector, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    again, frame = LUTOutlierDetector.load(tmp_path / "model"), pumps(50, 4)
    np.testing.assert_array_equal(again.decision_function(frame), fitted.decision_function(frame))
    np.testing.assert_array_equal(again.rarity(frame), fitted.rarity(frame))
    assert again.get_params() == fitted.get_params()
    assert again.offset_ == 0
    with pytest.raises(DataError, match="expected a LUTClassifier"):
        LUTClassifier.load(tmp_path / "model")


def test_whole_numbers_flag_the_same_rows(fitted: LUTOutlierDetector) -> None:
    """At 16 bits; only rows at the limit itself may differ."""
    frame = pumps(300, 5)
    frame.loc[:50, "heat"] += 30
    matrix = torch.from_numpy(fitted._matrix(frame))
    model = integer_model(fitted.model_, weight_bits=16)
    decided, answers = fitted.decision_function(frame), model(model.quantise(matrix)).numpy()
    clear = np.abs(decided) > 1e-2
    assert clear.mean() > 0.95
    assert 10 < answers.sum() < 150
    np.testing.assert_array_equal(answers[clear], decided[clear] < 0)


def test_circuit_has_one_bit_out(fitted: LUTOutlierDetector) -> None:
    require_tool("iverilog")
    build = fitted.to_circuit(pumps(20, 6), n_tables=10, prove=False)
    assert build.graph.output_edge.domains[0].high <= 1
    assert not build.report["steps"][-1]["left_out"] or build.report


@pytest.mark.parametrize("share", [0, 0.6, "some", True, None, float("nan")])
def test_contamination_is_checked(share: Any) -> None:
    with pytest.raises(ValueError, match=r"contamination is .*, expected \"auto\" or a number above 0, 0\.5 at most"):
        LUTOutlierDetector(**SMALL, contamination=share).fit(pumps(20, 0))


def test_same_seed_same_model(fitted: LUTOutlierDetector) -> None:
    frame = pumps(100, 7)
    same, other = clone(fitted).fit(pumps(500, 0)), clone(fitted).set_params(random_state=1).fit(pumps(500, 0))
    np.testing.assert_array_equal(same.decision_function(frame), fitted.decision_function(frame))
    assert (other.decision_function(frame) != fitted.decision_function(frame)).any()
