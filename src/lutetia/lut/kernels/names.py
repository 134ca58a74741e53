"""The kernels under their public names, for every backend: one table from names to primitives.

A kernel over tables is written once, for any connectivity, and has two names: `.._fc` takes full tables, `.._sparse` synapses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lutetia._shared.arguments import check_below
from lutetia._shared.dtypes import FLOATS, INTEGER_DTYPES
from lutetia.errors import check_choice, check_range, check_tensor, fail
from lutetia.lut.connectivity.anchors import checked_anchors, comparisons_of
from lutetia.lut.connectivity.full import DEFAULT_META, Connectivity, Full, full
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.kernels.arguments import DETECTED, LOGS, ROWS, SEQUENCE, SEQUENCE_DETECTED, takes
from lutetia.lut.kernels.backend import Backend
from lutetia.lut.kernels.protocol import READS, SCALARS, Coefficients, Detected, Into, Products, Read, Sequence
from lutetia.lut.kernels.reference.sequences import list_firings
from lutetia.lut.sums import Sums, convert_integers_to_floats

Kernel = Callable[..., Any]


def wired(arguments: str, cells: str | None = None) -> Callable[[Kernel], Kernel]:
    """A kernel of any connectivity, which is its first argument: it will be two, `.._fc` and `.._sparse`.

    `arguments` are as `takes` reads them. A `weight` is [N_t, R, O] or flat. `synapses` come last; without a weight to tell the
    sizes of full tables, so does `n_rows`. One that walks pairs is called `cells` where it counts cells instead, of full tables.
    """

    def mark(kernel: Kernel) -> Kernel:
        kernel.wired = arguments, cells  # type: ignore[attr-defined]
        return kernel

    return mark


class Kernels:
    """Every kernel of one backend; `name` says which, and `backend` holds the primitives they are made of.

    B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs · N_pe positional bits · R rows.
    A kernel listed here with `connectivity` is two: `.._fc` takes weights [N_t, R, O], or n_rows as its last argument where it
    takes no weight; `.._sparse` takes flat weights [n_weights], and `synapses` as its last argument. Those by cells are `_fc`.

    All that add take `sums` ("float", "fixed") and `int_rescaler`. Those that gather gradients also take `meta` (`_fc` only), and
    `external_lr` with `weight`: if external_lr is not negative, the weight takes the step -external_lr · dW at once, is clamped
    to the bounds of its metas, and is returned. Those by cells take `precision` and `budget`. Those of one step that compare
    inputs take `thresholds` [n], the constants that anchors may name.
    """

    def __init__(self, name: str, backend: Backend) -> None:
        self.name, self.backend = name, backend
        vars(self).update({each: getattr(self, each) for each in NAMES})  # a namespace that can be listed

    # ---- one step ----------------------------------------------------------------------------------------------------

    @takes("x ... I, anchors N_t N_c 2")
    def check_detectors(self, x: Tensor, anchors: Tensor, thresholds: Tensor | None = None) -> Detected:
        """x [..., I], anchors [N_t, N_c, 2] -> indices int32, min_delta, min_delta_index int32, each [..., N_t]."""
        return self.backend.detect(x, comparisons_of(x, anchors, thresholds), True)

    @takes("x ... I, anchors N_t N_c 2")
    def check_detectors_eval(self, x: Tensor, anchors: Tensor, thresholds: Tensor | None = None) -> Tensor:
        """x [..., I], anchors [N_t, N_c, 2] -> indices int32 [..., N_t]."""
        return self.backend.detect(x, comparisons_of(x, anchors, thresholds), False).indices

    @wired("weight, indices B N_t <R")
    def fill_outputs(self, connectivity: Connectivity, weight: Tensor, indices: Tensor, **how: Any) -> Tensor:
        """y = Σ_t W[t, index_t]: indices [B, N_t] -> [B, O]."""
        return self.backend.fill_rows(weight, connectivity, indices, None, _sums(how))

    @wired("x B I, weight, anchors N_t N_c 2")
    def detect_and_fill(self, connectivity: Connectivity, x: Tensor, *layer: Tensor, **how: Any) -> tuple[Tensor, ...]:
        """Both steps, for training: x [B, I], weight, anchors [N_t, N_c, 2] -> y [B, O], and as `check_detectors`."""
        given = (x, layer[0], comparisons_of(x, layer[1], how.pop("thresholds", None)), connectivity, _sums(how))
        y, detected = self.backend.detect_and_fill(*given, True)
        return y, *detected  # type: ignore[misc]

    @wired("x B I, weight, anchors N_t N_c 2")
    def detect_and_fill_eval(self, connectivity: Connectivity, x: Tensor, *layer: Tensor, **how: Any) -> Tensor:
        """Both steps, nothing kept: x [B, I], weight, anchors [N_t, N_c, 2] -> y [B, O]."""
        given = (x, layer[0], comparisons_of(x, layer[1], how.pop("thresholds", None)), connectivity, _sums(how))
        return self.backend.detect_and_fill(*given, False)[0]

    @wired(f"grad B O, weight, {DETECTED}")
    def propagate_through_detectors(
        self, connectivity: Connectivity, grad: Tensor, weight: Tensor, *rest: Any, **how: Any
    ) -> Tensor:
        """The slope of the blend of the chosen row and its nearest neighbour, sent to the anchors of the closest call.

        grad [B, O], weight, then indices, min_delta, min_delta_index [B, N_t], anchors [N_t, N_c, 2], and n_inputs -> dx [B, I].
        """
        *detected, anchors, n_inputs = rest
        checked = checked_anchors(anchors, n_inputs, how.pop("thresholds", None))
        return self.backend.propagate(grad, weight, connectivity, Detected(*detected), checked, n_inputs, _sums(how))

    @wired("grad B O, indices B N_t <R")
    def gather_weight_gradients(self, connectivity: Connectivity, grad: Tensor, indices: Tensor, **how: Any) -> Tensor:
        """dW[t, index_t] += lr_scale · g: grad [B, O], indices [B, N_t] -> dW, or the updated weight."""
        return _learned(self.backend.gather_rows, grad, connectivity, (indices, None), how)

    @wired("grad B O, indices B N_t <R")
    def gather_weight_rows(self, connectivity: Connectivity, grad: Tensor, indices: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        """The rows of dW that were looked up: slots t · n_rows + row, int64 [n], rising, and values [n, O].

        With synapses: places in the weight, int64 [n], rising, and values [n].
        """
        return _listed(connectivity, *self.backend.gather_compact(grad, connectivity, indices, None, _sums(how)))

    # ---- reads -------------------------------------------------------------------------------------------------------

    @takes(f"x B I, anchors N_t N_c 2, {LOGS}")
    def read_detectors(
        self, x: Tensor, anchors: Tensor, *logs: Tensor | None, read: str, exact: bool = False, thresholds: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """x [B, I], anchors [N_t, N_c, 2], log β, log γ, log τ [] or None -> indices, alternatives, a, b, each [B, N_t].

        Where a read has no second row, alternatives and b are None.
        """
        sums, comparisons = Sums("fixed" if exact else "float"), comparisons_of(x, anchors, thresholds)
        indices, (a, b, others) = self.backend.read(x, comparisons, _read(read, logs), sums)
        return indices, others, a, b

    @wired(f"x B I, weight, anchors N_t N_c 2, {LOGS}")
    def detect_and_read_eval(self, connectivity: Connectivity, x: Tensor, *layer: Any, read: str, **how: Any) -> Tensor:
        """A read and its rows, nothing kept; `read` names it: x [B, I], weight, anchors, log β, log γ, log τ -> y [B, O]."""
        weight, anchors, *logs = layer
        comparisons = comparisons_of(x, anchors, how.pop("thresholds", None))
        return self.backend.read_and_fill(x, weight, comparisons, connectivity, _read(read, logs), _sums(how))

    @wired(f"weight, {ROWS}")
    def fill_outputs_weighted(self, connectivity: Connectivity, weight: Tensor, *rows: Tensor, two: bool, **how: Any) -> Tensor:
        """y = Σ_t a_t · W[t, index_t], and with `two` + b_t · W[t, alt_t]: indices, alternatives, a, b [B, N_t] -> [B, O]."""
        return self.backend.fill_rows(weight, connectivity, *_weighted(rows, two), _sums(how))

    @wired("grad B O, weight, indices B N_t <R, alternatives? B N_t <R")
    def row_gains(
        self, connectivity: Connectivity, grad: Tensor, weight: Tensor, *rows: Tensor, for_b: bool, **how: Any
    ) -> tuple[Tensor, Tensor | None]:
        """da = g·W[t, index_t] and, with `for_b`, db = g·W[t, alt_t]: grad [B, O], indices, alternatives [B, N_t]."""
        if for_b:
            check_tensor("alternatives", rows[1])
        return self.backend.row_gains(grad, weight, connectivity, (rows[0], rows[1] if for_b else None), _sums(how))

    @takes(f"x B I, anchors N_t N_c 2, {LOGS}, da B N_t, db? B N_t")
    def propagate_through_reads(
        self, x: Tensor, anchors: Tensor, *rest: Any, read: str, to_x: bool = True, **how: Any
    ) -> tuple[Tensor | None, Tensor]:
        """log β, log γ, log τ, then da, db [B, N_t] -> dx [B, I], and the gradients of the three logarithms [3]."""
        *logs, da, db = rest
        comparisons = comparisons_of(x, anchors, how.pop("thresholds", None))
        return self.backend.send_slopes(x, comparisons, _read(read, logs), (da, db), _sums(how), bool(to_x))

    @wired(f"grad B O, {ROWS}")
    def gather_weighted_gradients(self, connectivity: Connectivity, grad: Tensor, *rows: Any, two: bool, **how: Any) -> Tensor:
        """dW[t, index_t] += lr_scale · g · a_t, with `two` dW[t, alt_t] += lr_scale · g · b_t -> dW, or the updated weight."""
        return _learned(self.backend.gather_rows, grad, connectivity, _weighted(rows, two), how)

    @wired(f"grad B O, {ROWS}")
    def gather_weighted_rows(
        self, connectivity: Connectivity, grad: Tensor, *rows: Any, two: bool, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """The same in the form of `gather_weight_rows`."""
        return _listed(connectivity, *self.backend.gather_compact(grad, connectivity, *_weighted(rows, two), _sums(how)))

    # ---- sequences ---------------------------------------------------------------------------------------------------

    @takes("positions D N_t N_pe")
    def check_positions(self, positions: Tensor) -> Detected:
        """positions [S-1, N_t, N_pe] -> PE indices int32, min_delta, min_delta_index int32, each [S-1, N_t]."""
        return self.backend.detect_positions(positions, True)

    @takes("positions D N_t N_pe")
    def check_positions_eval(self, positions: Tensor) -> Tensor:
        """positions [S-1, N_t, N_pe] -> PE indices int32 [S-1, N_t]."""
        return self.backend.detect_positions(positions, False).indices

    @wired(f"weight, {SEQUENCE}", "fill_outputs_cells")
    def fill_outputs_seq(self, connectivity: Connectivity, weight: Tensor, *sequence: Any, **how: Any) -> Tensor:
        """weight, indices [B, S, N_t], pe_indices [S-1, N_t], positional_dim -> y [B, S, O]."""
        return self.backend.fill_sequence(weight, connectivity, _sequence(connectivity, sequence, how), _sums(how))

    @wired(f"grad B S O, weight, {SEQUENCE_DETECTED}", "propagate_through_cells")
    def propagate_through_detectors_seq(
        self, connectivity: Connectivity, grad: Tensor, weight: Tensor, *rest: Any, **how: Any
    ) -> tuple[Tensor, Tensor]:
        """grad [B, S, O], weight; indices, min_delta, min_delta_index [B, S, N_t], the same of the positions [S-1, N_t], anchors
        [N_t, N_c, 2], n_inputs, positional_dim -> dx [B, S, I], dpositions [S-1, N_t, N_pe]."""
        *detected, anchors, n_inputs, positional_dim = rest
        x, positions, products = Detected(*detected[:3]), Detected(*detected[3:]), _products(how)
        found = Sequence(x, positions, anchors.shape[1], positional_dim, products)
        to = (checked_anchors(anchors, n_inputs), n_inputs)
        return self.backend.propagate_sequence(grad, weight, connectivity, found, *to, _sums(how))

    @wired(f"grad B S O, {SEQUENCE}", "gather_weight_gradients_cells")
    def gather_weight_gradients_seq(self, connectivity: Connectivity, grad: Tensor, *sequence: Any, **how: Any) -> Tensor:
        """grad [B, S, O], indices [B, S, N_t], pe_indices [S-1, N_t], positional_dim -> dW, or the updated weight."""
        return _learned(self.backend.gather_sequence, grad, connectivity, (_sequence(connectivity, sequence, how),), how)

    @takes(f"{SEQUENCE}, n_anchors")
    def fill_firing_stat(self, indices: Tensor, pe_indices: Tensor, positional_dim: int, n_anchors: int) -> Tensor:
        """How often each cell (K, PE) fires for each j: indices [B, S, N_t], pe_indices [S-1, N_t] -> int32 [B, S, N_t, C]."""
        return self.backend.count_firings(Sequence(Detected(indices), Detected(pe_indices), n_anchors, positional_dim))

    @takes("stat B S N_t C, indices B S N_t <Q, n_anchors")
    def densify_firing_stat(self, stat: Tensor, indices: Tensor, n_anchors: int) -> tuple[Tensor, Tensor, Tensor]:
        """stat [B, S, N_t, C], indices [B, S, N_t] -> place b·S + j, row t·R + cell, and count of all that fired, each [n]."""
        check_below("indices are", indices, 1 << n_anchors)
        return list_firings(stat, indices, n_anchors)

    @takes("weight N_t R O, firings, batch, length")
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


# ---- the two forms of a kernel ---------------------------------------------------------------------------------------


def _form(kernel: Kernel, name: str, form: str, **more: Any) -> Kernel:
    """A kernel of any connectivity as one of full tables ("fc") or of synapses ("sparse"), called with these options more."""
    arguments: str = kernel.wired[0]  # type: ignore[attr-defined]
    names = [each.split()[0] for each in arguments.split(", ")]
    place = names.index("weight") if "weight" in names else None

    def call(self: Kernels, *given: Any, **how: Any) -> Any:
        if form == "sparse":
            *given, connectivity = given  # type: ignore[assignment]
        elif place is not None:
            connectivity = full(*given[place].shape)
        else:
            (grad, indices, *_), meta = given, how.pop("meta", DEFAULT_META)
            if not isinstance(meta, SynapseMeta):
                fail("meta", meta, "a SynapseMeta")
            *given, n_rows = given  # type: ignore[assignment]
            connectivity = full(indices.shape[-1], n_rows, grad.shape[-1], meta)
        return kernel(self, connectivity, *given, **how, **more)

    call.__name__, call.__doc__ = name, kernel.__doc__
    last = "synapses" if form == "sparse" else "n_rows" if place is None else None
    words = arguments.replace("weight", "weight W" if form == "sparse" else "weight N_t R O")
    return takes(words if last is None else f"{words}, {last}")(call)


for _name, _kernel in [*vars(Kernels).items()]:
    if hasattr(_kernel, "wired"):
        delattr(Kernels, _name)
        for _each in ("fc", "sparse"):
            setattr(Kernels, f"{_name}_{_each}", _form(_kernel, f"{_name}_{_each}", _each))
        if _kernel.wired[1]:
            _name = f"{_kernel.wired[1]}_fc"
            setattr(Kernels, _name, _form(_kernel, _name, "fc", _by_cells=True))
NAMES = [name for name in vars(Kernels) if not name.startswith("_")]


# ---- arguments and results -------------------------------------------------------------------------------------------


def _sums(how: dict[str, Any]) -> Sums:
    """The sums of a call; what is left in `how` is nothing it knows."""
    sums = Sums(how.pop("sums", "float"), how.pop("int_rescaler", 1.0)).check()
    if how:
        raise TypeError(f"unknown arguments: {', '.join(how)}")
    return sums


def _learned(gather: Kernel, grad: Tensor, connectivity: Connectivity, found: tuple[Any, ...], how: dict[str, Any]) -> Tensor:
    """The gradient that is gathered from `Detected`; or with a rate the weight after its step, within its bounds."""
    rate, weight = how.pop("external_lr", -1.0), how.pop("weight", None)
    check_range("external_lr", rate)
    if rate < 0:
        return gather(grad, connectivity, *found, _sums(how), None)
    check_range("external_lr", rate, 0, torch.finfo(torch.float32).max)
    check_tensor("weight", weight, connectivity.weight_shape, FLOATS, grad.device)
    if any(stride == 0 and size > 1 for stride, size in zip(weight.stride(), weight.shape, strict=True)):
        fail("weight", weight, "a tensor that has memory for each of its elements")
    return connectivity.clamp_(gather(grad, connectivity, *found, _sums(how), Into(weight, rate)))


def _read(name: str, logs: Any) -> Read:
    """A read that has its scalars."""
    check_choice("read", name, READS)
    for scalar, log in zip(SCALARS[name], logs, strict=False):
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


def _products(how: dict[str, Any]) -> Products | None:
    """Those of a call that counts cells."""
    if not how.pop("_by_cells", False):
        return None
    return Products(how.pop("precision", "float32"), how.pop("budget", None)).check()


def _listed(connectivity: Connectivity, neurons: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of lookup neurons [n] and what belongs to each: rows and values [n, O], or places and values, flat."""
    if isinstance(connectivity, Full):
        return neurons, values.view(len(neurons), connectivity.n_outputs)
    return connectivity.places_of(neurons), values


def _weighted(rows: tuple[Any, ...], two: bool) -> tuple[Tensor, Coefficients]:
    indices, alternatives, a, b = rows
    if two:
        check_tensor("alternatives", alternatives)
        check_tensor("b", b)
    return indices, Coefficients(a, b, alternatives) if two else Coefficients(a)


def _sequence(connectivity: Connectivity, sequence: tuple[Any, ...], how: dict[str, Any]) -> Sequence:
    """indices, pe_indices, positional_dim as a sequence."""
    indices, pe_indices, positional_dim = sequence
    n_anchors = (connectivity.n_rows.bit_length() - 1 - positional_dim) // 2
    return Sequence(Detected(indices), Detected(pe_indices), n_anchors, positional_dim, _products(how))
