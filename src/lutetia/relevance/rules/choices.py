"""The rules one can choose between, each a few declarative lines, and `Rules`, which says where each is used.

A rule for a linear operation z = f(x, w) + b is a list of *terms* (x', w', b', s): modified input, weight and bias, and the
factor of the relevance on its way back. The input gets Σ x' · fᵀ(s, w'), a requested weight gets Σ w' · fᵀ(s, x').
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lutetia.errors import check_choice, check_range, fail
from lutetia.relevance.registry import divide, left_over

if TYPE_CHECKING:
    from lutetia.relevance.graph import AutogradGraph, Node
    from lutetia.relevance.rules.linear import Form

EPS = 1e-6


class Term(NamedTuple):
    x: Tensor
    w: Tensor
    b: Tensor | None
    s: Tensor


class RuleChoice:
    """A rule that can be chosen. `families`: the kinds of operation it can be used for."""

    families: ClassVar[frozenset[str]] = frozenset({"linear"})

    def terms(self, form: Form, R: Tensor) -> list[Term]:
        """The terms of a linear operation. R: relevance, shaped like its output."""
        raise NotImplementedError

    def share(self, parts: Sequence[Tensor | None], R: Tensor, z: Tensor | None) -> list[Tensor | None]:
        """What each part of a sum gets of R, shaped like R; `z` is the sum, given where it has terms besides the parts."""
        raise NotImplementedError


@dataclass(frozen=True)
class Epsilon(RuleChoice):
    """In proportion to the signed contribution: x · wᵀ(R / (z + ε·sgn z)). Bach et al. 2015, eq. 58."""

    eps: float = EPS
    families: ClassVar[frozenset[str]] = frozenset({"linear", "sum", "norm", "pool", "product"})

    def __post_init__(self) -> None:
        check_range("eps", self.eps, low=0)

    def terms(self, form: Form, R: Tensor) -> list[Term]:
        terms = [Term(form.x, form.w, form.b, form.factor(R, self.eps))]
        left = None if self.eps or form.b is not None else left_over(R, form.z())
        return terms if left is None else [*terms, *Flat(0.0).terms(form, left)]

    def share(self, parts: Sequence[Tensor | None], R: Tensor, z: Tensor | None) -> list[Tensor | None]:
        left = None
        if z is None:
            z = _total(parts)
            left = None if self.eps else left_over(R, z)
        s = divide(R, z, self.eps)
        if s.is_complex():
            return [None if part is None else torch.complex(s.real * part.real, s.imag * part.imag) for part in parts]
        if left is None:
            return [None if part is None else s * part for part in parts]
        equal = left / sum(part is not None for part in parts)
        return [None if part is None else s * part + equal for part in parts]


@dataclass(frozen=True)
class Decisive(Epsilon):
    """Epsilon, but inside lookup tables a comparison gets the sign with which it acts on its detector's relevance.

    Designed by measuring which pixels and bytes change a decision; see `lutetia.nn.lut_relevance` for the formula.
    """


def Zero() -> Epsilon:
    """LRP-0: Epsilon without the ε. On a bias-free piecewise linear net it equals gradient × input."""
    return Epsilon(0.0)


@dataclass(frozen=True)
class Absolute(RuleChoice):
    """In proportion to the absolute contribution, so that every share is positive: |x| · |w|ᵀ(R / (|x||w| + |b| + ε))."""

    eps: float = EPS
    families: ClassVar[frozenset[str]] = frozenset({"linear", "sum", "pool"})

    def __post_init__(self) -> None:
        check_range("eps", self.eps, low=0)

    def terms(self, form: Form, R: Tensor) -> list[Term]:
        x, w, b = form.x.abs(), form.w.abs(), None if form.b is None else form.b.abs()
        return [Term(x, w, b, divide(R, form.plus(form.forward(x, w), b), self.eps))]

    def share(self, parts: Sequence[Tensor | None], R: Tensor, z: Tensor | None) -> list[Tensor | None]:
        sizes = [None if part is None else part.abs() for part in parts]
        total = _total(sizes)  # of no sign, so that the stabiliser has none
        s = R / (total + self.eps) if self.eps and not R.is_complex() else divide(R, total, self.eps)
        return [None if size is None else s * size for size in sizes]


def _by_sign(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The positive part of x and the negative one; None where it is known to be zero, as after a ReLU."""
    if x.device.type == "cpu" and bool((x >= 0).all()):  # elsewhere the answer would have to be waited for
        return x, None
    return x.clamp(min=0), x.clamp(max=0)


def _two(form: Form, x_up: Tensor, w_up: Tensor, x_down: Tensor | None, w_down: Tensor) -> Tensor:
    """f(x_up, w_up) + f(x_down, w_down)."""
    z = form.forward(x_up, w_up)
    return z if x_down is None else z + form.forward(x_down, w_down)


@dataclass(frozen=True)
class Gamma(RuleChoice):
    """Favours contributions of the sign of z: w + γ·w⁺ for z > 0, w + γ·w⁻ for z < 0. Montavon et al. 2019, eq. 15; for inputs of
    both signs Andéol et al. 2021."""

    gamma: float = 0.25
    eps: float = EPS

    def __post_init__(self) -> None:
        check_range("gamma", self.gamma, low=0)
        check_range("eps", self.eps, low=0)

    def terms(self, form: Form, R: Tensor) -> list[Term]:
        up = form.w + self.gamma * form.w.clamp(min=0)
        down = form.w + self.gamma * form.w.clamp(max=0)
        b = form.b
        b_up = None if b is None else b + self.gamma * b.clamp(min=0)
        b_down = None if b is None else b + self.gamma * b.clamp(max=0)
        x_up, x_down = _by_sign(form.x)
        z = form.z()
        nothing = R.new_zeros(())
        s_up = torch.where(z > 0, divide(R, form.plus(_two(form, x_up, up, x_down, down), b_up), self.eps), nothing)
        s_down = torch.where(z < 0, divide(R, form.plus(_two(form, x_up, down, x_down, up), b_down), self.eps), nothing)
        terms = [Term(x_up, up, b_up, s_up), Term(x_up, down, b_down, s_down)]
        return terms if x_down is None else [*terms, Term(x_down, down, None, s_up), Term(x_down, up, None, s_down)]


@dataclass(frozen=True)
class AlphaBeta(RuleChoice):
    """Positive contributions get α·R, negative ones -β·R, each in proportion; α - β = 1. Bach et al. 2015, eq. 60."""

    alpha: float = 2.0
    beta: float = 1.0
    eps: float = EPS

    def __post_init__(self) -> None:
        check_range("alpha", self.alpha, low=0)
        check_range("beta", self.beta, low=0)
        check_range("eps", self.eps, low=0)
        if abs(self.alpha - self.beta - 1) > 1e-9:
            fail("alpha - beta", self.alpha - self.beta, "1")

    def terms(self, form: Form, R: Tensor) -> list[Term]:
        (x_up, x_down), w_up, w_down = _by_sign(form.x), form.w.clamp(min=0), form.w.clamp(max=0)
        b_up = None if form.b is None else form.b.clamp(min=0)
        s_up = self.alpha * divide(R, form.plus(_two(form, x_up, w_up, x_down, w_down), b_up), self.eps)
        terms = [Term(x_up, w_up, b_up, s_up)]
        if x_down is not None:
            terms.append(Term(x_down, w_down, None, s_up))
        if self.beta:
            b_down = None if form.b is None else form.b.clamp(max=0)
            s_down = -self.beta * divide(R, form.plus(_two(form, x_up, w_down, x_down, w_up), b_down), self.eps)
            terms.append(Term(x_up, w_down, b_down, s_down))
            if x_down is not None:
                terms.append(Term(x_down, w_up, None, s_down))
        return terms


def ZPlus(eps: float = EPS) -> AlphaBeta:
    """Only positive contributions get relevance: AlphaBeta with α = 1, β = 0. Montavon et al. 2017, eq. 13."""
    return AlphaBeta(1.0, 0.0, eps)


@dataclass(frozen=True, eq=False)
class ZBox(RuleChoice):
    """For inputs in a box lo ≤ x ≤ hi, numbers or tensors that broadcast to x: x·w - lo·w⁺ - hi·w⁻.

    Montavon et al. 2017, eq. 17.
    """

    lo: Any
    hi: Any
    eps: float = EPS

    def terms(self, form: Form, R: Tensor) -> list[Term]:
        lo, hi = (torch.as_tensor(end, dtype=form.x.dtype, device=form.x.device) for end in (self.lo, self.hi))
        try:
            lo, hi = form.like_x(lo).contiguous(), form.like_x(hi).contiguous()
        except RuntimeError:
            fail("the box of ZBox", self.lo, f"lo and hi that broadcast to {list(form.x.shape)}")
        w_up, w_down = form.w.clamp(min=0), form.w.clamp(max=0)
        z = form.forward(form.x, form.w) - form.forward(lo, w_up) - form.forward(hi, w_down)
        s = divide(R, z, self.eps)
        return [Term(form.x, form.w, None, s), Term(lo, w_up, None, -s), Term(hi, w_down, None, -s)]


@dataclass(frozen=True)
class WSquare(RuleChoice):
    """In proportion to w², whatever the input. Montavon et al. 2017, eq. 12."""

    eps: float = EPS

    def terms(self, form: Form, R: Tensor) -> list[Term]:
        x, w = torch.ones_like(form.x), form.w.square()
        b = None if form.b is None else form.b.square()
        return [Term(x, w, b, divide(R, form.plus(form.forward(x, w), b), self.eps))]


@dataclass(frozen=True)
class Flat(RuleChoice):
    """Equally to all inputs, whatever input and weight. Lapuschkin et al. 2019."""

    eps: float = EPS

    def terms(self, form: Form, R: Tensor) -> list[Term]:
        x, w = torch.ones_like(form.x), torch.ones_like(form.w)
        return [Term(x, w, None, divide(R, form.forward(x, w), self.eps))]


@dataclass(frozen=True)
class Identity(RuleChoice):
    """Passes all relevance on: for normalisations, softmax and activations."""

    families: ClassVar[frozenset[str]] = frozenset({"norm", "softmax", "activation"})


@dataclass(frozen=True)
class Centred(RuleChoice):
    """Normalisations with the deviation as a constant and the mean as a linear part: only biases absorb a share.

    AttnLRP, Achtibat et al. 2024, section 3.3.3, with ε for the linear parts.
    """

    eps: float = EPS
    families: ClassVar[frozenset[str]] = frozenset({"norm"})


@dataclass(frozen=True)
class Taylor(RuleChoice):
    """Softmax by its first-order expansion: x · (R - s · ΣR). AttnLRP, Achtibat et al. 2024, eq. 13."""

    families: ClassVar[frozenset[str]] = frozenset({"softmax"})


@dataclass(frozen=True)
class Uniform(RuleChoice):
    """Half to each of two factors. AttnLRP, Achtibat et al. 2024, eq. 14.

    A gate (a sigmoid) that is broadcast, as in squeeze-and-excitation, counts as a constant, unless `gates` is True.
    """

    eps: float = EPS
    gates: bool = False  # whether such a gate gets its half
    families: ClassVar[frozenset[str]] = frozenset({"product"})


@dataclass(frozen=True)
class Signal(RuleChoice):
    """A gate, the output of a sigmoid, is a constant: the signal that it multiplies gets everything. Arras et al. 2017.

    The rule of products inside recurrent cells, and a choice for nets with other gates.
    """

    eps: float = EPS
    families: ClassVar[frozenset[str]] = frozenset({"product"})


FAMILIES = ("linear", "sum", "product", "softmax", "norm", "pool", "activation")
BIASES = ("absorb", "redistribute")


@dataclass(frozen=True)
class Rules:
    """Which rule is used where: by kind of operation, by autograd node, by module name, and for the first layers.

    A name beats `first`, which beats a node type, which beats the family defaults given here. `bias` says what happens
    to the share of biases and other constants: `absorb` (it ends there, and is reported) or `redistribute` (the other
    contributions share it).
    """

    linear: RuleChoice = field(default_factory=Epsilon)
    sum: RuleChoice = field(default_factory=Epsilon)
    product: RuleChoice = field(default_factory=Uniform)
    softmax: RuleChoice = field(default_factory=Taylor)
    norm: RuleChoice = field(default_factory=Epsilon)
    pool: RuleChoice = field(default_factory=Epsilon)
    activation: RuleChoice = field(default_factory=Identity)
    bias: str = "absorb"
    types: tuple[tuple[str, Any], ...] = ()
    names: tuple[tuple[str, Any], ...] = ()
    firsts: Any = None
    recurrent: RuleChoice = field(default_factory=Absolute)  # for linear parts and sums inside recurrent cells

    def __post_init__(self) -> None:
        check_choice("bias", self.bias, BIASES)
        if not isinstance(self.recurrent, (Absolute, Epsilon)):
            fail("the rule for recurrent cells", self.recurrent, "Absolute(), which stays bounded, or Epsilon()")
        for family in FAMILIES:
            choice = getattr(self, family)
            if not isinstance(choice, RuleChoice) or family not in choice.families:
                fail(f"the rule for {family}", choice, f"one that suits the family: {_suiting(family)}")

    def on(self, name: str, choice: RuleChoice | Callable[..., Any]) -> Rules:
        """Use a rule for all autograd nodes of a name, such as "ConvolutionBackward0".

        A function of (node, R) that returns the relevance of each input is a rule, too.
        """
        if not isinstance(name, str) or not name:
            fail("name", name, 'the name of an autograd node, such as "AddmmBackward0"')
        return replace(self, types=(*self.types, (name, _checked(choice))))

    def named(self, pattern: str, choice: RuleChoice) -> Rules:
        """Use a rule inside the modules whose name matches a pattern, such as "head.*", where it suits the operation."""
        if not isinstance(pattern, str) or not pattern:
            fail("pattern", pattern, 'a module name or a pattern, such as "head.*"')
        return replace(self, names=(*self.names, (pattern, _checked(choice))))

    def first(self, choice: RuleChoice) -> Rules:
        """Use a rule for the first linear operations: those with no other between them and the inputs."""
        return replace(self, firsts=_checked(choice))

    def prepare(self, graph: AutogradGraph) -> None:
        """Choose for every node of a graph."""
        types = dict(self.types)
        firsts = _first_linear(graph) if self.firsts is not None else frozenset()
        for node in graph.nodes:
            family = node.op.family(node)
            node.rules = self
            chosen = getattr(self, family, None) if family in FAMILIES else None
            if node.recurrent and type(self.recurrent) is Absolute:
                chosen = _SIGNAL if family == "product" else self.recurrent if family in ("linear", "sum") else chosen
            if types and (given := types.get(node.name)) is not None:
                chosen = _take(node, family, given)
            if node in firsts:
                chosen = self.firsts if node.op.nests else _take(node, family, self.firsts)
            if self.names and node.outer:
                for pattern, given in self.names:
                    if _matches(node.outer, pattern) and family in getattr(given, "families", ()):
                        chosen = given
            node.choice = chosen


_SIGNAL = Signal()


def _take(node: Node, family: str, given: Any) -> Any:
    if isinstance(given, RuleChoice):
        if family not in given.families:
            fail(f"the rule for {node.name}", given, f"one that suits the family {family!r}: {_suiting(family)}")
        return given
    from lutetia.relevance.registry import function_op

    node.op = function_op(given, node.op)
    return None


def _matches(module: str, pattern: str) -> bool:
    """Whether a module, or one it lies in, has a name of this pattern."""
    parts = module.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:depth]), pattern) for depth in range(1, len(parts) + 1))


def _checked(choice: Any) -> Any:
    if not isinstance(choice, RuleChoice) and not (callable(choice) and not isinstance(choice, type)):
        fail("the rule", choice, "a rule such as relevance.Epsilon(), or a function of (node, R)")
    return choice


def _suiting(family: str) -> str:
    return ", ".join(sorted(kind.__name__ for kind in RuleChoice.__subclasses__() if family in kind.families))


def _first_linear(graph: AutogradGraph) -> frozenset[Node]:
    """The linear nodes with no linear node between them and the inputs."""
    above: set[Node] = set()  # nodes with a linear one below
    firsts = set()
    for node in reversed(graph.nodes):
        below = [node.edges[position].child for position in node.walked]  # type: ignore[union-attr]
        linear = node.op.family(node) == "linear" or node.op.nests
        if any(child in above for child in below):
            above.add(node)
        elif linear:
            firsts.add(node)
        if linear:
            above.add(node)
    return frozenset(firsts)


def _total(parts: Sequence[Tensor | None]) -> Tensor:
    there = [part for part in parts if part is not None]
    total = there[0]
    for part in there[1:]:
        total = total + part
    return total
