"""Anchors: what each bit of a detector's index compares.

Anchors are int32 [n_detectors, n_anchors, 2]; bit r of detector t is set when x[a] > x[b], with (a, b) = anchors[t, r].
A second entry b of n_inputs or more stands for a constant: the bit is set when x[a] > thresholds[b - n_inputs].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lutetia._shared.dtypes import FLOATS, INTEGER_DTYPES
from lutetia._shared.memo import Memo, private_copy
from lutetia._shared.sampling import draw_pairs
from lutetia.errors import MAX_INT32, ArgumentError, check_int, check_tensor, fail
from lutetia.lut.sums import sum_dtype

MAX_ANCHORS = 24  # a table has at most 2**24 rows
PLAIN = (torch.Tensor, torch.nn.Parameter)  # and no tensors that only stand for others


class Comparisons(NamedTuple):
    """What detectors compare: anchors int32 [N_t, N_c, 2], and the constants [n] that they name by I, I + 1, ..., if any."""

    anchors: torch.Tensor
    thresholds: torch.Tensor | None = None


def check_anchors(anchors: torch.Tensor, n_inputs: int, n_thresholds: int = 0) -> None:
    """Check anchors, any integer dtype [n_detectors, n_anchors, 2]: in range, the two of a pair different.

    With `n_thresholds` constants the second of a pair may be n_inputs to n_inputs + n_thresholds - 1.
    """
    check_int("n_inputs", n_inputs, 1 if n_thresholds else 2)
    check_tensor("anchors", anchors, ["n_detectors", "n_anchors", 2], INTEGER_DTYPES)
    if anchors.is_meta:
        fail("anchors", anchors, "a tensor that has memory")
    if not 1 <= anchors.shape[1] <= MAX_ANCHORS:
        fail("anchors", anchors, f"1 to {MAX_ANCHORS} anchor pairs per detector")
    ends = torch.tensor([n_inputs, n_inputs + n_thresholds], device=anchors.device)
    outside = ((anchors < 0) | (anchors >= ends)).any(dim=2)
    bad = outside | (anchors[:, :, 0] == anchors[:, :, 1])
    if not bad.any():
        return
    detector, anchor = bad.nonzero()[0].tolist()
    a, b = anchors[detector, anchor].tolist()
    expected = f"inputs from 0 to {n_inputs - 1}" if outside[detector, anchor] else "two different inputs"
    if n_thresholds and expected != "two different inputs":
        expected += f", or for the second {n_inputs} to {n_inputs + n_thresholds - 1}, one of {n_thresholds} thresholds"
    raise ArgumentError(f"anchor {anchor} of detector {detector} compares inputs {a} and {b}, expected {expected}")


def check_thresholds(thresholds: torch.Tensor, device: torch.device | None = None) -> None:
    """Check the constants that anchors may name: floating point [n_thresholds], finite."""
    check_tensor("thresholds", thresholds, ["n_thresholds"], FLOATS, device)
    if not thresholds.is_meta and not bool(thresholds.isfinite().all()):
        number = int((~thresholds.isfinite()).nonzero()[0])
        raise ArgumentError(f"threshold {number} is {float(thresholds[number])}, expected a finite number")


def checked_anchors(anchors: torch.Tensor, n_inputs: int, thresholds: torch.Tensor | None = None) -> torch.Tensor:
    """The anchors, int32 and contiguous, checked once per tensor and version, with the thresholds: kernels trust them.

    On CUDA they are a copy of those that were checked. The CPU's loops compare as they read, and take the anchors themselves.
    """
    if thresholds is None:
        copy = anchors_seen.get((anchors,), n_inputs, is_captured)
    else:
        copy = thresholds_seen.get((anchors, thresholds), n_inputs, is_captured)
    anchors = anchors if copy is None else copy
    if anchors.dtype != torch.int32:
        anchors = anchors.to(torch.int32)
    return anchors if anchors.is_contiguous() else anchors.contiguous()


def is_captured(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph records what is done with a tensor: then no value can be read, because nothing has run yet."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _check_once(anchors: torch.Tensor, n_inputs: int, n_thresholds: int = 0) -> torch.Tensor | None:
    """Check anchors; on CUDA what is checked is a copy, which kernels read."""
    copy = private_copy(anchors) if type(anchors) in PLAIN and anchors.is_cuda else None
    check_anchors(anchors if copy is None else copy, n_inputs, n_thresholds)
    return copy


def _check_both(anchors: torch.Tensor, thresholds: torch.Tensor, n_inputs: int) -> torch.Tensor | None:
    check_thresholds(thresholds, anchors.device)
    return _check_once(anchors, n_inputs, len(thresholds))


anchors_seen = Memo(_check_once, trusting=False)
thresholds_seen = Memo(_check_both, trusting=False)


def comparisons_of(x: torch.Tensor, anchors: torch.Tensor, thresholds: torch.Tensor | None = None) -> Comparisons:
    """What kernels compare in x [..., I]: anchors that were checked, and contiguous thresholds in the sum dtype of x."""
    anchors = checked_anchors(anchors, x.shape[-1], thresholds)
    if thresholds is not None and not (thresholds.dtype == sum_dtype(x) and thresholds.is_contiguous()):
        thresholds = thresholds.to(sum_dtype(x)).contiguous()
    return Comparisons(anchors, thresholds)


def random_anchors(
    n_inputs: int,
    n_detectors: int,
    n_anchors: int,
    seed: int | None = None,
    device: torch.device | str | None = None,
    fields: torch.Tensor | None = None,
) -> torch.Tensor:
    """Draw anchors, int32 [n_detectors, n_anchors, 2], from all inputs or from each detector's own field.

    `fields`, integer [n_detectors, field_size], holds the candidate inputs of each detector, -1 where it has fewer.
    The pairs of one detector are distinct, whichever way round, until the candidates have no more pairs to give;
    then they repeat. Without a seed the draw follows torch's global generator.
    """
    check_int("n_inputs", n_inputs, 2)
    check_int("n_detectors", n_detectors, 1)
    check_int("n_anchors", n_anchors, 1, MAX_ANCHORS)
    if seed is None:
        seed = int(torch.randint(MAX_INT32, (), device="cpu"))
    check_int("seed", seed, 0, 2**63 - 1)
    rng = np.random.default_rng(seed)
    if fields is None:
        sizes = np.full(n_detectors, n_inputs, dtype=np.int64)
    else:
        candidates, sizes = _candidates(fields, n_inputs, n_detectors)

    pairs = draw_pairs(rng, sizes, n_anchors)
    if fields is not None:
        # The valid candidates stand at the end of each sorted row, after the padding.
        columns = pairs.reshape(n_detectors, -1) + (candidates.shape[1] - sizes)[:, None]
        pairs = np.take_along_axis(candidates, columns, axis=1).reshape(pairs.shape)
    return torch.from_numpy(pairs.astype(np.int32)).to(device)


def _candidates(fields: torch.Tensor, n_inputs: int, n_detectors: int) -> tuple[np.ndarray, np.ndarray]:
    """Each detector's field sorted, padding first [n_detectors, field_size], and how many inputs it holds [n_detectors]."""
    check_tensor("fields", fields, [n_detectors, "field_size"], INTEGER_DTYPES)
    candidates = np.sort(fields.cpu().numpy().astype(np.int64), axis=1)
    outside = (candidates < -1) | (candidates >= n_inputs)
    if outside.any():
        t, k = np.argwhere(outside)[0]
        raise ArgumentError(f"the field of detector {t} holds input {candidates[t, k]}, expected -1 to {n_inputs - 1}")
    repeated = (candidates[:, 1:] == candidates[:, :-1]) & (candidates[:, 1:] >= 0)
    if repeated.any():
        t, k = np.argwhere(repeated)[0]
        raise ArgumentError(f"the field of detector {t} holds input {candidates[t, k]} twice, expected distinct inputs")
    sizes = (candidates >= 0).sum(axis=1)
    if (sizes < 2).any():
        t = int(np.argmax(sizes < 2))
        raise ArgumentError(f"the field of detector {t} holds {sizes[t]} inputs, expected at least 2")
    return candidates, sizes
