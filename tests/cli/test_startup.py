"""A small job costs little more than importing torch: what it does not need is not loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from setting import FLOWERS

import lutetia
from lutetia.cli import main

HEAVY = (
    "numba",
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "scipy",
    "sklearn",
    "pandas",
    "matplotlib",
    "triton",
    "transformers",
)
# A second call in the same process has everything loaded: what it takes is the work itself.
CODE = f"""
import json, sys, time
import torch
torch.set_num_threads(1)
times = [time.process_time()]
from lutetia.cli import main
for _ in range(2):
    assert main(sys.argv[1:]) == 0
    times.append(time.process_time())
print(json.dumps([times, [name for name in {HEAVY} if name in sys.modules]]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table of data, beside links to the other runs."""
    folder = tmp_path_factory.mktemp("startup")
    for name in ("runs", "flowers.csv", "digit.png"):
        (folder / name).symlink_to(trained / name)
    fit = ["--set", "fit.n_tables=4", "--set", "fit.n_anchors=2", "--out", str(folder / "table")]
    assert main(["train", str(folder / "flowers.csv"), *fit, "--json"]) == 0
    return folder


@pytest.mark.slow  # it measures time
@pytest.mark.parametrize(
    "words",
    [
        ["predict", "table", "flowers.csv"],
        ["explain", "table", "flowers.csv", "--row", "1"],
        ["predict", "runs/iris", ",".join("1" for _ in FLOWERS)],
        ["explain", "runs/digits", "digit.png"],
        ["predict", "runs/stdlib", "def f("],
        ["explain", "runs/stdlib", "def f("],
        ["generate", "runs/stdlib", "--prompt", "def ", "--max-new", "8", "--seed", "0"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_small_job_starts_at_the_price_of_torch(words: list[str], folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    ratios = []
    for _ in range(3):  # a busy machine may disturb one run
        done = subprocess.run(
            [sys.executable, "-c", CODE, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        (torch, first, second), heavy = json.loads(done.stderr.splitlines()[-1])
        assert heavy == []
        work = second - first
        ratios.append((first - work) / torch)
        if ratios[-1] <= 1.3:
            return
    pytest.fail(f"start-up takes {min(ratios):.2f} times as long as importing torch, expected at most 1.3")
