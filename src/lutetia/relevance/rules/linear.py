"""Linear operations and their products: mm, addmm, bmm, baddbmm, mv, dot, convolutions.

With one factor a weight (or a constant), the chosen rule decides. With two activations (attention · V, Q · K) each factor gets
half of the relevance of its contributions, so that relevance is conserved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia.relevance.graph import OUTPUT, RESHAPES, Node, Relevance, unknown, wide
from lutetia.relevance.registry import Args, Given, Op, divide, over, reduce_to, register, scalar
from lutetia.relevance.report import is_stacked, numbers_of
from lutetia.relevance.rules.choices import Epsilon
from lutetia.relevance.rules.common import without_masked

LARGE = 1 << 20  # elements of a matrix whose outputs without relevance are worth a search
LARGE_WEIGHT = 1 << 16  # elements of a weight for which oneDNN is worth a call
MANY = 16  # rows of a matrix from which those without relevance are worth a search
_onednn_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if torch.backends.mkldnn.is_available() else None
_convolution = torch.ops.aten.convolution.default
_convolution_backward = torch.ops.aten.convolution_backward.default


class Form:
    """z = f(x, w) + b, with f linear in both."""

    __slots__ = ("b", "node", "op", "swapped", "w", "x", "z_known")

    def __init__(self, op: Bilinear, node: Node, x: Tensor, w: Tensor, b: Tensor | None, swapped: bool, z: Tensor | None) -> None:
        self.op, self.node, self.x, self.w, self.b, self.swapped, self.z_known = op, node, x, w, b, swapped, z

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """f(x, w), without the bias."""
        return self.op.product(self.node, w, x) if self.swapped else self.op.product(self.node, x, w)

    def to_x(self, s: Tensor, w: Tensor) -> Tensor:
        """fᵀ(s, w), shaped like x."""
        return self.op.to_right(self.node, s, w, self.x) if self.swapped else self.op.to_left(self.node, s, w, self.x)

    def to_w(self, s: Tensor, x: Tensor) -> Tensor:
        """fᵀ(s, x), shaped like w."""
        return self.op.to_left(self.node, s, x, self.w) if self.swapped else self.op.to_right(self.node, s, x, self.w)

    def plus(self, z: Tensor, b: Tensor | None) -> Tensor:
        """z + b, with b broadcast as the operation does; `z` is a temporary, changed in place."""
        return z if b is None else z.add_(self.op.spread(self.node, b, z))

    def z(self) -> Tensor:
        """The output; without the bias where the rule leaves it out."""
        if self.z_known is None:
            self.z_known = self.plus(self.forward(self.x, self.w), self.b)
        return self.z_known

    def factor(self, R: Tensor, eps: float) -> Tensor:
        """R / (z + ε·sgn z); computed in place where z is a temporary."""
        if self.z_known is not None or not eps:
            return divide(R, self.z(), eps)
        z = self.z()
        self.z_known = None
        z += torch.copysign(scalar(eps, z.dtype, z.device), z)
        return over(R, z)

    def like_x(self, tensor: Tensor) -> Tensor:
        """A tensor that broadcasts to the layer's input, expanded to x."""
        return tensor.expand_as(self.x)


class Bilinear(Op):
    """An operation that is linear in a left and a right factor, with or without a bias."""

    left, right = 0, 1  # the positions of the factors among the inputs
    bias: int | None = None

    # ---- what each operation says of itself ---------------------------------------------------------------------------

    def product(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        """The operation without its bias: left factor a, right factor b."""
        raise NotImplementedError

    def to_left(self, node: Node, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        """The adjoint for the left factor, given the right one."""
        raise NotImplementedError

    def to_right(self, node: Node, s: Tensor, a: Tensor, like: Tensor) -> Tensor:
        """The adjoint for the right factor, given the left one."""
        raise NotImplementedError

    def spread(self, node: Node, bias: Tensor, z: Tensor) -> Tensor:
        """The bias, broadcastable to the output."""
        return bias

    def has_bias(self, node: Node) -> bool:
        return self.bias is not None

    def narrowed(self, R: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """R and z [as the output] and the right factor, without outputs that have no relevance, if that is worth it."""
        return R, z, w

    def rows_with_relevance(self, R: Tensor) -> Tensor | None:
        """The rows of the output that have relevance, where leaving the others out is worth it; None otherwise."""
        return None

    # ---- what they share ------------------------------------------------------------------------------------------------

    def _active(self, node: Node, position: int | None) -> bool:
        edge = None if position is None else node.edges[position]
        return edge is not None and not edge.child.is_weight

    def family(self, node: Node) -> str:
        return "product" if self._active(node, self.left) and self._active(node, self.right) else "linear"

    def reads_data(self, node: Node) -> bool:
        return node.edges[self.left] is None or node.edges[self.right] is None

    def needs(self, node: Node) -> list[int]:
        positions = [position for position in (self.left, self.right) if node.edges[position] is not None]
        if self._active(node, self.bias):
            assert self.bias is not None
            positions.append(self.bias)
        return positions

    def value(self, node: Node, args: Args) -> Relevance:
        a, b = args[self.left], args[self.right]
        z = self.product(node, a, b)
        bias = None if self.bias is None else args[self.bias]
        if bias is not None:
            z = z + self.spread(node, bias, z)
        elif self.has_bias(node) and isinstance(constant := node.constant(), Tensor):
            z = z + self.spread(node, constant, z)
        return z

    def relevance(self, node: Node, R: Tensor, args: Args) -> Given:
        a, b = args[self.left], args[self.right]
        bias, z = self._bias(node, args)
        if node.choice.eps:
            return self._shares(node, R, (a, b), bias, z)
        given = self._shares(node, wide(R), (wide(a), wide(b)), None if bias is None else wide(bias), None)
        return [None if share is None else share.to(R.dtype) for share in given]

    def _shares(self, node: Node, R: Tensor, factors: tuple[Tensor, Tensor], bias: Tensor | None, z: Tensor | None) -> list[Any]:
        """What each input gets of R [as the output]; `z`: the output, where it is known."""
        a, b = factors
        given: list[Any] = [None] * len(node.edges)
        left, right = self._active(node, self.left), self._active(node, self.right)
        if left and right:
            if z is None:
                z = self.product(node, a, b)
                if bias is not None:
                    z = z + self.spread(node, bias, z)
            s = divide(R, z, node.choice.eps)
            half = 0.5 * s
            given[self.left] = self.to_left(node, half, b, a) * a
            given[self.right] = self.to_right(node, half, a, b) * b
            if bias is not None and self.bias in node.walked:
                assert self.bias is not None
                added = self.spread(node, bias, z)
                given[self.bias] = self._to_bias(node, without_masked(added * s, added.expand_as(s)), bias)
            return given
        swapped = right and not left
        x, w = (b, a) if swapped else (a, b)
        x_at, w_at = (self.right, self.left) if swapped else (self.left, self.right)
        if z is not None and node.choice.eps and node.walked == (x_at,) and isinstance(node.choice, Epsilon):  # the usual case
            to_x = self.to_right if swapped else self.to_left
            rows = None if swapped else self.rows_with_relevance(R)
            whole = x
            if rows is not None:
                R, z, x = R[rows], z[rows], x[rows]
            if not swapped:
                R, z, w = self.narrowed(R, z, w)
            given[x_at] = to_x(node, divide(R, z, node.choice.eps), w, x).mul_(x)
            if rows is not None:
                given[x_at] = torch.zeros_like(whole).index_copy(0, rows, given[x_at])
            return given
        form = Form(self, node, x, w, bias, swapped, z)
        terms = node.choice.terms(form, R)
        for term in terms:
            if x_at in node.walked:
                part = form.to_x(term.s, term.w).mul_(term.x)
                given[x_at] = part if given[x_at] is None else given[x_at].add_(part)
            if w_at in node.walked:
                part = form.to_w(term.s, term.x).mul_(term.w)
                given[w_at] = part if given[w_at] is None else given[w_at].add_(part)
            if self.bias in node.walked and term.b is not None:
                assert self.bias is not None
                part = self._to_bias(node, self.spread(node, term.b, term.s) * term.s, term.b)
                given[self.bias] = part if given[self.bias] is None else given[self.bias].add_(part)
        return given

    def _bias(self, node: Node, args: Args) -> tuple[Tensor | None, Tensor | None]:
        """The bias that takes a share, and the output where it is known and includes that bias."""
        if not self.has_bias(node):
            return None, _tensor(node.output())
        assert self.bias is not None
        if node.rules.bias == "redistribute" and not self._active(node, self.bias):
            return None, None
        bias = args[self.bias]
        if bias is None:  # frozen, so that it left no node
            bias = node.constant()
            if not isinstance(bias, Tensor):
                return self._guess(node, args)
        return bias, _tensor(node.output())

    def _guess(self, node: Node, args: Args) -> tuple[Tensor | None, Tensor | None]:
        """A bias that was not kept is the output minus the product, where the output is known."""
        z = _tensor(node.output())
        if z is None:
            z = _behind_relu(node)
        if z is None:
            node.note = "the share of a frozen bias is unknown: its value was not kept"
            return None, None
        a, b = args[self.left], args[self.right]
        return z - self.product(node, a, b), z

    def _to_bias(self, node: Node, part: Tensor, bias: Tensor) -> Tensor:
        return reduce_to(part, bias.shape)


def _tensor(value: Relevance | None) -> Tensor | None:
    return value if isinstance(value, Tensor) else None


def _behind_relu(node: Node) -> Tensor | None:
    """The output, if a ReLU after it kept it; negative values read 0, where the ReLU's input has no relevance either."""
    shape = node.shape()
    while len(node.parents) == 1:
        node = node.parents[0][0]
        if node.name == "ReluBackward0":
            return node.fn._saved_result.reshape(shape)
        if node.name not in RESHAPES:
            return None
    return None


def _suits_onednn(s: Tensor, b: Tensor) -> bool:
    """Whether s @ bᵀ goes to oneDNN, which takes 70% to 90% of the time of `s @ b.mT` here: b is a weight that lies transposed.

    Measured for 3 to 512 rows and the weights of SmolLM2, on an EPYC with AVX-512; a single row takes longer.
    """
    return (
        b.numel() >= LARGE_WEIGHT
        and _onednn_linear is not None
        and s.dtype is b.dtype is torch.float32
        and s.is_cpu
        and s.dim() == b.dim() == 2
        and s.shape[0] > 1
        and b.stride() == (1, b.shape[0])
        and not is_stacked(s)
    )


class Mm(Bilinear):
    """a @ b, for matrices and batches of them."""

    def result(self, node: Node) -> Relevance | None:
        kept = node.notes.get(OUTPUT)
        z = None if kept is None else kept.value()
        if z is None or z.dim() == 2:
            return z
        return z.flatten(0, -2) if z.dim() > 2 and node.name == "MmBackward0" else z.reshape(node.shape())

    def product(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def narrowed(self, R: Tensor, z: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where one word of a vocabulary is explained, one column of w [K, C] of its 49,152 has relevance."""
        if w.dim() != 2 or w.numel() < LARGE or not w.is_cpu:  # elsewhere the answer would have to be waited for
            return R, z, w
        columns = numbers_of(R).reshape(-1, R.shape[-1]).any(0).nonzero()[:, 0]
        if len(columns) > R.shape[-1] // 4:
            return R, z, w
        return R[:, columns], z[:, columns], w[:, columns]

    def rows_with_relevance(self, R: Tensor) -> Tensor | None:
        """Above the last attention of a language model, one row of many has relevance: that of the position explained."""
        if R.dim() != 2 or R.shape[0] < MANY or not R.is_cpu:
            return None
        there = numbers_of(R)
        if bool(there[..., 0, :].any()):  # below it all rows have some, and the first tells
            return None
        rows = there.reshape(-1, *R.shape).any(2).any(0).nonzero()[:, 0]
        return rows if len(rows) <= R.shape[0] // 2 else None

    def to_left(self, node: Node, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        return _onednn_linear(s, b, None, "none", [], "") if _suits_onednn(s, b) else s @ b.mT

    def to_right(self, node: Node, s: Tensor, a: Tensor, like: Tensor) -> Tensor:
        return a.mT @ s

    def kept(self, node: Node) -> Args:
        fn = node.fn
        return fn._saved_self, fn._saved_mat2


class Addmm(Mm):
    """β·c + α·(a @ b)."""

    left, right, bias = 1, 2, 0
    names = ("_saved_mat1", "_saved_mat2")

    def kept(self, node: Node) -> Args:
        return None, getattr(node.fn, self.names[0]), getattr(node.fn, self.names[1])

    def product(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        z = a @ b
        return z if node.fn._saved_alpha == 1 else z * node.fn._saved_alpha

    def to_left(self, node: Node, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        return super().to_left(node, s if node.fn._saved_alpha == 1 else s * node.fn._saved_alpha, b, like)

    def to_right(self, node: Node, s: Tensor, a: Tensor, like: Tensor) -> Tensor:
        return super().to_right(node, s if node.fn._saved_alpha == 1 else s * node.fn._saved_alpha, a, like)

    def spread(self, node: Node, bias: Tensor, z: Tensor) -> Tensor:
        return bias if node.fn._saved_beta == 1 else bias * node.fn._saved_beta


class Baddbmm(Addmm):
    """β·c + α·(a @ b), for batches."""

    names = ("_saved_batch1", "_saved_batch2")


class SparseAddmm(Addmm):
    """β·c + α·(a @ b) with a sparse matrix a, such as the neighbours in a graph."""

    def has_bias(self, node: Node) -> bool:
        return bool(node.fn._saved_beta)

    def to_left(self, node: Node, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        raise unknown(node, "its sparse matrix is no constant; write it as a dense one")


class Mv(Bilinear):
    """A matrix times a vector."""

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, node.fn._saved_vec

    def product(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def to_left(self, node: Node, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        return torch.outer(s, b)

    def to_right(self, node: Node, s: Tensor, a: Tensor, like: Tensor) -> Tensor:
        return a.mT @ s


class Dot(Bilinear):
    """The product of two vectors."""

    def kept(self, node: Node) -> Args:
        return node.fn._saved_self, node.fn._saved_tensor

    def product(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    def to_left(self, node: Node, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        return s * b

    def to_right(self, node: Node, s: Tensor, a: Tensor, like: Tensor) -> Tensor:
        return s * a


class Convolution(Bilinear):
    """Convolutions of 1 to 3 dimensions, transposed or not, with groups, strides and dilations."""

    bias = 2

    def kept(self, node: Node) -> Args:
        return node.fn._saved_input, node.fn._saved_weight, None

    def has_bias(self, node: Node) -> bool:
        return tuple(node.fn._saved_bias_sym_sizes_opt or (0,)) != (0,)  # no bias has no elements

    def _settings(self, node: Node) -> tuple[Any, ...]:
        fn = node.fn
        return (
            fn._saved_stride,
            fn._saved_padding,
            fn._saved_dilation,
            fn._saved_transposed,
            fn._saved_output_padding,
            fn._saved_groups,
        )

    def product(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        return _convolution(a, b, None, *self._settings(node))

    def to_left(self, node: Node, s: Tensor, b: Tensor, like: Tensor) -> Tensor:
        return _convolution_backward(s, like, b, None, *self._settings(node), [True, False, False])[0]

    def to_right(self, node: Node, s: Tensor, a: Tensor, like: Tensor) -> Tensor:
        return _convolution_backward(s, a, like, None, *self._settings(node), [False, True, False])[1]

    def spread(self, node: Node, bias: Tensor, z: Tensor) -> Tensor:
        return bias if bias.dim() > 1 else bias.reshape(1, -1, *([1] * (z.dim() - 2)))

    def _to_bias(self, node: Node, part: Tensor, bias: Tensor) -> Tensor:
        return part.sum(dim=[0, *range(2, part.dim())])


register(Mm(), "MmBackward0", "BmmBackward0")
register(Addmm(), "AddmmBackward0")
register(Baddbmm(), "BaddbmmBackward0")
register(SparseAddmm(), "SparseAddmmBackward0")
register(Mv(), "MvBackward0")
register(Dot(), "DotBackward0")
register(Convolution(), "ConvolutionBackward0", "ConvolutionBackward1")
