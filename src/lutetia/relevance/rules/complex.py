"""Complex numbers: their relevance is complex, too, with the relevance of the real part and of the imaginary part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, divide, register
from lutetia.relevance.rules.elementwise import Activation
from lutetia.relevance.rules.views import Move


class AsReal(Move):
    """[...] complex as [..., 2] real."""

    def __init__(self) -> None:
        super().__init__(lambda node, x: torch.view_as_real(x.resolve_conj()))

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (torch.view_as_complex(R.contiguous()),)


class AsComplex(Move):
    """[..., 2] real as [...] complex."""

    def __init__(self) -> None:
        super().__init__(lambda node, x: torch.view_as_complex(x.contiguous()))

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (torch.view_as_real(R.resolve_conj()),)


class Complex(Op):
    """a + i·b: each gets the relevance of its part."""

    def kept(self, node: Node) -> Args:
        return node.fn._saved_real, node.fn._saved_imag

    def value(self, node: Node, args: Args) -> Relevance:
        return torch.complex(*args)

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return [part if at in node.walked else None for at, part in enumerate((R.real, R.imag))]


class Polar(Op):
    """a·(cos φ + i·sin φ): both parts of the relevance go to a; half goes to φ where both are activations."""

    def kept(self, node: Node) -> Args:
        return None, None

    def result(self, node: Node) -> Relevance | None:
        return node.fn._saved_result

    def value(self, node: Node, args: Args) -> Relevance:
        return node.fn._saved_result

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        takers = [at for at, edge in enumerate(node.edges) if edge is not None and not edge.child.is_weight]
        both = (R.real + R.imag) / max(len(takers), 1)
        return [both if at in node.walked else None for at in (0, 1)]


class Conjugate(Activation):
    """a - i·b: everything passes, part by part."""


class Modulus(Activation):
    """|x|: a complex number's parts share in proportion to their squares; elsewhere everything passes."""

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        x = node.fn._saved_self
        if not x.is_complex():
            return (R,)
        share = divide(R, x.real.square() + x.imag.square(), torch.finfo(R.dtype).tiny)
        return (torch.complex(share * x.real.square(), share * x.imag.square()),)


def _conjugate(node: Node, x: Tensor) -> Tensor:
    return x.conj().resolve_conj()


register(AsReal(), "ViewAsRealBackward0", "ViewAsRealCopyBackward0")
register(AsComplex(), "ViewAsComplexBackward0", "ViewAsComplexCopyBackward0")
register(Complex(), "ComplexBackward0")
register(Polar(), "PolarBackward0")
register(Conjugate(_conjugate, keeps="nothing"), "ConjBackward0", "ConjPhysicalBackward0", "ConjPhysicalBackward1")
register(Activation(lambda node, x: x, keeps="nothing"), "ResolveConjBackward0", "ResolveNegBackward0")
register(Activation(lambda node, x: -x, keeps="nothing"), "NegViewBackward0")
register(Modulus(lambda node, x: x.abs()), "AbsBackward0")
