"""Reads, forward and backward: the definition, in plain torch.

A read defines the weights with which a detector adds two rows of its table: y = Σ_t a_t · W[t, index_t] + b_t · W[t, alt_t],
where alt is the index with the bit of the closest call flipped. With the margins u_r of a detector and the smallest of them, m:

    hard          a = 1          b = 0       with the slopes of `blend`, so that x gets a gradient
    blend         a = 1 - U      b = U       U = 0.5 / (1 + |m|)
    confidence    a = s          b = 0       s = (Σ_r |u_r|) · exp(γ Σ_r log σ(β |u_r|))
    confidence2   a = s (1 - v)  b = s v     v = σ(-2 |m| / τ)

β, γ and τ are given by their logarithms. A margin of zero is on the negative side, |u| = -u: its slope is -1, as in `hard`.
B batch · I inputs · O outputs · N_t detectors · N_c anchor pairs per detector · R = 2**N_c rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lutetia.lut.kernels.protocol import SCALARS, TWO_ROWS, Coefficients, Comparisons, Read
from lutetia.lut.kernels.recorder import kernel
from lutetia.lut.kernels.reference.detect import anchor_deltas, pack_bits
from lutetia.lut.kernels.reference.rows import scatter_to_anchors
from lutetia.lut.sums import Sums, sum_dtype, to_units


class ReadMargins(NamedTuple):
    """What a read is made of; [B, N_t, N_c] or [B, N_t]."""

    u: Tensor
    size: Tensor  # |u|
    closest: Tensor  # |m|
    which: Tensor  # its r, int64
    indices: Tensor  # int32


class Confidence(NamedTuple):
    """s and what it is made of; [B, N_t], but doubt."""

    s: Tensor
    mass: Tensor  # Σ_r |u_r|
    power: Tensor  # exp(γ · evidence)
    evidence: Tensor  # Σ_r log σ(β |u_r|)
    doubt: Tensor  # σ(-β |u_r|), [B, N_t, N_c]


# ---- forward ---------------------------------------------------------------------------------------------------------


@kernel
def read(x: Tensor, comparisons: Comparisons, read: Read, sums: Sums) -> tuple[Tensor, Coefficients]:
    """x [B, I] -> indices int32 and coefficients, [B, N_t] each; `hard` has two rows too, with a = 1 and b = 0.

    With exact sums the coefficients are worked out in float64 and rounded once, so that every backend has the same.
    """
    margins, dtype = _margins(x, comparisons, sums.exact), sum_dtype(x)
    if read.name == "confidence":
        return margins.indices, Coefficients(_confidence(margins, read).s.to(dtype))
    if read.name == "confidence2":
        s, v = _confidence(margins, read).s, _wavering(margins, read)
        a, b = s * (1 - v), s * v
    elif read.name == "blend":
        b = 0.5 / (1 + margins.closest)
        a = 1 - b
    else:
        a, b = torch.ones_like(margins.closest), torch.zeros_like(margins.closest)
    return margins.indices, Coefficients(a.to(dtype), b.to(dtype), margins.indices ^ (1 << margins.which).int())


def rows_that_are_added(coefficients: Coefficients, read: Read) -> Coefficients:
    """The coefficients without a second row whose b is always zero."""
    return coefficients if read.name in TWO_ROWS else Coefficients(coefficients.a)


def _margins(x: Tensor, comparisons: Comparisons, exact: bool) -> ReadMargins:
    u = anchor_deltas(x, comparisons)
    indices = pack_bits(u > 0)
    u = u.double() if exact else u
    size = u.abs()
    which = size.argmin(-1)  # the first of equals
    return ReadMargins(u, size, size.gather(-1, which[..., None]).squeeze(-1), which, indices)


def _scalar(log: Tensor | None, margins: ReadMargins) -> Tensor:
    assert log is not None
    return log.to(margins.u.dtype).exp()


def _confidence(margins: ReadMargins, read: Read) -> Confidence:
    beta, gamma = _scalar(read.log_beta, margins), _scalar(read.log_gamma, margins)
    evidence = torch.nn.functional.logsigmoid(beta * margins.size).sum(-1)
    mass, power = margins.size.sum(-1), (gamma * evidence).exp()
    return Confidence(mass * power, mass, power, evidence, torch.sigmoid(-beta * margins.size))


def _wavering(margins: ReadMargins, read: Read) -> Tensor:
    """v = σ(-2 |m| / τ): [B, N_t]."""
    return torch.sigmoid(-2 * margins.closest / _scalar(read.log_tau, margins))


# ---- backward --------------------------------------------------------------------------------------------------------


@kernel
def send_slopes(
    x: Tensor, comparisons: Comparisons, read: Read, gains: tuple[Tensor, Tensor | None], sums: Sums, to_x: bool
) -> tuple[Tensor | None, Tensor]:
    """The gradients of a and b, [B, N_t] each -> dx [B, I] (None unless `to_x`), and of log β, log γ, log τ: [3]."""
    dtype, m = sum_dtype(x), _margins(x, comparisons, sums.exact)
    da = gains[0].to(m.u.dtype)
    db = torch.zeros_like(da) if gains[1] is None else gains[1].to(m.u.dtype)
    slopes = torch.zeros_like(m.u)  # dL/d|u|
    scalars = [torch.zeros_like(m.closest)] * 3
    if SCALARS[read.name]:
        c, beta, gamma = _confidence(m, read), _scalar(read.log_beta, m), _scalar(read.log_gamma, m)
        ds = da
        if read.name == "confidence2":
            tau, v = _scalar(read.log_tau, m), _wavering(m, read)
            ds = da * (1 - v) + db * v
            dv = c.s * (db - da) * v * (1 - v) * 2 / tau  # dL/d(-|m|)
            slopes.scatter_(-1, m.which[..., None], -dv[..., None])
            scalars[2] = dv * m.closest
        slopes = slopes + (ds * c.power)[..., None] * (1 + (c.mass * gamma * beta)[..., None] * c.doubt)
        scalars[0] = ds * c.s * gamma * beta * (m.size * c.doubt).sum(-1)
        scalars[1] = ds * c.s * gamma * c.evidence
    else:
        near = 1 + m.closest
        slopes.scatter_(-1, m.which[..., None], ((da - db) * 0.5 / (near * near))[..., None])
    dx = None
    if to_x:
        signed = (torch.where(m.u > 0, slopes, -slopes)).to(dtype).flatten(1)
        a, b = (side.flatten().expand_as(signed) for side in comparisons.anchors.long().unbind(-1))
        dx = scatter_to_anchors(signed, a, b, x.shape[-1], sums)
    units = to_units(torch.stack(scalars).to(dtype).flatten(1), sums).sum(1)
    # Fixed ones may pass an int32, since they go over the whole batch.
    return dx, (units.double() / sums.scale).to(dtype) if sums.exact else units
