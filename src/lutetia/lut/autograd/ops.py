"""The layers as torch.library ops, so that torch.compile, torch.export and autograd know them.

    lut_eval, read_eval, lut_attention_eval    no gradients: only y
    lut, lut_attention                         training: y, and `Detected`
    read_detectors, weigh_rows                 a soft read in two ops: its coefficients, then the weighted rows
    ..._gradients                              the backward passes

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs · N_pe positional bits · R rows.
All end with the arguments of `how.HOW`. Only the training ops have an autograd formula, for one costs 4 µs a call even when no
gradient is wanted. What the formulas keep is in `saved`.
"""

from __future__ import annotations

from collections.abc import Sequence as Numbers
from functools import partial
from typing import Any

import torch
from torch import Tensor

import lutetia
from lutetia import flow
from lutetia._shared import graph_calls, ops
from lutetia._shared.memo import trusted
from lutetia._shared.replay import Replayed
from lutetia.errors import ArgumentError
from lutetia.lut.algorithm import choose
from lutetia.lut.autograd.how import HOW, How, how_of, sizes_of
from lutetia.lut.autograd.quick import prepare, prepare_attention, quick_for
from lutetia.lut.connectivity.anchors import Comparisons, comparisons_of
from lutetia.lut.kernels.cuda import is_by_detector, keeps_by_detector, keeps_hard_by_detector, like
from lutetia.lut.kernels.protocol import FLOAT, Coefficients, Connectivity, Detected, Full, Into, Read, Sequence, sum_dtype

LOGS = "Tensor? log_beta, Tensor? log_gamma, Tensor? log_tau"
COMPARING = f"{HOW}, Tensor? thresholds=None"  # of ops that compare inputs; a default is not handed to an implementation
STEP = "Tensor x, Tensor weight, Tensor anchors"
LAYER = f"{STEP}, Tensor positions"
DETECTED = "Tensor indices, Tensor min_delta, Tensor min_delta_index"
TWO = "(Tensor, Tensor)"
REPLAY = ops.Replay(("anchors", "start", "targets", "meta", "thresholds"), lambda: lutetia.debug or flow.recording())
define = partial(ops.define, replay=REPLAY)
PE_DETECTED = "Tensor pe_indices, Tensor pe_min_delta, Tensor pe_min_delta_index"


def ready(x: Tensor, anchors: Tensor, thresholds: Tensor | None = None) -> Comparisons:
    """Checked comparisons; and with `lutetia.debug`, a search for NaN in x, which compares as not greater."""
    if lutetia.debug and bool(x.isnan().any()):
        flat = x.flatten(0, -2)
        row = int(flat.isnan().any(-1).nonzero()[0])
        raise ArgumentError(f"x has NaN in row {row} of {flat.shape[0]}, expected numbers: NaN compares as not greater")
    return comparisons_of(x, anchors, thresholds)


def output_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of y."""
    return x.dtype if x.dtype == weight.dtype else torch.promote_types(x.dtype, weight.dtype)


def n_outputs_of(weight: Tensor, how: How) -> int:
    """O, from weight [N_t, R, O] or from the header of synapses."""
    return sizes_of(how.header).n_outputs if how.header else weight.shape[2]


def told(rest: Numbers[Any], shape: Numbers[int]) -> tuple[How, Connectivity]:
    """The four arguments that all ops have, parsed: options, and the connectivity of a weight of this shape."""
    how = how_of(rest[3])
    return how, how.connectivity(rest[:3], shape)


def solid(tensor: Tensor) -> Tensor:
    """The tensor, contiguous; checking first is faster."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def laid(tensor: Tensor) -> Tensor:
    """`Detected`, contiguous; by detector only where CUDA kernels read it."""
    return tensor if tensor.is_contiguous() or (tensor.is_cuda and is_by_detector(tensor)) else tensor.contiguous()


def by_detector(x: Tensor, anchors: Tensor, rest: Numbers[Any], weight: Tensor | None = None) -> bool:
    """Whether an op keeps what it finds by detector; `weight` is that of a hard read, which is decided by it too.

    `rest` are the arguments that all ops have, and thresholds, if any.
    """
    how, thresholds = how_of(rest[3]), rest[4] if len(rest) > 4 else None
    if how.backend not in ("", "triton"):
        return False
    if weight is not None:
        return keeps_hard_by_detector(x, anchors, (weight, n_outputs_of(weight, how)), how.sums.exact, thresholds)
    return how.read != "hard" and keeps_by_detector(x, anchors, how.sums.exact, thresholds)


# ---- one step --------------------------------------------------------------------------------------------------------


def detect_and_fill(
    x: Tensor, layer: tuple[Tensor, Tensor], how: How, connectivity: Connectivity, thresholds: Tensor | None, train: bool
) -> tuple[Tensor, Any]:
    """x [B, I]; layer: weight [N_t, R, O] or [n_weights] and anchors [N_t, N_c, 2] -> y [B, O], and `Detected`."""
    weight, anchors = layer
    quick = quick_for(x, weight, anchors, connectivity) if thresholds is None and how.sums == FLOAT else None
    if quick is not None and (quick.trains or not train):
        room = quick.launches.room(x) if train else None
        y = quick.launches.fill(x, weight, room)
        if y is not None:
            return y, room
    comparisons = ready(x, anchors, thresholds)
    y, detected = how.kernels(x).detect_and_fill(solid(x), solid(weight), comparisons, connectivity, how.sums, train)
    if thresholds is None:
        prepare(x, layer, connectivity, how.sums)
    return y.to(output_dtype(x, weight)), detected


def _y_fake(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    how = how_of(next(each for each in rest if isinstance(each, str)))
    return x.new_empty((*x.shape[:-1], n_outputs_of(weight, how)), dtype=output_dtype(x, weight))


def _detected_fake(x: Tensor, shape: tuple[int, ...], columns: bool = False) -> list[Tensor]:
    return [like(x.new_empty(shape, dtype=dtype), columns) for dtype in (torch.int32, sum_dtype(x), torch.int32)]


def _lut_fake(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    detected = _detected_fake(x, (x.shape[0], anchors.shape[0]), by_detector(x, anchors, rest, weight))
    return _y_fake(x, weight, anchors, *rest), *detected


@define(f"lut_eval({STEP}, {COMPARING}) -> Tensor", _y_fake)
def _lut_eval(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    """x [B, I], weight [N_t, R, O] or [n_weights], anchors [N_t, N_c, 2] -> y [B, O]."""
    return detect_and_fill(x, (weight, anchors), *told(rest, weight.shape), rest[4] if len(rest) > 4 else None, False)[0]


@define(f"lut({STEP}, {COMPARING}) -> (Tensor, Tensor, Tensor, Tensor)", _lut_fake)
def _lut(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The same, and indices, min_delta, min_delta_index [B, N_t]."""
    thresholds = rest[4] if len(rest) > 4 else None
    y, detected = detect_and_fill(x, (weight, anchors), *told(rest, weight.shape), thresholds, True)
    if by_detector(x, anchors, rest, weight):
        detected = [like(each, True) for each in detected]
    return y, *detected


@define(
    "lut_weight_gradients(Tensor grad, Tensor indices, Tensor? a, Tensor? b, Tensor? alternatives, Tensor? pe_indices, "
    f"int n_anchors, int positional_dim, SymInt[] size, ScalarType dtype, {HOW}) -> Tensor",
    lambda grad, indices, *rest: grad.new_empty(rest[6], dtype=rest[7]),
)
def _lut_weight_gradients(grad: Tensor, indices: Tensor, *rest: Any) -> Tensor:
    """grad [B, O], indices, a, b, alternatives [B, N_t] or None, ..., the size of the weight, dtype -> dW.

    Of sequences: grad [B, S, O], indices [B, S, N_t], PE indices [S-1, N_t], N_c and N_pe.
    """
    a, b, alternatives, pe_indices, n_anchors, positional_dim, size, dtype = rest[:8]
    how, connectivity = told(rest[8:], size)
    if pe_indices is not None:
        sequence = Sequence(Detected(solid(indices)), Detected(solid(pe_indices)), n_anchors, positional_dim)
        return gather_sequence(solid(grad), sequence, how, connectivity).to(dtype)
    coefficients = None if a is None else Coefficients(laid(a), None if b is None else laid(b), alternatives)
    return how.kernels(grad).gather_rows(solid(grad), connectivity, laid(indices), coefficients, how.sums, None).to(dtype)


@define(
    f"lut_gradients(Tensor grad, Tensor weight, {DETECTED}, Tensor anchors, SymInt n_inputs, ScalarType dtype, bool to_weight, "
    f"{HOW}) -> (Tensor, Tensor)",
    lambda grad, weight, *rest: (
        grad.new_empty((grad.shape[0], rest[4]), dtype=rest[5]),
        weight.new_empty(weight.shape if rest[6] else 0),
    ),
)
def _lut_gradients(grad: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """grad [B, O], weight, then indices, min_delta, min_delta_index [B, N_t], anchors, n_inputs, dtype -> dx [B, I], dW.

    Of one op, where a compiled graph would call two one after the other. Without `to_weight` dW is empty.
    """
    *found, anchors, n_inputs, dtype, to_weight = rest[:7]
    how, connectivity = told(rest[7:], weight.shape)
    detected, run = Detected(*map(laid, found)), how.kernels(grad).propagate
    dx = run(solid(grad), solid(weight), connectivity, detected, solid(trusted(anchors)), n_inputs, how.sums).to(dtype)
    if not to_weight:
        return dx, weight.new_empty(0)
    indices = (found[0], None, None, None, None, 0, 0)
    return dx, _lut_weight_gradients(grad, *indices, weight.shape, weight.dtype, *rest[7:])


# ---- reads -----------------------------------------------------------------------------------------------------------


def _reading(rest: Numbers[Any]) -> tuple[Read, Numbers[Any], How, Tensor | None]:
    """The arguments of an op that begin with the scalars of a read: that read, all that follow them, options, thresholds."""
    how = how_of(rest[6])
    return Read(how.read, *rest[:3]), rest[3:], how, rest[7] if len(rest) > 7 else None


@define(f"read_eval({STEP}, {LOGS}, {COMPARING}) -> Tensor", _y_fake)
def _read_eval(x: Tensor, weight: Tensor, anchors: Tensor, *rest: Any) -> Tensor:
    """x [B, I], weight, anchors [N_t, N_c, 2], three scalars [] or None -> y [B, O]."""
    read, wires, how, thresholds = _reading(rest)
    connectivity = how.connectivity(wires[:3], weight.shape)
    tensors = (solid(x), solid(weight), ready(x, anchors, thresholds))
    return how.kernels(x).read_and_fill(*tensors, connectivity, read, how.sums).to(output_dtype(x, weight))


def _read_detectors_fake(x: Tensor, anchors: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    shape, columns = (x.shape[0], anchors.shape[0]), by_detector(x, anchors, rest[3:])
    a, indices = (like(x.new_empty(shape, dtype=dtype), columns) for dtype in (sum_dtype(x), torch.int32))
    if _reading(rest)[0].name == "confidence":
        return a, a.new_empty(0), indices, indices.new_empty(0)
    return a, torch.empty_like(a), indices, torch.empty_like(indices)


@define(
    f"read_detectors(Tensor x, Tensor anchors, {LOGS}, {COMPARING}) -> (Tensor, Tensor, Tensor, Tensor)", _read_detectors_fake
)
def _read_detectors(x: Tensor, anchors: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """x [B, I], anchors, three scalars [] or None -> a, b, indices, alternatives [B, N_t]; b and the last may be empty."""
    read, given, how, thresholds = _reading(rest)
    indices, (a, b, alternatives) = how.kernels(x).read(solid(x), ready(x, anchors, thresholds), read, how.sums)
    if alternatives is None or b is None:
        b, alternatives = a.new_empty(0), indices.new_empty(0)
    if by_detector(x, anchors, given):
        return tuple(like(each, True) if each.dim() == 2 else each for each in (a, b, indices, alternatives))
    return a, b, indices, alternatives


def _read_detectors_gradients_fake(x: Tensor, anchors: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    dx = torch.empty_like(x, memory_format=torch.contiguous_format) if rest[5] else x.new_empty(0)
    return dx, x.new_empty(3, dtype=sum_dtype(x))


@define(
    f"read_detectors_gradients(Tensor x, Tensor anchors, {LOGS}, Tensor? da, Tensor? db, bool to_x, {COMPARING}) "
    "-> (Tensor, Tensor)",
    _read_detectors_gradients_fake,
)
def _read_detectors_gradients(x: Tensor, anchors: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Three scalars, da, db [B, N_t] or None, to_x -> dx [B, I] (empty unless to_x), and the gradients of the scalars [3]."""
    (da, db, to_x), (read, _, how, thresholds) = rest[3:6], _reading((*rest[:3], *rest[6:]))
    gains = (laid(da if da is not None else torch.zeros_like(db)), None if db is None else laid(db))
    comparisons = comparisons_of(x, anchors, thresholds)
    dx, learned = how.kernels(x).send_slopes(solid(x), comparisons, read, gains, how.sums, to_x)
    return x.new_empty(0) if dx is None else dx.to(x.dtype), learned


@define(
    f"weigh_rows(Tensor weight, Tensor indices, Tensor alternatives, Tensor a, Tensor b, bool two, ScalarType dtype, {HOW}) "
    "-> Tensor",
    lambda weight, indices, *rest: weight.new_empty((indices.shape[0], n_outputs_of(weight, how_of(rest[-1]))), dtype=rest[4]),
)
def _weigh_rows(weight: Tensor, indices: Tensor, *rest: Any) -> Tensor:
    """weight, indices [B, N_t], then alternatives, a, b [B, N_t], whether there are two rows, dtype -> y [B, O]."""
    alternatives, a, b, two, dtype = rest[:5]
    how, connectivity = told(rest[5:], weight.shape)
    coefficients = Coefficients(laid(a), laid(b), laid(alternatives)) if two else Coefficients(laid(a))
    return how.kernels(weight).fill_rows(solid(weight), connectivity, laid(indices), coefficients, how.sums).to(dtype)


def _weigh_rows_gradients_fake(grad: Tensor, weight: Tensor, indices: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    dtype, columns = sum_dtype(grad, weight), indices.is_cuda and is_by_detector(indices)
    da = like(grad.new_empty(indices.shape, dtype=dtype), columns)
    db = torch.empty_like(da) if rest[3] else da.new_empty(0)
    return da, db, weight.new_empty(weight.shape if rest[5] else 0)


@define(
    "weigh_rows_gradients(Tensor grad, Tensor weight, Tensor indices, Tensor? alternatives, Tensor a, Tensor? b, bool to_b, "
    f"bool two, bool to_weight, {HOW}) -> (Tensor, Tensor, Tensor)",
    _weigh_rows_gradients_fake,
)
def _weigh_rows_gradients(grad: Tensor, weight: Tensor, indices: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """grad [B, O], weight, indices, alternatives, a, b [B, N_t] -> da, db [B, N_t], and dW.

    db is empty unless `to_b`, dW unless `to_weight`; `two` says whether the second row was added.
    """
    (alternatives, a, b, to_b, two, to_weight), (how, connectivity) = rest[:6], told(rest[6:], weight.shape)
    rows = (laid(indices), laid(alternatives) if to_b else None)
    da, db = how.kernels(grad).row_gains(solid(grad), solid(weight), connectivity, rows, how.sums)
    if indices.is_cuda and is_by_detector(rows[0]):
        da, db = like(da, True), None if db is None else like(db, True)
    dw = weight.new_empty(0)
    if to_weight:
        coefficients = (a, b, alternatives if two else None, None, 0, 0)
        dw = _lut_weight_gradients(grad, indices, *coefficients, weight.shape, weight.dtype, *rest[6:])
    return da, da.new_empty(0) if db is None else db, dw


# ---- sequences -------------------------------------------------------------------------------------------------------
# L - 1 distances have a position. The ops cut `positions` themselves: a graph that holds a slice of S - 1 rows cannot have S = 2.
# Which algorithm "auto" is, is decided where the sizes are numbers: as an op runs.


def positions_of(positions: Tensor, length: int, n_detectors: int, dtype: torch.dtype) -> Tensor:
    """Those of the distances in a sequence, one per detector: positions [L-1, N_t or 1, N_pe] -> [S-1, N_t, N_pe].

    `dtype` is that of the margins of x, with which those of the positions are compared.
    """
    if positions.shape[:2] == (length - 1, n_detectors) and positions.dtype == dtype and positions.is_contiguous():
        return positions
    return positions[: length - 1].expand(-1, n_detectors, -1).to(dtype).contiguous()


def like_positions(gradient: Tensor, shape: Numbers[int]) -> Tensor:
    """The way back: gradient [S-1, N_t, N_pe] -> [L-1, N_t or 1, N_pe], the given shape; zero past the sequence."""
    if shape[1] != gradient.shape[1]:
        gradient = gradient.sum(1, keepdim=True)
    if shape[0] == gradient.shape[0]:
        return gradient
    return torch.nn.functional.pad(gradient, (0, 0, 0, 0, 0, shape[0] - gradient.shape[0]))


def with_algorithm(sequence: Sequence, how: How, connectivity: Connectivity, *operands: Tensor) -> Sequence:
    """The sequence, to be walked by pairs or counted by cells: as was asked for, or as is cheaper for these operands."""
    shape, dtype = sequence.x.indices.shape, sum_dtype(*operands)
    sizes = (*shape[:2], connectivity.n_outputs, shape[2], sequence.n_anchors, sequence.positional_dim)
    algorithm = choose(how.algorithm, sizes, not isinstance(connectivity, Full), dtype, how.sums, operands[0].device.type)
    return sequence._replace(products=how.products if algorithm == "cells" else None)


def detect_sequence(x: Tensor, anchors: Tensor, positions: Tensor, how: How, train: bool) -> Sequence:
    """x [B, S, I], anchors [N_t, N_c, 2], positions [L-1, N_t or 1, N_pe] -> what detectors find."""
    comparisons, kernels = ready(x, anchors), how.kernels(x)
    detected = kernels.detect(solid(x), comparisons, train)
    places = kernels.detect_positions(positions_of(positions, x.shape[1], anchors.shape[0], sum_dtype(x)), train)
    return Sequence(detected, places, anchors.shape[1], positions.shape[2])


def _forward(x: Tensor, layer: tuple[Tensor, ...], rest: Numbers[Any], train: bool) -> tuple[Tensor, Sequence]:
    """x [B, S, I]; layer: weight, anchors, positions -> y [B, S, O], and `Detected`."""
    weight, (how, connectivity) = layer[0], told(rest, layer[0].shape)
    sequence = detect_sequence(x, layer[1], layer[2], how, train)
    sequence = with_algorithm(sequence, how, connectivity, weight)
    return how.kernels(x).fill_sequence(solid(weight), connectivity, sequence, how.sums).to(output_dtype(x, weight)), sequence


def _evaluate(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    return _forward(x, (weight, anchors, positions), rest, False)[0]


evaluate = Replayed(_evaluate, (2, 4, 5, 6), REPLAY.watched)


@ops.define(f"lut_attention_eval({LAYER}, {HOW}) -> Tensor", _y_fake)
def _lut_attention_eval(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    """x [B, S, I], weight [N_t, R, O] or [n_weights], anchors [N_t, N_c, 2], positions [L-1, N_t or 1, N_pe] -> y [B, S, O]."""
    how, y = how_of(rest[3]), None
    plain = not how.header and how.sums == FLOAT and how.algorithm != "cells" and how.backend in ("", "triton")
    if plain and (quick := quick_for(x, weight, anchors, positions)) is not None:
        y = quick.launches.fill(x, weight, None)
    if y is None:
        y = evaluate(x, weight, anchors, positions, *rest)
        if plain:
            prepare_attention(x, (weight, anchors), positions)
    return y


graph_calls.offer("lut_attention_eval", evaluate)  # a graph has checked what the other asks


def _lut_attention_fake(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    shapes = ((*x.shape[:2], anchors.shape[0]), (x.shape[1] - 1, anchors.shape[0]))
    detected, distances = (_detected_fake(x, shape) for shape in shapes)
    return _y_fake(x, weight, anchors, *rest), *detected, *distances


@define(f"lut_attention({LAYER}, {HOW}) -> ({', '.join(['Tensor'] * 7)})", _lut_attention_fake)
def _lut_attention(x: Tensor, weight: Tensor, anchors: Tensor, positions: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The same, and `Detected`: three times [B, S, N_t], three times [S-1, N_t]."""
    y, sequence = _forward(x, (weight, anchors, positions), rest, True)
    return y, *sequence.x, *sequence.positions  # type: ignore[return-value]


def _lut_attention_gradients_fake(grad: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    n_inputs, positions_shape, dtype, positions_dtype, to_weight = rest[7:12]
    dx = grad.new_empty((*grad.shape[:2], n_inputs), dtype=dtype)
    dpositions = grad.new_empty(positions_shape, dtype=positions_dtype)
    return dx, dpositions, weight.new_empty(weight.shape if to_weight else 0)


@define(
    f"lut_attention_gradients(Tensor grad, Tensor weight, {DETECTED}, {PE_DETECTED}, Tensor anchors, SymInt n_inputs, "
    f"SymInt[] positions_shape, ScalarType dtype, ScalarType positions_dtype, bool to_weight, {HOW}) -> (Tensor, Tensor, Tensor)",
    _lut_attention_gradients_fake,
)
def _lut_attention_gradients(grad: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """grad [B, S, O], weight, 3 × [B, S, N_t], 3 × [S-1, N_t], anchors; sizes and dtypes -> dx [B, S, I], dpositions, and dW.

    Without `to_weight` dW is empty.
    """
    (*found, anchors), (n_inputs, positions_shape, dtype, positions_dtype, to_weight) = rest[:7], rest[7:12]
    (how, connectivity), found = told(rest[12:], weight.shape), [solid(tensor) for tensor in found]
    sequence = Sequence(Detected(*found[:3]), Detected(*found[3:]), anchors.shape[1], positions_shape[2])
    sequence, run = with_algorithm(sequence, how, connectivity, weight, grad), how.kernels(grad).propagate_sequence
    dx, dpositions = run(solid(grad), solid(weight), connectivity, sequence, solid(trusted(anchors)), n_inputs, how.sums)
    dx, dpositions = dx.to(dtype), like_positions(dpositions, positions_shape).to(positions_dtype)
    if not to_weight:
        return dx, dpositions, weight.new_empty(0)
    rows = (found[0], None, None, None, found[3], anchors.shape[1], positions_shape[2])
    return dx, dpositions, _lut_weight_gradients(grad, *rows, weight.shape, weight.dtype, *rest[12:])


def gather_sequence(grad: Tensor, sequence: Sequence, how: How, connectivity: Connectivity, into: Into | None = None) -> Tensor:
    """dW, or the weight of `into` after its step."""
    sequence = with_algorithm(sequence, how, connectivity, grad)
    return how.kernels(grad).gather_sequence(grad, connectivity, sequence, how.sums, into)
