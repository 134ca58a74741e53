"""The kernels under their public names, for every backend: one table from names to primitives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lutetia.errors import check_choice, check_range, check_tensor, fail
from lutetia.lut.connectivity.anchors import INTEGER_DTYPES, checked_anchors, comparisons_of
from lutetia.lut.connectivity.full import DEFAULT_META, Connectivity, Full, full
from lutetia.lut.connectivity.meta import SynapseMeta
from lutetia.lut.connectivity.synapses import Synapses
from lutetia.lut.kernels.arguments import DETECTED, LOGS, ROWS, SEQUENCE, SEQUENCE_DETECTED, WEIGHT, check_below, takes
from lutetia.lut.kernels.protocol import READS, Backend, Coefficients, Detected, Products, Read, Sequence
from lutetia.lut.kernels.reference import list_firings
from lutetia.lut.sums import FLOATS, Sums, convert_integers_to_floats

N_SCALARS = {"confidence": 2, "confidence2": 3}  # how many of β, γ, τ a read has
Found = tuple[Tensor, Tensor, Tensor]  # indices, min_delta, min_delta_index


class Kernels:
    """Every kernel of one backend; `name` says which, and `backend` holds the primitives they are made of.

    B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs · N_pe positional bits · R rows.
    Kernels whose name ends in `_fc` take weights [N_t, R, O], those in `_sparse` flat ones [n_weights] and `synapses`.

    All that add take `sums` ("float", "fixed") and `int_rescaler`. Those that gather gradients also take `meta` (`_fc` only), and
    `external_lr` with `weight`: where external_lr is not negative, the weight takes the step -external_lr · dW at once, is
    clamped to the bounds of its metas, and is returned. Those by cells take `precision` and `budget`. Those of one step
    that compare inputs take `thresholds` [n], the constants that anchors may name.
    """

    def __init__(self, name: str, backend: Backend) -> None:
        self.name, self.backend = name, backend
        vars(self).update({each: getattr(self, each) for each in NAMES})  # a namespace that can be listed

    # ---- one step ----------------------------------------------------------------------------------------------------

    @takes("x ... I, anchors N_t N_c 2")
    def check_detectors(self, x: Tensor, anchors: Tensor, thresholds: Tensor | None = None) -> Found:
        """x [..., I], anchors [N_t, N_c, 2] -> indices int32, min_delta, min_delta_index int32, each [..., N_t]."""
        return _found(self.backend.detect(x, comparisons_of(x, anchors, thresholds), True))

    @takes("x ... I, anchors N_t N_c 2")
    def check_detectors_eval(self, x: Tensor, anchors: Tensor, thresholds: Tensor | None = None) -> Tensor:
        """x [..., I], anchors [N_t, N_c, 2] -> indices int32 [..., N_t]."""
        return self.backend.detect(x, comparisons_of(x, anchors, thresholds), False).indices

    @takes(f"{WEIGHT}, indices B N_t <R")
    def fill_outputs_fc(self, weight: Tensor, indices: Tensor, **how: Any) -> Tensor:
        """y = Σ_t W[t, index_t]: weight [N_t, R, O], indices [B, N_t] -> [B, O]."""
        return self.backend.fill_rows(weight, full(*weight.shape), indices, None, _sums(how))

    @takes("weight W, indices B N_t <R, synapses")
    def fill_outputs_sparse(self, weight: Tensor, indices: Tensor, synapses: Synapses, **how: Any) -> Tensor:
        """The same where synapses are missing: weight [n_weights], indices [B, N_t] -> [B, O]."""
        return self.backend.fill_rows(weight, synapses, indices, None, _sums(how))

    @takes(f"x B I, {WEIGHT}, anchors N_t N_c 2")
    def detect_and_fill_fc(self, x: Tensor, weight: Tensor, anchors: Tensor, **how: Any) -> tuple[Tensor, ...]:
        """Both steps, for training: x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O], and as `check_detectors`."""
        return self.detect_and_fill_sparse(x, weight, anchors, full(*weight.shape), **how)

    @takes("x B I, weight W, anchors N_t N_c 2, synapses")
    def detect_and_fill_sparse(
        self, x: Tensor, weight: Tensor, anchors: Tensor, synapses: Connectivity, **how: Any
    ) -> tuple[Tensor, ...]:
        """The same where synapses are missing: weight [n_weights]."""
        comparisons = comparisons_of(x, anchors, how.pop("thresholds", None))
        y, detected = self.backend.detect_and_fill(x, weight, comparisons, synapses, _sums(how), True)
        assert detected is not None
        return y, *_found(detected)

    @takes(f"x B I, {WEIGHT}, anchors N_t N_c 2")
    def detect_and_fill_eval_fc(self, x: Tensor, weight: Tensor, anchors: Tensor, **how: Any) -> Tensor:
        """Both steps, nothing kept: x [B, I], weight [N_t, R, O], anchors [N_t, N_c, 2] -> y [B, O]."""
        return self.detect_and_fill_eval_sparse(x, weight, anchors, full(*weight.shape), **how)

    @takes("x B I, weight W, anchors N_t N_c 2, synapses")
    def detect_and_fill_eval_sparse(
        self, x: Tensor, weight: Tensor, anchors: Tensor, synapses: Connectivity, **how: Any
    ) -> Tensor:
        """The same where synapses are missing: weight [n_weights]."""
        comparisons = comparisons_of(x, anchors, how.pop("thresholds", None))
        return self.backend.detect_and_fill(x, weight, comparisons, synapses, _sums(how), False)[0]

    @takes(f"grad B O, {WEIGHT}, {DETECTED}")
    def propagate_through_detectors_fc(self, grad: Tensor, weight: Tensor, *rest: Any, **how: Any) -> Tensor:
        """The slope of the blend of the chosen row and its nearest neighbour, sent to the anchors of the closest call.

        grad [B, O], weight [N_t, R, O], then indices, min_delta, min_delta_index [B, N_t], anchors [N_t, N_c, 2], and n_inputs
        -> dx [B, I].
        """
        return self.propagate_through_detectors_sparse(grad, weight, *rest, full(*weight.shape), **how)

    @takes(f"grad B O, weight W, {DETECTED}, synapses")
    def propagate_through_detectors_sparse(self, grad: Tensor, weight: Tensor, *rest: Any, **how: Any) -> Tensor:
        """The same where synapses, which come last, are missing: weight [n_weights] -> dx [B, I]."""
        *detected, anchors, n_inputs, synapses = rest
        checked = checked_anchors(anchors, n_inputs, how.pop("thresholds", None))
        return self.backend.propagate(grad, weight, synapses, Detected(*detected), checked, n_inputs, _sums(how))

    @takes("grad B O, indices B N_t <R, n_rows")
    def gather_weight_gradients_fc(
        self, grad: Tensor, indices: Tensor, n_rows: int, *, meta: SynapseMeta = DEFAULT_META, **how: Any
    ) -> Tensor:
        """dW[t, index_t] += lr_scale · g: grad [B, O], indices [B, N_t] -> [N_t, R, O], or the updated weight."""
        return self.gather_weight_gradients_sparse(grad, indices, _full(indices, n_rows, grad, meta), **how)

    @takes("grad B O, indices B N_t <R, synapses")
    def gather_weight_gradients_sparse(self, grad: Tensor, indices: Tensor, synapses: Connectivity, **how: Any) -> Tensor:
        """The same where synapses are missing -> [n_weights], or the updated weight."""
        into, rate = _step(how, synapses, grad)
        return _clamped(self.backend.gather_rows(grad, synapses, indices, None, _sums(how), into, rate), into, synapses)

    @takes("grad B O, indices B N_t <R, n_rows")
    def gather_weight_rows_fc(
        self, grad: Tensor, indices: Tensor, n_rows: int, *, meta: SynapseMeta = DEFAULT_META, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """The rows of dW that were looked up: slots t · n_rows + row, int64 [n], rising, and values [n, O]."""
        slots, values = self.backend.gather_compact(grad, _full(indices, n_rows, grad, meta), indices, None, _sums(how))
        return slots, values.view(len(slots), grad.shape[1])

    @takes("grad B O, indices B N_t <R, synapses")
    def gather_weight_rows_sparse(self, grad: Tensor, indices: Tensor, synapses: Synapses, **how: Any) -> tuple[Tensor, Tensor]:
        """The same where synapses are missing: places in weight int64 [n], rising; values [n]."""
        neurons, values = self.backend.gather_compact(grad, synapses, indices, None, _sums(how))
        return synapses.places_of(neurons), values

    # ---- reads -------------------------------------------------------------------------------------------------------

    @takes(f"x B I, anchors N_t N_c 2, {LOGS}")
    def read_detectors(
        self, x: Tensor, anchors: Tensor, *logs: Tensor | None, read: str, exact: bool = False, thresholds: Tensor | None = None
    ) -> Coefficients:
        """x [B, I], anchors [N_t, N_c, 2], log β, log γ, log τ [] or None -> indices, alternatives, a, b, each [B, N_t].

        Where a read has no second row, alternatives and b are None.
        """
        sums, comparisons = Sums("fixed" if exact else "float"), comparisons_of(x, anchors, thresholds)
        indices, (a, b, others) = self.backend.read(x, comparisons, _read(read, logs), sums)
        return indices, others, a, b  # type: ignore[return-value]

    @takes(f"x B I, {WEIGHT}, anchors N_t N_c 2, {LOGS}")
    def detect_and_read_eval_fc(self, x: Tensor, weight: Tensor, anchors: Tensor, *logs: Tensor | None, **how: Any) -> Tensor:
        """A read and its rows, nothing kept; `read` names it: x [B, I], weight [N_t, R, O], scalars [] -> y [B, O]."""
        return self.detect_and_read_eval_sparse(x, weight, anchors, *logs, full(*weight.shape), **how)

    @takes(f"x B I, weight W, anchors N_t N_c 2, {LOGS}, synapses")
    def detect_and_read_eval_sparse(
        self, x: Tensor, weight: Tensor, anchors: Tensor, *logs: Any, read: str, **how: Any
    ) -> Tensor:
        """The same where synapses, which come after the scalars, are missing: weight [n_weights]."""
        *scalars, synapses = logs
        comparisons = comparisons_of(x, anchors, how.pop("thresholds", None))
        return self.backend.read_and_fill(x, weight, comparisons, synapses, _read(read, scalars), _sums(how))

    @takes(f"{WEIGHT}, {ROWS}")
    def fill_outputs_weighted_fc(self, weight: Tensor, *rows: Tensor, two: bool, **how: Any) -> Tensor:
        """y = Σ_t a_t · W[t, index_t], and with `two` + b_t · W[t, alt_t]: indices, alternatives, a, b [B, N_t] -> [B, O]."""
        return self.fill_outputs_weighted_sparse(weight, *rows, full(*weight.shape), two=two, **how)

    @takes(f"weight W, {ROWS}, synapses")
    def fill_outputs_weighted_sparse(self, weight: Tensor, *rows: Any, two: bool, **how: Any) -> Tensor:
        """The same where synapses, which come last, are missing: weight [n_weights]."""
        indices, coefficients = _weighted(rows[:4], two)
        return self.backend.fill_rows(weight, rows[4], indices, coefficients, _sums(how))

    @takes(f"grad B O, {WEIGHT}, indices B N_t <R, alternatives? B N_t <R")
    def row_gains_fc(self, grad: Tensor, weight: Tensor, *rows: Tensor, for_b: bool, **how: Any) -> tuple[Tensor, Tensor | None]:
        """da = g·W[t, index_t] and, with `for_b`, db = g·W[t, alt_t]: grad [B, O], indices, alternatives [B, N_t]."""
        return self.row_gains_sparse(grad, weight, *rows, full(*weight.shape), for_b=for_b, **how)

    @takes("grad B O, weight W, indices B N_t <R, alternatives? B N_t <R, synapses")
    def row_gains_sparse(self, grad: Tensor, weight: Tensor, *rows: Any, for_b: bool, **how: Any) -> tuple[Tensor, Tensor | None]:
        """The same where synapses, which come last, are missing: weight [n_weights]."""
        indices, others, synapses = rows
        if for_b:
            check_tensor("alternatives", others)
        return self.backend.row_gains(grad, weight, synapses, (indices, others if for_b else None), _sums(how))

    @takes(f"x B I, anchors N_t N_c 2, {LOGS}, da B N_t, db? B N_t")
    def propagate_through_reads(
        self, x: Tensor, anchors: Tensor, *rest: Any, read: str, to_x: bool = True, **how: Any
    ) -> tuple[Tensor | None, Tensor]:
        """log β, log γ, log τ, then da, db [B, N_t] -> dx [B, I], and the gradients of the three logarithms [3]."""
        *logs, da, db = rest
        comparisons = comparisons_of(x, anchors, how.pop("thresholds", None))
        return self.backend.send_slopes(x, comparisons, _read(read, logs), (da, db), _sums(how), bool(to_x))

    @takes(f"grad B O, {ROWS}, n_rows")
    def gather_weighted_gradients_fc(
        self, grad: Tensor, *rows: Any, two: bool, meta: SynapseMeta = DEFAULT_META, **how: Any
    ) -> Tensor:
        """dW[t, index_t] += lr_scale · g · a_t, with `two` dW[t, alt_t] += lr_scale · g · b_t: the four, then n_rows -> dW."""
        return self.gather_weighted_gradients_sparse(grad, *rows[:4], _full(rows[0], rows[4], grad, meta), two=two, **how)

    @takes(f"grad B O, {ROWS}, synapses")
    def gather_weighted_gradients_sparse(self, grad: Tensor, *rows: Any, two: bool, **how: Any) -> Tensor:
        """The same where synapses, which come last, are missing -> [n_weights], or the updated weight."""
        (indices, coefficients), (into, rate) = _weighted(rows[:4], two), _step(how, rows[4], grad)
        gradient = self.backend.gather_rows(grad, rows[4], indices, coefficients, _sums(how), into, rate)
        return _clamped(gradient, into, rows[4])

    @takes(f"grad B O, {ROWS}, n_rows")
    def gather_weighted_rows_fc(
        self, grad: Tensor, *rows: Any, two: bool, meta: SynapseMeta = DEFAULT_META, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """The rows of dW that were looked up: slots t · n_rows + row, int64 [n], rising, and values [n, O]."""
        indices, coefficients = _weighted(rows[:4], two)
        connectivity = _full(indices, rows[4], grad, meta)
        slots, values = self.backend.gather_compact(grad, connectivity, indices, coefficients, _sums(how))
        return slots, values.view(len(slots), grad.shape[1])

    @takes(f"grad B O, {ROWS}, synapses")
    def gather_weighted_rows_sparse(self, grad: Tensor, *rows: Any, two: bool, **how: Any) -> tuple[Tensor, Tensor]:
        """The same where synapses, which come last, are missing: places in weight int64 [n], rising; values [n]."""
        indices, coefficients = _weighted(rows[:4], two)
        neurons, values = self.backend.gather_compact(grad, rows[4], indices, coefficients, _sums(how))
        return rows[4].places_of(neurons), values

    # ---- sequences ---------------------------------------------------------------------------------------------------

    @takes("positions D N_t N_pe")
    def check_positions(self, positions: Tensor) -> Found:
        """positions [S-1, N_t, N_pe] -> PE indices int32, min_delta, min_delta_index int32, each [S-1, N_t]."""
        return _found(self.backend.detect_positions(positions, True))

    @takes("positions D N_t N_pe")
    def check_positions_eval(self, positions: Tensor) -> Tensor:
        """positions [S-1, N_t, N_pe] -> PE indices int32 [S-1, N_t]."""
        return self.backend.detect_positions(positions, False).indices

    @takes(f"{WEIGHT}, {SEQUENCE}")
    def fill_outputs_seq_fc(self, weight: Tensor, *sequence: Any, **how: Any) -> Tensor:
        """weight [N_t, R, O], indices [B, S, N_t], pe_indices [S-1, N_t], positional_dim -> y [B, S, O], pair by pair."""
        return self.fill_outputs_seq_sparse(weight, *sequence, full(*weight.shape), **how)

    @takes(f"weight W, {SEQUENCE}, synapses")
    def fill_outputs_seq_sparse(self, weight: Tensor, *sequence: Any, **how: Any) -> Tensor:
        """The same where synapses, which come last, are missing: weight [n_weights]."""
        *found, synapses = sequence
        return self.backend.fill_pairs(weight, synapses, _indices(*found, synapses.n_rows), _sums(how))

    @takes(f"{WEIGHT}, {SEQUENCE}")
    def fill_outputs_cells_fc(self, weight: Tensor, *sequence: Any, **how: Any) -> Tensor:
        """The arguments and results of `fill_outputs_seq_fc`, by cells."""
        found = _indices(*sequence, weight.shape[1], _products(how))
        return self.backend.fill_cells(weight, full(*weight.shape), found, _sums(how))

    @takes(f"grad B S O, {WEIGHT}, {SEQUENCE_DETECTED}")
    def propagate_through_detectors_seq_fc(self, grad: Tensor, weight: Tensor, *rest: Any, **how: Any) -> tuple[Tensor, Tensor]:
        """grad [B, S, O], weight [N_t, R, O]; indices, min_delta, min_delta_index [B, S, N_t], the same of the positions
        [S-1, N_t], anchors [N_t, N_c, 2], n_inputs, positional_dim -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
        return self.propagate_through_detectors_seq_sparse(grad, weight, *rest, full(*weight.shape), **how)

    @takes(f"grad B S O, weight W, {SEQUENCE_DETECTED}, synapses")
    def propagate_through_detectors_seq_sparse(
        self, grad: Tensor, weight: Tensor, *rest: Any, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """The same where synapses, which come last, are missing: weight [n_weights]."""
        *rest, synapses = rest  # type: ignore[assignment]
        sequence, anchors, n_inputs = _detections(rest, None)
        return self.backend.propagate_pairs(grad, weight, synapses, sequence, anchors, n_inputs, _sums(how))

    @takes(f"grad B S O, {WEIGHT}, {SEQUENCE_DETECTED}")
    def propagate_through_cells_fc(self, grad: Tensor, weight: Tensor, *rest: Any, **how: Any) -> tuple[Tensor, Tensor]:
        """The arguments and results of `propagate_through_detectors_seq_fc`, by cells."""
        sequence, anchors, n_inputs = _detections(rest, _products(how))
        return self.backend.propagate_cells(grad, weight, full(*weight.shape), sequence, anchors, n_inputs, _sums(how))

    @takes(f"grad B S O, {SEQUENCE}, n_rows")
    def gather_weight_gradients_seq_fc(
        self, grad: Tensor, *sequence: Any, meta: SynapseMeta = DEFAULT_META, **how: Any
    ) -> Tensor:
        """grad [B, S, O], indices [B, S, N_t], pe_indices [S-1, N_t], positional_dim, n_rows -> dW, or the updated weight."""
        *found, n_rows = sequence
        return self.gather_weight_gradients_seq_sparse(grad, *found, _full(found[0], n_rows, grad, meta), **how)

    @takes(f"grad B S O, {SEQUENCE}, synapses")
    def gather_weight_gradients_seq_sparse(self, grad: Tensor, *sequence: Any, **how: Any) -> Tensor:
        """The same with synapses in the place of n_rows -> [n_weights], or the updated weight."""
        *found, synapses = sequence
        into, rate = _step(how, synapses, grad)
        pairs = _indices(*found, synapses.n_rows)
        return _clamped(self.backend.gather_pairs(grad, synapses, pairs, _sums(how), into, rate), into, synapses)

    @takes(f"grad B S O, {SEQUENCE}, n_rows")
    def gather_weight_gradients_cells_fc(
        self, grad: Tensor, *sequence: Any, meta: SynapseMeta = DEFAULT_META, **how: Any
    ) -> Tensor:
        """The arguments and results of `gather_weight_gradients_seq_fc`, by cells."""
        connectivity = _full(sequence[0], sequence[3], grad, meta)
        into, rate = _step(how, connectivity, grad)
        found = _indices(*sequence, _products(how))
        return _clamped(self.backend.gather_cells(grad, connectivity, found, _sums(how), into, rate), into, connectivity)

    @takes(f"{SEQUENCE}, n_anchors")
    def fill_firing_stat(self, indices: Tensor, pe_indices: Tensor, positional_dim: int, n_anchors: int) -> Tensor:
        """How often each cell (K, PE) fires for each j: indices [B, S, N_t], pe_indices [S-1, N_t] -> int32 [B, S, N_t, C]."""
        return self.backend.count_firings(Sequence(Detected(indices), Detected(pe_indices), n_anchors, positional_dim))

    @takes("stat B S N_t C, indices B S N_t <Q, n_anchors")
    def densify_firing_stat(self, stat: Tensor, indices: Tensor, n_anchors: int) -> tuple[Tensor, Tensor, Tensor]:
        """stat [B, S, N_t, C], indices [B, S, N_t] -> place b·S + j, row t·R + cell, and count of all that fired, each [n]."""
        check_below("indices are", indices, 1 << n_anchors)
        return list_firings(stat, indices, n_anchors)

    @takes(f"{WEIGHT}, firings, batch, length")
    def fill_outputs_by_firings(
        self, weight: Tensor, firings: tuple[Tensor, Tensor, Tensor], batch: int, length: int, **how: Any
    ) -> Tensor:
        """y = Σ count · W[row]: weight [N_t, R, O], firings as from `densify_firing_stat` -> [B, S, O]."""
        firings = _checked_firings(firings, weight, batch * length)
        return self.backend.fill_firings(weight, firings, (batch, length), _sums(how))

    def convert_integers_to_floats(self, buffer: Tensor, int_rescaler: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Integer sums [...] (int32 or int64) in floating point; a sum past the range of an int32 is an error."""
        check_tensor("buffer", buffer, None, (torch.int32, torch.int64))
        if buffer.is_meta:
            fail("buffer", buffer, "a tensor that has memory")
        check_choice("dtype", dtype, FLOATS)
        return convert_integers_to_floats(buffer, Sums("fixed", int_rescaler).check().rescaler, dtype)


NAMES = [name for name in vars(Kernels) if not name.startswith("_")]


def _sums(how: dict[str, Any]) -> Sums:
    """The sums of a call; what is left in `how` is nothing it knows."""
    sums = Sums(how.pop("sums", "float"), how.pop("int_rescaler", 1.0)).check()
    if how:
        raise TypeError(f"unknown arguments: {', '.join(how)}")
    return sums


def _step(how: dict[str, Any], connectivity: Connectivity, grad: Tensor) -> tuple[Tensor | None, float]:
    """The weight that takes a step, and its rate; None and 1 where the gradient is asked for."""
    rate, weight = how.pop("external_lr", -1.0), how.pop("weight", None)
    check_range("external_lr", rate)
    if rate < 0:
        return None, 1.0
    check_range("external_lr", rate, 0, torch.finfo(torch.float32).max)
    check_tensor("weight", weight, connectivity.weight_shape, FLOATS, grad.device)
    if any(stride == 0 and size > 1 for stride, size in zip(weight.stride(), weight.shape, strict=True)):
        fail("weight", weight, "a tensor that has memory for each of its elements")
    return weight, rate


def _full(indices: Tensor, n_rows: int, grad: Tensor, meta: Any) -> Full:
    """The connectivity that full tables for these have: indices [..., N_t], grad [..., O]."""
    if not isinstance(meta, SynapseMeta):
        fail("meta", meta, "a SynapseMeta")
    return full(indices.shape[-1], n_rows, grad.shape[-1], meta)


def _read(name: str, logs: Any) -> Read:
    """A read that has its scalars."""
    check_choice("read", name, READS)
    for scalar, log in zip(("log_beta", "log_gamma", "log_tau")[: N_SCALARS.get(name, 0)], logs, strict=False):
        check_tensor(scalar, log)
    return Read(name, *logs)


def _checked_firings(firings: Any, weight: Tensor, n_places: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places, rows and counts as int64, once they are known to be some of these tables."""
    if not isinstance(firings, tuple | list) or len(firings) != 3:
        fail("firings", firings, "three tensors: places, rows and counts")
    n: int | str = "n"
    for name, values, end in zip(
        ("place", "row", "count"), firings, (n_places, weight.shape[0] * weight.shape[1], None), strict=True
    ):
        check_tensor(name, values, [n], INTEGER_DTYPES, weight.device)
        n = len(values)
        if end is not None:
            check_below(f"firings have a {name}", values, end)
    place, row, count = (values.long() for values in firings)
    return place, row, count


def _products(how: dict[str, Any]) -> Products:
    return Products(how.pop("precision", "float32"), how.pop("budget", None)).check()


def _clamped(result: Tensor, into: Tensor | None, connectivity: Connectivity) -> Tensor:
    return result if into is None else connectivity.clamp_(result)


def _found(detected: Detected) -> Found:
    assert detected.min_delta is not None
    assert detected.min_delta_index is not None
    return detected.indices, detected.min_delta, detected.min_delta_index


def _weighted(rows: tuple[Any, ...], two: bool) -> tuple[Tensor, Coefficients]:
    indices, alternatives, a, b = rows
    if two:
        check_tensor("alternatives", alternatives)
        check_tensor("b", b)
    return indices, Coefficients(a, b, alternatives) if two else Coefficients(a)


def _indices(*given: Any) -> Sequence:
    """indices, pe_indices, positional_dim, n_rows, and perhaps how cells are multiplied, as a sequence."""
    indices, pe_indices, positional_dim, n_rows, products = given if len(given) == 5 else (*given, None)
    n_anchors = (n_rows.bit_length() - 1 - positional_dim) // 2
    return Sequence(Detected(indices), Detected(pe_indices), n_anchors, positional_dim, products)


def _detections(rest: Any, products: Products | None) -> tuple[Sequence, Tensor, int]:
    *found, anchors, n_inputs, positional_dim = rest
    sequence = Sequence(Detected(*found[:3]), Detected(*found[3:]), anchors.shape[1], positional_dim, products)
    return sequence, checked_anchors(anchors, n_inputs), n_inputs
