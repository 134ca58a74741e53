"""The walk: relevance from the output back to the inputs, one node at a time, in one of three modes.

- NTM, normal traversal: all inputs of the node have landed; merge them and propagate.
- PTM, promise traversal: an open promise reached the node while other inputs are outstanding; only the search for the
  argument goes on, with a Pre-Promise.
- PFM, promise fulfilment: the promise a node waited for is complete; its in-relevance is the node's out-relevance.

Each step takes a node whose promise was fulfilled if there is one, else a node to search at, else one from the normal stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lutetia import flow
from lutetia.relevance.graph import AutogradGraph, Node, NodeEdge, Relevance, unknown
from lutetia.relevance.parts import SlicedRelevance, added, whole
from lutetia.relevance.precision import relevance_of, value_of
from lutetia.relevance.promise import KNOWN, Branch, Deadlock, Promise, Promises
from lutetia.relevance.registry import Given, Unknown
from lutetia.relevance.report import Report
from lutetia.relevance.stacked import relevance_of_each

UNKNOWN = ("raise", "absorb", "linear")  # what an operation without a rule does
NOTHING = object()  # marks an input that gets no relevance


class Walk:
    """One walk over one graph."""

    def __init__(
        self, graph: AutogradGraph, report: Report, unknown: str = "raise", output: Tensor | None = None, to_the_end: bool = False
    ) -> None:
        self.graph, self.report, self.unknown = graph, report, unknown
        self.to_the_end = to_the_end  # whether to continue once every target is reached
        self.targets_left = sum(len(node.targets) for node in graph.nodes)
        self.mode = "NTM"
        self.normal_stack: list[Node] = []
        self.promise_traversal_stack: list[Node] = []
        self.promise_queue: dict[Node, Branch] = {}  # stalled nodes, and the promise branch each waits for
        self.log: list[tuple[bool, Node]] = []  # what was computed, in order: True for a relevance, False for a value
        self.telling = flow.recording()
        self.promises = Promises(self.apply, self.compute, self._tell if self.telling else None)
        self.fulfilled = self.promises.fulfilled
        if unknown == "linear":
            _take_for_linear(graph)
        graph.root.value = output

    def run(self, seed: Tensor) -> None:
        """Walk from the root, whose out-relevance is `seed`, shaped like the output."""
        try:
            with flow.step("relevance walk", part="relevance", inputs={"seed": seed}, nodes=len(self.graph.nodes)):
                self._run(seed)
        finally:
            del self.promises  # which call this walk: nodes would stay in a cycle until the garbage collector finds it

    def _run(self, seed: Tensor) -> None:
        self.propagate(self.graph.root, seed)
        while self.targets_left or self.to_the_end:
            if self.fulfilled:
                self._fulfil(self.fulfilled.popleft())
            elif self.promise_traversal_stack:
                node = self._pop(self.promise_traversal_stack)
                # What landed since takes the normal path; once is enough.
                if node.landed < len(node.parents) and node.pre_promise is None:
                    self._enter("PTM", node)
                    self._search(node)
            elif self.normal_stack:
                node = self._pop(self.normal_stack)
                self._enter("NTM", node)
                self._merge(node)
            else:
                self._check_nothing_is_left()
                return

    def _pop(self, stack: list[Node]) -> Node:
        return stack.pop()

    def _enter(self, mode: str, node: Node) -> None:
        self.report.modes[mode] += 1
        if mode != self.mode:
            if self.telling:
                with flow.step(f"{self.mode} → {mode} at {node.where()}", part="relevance"):
                    pass
            self.mode = mode

    # ---- the three modes ---------------------------------------------------------------------------------------------

    def _fulfil(self, node: Node) -> None:
        """Resume a node of the promise queue whose branch is complete."""
        branch = self.promise_queue.pop(node)
        # A node that waited for its own pre-promise has had all its inputs landed: that is normal traversal.
        self._enter("NTM" if branch.promise is node.pre_promise else "PFM", node)
        self.propagate(node, branch.take())

    def _search(self, node: Node) -> None:
        """PTM: make a Pre-Promise at a node whose inputs have not all landed, and send it through."""
        promise = Promise(node, "pre-promise")
        promise.unsettled = 1  # the inputs still to land
        for slot, (_, _, nr) in zip(node.slots, node.parents, strict=True):
            if isinstance(slot, Branch) and slot.is_open:
                promise.parents.append((slot, nr))  # one way only: the inputs do not list it as a child
        node.pre_promise = promise
        self._made(promise)
        self._propagate_promise(node, promise.branch(0))

    def _merge(self, node: Node) -> None:
        """NTM: merge what has landed into one tensor or one promise, and propagate it."""
        slots, node.slots = node.slots, None
        if node.pre_promise is not None:
            self._merge_into_pre_promise(node, node.pre_promise, slots)
            return
        addends = [slot for slot in slots if slot is not NOTHING]
        promised = any([addend.__class__ is Branch for addend in addends])
        if node.nr >= 0 and not self.telling and not promised:  # the most frequent case
            R = None if not addends else addends[0] if len(addends) == 1 else sum_of(addends)
            slots.clear()  # free the addends before the rule runs
            addends.clear()
            self.propagate(node, R)
            return
        del addends
        landed: list[tuple[Tensor, int]] = []
        pending: list[tuple[Branch, int]] = []
        for slot, (_, _, nr) in zip(slots, node.parents, strict=True):
            if slot is NOTHING:
                continue
            if not isinstance(slot, Branch):
                landed.append((slot, nr))
            elif not slot.complete:
                pending.append((slot, nr))
            elif slot.relevance is not None:
                landed.append((slot.take(), nr))
        if not pending:
            R = self._sum(node, landed)
            slots.clear()
            landed.clear()
            self.propagate(node, R)
        elif landed or len(pending) > 1 or node.several:
            self._propagate_promise(node, self._aggregate(node, landed, pending))
        else:
            self._propagate_promise(node, pending[0][0])

    def _merge_into_pre_promise(self, node: Node, promise: Promise, slots: Sequence[Any]) -> None:
        """The second visit of a node that was searched in PTM: now everything has landed."""
        joined = {id(parent) for parent, _ in promise.parents}
        for slot, (_, _, nr) in zip(slots, node.parents, strict=True):
            if slot is NOTHING:
                continue
            if not isinstance(slot, Branch):
                promise.receive(slot, nr)
            elif slot.complete:
                promise.receive(slot.take(), nr)
            else:
                if id(slot) not in joined:
                    promise.parents.append((slot, nr))
                promise.link_down(slot, nr)
                slot.arg_node = node
        promise.unsettled -= 1
        self.promises.request(promise)
        (branch,) = promise.branches
        if branch.arg_node is node and not branch.children:
            self._go_on_or_wait(node, branch)
        # Otherwise the node made its own promise, or the tail is further down: it waits in the queue or was not reached yet.

    def _aggregate(self, node: Node, landed: Sequence[tuple[Tensor, int]], pending: Sequence[tuple[Branch, int]]) -> Branch:
        """An Aggregate promise that fans in what has landed at a node."""
        promise = Promise(node, "aggregate")
        for tensor, nr in landed:
            promise.receive(tensor, nr)
        for parent, nr in pending:
            promise.adopt(parent, nr)
        self._made(promise)
        return promise.branch(0, None if any(parent.is_open for parent, _ in pending) else KNOWN)

    # ---- propagation -------------------------------------------------------------------------------------------------

    def propagate(self, node: Node, R: Any) -> None:
        """Hand the out-relevance of a node (a tensor, or a tuple per output number) to its children.

        A child that nothing else reaches is next, at once: most nodes of a graph stand in a row.
        """
        passed = 0
        while True:
            op = node.op
            args: Sequence[Tensor | None] = ()
            if R is not None and not op.blind:
                args = node.operands()
                if any([arg is None for arg in args]):
                    needs = [position for position in op.needs(node) if args[position] is None]
                    if needs:
                        promise = Promise(node)
                        promise.out = list(R) if isinstance(R, tuple) else R
                        self._send(promise, args, needs)
                        break
            given = self.apply(node, R, args)
            walked, edges = node.walked, node.edges
            if len(walked) == 1 and not self.telling and (self.targets_left or self.to_the_end):
                position = walked[0]
                child = edges[position].child  # type: ignore[union-attr]
                if len(child.parents) == 1:
                    node, R = child, given[position]
                    passed += 1
                    continue
            for position in walked:
                self._fill(edges[position], given[position])
            break
        if passed:
            self.mode = "NTM"
            self.report.modes["NTM"] += passed

    def _propagate_promise(self, node: Node, branch: Branch) -> None:
        """Send a promise through a node: the node answers it, passes it on, or makes its own promise."""
        if branch.is_open:
            value = self._value(node)
            if value is not None:
                self.promises.argue(branch, value, node)
                self.promises.settle()
            elif len(node.walked) == 1 and not node.op.needs(node):
                branch.path.append(node)
                self._fill(node.edges[node.walked[0]], branch)
                return
            else:
                promise = Promise(node)
                promise.adopt(branch, -1 if node.several else node.nr)
                self._send(promise, node.operands(), node.walked)
                return
        branch.arg_node = node
        if branch.promise is not node.pre_promise:  # which continues once everything has landed
            self._go_on_or_wait(node, branch)

    def _send(self, promise: Promise, args: Sequence[Tensor | None], needs: Sequence[int]) -> None:
        """Give a new promise its branches, and send them to the children."""
        node = promise.node
        for position in node.walked:
            argument = args[position]
            promise.branch(position, KNOWN if argument is None and position not in needs else argument)
        self._made(promise)
        if promise.ready:
            raise unknown(node, "its output is needed, was not kept, and cannot be computed")
        for branch in promise.branches:
            self._fill(node.edges[branch.position], branch)

    def _go_on_or_wait(self, node: Node, branch: Branch) -> None:
        if branch.complete:
            self.propagate(node, branch.take())
        else:
            branch.waiting = node
            self.promise_queue[node] = branch
            if self.telling:
                self._tell("stalled", branch.promise)

    def _fill(self, edge: NodeEdge | None, item: Any) -> None:
        """Land a tensor or a promise branch on an edge, and count down."""
        assert edge is not None
        child = edge.child
        count = len(child.parents)
        if child.slots is None:
            child.slots = [None] * count
        child.slots[edge.slot] = NOTHING if item is None else item
        child.landed += 1
        if child.landed == count:
            self.normal_stack.append(child)
        elif item.__class__ is Branch and item.is_open:
            pre_promise = child.pre_promise
            if pre_promise is None:
                self.promise_traversal_stack.append(child)
            else:  # a node enters PTM once; later promises join its pre-promise
                pre_promise.parents.append((item, edge.nr))
                self.promises.answer(pre_promise, item, edge.nr)

    def _value(self, node: Node) -> Relevance | None:
        """The output of a node, if it is known without a search."""
        value = node.output()
        if value is None:
            args = node.operands()
            if all(arg is not None for arg, edge in zip(args, node.edges, strict=True) if edge is not None):
                value = node.value = self.compute(node, args)
        return value

    def compute(self, node: Node, args: Sequence[Tensor | None]) -> Relevance:
        """The output of a node from its inputs."""
        self.log.append((False, node))
        return value_of(node, args)

    def apply(self, node: Node, R: Any, args: Sequence[Tensor | None]) -> Given:
        """Apply the rule of a node: the one place where relevance is passed on."""
        op, report = node.op, self.report
        self.log.append((True, node))
        if R.__class__ is SlicedRelevance:
            R = R.whole()
        if node.targets:
            self.targets_left -= len(node.targets)
            for target in node.targets:
                target.collect(R, report.stacked)
        if R is None:
            return [None] * len(node.edges)
        if self.telling:
            with flow.step(f"{node.where()}", part="relevance", inputs={"R": R}, mode=self.mode) as step:
                given = self._rule(node, R, args)
                step.outputs(given=[whole(part) for part in given if part is not None])
        elif op.blind and node.wide is None and not report.stacked:
            given = op.relevance(node, R, args)
        else:
            given = self._rule(node, R, args)
        report.add(node, R, given)
        if not op.blind:
            node.value = node.kept = None
        return given

    def _rule(self, node: Node, R: Any, args: Sequence[Tensor | None]) -> Given:
        if isinstance(node.op, Unknown):
            if self.unknown == "raise":
                raise unknown(node)
            self.report.unknown.append(node.where())
            if self.unknown == "absorb":
                return [None] * len(node.edges)
        return relevance_of_each(node, R, args) if self.report.stacked else relevance_of(node, R, args)

    # ---- reporting ---------------------------------------------------------------------------------------------------

    def _sum(self, node: Node, landed: Sequence[tuple[Tensor, int]]) -> Any:
        if not self.telling or len(landed) < 2:
            return add_up(node, landed)
        with flow.step(f"merge at {node.where()}", part="relevance", inputs={"R": [whole(part) for part, _ in landed]}) as step:
            total = add_up(node, landed)
            step.outputs(R=total)
        return total

    def _made(self, promise: Promise) -> None:
        self.report.promise(promise.kind)
        self.promises.made(promise)

    def _tell(self, what: str, promise: Promise) -> None:
        name = f"{promise.kind} {what} at {promise.node.where()}"
        known = [branch.argument for branch in promise.branches if isinstance(branch.argument, Tensor)]
        with flow.step(name, part="relevance", inputs={"R": promise.out, "arguments": known}) as step:
            step.note(branches=len(promise.branches), parents=len(promise.parents), mode=self.mode)
            if what == "stalled":
                step.note(why=promise.why_stalled())

    def _check_nothing_is_left(self) -> None:
        stalled = [branch.promise for branch in self.promise_queue.values()]
        if stalled:
            reasons = "; ".join(promise.why_stalled() for promise in stalled[:5])
            raise Deadlock(f"{len(stalled)} nodes wait for promises that cannot be completed: {reasons}")


def _take_for_linear(graph: AutogradGraph) -> None:
    """Treat operations without a rule as the linear maps of their own backward."""
    from lutetia.relevance.rules.guess import LINEAR

    for node in graph.nodes:
        if isinstance(node.op, Unknown):
            node.op = LINEAR


def add_up(node: Node, landed: Sequence[tuple[Any, int]]) -> Any:
    """Relevance as it accumulates: the sum of what landed, per output number where several are in use."""
    if not landed:
        return None
    if not node.several:
        return sum_of([relevance for relevance, _ in landed])
    sums: list[Tensor | None] = [None] * len(node.metas)
    for relevance, nr in landed:
        held = sums[nr]
        sums[nr] = whole(relevance) if held is None else held + whole(relevance)
    return tuple(sums)


def sum_of(addends: Sequence[Tensor | SlicedRelevance]) -> Tensor:
    """The sum of tensors and parts of one shape; none of them is changed."""
    total: Tensor = whole(addends[0])
    owned = isinstance(addends[0], SlicedRelevance)
    for addend in addends[1:]:
        total, owned = added(total, addend, owned), True
    sums = [getattr(addend, "_lutetia_sum", None) for addend in addends]
    if None not in sums:
        total._lutetia_sum = sum(sums)  # type: ignore[attr-defined]
    return total
