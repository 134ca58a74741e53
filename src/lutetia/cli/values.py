"""Values that the shell completes and help texts list. Nothing here imports torch: completion must be instant."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lutetia.errors import LutetiaError
from lutetia.files import read_json

RULES = ("decisive", "epsilon", "gamma", "zplus", "alphabeta", "attnlrp", "dynamic", "gradient", "occlusion", "shapley")
TARGETS = ("lut6", "lut4", "ice40", "ecp5")
C_TARGETS = ("c", "arduino")
PROGRAMS = (*C_TARGETS, "verilog")  # targets of `build` that no synthesiser is needed for
BITSTREAMS = {"ice40": "circuit.bin", "ecp5": "circuit.bit"}  # the file, named as programmers of the device expect
# Of `build --board`, as in precompute/boards/boards.toml, which completion has no time to read.
BOARDS = ("icebreaker", "icestick", "hx8k", "icesugar", "ulx3s-12f", "ulx3s-25f", "ulx3s-45f", "ulx3s-85f")
SPLITS = ("train", "valid", "test")
TASKS = ("classification", "regression", "ranking", "unusual")
UNKNOWN = ("error", "missing")  # what categories are that a model has not seen
NO_VALUE = ("seen", "exact", "none")  # how `import` takes missing values
DEVICES = ("cpu", "cuda")
MOST_BYTES = 1 << 20  # of a file that is read for completion


def starting_with(begin: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(begin)]


def complete_rule(incomplete: str) -> list[str]:
    """Rules of `explain`."""
    return starting_with(incomplete, RULES)


def complete_hardware(incomplete: str) -> list[str]:
    """Targets of `build`."""
    return starting_with(incomplete, (*TARGETS, *PROGRAMS))


def complete_board(incomplete: str) -> list[str]:
    """Boards of `build`."""
    return starting_with(incomplete, BOARDS)


def complete_split(incomplete: str) -> list[str]:
    """Splits of the data."""
    return starting_with(incomplete, SPLITS)


def complete_task(incomplete: str) -> list[str]:
    """Tasks of `train` on a table of data."""
    return starting_with(incomplete, TASKS)


def complete_device(incomplete: str) -> list[str]:
    """Devices of `train`."""
    return starting_with(incomplete, DEVICES)


def complete_unknown(incomplete: str) -> list[str]:
    """What unknown categories are, for commands that read inputs."""
    return starting_with(incomplete, UNKNOWN)


def complete_no_value(incomplete: str) -> list[str]:
    """How `import` takes missing values."""
    return starting_with(incomplete, NO_VALUE)


def complete_class(ctx: Any, incomplete: str) -> list[str]:
    """Names of the classes of the checkpoint that was typed before."""
    # A line that ends in an option without its value leaves the arguments unparsed.
    checkpoint = ctx.params.get("checkpoint") or next(iter(ctx.args), None)
    return starting_with(incomplete, classes_of(checkpoint)) if checkpoint else []


def complete_benchmark(incomplete: str) -> list[str]:
    """Names of the benchmarks of the checkout."""
    from lutetia.cli.bench import benchmarks_folder, find_benchmarks
    from lutetia.errors import DataError

    try:
        return starting_with(incomplete, find_benchmarks(benchmarks_folder()))
    except DataError:
        return []


def classes_of(checkpoint: object) -> list[str]:
    """The class names of a checkpoint, or of a run folder; none if it is missing or incomplete."""
    for place in ("", "checkpoints/best", "checkpoints/last"):
        file = Path(str(checkpoint)) / place / "metadata.json"
        try:
            classes = read_json(file, "metadata", MOST_BYTES).get("classes", [])
            return [name for name in classes if isinstance(name, str) and name.isprintable()]
        except (LutetiaError, AttributeError, TypeError):
            continue
    return []
