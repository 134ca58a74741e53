"""`lutetia predict` with a model of unusual rows: which rows are unusual, and how rare that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lutetia._shared.numbers import short_number
from lutetia.cli.inputs import read_usable
from lutetia.cli.predict import AT_ONCE, SHOWN, STDOUT, PredictRequest, input_warnings, kept_columns, more_text, write_rows
from lutetia.cli.show import console, one_line, print_warning
from lutetia.models import Tabular, as_floats, rarity, rarity_text

Array = np.ndarray[Any, Any]
WORDS = ("no", "yes")


def predict_unusual(model: Tabular, request: PredictRequest, show: bool) -> dict[str, Any]:
    """Each row's score, above 0 where it is unusual, and the part of usual rows that are less unusual."""
    (files, _), out = read_usable(model, request.given), request.out
    scores = np.concatenate([unusual_scores(model, as_floats(model, file.x)) for file in files])
    names = [name for file in files for name in file.names]
    rows = zip(names, scores.tolist(), rarity(model.metadata, scores).tolist(), strict=True)
    listed = [{"input": name, "unusual": score > 0, "score": score, "rarity": part} for name, score, part in rows]
    warnings = input_warnings(model, files)
    if out is not None:
        kept = kept_columns(files, None) if request.keep else None
        before = [[each["input"]] for each in listed] if kept is None else kept.rows
        cells = [
            [*own, WORDS[each["unusual"]], repr(each["score"]), repr(each["rarity"])]
            for own, each in zip(before, listed, strict=True)
        ]
        write_rows(out, [*(["input"] if kept is None else kept.header), "unusual", "score", "rarity"], cells)
    if show:
        for warning in warnings:
            print_warning(warning)
        if out != STDOUT:
            _show(model, listed, more_text(len(listed), out))
    return {"kind": model.kind, **model.metadata["unusual"], "predictions": listed, "warnings": warnings, "skipped": []}


@torch.no_grad()
def unusual_scores(model: Tabular, x: torch.Tensor) -> Array:
    """How unusual rows x [n, columns] are, float64 [n]: above 0 where they are flagged."""
    scores = torch.cat([model(part) for part in x.split(AT_ONCE)]).double()
    return (scores[:, 1] - scores[:, 0]).cpu().numpy()


def unusual_text(model: Tabular, score: float, part: float) -> str:
    """What is said of one row: "unusual: more unusual than 99.7% of usual rows"."""
    said = rarity_text(part, model.metadata["unusual"]["rows"])
    return f"{'unusual' if score > 0 else 'usual'}, {said} (score {short_number(score, 3, sign=True)})"


def _show(model: Tabular, listed: Sequence[dict[str, Any]], more: str) -> None:
    """The rows in their order, then how many are unusual."""
    screen = console()
    width = min(60, max(len(one_line(each["input"])) for each in listed[:SHOWN]))
    for each in listed[:SHOWN]:
        told = unusual_text(model, each["score"], each["rarity"])
        screen.print(f"{one_line(each['input']):<{width}}  {told}", soft_wrap=True, markup=False)
    if len(listed) > SHOWN:
        screen.print(more, soft_wrap=True, markup=False)
    flagged = sum(each["unusual"] for each in listed)
    screen.print(f"{flagged:,} of {len(listed):,} unusual", soft_wrap=True)
