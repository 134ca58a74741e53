"""What several rule files need: saved numbers as they were, and the node's own backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, unknown
from lutetia.relevance.report import is_stacked, total


def integer(number: int) -> int:
    """A saved dimension or index: torch hands negative ones out as unsigned 64-bit numbers."""
    return number - 2**64 if number >= 2**63 else number


def dims(numbers: Iterable[int] | None) -> Any:
    """Saved dimensions; None means all of them."""
    return None if numbers is None else [integer(number) for number in numbers]


def backward(node: Node, R: Any) -> Any:
    """The node's own backward, which sends R back to where each output came from. R: a tuple if several outputs are in use."""
    fn = node.fn if callable(node.fn) else node.fn.apply  # that of a custom function is written in Python
    if node.name in ONE_OUTPUT:
        return fn(R)
    if isinstance(R, tuple):
        return fn(*R)
    count = len(node.metas)
    if node.nr <= 0:
        return fn(R) if count == 1 else fn(R, *[None] * (count - 1))
    grads: list[Tensor | None] = [None] * count
    grads[node.nr] = R
    return fn(*grads)


# Frequent nodes: of others torch is asked how many outputs they have, which takes longer than most of them.
ONE_OUTPUT = frozenset(
    {"CatBackward0", "ExpandBackward0", "IndexBackward0", "PermuteBackward0", "SelectBackward0", "SliceBackward0", "TBackward0"}
    | {"TransposeBackward0", "TransposeBackward1"}
)


def transposed(node: Node, forward: Callable[[Node, Tensor], Any], R: Any) -> Tensor:
    """fᵀ R, for the linear map f of a node with one input: its own backward, which knows one dtype, or that of f in float64."""
    if not node.wide or forward is own_map:
        return backward(node, R)
    x = node.operands()[0]
    with torch.enable_grad():
        if x is None:
            meta = node.edges[0].child.metas[node.edges[0].nr]  # type: ignore[union-attr]
            x = torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device)
        x = x.detach().requires_grad_()
        made = forward(node, x)
        outputs = [made] if isinstance(made, Tensor) else list(made)
        parts = R if isinstance(R, tuple) else [R if nr == max(node.nr, 0) else None for nr in range(len(outputs))]
        used = [(output, part) for output, part in zip(outputs, parts, strict=True) if part is not None]
        return torch.autograd.grad([output for output, _ in used], x, [part for _, part in used])[0]


def own_map(node: Node, x: Tensor) -> Tensor:
    """f x, for the linear map f of a node with one input, from its own backward alone."""
    made = forward_map(node, 0, x)
    if made is None:
        raise unknown(node, "its output is needed, was not kept, and its backward cannot be differentiated")
    return made


def pieces(node: Node, R: Any) -> list[Tensor | None]:
    """The node's own backward, a tensor or None for each of its inputs."""
    given = backward(node, R)
    given = list(given) if isinstance(given, tuple) else [given]
    if len(given) != len(node.edges):  # a custom function answers for arguments that are not tensors, too
        flags = getattr(node.fn, "needs_input_grad", ())
        those = iter([g for g, flag in zip(given, flags, strict=False) if flag])
        given = [None if edge is None else next(those) for edge in node.edges]
    return given


def forward_map(node: Node, position: int, x: Tensor) -> Tensor | None:
    """J x: the node as a linear map of one input, from its own backward alone. None where it does not depend on it.

    Jᵀ u is linear in u, so its gradient with respect to u, for a cotangent x, is J x.
    """
    meta = node.metas[max(node.nr, 0)]
    with torch.enable_grad():
        u = torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device, requires_grad=True)
        back = pieces(node, u)[position]
        if back is None or not back.requires_grad:
            return None
        back = fit(node, position, back)
        return torch.autograd.grad(back, u, x.to(back.dtype), allow_unused=True)[0]


def times(a: Tensor, b: Tensor) -> Tensor:
    """a · b, and for complex numbers real and imaginary parts multiplied separately, as relevance has both."""
    if not a.is_complex():
        return a * b
    return torch.complex(a.real * b.real, a.imag * b.imag)


def fit(node: Node, position: int, R: Tensor, x: Tensor | None = None) -> Tensor:
    """R in the shape and dtype of an input: summed where it was broadcast, cast where dtypes were mixed. `x`: the input."""
    if x is not None and R.shape == x.shape and R.dtype is x.dtype:
        return R
    edge = node.edges[position]
    assert edge is not None
    meta = edge.child.metas[edge.nr]
    shape = meta.shape
    if list(R.shape) != shape:
        R = R.sum_to_size(shape)
    return R if R.dtype is meta.dtype else R.to(meta.dtype)


def without_masked(share: Tensor, part: Tensor | None) -> Tensor:
    """The share of a part that may be -∞, as masked scores are: what is masked has no relevance, and gets none."""
    # Elsewhere than on a CPU the answer would have to be waited for; the sum is taken for the report anyway.
    known = share.is_cpu and not share.is_complex() and not is_stacked(share)
    if part is None or (known and math.isfinite(total(share))):
        return share
    return torch.where(torch.isinf(part), torch.zeros_like(share), share)
