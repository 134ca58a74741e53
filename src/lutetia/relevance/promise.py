"""Promises: placeholders for relevance that cannot be computed yet, because an operand was not kept.

A node such as `a + b` hands relevance on in proportion to its operands, and autograd keeps neither. So the walk makes a
*Promise* at that node, its start node, with one *Branch* per operand, and sends the branches on to the children as if
they were relevance. What happens to a branch on its way down:

- a node that merely passes values on (a view, a cast, a scaling) is appended to the branch's `path`: its forward is the
  transform that an argument takes on the way up, its relevance rule the transform that relevance takes on the way down;
- a node that knows its own output is the branch's *arg node*: it sets the argument;
- a node that does not, and combines several operands, makes its own promise, a child of the branch: a promise tree.

A promise is *ready* once the argument of every branch is set: then its own output is known, and goes up to its parents.
It is *complete* once it is ready and all its parents are complete: then the rule is applied, and the in-relevances are
carried down every branch.

A *Pre-Promise* is made at a node which a promise reached before all other inputs landed there. It has a single branch
and no rule: it only goes on searching. Its parents do not list it as a child, so arguments go up through it, while no
relevance comes down before the rest has landed. An *Aggregate* fans several inputs of one node in. It too has a single
branch and no rule, but it is linked both ways.

Nothing here recurses: `settle` works a list of promises off, however deep their tree is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lutetia.errors import LutetiaError
from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.parts import SlicedRelevance, added, whole

KNOWN = object()  # the argument of a branch whose parents all have theirs: the value is not needed


class Deadlock(LutetiaError):
    """Nodes remain and nothing can move."""

    kind = "deadlock"


class Branch:
    """One operand of a promise: its argument, its in-relevance, and the way between the start node and the arg node."""

    __slots__ = ("arg_node", "argument", "children", "path", "position", "promise", "relevance", "waiting")

    def __init__(self, promise: Promise, position: int, argument: Any = None) -> None:
        self.promise = promise
        self.position = position  # which input of the start node
        self.argument = argument
        self.relevance: Any = None  # what arrives at the arg node, once complete
        self.path: list[Node] = []  # the transforms recorded on the way down
        self.arg_node: Node | None = None
        self.children: list[tuple[Promise, int]] = []  # promises that its relevance goes to, and which output of their node
        self.waiting: Node | None = None  # the arg node, while it stalls in the promise queue

    @property
    def complete(self) -> bool:
        return self.promise.complete

    def take(self) -> Any:
        """Take the relevance that arrived; it is not kept."""
        relevance, self.relevance = self.relevance, None
        return relevance

    @property
    def is_open(self) -> bool:
        """Whether it still searches for its argument."""
        return self.argument is None


class Promise:
    """Relevance that is promised to the operands of its start node."""

    __slots__ = ("branches", "complete", "kind", "missing", "node", "out", "owned", "parents", "unsettled")

    def __init__(self, node: Node, kind: str = "promise") -> None:
        self.node = node  # the start node
        self.kind = kind  # "promise", "pre-promise" or "aggregate"
        self.out: Any = None  # out-relevance: what has arrived so far; a list per output number when several are in use
        self.branches: list[Branch] = []
        self.parents: list[tuple[Branch, int]] = []  # who wants this node's output, and which output number
        self.unsettled = 0  # parents it waits for; a pre-promise waits for its inputs to land as well
        self.missing = 0  # branches without an argument
        self.complete = False
        self.owned = False  # whether `out` is a sum of its own, which may be changed in place

    @property
    def is_placeholder(self) -> bool:
        """Whether it has no rule of its own."""
        return self.kind != "promise"

    @property
    def ready(self) -> bool:
        """Every argument is set."""
        return self.missing == 0

    def branch(self, position: int, argument: Any = None) -> Branch:
        """Add a branch."""
        added = Branch(self, position, argument)
        self.branches.append(added)
        self.missing += argument is None
        return added

    def adopt(self, parent: Branch, nr: int) -> None:
        """Link a pending parent both ways: its relevance will come down, this node's output goes up to it."""
        self.parents.append((parent, nr))
        self.link_down(parent, nr)

    def link_down(self, parent: Branch, nr: int) -> None:
        """Let a pending parent list this promise as a child."""
        parent.children.append((self, nr))
        self.unsettled += 1

    def receive(self, relevance: Any, nr: int) -> None:
        """Add to the out-relevance, as relevance accumulates where several edges meet; None adds nothing."""
        if relevance is None:
            return
        if isinstance(relevance, tuple):  # of a node with several outputs in use, all at once
            self.out = list(relevance)
        elif self.node.several:
            self.out = self.out or [None] * len(self.node.metas)
            self.out[nr] = whole(relevance) if self.out[nr] is None else self.out[nr] + whole(relevance)
        elif self.out is None:
            self.out, self.owned = whole(relevance), isinstance(relevance, SlicedRelevance)
        else:
            self.out, self.owned = added(self.out, relevance, self.owned), True

    def why_stalled(self) -> str:
        """What an incomplete promise still waits for, in words."""
        searching = [
            f"input {b.position} (last seen at {(b.path[-1] if b.path else self.node).where()})"
            for b in self.branches
            if b.is_open
        ]
        if searching:
            return f"{self.kind} of {self.node.where()} has no argument for {', '.join(searching)}"
        return f"{self.kind} of {self.node.where()} waits for {self.unsettled} of its parents"


class Promises:
    """The promises of one walk: moves arguments up and relevance down, and reports which nodes can continue."""

    def __init__(
        self,
        apply: Callable[[Node, Any, Sequence[Tensor | None]], Sequence[Tensor | SlicedRelevance | None]],
        compute: Callable[[Node, Sequence[Tensor | None]], Relevance],
        story: Callable[[str, Promise], None] | None,
    ) -> None:
        self._apply, self._compute, self._story = apply, compute, story
        self.fulfilled: deque[Node] = deque()  # stalled nodes whose promise has become complete
        self._up: list[Promise] = []
        self._down: list[Promise] = []

    def made(self, promise: Promise) -> None:
        """Report a new promise to the listener, if there is one."""
        if self._story is not None:
            self._story("made", promise)

    def argue(self, branch: Branch, value: Any, at: Node) -> None:
        """Set the argument of a branch: `value` is the output of `at`, and takes the recorded path up to the start node."""
        branch.arg_node = at
        if branch.argument is not None:
            return
        for node in reversed(branch.path):  # the last recorded first
            value = self._compute(node, _at(node, value))
        branch.argument = value
        promise = branch.promise
        promise.missing -= 1
        if promise.ready:
            self._up.append(promise)

    def settle(self) -> None:
        """Move everything that can move: outputs of ready promises up, relevance of complete ones down."""
        while self._up or self._down:
            if self._up:
                promise = self._up.pop()
                self._answer_parents(promise)
                self.complete_if_possible(promise)
            else:
                self._carry_down(self._down.pop())

    def answer(self, promise: Promise, parent: Branch, nr: int) -> None:
        """Give a parent that has just joined the argument, if it is known already."""
        if promise.ready:
            value = promise.branches[0].argument
            self.argue(parent, value[nr] if isinstance(value, tuple) else value, promise.node)
            self.settle()

    def request(self, promise: Promise) -> None:
        """Ask for completion: answer the parents if the argument is known, and go on as far as possible."""
        if promise.ready:
            self._up.append(promise)
        self.settle()

    def complete_if_possible(self, promise: Promise) -> None:
        """Complete a promise that is ready and whose parents are complete."""
        if promise.ready and promise.unsettled == 0 and not promise.complete:
            promise.complete = True
            self._down.append(promise)

    def _answer_parents(self, promise: Promise) -> None:
        asking = [(parent, nr) for parent, nr in promise.parents if parent.is_open]
        if not asking:
            return
        node = promise.node
        if promise.is_placeholder:
            value = promise.branches[0].argument
        else:
            value = node.value = self._compute(node, self._arguments(promise))
        for parent, nr in asking:
            if parent.is_open:
                self.argue(parent, value[nr] if isinstance(value, tuple) and nr >= 0 else value, node)

    def _arguments(self, promise: Promise) -> list[Tensor | None]:
        args = list(promise.node.operands())
        for branch in promise.branches:
            if branch.argument is not KNOWN:
                args[branch.position] = branch.argument
        return args

    def _carry_down(self, promise: Promise) -> None:
        """Apply the rule of a complete promise and carry what it gives down every branch."""
        if self._story is not None:
            self._story("completed", promise)
        out = tuple(promise.out) if isinstance(promise.out, list) else promise.out
        promise.out = None
        if promise.is_placeholder:
            (branch,) = promise.branches
            branch.argument = KNOWN
            self._arrive(branch, out)
            return
        given = self._apply(promise.node, out, self._arguments(promise))
        for branch in promise.branches:
            branch.argument = KNOWN  # the tensor is not needed any more
            self._arrive(branch, given[branch.position])

    def _arrive(self, branch: Branch, relevance: Any) -> None:
        for node in branch.path:  # the first recorded first
            relevance = self._apply(node, relevance, node.operands())[node.walked[0]]
        branch.relevance = None if branch.children else relevance  # a promise with children has no other reader
        for child, nr in branch.children:
            child.receive(relevance, nr)
            child.unsettled -= 1
            self.complete_if_possible(child)
        if branch.waiting is not None:
            self.fulfilled.append(branch.waiting)


def _at(node: Node, value: Any) -> list[Tensor | None]:
    """The inputs of a pass-through node, whose one walked input is `value`."""
    args = list(node.operands())
    args[node.walked[0]] = value
    return args
