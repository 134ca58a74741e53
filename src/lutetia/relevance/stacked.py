"""Several relevances in one walk: each tensor of relevance holds N of them in its first dimension, all for the same values.

A rule is written for one relevance. It is applied to all N at once by vmap, or, where it looks at the numbers, which vmap
refuses, to one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia.errors import LutetiaError
from lutetia.relevance.graph import Node
from lutetia.relevance.parts import SlicedRelevance, whole
from lutetia.relevance.precision import relevance_of
from lutetia.relevance.registry import Args, Given


def relevance_of_each(node: Node, R: Any, args: Args) -> Given:
    """What the inputs of a node get of each R [N, ...]: as `relevance_of`, with N first."""
    if node.op.nests:  # the walk inside is of N relevances, too
        return relevance_of(node, R, args)
    try:
        return _at_once(node, R, args)
    except LutetiaError:
        raise
    except Exception:  # vmap's refusals have no type of their own; what is wrong otherwise is raised by the rule itself
        return _one_by_one(node, R, args)


def _at_once(node: Node, R: Any, args: Args) -> Given:
    several = isinstance(R, tuple)
    given: Given = []

    def one(*tensors: Tensor) -> tuple[Tensor, ...]:
        nonlocal given
        each = iter(tensors)
        given = relevance_of(node, tuple(None if r is None else next(each) for r in R) if several else tensors[0], args)
        return tuple(part.R if isinstance(part, SlicedRelevance) else part for part in given if part is not None)

    stacks = torch.vmap(one)(*(r for r in R if r is not None) if several else (R,))
    parts = iter(stacks)
    return [None if part is None else _stack_of(part, next(parts)) for part in given]


def _stack_of(part: Tensor | SlicedRelevance, stack: Tensor) -> Tensor | SlicedRelevance:
    if not isinstance(part, SlicedRelevance):
        return stack
    view = part.view

    def view_of_each(node: Node, total: Tensor) -> Tensor:
        return torch.vmap(lambda each: view(node, each))(total)

    return SlicedRelevance(part.node, stack, view_of_each, stack.shape[:1])


def _one_by_one(node: Node, R: Any, args: Args) -> Given:
    several = isinstance(R, tuple)
    count = len(next(r for r in R if r is not None)) if several else len(R)
    rows = [
        [whole(part) for part in relevance_of(node, tuple(None if r is None else r[at] for r in R) if several else R[at], args)]
        for at in range(count)
    ]
    return [None if parts[0] is None else torch.stack(parts) for parts in zip(*rows, strict=True)]
