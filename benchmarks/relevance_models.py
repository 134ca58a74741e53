"""Relevance runs on the model types of transformers that a tiny random model can be made of.

Each type is built with small sizes (`tiny_models.py`), run and explained in a process of its own, with limits on time and
memory. *ran*: relevance is finite and reached the inputs. *embeddings*: the model makes the inputs of its embeddings itself, so
these were explained by name. *stopped*: an operation without a rule, or another error. Types that could not be built, because
sizes or inputs were guessed wrong, are counted apart.

    lutetia bench relevance_models [--quick] [--json] [--save] [-- --only bert llama --seconds 20 --minutes 30]
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
from typing import Any

import torch
from torch import Tensor

from lutetia import relevance
from lutetia.errors import ArgumentError
from results import Row, finish, options_of, progress, result, table
from tiny_models import build

NEEDS = ("transformers",)
MEMORY = 6 << 30  # bytes of address space for one model
LEAST = 0.99  # the claimed share of the types that were built
QUICK = ("bert", "llama")


def explain(model: Any, inputs: dict[str, Any]) -> tuple[str, relevance.Result, list[Tensor]]:
    """How it ran, the result, and the relevance of the inputs."""
    try:
        r = relevance.attribute(model, inputs)
        return "ran", r, [r[value] for value in inputs.values() if isinstance(value, Tensor) and value in r]
    except ArgumentError as error:
        name = re.search(r"wrt=\['([^']*)'", str(error))
        if name is None:
            raise
        r = relevance.attribute(model, inputs, wrt=[name[1]])
        return "embeddings", r, [r[name[1]]]


def survey_one(model_type: str) -> Row:
    """What became of one model type."""
    try:
        model, inputs = build(model_type)
    except BaseException as error:
        return {"model": model_type, "outcome": "not built", "why": _words(error)}
    try:
        outcome, r, found = explain(model, inputs)
    except BaseException as error:
        return {"model": model_type, "outcome": "stopped", "why": _words(error)}
    finite = all(bool(each.isfinite().all()) for each in found)
    return {
        "model": model_type,
        "outcome": outcome if finite else "not finite",
        "nodes": len(r.report),
        "unseen": len(r.report.unseen),
        "why": "",
    }


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def apart(model_type: str, seconds: int) -> Row:
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
        os.write(write, json.dumps(survey_one(model_type)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"model": model_type, "outcome": "not built", "why": "took too long, or too much memory"}


def main(argv: list[str] | None = None) -> int:
    """Survey the model types; 1 when fewer ran than claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--only", nargs="+", help="these model types")
    parser.add_argument("--seconds", type=int, default=20, help="for one model (default 20)")
    parser.add_argument("--minutes", type=float, default=60, help="for all of them (default 60)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    names = options.only or (QUICK if options.quick else sorted(MODEL_MAPPING_NAMES))
    rows, began = [], time.monotonic()
    for name in names:
        if time.monotonic() - began > 60 * options.minutes:
            break
        progress(name)
        rows.append(apart(name, options.seconds))
    counts = Counter(row["outcome"] for row in rows)
    built = len(rows) - counts["not built"]
    share = (counts["ran"] + counts["embeddings"]) / max(built, 1)
    missed = [f"{share:.1%} of {built} built model types ran, at least {LEAST:.0%} claimed"] if share < LEAST else []
    tables = [
        table("outcomes", {"outcome": None, "types": None}, [{"outcome": name, "types": n} for name, n in counts.most_common()]),
        table("types", {"model": None, "outcome": None, "nodes": None, "unseen": None, "why": None}, rows),
    ]
    settings = {"types": len(names), "seconds": options.seconds}
    return finish(result(__doc__, "relevance_models", settings, tables, packages=["transformers"], missed=missed), options)


if __name__ == "__main__":
    sys.exit(main())
