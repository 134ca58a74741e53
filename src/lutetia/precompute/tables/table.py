"""`IOTable`: what one unit of a layer answers to each of its inputs, as rows of integers.

The tuple form `((0, 0, 1), (0,))` and the tensor form (inputs [n_rows, n_inputs], outputs [n_rows, n_outputs]) are two views of
the same thing. A table over the whole domain keeps no inputs: they are the enumeration of its domains, made on request.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, overload

import numpy as np
import torch
from torch import Tensor

from lutetia import flow
from lutetia.errors import ArgumentError, check_tensor, fail
from lutetia.precompute.tables.domains import (
    NUMBERS,
    Domain,
    DomainLike,
    as_domains,
    domain_for,
    enumerate_rows,
    infer_domain,
    n_rows,
    row_numbers,
    rows_at,
)

Values: TypeAlias = tuple[int, ...]
Pair: TypeAlias = tuple[Values, Values]

CHUNK = 2**13  # rows given to a layer at once: more would leave the caches
MAX_TABLE_BITS = 24
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


class MissingRowError(ArgumentError, KeyError):
    """A partial table does not hold the requested input."""

    __str__ = Exception.__str__  # KeyError would show the repr of the message


class IOTable(Sequence[Pair]):
    """Rows of inputs and outputs, all integers: a sequence of ((inputs), (outputs)) pairs.

        inputs    int64 [n_rows, n_inputs], values of `domains`, no row twice
        outputs   int64 [n_rows, n_outputs]
        domain    what the inputs are drawn from: one domain for all, or one per input; inferred from the inputs without one
        default   what is answered to an input that no row holds; without one it is refused

    `inputs=None` means the whole domain, in the order of `lutetia.precompute.tables.domains`. Two tables are equal when they
    have the same domains, the same rows in any order, and the same default.
    """

    def __init__(
        self,
        inputs: Tensor | None,
        outputs: Tensor,
        *,
        domain: DomainLike | Sequence[DomainLike] | None = None,
        default: Sequence[int] | None = None,
    ) -> None:
        outputs = _integers("outputs", outputs)
        if inputs is None:
            if domain is None:
                raise ArgumentError("domain is None, expected the domain of the rows where no inputs are given")
            self.domains = as_domains("domain", domain, None)
            if len(outputs) != n_rows(self.domains):
                raise ArgumentError(
                    f"outputs has {len(outputs)} rows, expected {n_rows(self.domains)}, one per row of the domain"
                )
        else:
            inputs = _integers("inputs", inputs)
            if len(inputs) != len(outputs):
                raise ArgumentError(f"outputs has {len(outputs)} rows, expected {len(inputs)}, the number of inputs")
            self.domains = as_domains("domain", infer_domain(inputs) if domain is None else domain, inputs.shape[1])
            for channel, each in enumerate(self.domains):
                each.check(f"inputs[:, {channel}]", inputs[:, channel])
            inputs, outputs = _sorted_rows(self.domains, inputs, outputs)
        self._inputs, self._outputs = inputs, outputs
        self._default = None if default is None else _default(default)
        if self._default is not None and len(self._default) != self.n_outputs:
            raise ArgumentError(f"default has {len(self._default)} numbers, expected {self.n_outputs}, one per output")
        self._numbers: dict[int, int] | None = None

    @classmethod
    def from_pairs(
        cls,
        pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
        *,
        domain: DomainLike | Sequence[DomainLike] | None = None,
        default: Sequence[int] | None = None,
    ) -> IOTable:
        """A table of the rows that are listed, such as `[((0, 0, 0), (1,)), ((0, 0, 1), (0,))]`."""
        try:
            given = list(pairs)
        except TypeError:
            fail("pairs", pairs, "a list of ((inputs), (outputs)) pairs")
        listed = [_pair(place, pair) for place, pair in enumerate(given)]
        if not listed:
            raise ArgumentError("pairs is empty, expected at least one ((inputs), (outputs)) pair")
        sizes = [(len(inputs), len(outputs)) for inputs, outputs in listed]
        for place, size in enumerate(sizes):
            if size != sizes[0]:
                raise ArgumentError(
                    f"pair {place} has {size[0]} inputs and {size[1]} outputs, "
                    f"expected {sizes[0][0]} and {sizes[0][1]} as in pair 0"
                )
        inputs = torch.tensor([inputs for inputs, _ in listed], dtype=torch.int64)
        outputs = torch.tensor([outputs for _, outputs in listed], dtype=torch.int64)
        return cls(inputs, outputs, domain=domain, default=default)

    @classmethod
    def of(cls, layer: Callable[[Tensor], Tensor], domain: object = None, *, n_inputs: int | None = None) -> IOTable:
        """The table of a layer over its whole domain, evaluated in float64 in batches of at most 8,192 rows.

        `layer` is a module, a unit of one, or any function [rows, n_inputs] -> [rows, n_outputs]. The answers must be integers: a
        layer that answers otherwise needs a quantiser after it. A convolution is evaluated on one window, channel by channel.
        """
        function, n_inputs, claimed = _function(layer, n_inputs)
        domain = claimed if domain is None else domain
        if domain is None:
            raise ArgumentError("domain is None, expected a domain: what the inputs of the layer are drawn from")
        domains = as_domains("domain", domain, n_inputs)
        if n_rows(domains) > 2**MAX_TABLE_BITS:
            raise ArgumentError(
                f"the domain has {n_rows(domains)} rows, expected at most 2**{MAX_TABLE_BITS}: decompose the layer"
            )
        with flow.step("io_table", part="precompute", n_inputs=len(domains), rows=n_rows(domains)) as step:
            parts = []
            for begin in range(0, n_rows(domains), CHUNK):
                end = min(begin + CHUNK, n_rows(domains))
                answers = function(enumerate_rows(domains, begin, end, torch.float64))
                check_tensor("the answer of the layer", answers, [end - begin, "n_outputs"])
                parts.append(_whole(answers))
            outputs = torch.cat(parts)
            step.outputs(outputs=outputs)
        return cls(None, outputs, domain=domains)

    # ---- what it holds ------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> Tensor:
        """int64 [n_rows, n_inputs]."""
        return enumerate_rows(self.domains) if self._inputs is None else self._inputs

    @property
    def outputs(self) -> Tensor:
        """int64 [n_rows, n_outputs]."""
        return self._outputs

    @property
    def n_inputs(self) -> int:
        return len(self.domains)

    @property
    def n_outputs(self) -> int:
        return self._outputs.shape[1]

    @property
    def default(self) -> Values | None:
        """The answer to an input that has no row."""
        return self._default

    @property
    def is_complete(self) -> bool:
        """Whether every input of the domain has a row."""
        return len(self) == n_rows(self.domains)

    @property
    def output_domain(self) -> Domain:
        """The narrowest integers that hold every output."""
        low, high = (int(self._outputs.min()), int(self._outputs.max())) if self._outputs.numel() else (0, 0)
        return domain_for(low, high)

    def __len__(self) -> int:
        return len(self._outputs)

    @overload
    def __getitem__(self, key: int) -> Pair: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Pair, ...]: ...
    @overload
    def __getitem__(self, key: Sequence[int] | Tensor) -> Values: ...
    def __getitem__(self, key: int | slice | Sequence[int] | Tensor) -> Any:
        """A row by its place, `table[0]`; several, `table[1:3]`; or the outputs for one input, `table[(0, 0, 1)]`."""
        if isinstance(key, slice):
            return self._rows(range(len(self))[key])
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            if not -len(self) <= key < len(self):
                raise IndexError(f"row {key} of a table of {len(self)} rows")
            return self._rows([int(key) % len(self)])[0]
        try:
            inputs = torch.as_tensor(key)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            fail("the input", key, f"{self.n_inputs} numbers")
        if inputs.shape != (self.n_inputs,):
            fail("the input", key, f"{self.n_inputs} numbers")
        return tuple(self(inputs[None])[0].tolist())

    def _rows(self, places: Sequence[int]) -> tuple[Pair, ...]:
        """Rows by their places, without the rest."""
        chosen = torch.tensor(list(places), dtype=torch.int64)
        inputs = rows_at(self.domains, chosen) if self._inputs is None else self._inputs[chosen]
        listed = zip(inputs.tolist(), self._outputs[chosen].tolist(), strict=True)
        return tuple((tuple(row), tuple(answer)) for row, answer in listed)

    def __reversed__(self) -> Iterator[Pair]:
        return reversed(self.pairs())

    def __call__(self, inputs: Tensor) -> Tensor:
        """Look up many inputs: [..., n_inputs] -> int64 [..., n_outputs]."""
        check_tensor("inputs", inputs, ["...", self.n_inputs])
        rows = _integers("inputs", inputs.reshape(math.prod(inputs.shape[:-1]), self.n_inputs))
        for channel, domain in enumerate(self.domains):
            domain.check(f"inputs[..., {channel}]", rows[:, channel])
        places = self._places(row_numbers(self.domains, rows))
        if bool((places < 0).any()) and self._default is None:
            missing = tuple(rows[places < 0][0].tolist())
            raise MissingRowError(
                f"the table has no row for {missing}: it holds {len(self)} of {n_rows(self.domains)}, and no default"
            )
        found = self._outputs[places.clamp_min(0)]
        if self._default is not None:
            found = torch.where((places < 0)[:, None], torch.tensor(self._default, dtype=torch.int64), found)
        return found.reshape(*inputs.shape[:-1], self.n_outputs)

    def _places(self, numbers: Tensor) -> Tensor:
        """The rows of inputs, given by their numbers in the domain; -1 where there is none."""
        if self._inputs is None:
            return numbers
        if self._numbers is None:
            listed = row_numbers(self.domains, self._inputs).tolist()
            self._numbers = {number: place for place, number in enumerate(listed)}
        return torch.tensor([self._numbers.get(number, -1) for number in numbers.tolist()], dtype=torch.int64)

    def pairs(self) -> tuple[Pair, ...]:
        """The tuple form: `(((0, 0, 0), (1,)), ((0, 0, 1), (0,)))`."""
        outputs = self._outputs.tolist()
        return tuple((tuple(row), tuple(answer)) for row, answer in zip(self.inputs.tolist(), outputs, strict=True))

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs())

    def to_dict(self) -> dict[Values, Values]:
        """`{(0, 0, 0): (1,), ..}`."""
        return dict(self.pairs())

    # ---- groups -------------------------------------------------------------------------------------------------------

    def grouped(self, groups: int) -> tuple[IOTable, ...]:
        """The table of each group: the first group owns the first inputs and the first outputs, and so on.

        Refused when the sizes do not divide, and when the outputs of a group depend on inputs outside it.
        """
        if not isinstance(groups, int) or isinstance(groups, bool) or groups < 1:
            fail("groups", groups, "a number of at least 1")
        for what, size in (("inputs", self.n_inputs), ("outputs", self.n_outputs)):
            if size % groups:
                raise ArgumentError(f"groups is {groups}, which does not divide the {size} {what} of the table")
        return tuple(self._group(group, self.n_inputs // groups, self.n_outputs // groups) for group in range(groups))

    def _group(self, group: int, width: int, height: int) -> IOTable:
        columns = slice(group * width, (group + 1) * width)
        answers = slice(group * height, (group + 1) * height)
        try:
            return IOTable(
                self.inputs[:, columns],
                self._outputs[:, answers],
                domain=self.domains[columns],
                default=None if self._default is None else self._default[answers],
            )
        except ArgumentError as error:
            raise ArgumentError(f"group {group} is not independent of the others: {error}") from error

    # ---- equality, files ----------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IOTable):
            return NotImplemented
        if self.domains != other.domains or self._default != other._default or self._outputs.shape != other._outputs.shape:
            return False
        if not torch.equal(self._outputs, other._outputs):
            return False
        return (self._inputs is None and other._inputs is None) or torch.equal(self.inputs, other.inputs)

    def __hash__(self) -> int:
        return hash((self.domains, self._default, len(self), self._outputs.numpy().tobytes()))

    def __repr__(self) -> str:
        state = "complete" if self.is_complete else f"{len(self)} of {n_rows(self.domains)} rows"
        kinds = ", ".join(dict.fromkeys(map(str, self.domains)))
        return f"IOTable({self.n_inputs} -> {self.n_outputs}, {kinds or 'no inputs'}, {state})"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table whole or not at all, as `.safetensors` or `.json`."""
        from lutetia.precompute.tables.table_files import save

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> IOTable:
        """Read a table that `save` wrote; DataError, saying why, when the file is anything else."""
        from lutetia.precompute.tables.table_files import load

        return load(path)


def _pair(place: int, pair: Any) -> Pair:
    try:
        inputs, outputs = pair
        return tuple(map(_int, inputs)), tuple(map(_int, outputs))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        fail(f"pair {place}", pair, "((inputs), (outputs)), two sequences of integers")


def _default(default: Any) -> Values:
    try:
        numbers = tuple(map(_int, default))
        torch.tensor(numbers, dtype=torch.int64)  # which holds no more than 64 bits
        return numbers
    except (TypeError, ValueError, RuntimeError, OverflowError):
        fail("default", default, "whole numbers, one per output")


def _int(value: Any) -> int:
    number = int(value)
    if number != value:
        raise ValueError
    return number


def _integers(name: str, values: object) -> Tensor:
    """A matrix of whole numbers as int64."""
    try:
        values = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        fail(name, values, "a matrix [n_rows, n_channels]")
    check_tensor(name, values, dtype=NUMBERS)
    if values.dim() != 2:
        fail(name, values, "a matrix [n_rows, n_channels]")
    return values.to(torch.int64) if values.dtype in INTEGERS else _whole(values)


def _whole(values: Tensor) -> Tensor:
    """Floating-point numbers that are whole, as int64; others are refused, never rounded."""
    values = values.detach().cpu()
    whole = values.to(torch.int64)
    if values.is_floating_point():
        back = whole.to(values.dtype)
        if not torch.equal(back, values):
            found = values[back != values][0].item()
            raise ArgumentError(f"a table holds integers and was given {found!r}: put a quantiser after the layer")
    return whole


def _sorted_rows(domains: Sequence[Domain], inputs: Tensor, outputs: Tensor) -> tuple[Tensor | None, Tensor]:
    """The rows in the order of the domain, each once; None for the inputs when they are all there."""
    numbers = row_numbers(domains, inputs)
    numbers, order = numbers.sort(stable=True)
    inputs, outputs = inputs[order], outputs[order]
    again = torch.zeros(len(numbers), dtype=torch.bool)
    again[1:] = numbers[1:] == numbers[:-1]
    if again.any():
        changed = again.clone()
        changed[1:] &= (outputs[1:] != outputs[:-1]).any(1)
        if changed.any():
            place = int(changed.nonzero()[0])
            two = " and ".join(str(tuple(outputs[each].tolist())) for each in (place - 1, place))
            raise ArgumentError(f"the input {tuple(inputs[place].tolist())} is listed twice, with the outputs {two}")
        inputs, outputs = inputs[~again], outputs[~again]
    return (None if len(inputs) == n_rows(domains) else inputs), outputs


def _function(layer: object, n_inputs: int | None) -> tuple[Callable[[Tensor], Tensor], int | None, Any]:
    """How to evaluate a layer: a function of rows, its number of inputs, and the domain that was claimed for it."""
    from lutetia.precompute.front.block import LayerBlock
    from lutetia.precompute.front.decompose import Unit, claim_of

    if isinstance(layer, Unit):
        return layer, layer.n_inputs, layer.domain
    if isinstance(layer, torch.nn.Module):
        claim = claim_of(layer)
        domain = claim.domain if claim else None
        block = LayerBlock.of(layer, n_inputs=n_inputs)
        return block, block.n_inputs, domain
    if not callable(layer):
        fail("layer", layer, "a module, a unit of one, or a function of rows")
    return layer, n_inputs, None
