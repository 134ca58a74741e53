"""The seed that the walk starts with, and the targets that it reports on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, describe, fail
from lutetia.relevance.graph import Graph, Node, discover
from lutetia.relevance.result import Target


def make_seed(output: Tensor, target: Any) -> Tensor:
    """The relevance that the walk begins with, shaped like the output [..., C].

    None: each row's own largest output; an int or a LongTensor [...]: that output of each row, both with the output's own
    value and zero elsewhere. A floating tensor shaped like the output: as it is.
    """
    output = output.detach()
    if isinstance(target, Tensor) and target.is_floating_point():
        if target.shape != output.shape:
            fail("target", target, f"a seed of the output's shape {list(output.shape)}")
        return target.detach().to(dtype=output.dtype, device=output.device)
    if output.dim() == 0:
        if target not in (None, 0):
            fail("target", target, "None for an output that is a single number")
        return output.clone()
    index = _index(output, target)
    return torch.zeros_like(output).scatter_(-1, index, output.gather(-1, index))


def _index(output: Tensor, target: Any) -> Tensor:
    rows, size = output.shape[:-1], output.shape[-1]
    if target is None:
        return output.argmax(-1, keepdim=True)
    if isinstance(target, bool) or not isinstance(target, (int, Tensor)):
        fail("target", target, "None, an int, an integer tensor with one index per row, or a seed shaped like the output")
    index = torch.as_tensor(target, device=output.device)
    if index.is_floating_point() or index.dtype == torch.bool or index.is_complex():
        fail("target", target, "integers, or a floating seed shaped like the output")
    while index.dim() and index.dim() < len(rows):
        index = index.unsqueeze(-1)
    try:
        index = index.expand(rows)
    except RuntimeError:
        fail("target", target, f"one index per row, so a shape of {list(rows)}")
    if index.numel() and not (-size <= int(index.min()) and int(index.max()) < size):
        fail("target", target, f"indices below {size}, the last size of the output")
    return (index.long() % size).unsqueeze(-1)


def wanted_nodes(wrt: Sequence[Any]) -> list[Any]:
    """The grad_fns of requested tensors; that of a leaf accumulates its gradient."""
    return [_grad_fn(item) for item in wrt if isinstance(item, Tensor) and item.requires_grad]


def _grad_fn(tensor: Tensor) -> Any:
    if tensor.grad_fn is not None:
        return tensor.grad_fn
    with torch.enable_grad():
        return tensor.view_as(tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def place_targets(
    graph: Graph, wrt: Iterable[Any], named: dict[str, list[tuple[Node, int]]], optional: frozenset[int] = frozenset()
) -> list[Target]:
    """Put a target at every requested node and at every checkpoint.

    Of the `optional` ones (by id) those that the output does not depend on get zeros, or are left out if they are integers.
    """
    targets: list[Target] = []

    def put(node: Node, key: Any, nr: int, like: Tensor | None, tokens: bool = False) -> None:
        target = Target(key, nr, like, tokens)
        node.targets = [*node.targets, target]
        targets.append(target)

    asked = list(wrt)
    for name, places in named.items():
        if name not in asked and any(node.name == "CheckpointBackward" for node, _ in places):
            asked.append(name)
    for item in asked:
        if isinstance(item, str):
            for node, nr in _places(item, named):
                put(node, item, nr, torch.empty(node.shape(nr), device="meta"))
        elif not isinstance(item, Tensor):
            fail("wrt", item, "tensors and names of modules or checkpoints")
        elif item.requires_grad:
            found = _node_of(graph, item)
            if found is not None:
                put(found, item, item.output_nr, item)
            elif id(item) in optional:
                targets.append(Target(item, 0, item))  # nothing will reach it
            else:
                raise ArgumentError(f"wrt holds {describe(item)}, on which the output does not depend")
        else:
            _put_tokens(graph, item, put, id(item) in optional)
    if not any(node.targets for node in graph.nodes):
        raise ArgumentError(
            "there is nothing to explain: no leaf but parameters leads to the output; "
            "make an input require grad, or name tensors, modules or parameters in wrt"
        )
    return targets


def _places(name: str, named: dict[str, list[tuple[Node, int]]]) -> list[tuple[Node, int]]:
    places = named.get(name)
    if not places:
        known = ", ".join(sorted(filter(None, named))[:20]) or "none"
        raise ArgumentError(
            f"wrt names {name!r}, which the graph does not know (it knows: {known}); names are noted by relevance.attribute, "
            "by calling the model inside `with relevance.watch(model):`, or by relevance.checkpoint(x, name)"
        )
    return places


def _node_of(graph: Graph, tensor: Tensor) -> Node | None:
    node = graph.by_fn.get(_grad_fn(tensor))
    return node if node is not None and node.walks else None


def _put_tokens(graph: Graph, tensor: Tensor, put: Any, optional: bool) -> None:
    """Indices have no gradient, but an embedding kept them."""
    if tensor.is_floating_point():
        raise ArgumentError(f"wrt holds {describe(tensor)}, which does not require grad, so the graph does not know it")
    found = [node for node in graph.nodes if node.name == "EmbeddingBackward0" and _same(node.fn._saved_indices, tensor)]
    if not found and not optional:
        raise ArgumentError(f"wrt holds {describe(tensor)}: integers that no embedding of the graph was given")
    for node in found:
        put(node, tensor, 0, tensor, tokens=True)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype


def default_targets(output: Tensor) -> list[Tensor]:
    """The leaves that are not parameters: the inputs of a graph."""
    leaves = [getattr(fn, "variable", None) for fn in discover(output.grad_fn)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter)]
