"""Small data and checkpoints that the tests of the command share."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from setting import write_setting

import warm
from lutetia.cli import bench, main


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as after a morning's work: flowers.csv, digit.png, examples/*.toml, and runs of three of them."""
    return write_setting(tmp_path_factory.mktemp("setting"))


@pytest.fixture
def warm_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lutetia bench` forks the process of a benchmark from one that has torch; tests/cli/test_bench.py starts new ones too."""

    def run(command: list[str], *, text: bool, **options: Any) -> subprocess.CompletedProcess[str]:
        assert text
        return warm.run(command[1:], **{"stderr": None, **options})

    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two categories and a number, and a file with a town and a case that it has not seen."""
    place = tmp_path_factory.mktemp("towns")
    rows = "".join(f"id {n},{('Rome', 'Oslo')[n % 2]},{n % 9},{('TRUE', 'FALSE')[n % 3 > 0]},{'xy'[n % 2]}\n" for n in range(60))
    (place / "towns.csv").write_text(f"id,town,size,open,kind\n{rows}")
    assert main(["train", str(place / "towns.csv"), "--out", str(place / "run"), "--set", "fit.n_tables=4", "--json"]) == 0
    (place / "new.csv").write_text('size,id,town,open\n3,"a, b",Bonn,true\n,c,,False\n5,d,oslo,TRUE\n')
    return place
