"""Windows of signals in C against Python, bit for bit: each feature of odd samples, and the answers of a saved model."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lutetia.cli.build import BuildRequest, run_build
from lutetia.cli.guard import UsageError
from lutetia.cli.predict import PredictRequest, predict
from lutetia.errors import ArgumentError
from lutetia.models import load, save, signal_windows
from lutetia.models.signal_shapes import SignalShape, most_apart, shape_counts
from lutetia.models.windows import KINDS, SignalColumn, SignalWindows, feature_sums
from lutetia.precompute import IntegerClassifier, c_files, c_memory, integer_model
from lutetia.precompute.integer.c_windows import whole_edge
from lutetia.sklearn import LUTClassifier
from lutetia.training import guess_windows, make_table_config, read_table_file, train_table
from precompute.strict_c import STRICT
from tools import require_tool

# Reads samples, and after each full window writes all that is made of every signal.
EVERY = """#include "signals.c"
#include <stdio.h>
static const int kinds[] = {%s}, numbers[] = {%s};
int main(void)
{
    int32_t sample[LUTETIA_SIGNALS];
    int i, signal;
    long value;
    for (i = 0; scanf("%%ld", &value) == 1; i++) {
        sample[i %% LUTETIA_SIGNALS] = (int32_t)value;
        if ((i + 1) %% LUTETIA_SIGNALS == 0 && lutetia_push(sample))
            for (signal = 0; signal < LUTETIA_SIGNALS; signal++) {
                total_t mean = mean_of(signal);
                int k;
                for (k = 0; k < (int)(sizeof kinds / sizeof *kinds); k++)
                    printf("%%lld ", (long long)measure(kinds[k], numbers[k], signal, mean));
            }
    }
    return 0;
}
"""

# The same for the shapes that tables ask for: of each window, input by input, at how many places it is.
SHAPES = """#include "signals.c"
#include <stdio.h>
int main(void)
{
    int32_t sample[LUTETIA_SIGNALS];
    int i, k;
    long value;
    for (i = 0; scanf("%ld", &value) == 1; i++) {
        sample[i % LUTETIA_SIGNALS] = (int32_t)value;
        if ((i + 1) % LUTETIA_SIGNALS == 0 && lutetia_push(sample))
            for (k = 0; k < LUTETIA_INPUTS; k++)
                if (KIND[k] == SHAPE && START[k] < START[k + 1])
                    printf("%d %lld ", k, (long long)measure(SHAPE, NUMBER[k], SIGNAL[k], 0));
    }
    return 0;
}
"""


def tiny(windows: SignalWindows, n_tables: int = 30) -> IntegerClassifier:
    """A model of such windows, fitted to noise."""
    random = np.random.default_rng(0)
    low, high = windows.ends
    samples = random.integers(low // 2, high // 2, (40 * windows.length, len(windows.signals)))
    x, y = windows.inputs(samples, np.arange(40) * windows.length), np.arange(40) % 2
    model = LUTClassifier(n_tables=n_tables, n_anchors=3, random_state=0, n_jobs=1).fit(x, y).model_
    model.metadata = {**model.metadata, "features": windows.titles, "windows": windows.to_dict()}
    made = integer_model(model)
    assert isinstance(made, IntegerClassifier)
    return made


def run_c(files: dict[str, str], sources: list[str], folder: Path, given: str) -> subprocess.CompletedProcess[str]:
    compiler = require_tool("gcc", "cc")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    if not (folder / "run").exists():
        subprocess.run(
            [compiler, *STRICT, "-DLUTETIA_NO_MAIN", *sources, "-o", "run"], cwd=folder, check=True, capture_output=True
        )
    (folder / "given").write_text(given, encoding="utf-8")
    with (folder / "given").open() as file:
        return subprocess.run([folder / "run"], stdin=file, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("length", "step", "bits"), [(8, 3, 16), (13, 20, 32), (131, 50, 16)])
def test_every_feature_in_c(length: int, step: int, bits: int, tmp_path: Path) -> None:
    windows = SignalWindows(length, step, (SignalColumn("a", 2), SignalColumn("b ??/ */", 0)), bits)
    random, n = np.random.default_rng(length), 5 * (length + step)
    low, high = windows.ends
    samples = np.stack([random.integers(-9, 9, n), random.integers(low, high + 1, n)], 1)
    samples[length : 2 * length + step] = low, 5  # constant
    samples[n - length - step :] = np.where(random.random((length + step, 2)) < 0.5, low, high)
    kinds, numbers = zip(*((KINDS.index(each.kind), each.at) for each in windows.features), strict=True)
    every = EVERY % tuple(", ".join(map(str, own)) for own in (kinds, numbers))
    given = samples.astype(np.int64)
    if bits == 16:  # beyond the ends
        given[0], samples[0] = (-40_000, 40_000), (low, high)
    text = "\n".join(" ".join(map(str, row)) for row in given.tolist())
    done = run_c(c_files(tiny(windows)) | {"every.c": every}, ["model.c", "every.c"], tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    starts = np.arange(0, n - length + 1, step)
    wanted = feature_sums(np.stack([samples[start : start + length].T for start in starts]))
    assert list(map(int, done.stdout.split())) == wanted.ravel().tolist()


@pytest.mark.parametrize(("length", "step", "bits"), [(9, 4, 16), (50, 3, 32), (131, 50, 16)])
def test_every_shape_in_c(length: int, step: int, bits: int, tmp_path: Path) -> None:
    random, n = np.random.default_rng(length), 3 * (length + step)
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    places = [
        (int(random.integers(2)), int(random.integers(84)), int(random.integers(1, most_apart(length) + 1))) for _ in range(40)
    ]
    shapes = tuple({SignalShape(*place, int(random.normal(0, high / 4 if place[0] else 9))) for place in places})
    shapes += (SignalShape(0, 3, most_apart(length), 0), SignalShape(1, 80, 1, -5))
    windows = SignalWindows(length, step, (SignalColumn("a", 2), SignalColumn("b")), bits, None, shapes)
    samples = np.stack([random.integers(-5, 6, n), random.integers(low, high + 1, n)], 1)
    samples[length : 2 * length] = np.where(random.random((length, 2)) < 0.5, low, high)
    model = tiny(windows, 300)
    text = "\n".join(" ".join(map(str, row)) for row in samples.tolist())
    done = run_c(c_files(model) | {"shapes.c": SHAPES}, ["model.c", "shapes.c"], tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    told = np.array(done.stdout.split(), np.int64).reshape(-1, 2)
    starts = np.arange(0, n - length + 1, step)
    inputs = np.unique(told[:, 0])
    assert len(inputs) > 30
    first = 2 * len(windows.features)
    asked = [shapes[column - first] for column in model.model.encoding.source.numpy()[inputs].tolist()]
    assert told[:, 1].reshape(len(starts), -1).tolist() == shape_counts(samples, starts, asked, length).tolist()


def recordings(path: Path, n: int, target: str) -> Path:
    random = np.random.default_rng(len(target))
    lines = [f'"a, ""b""";trial;{target};c']
    for trial in range(12):
        for t in range(n):
            kind = (trial + t // 60) % 2
            wave = np.sin(t * (0.9 if kind else 0.3) + trial) + random.normal(0, 0.1)
            answer = ["slow, calm", "fast"][kind] if target == "class" else f"{kind + trial / 10:.1f}"
            lines.append(f'{wave:.3f};"{trial}, x";"{answer}";{random.integers(-9, 9) * 1e5:.0f}'.replace(".", ","))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(("target", "shapes"), [("class", "false"), ("class", "true"), ("number", "true")])
def test_c_answers_a_recording_as_the_model_does(target: str, shapes: str, tmp_path: Path) -> None:
    data = recordings(tmp_path / "data.csv", 130, target)
    settings = ["data.window=20", "data.series=trial", "data.step=7", "fit.n_tables=20", f"data.shapes={shapes}"]
    config = guess_windows(data, read_table_file(data), target, None, [*settings, "fit.seed=1"])
    values = config.to_dict()
    values["fit"] |= {"n_tables": 20}
    train_table(make_table_config(values, "config"), Path(), tmp_path / "run_of_it")
    model = integer_model(load(tmp_path / "run_of_it"))
    windows = signal_windows(model.model.metadata)
    assert windows is not None
    assert windows.bits == 32
    assert bool(windows.shapes) == (shapes == "true")
    files, text = c_files(model), data.read_text()
    assert ("LUTETIA_SHAPES " in files["signals.c"]) == (shapes == "true")
    done = run_c(files, ["model.c", "signals.c", "recording.c"], tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    told = predict(tmp_path / "run_of_it", PredictRequest([str(data)]), show=False)["predictions"]
    found = done.stdout.splitlines()
    if target == "class":
        assert found == [each["class"] for each in told]
    else:
        rows = [line.split(",") for line in (found[1:] if found[0].startswith("number") else found)]
        np.testing.assert_allclose([float(row[0]) for row in rows], [each["value"] for each in told], atol=0.05)
    assert c_memory(model)["ram_window_bytes"] == 20 * 2 * 4 + model.n_inputs
    head, first, rest = text.split("\n", 2)
    cell = {"class": "", "number": "0;0"}[target]
    refused = run_c(files, [], tmp_path, "\n".join([head, first[: first.rindex(";") + 1] + cell, rest]))
    assert refused.returncode == 1
    assert {"class": "no sample in column c", "number": "number of cells"}[target] in refused.stderr


@pytest.mark.parametrize("divisor", [1.0, 3.0, 1000.0, 99.0 * 10**4])
def test_an_edge_parts_whole_numbers_as_it_does_in_python(divisor: float) -> None:
    random = np.random.default_rng(0)
    for whole in random.integers(-(2**29), 2**29, 200).tolist():
        for edge in (whole / divisor, np.nextafter(whole / divisor, -np.inf), (whole + 0.5) / divisor):
            found = whole_edge(float(edge), divisor, 32)
            assert found / divisor <= edge < (found + 1) / divisor
    assert whole_edge(1e300, divisor, 32) == 2**31 - 1
    assert whole_edge(-1e300, divisor, 32) == -(2**31) + 1


def test_what_is_not_made_of_windows_is_refused(tmp_path: Path) -> None:
    windows = SignalWindows(8, 4, (SignalColumn("a"),))
    made: Any = tiny(windows)
    save(made.model, tmp_path / "model")
    with pytest.raises(UsageError, match="a core with memories: --target is lut4, expected verilog, ecp5, ice40 or c"):
        run_build(BuildRequest(tmp_path / "model", tmp_path / "out", target="lut4"), show=False)
    made.model.metadata = {**made.model.metadata, "features": ["other"] * made.model.n_columns}
    with pytest.raises(ArgumentError, match=r"metadata\.windows"):
        save(made.model, tmp_path / "other")
