"""Damaged files: every loader takes them or refuses them with an error of Lutetia's, whatever they hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from loaders import LOADERS
from runner import Fuzz, Runner

from tools import optional_module, require_module

require_module("typer")
require_module("numba")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system cannot limit the memory of a process")
CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files(name: str, fuzz: Fuzz) -> None:
    if LOADERS[name].needs:
        optional_module(LOADERS[name].needs)
    fuzz("loader", name)


@pytest.mark.parametrize("name", sorted(each.name for each in CORPUS.iterdir()) if CORPUS.exists() else [])
def test_files_that_were_found_before(name: str, runner: Runner) -> None:
    cases = len(list((CORPUS / name).iterdir()))
    counts, found = runner.run("corpus", name, 0, cases, corpus=str(CORPUS / name))
    assert found == []
    assert sum(counts.values()) == cases
