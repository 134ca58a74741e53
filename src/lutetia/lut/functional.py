"""`lut`: the layer as a function of its tensors."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lutetia._uncompiled import constant_result
from lutetia.errors import check_choice, check_tensor, fail
from lutetia.lut import backend, policies, reads
from lutetia.lut.anchors import MAX_ANCHORS
from lutetia.lut.policies import Rate
from lutetia.lut.sums import check_sums
from lutetia.lut.synapses import SynapseMeta, Synapses

__all__ = ["lut"]

GRADIENTS = ("dense", "sparse", "in_place")
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DEFAULT_META = SynapseMeta()


def lut(
    x: Tensor,
    weight: Tensor,
    anchors: Tensor,
    *,
    synapses: Synapses | None = None,
    meta: SynapseMeta = DEFAULT_META,
    gradient: str = "dense",
    sums: str = "float",
    int_rescaler: float = 1.0,
    external_lr: Rate | None = None,
    read: str = "hard",
    log_beta: Tensor | None = None,
    log_gamma: Tensor | None = None,
    log_tau: Tensor | None = None,
) -> Tensor:
    """y = Σ_t W[t, index_t]: x [..., n_inputs] -> y [..., n_outputs].

    weight is [n_detectors, 2**n_anchors, n_outputs], or with `synapses` flat [n_weights]; anchors is int32
    [n_detectors, n_anchors, 2]. y has the dtype to which those of x and weight promote; autocast changes neither.

    `meta` is that of a fully connected layer (synapses carry their own). `gradient` says how the weight learns:

    - "dense": its gradient is a tensor like it.
    - "sparse": its gradient is a coalesced COO tensor of the rows that were read, for SGD and SparseAdam: sparse over
      detector and row, dense over the outputs (a flat weight is sparse throughout).
    - "in_place": it has no gradient. Each backward pass, when all of it is done, ends with
      `weight -= external_lr · lr_scale · gradient`, clamped to the bounds of the meta; `external_lr` is a number, or a function
      asked each time. A weight used twice in a graph takes one step with the sum, and what flows on to x comes from the
      weights as they were before. Every backward pass is a step, so accumulation over several takes several; without
      gradients (torch.no_grad, torch.autograd.grad for x alone) there is none; a second pass over a retained graph is refused
      by autograd where it would need the weights that have changed. Processes do not exchange these steps.

    `read` ("hard", "blend", "confidence", "confidence2") says with which weights a detector adds the row it chose and that row's
    nearest neighbour. The two with confidence take the logarithms of their learned scalars, tensors []: log_beta and log_gamma,
    and log_tau for "confidence2"; without them these are where learning starts, log 2, 0 and log 0.5.

    torch.compile takes "dense" into its graph and breaks the graph around the other two; torch.export treats all as "dense".
    With `sums="fixed"` every addend is rounded to a multiple of 1 / ((2**20 - 1) · int_rescaler) and the result is the same bit
    for bit on every backend. NaN in x is greater than nothing and passes unseen, unless `lutetia.debug` is on.
    """
    check_choice("gradient", gradient, GRADIENTS)
    check_sums(sums, int_rescaler)
    wiring = None if synapses is None else Wiring.of(synapses)
    how = reads.read_of(read, (log_beta, log_gamma, log_tau), x)
    return run(x, weight, anchors, wiring, meta, gradient, sums, int_rescaler, external_lr, how)


class Wiring(NamedTuple):
    """Synapses as the ops take them, with the sizes that are checked at each call."""

    tensors: tuple[Tensor, Tensor, Tensor]
    header: str
    n_detectors: int
    n_rows: int
    n_weights: int

    @staticmethod
    def of(synapses: Synapses) -> Wiring:
        """Those of an object."""
        tensors = (synapses.owner_start, synapses.owner_targets, synapses.owner_meta)
        return Wiring(tensors, header_of(synapses), synapses.n_detectors, synapses.n_rows, synapses.n_weights)


@constant_result
def header_of(synapses: Synapses) -> str:
    """All of the synapses but the tensors, as text."""
    return json.dumps(synapses.header())


def run(
    x: Tensor,
    weight: Tensor,
    anchors: Tensor,
    wiring: Wiring | None,
    meta: SynapseMeta,
    gradient: str,
    sums: str,
    int_rescaler: float,
    external_lr: Rate | None,
    read: reads.Read | None = None,
) -> Tensor:
    """`lut` after the checks that a layer makes once: x [..., n_inputs] -> y [..., n_outputs]; no `read` is the hard one."""
    _check_tensors(x, weight, anchors, wiring)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    synapses = () if wiring is None else (*wiring.tensors, wiring.header)
    options = (sums, int_rescaler, backend.chosen)
    learns = weight.requires_grad and torch.is_grad_enabled()
    if read is not None:
        y = reads.weigh(rows, weight, anchors, synapses, meta, gradient, options, external_lr, read)
    elif not learns and not (x.requires_grad and torch.is_grad_enabled()):
        y = _lut_eval(rows, weight, anchors, synapses, options)
    elif gradient == "dense" or not learns or torch.compiler.is_exporting():
        y = _lut_dense(rows, weight, anchors, synapses, meta, options)
    elif gradient == "sparse":
        y = policies.lut_with_sparse_gradient(rows, weight, anchors, policies.Call(synapses, meta, options))
    else:
        y = policies.lut_with_step_in_place(rows, weight, anchors, policies.Call(synapses, meta, options), external_lr)
    return y if x.dim() == 2 else y.view(*x.shape[:-1], y.shape[-1])


def _lut_eval(rows: Tensor, weight: Tensor, anchors: Tensor, synapses: tuple[Any, ...], options: tuple[Any, ...]) -> Tensor:
    if synapses:
        return torch.ops.lutetia.lut_eval_sparse(rows, weight, anchors, *synapses, *options)
    return torch.ops.lutetia.lut_eval(rows, weight, anchors, *options)


def _lut_dense(
    rows: Tensor, weight: Tensor, anchors: Tensor, synapses: tuple[Any, ...], meta: SynapseMeta, options: tuple[Any, ...]
) -> Tensor:
    if synapses:
        return torch.ops.lutetia.lut_sparse(rows, weight, anchors, *synapses, *options)[0]
    return torch.ops.lutetia.lut(rows, weight, anchors, meta.lr_scale, *options)[0]


def _check_tensors(x: Tensor, weight: Tensor, anchors: Tensor, wiring: Wiring | None) -> None:
    """One look when all is well; what is wrong is worked out only then."""
    if not _fit(x, weight, anchors, wiring):
        _explain(x, weight, anchors, wiring)


def _fit(x: Any, weight: Any, anchors: Any, wiring: Wiring | None) -> bool:
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor) and isinstance(anchors, Tensor)):
        return False
    device, shape = x.device, anchors.shape
    if weight.device != device or anchors.device != device or anchors.dtype != torch.int32 or len(shape) != 3 or shape[2] != 2:
        return False
    if x.dtype not in FLOATS or weight.dtype not in FLOATS or not x.dim() or not 1 <= shape[1] <= MAX_ANCHORS:
        return False
    if wiring is None:
        return weight.dim() == 3 and weight.shape[0] == shape[0] and weight.shape[1] == 1 << shape[1]
    if wiring.n_detectors != shape[0] or wiring.n_rows != 1 << shape[1] or wiring.tensors[0].device != device:
        return False
    return weight.dim() == 1 and weight.shape[0] == wiring.n_weights


def _explain(x: Any, weight: Any, anchors: Any, wiring: Wiring | None) -> None:
    """Raise the error that says what does not fit."""
    check_tensor("x", x, ["...", "n_inputs"], FLOATS)
    check_tensor("anchors", anchors, ["n_detectors", "n_anchors", 2], torch.int32, x.device)
    n_detectors, n_anchors = anchors.shape[:2]
    if not 1 <= n_anchors <= MAX_ANCHORS:
        fail("anchors", anchors, f"1 to {MAX_ANCHORS} anchor pairs per detector")
    if wiring is None:
        check_tensor("weight", weight, [n_detectors, 2**n_anchors, "n_outputs"], FLOATS, x.device)
        return
    sizes = f"{wiring.n_detectors} detectors × {wiring.n_rows} rows"
    if wiring.n_detectors != n_detectors or wiring.n_rows != 2**n_anchors:
        fail("synapses", sizes, f"{n_detectors} detectors × {2**n_anchors} rows, as anchors have")
    check_tensor("weight", weight, [wiring.n_weights], FLOATS, x.device)
    check_tensor("synapses", wiring.tensors[0], device=x.device)
