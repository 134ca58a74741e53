"""C that takes readings of a sensor: the answers of the circuit on the same numbers, of exact values those of the model."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError
from lutetia.models import as_readings
from lutetia.precompute import IntegerClassifier, c_files, c_memory, integer_model
from lutetia.precompute.integer.avr import run_avr, wanted_answers
from lutetia.precompute.integer.bare import MACHINES, measured
from lutetia.precompute.integer.samples import column_samples, random_samples
from lutetia.sklearn import LUTClassifier, LUTRegressor
from precompute.strict_c import STRICT
from tools import optional_tool, require_tool

ROWS = 300
READINGS: dict[str, dict[str, str]] = {
    "auto": {},
    "sensor": {"heat": "-40+0.0625*u12", "mic": "3.3/4096*u12"},
    "coarse": {"heat": "2*s8", "mic": "0.5*u3"},
    "beyond": {"mic": "1+3.3/4096*u12", "count": "u16"},
}


def data() -> tuple[Any, np.ndarray]:
    """Columns with negative values, fractions, categories, missing values and large numbers."""
    import pandas as pd

    random = np.random.default_rng(0)
    frame = pd.DataFrame({
        "heat": np.round(random.normal(10, 20, ROWS), 2),
        "mic": np.round(random.random(ROWS) * 3.3, 3),
        "kind": pd.Categorical(random.choice(["a */", "b", "c"], ROWS)),
        "count": random.integers(0, 60_000, ROWS).astype(float),
    })  # fmt: skip
    frame.loc[random.random(ROWS) < 0.2, "mic"] = np.nan
    frame.loc[random.random(ROWS) < 0.1, "kind"] = None
    score = frame["heat"] + 20 * frame["mic"].fillna(3) + frame["count"] / 3000 + 30 * (frame["kind"] == "b")
    return frame, np.digitize(score, np.quantile(score, [0.33, 0.66]))


@cache
def fit(kind: str) -> tuple[Any, Any]:
    frame, y = data()
    options: dict[str, Any] = {"n_tables": 12, "n_anchors": 4, "random_state": 0, "n_jobs": 1}
    if kind == "numbers":
        return LUTRegressor(**options, intervals=True).fit(frame, y * 10.0), frame
    pairs = {} if kind == "classes" else {"pairs": 0.0}
    return LUTClassifier(**options, **pairs).fit(frame, y), frame


@pytest.fixture(params=["classes", "numbers"])
def fitted(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return fit(request.param)


def as_floats(fitted: tuple[Any, Any]) -> torch.Tensor:
    estimator, frame = fitted
    return torch.from_numpy(estimator._matrix(frame)).double()


def compiled(files: dict[str, str], folder: Path, *sources: str) -> Path:
    compiler = require_tool("gcc", "cc")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    subprocess.run([compiler, *STRICT, *sources, "-o", "run"], cwd=folder, check=True, timeout=120)
    return folder / "run"


@pytest.mark.parametrize(
    ("kind", "readings"),
    [("classes", "auto"), ("classes", "sensor"), ("no pairs", "auto"), ("no pairs", "beyond"), ("numbers", "coarse")],
)
def test_answers_as_the_circuit_does(kind: str, readings: str, tmp_path: Path) -> None:
    fitted = fit(kind)
    model = fitted[0].model_
    given = READINGS[readings]
    whole = integer_model(model, readings={**given} or "auto")
    assert isinstance(whole, IntegerClassifier)
    circuit = model.on_values(whole.network, None, as_readings(given or "auto"))
    x = as_floats(fitted)
    numbers = circuit.quantise(x).numpy()  # a valid bit behind each column that may be missing
    places, rows = np.cumsum([0, *(1 + column.valid for column in whole.columns)]), []
    missing = int(c_files(whole)["model.h"].split("LUTETIA_MISSING (")[1].split(")")[0])
    for at, column in enumerate(whole.columns):
        own = numbers[:, places[at]]
        rows.append(np.where(numbers[:, places[at] + 1] == 1, own, missing) if column.valid else own)
    lines = "".join(" ".join(map(str, row)) + "\n" for row in np.stack(rows, 1).tolist())
    program = compiled(c_files(whole), tmp_path, "model.c")
    told = subprocess.run([program], input=lines, capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, "")
    answers = [int(line.split()[0]) for line in told.stdout.splitlines()]
    assert answers == circuit.graph(torch.from_numpy(numbers))[:, 0].tolist()
    if readings == "auto":
        assert answers == whole(whole.quantise(x)).tolist()
    else:
        assert answers != whole(whole.quantise(x)).tolist() or readings == "sensor"
    refused = subprocess.run([program], input="0 " * 3 + "99999999999\n", capture_output=True, text=True, timeout=60)
    assert "a number is larger than" in refused.stderr


def test_rows_of_a_file_become_numbers(fitted: tuple[Any, Any], tmp_path: Path) -> None:
    estimator, frame = fitted
    program = compiled(
        c_files(integer_model(estimator.model_, readings="auto")), tmp_path, "-DLUTETIA_NO_MAIN", "model.c", "columns.c", "rows.c"
    )
    told = subprocess.run([program], input=frame.to_csv(index=False), capture_output=True, text=True, timeout=60)
    assert (told.returncode, told.stderr) == (0, "")
    lines = told.stdout.splitlines()
    if isinstance(estimator, LUTClassifier):
        assert lines == [str(each) for each in estimator.predict(frame)]
    else:
        found = [float(line.split(",")[0]) for line in lines[-len(frame) :]]
        np.testing.assert_allclose(found, estimator.predict(frame), atol=0.2)
    frame = frame.head(1).assign(count=np.nan)
    refused = subprocess.run([program], input=frame.to_csv(index=False), capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "there has to be a value in column count" in refused.stderr


def test_model_c_has_no_floating_point_and_says_what_numbers_mean(fitted: tuple[Any, Any]) -> None:
    whole = integer_model(fitted[0].model_, readings={"heat": "-40+0.0625*u12"})
    files = c_files(whole)
    assert "double" not in files["model.c"] + files["model.h"]
    assert "0 heat: -40 + 0.0625 * number, -40 to 215.938 (-40+0.0625*u12)" in files["model.h"]
    assert "2 kind: 0 a * /, 1 b, 2 c, LUTETIA_MISSING for no value" in files["model.h"]
    assert "flash_encoding_bytes" not in c_memory(whole)


@pytest.mark.parametrize(("machine", "kind"), [("Cortex-M0", "classes"), ("AVR", "classes"), ("AVR", "numbers")])
def test_it_runs_on_small_machines(machine: str, kind: str, tmp_path: Path) -> None:
    fitted = fit(kind)
    compiler, emulator = optional_tool(MACHINES[machine].compiler), optional_tool(str(MACHINES[machine].emulator))
    whole = integer_model(fitted[0].model_, readings="auto")
    if machine != "AVR":
        assert measured(whole, c_files(whole))[machine]["instructions"] > 50  # raises where an answer differs
        return
    for name, text in c_files(whole).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for samples in (random_samples(whole, 30), column_samples(whole, np.tile([[0.0], [1.0]], 4))):
        assert [line[:-1] for line in run_avr(tmp_path, compiler, emulator, samples).lines] == wanted_answers(whole, samples)


def test_readings_that_a_model_cannot_have(fitted: tuple[Any, Any]) -> None:
    estimator, _ = fitted
    with pytest.raises(ArgumentError, match="there is no column 'hot'"):
        estimator.to_c(readings={"hot": "u8"})
    with pytest.raises(ArgumentError, match="is no reading"):
        estimator.to_c(readings="8 bits")
    with pytest.raises(ArgumentError, match="'kind' holds categories"):
        estimator.to_c(readings={"kind": "u8"})
    objects = np.array([["good day"], ["bad day"]] * 20, object)
    words = LUTClassifier(n_tables=3, random_state=0, text_features=[0]).fit(objects, [0, 1] * 20)
    with pytest.raises(ArgumentError, match="reads texts"):
        words.to_c(readings="auto")
