"""`lutetia flow`: one run of a saved model, recorded and drawn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import torch

from lutetia.cli.guard import UsageError
from lutetia.cli.inputs import load_for_inputs, read_sample, read_tokens
from lutetia.cli.one_target import only_one
from lutetia.cli.outputs import check_output, default_page
from lutetia.cli.show import console
from lutetia.flow import Flow, record
from lutetia.models import Classifier, LUTTransformer, as_floats
from lutetia.report import lead_over_rivals

SUFFIXES = (".html", ".json", ".mmd")


def default_drawing() -> Path:
    """The default file for the drawing."""
    return default_page("run.html")


def record_run(
    checkpoint: Path, given: str, out: Path | None, backward: bool, row: int | None, unknown: str | None = None
) -> Flow:
    """Run a model once and return what happened, written to `out` where that is given."""
    check_output("--out", out, SUFFIXES)
    model = only_one(load_for_inputs(checkpoint, unknown), "flow")
    if isinstance(model, Classifier):
        flow = _run(model, as_floats(model, read_sample(model, given, row).x), backward)
    else:
        assert isinstance(model, LUTTransformer)
        if row is not None:
            raise UsageError("--row works only for classifiers; this is a language model: give it text")
        flow = _run(model, read_tokens(model, given)[None], backward)
    if out is not None:
        flow.save(out)
    return flow


def _run(model: Classifier | LUTTransformer, x: torch.Tensor, backward: bool) -> Flow:
    """One forward pass of x [1, ...], and with `backward` from the lead of the best output back to the input."""
    x = x.requires_grad_(backward and x.is_floating_point())

    def once() -> None:
        with torch.set_grad_enabled(backward):
            scores = model(x)
        if backward:
            best = scores.flatten(0, -2)[-1]
            lead_over_rivals(best, int(best.argmax())).backward()

    once()  # once before, so that no time goes into compiling kernels
    with record() as flow:
        once()
    return flow


def show_flow(flow: Flow, out: Path) -> None:
    """What was recorded, in a few lines: the steps by name, with their time and bytes."""
    screen = console()
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for step in flow.leaves():
        counts[step.name] += 1
        seconds[step.name] += step.duration or 0.0  # type: ignore[assignment]
        moved[step.name] += step.bytes
    width = max(map(len, counts), default=4)
    screen.print(f"{'step':<{width}}  {'times':>5}  {'ms':>9}  {'bytes':>13}", soft_wrap=True)
    for name, count in counts.items():
        screen.print(f"{name:<{width}}  {count:>5}  {1e3 * seconds[name]:>9.3f}  {moved[name]:>13,}", soft_wrap=True)
    total = sum(counts.values())
    screen.print(
        f"{total} step{'' if total == 1 else 's'}, {flow.bytes_moved:,} bytes read and written; drawn in {out}", soft_wrap=True
    )
