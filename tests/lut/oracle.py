"""LUT layers, for one step and for sequences, written out in float64; autograd takes their gradients from the smooth blend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lutetia.lut import SynapseMeta, Synapses, growth, random_anchors


def closest_call(values: list[float], pairs: list[list[int]]) -> tuple[int, int]:
    """The index of one detector and the number of the pair that nearly changed it."""
    index, best, which = 0, float("inf"), -1
    for r, (a, b) in enumerate(pairs):
        u = values[a] - values[b]
        if u > 0:
            index += 2**r
        if abs(u) < best:
            best, which = abs(u), r
    return index, which


def blend(x: Tensor, weight: Tensor, anchors: Tensor) -> Tensor:
    """x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O], all float64.

    Its value is the hard read. To x it has the slope of (1 - U)·W[index] + U·W[alt], U = 0.5 / (1 + |u|), where index and alt
    are constants; to the weight only that of W[index].
    """
    batch = []
    for row in x:
        y = torch.zeros(weight.shape[2], dtype=torch.float64)
        for t, pairs in enumerate(anchors.tolist()):
            index, which = closest_call(row.tolist(), pairs)
            a, b = pairs[which]
            u = row[a] - row[b]
            size = u if u > 0 else -u  # a zero is on the negative side
            mix = 0.5 / (1 + size)
            difference = (weight[t, index ^ (1 << which)] - weight[t, index]).detach()
            y = y + weight[t, index] + (mix - mix.detach()) * difference
        batch.append(y)
    return torch.stack(batch) if batch else torch.zeros(0, weight.shape[2], dtype=torch.float64) + 0 * weight.sum() + 0 * x.sum()


def gradients(x: Tensor, weight: Tensor, anchors: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y, dx and dW of `blend` for dL/dy = grad [B, O]; any dtypes in, float64 out."""
    x, weight = (tensor.detach().double().requires_grad_() for tensor in (x, weight))
    y = blend(x, weight, anchors)
    dx, dw = torch.autograd.grad(y, [x, weight], grad.double())
    return y.detach(), dx, dw


# B, S, I, O, N_t, N_c, N_pe
SEQUENCES = [
    (1, 1, 3, 2, 1, 1, 0), (1, 2, 4, 3, 2, 1, 1), (3, 3, 5, 1, 1, 2, 3),
    (2, 17, 6, 3, 2, 2, 2), (1, 7, 7, 5, 3, 5, 0), (3, 6, 5, 2, 2, 3, 4),
]  # fmt: skip


def make_sequence(shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Small integers everywhere, halves added to some, so that ties between Q, K and PE, and exact zeros, are common."""
    batch, length, n_inputs, n_outputs, n_detectors, n_anchors, positional_dim = shape
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randint(-2, 3, (batch, length, n_inputs), generator=generator).double()
    x += torch.rand(x.shape, generator=generator, dtype=torch.float64) * (torch.rand(batch, length, 1, generator=generator) < 0.5)
    positions = torch.randint(-2, 3, (length - 1, n_detectors, positional_dim), generator=generator).double() / 2
    n_rows = 1 << (2 * n_anchors + positional_dim)
    return {
        "x": x,
        "positions": positions,
        "anchors": random_anchors(n_inputs, n_detectors, n_anchors, seed=0),
        "weight": torch.randn(n_detectors, n_rows, n_outputs, generator=generator, dtype=torch.float64),
        "grad": torch.randn(batch, length, n_outputs, generator=generator, dtype=torch.float64),
    }


def sequence_blend(x: Tensor, positions: Tensor, anchors: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Every (b, i, j, t) by hand: y [B, S, O] as the layer gives it, and a smooth y whose gradients are those of the layer."""
    (batch, length, _), n_anchors, positional_dim = x.shape, anchors.shape[1], positions.shape[-1]
    hard, smooth = [], []
    for b in range(batch):
        for j in range(length):
            zero = 0 * weight[0, 0]
            row_hard, row_smooth = zero, zero
            for i in range(j):
                for t in range(anchors.shape[0]):
                    u_q, u_k, u_pe = [], [], list(positions[j - i - 1, t])
                    for left, right in anchors[t].tolist():
                        u_q.append(x[b, j, left] - x[b, j, right])
                        u_k.append(x[b, i, left] - x[b, i, right])
                    bits = [*u_pe, *u_k, *u_q]  # lowest bit first
                    cell = sum(int(u > 0) << r for r, u in enumerate(bits))
                    first = {"pe": 0, "k": positional_dim, "q": positional_dim + n_anchors}
                    near = {}
                    for name, us in (("q", u_q), ("k", u_k), ("pe", u_pe)):
                        distances = [abs(float(u.detach())) for u in us]
                        if distances:
                            r = distances.index(min(distances))
                            near[name] = (distances[r], first[name] + r, us[r])
                    flips = ["q" if near["q"][0] < near["k"][0] else "k"]
                    if "pe" in near and near["pe"][0] < min(near["q"][0], near["k"][0]):
                        flips.append("pe")
                    row_hard = row_hard + weight[t, cell]
                    row_smooth = row_smooth + weight[t, cell]  # dW goes to the chosen row alone
                    for name in flips:
                        _, bit, u = near[name]
                        # The slope of the blend, from the side of u > 0 or, at zero, of u < 0; its value cancels.
                        sign = 1.0 if float(u.detach()) > 0 else -1.0
                        share = 0.5 / (1 + sign * u)
                        share = share - share.detach()
                        row_smooth = row_smooth + share * (weight[t, cell ^ (1 << bit)] - weight[t, cell]).detach()
            hard.append(row_hard)
            smooth.append(row_smooth)
    shape = (batch, length, weight.shape[2])
    return torch.stack(hard).view(shape), torch.stack(smooth).view(shape)


WIRINGS = ("fc", "general", "shared")
SHAPES = ((7, 8, 5, 3, 4), (1, 2, 1, 1, 1), (0, 5, 3, 2, 2), (13, 11, 7, 5, 6))  # B, I, O, N_t, N_c


@dataclass
class Case:
    """A layer's arguments, and the dense table [N_t, R, O] they stand for."""

    x: Tensor
    weight: Tensor
    anchors: Tensor
    synapses: Synapses | None
    lr_scale: Tensor  # of every place of the dense table
    grad: Tensor

    def dense(self, flat: Tensor | None = None) -> Tensor:
        flat = self.weight if flat is None else flat
        return flat if self.synapses is None else self.synapses.expand(flat)

    @property
    def options(self) -> dict[str, Any]:
        return {"meta": META} if self.synapses is None else {"synapses": self.synapses}


META = SynapseMeta(lr_scale=0.75)


def make_case(wiring: str, shape: tuple[int, ...] = SHAPES[0], dtype: torch.dtype = torch.float64, seed: int = 0) -> Case:
    """Random numbers; every other row of x holds small integers, so that there are ties and zeros."""
    batch, n_inputs, n_outputs, n_detectors, n_anchors = shape
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, n_inputs, generator=generator, dtype=torch.float64)
    x[::2] = x[::2].round()
    anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed)
    dense = torch.randn(n_detectors, 2**n_anchors, n_outputs, generator=generator, dtype=torch.float64)
    grad = torch.randn(batch, n_outputs, generator=generator, dtype=torch.float64)
    synapses, scale = None, torch.full_like(dense, META.lr_scale)
    if wiring != "fc":
        metas = (SynapseMeta(), SynapseMeta(lr_scale=0.25, min_weight=-0.5, max_weight=1.5))
        synapses = growth.random(n_detectors, n_anchors, n_outputs, 0.6, seed=seed + 1, shared=wiring == "shared", metas=metas)
        scales = torch.tensor([meta.lr_scale for meta in metas], dtype=torch.float64)
        scale = synapses.expand(scales[synapses.weight_meta.long()])
    weight = dense if synapses is None else synapses.flatten(dense)
    return Case(x.to(dtype), weight.to(dtype), anchors, synapses, scale, grad.to(dtype))
