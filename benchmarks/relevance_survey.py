"""A survey of models: each is built, run and explained in a process of its own, with limits on time and memory.

Models run with the weights they are built with and the default rules. *ran*: relevance is finite and reached an input.
*embeddings*: the model makes the inputs of its embeddings itself, or cuts its input off, so that modules were explained by name.
*output 0*: the output is 0, so that there is nothing to divide, and every input gets 0. *absorbed*: biases, constants and ε
absorb all of the relevance, and the report says where; *faint* is what reaches the inputs with an ε of 1e-30, as *growth*.
*linear*: a custom function without a rule stopped it, and it ran with `unknown="linear"`. *stopped*: another error, or relevance
that is neither at an input nor reported as absorbed. *not built*: the model or its forward pass failed; such models are counted
apart. *growth*: the absolute relevance of the inputs over that of the output.
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
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lutetia import relevance
from lutetia.errors import ArgumentError
from results import Result, Row, load, progress, rows_of, table

FAINT = 1e-30  # an ε for models whose values fade, as those of untrained nets do
MEMORY = 6 << 30  # bytes of address space for one model
RAN = ("ran", "embeddings", "output 0", "absorbed")
Build = Callable[[], tuple[Any, dict[str, Any]]]  # a model and its inputs


def add_options(parser: argparse.ArgumentParser, seconds: int) -> None:
    """The options of every survey."""
    parser.add_argument("--only", nargs="+", help="these models; with --save their rows go into the saved result")
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


def tables_of(rows: Sequence[Row], source: str = "run") -> list[dict[str, Any]]:
    """How many models had each outcome, and the outcome of each; `source`: where rows come from that do not say so."""
    counts = Counter(row["outcome"] for row in rows)
    columns = dict.fromkeys(("model", "outcome", "nodes", "unseen", "growth", "faint", "why"))
    counted = [{"source": source, "outcome": name, "models": n} for name, n in counts.most_common()]
    return [
        table("outcomes", {"outcome": None, "models": None}, counted),
        table("models", columns, [{"source": source, **row} for row in rows]),
    ]


def merged(found: Result, path: Path, name: str, keys: Sequence[str]) -> Result:
    """A result with the rows of the table `name` put into those of the saved one, where they replace rows of the same `keys`.

    Each row keeps its source; the other tables are those of `found`.
    """
    before = load(path)
    again = {tuple(row[key] for key in keys) for row in rows_of(found, name)}
    kept = [row for row in rows_of(before, name) if tuple(row[key] for key in keys) not in again]
    sources = {each: before["sources"][each] for each in before["sources"] if any(row["source"] == each for row in kept)}
    (source,) = found["sources"].values()
    label = next((each for each, other in sources.items() if other == source), None)
    if label is None:
        label = next(each for each in ("run", *(f"run {nr + 2}" for nr in range(len(sources)))) if each not in sources)
    tables = [{**each, "rows": [{**row, "source": label} for row in each["rows"]]} for each in found["tables"]]
    tables = [{**each, "rows": [*kept, *each["rows"]]} if each["name"] == name else each for each in tables]
    return {**found, "sources": {**sources, label: source}, "tables": tables}


def with_others(found: Result, path: Path) -> Result:
    """A survey of some models put into the saved one."""
    both = merged(found, path, "models", ["model"])
    rows = sorted(rows_of(both, "models"), key=lambda row: row["model"])
    last = both["tables"][0]["rows"][0]["source"]
    return {**both, "settings": {**found["settings"], "models": len(rows)}, "tables": tables_of(rows, last)}


def too_few(rows: Sequence[Row], least: float, what: str) -> list[str]:
    """In words, if fewer of the models that were built ran than this share; else nothing."""
    built = [row for row in rows if row["outcome"] != "not built"]
    share = sum(row["outcome"] in RAN for row in built) / max(len(built), 1)
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


def draw_zeros(model: nn.Module) -> None:
    """Draw the weights and codebooks that are all zero; biases stay, and so do counters, which have one dimension."""
    codebooks = [(name, buffer) for name, buffer in model.named_buffers() if buffer.dim() > 1 and buffer.is_floating_point()]
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *codebooks):
            if not name.endswith("bias") and not tensor.any():
                tensor.normal_(std=0.1)


def set_statistics(model: nn.Module, run: Callable[[], Any]) -> None:
    """Give batch norms the mean and variance of what `run` brings: with 0 and 1, the signals of an untrained net die out."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if norms:
        for norm in norms:
            norm.train()
            norm.momentum = 1.0  # the statistics of the last batch
        with torch.no_grad():
            run()
        model.eval()


def survey_one(name: str, build: Build) -> Row:
    """What became of one model."""
    row: Row = {"model": name}
    try:
        model, inputs = build()
    except BaseException as error:
        return {**row, "outcome": "not built", "why": _words(error)}
    try:
        outcome, r, shares = explain(model, inputs)
        row |= {"nodes": len(r.report), "unseen": len(r.report.unseen), "growth": _growth(r, shares)}
        if row["growth"] is None:
            return {**row, "outcome": "not finite"}
        if any(each.any() for each in shares):
            return {**row, "outcome": outcome, "why": "; ".join(sorted({place.split(" ")[0] for place in r.report.unknown}))}
        if not r.seed.any():
            return {**row, "outcome": "output 0"}
        if not _accounts_for_all(r):
            return {**row, "outcome": "stopped", "why": "relevance was lost"}
        _, fainter, shares = explain(model, inputs, relevance.presets.epsilon(FAINT))
        where = next(iter(r.report.absorbed_by_module), "")
        return {**row, "outcome": "absorbed", "faint": _growth(fainter, shares), "why": f"most by {where}" if where else ""}
    except BaseException as error:
        return {**row, "outcome": "stopped", "why": _words(error)}


def _growth(r: relevance.Result, shares: Sequence[Tensor]) -> float | None:
    """The absolute relevance of the inputs over that of the output, 0 for an output of 0; None where it is not finite."""
    size, explained = sum(float(each.abs().sum()) for each in shares), float(r.seed.abs().sum())
    if not math.isfinite(size):
        return None
    return float(f"{size / explained:.3g}") if explained else 0.0


def _accounts_for_all(r: relevance.Result) -> bool:
    """Whether the report accounts for all of the output's relevance: absorbed on the way, or arrived where the walk ends."""
    arrived = sum(row.relevance_out for row in r.report if row.ends)
    return math.isclose(arrived + r.report.absorbed, float(r.seed.sum()), rel_tol=1e-3, abs_tol=1e-3 * float(r.seed.abs().sum()))


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
