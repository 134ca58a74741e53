"""The table of operations: from autograd node names to `Op` objects.

An `Op` says four things about one kind of autograd node: what autograd kept of its inputs (`kept`) and output (`result`),
how its output comes from its inputs (`value`), which input values its rule reads (`needs`), and how relevance at its
output is handed to its inputs (`relevance`). The walk brings missing inputs by promises; an op never looks at other nodes.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from lutetia.errors import fail
from lutetia.relevance.graph import VALUE, Node, Relevance, unknown
from lutetia.relevance.parts import SlicedRelevance
from lutetia.relevance.report import is_stacked

Args = Sequence[Any]  # a tensor per forward input, None where it is missing
Given = Sequence[Tensor | SlicedRelevance | None]  # relevance, one per forward input; None where an input gets none


class Op:
    """One kind of autograd node. The defaults suit a node that keeps nothing and reads nothing.

    In every method `node.fn` is the grad_fn, with its `_saved_*` attributes, and `node.choice` what the rules chose.
    """

    wide: ClassVar[bool] = True  # whether its rule takes values and relevance in float64, whatever dtype the graph has
    blind: ClassVar[bool] = False  # its rule reads no values and keeps the dtype, so that nothing is fetched or checked for it
    conserves: ClassVar[bool] = False  # one input, which gets all the relevance: the sums need not be taken again
    wants_output: ClassVar[bool] = False  # whether `watch` keeps the output for it
    nests: ClassVar[bool] = False  # a walk of its own inside it reports what happens there

    def family(self, node: Node) -> str:
        """The name by which `Rules` chooses for it: linear, sum, product, softmax, norm, pool, activation; "" if it does not."""
        return ""

    def kept(self, node: Node) -> Args:
        """The inputs that autograd kept, one per input; None for the others. Tensors are handed out, never copied."""
        return [None] * len(node.edges)

    def result(self, node: Node) -> Relevance | None:
        """The forward output, if autograd kept it."""
        return None

    def value(self, node: Node, args: Args) -> Relevance:
        """The forward output, from all inputs (those of constants may be None)."""
        raise unknown(node, "its output is needed, was not kept, and cannot be computed")

    def needs(self, node: Node) -> Sequence[int]:
        """The positions of the inputs whose values `relevance` reads."""
        return ()

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        """What each input gets of `R`, the relevance of the output (a tuple when `node.several`).

        `args` holds what `needs` named, and more where it was available.
        """
        raise unknown(node)

    def reads_data(self, node: Node) -> bool:
        """Whether the node reads data that is not a parameter, although all its inputs with a node are parameters."""
        return False


def seen_value(node: Node) -> Tensor | None:
    """The output of a node where `watch` kept it, and nothing was written into it since."""
    kept = node.notes.get(VALUE)
    return None if kept is None else kept.value()


class Unknown(Op):
    """An operation without a rule: an error where relevance reaches it, unless it is treated as a linear map."""

    wide = False

    def result(self, node: Node) -> Relevance | None:
        return None if node.several else seen_value(node)


class _Function(Op):
    """An op made of functions: what `@rule` registers."""

    wide = False

    def __init__(self, function: Callable[..., Any], needs: Sequence[int], value: Callable[..., Any] | None) -> None:
        self._function, self._needs, self._value = function, tuple(needs), value

    def needs(self, node: Node) -> Sequence[int]:
        return self._needs

    def value(self, node: Node, args: Args) -> Relevance:
        return super().value(node, args) if self._value is None else self._value(node, *args)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given = self._function(node, R, *(args[position] for position in self._needs))
        given = (given,) if isinstance(given, Tensor) else tuple(given)
        flags = getattr(node.fn, "needs_input_grad", ())
        if len(given) != len(node.edges) and len(given) == len(flags):
            # As `backward` does, one per argument of `forward`: of those, the tensors that require grad have an edge.
            those = iter([g for g, flag in zip(given, flags, strict=True) if flag])
            given = tuple(None if edge is None else next(those) for edge in node.edges)
        if len(given) != len(node.edges):
            fail(f"what the rule of {node.where()} returned", given, f"{len(node.edges)} relevances, one per input")
        return given


_OPS: dict[str, Op] = {}
_UNKNOWN = Unknown()
# Who has rules for its own operations, asked when an unknown node is met: the package that makes such nodes, and the one whose
# `register_relevance_rules` brings their rules.
PROVIDERS: list[tuple[str, str]] = [("lutetia.lut", "lutetia.nn")]


def register(op: Op, *names: str) -> Op:
    """Use `op` for nodes of these names; a later registration replaces an earlier one."""
    for name in names:
        _OPS[name] = op
    return op


def known() -> list[str]:
    """The names of all nodes that have a rule."""
    from lutetia.relevance import rules  # noqa: F401  registers them

    return sorted(_OPS)


def is_known(name: str) -> bool:
    """Whether nodes of this name have a rule."""
    name = name.rpartition("::")[2]
    if name not in _OPS:
        _ask_providers()
    return name in _OPS


def op_named(name: str) -> Op | None:
    """The op of nodes of this name, if one is registered."""
    return _OPS.get(name.rpartition("::")[2])


def wants_output(name: str) -> bool:
    """Whether the output of a function is to be kept: its nodes have no rule, or one that reads it."""
    return not is_known(name) or _OPS[name.rpartition("::")[2]].wants_output


def find_op(node: Node) -> Op:
    """The op of a node; `Unknown` when there is none."""
    op = _OPS.get(node.name)
    if op is None and node.edges:
        _ask_providers()
        op = _OPS.get(node.name)
    return op or _UNKNOWN


def _ask_providers() -> None:
    """Let the packages that have rules for their own operations register them, if those operations are in use."""
    for needed, package in PROVIDERS:
        if needed in sys.modules:
            importlib.import_module(package).register_relevance_rules()


def rule(
    name: str, *, needs: Sequence[int] = (), value: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the rule of a custom autograd function: `@relevance.rule("MyFunctionBackward")`.

    The decorated function takes `(node, R, *inputs)` and returns the relevance of each tensor that forward was given, None
    where it gets none. `R` is shaped like the output, and what is returned for an input is shaped like that input.
    `node.fn` is the autograd node, so `node.fn.saved_tensors` is what forward saved. `needs` names the inputs, by position
    among the tensors, whose values are passed on after `R`: autograd need not have kept them, promises bring them.
    `value(node, *inputs)` computes the output; it is called only if a rule above needs the output and autograd did not keep it.
    """
    if not isinstance(name, str) or not name:
        fail("name", name, 'the name of an autograd node, such as "MyFunctionBackward"')

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(function):
            fail("the rule", function, "a function of (node, R, *inputs)")
        register(_Function(function, needs, value), name)
        return function

    return decorate


def function_op(function: Callable[..., Any], op: Op) -> Op:
    """An op whose relevance is a function chosen by `Rules.on`, and whose values are those of a known op."""
    return _Chosen(function, op)


class _Chosen(Op):
    wide = False

    def __init__(self, function: Callable[..., Any], op: Op) -> None:
        self._function, self._op = function, op
        self.kept, self.result, self.value = op.kept, op.result, op.value  # type: ignore[method-assign]
        self.reads_data = op.reads_data  # type: ignore[method-assign]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given = self._function(node, R)
        return (given,) if isinstance(given, Tensor) else tuple(given)


def reduce_to(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Sum over the dimensions that broadcasting added, so that the result has `shape`."""
    return tensor if tensor.shape == shape else tensor.sum_to_size(shape)


@functools.lru_cache(maxsize=256)
def scalar(number: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor of no dimensions, made once."""
    return torch.tensor(number, dtype=dtype, device=device)


def stabilize(z: Tensor, eps: float, times: int = 1) -> Tensor:
    """z + ε·sgn z, with sgn 0 = 1, `times` 1 or 2; a new tensor of the shape of `z`, or `z` itself when ε is 0."""
    return torch.copysign(scalar(times * eps, z.dtype, z.device), z).add_(z, alpha=times) if eps else z


def known_sum(node: Node, seen: bool = True) -> Tensor | None:
    """The output to divide by, if it is known. Rounded as it is, it counts only with an ε, or if a part was not `seen`."""
    known = node.output() if node.choice.eps or not seen else None
    return known if isinstance(known, Tensor) else None


def over(R: Tensor, z: Tensor) -> Tensor:
    """R / z, computed in place of z, a temporary, where it fits."""
    return torch.div(R, z, out=z) if z.dtype == R.dtype and z.shape == R.shape and not is_stacked(R) else R / z


def divide(R: Tensor, z: Tensor, eps: float, parts: int = 1) -> Tensor:
    """R / (z + ε·sgn z), both of one shape; with ε = 0, R/0 counts as 0: there is no contribution to give it to.

    `parts`: 2 for half of it. For complex numbers, real and imaginary parts are divided separately.
    """
    if z.is_complex():
        return torch.complex(divide(R.real, z.real, eps, parts), divide(R.imag, z.imag, eps, parts))
    if eps:
        return over(R, stabilize(z, eps, parts))
    return torch.where(z == 0, torch.zeros_like(R), R / (z if parts == 1 else parts * z))


def left_over(R: Tensor, z: Tensor) -> Tensor | None:
    """The relevance of outputs to which nothing contributes, for equal shares: R where z is 0; None where there is none."""
    left = torch.where(z == 0, R, torch.zeros_like(R))
    return left if not z.is_complex() and bool(left.any()) else None
