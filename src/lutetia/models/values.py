"""A `Tabular` whose circuit takes whole numbers, such as the readings of a sensor or pixels, in place of codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_range

if TYPE_CHECKING:
    from lutetia.models.tabular import Tabular
    from lutetia.precompute import Domain, LUTNetwork

PIXEL_BITS = 8  # a value of 1 is a pixel of 255
MOST_BITS = 16  # a table of codes has a row for every value


def value_network(model: Tabular, network: LUTNetwork, bits: int) -> LUTNetwork:
    """The integer model `network` of a model as one that takes the values themselves, whole numbers of `bits` bits.

    A column with negative values in the training data is signed. Categories are given by their numbers. Dates, fractions and
    ranges that do not fit are refused, and so are samples with missing values.
    """
    from lutetia.precompute import CodeEncoder, LUTNetwork, UInt, ValueColumn, on_values

    check_range("bits", bits, 1, MOST_BITS)
    is_image = len(model.config.input_shape) > 1
    if is_image and bits != PIXEL_BITS:
        raise ArgumentError(f"bits is {bits}, expected {PIXEL_BITS}: a pixel has {PIXEL_BITS} bits")
    if is_image and not 0 <= np.min(model.metadata.get("input_low", 0)) <= np.max(model.metadata.get("input_high", 1)) <= 1:
        raise ArgumentError("the numbers of the images go beyond 0 to 1, expected pixels of 8 bits: train on those")
    names = _names(model)
    domains = [UInt(bits)] * model.n_columns if is_image else _domains(model, bits, names)
    columns = []
    codes = {domain: _codes_of(model, domain, is_image) for domain in set(domains)}
    for column, domain in enumerate(domains):
        own = torch.nonzero(model.encoding.source == column)[:, 0].tolist()
        columns.append(ValueColumn(domain, {number: codes[domain][number].astype(np.int64) for number in own}))

    def values(x: Tensor) -> Tensor:
        return _whole(x, domains, names, is_image)

    return LUTNetwork(on_values(network.graph, columns), model, CodeEncoder(bits, values, map="values"))


def _names(model: Tabular) -> list[str]:
    known = model.metadata.get("features")
    return [str(name) for name in known] if known else [f"x{number}" for number in range(model.n_columns)]


def _domains(model: Tabular, bits: int, names: list[str]) -> list[Domain]:
    """The whole numbers that each column may hold; an error where a column holds others."""
    from lutetia.precompute import Int, UInt

    low, high = (model.metadata.get(key) for key in ("input_low", "input_high"))
    if low is None or high is None:
        raise ArgumentError("the model does not say what its columns range over, expected one of lutetia train or an estimator")
    edges, domains = model.encoding.edges.cpu().numpy(), []
    for column, name in enumerate(names):
        if str(column) in model.metadata.get("dates", {}):
            raise ArgumentError(f"column {name!r} holds dates, expected whole numbers of {bits} bits")
        if (known := model.metadata.get("categories", {}).get(str(column))) is not None:
            domains.append(UInt(max(1, (len(known) - 1).bit_length())))
            continue
        own = edges[(model.encoding.source == column).cpu().numpy()]
        odd = own[np.isfinite(own) & (own * 2 != np.floor(own * 2))]
        if len(odd) or low[column] != np.floor(low[column]):
            at = float(odd[0]) if len(odd) else low[column]
            raise ArgumentError(
                f"column {name!r} has fractions (it is compared with {at:.6g}), expected whole numbers of {bits} bits: train on "
                "what the circuit will be given"
            )
        domain = Int(max(bits, 2)) if low[column] < 0 else UInt(bits)
        if not domain.low <= low[column] <= high[column] <= domain.high:
            raise ArgumentError(
                f"column {name!r} goes from {low[column]:.6g} to {high[column]:.6g}, expected at most {domain.low} to "
                f"{domain.high}, what {bits} bits hold: this column needs {_needed(low[column], high[column])}"
            )
        domains.append(domain)
    return domains


def _needed(low: float, high: float) -> int:
    """The bits of whole numbers in a range."""
    return int(high).bit_length() if low >= 0 else 1 + max(int(high).bit_length(), (-int(low) - 1).bit_length())


def _codes_of(model: Tabular, domain: Domain, is_image: bool) -> np.ndarray:
    """The codes of all inputs for every value of a domain, from the lowest on: uint8 [n_encoded, values]."""
    values = np.arange(domain.low, domain.high + 1, dtype=np.float64) / (2**PIXEL_BITS - 1 if is_image else 1)
    return model.encoding.codes(np.broadcast_to(values[:, None], (len(values), model.n_columns)))


def _whole(x: Tensor, domains: list[Domain], names: list[str], is_image: bool) -> Tensor:
    """x [n, ...] as whole numbers int64 [n, columns], in which nothing is missing."""
    values = x.flatten(1).cpu()
    if is_image and values.is_floating_point():
        values = (values.double() * (2**PIXEL_BITS - 1)).round()
    values = values.double()
    low, high = (torch.tensor([getattr(domain, end) for domain in domains], dtype=torch.float64) for end in ("low", "high"))
    wrong = ~((values >= low) & (values <= high) & (values == values.floor()))
    if wrong.any():
        row, column = torch.nonzero(wrong)[0].tolist()
        held, domain, name = values[row, column].item(), domains[column], names[column]
        if np.isnan(held):
            raise ArgumentError(f"column {name!r} has no value in row {row}, and whole numbers have none for that: use codes")
        raise ArgumentError(f"column {name!r} holds {held:.6g} in row {row}, expected {domain.low} to {domain.high}")
    return values.to(torch.int64)
