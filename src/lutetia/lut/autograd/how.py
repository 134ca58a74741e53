"""How connectivity and options pass through torch.library ops, whose schemas allow only tensors, numbers and text.

Every op ends with the same four arguments: `Tensor? start, Tensor? targets, Tensor? meta, str how`. The tensors are those of the
synapses, None when fully connected; the text holds everything else that is not as usual, with names, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from lutetia._uncompiled import as_constant, constant_result
from lutetia.lut.algorithm import check_algorithm
from lutetia.lut.connectivity.full import Connectivity, full, synapses_of
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.kernels import backend_for
from lutetia.lut.kernels.backend import Backend
from lutetia.lut.kernels.protocol import FLOAT, Products, Sums

HOW = "Tensor? start, Tensor? targets, Tensor? meta, str how"
Wires: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]
NO_WIRES: Wires = (None, None, None)


class How(NamedTuple):
    """The options of an op, besides its tensors."""

    sums: Sums = FLOAT
    backend: str = ""  # "" for the default of the device
    meta: SynapseMeta = SynapseMeta()  # of full connectivity
    header: str = ""  # of synapses, all but the tensors; "" when fully connected
    read: str = "hard"
    algorithm: str = "auto"
    products: Products = Products()

    def connectivity(self, wires: Sequence[Tensor | None], shape: Sequence[int]) -> Connectivity:
        """Synapses of these tensors, or full connectivity of a shape [N_t, R, O]."""
        return synapses_of(*wires, self.header) if self.header else full(*shape, self.meta)  # type: ignore[call-arg, arg-type]

    def check(self, sparse: bool) -> How:
        """These options, or an error that says what they should be, or that they are incompatible."""
        check_algorithm(self.algorithm, sparse)
        self.sums.check()
        self.products.check()
        return self

    def kernels(self, x: Tensor) -> Backend:
        """The primitives that run where x is."""
        return backend_for(self.backend, x)


DEFAULT = How()


def text_of(how: How) -> str:
    """`how` as text."""
    if torch.compiler.is_compiling():
        # Numbers that the compiler would keep symbolic must be constants here.
        meta, budget = how.meta, how.products.budget
        scales = (meta.lr_scale, meta.min_weight, meta.max_weight, meta.initial_weight, meta.initial_noise)
        numbers = [as_constant(each) for each in (*scales, how.sums.rescaler)]
        texts = (how.sums.kind, how.backend, how.header, how.read, how.algorithm, how.products.precision)
        return _text_of_parts(None if budget is None else as_constant(budget), *texts, *numbers)
    return _text_of(how)


@constant_result
def _text_of_parts(*parts: Any) -> str:
    """The same; the compiler calls this once, and knows neither named tuples nor dataclasses as constants."""
    budget, kind, backend, header, read, algorithm, precision, *scales, rescaler = parts
    how = How(Sums(kind, rescaler), backend, SynapseMeta(*scales), header, read, algorithm, Products(precision, budget))
    return _text_of(how)


@lru_cache(maxsize=1024)
def _text_of(how: How) -> str:
    fields = how._asdict() | {"sums": how.sums._asdict(), "products": how.products._asdict(), "meta": asdict(how.meta)}
    return json.dumps({name: value for name, value in fields.items() if getattr(how, name) != getattr(DEFAULT, name)})


@lru_cache(maxsize=1024)
def how_of(text: str) -> How:
    """The options in such a text."""
    fields, makes = json.loads(text), {"sums": Sums, "products": Products, "meta": SynapseMeta}
    return How(**{name: makes[name](**value) if name in makes else value for name, value in fields.items()})


class SynapseSizes(NamedTuple):
    """The sizes in the header of synapses."""

    n_detectors: int
    n_rows: int
    n_outputs: int
    rows_listed: int  # how many weights stand for one synapse that is listed: R where all rows of a detector share it, else 1


@constant_result
def sizes_of(header: str) -> SynapseSizes:
    """The sizes in a header."""
    return _sizes_of(header)


@lru_cache(maxsize=256)
def _sizes_of(header: str) -> SynapseSizes:
    facts = json.loads(header)
    listed = facts["n_rows"] if facts["layout"] == "shared" else 1
    return SynapseSizes(facts["n_detectors"], facts["n_rows"], facts["n_outputs"], listed)
