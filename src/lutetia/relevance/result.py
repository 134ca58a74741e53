"""What `explain` and `attribute` return: relevance by tensor, name or parameter, and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lutetia.errors import ArgumentError
from lutetia.relevance.report import Report


class Target:
    """One requested target: a place in the graph, and the relevance that arrived there."""

    __slots__ = ("key", "nr", "relevance", "shape_of", "tokens", "total")

    def __init__(self, key: Any, nr: int, like: Tensor | None = None, tokens: bool = False) -> None:
        self.key = key  # a tensor or a name
        self.nr = nr  # the output number
        self.shape_of = like
        self.tokens = tokens  # the indices of an embedding: summed over the embedding dimension
        self.total: Tensor | None = None

    def collect(self, R: Any) -> None:
        """Take the relevance at the node."""
        if isinstance(R, tuple):
            R = R[self.nr]
        if R is None:
            return
        if self.tokens:
            R = R.sum(-1)
        self.total = R if self.total is None else self.total + R


class Result:
    """Relevance by target, in the shape of the target: `r[x]`, `r["layers.3"]`, `r[weight]`."""

    def __init__(
        self,
        targets: list[Target],
        aliases: Mapping[int, Tensor],
        originals: tuple[Tensor, ...],
        output: Tensor,
        seed: Tensor,
        report: Report,
    ) -> None:
        self.output = output  # what was explained
        self.seed = seed  # the relevance that the walk began with, shaped like the output
        self.report = report
        self._found: dict[Any, Tensor] = {}
        self._keys: list[Any] = []
        self._originals = originals  # kept alive, as they are known by their ids
        self._alias = aliases  # id of the user's tensor -> the leaf that stood in for it
        for target in targets:
            key = _key(target.key)
            if key not in self._found:
                self._keys.append(target.key)
            relevance = target.total
            if relevance is None:
                relevance = _nothing(target, seed)
            held = self._found.get(key)
            if held is not None and held.shape != relevance.shape:
                shapes = f"{list(held.shape)} and {list(relevance.shape)}"
                raise ArgumentError(
                    f"{_describe(target.key)} was called several times, with outputs of shapes {shapes}: mark one by a checkpoint"
                )
            self._found[key] = relevance if held is None else held + relevance

    def __getitem__(self, key: Any) -> Tensor:
        found = self._found.get(_key(self._alias.get(id(key), key)))
        if found is None:
            raise KeyError(self._lacking(key))
        return found

    def _lacking(self, key: Any) -> str:
        known = ", ".join(map(_describe, self._keys)) or "nothing"
        if not isinstance(key, Tensor):
            return f"relevance was not requested for {_describe(key)}, only for {known}"
        alike = any(isinstance(each, Tensor) and each.shape == key.shape for each in self._keys)
        what = "this tensor is a copy, or another one of the same shape" if alike else "this tensor"
        return f"relevance was not requested for {what}, {_describe(key)}: tensors are found by identity; known are {known}"

    def __contains__(self, key: Any) -> bool:
        return _key(self._alias.get(id(key), key)) in self._found

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def keys(self) -> list[Any]:
        """The requested targets: tensors and names."""
        return list(self._keys)

    def __repr__(self) -> str:
        return f"<Result for {', '.join(map(_describe, self._keys))}; {self.report.summary()}>"


def _key(key: Any) -> Any:
    return key if isinstance(key, str) else id(key)


def _describe(key: Any) -> str:
    if isinstance(key, Tensor):
        return f"a tensor {list(key.shape)}"
    return repr(key)


def _nothing(target: Target, seed: Tensor) -> Tensor:
    if target.shape_of is None:
        raise ArgumentError(f"no relevance reached {target.key!r}")
    like = target.shape_of
    return torch.zeros(like.shape, dtype=seed.dtype, device=seed.device)
