"""Plans: one walk, recorded, and replayed for other inputs and other lengths.

A plan lists what the walk computed, in order: the values it needed, and the relevance at every node. On
a new graph of the same structure nothing is left to decide: no modes, no promises. A graph of another structure (another
branch of the model's code, a frozen parameter) is detected and planned again. So is one that kept fewer values than the first:
small sums keep their operands, large ones do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from lutetia import flow
from lutetia.relevance.api import ExplainedOutput, Run, collector_at_rest, finish, walking
from lutetia.relevance.engine import add_up
from lutetia.relevance.graph import Node, discover, pick, structure
from lutetia.relevance.outputs import select
from lutetia.relevance.parts import whole
from lutetia.relevance.precision import carry, relevance_of, value_of
from lutetia.relevance.report import Report
from lutetia.relevance.result import Result
from lutetia.relevance.rules.choices import Rules
from lutetia.relevance.targets import Asked


class _NotKept(Exception):
    """A value that the recorded walk found kept is not kept in this graph, so the plan does not compute it."""


class Step(NamedTuple):
    """One computation of a walk. What is on its way from node to node lies at numbered places."""

    node: Node
    takes: Sequence[tuple[int, int]] | None  # where its relevance lies, and of which output that is; None: its value is computed
    gives: Sequence[tuple[int, int]]  # the inputs that get relevance, and where it is put


class Recorded:
    """A walk that can be taken again, on other graphs of the same structure."""

    def __init__(self, explained: ExplainedOutput, output: Tensor) -> None:
        self.explained, self.graph = explained, explained.graph
        self.structure = structure(discover(output.grad_fn))
        starts, self.places = {}, 1
        for node in self.graph.nodes:
            starts[node] = self.places
            self.places += len(node.parents)
        self.steps: list[Step] = []
        for is_relevance, node in explained.log:
            takes = [(starts[node] + at, nr) for at, (_, _, nr) in enumerate(node.parents)] or [(0, max(node.nr, 0))]
            edges = [(at, node.edges[at]) for at in node.walked]
            gives = [(at, starts[edge.child] + edge.slot) for at, edge in edges if edge is not None]
            self.steps.append(Step(node, takes, gives) if is_relevance else Step(node, None, ()))
        for node in self.graph.found:  # now: a node cannot say it once its graph is gone, nor can the next one
            node.module = node.outer
        self.graph.let_go()

    def again(self, inputs: dict[Any, Any], output: Tensor, seed: Tensor, asked: Asked) -> tuple[Any, Report]:
        """Take it on a graph, as `discover` gives it: its targets and its report."""
        self.graph.rebind(inputs)
        try:
            targets = self.explained.place(asked)
            report, carried = Report(), carry(self.graph, seed.detach())
            report.modes["planned"] = len(self.steps)
            self.graph.root.value = output.detach()
            with flow.step("relevance replay", part="relevance", inputs={"seed": seed}, computations=len(self.steps)):
                self._take(carried, report)
            return targets, report
        finally:
            self.graph.let_go()

    def _take(self, seed: Tensor, report: Report) -> None:
        lying: list[Any] = [None] * self.places
        lying[0] = seed
        for node, takes, gives in self.steps:
            if takes is None:
                if node.value is None:
                    node.value = value_of(node, _arguments(node, [at for at, edge in enumerate(node.edges) if edge is not None]))
                continue
            if len(takes) == 1 and node.nr >= 0:  # the most frequent case
                ((at, _),) = takes
                R, lying[at] = whole(lying[at]), None
            else:
                R = add_up(node, [(lying[at], nr) for at, nr in takes if lying[at] is not None])
                for at, _ in takes:
                    lying[at] = None
            for wanted in node.targets:
                wanted.collect(R)
            if R is None:
                continue
            op = node.op
            if op.blind and node.wide is None:
                given = op.relevance(node, R, ())
            else:
                given = relevance_of(node, R, () if op.blind else _arguments(node, op.needs(node)))
                node.value = node.kept = None
            report.add(node, R, given)
            for position, place in gives:
                lying[place] = given[position]


class Plan:
    """What `compile` returns. Call it with inputs like those of `attribute`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._recorded: Recorded | None = None
        self.planned = 0  # how often a traversal was planned: 1 while all graphs have the same structure
        self.replayed = 0  # how often it was replayed

    def __call__(self, inputs: object, target: object = None) -> Result:
        """Relevance for these inputs, as `attribute` would find it."""
        with collector_at_rest():
            if self._recorded is not None:
                result = self._replay(self._recorded, inputs, target)
                if result is not None:
                    self.replayed += 1
                    return result
            return self._plan(inputs, target)

    def _replay(self, recorded: Recorded, inputs: object, target: object) -> Result | None:
        """The result by a recorded walk; None if this graph needs one of its own."""
        returned, asked = self._run.forward(inputs, named=False)
        with walking():
            output, seed = select(returned, target)
            found = discover(output.grad_fn)
            if recorded.graph.root.nr != output.output_nr or structure(found) != recorded.structure:
                return None
            try:
                return finish(output, seed, asked, *recorded.again(found, output, seed, asked))
            except _NotKept:
                return None

    def _plan(self, inputs: object, target: object) -> Result:
        """The result by a walk that is recorded."""
        returned, asked = self._run.forward(inputs)
        with walking():
            output, seed = select(returned, target)
            self._recorded = None  # a walk that fails leaves no plan
            explained = ExplainedOutput(output, asked, self._run.rules)
            report = explained.walk(output, seed, self._run.unknown)
            self._recorded = Recorded(explained, output)
            self.planned += 1
            return finish(output, seed, asked, explained.targets, report)


def _arguments(node: Node, needed: Sequence[int]) -> Sequence[Tensor | None]:
    """The known inputs. Those at the `needed` positions must be: kept, or computed before."""
    args = node.operands()
    missing = [position for position in needed if args[position] is None]
    if not missing:
        return args
    args = [*args]
    for position in missing:
        edge = node.edges[position]
        value = None if edge is None else edge.child.output()
        if edge is None or value is None:
            raise _NotKept
        args[position] = pick(value, edge)
    return args


def compile(model: nn.Module, example: object, rules: Rules | None = None, *, wrt: object = None, strict: bool = True) -> Plan:
    """Plan the traversal of a model once, on an example of its inputs: `plan = compile(model, x)`, then `plan(x2)`.

    `example`: a tensor, a tuple of arguments or a mapping, as for `attribute`; other calls may have other sizes.
    """
    plan = Plan(Run(model, rules, {"wrt": wrt, "strict": strict}))
    plan(example)
    return plan
