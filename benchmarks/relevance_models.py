"""Relevance runs on the models of transformers' own tests, tiny and with random weights.

Each model is built, run and explained in a process of its own, with limits on time and memory. With `--suite FOLDER`, a checkout
of transformers, models and inputs are those of its tests (`suite_models.py`); without it, sizes and inputs are guessed for each
model type (`tiny_models.py`); `--vision` takes image classifiers instead (`vision_models.py`).

*ran*: relevance is finite and reached an input. *embeddings*: the model makes the inputs of its embeddings itself, so these were
explained by name. *linear*: a custom function without a rule stopped it, and it ran with `unknown="linear"`. *stopped*: another
error. *not built*: the model or its forward pass failed; such models are counted apart.

    lutetia bench relevance_models [--quick] [--json] [--save] [-- --suite FOLDER --only BertModel --seconds 20 --minutes 30]
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vision_models
from lutetia import relevance
from lutetia.errors import ArgumentError
from results import Row, finish, options_of, progress, result, table
from suite_models import build as build_tested
from suite_models import test_cases
from tiny_models import build as build_guessed

NEEDS = ("transformers",)
MEMORY = 6 << 30  # bytes of address space for one model
LEAST = 0.99  # the claimed share of the models that were built
QUICK = ("bert", "llama")
Build = Callable[[], tuple[Any, dict[str, Any]]]  # a model and its inputs


def explain(model: Any, inputs: dict[str, Any]) -> tuple[str, relevance.Result, list[Tensor]]:
    """How it ran, the result, and the relevance of the inputs, which the model takes by name, or as its only argument `x`."""
    given = inputs["x"] if set(inputs) == {"x"} else inputs
    try:
        r = relevance.attribute(model, given)
        return "ran", r, _shares(r, inputs)
    except relevance.UnknownOperation:
        r = relevance.attribute(model, given, unknown="linear")
        return "linear", r, _shares(r, inputs)
    except ArgumentError as error:
        name = re.search(r"wrt=\['([^']*)'", str(error))
        if name is None:
            raise
        r = relevance.attribute(model, given, wrt=[name[1]])
        return "embeddings", r, [r[name[1]]]


def _shares(r: relevance.Result, inputs: dict[str, Any]) -> list[Tensor]:
    return [r[value] for value in inputs.values() if isinstance(value, Tensor) and value in r]


def survey_one(name: str, build: Build) -> Row:
    """What became of one model."""
    try:
        model, inputs = build()
    except BaseException as error:
        return {"model": name, "outcome": "not built", "why": _words(error)}
    try:
        outcome, r, shares = explain(model, inputs)
    except BaseException as error:
        return {"model": name, "outcome": "stopped", "why": _words(error)}
    finite = all(bool(each.isfinite().all()) for each in shares)
    if finite and not any(bool(each.any()) for each in shares):
        return {"model": name, "outcome": "stopped", "why": "no relevance reached an input"}
    return {
        "model": name,
        "outcome": outcome if finite else "not finite",
        "nodes": len(r.report),
        "unseen": len(r.report.unseen),
        "why": "; ".join(sorted({place.split(" ")[0] for place in r.report.unknown})),
    }


def _words(error: BaseException) -> str:
    """What went wrong in a few words: the operation, or the beginning of the message."""
    message = " ".join(str(error).split())
    return message.split(" ")[0] if isinstance(error, relevance.UnknownOperation) else f"{type(error).__name__}: {message[:90]}"


def apart(name: str, build: Build, seconds: int) -> Row:
    """`survey_one` in a process of its own, which inherits what is imported."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        signal.alarm(seconds)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.write(write, json.dumps(survey_one(name, build)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"model": name, "outcome": "not built", "why": "took too long, or too much memory"}


def _builders(suite: Path | None, vision: bool) -> Mapping[str, Build]:
    """How to build each model, by its name: a class of the library's tests, a model type, or a net of another library."""
    if vision:
        return vision_models.builders()
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    if suite is not None:
        return {name: partial(build_tested, case) for name, case in test_cases(suite).items()}
    return {name: partial(build_guessed, name) for name in MODEL_MAPPING_NAMES}


def main(argv: list[str] | None = None) -> int:
    """Survey the models; 1 when fewer ran than claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--suite", type=Path, help="a checkout of transformers, whose tests make the models")
    parser.add_argument("--vision", action="store_true", help="torchvision's classifiers and one net of each module of timm")
    parser.add_argument("--only", nargs="+", help="these models")
    parser.add_argument("--seconds", type=int, default=20, help="for one model (default 20)")
    parser.add_argument("--minutes", type=float, default=60, help="for all of them (default 60)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    builders = _builders(options.suite, options.vision)
    names = options.only or (QUICK if options.quick and options.suite is None else sorted(builders))
    absent = [name for name in names if name not in builders]
    if absent:
        parser.error(f"--only {' '.join(absent)}: expected names such as {', '.join(sorted(builders)[:3])}")
    rows, began = [], time.monotonic()
    for name in names:
        if time.monotonic() - began > 60 * options.minutes:
            break
        progress(name)
        rows.append(apart(name, builders[name], options.seconds))
    counts = Counter(row["outcome"] for row in rows)
    built = len(rows) - counts["not built"]
    share = (counts["ran"] + counts["embeddings"]) / max(built, 1)
    missed = [f"{share:.1%} of {built} built models ran, at least {LEAST:.0%} claimed"] if share < LEAST else []
    tables = [
        table(
            "outcomes", {"outcome": None, "models": None}, [{"outcome": name, "models": n} for name, n in counts.most_common()]
        ),
        table("models", {"model": None, "outcome": None, "nodes": None, "unseen": None, "why": None}, rows),
    ]
    settings = {"models": len(names), "seconds": options.seconds}
    return finish(result(__doc__, "relevance_models", settings, tables, packages=["transformers"], missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())
