"""LRP-0 equals gradient × input for every operation that is linear, or picks, moves and copies values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules._functions import BackwardHookFunction

from lutetia import relevance

ZERO = relevance.presets.epsilon(0.0)

X = (4, 6)  # the shape of the input unless said otherwise
INDEX = torch.tensor([[0, 2, 1, 3, 0, 2], [1, 1, 0, 2, 3, 3]])
MASK = torch.tensor([True, False, True, True, False, True])


def weights(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def in_place(x: Tensor) -> Tensor:
    y = x * 1.0
    y[:, 1:3] = x[:, 3:5] * 2
    return y


def chain_of_writes(x: Tensor) -> Tensor:
    y = torch.zeros(4, 7, dtype=x.dtype) + x.mean()
    y[:, :6] = x
    y[1:3, 2:] = 2 * x[:2, :5]
    y[0].copy_(x.sum(0).repeat(2)[:7])
    return y


def added_in_place(x: Tensor) -> Tensor:
    y = x * 1.0
    y[:, 1:3] += x[:, 3:5] * 2
    y[1] -= x[2]
    y[:, -1] += x[0, 0]
    return y


def copied(x: Tensor) -> Tensor:
    y = torch.empty(3, 4, 6, dtype=x.dtype)
    return y.copy_(2 * x) + (3 * x).copy_(x[0])


def packed(x: Tensor) -> Tensor:
    sequence = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2]))
    both = torch.nn.utils.rnn.pad_packed_sequence(sequence._replace(data=2 * sequence.data))[0]
    return both + x


GRID = torch.rand(1, 4, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 2.2 - 1.1
NEIGHBOURS = (weights(4, 4) * torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 2]])).to_sparse()
TURN = torch.polar(torch.ones(3, dtype=torch.float64), torch.arange(3, dtype=torch.float64))


def permuted_sum(x: Tensor) -> Tensor:
    return x.permute(1, 0).sum(1) - x.mean(0)


OPS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "view": (lambda x: x.view(3, 8), X),
    "reshape of a transpose": (lambda x: x.t().reshape(3, 8), X),
    "transpose": (lambda x: x.transpose(-1, -2), X),
    "permute": (lambda x: x.permute(2, 0, 1), (2, 3, 4)),
    "movedim": (lambda x: x.movedim(0, -1), (2, 3, 4)),
    "flatten": (lambda x: x.flatten(), X),
    "squeeze": (lambda x: x.squeeze(1).unsqueeze(-1), (4, 1, 6)),
    "expand": (lambda x: x.unsqueeze(1).expand(4, 3, 6), X),
    "repeat": (lambda x: x.repeat(2, 3), X),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), X),
    "slice": (lambda x: x[1:3, ::2], X),
    "slice from the end": (lambda x: x[:, -3:-1], X),
    "select": (lambda x: x[:, -2], X),
    "narrow": (lambda x: x.narrow(1, 2, 3), X),
    "flip": (lambda x: x.flip(-1, 0), X),
    "roll": (lambda x: x.roll((1, -2), (0, 1)), X),
    "roll flat": (lambda x: x.roll(3), X),
    "rot90": (lambda x: x.rot90(1, (0, 1)), X),
    "tril": (lambda x: x.tril(-1), X),
    "triu": (lambda x: x.triu(1), X),
    "diagonal": (lambda x: x.diagonal(1), X),
    "diag_embed": (lambda x: torch.diag_embed(x), X),
    "as_strided": (lambda x: x.t().clone(memory_format=torch.contiguous_format).as_strided((3, 4), (4, 1), 4), X),
    "unfold": (lambda x: x.unfold(1, 3, 2), X),
    "gather": (lambda x: x.gather(0, INDEX), X),
    "index": (lambda x: x[INDEX[0], MASK.long()], X),
    "index with a gap": (lambda x: x[:, INDEX[0]], X),
    "boolean index": (lambda x: x[:, MASK], X),
    "index_select": (lambda x: x.index_select(1, INDEX[0]), X),
    "masked_select": (lambda x: x.masked_select(MASK), X),
    "take": (lambda x: x.take(INDEX), X),
    "take_along_dim": (lambda x: x.take_along_dim(INDEX, 0), X),
    "scatter": (lambda x: (2 * x).scatter(0, INDEX[:1], x[:1]), X),
    "scatter_add": (lambda x: (2 * x).scatter_add(0, INDEX, x[:2]), X),
    "index_add": (lambda x: (2 * x).index_add(0, torch.tensor([1, 1, 3]), x[:3], alpha=2), X),
    "index_copy": (lambda x: (2 * x).index_copy(0, torch.tensor([2, 0]), x[:2]), X),
    "index_put": (lambda x: (2 * x).index_put((torch.tensor([0, 2]),), x[1:3]), X),
    "index_put accumulating": (lambda x: (2 * x).index_put((torch.tensor([2, 2]),), x[:2], accumulate=True), X),
    "index_fill": (lambda x: x.index_fill(1, torch.tensor([0, 4]), 0.0), X),
    "select_scatter": (lambda x: (2 * x).select_scatter(x[0], 0, 2), X),
    "slice_scatter": (lambda x: (2 * x).slice_scatter(x[:2], 0, 1, 3), X),
    "diagonal_scatter": (lambda x: (2 * x).diagonal_scatter(x[:, 1]), X),
    "masked_fill": (lambda x: x.masked_fill(MASK, 0.0), X),
    "masked_scatter": (lambda x: (2 * x).masked_scatter(MASK, x), X),
    "where": (lambda x: torch.where(MASK, x, 3 * x), X),
    "cat": (lambda x: torch.cat([x, 2 * x, x[:1]], 0), X),
    "stack": (lambda x: torch.stack([x, 3 * x], -1), X),
    "split": (lambda x: torch.cat([p * (i + 1) for i, p in enumerate(x.split(2, -1))], 0), X),
    "split with sizes": (lambda x: torch.cat([p.sum(-1) for p in x.split([1, 3, 2], -1)]), X),
    "split, one piece used": (lambda x: x.split(2, 1)[2], X),
    "chunk": (lambda x: x.chunk(3, 1)[0] + x.chunk(3, 1)[2], X),
    "unbind": (lambda x: x.unbind(0)[1] + 2 * x.unbind(0)[3], X),
    "constant pad": (lambda x: F.pad(x, (1, 2, 0, 1)), X),
    "reflection pad": (lambda x: F.pad(x[None], (1, 2), mode="reflect"), X),
    "replication pad": (lambda x: F.pad(x[None], (1, 2), mode="replicate"), X),
    "circular pad": (lambda x: F.pad(x[None], (1, 2), mode="circular"), X),
    "written in place": (in_place, X),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (1, 8, 3, 2)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), (1, 2, 4, 6)),
    "nn.functional.unfold": (lambda x: F.unfold(x, (2, 3), stride=2, padding=1), (1, 2, 4, 6)),
    "nn.functional.fold": (lambda x: F.fold(x, (4, 5), (2, 2)), (1, 8, 12)),
    "add": (lambda x: x + 2 * x.flip(0), X),
    "add with alpha": (lambda x: torch.add(x, x.flip(1), alpha=-3), X),
    "add, broadcast": (lambda x: x + x[0] + x[:, :1], X),
    "x + x": (lambda x: x + x, X),
    "sub": (lambda x: x - 3 * x.roll(1), X),
    "rsub": (lambda x: torch.rsub(x, x.roll(1), alpha=2), X),
    "neg": (lambda x: -x, X),
    "sum": (lambda x: x.sum(), X),
    "sum over a dimension": (lambda x: x.sum(-1, keepdim=True), X),
    "mean": (lambda x: x.mean(), X),
    "mean over dimensions": (lambda x: x.mean((0, -1)), (2, 3, 4)),
    "cumsum": (lambda x: x.cumsum(-1), X),
    "trace": (lambda x: x[:4, :4].trace(), X),
    "nansum": (lambda x: x.nansum(1), X),
    "lerp": (lambda x: torch.lerp(x, x.flip(0), 0.3), X),
    "scaled": (lambda x: x * 3 / 7, X),
    "times a constant": (lambda x: x * weights(6), X),
    "divided by a constant": (lambda x: x / weights(6), X),
    "mm": (lambda x: x @ weights(6, 3), X),
    "mm from the left": (lambda x: weights(3, 4) @ x, X),
    "mv": (lambda x: x @ weights(6), X),
    "vector times matrix": (lambda x: x[0] @ weights(6, 2), X),
    "dot": (lambda x: x[0] @ weights(6), X),
    "bmm": (lambda x: x @ weights(2, 4, 5), (2, 3, 4)),
    "matmul, broadcast": (lambda x: weights(5, 1, 2, 3) @ x, (2, 3, 4)),
    "linear": (lambda x: F.linear(x, weights(5, 4)), (2, 3, 4)),
    "addmm": (lambda x: torch.addmm(x[:, :3], x, weights(6, 3), alpha=2, beta=0.5), X),
    "baddbmm": (lambda x: torch.baddbmm(x[:, :, :2], x, weights(2, 4, 2), alpha=2), (2, 3, 4)),
    "einsum": (lambda x: torch.einsum("bij,jk->bki", x, weights(4, 5)), (2, 3, 4)),
    "einsum with a trace": (lambda x: torch.einsum("bii->b", x[:, :3, :3]), (2, 3, 4)),
    "outer": (lambda x: torch.outer(x[0], weights(3)), X),
    "relu": (lambda x: x.relu(), X),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), X),
    "abs": (lambda x: x.abs(), X),
    "hardtanh within its range": (lambda x: F.hardtanh(x, -9, 9), X),
    "clamp within its range": (lambda x: x.clamp(-9, 9).clamp(min=-9).clamp(max=9), X),
    "dropout": (lambda x: F.dropout(x, 0.5), X),
    "clone": (lambda x: x.clone().contiguous(), X),
    "max over a dimension": (lambda x: x.max(-1).values, X),
    "min over a dimension": (lambda x: x.min(0, keepdim=True).values, X),
    "max": (lambda x: x.max() - x.min(), X),
    "amax": (lambda x: x.amax((0, 1)) + x.amin(1), X),
    "maximum": (lambda x: torch.maximum(x, 2 * x.flip(0)), X),
    "minimum": (lambda x: torch.minimum(x, x[0]), X),
    "median": (lambda x: x.median(1).values, X),
    "kthvalue": (lambda x: x.kthvalue(2, 1).values, X),
    "topk": (lambda x: x.topk(3, 0).values, X),
    "sort": (lambda x: x.sort(-1, descending=True).values, X),
    "cummax": (lambda x: x.cummax(1).values, X),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2, 1), (2, 3, 7)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 7, 6)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (1, 2, 4, 5, 6)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 3), (2, 3, 7, 6)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 3, 7)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 7, 6)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (1, 2, 4, 5, 6)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 3), (2, 3, 7)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (2, 3, 7, 6)),
    "global average": (lambda x: F.adaptive_avg_pool2d(x, 1), (2, 3, 7, 6)),
    "conv1d": (lambda x: F.conv1d(x, weights(4, 3, 3), stride=2, padding=1), (2, 3, 7)),
    "conv2d": (lambda x: F.conv2d(x, weights(4, 2, 3, 2), stride=(2, 1), dilation=2, padding=2, groups=2), (2, 4, 7, 6)),
    "conv2d, depthwise": (lambda x: F.conv2d(x, weights(4, 1, 3, 3), groups=4), (1, 4, 5, 5)),
    "conv3d": (lambda x: F.conv3d(x, weights(2, 2, 2, 2, 2)), (1, 2, 4, 5, 3)),
    "conv_transpose1d": (lambda x: F.conv_transpose1d(x, weights(3, 2, 3), stride=2, output_padding=1), (2, 3, 5)),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, weights(4, 1, 3, 3), stride=2, groups=2), (1, 4, 3, 4)),
    "conv_transpose3d": (lambda x: F.conv_transpose3d(x, weights(2, 1, 2, 2, 2)), (1, 2, 2, 3, 2)),
    "interpolate, nearest": (lambda x: F.interpolate(x, scale_factor=2), (1, 2, 3, 4)),
    "interpolate, linear": (lambda x: F.interpolate(x, size=9, mode="linear"), (1, 2, 5)),
    "interpolate, bilinear": (lambda x: F.interpolate(x, size=(5, 7), mode="bilinear"), (1, 2, 3, 4)),
    "interpolate, bicubic": (lambda x: F.interpolate(x, size=(5, 7), mode="bicubic", align_corners=True), (1, 2, 3, 4)),
    "interpolate, trilinear": (lambda x: F.interpolate(x, size=(4, 3, 5), mode="trilinear"), (1, 1, 3, 2, 4)),
    "chain of writes in place": (chain_of_writes, X),
    "added in place": (added_in_place, X),
    "copy_": (copied, X),
    "packed sequences": (packed, (5, 3, 2)),
    "interpolate, bilinear, smoothed": (lambda x: F.interpolate(x, (2, 3), mode="bilinear", antialias=True), (1, 2, 5, 7)),
    "interpolate, bicubic, smoothed": (lambda x: F.interpolate(x, (4, 9), mode="bicubic", antialias=True), (1, 2, 5, 7)),
    "grid_sample": (lambda x: F.grid_sample(x, GRID, align_corners=False), (1, 2, 5, 7)),
    "grid_sample, border": (lambda x: F.grid_sample(x, GRID, "bicubic", "border", align_corners=True), (1, 2, 5, 7)),
    "solve_triangular": (lambda x: torch.linalg.solve_triangular(weights(4, 4).tril() + 3 * torch.eye(4), x, upper=False), X),
    "fft": (lambda x: torch.fft.fft2(x).real - torch.fft.fft(x).imag, X),
    "rfft and back": (lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=-1) * TURN[:1], n=5), X),
    "complex rotation": (lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)) * TURN).flatten(1), X),
    "complex and conjugate": (lambda x: torch.complex(x, 2 * x.flip(0)).conj().imag + x, X),
    "scatter_reduce, mean": (lambda x: (2 * x).scatter_reduce(0, INDEX, x[:2], "mean"), X),
    "scatter_reduce, sum": (lambda x: (2 * x).scatter_reduce(0, INDEX, x[:2], "sum", include_self=False), X),
    "scatter_reduce, amax": (lambda x: (2 * x).scatter_reduce(0, INDEX, x[:2], "amax"), X),
    "nll_loss": (lambda x: F.nll_loss(x, torch.tensor([0, 5, 2, 2]), weights(6).abs()), X),
    "nll_loss, every pixel": (lambda x: F.nll_loss(x[None], INDEX[:, :4][None, :, :], reduction="none"), (6, 2, 4)),
    "largest norm": (lambda x: torch.linalg.vector_norm(x, float("inf"), 1), X),
    "absolute norm": (lambda x: torch.linalg.vector_norm(x, 1, 1), X),
    "sparse.mm": (lambda x: torch.sparse.mm(NEIGHBOURS, x), X),
    "sparse.addmm": (lambda x: torch.sparse.addmm(x, NEIGHBOURS, 2 * x.flip(0), beta=3, alpha=0.5), X),
    "addmv": (lambda x: torch.addmv(x[:, 0], x, weights(6), alpha=2), X),
    "addr": (lambda x: torch.addr(x, x[:, 0], weights(6), beta=0.5), X),
    "addbmm": (lambda x: torch.addbmm(x[0, :, :2], x, weights(2, 4, 2), alpha=3), (2, 3, 4)),
    "addcdiv": (lambda x: torch.addcdiv(x, x.flip(0), weights(6), value=2), X),
    "bilinear in one": (lambda x: F.bilinear(x, weights(4, 3), weights(2, 6, 3)), X),
    "cross with a constant": (lambda x: torch.linalg.cross(x[:, :3], weights(3)[None]), X),
    "aminmax": (lambda x: torch.aminmax(x, dim=1)[0] + 2 * torch.aminmax(x)[1], X),
    "nearest-exact": (lambda x: F.interpolate(x, size=(5, 7), mode="nearest-exact"), (1, 2, 3, 4)),
    "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (1, 2, 4, 6)),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3) + F.rrelu(1 * x, 0.2, 0.4, training=True), X),
    "filled in place": (lambda x: (1 * x).zero_() + (2 * x).fill_(x.sum()) + torch.fill(x, x[0, 0]) + x, X),
    "hooked": (lambda x: torch.stack(BackwardHookFunction.apply(x, 2 * x)) + BackwardHookFunction.apply(3 * x)[0], X),
    "distance of order 1": (lambda x: torch.cdist(x, 0 * x[:3], p=1), X),
    "several": (permuted_sum, X),
    "under a sum": (lambda x: x.t().reshape(4, 6).flip(0) + 2 * F.pad(x, (1, 0))[:, :6].roll(1), X),
}


def gradient_times_input(f: Callable[[Tensor], Tensor], x: Tensor, c: Tensor) -> Tensor:
    torch.manual_seed(3)
    (gradient,) = torch.autograd.grad(f(x), x, c)
    return gradient * x.detach()


@pytest.mark.parametrize("name", OPS)
def test_lrp_0_is_gradient_times_input(name: str) -> None:
    f, shape = OPS[name]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    output = f(x)
    c = torch.randn_like(output.detach())
    r = relevance.explain(output, output.detach() * c, rules=ZERO)
    torch.testing.assert_close(r[x], gradient_times_input(f, x, c), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", OPS)
def test_the_value_goes_up_as_it_was(name: str) -> None:
    """Under a sum, the argument travels up through the operation: the share is right only if its value is."""
    f, shape = OPS[name]
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)

    def under_a_sum(x: Tensor) -> Tensor:
        y = f(x)
        return torch.sub(y, y.flip(0) if y.dim() else y, alpha=0.5) + 0.25 * y

    torch.manual_seed(3)
    output = under_a_sum(x)
    c = torch.randn_like(output.detach())
    r = relevance.explain(output, output.detach() * c, rules=ZERO)
    torch.testing.assert_close(r[x], gradient_times_input(under_a_sum, x, c), rtol=1e-8, atol=1e-8)


def test_there_are_enough_operations() -> None:
    assert len(OPS) >= 60


def test_a_cast_passes_relevance_on() -> None:
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    y = x.float().double() + 2 * x.float().flip(0).double()
    r = relevance.explain(y, y.detach(), rules=ZERO)
    assert r[x].dtype == torch.float64
    torch.testing.assert_close(r[x], 3 * x.detach(), rtol=1e-5, atol=1e-5)
