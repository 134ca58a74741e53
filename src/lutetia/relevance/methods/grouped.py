"""The scores of a model where only some groups of values are there, and a baseline stands in place of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from lutetia.errors import check_int, fail
from lutetia.relevance.methods.case import Case, Model


class Grouping(TypedDict, total=False):
    """What is replaced together, and by what."""

    groups: Any  # integers that broadcast to a row of x, for each input that has any; by default every value is its own group
    baseline: Any  # a number (0 by default), a tensor that broadcasts to x, or one for each of several inputs
    at_once: int  # how many copies of x are computed in one batch (64 by default)


class Drawing(Grouping, total=False):
    """The same for methods that draw."""

    seed: int  # 0 by default


class Grouped:
    """A case whose values belong to groups, numbered from 0."""

    def __init__(self, model: Model, inputs: Any, target: object, grouping: Grouping) -> None:
        unexpected = sorted(set(grouping) - Grouping.__annotations__.keys())
        if unexpected:
            raise TypeError(f"unexpected options {', '.join(unexpected)}, expected {', '.join(Grouping.__annotations__)}")
        groups, baseline, at_once = grouping.get("groups"), grouping.get("baseline", 0.0), grouping.get("at_once", 64)
        check_int("at_once", at_once, 1, 1_000_000)
        case = Case(model, inputs, target, baseline, tokens=True)
        self._case, self._blanks, self.at_once = case, case.blanks(baseline), at_once
        self._groups, self.count = _numbered(case.of_parts("groups", groups), case.parts)

    def scores(self, there: Tensor) -> Tensor:
        """The scores [K, B], in float64, of K choices of groups that are there, [K, groups]."""
        return torch.cat([self._some(some) for some in there.split(self.at_once)])

    def _some(self, there: Tensor) -> Tensor:
        parts = []
        for x, blank, group in zip(self._case.parts, self._blanks, self._groups, strict=True):
            chosen = there.to(x.device)[:, group].unsqueeze(1)  # [k, 1, ...]
            parts.append(torch.where(chosen, x, blank).flatten(0, 1))
        with torch.inference_mode(False), torch.no_grad():
            return self._case.scores(parts).double()

    def result(self, values: Tensor) -> Any:
        """The values of the groups [groups, B], at every value of each group."""
        found = []
        for x, group in zip(self._case.parts, self._groups, strict=True):
            dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
            found.append(values.T.to(dtype)[:, group])
        return self._case.result(found)


def _numbered(groups: Sequence[Any], parts: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """The number of the group of each value of a row, shaped like one, for each input; and how many groups there are."""
    given = [_checked(each, x) if each is not None else None for each, x in zip(groups, parts, strict=True)]
    named = [each.reshape(-1) for each in given if each is not None]
    known = torch.cat(named).unique() if named else torch.zeros(0)
    count, found = len(known), []
    for each, x in zip(given, parts, strict=True):
        if each is None:
            found.append(count + torch.arange(x[0].numel(), device=x.device).reshape(x.shape[1:]))
            count += x[0].numel()
        else:
            found.append(torch.searchsorted(known, each.contiguous()).to(x.device))
    return found, count


def _checked(groups: Any, x: Tensor) -> Tensor:
    if not isinstance(groups, Tensor) or groups.is_floating_point() or groups.is_complex() or groups.dtype == torch.bool:
        fail("groups", groups, "a tensor of integers that broadcasts to a row of x")
    try:
        return groups.detach().cpu().long().expand(x.shape[1:])
    except RuntimeError:
        fail("groups", groups, f"a tensor of integers that broadcasts to a row of x {list(x.shape[1:])}")
