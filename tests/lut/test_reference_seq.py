"""The sequence kernels of the reference against a plain quadruple loop over (b, i, j, t) in float64, and against autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lutetia.lut import kernels
from lutetia.lut.connectivity.anchors import random_anchors
from lutetia.lut.connectivity.meta import SynapseMeta

reference = kernels("reference")
META = SynapseMeta(lr_scale=0.3, min_weight=-1.0, max_weight=1.0)

# B, S, I, O, N_t, N_c, N_pe
SHAPES = [
    (1, 1, 3, 2, 1, 1, 0), (1, 2, 4, 3, 2, 1, 1), (3, 3, 5, 1, 1, 2, 3),
    (2, 17, 6, 3, 2, 2, 2), (1, 7, 7, 5, 3, 5, 0), (3, 6, 5, 2, 2, 3, 4),
]  # fmt: skip


def make(shape: tuple[int, ...]) -> dict[str, Tensor]:
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


def plain_loop(x: Tensor, positions: Tensor, anchors: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Every pair by hand: y as the layer gives it, and a smooth y whose gradients are those of the layer."""
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
                        distances = [abs(float(u)) for u in us]
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
                        sign = 1.0 if float(u) > 0 else -1.0
                        share = 0.5 / (1 + sign * u)
                        share = share - share.detach()
                        row_smooth = row_smooth + share * (weight[t, cell ^ (1 << bit)] - weight[t, cell]).detach()
            hard.append(row_hard)
            smooth.append(row_smooth)
    shape = (batch, length, weight.shape[2])
    return torch.stack(hard).view(shape), torch.stack(smooth).view(shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_plain_loop(shape: tuple[int, ...]) -> None:
    c = make(shape)
    positional_dim, n_inputs = shape[6], shape[2]
    x, positions, weight = (c[name].clone().requires_grad_() for name in ("x", "positions", "weight"))
    hard, smooth = plain_loop(x, positions, c["anchors"], weight)
    dx, dpositions, dweight = torch.autograd.grad(
        smooth, (x, positions, weight), c["grad"], allow_unused=True, materialize_grads=True
    )

    found = reference.check_detectors(c["x"], c["anchors"])
    pe = reference.check_positions(c["positions"])
    y = reference.fill_outputs_seq_fc(c["weight"], found[0], pe[0], positional_dim)
    torch.testing.assert_close(y, hard.detach())
    assert not y[:, 0].any()
    mine = reference.propagate_through_detectors_seq_fc(
        c["grad"], c["weight"], *found, *pe, c["anchors"], n_inputs, positional_dim
    )
    torch.testing.assert_close(mine[0], dx)
    torch.testing.assert_close(mine[1], dpositions)
    gathered = reference.gather_weight_gradients_seq_fc(c["grad"], found[0], pe[0], positional_dim, c["weight"].shape[1])
    torch.testing.assert_close(gathered, dweight)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_by_cells(shape: tuple[int, ...], sums: str) -> None:
    c = make(shape)
    batch, length, *_, n_anchors, positional_dim = shape
    indices, pe = reference.check_detectors_eval(c["x"], c["anchors"]), reference.check_positions_eval(c["positions"])
    stat = reference.fill_firing_stat(indices, pe, positional_dim, n_anchors)
    assert stat.shape == (batch, length, shape[4], 1 << (n_anchors + positional_dim))
    assert torch.equal(stat.sum(-1), torch.arange(length).view(1, -1, 1).expand(indices.shape))  # j pairs for each j
    firings = reference.densify_firing_stat(stat, indices, n_anchors)
    y = reference.fill_outputs_by_firings(c["weight"], firings, batch, length, sums=sums)
    expected = reference.fill_outputs_seq_fc(c["weight"], indices, pe, positional_dim, sums=sums)
    assert torch.equal(y, expected) if sums == "fixed" else torch.allclose(y, expected)


@pytest.mark.parametrize("shape", [*SHAPES, (0, 5, 4, 3, 2, 2, 1)])
@pytest.mark.parametrize("sums", ["float", "fixed"])
def test_pieces_by_cells(shape: tuple[int, ...], sums: str) -> None:
    """The forward pass and both gradients by cells are those of the pairs."""
    c = make(shape)
    positional_dim, n_rows = shape[6], c["weight"].shape[1]
    found, pe = reference.check_detectors(c["x"], c["anchors"]), reference.check_positions(c["positions"])
    forward = (c["weight"], found[0], pe[0], positional_dim)
    backward = (c["grad"], c["weight"], *found, *pe, c["anchors"], shape[2], positional_dim)
    to_weights = (c["grad"], found[0], pe[0], positional_dim, n_rows)
    pairs = [
        reference.fill_outputs_seq_fc(*forward, sums=sums),
        *reference.propagate_through_detectors_seq_fc(*backward, sums=sums),
        reference.gather_weight_gradients_seq_fc(*to_weights, meta=META, sums=sums),
    ]
    cells = [
        reference.fill_outputs_cells_fc(*forward, sums=sums),
        *reference.propagate_through_cells_fc(*backward, sums=sums),
        reference.gather_weight_gradients_cells_fc(*to_weights, meta=META, sums=sums),
    ]
    for mine, expected in zip(cells, pairs, strict=True):
        assert mine.shape == expected.shape
        assert torch.equal(mine, expected) if sums == "fixed" else torch.allclose(mine, expected, rtol=1e-10, atol=1e-12)


def test_a_step_by_cells() -> None:
    c = make(SHAPES[3])
    indices, pe = reference.check_detectors_eval(c["x"], c["anchors"]), reference.check_positions_eval(c["positions"])
    arguments = (c["grad"], indices, pe, SHAPES[3][6], c["weight"].shape[1])
    by_pairs, by_cells = c["weight"].clone(), c["weight"].clone()
    reference.gather_weight_gradients_seq_fc(*arguments, meta=META, external_lr=0.1, weight=by_pairs)
    assert reference.gather_weight_gradients_cells_fc(*arguments, meta=META, external_lr=0.1, weight=by_cells) is by_cells
    assert torch.allclose(by_cells, by_pairs)
    assert by_cells.abs().max() <= 1
