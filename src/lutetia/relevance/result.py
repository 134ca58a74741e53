"""What `explain` and `attribute` return: relevance by tensor, name or parameter, and the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.relevance.graph import WIDER
from lutetia.relevance.precision import rounded
from lutetia.relevance.report import Report


class Heads(NamedTuple):
    """The key for the contributions of a module's attention heads."""

    module: str


class ResultTarget:
    """One requested target: a place in the graph, and the relevance that arrived there."""

    __slots__ = ("dtype", "key", "nr", "reduce", "shape_of", "total")

    def __init__(
        self,
        key: object,
        nr: int,
        like: Tensor | None = None,
        reduce: Callable[[Tensor], Tensor] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.key = key  # a tensor or a name
        self.nr = nr  # the output number
        self.shape_of = like
        self.dtype = dtype  # of the values there
        self.reduce = reduce  # what is kept of the relevance: of tokens its sum over the embedding dimension
        self.total: Tensor | None = None

    def collect(self, R: Any, stacked: bool = False) -> None:
        """Take the relevance at the node; `stacked`: N of them, one after the other in the first dimension."""
        if isinstance(R, tuple):
            R = R[self.nr]
        if R is None:
            return
        if self.reduce is not None:
            R = torch.vmap(self.reduce)(R) if stacked else self.reduce(R)
        self.total = R if self.total is None else self.total + R

    def of_each(self, count: int) -> list[ResultTarget]:
        """The same target of each of N relevances."""
        each = [ResultTarget(self.key, self.nr, self.shape_of, self.reduce, self.dtype) for _ in range(count)]
        for at, target in enumerate(each):
            target.total = None if self.total is None else self.total[at]
        return each


class Result:
    """Relevance by target, in the shape of the target: `r[x]`, `r["layers.3"]`, `r[weight]`.

    `r.layers` and `r.heads` hold what `attribute(..., layers=True, heads=True)` collected.
    """

    def __init__(
        self,
        targets: list[ResultTarget],
        aliases: Mapping[Any, Tensor],
        originals: tuple[Tensor, ...],
        output: Tensor,
        seed: Tensor,
        report: Report,
        blocks: tuple[str, ...] = (),
    ) -> None:
        self.output = output  # what was explained
        self.seed = seed  # the relevance that the walk began with, shaped like the output
        self.report = report
        self._found: dict[Any, Tensor] = {}
        self._exact: dict[Any, Tensor] = {}  # before it was rounded to the dtype of the values, where it was
        self._dtypes: dict[Any, torch.dtype | None] = {}
        self._keys: list[Any] = []
        self._originals = originals  # kept alive, as they are known by their ids
        self._alias = aliases  # id of the user's tensor, or a parameter's name -> the tensor that stood in for it
        self.heads: dict[str, Tensor] = {}  # by attention module: what each head gave at each position, [B, H, S]
        for target in targets:
            self._take(target)
        for key, dtype in self._dtypes.items():
            self._round(key, dtype)
        self.layers = {name: self._found[name] for name in blocks if name in self._found}  # by block: shaped like its output
        self.heads = dict(sorted(self.heads.items(), key=lambda item: natural(item[0])))

    def _take(self, target: ResultTarget) -> None:
        relevance = target.total
        if isinstance(target.key, Heads):
            if relevance is not None:
                narrow = target.dtype is not None and relevance.dtype is WIDER.get(target.dtype)
                _add(self.heads, target.key.module, relevance.to(target.dtype) if narrow else relevance, target.key)
            return
        key = _key(target.key)
        if key not in self._found:
            self._keys.append(target.key)
        _add(self._found, key, _nothing(target, self.seed) if relevance is None else relevance, target.key)
        self._dtypes[key] = target.dtype

    def _round(self, key: object, dtype: torch.dtype | None) -> None:
        relevance = self._found[key]
        if dtype is not None and relevance.dtype is WIDER.get(dtype):
            self._exact[key], self._found[key] = relevance, rounded(relevance, dtype)

    def neurons(self, name: object) -> Tensor:
        """The relevance of each neuron of a target [..., N], such as a module's output: [N], added up over the rest."""
        relevance = self[name]
        return relevance.reshape(-1, relevance.shape[-1]).sum(0)

    def exact(self, key: object) -> Tensor:
        """The relevance of a target before it was rounded to the dtype of its values: in float64 where no rule has an ε.

        Shares that cancel may be so large that no rounded values add up to the output.
        """
        found = self[key]
        return self._exact.get(_key(self._meant(key)), found)

    def __getitem__(self, key: object) -> Tensor:
        found = self._found.get(_key(self._meant(key)))
        if found is None:
            raise KeyError(self._lacking(key))
        return found

    def _lacking(self, key: object) -> str:
        known = ", ".join(map(_describe, self._keys)) or "nothing"
        if not isinstance(key, Tensor):
            return f"relevance was not requested for {_describe(key)}, only for {known}"
        alike = any(isinstance(each, Tensor) and each.shape == key.shape for each in self._keys)
        hint = "tensors are looked up by identity" + (", and a copy is another tensor" if alike else "")
        return f"relevance was not requested for this tensor, {_describe(key)}: {hint}; known: {known}"

    def __contains__(self, key: object) -> bool:
        return _key(self._meant(key)) in self._found

    def _meant(self, key: object) -> Any:
        return self._alias.get(key if isinstance(key, str) else id(key), key)

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def keys(self) -> list[Any]:
        """The requested targets: tensors and names."""
        return list(self._keys)

    def __repr__(self) -> str:
        return f"<Result for {', '.join(map(_describe, self._keys))}; {self.report.summary()}>"


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts "layers.10" after "layers.9"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name.split(".")]


def _add(into: dict[Any, Tensor], key: object, relevance: Tensor, shown: object) -> None:
    held = into.get(key)
    if held is not None and held.shape != relevance.shape:
        shapes = f"{list(held.shape)} and {list(relevance.shape)}"
        raise ArgumentError(
            f"{_describe(shown)} was called several times, with outputs of shapes {shapes}: mark one by a checkpoint"
        )
    into[key] = relevance if held is None else held + relevance


def _key(key: object) -> Any:
    return key if isinstance(key, str) else id(key)


def _describe(key: object) -> str:
    if isinstance(key, Tensor):
        return f"a tensor {list(key.shape)}"
    return repr(key)


def _nothing(target: ResultTarget, seed: Tensor) -> Tensor:
    if target.shape_of is None:
        raise ArgumentError(f"no relevance reached {target.key!r}")
    like = target.shape_of
    return torch.zeros(like.shape, dtype=seed.dtype, device=seed.device)
