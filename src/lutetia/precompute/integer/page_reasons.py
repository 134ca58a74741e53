"""Probabilities and reasons on a page: see `page/reasons.js`."""

from __future__ import annotations

from typing import Any

from lutetia.models import Tabular, Votes, VotesClassifier, adds_chances, finds_unusual
from lutetia.precompute.integer.classifier import IntegerClassifier
from lutetia.precompute.ir.stream import Sum

TURNED = "How far the answer would fall if a comparison came out the other way"
BLANKED = "How far the answer would fall without an input"
LEAD = "How far the answer's lead"
SIGNS = {True: "orange for the answer, blue against it.", False: "orange raises it, blue lowers it."}


def reason_data(model: IntegerClassifier) -> dict[str, Any]:
    """What the script computes with, besides the tables."""
    known = getattr(model.model, "metadata", {})
    told = {"scoreUnit": _score_unit(model), "votes": has_votes(model), "addsChances": adds_chances(model.model)}
    return {**told, "findsUnusual": finds_unusual(known)}


def has_votes(model: IntegerClassifier) -> bool:
    """Whether the tables of a table of data count votes."""
    return isinstance(model.model, Tabular) and isinstance(model.model.core, Votes)


def reasons_said(model: IntegerClassifier) -> str:
    """What the effects of reasons are."""
    is_number = model.n_outputs == 1
    lead = BLANKED if has_votes(model) else TURNED
    lead = lead if is_number else lead.replace("How far the answer", LEAD)
    is_log = isinstance(model.model, Tabular) and model.model.loss.is_log
    return ("The logarithm of the answer: " if is_log else "") + f"{lead}: {SIGNS[not is_number]}"


def _score_unit(model: IntegerClassifier) -> float:
    """What 1 of a sum is of a score, or of a number: a vote counts for one and not against one."""
    core = getattr(model.model, "votes" if isinstance(model.model, VotesClassifier) else "core", None)
    if isinstance(core, Votes):
        return 2 / core.temperature
    return float([node.edge.scale[0] for node in model.graph.nodes if isinstance(node, Sum)][-1])
