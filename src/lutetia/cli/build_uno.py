"""Whether a program fits an Arduino Uno, and which of the first tables of a model would."""

from __future__ import annotations

from typing import Any

from lutetia.cli.build_tables import Room, tables_that_fit
from lutetia.models import Tabular
from lutetia.precompute import IntegerClassifier, IntegerTransformer, LUTNetwork, c_memory

UNO = {"flash": 32_256, "ram": 2_048}  # bytes of an ATmega328P, less those of the boot loader
SKETCH = {"flash": 3_000, "ram": 500}  # of a sketch that reads rows from Serial, and of the stack
CODE = 600  # bytes of a program besides its tables
FEWER_BITS = 4  # of a weight: two to a byte
AVR = "AVR"


def uno_facts(model: IntegerTransformer | IntegerClassifier, report: dict[str, Any]) -> dict[str, Any] | None:
    """What a program takes of an Uno and what there is; where it does not fit, how many tables would. None without a compiler."""
    compiled = report["compiled"].get(AVR)
    if compiled is None:
        return None
    flash = report["flash_table_bytes"] + CODE if compiled["left_out"] else compiled["flash"]  # one array may be too large
    taken = {"flash": flash, "ram": report["ram_bytes"] + report.get("ram_window_bytes", 0)}
    room = {name: UNO[name] - SKETCH[name] for name in UNO}
    fits = all(taken[name] <= room[name] for name in room)
    is_flash = taken["ram"] <= room["ram"]
    smaller = [] if fits or not is_flash else _smaller(model, report, room["flash"])
    tables = getattr(model.model.config, "n_tables", None)
    return {"fits": fits, **taken, "room": room, "tables": tables, "smaller": smaller}


def _smaller(model: IntegerTransformer | IntegerClassifier, report: dict[str, Any], most: int) -> list[dict[str, int]]:
    """Tables and bits of a weight that fit."""
    if not (isinstance(model, IntegerClassifier) and isinstance(model.model, Tabular) and model.model.config.core == "tables"):
        return []
    compiled = report["compiled"][AVR]
    code = CODE if compiled["left_out"] else compiled["flash"] - _table_bytes(model)

    def cost(network: LUTNetwork) -> int:
        return code + _table_bytes(IntegerClassifier(network, None, model.columns))

    bits = dict.fromkeys((report["weight_bits"], min(FEWER_BITS, report["weight_bits"])))
    counts = {each: tables_that_fit(model.model, each, Room(most, cost, "bytes")) for each in bits}
    return [{"tables": count, "weight_bits": each} for each, count in counts.items()]


def _table_bytes(model: IntegerClassifier) -> int:
    told = c_memory(model)
    return told["flash_table_bytes"] + (told["flash_encoding_bytes"] if "ram_window_bytes" in told else 0)


def uno_text(told: dict[str, Any], weight_bits: int) -> str:
    """The same in a sentence."""
    room = told["room"]
    text = (
        f"{told['flash']:,} of the {room['flash']:,} bytes of flash and {told['ram']:,} of the {room['ram']:,} bytes of RAM "
        "that a sketch leaves"
    )
    if told["fits"]:
        return f"fits: {text}"
    options = []
    for each in told["smaller"]:
        tables = "" if each["tables"] == told["tables"] else f"--tables {each['tables']}"
        bits = "" if each["weight_bits"] == weight_bits else f"--weight-bits {each['weight_bits']}"
        options.append(f"{tables} {bits}".strip())
    return f"does not fit: {text}" + (f"; {' or '.join(options)} would" if options else "")
