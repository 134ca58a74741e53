"""The autograd graph as the walk sees it: nodes, edges with output numbers, topological indices.

Children are the forward inputs of a node (`next_functions`), parents its consumers. A *weight* is a node from which only
parameters can be reached: its value is read directly and it gets relevance only when requested, so the walk leaves it out.
Everything here is iterative; a graph may be ten thousand nodes deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lutetia.errors import LutetiaError

if TYPE_CHECKING:
    from lutetia.relevance.names import Modules
    from lutetia.relevance.registry import Op
    from lutetia.relevance.rules.choices import Rules

MODULES = "lutetia.modules"  # grad_fn.metadata key of module outputs: [(label, module, start, end, output, whether recurrent)]
WEIGHT = "lutetia.weight"  # whether the output of a node is a weight, computed from parameters
CONSTANT = "lutetia.constant"  # grad_fn.metadata key: the operand that leaves no node, where `watch` saw it
VALUE = "lutetia.value"  # grad_fn.metadata key: the output of an operation without a rule, where `watch` saw it
OUTPUT = "lutetia.output"  # grad_fn.metadata key: the output of a linear layer, where `watch` saw it
OPERANDS = "lutetia.operands"  # grad_fn.metadata key: those of a small sum, where `watch` saw them
WRITE = "lutetia.write"  # grad_fn.metadata key: what was written in place into a slice, where `watch` saw it
SMALL = 1 << 17  # elements, up to which the operands of a sum are kept: to search for them takes longer than to add them

EMBEDDINGS = frozenset({"EmbeddingBackward0", "EmbeddingBagBackward0"})  # whose integers can be targets
RESHAPES = frozenset({"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"})

Relevance = Tensor | tuple[Tensor | None, ...]  # at one node: a tensor, or one per output number where several are in use


class NodeEdge:
    """From a node to one of its forward inputs."""

    __slots__ = ("child", "nr", "slot")

    def __init__(self, child: Node, nr: int, slot: int) -> None:
        self.child = child
        self.nr = nr  # which output of the child
        self.slot = slot  # which place among the child's incoming edges


class Node:
    """One autograd node, and what the walk keeps at it. A graph has thousands, each of them asked often: hence slots."""

    __slots__ = (
        "choice", "edges", "fn", "index", "is_inner", "is_weight", "kept", "landed", "metadata_of_outputs", "module", "modules",
        "name", "note", "notes", "nr", "op", "parents", "pre_promise", "recurrent", "rules", "slots", "targets", "value",
        "walked", "walks", "wide",
    )  # fmt: skip
    op: Op
    rules: Rules

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        name: str = fn.name()
        self.name = name if ":" not in name else name.rpartition("::")[2]
        self.notes: dict[str, Any] = fn.metadata  # what `watch` saw
        self.edges: list[NodeEdge | None] = []  # one per forward input; None where the input was a constant
        self.parents: list[tuple[Node, int, int]] = []  # per incoming edge: consumer, which of its inputs, output number
        self.index = -1  # topological: parents before children
        self.choice: Any = None  # how this node is propagated, chosen by the rules
        self.walked: tuple[int, ...] = ()  # the inputs that relevance is handed to
        self.is_weight = False
        self.is_inner = False  # the leaf of a walk inside a node: what ends there goes on in the walk around
        self.walks = True  # whether the walk visits it: activations and requested weights
        self.nr = 0  # the one output number in use, -1 when several are
        self.wide: bool | None = None  # in a walk in float64: whether the node appears in float64, or keeps its dtype
        self.recurrent = False  # whether it is part of a recurrent cell
        self.modules: Modules | None = None  # who knows which module it ran in, where `watch` saw it
        self.module: str | None = None  # that module, once someone asked
        self.targets: Sequence[Any] = ()  # the targets at this node
        self.reset()

    def reset(self) -> None:
        """Forget what a walk left."""
        self.slots: Any = None  # input_tracker: per incoming edge a tensor, a promise branch, or None; None before any landed
        self.landed = 0  # incoming edges that something has landed on
        self.pre_promise: Any = None
        self.value: Relevance | None = None  # the forward output, while it is worth keeping
        self.kept: list[Tensor | None] | None = None  # operands, as autograd kept them
        self.note = ""  # what the report should say about it
        self.metadata_of_outputs: Any = None

    @property
    def is_parameter(self) -> bool:
        """Whether it is the leaf of a parameter."""
        return isinstance(getattr(self.fn, "variable", None), torch.nn.Parameter)

    @property
    def outer(self) -> str:
        """The innermost module it ran in, where `watch` saw it: searched for when first asked, as few ask."""
        if self.module is None:
            self.module = "" if self.modules is None else self.modules.around(self.fn._sequence_nr())[0]
        return self.module

    @property
    def several(self) -> bool:
        """Whether several of its outputs are in use."""
        return self.nr < 0

    @property
    def metas(self) -> list[Any]:
        """Shape, dtype and device of each output. Autograd makes this list anew, of every output, whenever it is asked."""
        if self.metadata_of_outputs is None:
            self.metadata_of_outputs = self.fn._input_metadata
        return self.metadata_of_outputs

    def shape(self, nr: int | None = None) -> torch.Size:
        """The shape of its output."""
        return torch.Size(self.metas[max(self.nr, 0) if nr is None else nr].shape)

    def input_shape(self, position: int) -> torch.Size:
        """The shape of the input at `position`, which must have a node."""
        edge = self.edges[position]
        assert edge is not None
        return edge.child.shape(edge.nr)

    def operands(self) -> list[Tensor | None]:
        """The inputs that autograd kept or that are weights; None where a value is missing."""
        if self.kept is None:
            self.kept = list(self.op.kept(self))
            for position, edge in enumerate(self.edges):
                if edge is not None and edge.child.is_weight and self.kept[position] is None:
                    self.kept[position] = pick(weight_value(edge.child), edge)
            if self.wide:
                self.kept = wide(self.kept)
        return self.kept

    def output(self) -> Relevance | None:
        """The forward output, if available: computed before, kept by this node, or kept by a consumer."""
        if self.value is None:
            self.value = self.op.result(self)
            if self.value is None and not self.several:
                self.value = self._kept_by_consumer()
            if self.wide:
                self.value = wide(self.value)
        return self.value

    def _kept_by_consumer(self) -> Tensor | None:
        for parent, position, _ in self.parents[:4]:  # more consumers rarely help
            kept = parent.op.kept(parent)[position]
            if kept is None and parent.name in RESHAPES and len(parent.parents) == 1:
                above, place, _ = parent.parents[0]
                kept = above.op.kept(above)[place]
            if kept is not None:
                shape = self.shape()
                return kept if kept.shape == shape else kept.reshape(shape)
        return None

    def constant(self) -> Any:
        """The operand that has no node, if `watch` recorded it; else None."""
        constant = self.notes.get(CONSTANT)
        return wide(constant) if self.wide else constant

    def where(self) -> str:
        """The place of this node in words, for errors and reports."""
        inside = f" in {self.outer}" if self.outer else ""
        return f"{self.name} (node {self.index}{inside})"

    def __repr__(self) -> str:
        return f"<{self.where()}>"


WIDER = {dtype: torch.float64 for dtype in (torch.float32, torch.float16, torch.bfloat16)} | {torch.complex64: torch.complex128}


def wide(value: object) -> Any:
    """A tensor in float64, or the tensors of a list or tuple: for sums that relevance is divided by without an ε.

    Where contributions cancel, float32 loses digits of their sum, and with it relevance: a perceptron of seven layers without
    biases gave its inputs the output but for 8·10⁻⁶, and but for 4·10⁻⁷ with these sums in float64.
    """
    if isinstance(value, Tensor):
        there = value.device.type in ("cpu", "cuda")  # others may have no float64
        return value.to(WIDER.get(value.dtype, value.dtype)) if there else value
    if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
        return [wide(each) for each in value] if isinstance(value, list) else tuple(wide(each) for each in value)
    return value


def pick(value: Relevance, edge: NodeEdge) -> Tensor:
    """The output of a child that an edge leads to."""
    if isinstance(value, tuple):
        chosen = value[edge.nr]
        assert chosen is not None
        return chosen
    return value


class AutogradGraph:
    """Every node that the output depends on, in topological order (the root first)."""

    def __init__(self, output: Tensor, wanted: Iterable[Any] = ()) -> None:
        """`output`: a tensor of any shape that has a grad_fn; `wanted`: grad_fns to include even if they are weights."""
        self.by_fn: dict[Any, Node] = {}
        self._discover(output.grad_fn)
        self.found = list(self.by_fn.values())
        order = _topological(self.found[0])
        self._classify(order, set(wanted))
        # Nodes outside the walk keep their edges, so that weights can be evaluated.
        self.nodes = [node for node in order if node.walks]
        self.root = order[0]
        self.root.nr = output.output_nr

    def _discover(self, root: Any) -> None:
        """Make a node of every autograd node, in the order of `discover`, with its edges and its consumers."""
        by_fn = self.by_fn
        by_fn[root] = top = Node(root)
        stack = [top]
        while stack:
            node = stack.pop()
            edges = node.edges
            for fn, nr in node.fn.next_functions:
                if fn is None:
                    edges.append(None)
                    continue
                child = by_fn.get(fn)
                if child is None:
                    child = by_fn[fn] = Node(fn)
                    stack.append(child)
                    if nr:
                        child.nr = nr
                elif child.nr != nr:
                    child.nr = -1
                parents = child.parents
                edges.append(NodeEdge(child, nr, len(parents)))
                parents.append((node, len(edges) - 1, nr))

    def rebind(self, inputs: dict[Any, Any]) -> None:
        """Take another graph's autograd nodes, as `discover` gives them; it must have the same `structure`."""
        self.by_fn = dict(zip(inputs, self.found, strict=True))
        for fn, node in self.by_fn.items():
            node.fn, node.notes = fn, fn.metadata

    def let_go(self) -> None:
        """Drop the autograd nodes and what a walk left at them, and keep the structure, for `rebind`."""
        for node in self.found:
            node.fn, node.notes, node.wide, node.targets = None, {}, None, ()
            node.reset()
        self.by_fn = {}

    def release(self) -> None:
        """Drop all references: parents and children form cycles, which keep activations until the garbage collector runs."""
        for node in self.found:
            node.fn, node.edges, node.parents, node.targets = None, [], [], ()
            node.reset()
        self.by_fn, self.nodes, self.found = {}, [], []

    def _classify(self, order: Sequence[Node], wanted: set[Any]) -> None:
        """Separate weights from activations; paths to a wanted parameter stay in the walk."""
        from lutetia.relevance.registry import find_op

        inside = _inside_weights(order)
        ops: dict[str, Op] = {}
        for node in reversed(order):
            name, edges = node.name, node.edges
            op = ops.get(name)
            if op is None:
                op = find_op(node)
                if edges:
                    ops[name] = op
            node.op = op
            if not edges:
                if node.is_parameter:
                    node.is_weight, node.walks = True, node.fn in wanted
                continue
            there = [(at, edge.child) for at, edge in enumerate(edges) if edge is not None]
            node.walked = tuple([at for at, child in there if child.walks])
            if all([child.is_weight for _, child in there]):
                node.is_weight = bool(there) and (node in inside or not op.reads_data(node))
                node.walks = not node.is_weight or bool(node.walked) or node.fn in wanted
        if order[0].is_weight:  # a function of parameters alone: then these are the inputs
            for node in order:
                node.is_weight, node.walks = False, True
                node.walked = tuple([at for at, edge in enumerate(node.edges) if edge is not None])


def _inside_weights(order: Sequence[Node]) -> set[Node]:
    """The nodes that a weight is computed by, where `watch` saw that it is one: constants in them are not data."""
    stack = [node for node in order if WEIGHT in node.notes]
    inside = set(stack)
    while stack:
        for edge in stack.pop().edges:
            if edge is not None and edge.child not in inside:
                inside.add(edge.child)
                stack.append(edge.child)
    return inside


def discover(root: Any) -> dict[Any, Any]:
    """All autograd nodes below a root, in an order that depends on nothing but the shape of the graph, and their inputs."""
    found: dict[Any, Any] = {root: None}
    stack = [root]
    while stack:
        fn = stack.pop()
        children = found[fn] = fn.next_functions
        for child, _ in children:
            if child is not None and child not in found:
                found[child] = None
                stack.append(child)
    return found


def structure(inputs: dict[Any, Any]) -> tuple[list[Any], ...]:
    """What two graphs, as `discover` gives them, share if relevance takes the same way through both."""
    place: dict[Any, int] = {fn: at for at, fn in enumerate(inputs)}
    place[None] = -1
    edges = [edge for children in inputs.values() for edge in children]
    leaves = [fn for fn, children in inputs.items() if not children]
    return (
        [fn.name() for fn in inputs],
        [len(children) for children in inputs.values()],
        [place[child] for child, _ in edges],
        [nr for _, nr in edges],
        [isinstance(getattr(fn, "variable", None), torch.nn.Parameter) for fn in leaves],
    )


def _topological(root: Node) -> list[Node]:
    """Parents before children, by counting down incoming edges; numbers the nodes."""
    waiting: dict[Node, int] = {}  # for how many of its consumers a node waits
    stack = [root]
    order: list[Node] = []
    while stack:
        node = stack.pop()
        node.index = len(order)
        order.append(node)
        for edge in node.edges:
            if edge is None:
                continue
            child = edge.child
            if len(child.parents) > 1:
                waiting[child] = left = waiting.get(child, len(child.parents)) - 1
                if left:
                    continue
            stack.append(child)
    return order


def weight_value(node: Node) -> Relevance:
    """The value of a weight, computed from its parameters where it is not one itself."""
    stack = [node]
    while stack:
        top = stack[-1]
        if top.value is None:
            top.value = top.op.result(top)
        if top.value is not None:
            stack.pop()
            continue
        args = list(top.op.kept(top))
        missing = []
        for position, edge in enumerate(top.edges):
            if edge is not None and args[position] is None:
                if edge.child.value is None:
                    missing.append(edge.child)
                else:
                    args[position] = pick(edge.child.value, edge)
        if missing:
            stack.extend(missing)
        else:
            top.value = top.op.value(top, args)
            stack.pop()
    assert node.value is not None
    return node.value


class UnknownOperation(LutetiaError):
    """An operation of the graph has no rule."""

    kind = "unknown_operation"


NO_RULE = "no rule for this operation"


def unknown(node: Node, why: str = NO_RULE) -> UnknownOperation:
    """The error that names an operation, its place, and what to do."""
    inputs = ", ".join("a constant" if edge is None else edge.child.name for edge in node.edges) or "nothing"
    if node.name in OPAQUE:
        why, remedy = OPAQUE[node.name]
    else:
        remedy = f"a rule of your own begins with @relevance.rule({node.name!r}, value=lambda node, *inputs: ...)"
        if why == NO_RULE:
            remedy = f'unknown="linear" treats it as the linear map of its backward; {_line_to_paste(node)}'
    return UnknownOperation(f"{node.where()} with inputs from {inputs}: {why}; {remedy}")


def _line_to_paste(node: Node) -> str:
    """A line that registers a rule: to pass everything to the one input shaped like the output, if there is one."""
    alike = [at for at, edge in enumerate(node.edges) if edge is not None and not edge.child.is_weight and _passes(node, edge)]
    if len(alike) != 1:
        return f"a rule of your own begins with @relevance.rule({node.name!r})"
    given = ", ".join("R" if at in alike else "None" for at in range(len(node.edges)))
    given = given if len(node.edges) == 1 else f"({given})"
    return f"a rule that passes everything on is relevance.rule({node.name!r})(lambda node, R: {given})"


def _passes(node: Node, edge: NodeEdge) -> bool:
    return len(node.metas) == 1 and edge.child.shape(edge.nr) == node.shape()


NO_GRADIENT = "WarnNotImplemented"  # the node of an operation whose kernel has no gradient
HIDES = "it hides the operations inside"
OPAQUE = {  # nodes that nothing can be seen of: why, and what to do
    "CheckpointFunctionBackward": (HIDES, "call torch.utils.checkpoint with use_reentrant=False"),
    "DifferentiableGraphBackward": (
        HIDES,
        "TorchScript fused it in an earlier call; explain the module as it was before scripting, "
        "or load it again and explain it before calling it",
    ),
    NO_GRADIENT: (
        "its operation has no gradient, as in quantised layers",
        "explain the float model, as it was before quantising",
    ),
}
