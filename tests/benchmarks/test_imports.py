"""Every benchmark finds what it takes from Lutetia: nothing else runs them all, and names move."""

from __future__ import annotations

import os
from pathlib import Path

import lutetia
import warm

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
IMPORT = """
import importlib, sys
names = sys.argv[1:]
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in ("lutetia", *names):  # and not an optional package
            print(f"{name}: {error}")
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""


def test_every_benchmark_can_be_imported() -> None:
    paths = os.pathsep.join([str(FOLDER), str(Path(lutetia.__file__).parent.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = warm.run(["-c", IMPORT, *NAMES], env=environment, timeout=600)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
    assert len(NAMES) > 20
