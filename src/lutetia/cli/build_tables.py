"""How many tables of a `Tabular` a circuit holds: as many as fit, fitted again, and the accuracy with fewer."""

from __future__ import annotations

from typing import Any

import numpy as np

from lutetia.cli.build_data import Measured
from lutetia.cli.guard import UsageError
from lutetia.models import Tabular
from lutetia.precompute import LUTNetwork
from lutetia.training.boosting import Boosting
from lutetia.training.tabular import Rows, refit_tabular

MOST_LUTS = 16_000  # estimated, of which yosys leaves about two thirds: minutes, not hours, to prove and to synthesise
FEWER = (2, 4, 8)  # parts of the tables that are measured, too
LEAST_TABLES = 8
UNSEEN = ("samples", "unchanged", "accuracy_before", "accuracy_after")  # of what dropping rows is reported to have cost
MOST_SCORES = 1 << 20  # samples × classes up to which a second fit takes seconds


def kept_tables(
    model: Tabular, weight_bits: int, data: Measured | str, settings: Boosting | None, wanted: int | None
) -> tuple[LUTNetwork, dict[str, Any]]:
    """The integer model of the tables that a circuit holds, and its facts.

    Their number is the one `wanted`, or by default what `MOST_LUTS` hold. Where some are left out, the rows of the others are
    fitted again, unless `settings` is None; `cut` is what the circuit would be worth without that, `fewer` what smaller circuits
    are worth.
    """
    count = tables_that_fit(model, weight_bits) if wanted is None else wanted
    if count > model.config.n_tables:
        raise UsageError(f"--tables is {wanted}, and the model has {model.config.n_tables}")
    network = refit_network(model, count, weight_bits, data, settings)
    while network is not None and wanted is None and count > 1 and (luts := network.graph.cost().luts) > MOST_LUTS:
        count = min(count - 1, count * MOST_LUTS // luts)  # larger numbers in their rows take more LUTs
        network = refit_network(model, count, weight_bits, data, settings)
    cut = model.network(weight_bits, count)
    used: dict[str, Any] = {"all": model.config.n_tables, "used": count}
    if network is not None:
        used["cut"] = measured(cut, data)
    if wanted is None:
        used["fewer"] = _fewer(model, count, weight_bits, data, settings)
    return network or cut, used


def tables_that_fit(model: Tabular, weight_bits: int) -> int:
    """How many of the first tables of a model an estimated `MOST_LUTS` hold; gates are trained together, so all of them."""
    count = model.config.n_tables
    if model.config.core == "gates":
        return count
    while count > 1 and (estimate := model.network(weight_bits, count).graph.cost().luts) > MOST_LUTS:
        count = max(1, count * MOST_LUTS // estimate)  # the first tables are the widest, so once is not enough
    return count


def refit_network(
    model: Tabular, n_tables: int, weight_bits: int, data: Measured | str, settings: Boosting | None
) -> LUTNetwork | None:
    """The integer model of the first tables, fitted again to the data of the run; None without that, and for all tables."""
    if isinstance(data, str) or data.train is None or settings is None:
        return None
    if n_tables == model.config.n_tables or model.config.core == "gates":
        return None
    x, y = (part.numpy() for part in data.train)
    network = refit_tabular(model, Rows(x, y, np.ones(len(y), np.float32)), n_tables, settings).network(weight_bits)
    return LUTNetwork(network.graph, model, network.encoder)


def measured(network: LUTNetwork, data: Measured | str) -> dict[str, Any]:
    """The accuracy of the float model and of the integer model on the data of the run, or why it was not measured."""
    if isinstance(data, str):
        return {"left_out": f"not measured ({data})"}
    return {"left_out": "", "split": data.split, **network.report(data.x, data.labels), "samples": len(data.x)}


def without_unseen(network: LUTNetwork, data: Measured | str) -> tuple[LUTNetwork, dict[str, Any]]:
    """The integer model without the rows that no training sample reads, and what that changed on the samples measured on."""
    if isinstance(data, str) or data.train is None:
        raise UsageError(f"--drop-unseen needs the training data: {data if isinstance(data, str) else 'there is no such split'}")
    if data.labels.is_floating_point():
        raise UsageError("--drop-unseen is for a classifier, not for a regression")
    rows, check = network.quantise(data.train[0]), network.quantise(data.x)
    graph = network.graph.dont_cares(unseen=rows, check=check, labels=data.labels).dedupe()
    found = graph.reports[-1]
    told = {"training_samples": len(rows), "luts_before": network.graph.cost().luts, "luts_after": graph.cost().luts}
    return LUTNetwork(graph, network.model, network.encoder), {**told, **{key: found[key] for key in UNSEEN}}


def _fewer(model: Tabular, count: int, weight_bits: int, data: Measured | str, settings: Boosting | None) -> list[dict[str, Any]]:
    """The accuracy of circuits with a half, a quarter and an eighth of the tables; none where that would take long."""
    if isinstance(data, str) or data.train is None or len(data.train[1]) * model.config.n_classes > MOST_SCORES:
        return []
    told = []
    for n_tables in (count // part for part in FEWER if count // part >= LEAST_TABLES):
        network = refit_network(model, n_tables, weight_bits, data, settings)
        if network is not None:
            told.append({"tables": n_tables, "luts": network.graph.cost().luts, **measured(network, data)})
    return told
