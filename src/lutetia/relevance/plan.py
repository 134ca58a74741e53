"""Plans: one walk, recorded, and replayed for other inputs and other lengths.

A plan lists what the walk computed, in order: the values it needed, and the relevance at every node. On
a new graph of the same structure nothing is left to decide: no modes, no promises. A graph of another structure (another
branch of the model's code, a frozen parameter) is detected and planned again. So is one that kept fewer values than the first:
small sums keep their operands, large ones do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from lutetia import flow
from lutetia.relevance.api import ExplainedOutput, Run, collector_at_rest, finish, walking
from lutetia.relevance.engine import NOTHING, add_up
from lutetia.relevance.graph import Node, discover, pick
from lutetia.relevance.outputs import select
from lutetia.relevance.precision import carry, relevance_of, value_of
from lutetia.relevance.report import Report
from lutetia.relevance.result import Result
from lutetia.relevance.rules.choices import Rules
from lutetia.relevance.targets import Asked


class _NotKept(Exception):
    """A value that the recorded walk found kept is not kept in this graph, so the plan does not compute it."""


class Plan:
    """What `compile` returns. Call it with inputs like those of `attribute`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._first: ExplainedOutput | None = None
        self.planned = 0  # how often a traversal was planned: 1 while all graphs have the same structure
        self.replayed = 0  # how often it was replayed

    def __call__(self, inputs: object, target: object = None) -> Result:
        """Relevance for these inputs, as `attribute` would find it."""
        with collector_at_rest():
            return self._call(inputs, target)

    def _call(self, inputs: object, target: object) -> Result:
        returned, asked = self._run.forward(inputs)
        with walking():
            output, seed = select(returned, target)
            first = self._first
            if first is not None and first.graph.root.nr == output.output_nr and first.graph.rebind(discover(output.grad_fn)):
                try:
                    result = finish(output, seed, asked, *self._replay(first, output, seed, asked))
                except _NotKept:
                    pass
                else:
                    self.replayed += 1
                    return result
            self._first = None  # a walk that fails leaves a plan of only a part
            planned = ExplainedOutput(output, asked, self._run.rules)
            report = planned.walk(output, seed, self._run.unknown)
            for node in planned.graph.found:  # now: a node cannot say it once its graph is gone, nor can the next one
                node.module = node.outer
            self._first = planned
            self.planned += 1
            return finish(output, seed, asked, planned.targets, report)

    def _replay(self, first: ExplainedOutput, output: Tensor, seed: Tensor, asked: Asked) -> tuple[Any, Report]:
        """Run the recorded computations on the nodes of a new graph."""
        report = Report()
        targets = first.place(asked)
        graph = first.graph
        carried = carry(graph, seed.detach())
        for node in graph.nodes:
            node.slots = [None] * len(node.parents)
        graph.root.value = output.detach()
        with flow.step("relevance replay", part="relevance", inputs={"seed": seed}, computations=len(first.log)):
            report.modes["planned"] = len(first.log)
            for is_relevance, node in first.log:
                if is_relevance:
                    self._hand_on(node, carried if node is graph.root else _merged(node), report)
                elif node.value is None:
                    node.value = value_of(node, _arguments(node, [at for at, edge in enumerate(node.edges) if edge is not None]))
        return targets, report

    def _hand_on(self, node: Node, R: Any, report: Report) -> None:
        for wanted in node.targets:
            wanted.collect(R)
        if R is None:
            for position in node.walked:
                edge = node.edges[position]
                assert edge is not None
                edge.child.slots[edge.slot] = NOTHING
            return
        given = relevance_of(node, R, _arguments(node, node.op.needs(node)))
        report.add(node, R, given)
        node.value = node.kept = None
        for position in node.walked:
            edge = node.edges[position]
            assert edge is not None
            edge.child.slots[edge.slot] = NOTHING if given[position] is None else given[position]


def _merged(node: Node) -> Any:
    landed = [
        (tensor, nr)
        for tensor, (_, _, nr) in zip(node.slots, node.parents, strict=True)
        if tensor is not None and tensor is not NOTHING
    ]
    node.slots = None
    return add_up(node, landed)


def _arguments(node: Node, needed: Sequence[int]) -> list[Tensor | None]:
    """All known inputs: kept, or computed before. Those at the `needed` positions must be known."""
    args = list(node.operands())
    for position in node.walked:
        if args[position] is None:
            edge = node.edges[position]
            assert edge is not None
            value = edge.child.output()
            if value is not None:
                args[position] = pick(value, edge)
    if any(args[position] is None for position in needed):
        raise _NotKept
    return args


def compile(model: nn.Module, example: object, rules: Rules | None = None, *, wrt: object = None, strict: bool = True) -> Plan:
    """Plan the traversal of a model once, on an example of its inputs: `plan = compile(model, x)`, then `plan(x2)`.

    `example`: a tensor, a tuple of arguments or a mapping, as for `attribute`; other calls may have other sizes.
    """
    plan = Plan(Run(model, rules, {"wrt": wrt, "strict": strict}))
    plan(example)
    return plan
