"""Small data and checkpoints that the tests of the command share."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from setting import write_setting

import warm
from lutetia.cli import bench


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
