"""The definition of the kernels of the reads, in plain torch.

A read says with which weights a detector adds two rows of its table: y = Σ_t a_t · W[t, index_t] + b_t · W[t, alt_t], where alt
is the index with the bit of the closest call flipped. With the margins u_r of a detector and the smallest of them, m:

    hard          a = 1          b = 0       with the slopes of `blend`, so that something flows to x
    blend         a = 1 - U      b = U       U = 0.5 / (1 + |m|)
    confidence    a = s          b = 0       s = (Σ_r |u_r|) · exp(γ Σ_r log σ(β |u_r|))
    confidence2   a = s (1 - v)  b = s v     v = σ(-2 |m| / τ)

β, γ and τ are given by their logarithms. A margin of zero is on the negative side, |u| = -u: its slope is -1, as in `hard`.
B batch · I inputs · O outputs · N_t detectors · N_c anchor pairs per detector · R = 2**N_c rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.lut.backend import TWO_ROWS
from lutetia.lut.reference import anchor_deltas, lookup_neurons, pack_bits, rows_of, total
from lutetia.lut.sums import convert_integers_to_floats, fixed_scale, sum_dtype, to_fixed
from lutetia.lut.synapses import SynapseMeta, Synapses

__all__ = [
    "detect_and_read_eval_fc",
    "detect_and_read_eval_sparse",
    "fill_outputs_weighted_fc",
    "fill_outputs_weighted_sparse",
    "gather_weighted_gradients_fc",
    "gather_weighted_gradients_sparse",
    "gather_weighted_rows_fc",
    "gather_weighted_rows_sparse",
    "propagate_through_reads",
    "read_detectors",
    "row_gains_fc",
    "row_gains_sparse",
]

LEARNED = ("confidence", "confidence2")  # the reads that have β and γ


# ---- detect ----------------------------------------------------------------------------------------------------------


class Margins(NamedTuple):
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


def read_detectors(
    x: Tensor,
    anchors: Tensor,
    log_beta: Tensor | None,
    log_gamma: Tensor | None,
    log_tau: Tensor | None,
    *,
    read: str,
    exact: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [B, I], anchors [N_t, N_c, 2], scalars [] -> indices, alternatives int32, a, b, each [B, N_t].

    Where a read has no second row, alternatives and b are empty [0]. With `exact` the coefficients are worked out in float64
    and rounded once, so that every backend has the same.
    """
    margins = _margins(x, anchors, exact)
    none = margins.indices.new_empty(0)
    if read == "confidence":
        s = _confidence(margins, log_beta, log_gamma).s.to(sum_dtype(x))
        return margins.indices, none, s, s.new_empty(0)
    alternatives = margins.indices ^ (1 << margins.which).int()
    if read == "confidence2":
        s, v = _confidence(margins, log_beta, log_gamma).s, _wavering(margins, log_tau)
        a, b = s * (1 - v), s * v
    elif read == "blend":
        b = 0.5 / (1 + margins.closest)
        a = 1 - b
    else:
        a, b = torch.ones_like(margins.closest), torch.zeros_like(margins.closest)
    return margins.indices, alternatives, a.to(sum_dtype(x)), b.to(sum_dtype(x))


def _margins(x: Tensor, anchors: Tensor, exact: bool) -> Margins:
    u = anchor_deltas(x, anchors)
    indices = pack_bits(u > 0)
    u = u.double() if exact else u
    size = u.abs()
    which = size.argmin(-1)  # the first of equals
    return Margins(u, size, size.gather(-1, which[..., None]).squeeze(-1), which, indices)


def _confidence(margins: Margins, log_beta: Any, log_gamma: Any) -> Confidence:
    beta, gamma = (log.to(margins.u.dtype).exp() for log in (log_beta, log_gamma))
    evidence = torch.nn.functional.logsigmoid(beta * margins.size).sum(-1)
    mass, power = margins.size.sum(-1), (gamma * evidence).exp()
    return Confidence(mass * power, mass, power, evidence, torch.sigmoid(-beta * margins.size))


def _wavering(margins: Margins, log_tau: Any) -> Tensor:
    """v = σ(-2 |m| / τ): [B, N_t]."""
    return torch.sigmoid(-2 * margins.closest / log_tau.to(margins.u.dtype).exp())


# ---- forward ---------------------------------------------------------------------------------------------------------


def fill_outputs_weighted_fc(
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    two: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """y = Σ_t a_t · W[t, index_t], and with `two` + b_t · W[t, alt_t].

    weight [N_t, R, O], indices, alternatives, a, b [B, N_t] -> [B, O].
    """
    dtype = sum_dtype(weight, a)
    addends = a.to(dtype)[..., None] * rows_of(weight, indices)
    if two:
        addends = torch.cat([addends, b.to(dtype)[..., None] * rows_of(weight, alternatives)], dim=1)
    return total(addends, 1, sums, int_rescaler)


def fill_outputs_weighted_sparse(
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    synapses: Synapses,
    *,
    two: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """The same where synapses are missing: weight [n_weights], the others [B, N_t] -> [B, O]."""
    options: dict[str, Any] = {"two": two, "sums": sums, "int_rescaler": int_rescaler}
    return fill_outputs_weighted_fc(synapses.expand(weight), indices, alternatives, a, b, **options)


def detect_and_read_eval_fc(
    x: Tensor,
    weight: Tensor,
    anchors: Tensor,
    log_beta: Tensor | None,
    log_gamma: Tensor | None,
    log_tau: Tensor | None,
    *,
    read: str,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """Both steps, nothing kept: x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2], scalars [] -> y [B, O]."""
    found = read_detectors(x, anchors, log_beta, log_gamma, log_tau, read=read, exact=sums == "fixed")
    return fill_outputs_weighted_fc(weight, *found, two=read in TWO_ROWS, sums=sums, int_rescaler=int_rescaler)


def detect_and_read_eval_sparse(
    x: Tensor,
    weight: Tensor,
    anchors: Tensor,
    log_beta: Tensor | None,
    log_gamma: Tensor | None,
    log_tau: Tensor | None,
    synapses: Synapses,
    *,
    read: str,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """The same where synapses are missing: weight [n_weights] -> y [B, O]."""
    found = read_detectors(x, anchors, log_beta, log_gamma, log_tau, read=read, exact=sums == "fixed")
    return fill_outputs_weighted_sparse(weight, *found, synapses, two=read in TWO_ROWS, sums=sums, int_rescaler=int_rescaler)


# ---- backward, to the inputs -----------------------------------------------------------------------------------------


def row_gains_fc(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    *,
    for_b: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """da = g·W[t, index_t] and db = g·W[t, alt_t]: grad [B, O], weight [N_t, R, O], indices [B, N_t] -> twice [B, N_t].

    Without `for_b` the second is empty [0].
    """
    g = grad.to(sum_dtype(grad, weight))[:, None]
    da = total(g * rows_of(weight, indices), 2, sums, int_rescaler)
    if not for_b:
        return da, da.new_empty(0)
    return da, total(g * rows_of(weight, alternatives), 2, sums, int_rescaler)


def row_gains_sparse(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    synapses: Synapses,
    *,
    for_b: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The same where synapses are missing: weight [n_weights]."""
    options: dict[str, Any] = {"for_b": for_b, "sums": sums, "int_rescaler": int_rescaler}
    return row_gains_fc(grad, synapses.expand(weight), indices, alternatives, **options)


def propagate_through_reads(
    x: Tensor,
    anchors: Tensor,
    log_beta: Tensor | None,
    log_gamma: Tensor | None,
    log_tau: Tensor | None,
    da: Tensor,
    db: Tensor,
    *,
    read: str,
    to_x: bool = True,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The gradients of a and b to every anchor, and to log β, log γ, log τ: da, db [B, N_t] -> dx [B, I], [3].

    db is empty [0] where the read has no second row, dx where `to_x` is False.
    """
    dtype = sum_dtype(x)
    m = _margins(x, anchors, sums == "fixed")
    sign = torch.where(m.u > 0, 1.0, -1.0).to(m.u.dtype)
    da, db = da.to(m.u.dtype), db.to(m.u.dtype)
    slopes = torch.zeros_like(m.u)  # dL/d|u|
    scalars = [torch.zeros_like(m.closest)] * 3
    if read in LEARNED:
        c = _confidence(m, log_beta, log_gamma)
        beta, gamma = (log.to(m.u.dtype).exp() for log in (log_beta, log_gamma))  # type: ignore[union-attr]
        ds, v = da, torch.zeros_like(da)
        if read == "confidence2":
            tau, v = log_tau.to(m.u.dtype).exp(), _wavering(m, log_tau)  # type: ignore[union-attr]
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
    dx = _to_anchors((sign * slopes).to(dtype), anchors, x.shape[-1], sums, int_rescaler) if to_x else x.new_empty(0, dtype=dtype)
    return dx, _sum_scalars(torch.stack(scalars).to(dtype), sums, int_rescaler)


def _to_anchors(slopes: Tensor, anchors: Tensor, n_inputs: int, sums: str, int_rescaler: float) -> Tensor:
    """dx[a_r] += slope_r, dx[b_r] -= slope_r: slopes [B, N_t, N_c] -> [B, I]."""
    addends = slopes.flatten(1)
    addends = addends if sums == "float" else to_fixed(addends, int_rescaler)
    left, right = anchors.long().flatten(0, 1).unbind(-1)
    dx = addends.new_zeros(addends.shape[0], n_inputs).index_add_(1, left, addends).index_add_(1, right, -addends)
    return dx if sums == "float" else convert_integers_to_floats(dx, int_rescaler, slopes.dtype)


def _sum_scalars(addends: Tensor, sums: str, int_rescaler: float) -> Tensor:
    """The sums of three times [B, N_t]; fixed ones may pass an int32, since they go over the whole batch."""
    if sums == "float":
        return addends.flatten(1).sum(1)
    units = to_fixed(addends.flatten(1), int_rescaler).sum(1)
    return (units.double() / fixed_scale(int_rescaler)).to(addends.dtype)


# ---- backward, to the weights ----------------------------------------------------------------------------------------


def gather_weighted_gradients_fc(
    grad: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    n_rows: int,
    *,
    two: bool,
    meta: SynapseMeta = SynapseMeta(),
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """dW[t, index_t] += lr_scale · g · a_t, with `two` dW[t, alt_t] += lr_scale · g · b_t.

    grad [B, O], the others [B, N_t] -> [N_t, R, O]; with external_lr >= 0 `weight` takes the step at once and is returned.
    """
    n_detectors, n_outputs, dtype = indices.shape[1], grad.shape[1], sum_dtype(grad, a)
    g = (grad.to(dtype) * meta.lr_scale)[:, None]
    sum_ = grad.new_zeros(n_detectors * n_rows, n_outputs, dtype=dtype if sums == "float" else torch.int64)
    for rows, factor in ((indices, a), (alternatives, b))[: 1 + two]:
        addends = (g * factor.to(dtype)[..., None]).flatten(0, 1)
        sum_.index_add_(0, lookup_neurons(rows, n_rows), addends if sums == "float" else to_fixed(addends, int_rescaler))
    if sums == "fixed":
        sum_ = convert_integers_to_floats(sum_, int_rescaler, dtype)
    gradient = sum_.view(n_detectors, n_rows, n_outputs)
    if external_lr < 0:
        return gradient
    assert weight is not None
    return weight.copy_((weight - external_lr * gradient).clamp(meta.min_weight, meta.max_weight))


def gather_weighted_gradients_sparse(
    grad: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    synapses: Synapses,
    *,
    two: bool,
    external_lr: float = -1.0,
    weight: Tensor | None = None,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> Tensor:
    """The same where synapses are missing -> [n_weights], or the updated weight [n_weights]."""
    gradient = torch.zeros(synapses.n_weights, dtype=sum_dtype(grad, a), device=grad.device)
    tensors, options = (grad, indices, alternatives, a, b), {"sums": sums, "int_rescaler": int_rescaler}
    for number, meta in enumerate(synapses.metas):
        dense = gather_weighted_gradients_fc(*tensors, synapses.n_rows, two=two, meta=meta, **options)  # type: ignore[arg-type]
        gradient = torch.where(synapses.weight_meta == number, synapses.flatten(dense), gradient)
    if external_lr < 0:
        return gradient
    assert weight is not None
    return synapses.clamp_(weight.copy_(weight - external_lr * gradient))


def gather_weighted_rows_fc(
    grad: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    n_rows: int,
    *,
    two: bool,
    meta: SynapseMeta = SynapseMeta(),
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The rows of dW that were looked up: slots t · n_rows + row, int64 [n], rising, and values [n, O]."""
    options: dict[str, Any] = {"two": two, "meta": meta, "sums": sums, "int_rescaler": int_rescaler}
    gradient = gather_weighted_gradients_fc(grad, indices, alternatives, a, b, n_rows, **options)
    slots = _neurons_read(indices, alternatives, n_rows, two)
    return slots, gradient.flatten(0, 1)[slots]


def gather_weighted_rows_sparse(
    grad: Tensor,
    indices: Tensor,
    alternatives: Tensor,
    a: Tensor,
    b: Tensor,
    synapses: Synapses,
    *,
    two: bool,
    sums: str = "float",
    int_rescaler: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The same where synapses are missing: places in weight int64 [n], rising; values [n]."""
    options: dict[str, Any] = {"two": two, "sums": sums, "int_rescaler": int_rescaler}
    gradient = gather_weighted_gradients_sparse(grad, indices, alternatives, a, b, synapses, **options)
    fired = torch.zeros(synapses.n_detectors * synapses.n_rows, 1, device=grad.device)
    fired[_neurons_read(indices, alternatives, synapses.n_rows, two)] = 1
    fired = fired.expand(-1, synapses.n_outputs).reshape(synapses.n_detectors, synapses.n_rows, synapses.n_outputs)
    places = synapses.flatten(fired).nonzero().flatten()
    return places, gradient[places]


def _neurons_read(indices: Tensor, alternatives: Tensor, n_rows: int, two: bool) -> Tensor:
    """The lookup neurons that were read, int64 [n], rising."""
    both = torch.cat([indices, alternatives]) if two else indices
    return lookup_neurons(both, n_rows).unique()
