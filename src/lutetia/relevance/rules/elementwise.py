"""Elementwise functions of one input: the relevance passes (identity rule). And those of two that pick one: maximum, minimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lutetia.relevance.graph import Node, Relevance
from lutetia.relevance.registry import Args, Given, Op, op_named, register
from lutetia.relevance.rules.common import backward, fit


class Activation(Op):
    """An elementwise function that kept its input (`self`), its output (`result`), or nothing."""

    blind = conserves = True

    def __init__(self, forward: Callable[[Node, Tensor], Tensor], keeps: str = "self") -> None:
        self._forward, self._keeps = forward, keeps

    def family(self, node: Node) -> str:
        return "activation"

    def kept(self, node: Node) -> Args:
        rest = [None] * (len(node.edges) - 1)
        return (node.fn._saved_self if self._keeps == "self" else None, *rest)

    def result(self, node: Node) -> Relevance | None:
        return node.fn._saved_result if self._keeps == "result" else None

    def value(self, node: Node, args: Args) -> Relevance:
        return self._forward(node, args[0])

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        return (R, *[None] * (len(node.edges) - 1))


class Custom(Activation):
    """A custom function of one input, the first that it saved."""

    def kept(self, node: Node) -> Args:
        return (node.fn.saved_tensors[0], *[None] * (len(node.edges) - 1))


class Prelu(Activation):
    """x for x > 0, w·x below: the weight is a parameter."""

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, node.fn._saved_weight

    def value(self, node: Node, args: Args) -> Relevance:
        x, w = args
        return torch.where(x > 0, x, w * x)


class Clamp(Activation):
    """`clamp(x, low, high)` with bounds that are tensors: relevance passes to x, or to a bound that has a node and applied."""

    blind = conserves = False

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, node.fn._saved_min, node.fn._saved_max

    def value(self, node: Node, args: Args) -> Relevance:
        return torch.clamp(args[0], args[1], args[2])

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given = list(backward(node, R))
        bounds = [g for at, g in enumerate(given) if at and at in node.walked]
        if 0 in node.walked:  # a bound without a node is part of the function, as it is where it is a number
            given[0] = R - sum(bounds) if bounds else R
        return [fit(node, at, g) if at in node.walked else None for at, g in enumerate(given)]


class Pick(Op):
    """The larger (or smaller) of two: the winner takes all, ties in halves."""

    def __init__(self, forward: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._forward = forward

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, node.fn._saved_other

    def needs(self, node: Node) -> Sequence[int]:
        return [position for position, edge in enumerate(node.edges) if edge is not None]

    def value(self, node: Node, args: Args) -> Relevance:
        return self._forward(args[0], args[1])

    def relevance(self, node: Node, R: Any, args: Args) -> Given:
        given = backward(node, R)
        given = given if isinstance(given, tuple) else (given,)
        return [fit(node, at, g) if at in node.walked else None for at, g in enumerate(given)]


def is_elementwise(name: str) -> bool:
    """Whether the node of this name is a function of one number, applied to each."""
    return isinstance(op_named(name), Activation)


def _from_self(**functions: Callable[[Tensor], Tensor]) -> None:
    for name, function in functions.items():
        register(Activation(lambda node, x, function=function: function(x)), f"{name}Backward0")  # type: ignore[misc]


def _from_result(**functions: Callable[[Tensor], Tensor]) -> None:
    for name, function in functions.items():
        op = Activation(lambda node, x, function=function: function(x), keeps="result")  # type: ignore[misc]
        register(op, f"{name}Backward0")


def _clamp(node: Node, x: Tensor) -> Tensor:
    return x.clamp(node.fn._saved_min, node.fn._saved_max)


def _elu(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    return torch.ops.aten.elu(x, fn._saved_alpha, fn._saved_scale, fn._saved_input_scale)


def _rrelu(node: Node, x: Tensor) -> Tensor:
    fn = node.fn
    slope = fn._saved_noise if fn._saved_training else (fn._saved_lower + fn._saved_upper) / 2
    return torch.where(x > 0, x, x * slope)


_from_self(
    Silu=F.silu,
    Mish=F.mish,
    Hardswish=F.hardswish,
    Hardsigmoid=F.hardsigmoid,
    LogSigmoid=F.logsigmoid,
    Abs=torch.abs,
    Sin=torch.sin,
    Cos=torch.cos,
    Sinh=torch.sinh,
    Cosh=torch.cosh,
    Asin=torch.asin,
    Acos=torch.acos,
    Atan=torch.atan,
    Asinh=torch.asinh,
    Acosh=torch.acosh,
    Atanh=torch.atanh,
    Erf=torch.erf,
    Erfc=torch.erfc,
    Erfinv=torch.erfinv,
    Log=torch.log,
    Log2=torch.log2,
    Log10=torch.log10,
    Log1P=torch.log1p,
    Lgamma=torch.lgamma,
    Digamma=torch.digamma,
    I0=torch.i0,
    SpecialEntr=torch.special.entr,
    SpecialErfcx=torch.special.erfcx,
    SpecialLogNdtr=torch.special.log_ndtr,
    Sinc=torch.sinc,
    NanToNum=torch.nan_to_num,
)
_from_result(
    Relu=torch.relu,
    Sigmoid=torch.sigmoid,
    Tanh=torch.tanh,
    Exp=torch.exp,
    Exp2=torch.exp2,
    Expm1=torch.expm1,
    Sqrt=torch.sqrt,
    Rsqrt=torch.rsqrt,
    Reciprocal=torch.reciprocal,
    Tan=torch.tan,
)
register(Activation(lambda node, x: F.gelu(x, approximate=node.fn._saved_approximate)), "GeluBackward0")
register(Activation(lambda node, x: F.leaky_relu(x, node.fn._saved_negative_slope)), "LeakyReluBackward0")
register(Activation(lambda node, x: x, keeps="result"), "LeakyReluBackward1", "EluBackward1", "CeluBackward1")
register(Activation(_elu), "EluBackward0")
register(Activation(lambda node, x: F.celu(x, node.fn._saved_alpha)), "CeluBackward0")
register(Activation(lambda node, x: F.softplus(x, node.fn._saved_beta, node.fn._saved_threshold)), "SoftplusBackward0")
register(Activation(lambda node, x: F.softshrink(x, node.fn._saved_lambd)), "SoftshrinkBackward0")
register(Activation(lambda node, x: F.hardshrink(x, node.fn._saved_lambd)), "HardshrinkBackward0")
register(Activation(lambda node, x: F.hardtanh(x, node.fn._saved_min_val, node.fn._saved_max_val)), "HardtanhBackward0")
register(Activation(_clamp), "ClampBackward1")
register(Clamp(_clamp), "ClampBackward0")
register(Activation(lambda node, x: x.clamp(min=node.fn._saved_min)), "ClampMinBackward0")
register(Activation(lambda node, x: x.clamp(max=node.fn._saved_max)), "ClampMaxBackward0")
register(Activation(lambda node, x: x.pow(node.fn._saved_exponent)), "PowBackward0")
register(Activation(lambda node, x: torch.pow(node.fn._saved_self, x), keeps="result"), "PowBackward2")  # of a number
register(Activation(lambda node, x: -x, keeps="nothing"), "NegBackward0")
for _step in (torch.sign, torch.round, torch.floor, torch.ceil, torch.trunc, torch.frac):  # flat, and still made from their input
    _op = Activation(lambda node, x, function=_step: function(x), keeps="nothing")  # type: ignore[misc]
    register(_op, f"{_step.__name__.title()}Backward0")
register(Activation(_rrelu), "RreluWithNoiseBackward0")
register(Activation(_rrelu, keeps="result"), "RreluWithNoiseBackward1")
register(Activation(lambda node, x: torch.logit(x, node.fn._saved_eps)), "LogitBackward0")
register(Custom(lambda node, x: F.gelu(x, approximate="tanh")), "GeLUFunctionBackward")  # of transformers' Bloom
register(Custom(lambda node, x: x.sqrt()), "SqrtBoundDerivativeBackward")  # of its RecurrentGemma
register(Prelu(lambda node, x: x), "PreluKernelBackward0")
register(Pick(torch.maximum), "MaximumBackward0", "FmaxBackward0")
register(Pick(torch.minimum), "MinimumBackward0", "FminBackward0")
