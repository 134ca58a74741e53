"""How many tables of a `Tabular` a circuit holds: as many as fit, fitted again, and the accuracy with fewer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from lutetia.cli.build_data import Measured
from lutetia.cli.guard import UsageError
from lutetia.models import Tabular, finds_unusual
from lutetia.precompute import LUTNetwork
from lutetia.training import Boosting, RefitTrial, learning_rows, refit_tables, try_refit

MOST_LUTS = 16_000  # estimated, of which yosys leaves about two thirds: minutes, not hours, to prove and to synthesise
FEWER = (2, 4, 8)  # parts of the tables that are measured, too
LEAST_TABLES = 8
UNSEEN = ("samples", "unchanged", "accuracy_before", "accuracy_after")  # of what dropping rows is reported to have cost
MOST_SCORES = 1 << 20  # samples × classes up to which a second fit takes seconds


@dataclass(frozen=True)
class Room:
    """How large a circuit may become: at most `most` of what `cost` says it takes, whose name in a report is `unit`."""

    most: int
    cost: Callable[[LUTNetwork], int]
    unit: str = "luts"


LUTS = Room(MOST_LUTS, lambda network: network.graph.cost().luts)


class KeptTables(NamedTuple):
    """The integer model of the first tables, whether their rows were fitted again, the trial that decided it, and a model of
    these tables alone."""

    network: LUTNetwork
    again: bool
    trial: RefitTrial | None
    alone: Tabular


@dataclass(frozen=True)
class Refit:
    """How tables that are kept may be fitted again: as the settings of the run say, always, never, or by a trial (None)."""

    settings: Boosting | None
    always: bool | None = None


def kept_tables(
    model: Tabular, weight_bits: int, data: Measured | str, refit: Refit, wanted: int | None, room: Room
) -> tuple[KeptTables, dict[str, Any]]:
    """The tables that a circuit holds, and their facts.

    Their number is `wanted`, or by default as many as there is room for. Where some are left out, the rows of the others are
    fitted again if that helps: `cut` is the accuracy without that, `refit` the trial, `fewer` the accuracy of smaller circuits.
    """
    count = tables_that_fit(model, weight_bits, room) if wanted is None else wanted
    if count > model.config.n_tables:
        raise UsageError(f"--tables is {wanted}, and the model has {model.config.n_tables}")
    kept = first_tables(model, count, weight_bits, data, refit)
    while kept.again and wanted is None and count > 1 and (size := room.cost(kept.network)) > room.most:
        count = min(count - 1, count * room.most // size)  # larger numbers in their rows take more
        kept = first_tables(model, count, weight_bits, data, refit)
    used: dict[str, Any] = {"all": model.config.n_tables, "used": count}
    if kept.again:
        used["cut"] = measured(model.network(weight_bits, count), data)
    if kept.trial is not None:
        used["refit"] = kept.trial.to_dict()
    if wanted is None:
        used["fewer"] = _fewer(model, count, weight_bits, data, refit, room)
    return kept, used


def tables_that_fit(model: Tabular, weight_bits: int, room: Room) -> int:
    """For how many of the first tables of a model there is room; all for gates, which are trained together."""
    count = model.config.n_tables
    if model.config.core == "gates":
        return count
    while count > 1 and (estimate := room.cost(model.network(weight_bits, count))) > room.most:
        count = max(1, min(count - 1, count * room.most // estimate))  # the first tables are the widest, so once is not enough
    return count


def first_tables(model: Tabular, n_tables: int, weight_bits: int, data: Measured | str, refit: Refit) -> KeptTables:
    """The integer model of the first tables, fitted again to the data of the run if that is available and helps."""
    is_whole = n_tables == model.config.n_tables
    cut = KeptTables(model.network(weight_bits, n_tables), False, None, model if is_whole else model.first(n_tables))
    if isinstance(data, str) or data.fitted is None or refit.settings is None or refit.always is False:
        return cut
    if is_whole or model.config.core == "gates" or "texts" in model.metadata:
        return cut  # words were weighed by the same rows, which would seem to be sure
    if model.adds_chances or finds_unusual(model.metadata):
        return cut  # a fit adds scores, and needs rows of both classes
    rows = learning_rows(data.fitted)
    trial = None if refit.always else try_refit(model, rows, n_tables, refit.settings)
    if trial is not None and not trial.gains:
        return cut._replace(trial=trial)
    rounds = model.config.n_tables - n_tables
    alone = refit_tables(model, rows, n_tables, rounds, refit.settings)
    network = alone.network(weight_bits)
    return KeptTables(LUTNetwork(network.graph, model, network.encoder), True, trial, alone)


def measured(network: LUTNetwork, data: Measured | str) -> dict[str, Any]:
    """The accuracy of the float model and of the integer model on the data of the run, or why it was not measured."""
    if isinstance(data, str):
        return {"left_out": f"not measured ({data})"}
    told = {"left_out": "", "split": data.split, **network.report(data.x, data.labels, query=data.query), "samples": len(data.x)}
    return told | ({"unusual": True} if finds_unusual(getattr(network.model, "metadata", {})) else {})


def without_unseen(network: LUTNetwork, data: Measured | str) -> tuple[LUTNetwork, dict[str, Any]]:
    """The integer model without the rows that no training sample reads, and what that changed on the samples measured on."""
    if isinstance(data, str) or data.train is None:
        raise UsageError(f"--drop-unseen needs the training data: {data if isinstance(data, str) else 'there is no such split'}")
    if data.labels.is_floating_point():
        raise UsageError("--drop-unseen is for a classifier, not for a regression")
    if finds_unusual(getattr(network.model, "metadata", {})):
        raise UsageError("--drop-unseen drops rows that no training sample reads, which are those that tell unusual rows")
    if isinstance(network.model, Tabular) and network.model.config.monotone:
        raise UsageError("--drop-unseen changes rows one by one, which would break fit.monotone of this model: build without it")
    rows, check = network.quantise(data.train[0]), network.quantise(data.x)
    graph = network.graph.dont_cares(unseen=rows, check=check, labels=data.labels).dedupe()
    found = graph.reports[-1]
    told = {"training_samples": len(rows), "luts_before": network.graph.cost().luts, "luts_after": graph.cost().luts}
    return LUTNetwork(graph, network.model, network.encoder), {**told, **{key: found[key] for key in UNSEEN}}


def output_unit(network: LUTNetwork) -> float | None:
    """The factor from a circuit's number to the number that a regression predicts; None for classes."""
    is_regression = isinstance(network.model, Tabular) and network.model.is_regression
    return float(network.graph.output_edge.scale[0]) if is_regression else None


def _fewer(model: Tabular, count: int, weight_bits: int, data: Measured | str, refit: Refit, room: Room) -> list[dict[str, Any]]:
    """The accuracy of circuits with a half, a quarter and an eighth of the tables; none if that would take long."""
    if isinstance(data, str) or data.train is None or len(data.train[1]) * model.config.n_classes > MOST_SCORES:
        return []
    if model.config.core == "gates":
        return []
    told = []
    for n_tables in (count // part for part in FEWER if count // part >= LEAST_TABLES):
        network = first_tables(model, n_tables, weight_bits, data, refit).network
        told.append({"tables": n_tables, room.unit: room.cost(network), **measured(network, data)})
    return told
