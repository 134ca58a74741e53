"""The GPU benchmarks run to their end where there is no GPU: what they call is there, and what they write has the form."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lutetia
from tools import require_module

require_module("triton")
PRETEND = Path(__file__).parent / "pretend_gpu.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(lutetia.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
TABLES = {
    "lut_step": ["layers", "rates", "compiling"],
    "lut_attention": ["layers", "floors", "growth"],
    "lut_reads": ["reads", "kernels"],
    "decode_attention": [
        "dense",
        "ragged",
        "four tokens",
        "pages and fp8",
        "cascade",
        "latent attention",
        "chunks",
        "eager call",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_it_runs_to_its_end(name: str) -> None:
    done = subprocess.run([sys.executable, str(PRETEND), name], env=ENVIRONMENT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert [table["name"] for table in found["tables"]] == TABLES[name]
    assert all(table["rows"] for table in found["tables"])
    if "original" in str(found["peers"]):  # all three modes of ours, and the peer's in the two that it has
        row = found["tables"][0]["rows"][0]
        assert {f"{step}, {mode}" for step in ("eval", "train") for mode in ("eager", "compiled", "graph")} <= set(row)


def test_the_two_cores_are_not_one_with_two_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(Path(lutetia.__file__).parents[2] / "benchmarks"))
    gpu_timing = importlib.import_module("gpu_timing")
    siblings = {4: "4,6", 5: "5,7", 6: "4,6", 7: "5,7", 9: "9"}
    for core, text in siblings.items():
        (tmp_path / f"{core}").write_text(f"{text}\n")
    monkeypatch.setattr(gpu_timing, "SIBLINGS", f"{tmp_path}/{{}}")
    for allowed, expected in (
        ({4, 5, 6, 7}, [6, 7]),
        ({4, 6, 9}, [6, 9]),
        ({4, 6}, [6]),
        ({4, 5, 9}, [5, 9]),
        ({1, 2, 3}, [2, 3]),
    ):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, allowed=allowed: allowed)
        assert gpu_timing.two_cores() == expected
