"""The places in the graph whose relevance is requested: tensors, tokens, modules, checkpoints, attention heads."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lutetia.errors import ArgumentError, describe, fail
from lutetia.relevance.graph import EMBEDDINGS, AutogradGraph, Node, discover
from lutetia.relevance.heads import head_places
from lutetia.relevance.result import Heads, ResultTarget

Places = dict[str, list[tuple[Node, int]]]  # by name: the nodes, and which output of each


class Asked(NamedTuple):
    """The requested targets."""

    items: list[Any]  # tensors and names
    optional: frozenset[int] = frozenset()  # ids of those that the output need not depend on
    aliases: Mapping[Any, Tensor] = MappingProxyType({})  # id of the user's tensor, or a name -> the tensor that is meant
    originals: tuple[Tensor, ...] = ()
    inputs: bool = False  # whether the inputs are meant: then every leaf is reached, and the report accounts for all of it
    layers: tuple[str, ...] = ()  # names of the repeated blocks, where they were requested
    heads: bool = False  # whether the attention heads are requested


def wanted_nodes(wrt: Sequence[Any]) -> list[Any]:
    """The grad_fns of requested tensors; that of a leaf accumulates its gradient."""
    return [grad_fn(item) for item in wrt if isinstance(item, Tensor) and item.requires_grad]


def grad_fn(tensor: Tensor) -> Any:
    """The node that made a tensor; for a leaf, the one that accumulates its gradient."""
    if tensor.grad_fn is not None:
        return tensor.grad_fn
    with torch.enable_grad():
        return tensor.view_as(tensor).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


class Placing:
    """Puts targets at nodes of a graph, and of the graphs inside its recomputed blocks."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.targets: list[ResultTarget] = []
        self.met: set[Any] = set()  # names that some graph knew, and ids of tensors that it led to
        self.known: set[str] = set()

    def put(self, node: Node, key: Any, nr: int, like: Tensor | None, reduce: Callable[[Tensor], Tensor] | None = None) -> None:
        target = ResultTarget(key, nr, like, reduce, node.metas[nr].dtype)
        node.targets = [*node.targets, target]
        self.targets.append(target)

    def place(self, graph: AutogradGraph, named: Places) -> None:
        """Put a target at every requested node of a graph, and at every checkpoint."""
        self.known.update(filter(None, named))
        items = list(self.asked.items)
        names = {item for item in items if isinstance(item, str)}
        for name, places in named.items():
            if name not in names and any(node.name == "CheckpointBackward" for node, _ in places):
                items.append(name)
        for item in items:
            if isinstance(item, str):
                for name in matching(item, named):
                    self.met.add(item)
                    for node, nr in named[name]:
                        self.put(node, name, nr, torch.empty(node.shape(nr), device="meta"))
            elif not isinstance(item, Tensor):
                fail("wrt", item, "tensors and names of modules or checkpoints")
            elif item.requires_grad:
                made_by = graph.by_fn.get(grad_fn(item))
                if made_by is not None and made_by.walks:
                    self.met.add(id(item))
                    self.put(made_by, item, item.output_nr, item)
            else:
                self._put_tokens(graph, item)
        if self.asked.heads:
            for node, nr, reduce in head_places(graph):
                self.put(node, Heads(node.outer), nr, None, reduce)

    def _put_tokens(self, graph: AutogradGraph, tensor: Tensor) -> None:
        """Place tokens: indices have no gradient, but an embedding kept them."""
        if tensor.is_floating_point():
            raise ArgumentError(f"wrt holds {describe(tensor)}, which does not require grad, so it is not in the graph")
        embeddings = [node for node in graph.nodes if node.name in EMBEDDINGS]
        places = [node for node in embeddings if _same(node.fn._saved_indices, tensor)]
        # Some models copy their tokens first, or look them up flattened; others turn them around, or put padding beside them.
        places = places or [node for node in embeddings if _equal(node.fn._saved_indices, tensor)]
        found: list[tuple[Node, slice | None]] = [(node, slice(None)) for node in places]
        found = found or [(node, part) for node in embeddings for part in _parts(node.fn._saved_indices, tensor)]
        for node, part in found:
            self.met.add(id(tensor))
            self.put(node, tensor, 0, tensor, functools.partial(_of_tokens, node, tensor.shape, part))

    def check(self, graph: AutogradGraph) -> None:
        """Raise if a requested target is in no graph, or if nothing requested is."""
        for item in self.asked.items:
            optional = id(item) in self.asked.optional
            if isinstance(item, str):
                if item not in self.met and item not in self.asked.layers:  # nobody sees a call of its forward
                    raise ArgumentError(_unknown_name(item, self.known))
            elif id(item) in self.met:
                continue
            elif item.requires_grad and optional:
                self.targets.append(ResultTarget(item, 0, item))  # nothing will reach it
            elif item.requires_grad:
                raise ArgumentError(f"wrt holds {describe(item)}, on which the output does not depend")
            elif not optional:
                raise ArgumentError(
                    f"wrt holds {describe(item)}: integers that no embedding of the graph was given{_hint(graph)}"
                )
        if not any(node.targets for node in graph.nodes) and not self.met:
            raise ArgumentError(
                "there is nothing to explain: no leaf but parameters leads to the output (what ran under torch.no_grad() is a "
                f"constant); make an input require grad, or name tensors, modules or parameters in wrt{_hint(graph)}"
            )


def matching(item: str, named: Iterable[str]) -> list[str]:
    """The names that a name or a pattern such as "layers.*.mlp" means; `*` stands for one part between dots."""
    if not any(mark in item for mark in "*?["):
        return [item] if item in named else []
    parts = item.split(".")
    return [name for name in named if _matches(name.split("."), parts)]


def _matches(name: list[str], pattern: list[str]) -> bool:
    return len(name) == len(pattern) and all(map(fnmatch.fnmatchcase, name, pattern))


def _unknown_name(name: str, known: Iterable[str]) -> str:
    listed = ", ".join(sorted(known)[:20]) or "none"
    return (
        f"wrt names {name!r}, which is not in the graph (known names: {listed}); names are recorded by relevance.attribute, "
        "by calling the model inside `with relevance.watch(model):`, or by relevance.checkpoint(x, name)"
    )


def _hint(graph: AutogradGraph) -> str:
    """The modules to name in wrt, for models that make their inputs themselves: embeddings, else those given constants."""
    readers = [node for node in graph.nodes if node.outer and node.op.reads_data(node)]
    embeddings = sorted({node.outer for node in readers if node.name in EMBEDDINGS})
    names = ", ".join(map(repr, (embeddings or sorted({node.outer for node in readers}))[:6]))
    if embeddings:
        return f"; the model's own embeddings have names: wrt=[{names}] explains what they look up"
    return f"; constants go into modules: wrt=[{names}] explains what comes out of them" if names else ""


def _of_tokens(node: Node, shape: torch.Size, part: slice | None, R: Tensor) -> Tensor:
    """The relevance of tokens of this shape, of the R of what an embedding gave for them, or for more: of a part of its columns.

    Without a part they were turned around.
    """
    op: Any = node.op
    each: Tensor = op.of_rows(node, R).sum(-1)
    if part is None:
        return each.reshape(shape[::-1]).t()
    return each.reshape(shape) if part == slice(None) else each.reshape(shape[0], -1)[:, part]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.numel() == b.numel() > 1 and a.device == b.device and torch.equal(a.reshape(-1), b.reshape(-1).to(a.dtype))


def _parts(held: Tensor, tokens: Tensor) -> Sequence[slice | None]:
    """Where an embedding was given tokens [B, S] among others, [B, S']: their columns, None if turned around, [S, B]."""
    if held.dim() != 2 or tokens.dim() != 2 or held.device != tokens.device or tokens.shape[1] < 2:
        return []
    tokens, count = tokens.to(held.dtype), tokens.shape[1]
    if held.shape == tokens.shape[::-1] and torch.equal(held.t(), tokens):
        return [None]
    if len(held) != len(tokens) or held.shape[1] <= count:
        return []
    return [part for part in (slice(count), slice(-count, None)) if torch.equal(held[:, part], tokens)][:1]


def default_targets(output: Tensor) -> list[Tensor]:
    """The leaves that are not parameters: the inputs of a graph."""
    leaves = [getattr(fn, "variable", None) for fn in discover(output.grad_fn)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter)]
