"""Reads: with which weights a detector adds two rows of its table to the output.

`reference_reads` says what the four reads are. A call is two ops: what the read makes of the inputs (indices and coefficients,
[B, N_t] each), and the rows of the tables, added with these coefficients. The hard read without table dropout runs on the
kernels of its own instead (`functional.run` without a Read), which know that the coefficients are 1 and 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.errors import check_choice, check_tensor, fail
from lutetia.lut import policies, read_ops, read_policies
from lutetia.lut.backend import TWO_ROWS
from lutetia.lut.policies import Rate
from lutetia.lut.sums import sum_dtype
from lutetia.lut.synapses import SynapseMeta

READS = ("hard", "blend", "confidence", "confidence2")
# What each read learns, and where it starts.
SCALARS: dict[str, dict[str, float]] = {
    "hard": {},
    "blend": {},
    "confidence": {"log_beta": math.log(2.0), "log_gamma": 0.0},
    "confidence2": {"log_beta": math.log(2.0), "log_gamma": 0.0, "log_tau": math.log(0.5)},
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SCALAR_NAMES = ("log_beta", "log_gamma", "log_tau")

assert read_ops  # importing it registers the ops


class Read(NamedTuple):
    """A read, its learned scalars [] (None where it has none), and the probability with which a detector is dropped."""

    name: str = "hard"
    log_beta: Tensor | None = None
    log_gamma: Tensor | None = None
    log_tau: Tensor | None = None
    table_dropout: float = 0.0


def read_of(name: str, scalars: tuple[Any, Any, Any], like: Tensor) -> Read | None:
    """A read with these scalars, and where they start those that are None; None for the hard read. `like` has the device."""
    check_choice("read", name, READS)
    made = []
    for scalar, value in zip(SCALAR_NAMES, scalars, strict=True):
        start = SCALARS[name].get(scalar)
        if value is None and start is not None:
            value = torch.full((), start, device=like.device, dtype=sum_dtype(like))
        elif start is None and value is not None:
            fail(scalar, value, f"None: the {name} read has no such scalar")
        elif value is not None:
            check_tensor(scalar, value, [], FLOATS, like.device)
        made.append(value)
    return None if name == "hard" else Read(name, *made)


def weigh(
    rows: Tensor,
    weight: Tensor,
    anchors: Tensor,
    synapses: tuple[Any, ...],
    meta: SynapseMeta,
    gradient: str,
    options: tuple[str, float, str],
    external_lr: Rate | None,
    read: Read,
) -> Tensor:
    """x [B, I] -> y [B, O]: what `functional.run` calls, with the arguments it has checked, where a read is not plain."""
    grads = torch.is_grad_enabled()
    learns = grads and weight.requires_grad
    scalars = (read.log_beta, read.log_gamma, read.log_tau)
    if not learns and not (grads and _any_learns(rows, *scalars)) and not read.table_dropout:
        if synapses:
            return torch.ops.lutetia.read_eval_sparse(rows, weight, anchors, *scalars, read.name, *synapses, *options)
        return torch.ops.lutetia.read_eval(rows, weight, anchors, *scalars, read.name, *options)
    a, b, indices, alternatives = torch.ops.lutetia.read_detectors(rows, anchors, *scalars, read.name, *options)
    if read.table_dropout:
        kept = torch.rand(a.shape, device=a.device) >= read.table_dropout
        factor = kept.to(a.dtype) / (1 - read.table_dropout)
        a, b = a * factor, (b if read.name == "confidence" else b * factor)
    found = read_policies.RowsRead(indices, alternatives, a, b, read.name in TWO_ROWS)
    dtype = rows.dtype if rows.dtype == weight.dtype else torch.promote_types(rows.dtype, weight.dtype)
    if gradient == "dense" or not learns or torch.compiler.is_exporting():
        if synapses:
            return torch.ops.lutetia.weigh_rows_sparse(weight, *found, dtype, *synapses, *options)
        return torch.ops.lutetia.weigh_rows(weight, *found, dtype, meta.lr_scale, *options)
    call = read_policies.WeightedCall(policies.Call(synapses, meta, options), dtype)
    if gradient == "sparse":
        return read_policies.rows_with_sparse_gradient(weight, found, call)
    return read_policies.rows_with_step_in_place(weight, found, call, external_lr)


def _any_learns(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)
