"""Random calls of the public functions of every package: an answer, or an error of Lutetia's, and never a crash or a hang."""

from __future__ import annotations

import importlib
import sys
from collections import Counter

import pytest
from runner import Fuzz, Runner

from tools import require_module

require_module("numba")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system cannot limit the memory of a process")


HOMES = {"transformers": "lutetia.integrations.transformers"}  # of packages that are not lutetia's own rooms


@pytest.mark.parametrize("package", ["attention", "lut", "models", "nn", "precompute", "relevance", "transformers"])
def test_random_calls(package: str, fuzz: Fuzz) -> None:
    from wild_calls import GROUPS

    if package in HOMES:
        require_module(package)
    total = sum((fuzz("calls", f"{package}.{function}") for function in GROUPS[package]), Counter[str]())
    assert min(total["accepted"], total["refused"]) > total.total() / 10, total


# Public names that are called under the name of another, hold data, or run programs and code that the caller names.
WITHIN = {
    "attention": {"Choice", "Machine", "explain_choice"},  # choose_shard
    "lut": {"SynapseMeta", "growth", "kernels", "use_backend"},
    "models": {
        "Classifier",
        "Model",
        *(f"{name}Config" for name in ("Classifier", "GateNetwork", "Tabular", "Targets", "Transformer", "Votes")),
    },
    "nn": set(),
    "precompute": {
        *("CHECK", "MAKE", "OPTIMISE", "PIPELINE", "PROOF", "SIMULATION", "SIMULATORS", "SYNTHESIS", "TARGETS", "VERILOG"),
        *("Build", "BuildStep", "EquivalenceError", "Hardware", "MissingRowError", "TimeLimitError", "Votes"),
        *("BitsChoice", "CodeEncoder", "Encoder", "Graph", "LUTNetwork", "Quantise", "Table", "Unit", "Units", "trace_values"),
        *("Binary", "PlusMinus", "Ternary", "UInt", "fit_bits", "integer_model", "minimise_tables"),
        *("find_tool", "read_cells", "recipe", "require_program", "run_program", "run_yosys"),
    },
    "transformers": {  # those that generate are called by the library
        *(
            "NAME",
            "ByteTokenizer",
            "LutetiaCache",
            "LutetiaConfig",
            "LutetiaForCausalLM",
            "PagedCache",
            "ShardedCache",
            "register",
        ),
        *(
            "AnswerExplanation",
            "ClassExplanation",
            "LeftOut",
            "SimilarityExplanation",
            "TextClass",
            "TextClasses",
            "TokenExplanation",
        ),
        *("WholePieces", "WordShare"),
    },
}


@pytest.mark.parametrize("package", WITHIN)
def test_every_public_name_is_called(package: str) -> None:
    from wild_calls import GROUPS

    if package in HOMES:
        require_module(package)
    public = set(importlib.import_module(HOMES.get(package, f"lutetia.{package}")).__all__)
    called = {name.partition(".")[0] for name in GROUPS[package]} | WITHIN[package]
    assert public <= called, sorted(public - called)
    assert WITHIN[package] <= public


def test_a_crash_is_told_from_an_error(runner: Runner) -> None:
    counts, failures = runner.run("calls", "crash.string_at", 0, 2)
    assert (counts["crashed, exit code -11"], len(failures)) == (2, 2)
