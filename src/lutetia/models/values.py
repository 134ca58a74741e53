"""A `Tabular` whose circuit takes whole numbers, such as the readings of a sensor or pixels, in place of codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_range
from lutetia.models.readings import MOST_BITS, Reading, find_readings

if TYPE_CHECKING:
    from lutetia.models.tabular import Tabular
    from lutetia.precompute import ListedCodes, LUTNetwork, RisingCodes, ValueColumn

PIXEL_BITS = 8
LISTED_BITS = 12  # of whole numbers that are categories
PIXEL = Reading(PIXEL_BITS, step=Fraction(1, 2**PIXEL_BITS - 1))  # a value of 1 is a pixel of 255


@dataclass(frozen=True)
class ColumnValues:
    """A column of a circuit: its name, the reading of its numbers or None for categories, the bits of these, and whether a bit
    behind them says that there is a value."""

    name: str
    reading: Reading | None
    n_categories: int
    valid: bool

    @property
    def bits(self) -> int:
        """Of the value."""
        return max(1, (self.n_categories - 1).bit_length()) if self.reading is None else self.reading.bits

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        told: dict[str, Any] = {"name": self.name, "bits": self.bits, "valid": self.valid, "reading": None}
        if (own := self.reading) is not None:
            told |= {"reading": own.text, "signed": own.signed, "step": float(own.step), "zero": float(own.zero)}
            told |= dict(zip(("low", "high"), map(float, own.ends), strict=True))
        return told


def value_network(
    model: Tabular, network: LUTNetwork, bits: int | None = None, readings: Mapping[str, Reading] | None = None
) -> LUTNetwork:
    """The integer model `network` of a model as one that takes the values themselves, as whole numbers: `readings` by the names
    of columns say what these stand for, "" for all others; without one a column has `bits` bits, or as many as its data needs.

    A column with negative values in the training data is signed. Categories are given by their numbers. A column that had
    missing values has an input of one bit more, which says whether there is a value. Dates are refused.
    """
    from lutetia.precompute import CodeEncoder, LUTNetwork, on_values

    columns = value_columns(model, bits, readings or {})
    given = [_value_column(model, number, column) for number, column in enumerate(columns)]

    def values(x: Tensor) -> Tensor:
        return _numbers(x, columns)

    told = {} if columns[0].reading is PIXEL else {"columns": [column.to_dict() for column in columns]}
    coded = CodeEncoder(max(column.bits for column in columns), values, map="values", more=told)
    return LUTNetwork(on_values(network.graph, given), model, coded)


def value_columns(model: Tabular, bits: int | None, readings: Mapping[str, Reading]) -> list[ColumnValues]:
    """The columns of a circuit that takes values; an error for those that cannot have such readings."""
    if bits is not None:
        check_range("bits", bits, 1, MOST_BITS)
    return _pixels(model, bits, readings) if len(model.config.input_shape) > 1 else _columns(model, bits, readings)


def _pixels(model: Tabular, bits: int | None, readings: Mapping[str, Reading]) -> list[ColumnValues]:
    """The pixels of an image, by their numbers."""
    if readings or bits not in (None, PIXEL_BITS):
        found = "readings are given" if readings else f"bits is {bits}"
        raise ArgumentError(f"{found}, expected {PIXEL_BITS} bits: a pixel has {PIXEL_BITS} bits")
    if not 0 <= np.min(model.metadata.get("input_low", 0)) <= np.max(model.metadata.get("input_high", 1)) <= 1:
        raise ArgumentError("the numbers of the images go beyond 0 to 1, expected pixels of 8 bits: train on those")
    return [ColumnValues(f"x{number}", PIXEL, 0, False) for number in range(model.n_columns)]


def _columns(model: Tabular, bits: int | None, readings: Mapping[str, Reading]) -> list[ColumnValues]:
    known, categories = model.metadata, model.metadata.get("categories", {})
    names = [str(name) for name in known["features"]] if known.get("features") else [f"x{at}" for at in range(model.n_columns)]
    found = find_readings(names, known, bits, readings)
    counts = [len(categories.get(str(number), ())) for number in range(len(names))]
    unknown = known.get("unknown") == "missing"  # categories that were never seen are missing, too
    valid = [number in known.get("empty", ()) or (unknown and count > 0) for number, count in enumerate(counts)]
    return [ColumnValues(*column) for column in zip(names, found, counts, valid, strict=True)]


def _value_column(model: Tabular, number: int, column: ColumnValues) -> ValueColumn:
    """A column, and the codes of all inputs that are made from it."""
    from lutetia.precompute import ListedCodes, RisingCodes, UInt, ValueColumn

    own = torch.nonzero(model.encoding.source == number)[:, 0].tolist()
    codes: dict[int, RisingCodes | ListedCodes] = {}
    if column.reading is None:
        domain = UInt(column.bits)
        every = np.arange(2**column.bits, dtype=np.float64)[:, None]
        listed = model.encoding.codes(np.broadcast_to(every, (len(every), model.n_columns))).astype(np.int64)
        codes |= {each: ListedCodes(listed[each]) for each in own}
        return ValueColumn(domain, codes, column.valid)
    if bool(model.encoding.ranks[own].any()):
        return _listed_column(model, own, column)
    for each in own:
        edges = model.encoding.edges[each].cpu().double().numpy()
        codes[each] = RisingCodes(np.array([column.reading.last(edge) for edge in edges[np.isfinite(edges)]], dtype=np.int64))
    return ValueColumn(column.reading.domain, codes, column.valid)


def _listed_column(model: Tabular, own: Sequence[int], column: ColumnValues) -> ValueColumn:
    """A column of categories that are whole numbers."""
    from lutetia.precompute import ListedCodes, ValueColumn

    reading = column.reading
    assert reading is not None
    if reading.signed or reading.bits > LISTED_BITS:
        raise ArgumentError(
            f"column {column.name!r} holds numbers of categories, and its reading is {reading.text}, expected an unsigned one of "
            f"at most {LISTED_BITS} bits"
        )
    values = np.array([float(reading.zero + reading.step * number) for number in range(2**reading.bits)])
    listed = model.encoding.codes(np.repeat(values[:, None], model.n_columns, 1)).astype(np.int64)
    return ValueColumn(reading.domain, {each: ListedCodes(listed[each]) for each in own}, column.valid)


def _numbers(x: Tensor, columns: Sequence[ColumnValues]) -> Tensor:
    """x [n, ...] as whole numbers int64 [n, inputs], the nearest that there are."""
    values = x.flatten(1).cpu()
    values = values.double() / (2**PIXEL_BITS - 1) if values.dtype == torch.uint8 and columns[0].reading is PIXEL else values
    made: list[np.ndarray] = []
    for column, own in zip(columns, values.double().numpy().T, strict=True):
        missing = np.isnan(own)
        if missing.any() and not column.valid:
            row = int(np.flatnonzero(missing)[0])
            raise ArgumentError(
                f"column {column.name!r} has no value in row {row}, expected one: none was missing in the training data, so the "
                "circuit has no bit for that"
            )
        made.append(_categories(own, column) if column.reading is None else column.reading.numbers(own))
        if column.valid:
            made.append((~missing).astype(np.int64))
    return torch.from_numpy(np.stack(made, 1))


def _categories(own: np.ndarray, column: ColumnValues) -> np.ndarray:
    """The numbers of categories; 0 where a value is missing."""
    wrong = ~(np.isnan(own) | ((own >= 0) & (own < 2**column.bits) & (own == np.floor(own))))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ArgumentError(
            f"column {column.name!r} holds {own[row]:.6g} in row {row}, expected the number of a category from 0 to "
            f"{2**column.bits - 1}"
        )
    return np.nan_to_num(own).astype(np.int64)
