"""Readings in place of codes: what each input of a circuit of a table of data stands for, on which bits it is, and how many
training rows change their answer because their values lie between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lutetia._shared.numbers import short_number, with_unit
from lutetia.cli.build_data import Measured
from lutetia.cli.guard import UsageError
from lutetia.errors import ArgumentError
from lutetia.models import Classifier, Model, Reading, Tabular, parse_readings, value_columns
from lutetia.precompute import LUTNetwork, StreamEdge

AT_ONCE = 1 << 14  # rows whose answers are compared
MOST_SHOWN = 6  # columns in a line
MEANING = ("reading", "step", "zero", "low", "high")  # of a number, what its value is


def asked_readings(texts: Sequence[str]) -> dict[str, Reading]:
    """The readings of --reading, by the names of columns."""
    try:
        return parse_readings(texts)
    except ArgumentError as error:
        raise UsageError(f"--reading: {error}") from error


def check_readings(model: Model[Any], bits: int | None, texts: Sequence[str]) -> None:
    """Refuse readings that a model cannot have, before anything takes long."""
    if isinstance(model, Tabular):
        if texts or bits is not None:
            value_columns(model, bits, asked_readings(texts))
    elif texts:
        raise UsageError(f"--reading is for a table of data, not for a {type(model).__name__}")


def on_readings(
    model: Tabular, network: LUTNetwork, data: Measured | str, bits: int | None, asked: Mapping[str, Reading]
) -> tuple[LUTNetwork, dict[str, Any]]:
    """The integer model that takes readings, and which training rows it answers in another way than with exact values."""
    made = model.on_values(network, bits, asked)
    told: dict[str, Any] = {"left_out": "", "rows": 0, "changed": 0}
    if isinstance(data, str) or data.train is None:
        why = data if isinstance(data, str) else "there are no training rows"
        return made, {**told, "left_out": f"not compared with exact values ({why})"}
    for x in data.train[0].split(AT_ONCE):
        told["rows"] += len(x)
        told["changed"] += int((network(x) != made(x)).any(1).sum())
    return made, told


def readings_text(given: Mapping[str, Any], place: str = "summary.html") -> str:
    """The readings of the columns of a circuit, of the facts about its input; `place` says all of them."""
    columns = given["columns"]
    shown = [_column_text(column) for column in columns[:MOST_SHOWN]]
    more = [f"{len(columns) - MOST_SHOWN:,} more in {place}"] if len(columns) > MOST_SHOWN else []
    bits = sum(column["bits"] + column["valid"] for column in columns)
    return f"{bits} bits: {', '.join([*shown, *more])}"


def _column_text(column: Mapping[str, Any]) -> str:
    bits = "1 bit" if column["bits"] == 1 else f"{column['bits']} bits"
    text = f"{column['name']} {bits}" if column["reading"] is None else f"{column['name']}={column['reading']}"
    return f"{text} and a valid bit" if column["valid"] else text


def changed_text(told: Mapping[str, Any]) -> str:
    """How many training rows have another answer with readings."""
    if told["left_out"]:
        return str(told["left_out"])
    if not told["changed"]:
        return f"all {told['rows']:,} training rows have the answer of their exact values"
    return (
        f"{told['changed']:,} of {told['rows']:,} training rows change their answer, as their values lie between two steps or "
        "beyond the ends (finer steps, --reading, or more bits, --input-bits, change fewer)"
    )


# ---- ports -----------------------------------------------------------------------------------------------------------


def input_ports(model: Classifier, network: LUTNetwork) -> list[dict[str, Any]]:
    """The inputs that have names: which bits of `in_data` each is, the highest first, its range, and what its numbers mean."""
    edge, names = network.graph.input_edge, [str(name) for name in model.metadata.get("features", ())]
    categories, units = (model.metadata.get(key, {}) for key in ("categories", "units"))
    given = network.encoder.to_dict()
    if "columns" in given:
        ports: list[dict[str, Any]] = []
        for number, column in enumerate(given["columns"]):
            own = [str(each) for each in categories.get(str(number), ())]
            value = {key: column[key] for key in MEANING} | {"unit": units.get(str(number), "")} if column["reading"] else None
            ports.append({**_port(edge, len(ports), column["name"]), "categories": own, "value": value})
            if column["valid"]:
                own_bit = _port(edge, len(ports), f"{column['name']}, valid")
                ports.append({**own_bit, "categories": [], "value": None, "valid_of": column["name"]})
        return ports
    if isinstance(model, Tabular) and names and given["map"] == "ranks":
        names, categories = [f"{model.input_name(number, names)}, code" for number in range(edge.channels)], {}
    if len(names) != edge.channels:
        return []
    return [
        {**_port(edge, number, name), "categories": [str(each) for each in categories.get(str(number), ())], "value": None}
        for number, name in enumerate(names)
    ]


def output_port(model: Classifier, network: LUTNetwork) -> dict[str, Any] | None:
    """The same of the number that a regression gives, on `out_data`; None for classes."""
    if not isinstance(model, Tabular) or not model.is_regression:
        return None
    return {**_port(network.graph.output_edge, 0, model.title or "the prediction"), "categories": [], "value": None}


def _port(edge: StreamEdge, number: int, name: str) -> dict[str, Any]:
    domain, (first, end) = edge.domains[number], edge.offsets[number : number + 2].tolist()
    return {"name": name, "bits": [end - 1, first], "low": domain.low, "high": domain.high, "signed": domain.signed}


def value_text(value: Mapping[str, Any]) -> str:
    """What the numbers of an input mean, where they are not the values: -40 + 0.0625 × number, -40 to 215.938 °C."""
    if (value["step"], value["zero"], value["unit"]) == (1, 0, ""):
        return ""
    zero = f"{short_number(value['zero'], 6)} + " if value["zero"] else ""
    step = f"{short_number(value['step'], 6)} × " if value["step"] != 1 else ""
    ends = f"{short_number(value['low'], 6)} to {with_unit(value['high'], value['unit'] or None)}"
    return f"; the value is {zero}{step}number, {ends} ({value['reading']})"
