"""What a walk reports: per node the relevance that arrived, was passed on, and was absorbed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lutetia.relevance.graph import EMBEDDINGS

if TYPE_CHECKING:
    from rich.table import Table

    from lutetia.relevance.graph import Node
    from lutetia.relevance.parts import SlicedRelevance


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node of the walk. Its children are its forward inputs, so relevance comes *out* at it and goes *in* to them."""

    index: int  # topological
    name: str  # of the autograd node
    module: str  # the module it ran in, where known
    rule: str
    relevance_out: float  # that stood at the node
    relevance_in: float  # that it handed to its inputs
    absorbed: float  # by biases, other constants and stabilisers; all of it where the walk ends

    @property
    def ends(self) -> bool:
        """Whether the relevance ends here: at an input, a parameter, or the tokens of an embedding."""
        return self.name == "AccumulateGrad" or self.name in EMBEDDINGS


class Report:
    """What happened during one traversal."""

    def __init__(self, stacked: bool = False) -> None:
        self.stacked = stacked  # whether the walk is of N relevances, so that every sum has N numbers
        self.modes: Counter[str] = Counter()  # how often each mode was entered: NTM, PTM, PFM
        self.promises: Counter[str] = Counter()  # how many of each kind were made: promise, pre-promise, aggregate
        self.unknown: list[str] = []  # places where an unknown operation swallowed relevance (strict=False)
        self.unseen: list[str] = []  # nodes where the share of a constant is unknown
        self._entries: list[tuple[Any, ...]] = []
        self._nodes: list[NodeReport] | None = None

    def promise(self, kind: str) -> None:
        self.promises[kind] += 1

    def add(self, node: Node, R: Any, given: Sequence[Tensor | SlicedRelevance | None]) -> None:
        """Record the relevance a node got and passed on. On a device the sums stay tensors, so that nothing waits for it."""
        op = node.op
        if op.nests or node.is_inner:  # what is inside it was noted, and what is around it will be
            return
        taken = totals if self.stacked else total
        outs: Sequence[Any] = [taken(r) for r in R if r is not None] if R.__class__ is tuple else (taken(R),)
        ins = outs
        if op.conserves:
            given_R = given[0]
            if given_R is not R and given_R is not None:
                given_R._lutetia_sum = outs[0] if len(outs) == 1 else sum(outs)  # type: ignore[union-attr]
        else:  # what a constant or a weight would get ends here
            edges = node.edges
            ins = [
                taken(part)
                for at in node.walked
                if (part := given[at]) is not None and not edges[at].child.is_weight  # type: ignore[union-attr]
            ]
        module: Any = node.module
        if module is None:  # to be searched for when someone reads the report
            module = "" if node.modules is None else (node.modules, node.fn._sequence_nr())
        self._entries.append((node.index, node.name, module, op, node.choice, outs, ins))
        if node.note:
            self.unseen.append(f"{node.where()}: {node.note}")

    def of_each(self, count: int) -> list[Report]:
        """The report of each of N relevances."""
        outs, ins = (_numbers([entry[side] for entry in self._entries], count) for side in (5, 6))
        reports = [Report() for _ in range(count)]
        for at, report in enumerate(reports):
            rows = zip(self._entries, outs, ins, strict=True)
            report._entries = [(*entry[:5], out[at : at + 1], given[at : at + 1]) for entry, out, given in rows]
            report.modes, report.promises = self.modes.copy(), self.promises.copy()
            report.unknown, report.unseen = list(self.unknown), list(self.unseen)
        return reports

    @property
    def nodes(self) -> list[NodeReport]:
        """Every node that relevance went through, in topological order."""
        if self._nodes is None:
            names: dict[tuple[int, int], str] = {}  # of the rules, which are few
            rows = []
            for index, name, module, op, choice, outs, ins in self._entries:
                key = id(op), id(choice)
                if key not in names:
                    names[key] = type(op).__name__ if choice is None else f"{type(op).__name__}, {choice}"
                module = module if isinstance(module, str) else module[0].around(module[1])[0]
                rows.append(_row(index, name, module, names[key], outs, ins))
            self._nodes = sorted(rows, key=lambda row: row.index)
            self._entries = []
        return self._nodes

    @property
    def rules(self) -> Counter[str]:
        """How often each rule was applied."""
        return Counter(row.rule for row in self.nodes)

    @property
    def absorbed(self) -> float:
        """The total relevance that biases, constants and stabilisers absorbed."""
        return sum(row.absorbed for row in self.nodes if not row.ends)

    @property
    def absorbed_by_module(self) -> dict[str, float]:
        """The same by innermost module, the largest shares first."""
        shares: defaultdict[str, float] = defaultdict(float)
        for row in self.nodes:
            if not row.ends:
                shares[row.module] += row.absorbed
        return dict(sorted(shares.items(), key=lambda item: -abs(item[1])))

    @property
    def ended_by_module(self) -> dict[str, float]:
        """Where the rest ended, by module: at inputs (""), and at the rows of embeddings, those of positions too."""
        ended: defaultdict[str, float] = defaultdict(float)
        for row in self.nodes:
            if row.ends:
                ended[row.module] += row.relevance_out
        return dict(sorted(ended.items(), key=lambda item: -abs(item[1])))

    def __iter__(self) -> Iterator[NodeReport]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __rich__(self) -> Table:
        from rich.markup import escape
        from rich.table import Table

        table = Table(title="Relevance", caption=escape(self.summary()))
        for name, side in (("node", "left"), ("module", "left"), ("rule", "left")):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        for name in ("out", "in", "absorbed"):
            table.add_column(name, justify="right")
        for row in self.nodes:
            numbers = (f"{number:.4g}" for number in (row.relevance_out, row.relevance_in, row.absorbed))
            table.add_row(escape(f"{row.index} {row.name}"), escape(row.module), escape(row.rule), *numbers)
        return table

    def summary(self) -> str:
        """The walk in one line."""
        modes = ", ".join(f"{mode} {count}" for mode, count in sorted(self.modes.items())) or "none"
        promises = ", ".join(f"{count} {kind}s" for kind, count in sorted(self.promises.items())) or "none"
        return f"{len(self.nodes)} nodes; modes: {modes}; promises: {promises}; absorbed: {self.absorbed:.4g}"

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=140, record=False, file=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def __repr__(self) -> str:
        return f"<Report: {self.summary()}>"


def total(relevance: Any) -> Tensor | float:
    """The sum of a relevance tensor of any shape, taken once and remembered with it; a number on a CPU."""
    known = getattr(relevance, "_lutetia_sum", None)
    if known is None:
        plain = relevance.dtype in _PLAIN and relevance.is_cpu and not is_stacked(relevance)
        known = relevance._lutetia_sum = relevance.sum().item() if plain else _sum(relevance)
    return known


def totals(relevance: Any) -> Tensor:
    """The sum of each of N relevances [N, ...], taken once and remembered with them."""
    known = getattr(relevance, "_lutetia_sum", None)
    if known is None:
        known = relevance._lutetia_sum = _summed(relevance.reshape(len(relevance), -1), 1)
    return known


# Whether a tensor stands for N relevances that a rule is applied to at once: nothing can be decided by its numbers.
is_stacked: Callable[[Tensor], bool] = torch._C._functorch.is_batchedtensor


def numbers_of(tensor: Tensor) -> Tensor:
    """A tensor whose numbers can be looked at: itself, or [N, ...] where it stands for N relevances."""
    if not is_stacked(tensor):
        return tensor
    return torch._C._functorch.get_unwrapped(tensor).movedim(torch._C._functorch.maybe_get_bdim(tensor), 0)


def _sum(tensor: Tensor) -> Tensor | float:
    total = _summed(tensor)
    return total.item() if tensor.is_cpu and not is_stacked(tensor) else total


def _summed(tensor: Tensor, dim: int | None = None) -> Tensor:
    if tensor.is_complex():  # the relevance of the real and of the imaginary parts
        return tensor.real.sum(dim) + tensor.imag.sum(dim)
    return tensor.sum(dim, dtype=torch.float32) if tensor.dtype in _HALF else tensor.sum(dim)


def _numbers(sums: Sequence[Sequence[Tensor]], count: int) -> list[list[float]]:
    """Sums of N relevances, several or none for each node, added up: N numbers for each node, all fetched at once."""
    added = [torch.stack([part.double() for part in parts]).sum(0) for parts in sums if parts]
    numbers = iter(torch.stack([each.to(added[0].device) for each in added]).tolist() if added else [])
    return [next(numbers) if parts else [0.0] * count for parts in sums]


_HALF = (torch.bfloat16, torch.float16)
_PLAIN = (torch.float32, torch.float64)


def _row(index: int, name: str, module: str, rule: str, outs: Sequence[Any], ins: Sequence[Any]) -> NodeReport:
    out, given = sum(float(t) for t in outs), sum(float(t) for t in ins)
    return NodeReport(index, name, module, rule, out, given, out - given)
