"""`lut_attention`: the layer for sequences as a function of its tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia.errors import ArgumentError, check_choice, check_tensor, fail
from lutetia.lut import attention_policies, backend
from lutetia.lut.algorithm import check_algorithm
from lutetia.lut.anchors import INTEGER_DTYPES, MAX_ANCHORS, check_int
from lutetia.lut.attention_ops import NO_SYNAPSES
from lutetia.lut.functional import DEFAULT_META, FLOATS, GRADIENTS, Wiring
from lutetia.lut.policies import Rate
from lutetia.lut.reference_seq import PRECISIONS
from lutetia.lut.sums import check_sums
from lutetia.lut.synapses import SynapseMeta, Synapses

__all__ = ["lut_attention"]

MAX_BITS = MAX_ANCHORS  # a table has at most 2**24 rows: 2 N_c + N_pe bits


class Options(NamedTuple):
    """How a LUT attention is to run; what the ops take after the tensors, less the backend."""

    algorithm: str = "auto"
    sums: str = "float"
    int_rescaler: float = 1.0
    precision: str = "float32"
    budget: int | None = None

    def check(self, sparse: bool) -> None:
        """Check each, and that they go together."""
        check_algorithm(self.algorithm, sparse)
        check_sums(self.sums, self.int_rescaler)
        check_choice("precision", self.precision, PRECISIONS)
        if self.budget is not None:
            check_int("budget", self.budget, 1, 2**63 - 1)


def lut_attention(
    x: Tensor,
    weight: Tensor,
    anchors: Tensor,
    positions: Tensor,
    *,
    algorithm: str = "auto",
    lengths: Tensor | None = None,
    synapses: Synapses | None = None,
    meta: SynapseMeta = DEFAULT_META,
    gradient: str = "dense",
    sums: str = "float",
    int_rescaler: float = 1.0,
    external_lr: Rate | None = None,
    precision: str = "float32",
    budget: int | None = None,
) -> Tensor:
    """y[j] = Σ_{i<j} Σ_t W[t, Q_j K_i PE_{j-i}]: x [B, S, n_inputs] -> y [B, S, n_outputs], and y[0] = 0.

    weight is [n_detectors, 2**(2 n_anchors + positional_dim), n_outputs], or with `synapses` flat [n_weights]; anchors is int32
    [n_detectors, n_anchors, 2]; positions is [at least S-1, n_detectors, positional_dim], or [.., 1, ..] when all detectors
    share it. Gradients go to x, weight and positions.

    `algorithm` is "pairs" or "cells", which give the same answer, or "auto", the one that should be faster. `lengths`, an integer
    tensor [B], says how long each sequence really is: y is zero past it. `precision` ("float32", "tf32", "bf16") is that of the
    products of cells on CUDA, `budget` how many bytes of scratch cells may use (by default a quarter of what is free).

    `meta`, `gradient`, `sums`, `int_rescaler` and `external_lr` are those of `lut`; a "sparse" gradient holds the rows that were
    read for a y whose gradient is not zero.
    """
    options = Options(algorithm, sums, int_rescaler, precision, budget)
    options.check(synapses is not None)
    check_choice("gradient", gradient, GRADIENTS)
    if not isinstance(meta, SynapseMeta):
        fail("meta", meta, "a SynapseMeta")
    wiring = None if synapses is None else Wiring.of(synapses)
    return run(x, weight, anchors, positions, lengths, wiring, meta, gradient, options, external_lr)


def run(
    x: Tensor,
    weight: Tensor,
    anchors: Tensor,
    positions: Tensor,
    lengths: Tensor | None,
    wiring: Wiring | None,
    meta: SynapseMeta,
    gradient: str,
    options: Options,
    external_lr: Rate | None,
) -> Tensor:
    """`lut_attention` after the checks that a layer makes once."""
    check_tensors(x, weight, anchors, positions, wiring)
    if lengths is not None:
        check_lengths(lengths, x)
    layer = (x, weight, anchors, positions)
    synapses = NO_SYNAPSES if wiring is None else (*wiring.tensors, wiring.header)
    rest = (*options, backend.chosen)
    learning = torch.is_grad_enabled()
    if not (learning and (x.requires_grad or weight.requires_grad or positions.requires_grad)):
        y = torch.ops.lutetia.lut_attention_eval(*layer, *synapses, *rest)
    elif gradient == "dense" or not weight.requires_grad or torch.compiler.is_exporting():
        y = torch.ops.lutetia.lut_attention(*layer, meta.lr_scale, *synapses, *rest)[0]
    elif gradient == "sparse":
        y = attention_policies.attention_with_sparse_gradient(*layer, attention_policies.Setup(synapses, meta, rest))
    else:
        setup = attention_policies.Setup(synapses, meta, rest)
        y = attention_policies.attention_with_step_in_place(*layer, setup, external_lr)
    return y if lengths is None else y.where(_within(lengths, x), 0)


def _within(lengths: Tensor, x: Tensor) -> Tensor:
    """Which positions are part of their sequence: bool [B, S, 1]."""
    return (torch.arange(x.shape[1], device=x.device) < lengths.to(x.device)[:, None]).unsqueeze(-1)


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_tensors(x: Any, weight: Any, anchors: Any, positions: Any, wiring: Wiring | None) -> None:
    """Check that the tensors of a layer fit each other."""
    check_tensor("x", x, ["B", "S", "n_inputs"], FLOATS)
    check_tensor("anchors", anchors, ["n_detectors", "n_anchors", 2], torch.int32, x.device)
    check_tensor("positions", positions, ["max_length - 1", "n_detectors", "positional_dim"], FLOATS, x.device)
    n_detectors, n_anchors, _ = anchors.shape
    if positions.shape[1] not in (1, n_detectors):
        fail("positions", positions, f"shape [max_length - 1, {n_detectors} or 1, positional_dim]")
    n_bits = check_bits(n_anchors, positions.shape[2])
    if not 1 <= x.shape[1] <= positions.shape[0] + 1:
        fail("x", x, f"sequences of 1 to {positions.shape[0] + 1} positions, one more than positions has distances")
    if wiring is None:
        check_tensor("weight", weight, [n_detectors, 1 << n_bits, "n_outputs"], FLOATS, x.device)
        return
    if (wiring.n_detectors, wiring.n_rows) != (n_detectors, 1 << n_bits):
        found = f"{wiring.n_detectors} detectors × {wiring.n_rows} rows"
        fail("synapses", found, f"{n_detectors} detectors × 2**{n_bits} rows, as anchors and positions have")
    check_tensor("weight", weight, [wiring.n_weights], FLOATS, x.device)
    check_tensor("synapses", wiring.tensors[0], device=x.device)


def check_bits(n_anchors: int, positional_dim: int) -> int:
    """How many bits say which row is read: 2 N_c + N_pe."""
    n_bits = 2 * n_anchors + positional_dim
    if n_anchors < 1 or n_bits > MAX_BITS:
        raise ArgumentError(
            f"n_anchors is {n_anchors} and positional_dim {positional_dim}, expected at least one anchor pair and "
            f"2 · n_anchors + positional_dim of at most {MAX_BITS}: a table has no more than 2**{MAX_BITS} rows"
        )
    return n_bits


def check_lengths(lengths: Any, x: Tensor, name: str = "lengths") -> None:
    """Check lengths [B] of the sequences x [B, S, I]; their values only where they can be read without harm."""
    check_tensor(name, lengths, [x.shape[0]], INTEGER_DTYPES)
    if torch.compiler.is_compiling() or (lengths.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    outside = (lengths < 0) | (lengths > x.shape[1])
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise ArgumentError(f"{name} has {int(lengths[row])} in row {row}, expected 0 to {x.shape[1]}")
