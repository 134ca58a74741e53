"""How long to fuzz: `pytest tests/fuzz` takes less than a minute, `pytest tests/fuzz --fuzz-seconds 3600` an hour per test."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner import Fuzz, Runner

COUNTS = {"loader": 25, "calls": 8}  # cases of each loader, and calls of each function, by default


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz-count", type=int, help="cases of each loader, or calls of each function")
    parser.addoption("--fuzz-seconds", type=float, default=0.0, help="seconds that each fuzz test goes on with ever new cases")
    parser.addoption("--fuzz-seed", type=int, default=0, help="which cases are drawn")
    parser.addoption("--fuzz-counts", type=Path, help="a JSON file that takes the counts of this run into its own")
    parser.addoption("--fuzz-keep", type=Path, help="the folder for inputs that fail; a temporary one by default")


@pytest.fixture(scope="session")
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    kept = request.config.getoption("--fuzz-keep", None)
    runner = Runner(kept or tmp_path_factory.mktemp("fuzz"))
    yield runner
    runner.close()


@pytest.fixture
def fuzz(request: pytest.FixtureRequest, runner: Runner) -> Fuzz:
    """Runs the cases of one loader, or calls of one function, and fails with where the bad ones are kept; how many ended how."""
    options = request.config

    def run(what: str, name: str) -> Counter[str]:
        count = options.getoption("--fuzz-count", None) or COUNTS[what]
        until = time.monotonic() + options.getoption("--fuzz-seconds", 0.0)
        seed, total, failures = options.getoption("--fuzz-seed", 0), Counter[str](), []
        while True:
            counts, more = runner.run(what, name, seed, count)
            total.update(counts)
            failures += more
            seed += 1
            if time.monotonic() >= until:
                break
        print(f"{what} {name}: {dict(total)}")
        if file := options.getoption("--fuzz-counts", None):
            known = json.loads(file.read_text()) if file.exists() else {}
            known.setdefault(what, {})[name] = dict(sorted(total.items()))
            file.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        assert not failures, f"{len(failures)} failures of {total}:\n" + "\n".join(failures[:5])
        assert total["accepted"] + total["refused"] + total["out of memory"] >= count
        return total

    return run
