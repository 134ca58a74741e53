"""Products and quotients of activations, elementwise.

Two activations get half each. A weight or a constant is a scale: everything goes to the other factor. So is a divisor, and a
factor 1/√… or 1/…: those are the statistics of a normalisation, which are treated as constants. So is a gate that is broadcast,
as in squeeze-and-excitation. A sigmoid is 1/2 where its logit is 0, so relevance that passed it would be divided by logits near
0: with half to each gate, an output of 1 grows to 10³¹ in an EfficientNet B4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, divide, register
from lutetia.relevance.report import total
from lutetia.relevance.rules.choices import EPS, Signal, Uniform
from lutetia.relevance.rules.common import fit, integer, pieces, times

STATISTICS = frozenset({"RsqrtBackward0", "ReciprocalBackward0"})
GATES = frozenset({"SigmoidBackward0", "HardsigmoidBackward0"})
HARD = frozenset({"HardtanhBackward0", "ClampBackward1"})  # a gate where a number divides it: relu6(x + 3) / 6
SCALED = frozenset({"DivBackward0", "MulBackward0", "DivBackward1", "MulBackward1"})
PASSING = frozenset({"ExpandBackward0", "UnsqueezeBackward0", "ViewBackward0", "ToCopyBackward0", "CloneBackward0"})


class Mul(Op):
    """a · b."""

    def family(self, node: Node) -> str:
        return "product"

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, node.fn._saved_other

    def value(self, node: Node, args: Args) -> Relevance:
        return args[0] * args[1]

    def needs(self, node: Node) -> Sequence[int]:
        """The values of complex factors: real and imaginary parts mix, so their shares depend on the values."""
        known = all([arg is not None and not arg.is_complex() for arg in node.operands()])
        if known or not node.metas[0].dtype.is_complex:
            return ()
        return [at for at, edge in enumerate(node.edges) if edge is not None]

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        takers = [at for at, edge in enumerate(node.edges) if edge is not None and not edge.child.is_weight]
        if R.is_complex():
            return self._complex(node, R, args, takers)
        if len(takers) == 2:
            takers = [at for at in takers if not _is_scale(node, at)] or takers
        part = _half(R) if len(takers) == 2 else R
        given: list[Tensor | None] = [None, None]
        for at in node.walked:
            edge = node.edges[at]
            assert edge is not None
            if at in takers or edge.child.is_weight:
                given[at] = fit(node, at, part if at in takers else R, args[at])
        return given

    def _complex(self, node: Node, R: Tensor, args: Args, takers: Sequence[int]) -> Given:
        """Linear in the parts of each factor: in proportion to what each adds, halved where both factors are activations."""
        a, b = (arg if arg is not None else node.constant() for arg in args)
        s = divide(R, a * b, getattr(node.choice, "eps", EPS)) / max(len(takers), 1)
        given: list[Tensor | None] = [None, None]
        for at, piece in enumerate(pieces(node, s)):
            if at in node.walked and piece is not None:
                given[at] = times(fit(node, at, piece), args[at])
        return given


def _half(R: Tensor) -> Tensor:
    half = R.mul(0.5)
    half._lutetia_sum = 0.5 * total(R)  # type: ignore[attr-defined]
    return half


def _is_scale(node: Node, at: int) -> bool:
    """Whether a factor counts as a constant: a statistic, or a gate that the rule takes for one."""
    edge = node.edges[at]
    assert edge is not None
    source, scaled = _source(edge.child)
    if source.name in STATISTICS:
        return True
    if source.name not in GATES and not (scaled and source.name in HARD):
        return False
    if isinstance(node.choice, Uniform):
        return not node.choice.gates and source.shape(0).numel() < node.shape().numel()
    return isinstance(node.choice, Signal)


def _source(node: Node) -> tuple[Node, bool]:
    """The node that made a factor, behind views, casts and scalings; and whether there was a scaling."""
    scaled = False
    for _ in range(4):
        below, *others = node.edges or [None]
        scales = node.name in SCALED and not any(others)
        if below is None or not (scales or node.name in PASSING):
            break
        node, scaled = below.child, scaled or scales
    return node, scaled


class Scale(Op):
    """x · c and x / c for a number c."""

    blind = conserves = True

    def __init__(self, divides: bool) -> None:
        self._divides = divides

    def value(self, node: Node, args: Args) -> Relevance:
        x, c = args[0], node.fn._saved_other
        return x / c if self._divides else x * c

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (R,)


class Div(Op):
    """a / b: the divisor is a scale. So is what else changes a only by how much: an exponent, a modulus."""

    def __init__(self, forward: Callable[[Tensor, Tensor], Tensor] = torch.div, other: str = "_saved_other") -> None:
        self._forward, self._other = forward, other

    def family(self, node: Node) -> str:
        return "product"

    def kept(self, node: Node) -> Args:
        # What divides is kept; the numerator only where the other one's gradient needs it.
        return node.fn._saved_self, getattr(node.fn, self._other)

    def value(self, node: Node, args: Args) -> Relevance:
        return self._forward(args[0], args[1])

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        first = node.edges[0]
        given: list[Tensor | None] = [None, None]
        above = 0 if first is not None and not first.child.is_weight else 1
        for at in node.walked:
            edge = node.edges[at]
            assert edge is not None
            if at == above or edge.child.is_weight:
                given[at] = fit(node, at, R)
        return given


class Glu(Op):
    """a · σ(b), where a and b are the halves of one input: each gets half."""

    conserves = True

    def family(self, node: Node) -> str:
        return "product"

    def kept(self, node: Node) -> Args:
        return (node.fn._saved_self,)

    def value(self, node: Node, args: Args) -> Relevance:
        return F.glu(args[0], integer(node.fn._saved_dim))

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        half = 0.5 * R
        return (torch.cat([half, half], integer(node.fn._saved_dim)),)


class Prod(Op):
    """The product of all elements: each factor gets the same."""

    conserves = True

    def __init__(self, everything: bool) -> None:
        self._everything = everything

    def family(self, node: Node) -> str:
        return "product"

    def kept(self, node: Node) -> Args:
        return (node.fn._saved_self,)

    def result(self, node: Node) -> Relevance | None:
        return node.fn._saved_result

    def needs(self, node: Node) -> Sequence[int]:
        return (0,)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        x = args[0]
        if self._everything:
            return ((R / x.numel()).expand_as(x),)
        dim = integer(node.fn._saved_dim)
        R = R if node.fn._saved_keepdim else R.unsqueeze(dim)
        return ((R / x.shape[dim]).expand_as(x),)


class Cumprod(Prod):
    """Products of the first 1, 2, 3, … elements: the factors of each get the same."""

    conserves = True

    def __init__(self) -> None:
        super().__init__(everything=False)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        if not R.dim():
            return (R,)
        dim = integer(node.fn._saved_dim) % R.dim()
        factors = torch.arange(1, R.shape[dim] + 1, dtype=R.dtype, device=R.device).reshape(-1, *[1] * (R.dim() - 1 - dim))
        return ((R / factors).flip(dim).cumsum(dim).flip(dim),)


class Trilinear(Op):
    """Sums of products of three factors, as in `nn.Bilinear`: the activations among them get equal parts of each product."""

    wide = False

    def family(self, node: Node) -> str:
        return "product"

    def kept(self, node: Node) -> Args:
        return node.fn._saved_i1, node.fn._saved_i2, node.fn._saved_i3

    def needs(self, node: Node) -> Sequence[int]:
        return (0, 1, 2) if None not in node.edges else [at for at, edge in enumerate(node.edges) if edge is not None]

    def value(self, node: Node, args: Args) -> Relevance:
        fn = node.fn
        places = (list(fn._saved_expand1), list(fn._saved_expand2), list(fn._saved_expand3), list(fn._saved_sumdim))
        return torch.ops.aten._trilinear(*args, *places)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        z = node.output()
        z = z if isinstance(z, Tensor) else torch.as_tensor(self.value(node, args))
        back = pieces(node, divide(R, z, getattr(node.choice, "eps", EPS)))
        takers = [at for at, edge in enumerate(node.edges) if edge is not None and not edge.child.is_weight]
        given: list[Tensor | None] = [None, None, None]
        for at in node.walked:
            piece = back[at]
            if piece is not None:
                given[at] = fit(node, at, piece) * args[at] / (len(takers) if at in takers else 1)
        return given


register(Mul(), "MulBackward0")
register(Scale(divides=False), "MulBackward1")
register(Scale(divides=True), "DivBackward1")
register(Div(), "DivBackward0")
register(Div(torch.pow, "_saved_exponent"), "PowBackward1")
register(Div(torch.atan2), "Atan2Backward0")
register(Div(torch.remainder), "RemainderBackward1")
register(Div(torch.fmod), "FmodBackward1")
register(Cumprod(), "CumprodBackward0")
register(Trilinear(), "TrilinearBackward0")
register(Glu(), "GluBackward0")
register(Prod(everything=True), "ProdBackward0")
register(Prod(everything=False), "ProdBackward1")
