"""A survey of models: each is built, run and explained in a process of its own, with limits on time and memory.

*ran*: relevance is finite and reached an input; where the values of an untrained net fade below ε, with an ε of 1e-30.
*embeddings*: the model makes the inputs of its embeddings itself, or cuts its input off, so that modules were explained by name.
*linear*: a custom function without a rule stopped it, and it ran with `unknown="linear"`. *stopped*: another error. *not built*:
the model or its forward pass failed, or its output is 0; such models are counted apart. *growth*: the absolute relevance of the
inputs over that of the output.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lutetia import relevance
from lutetia.errors import ArgumentError
from results import Row, progress, table

MEMORY = 6 << 30  # bytes of address space for one model
Build = Callable[[], tuple[Any, dict[str, Any]]]  # a model and its inputs


def add_options(parser: argparse.ArgumentParser, seconds: int) -> None:
    """The options of every survey."""
    parser.add_argument("--only", nargs="+", help="these models")
    parser.add_argument("--seconds", type=int, default=seconds, help=f"of the processor for one model (default {seconds})")
    parser.add_argument("--minutes", type=float, default=60, help="for all of them (default 60)")


def survey(builders: Mapping[str, Build], names: Sequence[str], options: argparse.Namespace) -> list[Row]:
    """What became of the models of these names, until the time is over."""
    absent = [name for name in names if name not in builders]
    if absent:
        raise SystemExit(f"--only {' '.join(absent)}: expected names such as {', '.join(sorted(builders)[:3])}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, began = [], time.monotonic()
    for name in names:
        if time.monotonic() - began > 60 * options.minutes:
            break
        progress(name)
        rows.append(apart(name, builders[name], options.seconds))
    return rows


def tables_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """How many models had each outcome, and the outcome of each."""
    counts = Counter(row["outcome"] for row in rows)
    columns = {"model": None, "outcome": None, "nodes": None, "unseen": None, "growth": None, "why": None}
    return [
        table(
            "outcomes", {"outcome": None, "models": None}, [{"outcome": name, "models": n} for name, n in counts.most_common()]
        ),
        table("models", columns, rows),
    ]


def too_few(rows: Sequence[Row], least: float, what: str) -> list[str]:
    """In words, if fewer of the models that were built ran than this share; else nothing."""
    built = [row for row in rows if row["outcome"] != "not built"]
    share = sum(row["outcome"] in ("ran", "embeddings") for row in built) / max(len(built), 1)
    return [f"{share:.1%} of {len(built)} built {what} ran, at least {least:.0%} claimed"] if share < least else []


def explain(
    model: Any, inputs: dict[str, Any], rules: relevance.Rules | None = None
) -> tuple[str, relevance.Result, list[Tensor]]:
    """How it ran, the result, and the relevance of the inputs, which the model takes by name, or as its only argument `x`."""
    given = inputs["x"] if set(inputs) == {"x"} else inputs
    try:
        r = relevance.attribute(model, given, rules=rules)
        return "ran", r, _shares(r, inputs)
    except relevance.UnknownOperation:
        r = relevance.attribute(model, given, rules=rules, unknown="linear")
        return "linear", r, _shares(r, inputs)
    except ArgumentError as error:
        names = re.findall(r"'([^']*)'", str(error).rpartition("wrt=[")[2])
        if not names:
            raise
        r = relevance.attribute(model, given, rules=rules, wrt=names)
        return "embeddings", r, [r[name] for name in names]


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
        if r.seed.any() and not any(each.any() for each in shares):
            outcome, r, shares = explain(model, inputs, relevance.presets.epsilon(1e-30))
    except BaseException as error:
        return {"model": name, "outcome": "stopped", "why": _words(error)}
    size, explained = sum(float(each.abs().sum()) for each in shares), float(r.seed.abs().sum())
    if size == 0:
        outcome, why = ("not built", "the output is 0") if explained == 0 else ("stopped", "no relevance reached an input")
        return {"model": name, "outcome": outcome, "why": why}
    return {
        "model": name,
        "outcome": outcome if math.isfinite(size) else "not finite",
        "nodes": len(r.report),
        "unseen": len(r.report.unseen),
        "growth": float(f"{size / explained:.3g}") if explained and math.isfinite(size) else None,
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
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # of the processor: others may use the machine
        signal.alarm(10 * seconds)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.write(write, json.dumps(survey_one(name, build)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"model": name, "outcome": "stopped", "why": "took too long, or too much memory"}
