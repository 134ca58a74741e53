"""What a backend is: the functions of the reference, which define them, replaced by its own where it has some.

B batch · S sequence length · I inputs · O outputs · N_t detectors · N_c anchor pairs per detector · N_pe positional bits ·
R rows of each table: 2**N_c, or 2**(2 N_c + N_pe) for a sequence.

`weight` is [N_t, R, O] with `Full` connectivity and flat [n_weights] with `Synapses`. Floating point tensors are float32,
float64, bfloat16 or float16; sums are in float32, or in float64 where an operand is float64 (`sum_dtype`), and are returned in
that dtype. Index tensors are int32. The callers hand over contiguous tensors of one device, anchors that were checked, thresholds
in the sum dtype of x (`comparisons_of`), and indices within their tables; a backend that would read outside of a table checks
indices again. Fixed sums have the same bits in every backend, in any order, with any number of threads; one that leaves its range
raises `OverflowInSumError` before anything given was changed.
"""

from __future__ import annotations

from importlib import import_module

from torch import Tensor

from lutetia.lut.kernels.protocol import Comparisons, Connectivity, Detected, Read, Sums
from lutetia.lut.kernels.reference import detect, reads, rows, sequences

ROOMS = ("detect", "rows", "reads", "sequences")  # the modules in which a backend has its primitives


class Backend:
    """The primitives. `detect_and_fill`, `read_and_fill` and `propagate` are two in one, for backends that fuse them."""

    detect, detect_positions = staticmethod(detect.detect), staticmethod(detect.detect_positions)
    read, fill_rows = staticmethod(reads.read), staticmethod(rows.fill_rows)
    row_gains, propagate = staticmethod(rows.row_gains), staticmethod(rows.propagate)
    send_slopes = staticmethod(reads.send_slopes)
    gather_rows, gather_compact = staticmethod(rows.gather_rows), staticmethod(rows.gather_compact)
    fill_sequence, fill_step = staticmethod(sequences.fill_sequence), staticmethod(sequences.fill_step)
    propagate_sequence = staticmethod(sequences.propagate_sequence)
    gather_sequence = staticmethod(sequences.gather_sequence)
    count_firings, fill_firings = staticmethod(sequences.count_firings), staticmethod(sequences.fill_firings)

    def __init__(self, name: str) -> None:
        for room in reversed(ROOMS):  # the first that has a name
            own = vars(import_module(f"lutetia.lut.kernels.{name}.{room}"))
            vars(self).update({each: own[each] for each in PRIMITIVES if each in own})

    def detect_and_fill(
        self, x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, sums: Sums, train: bool
    ) -> tuple[Tensor, Detected | None]:
        """x [B, I] -> y [B, O] and, with `train`, `Detected` [B, N_t]."""
        detected = self.detect(x, comparisons, train)
        return self.fill_rows(weight, connectivity, detected.indices, None, sums), detected if train else None

    def read_and_fill(
        self, x: Tensor, weight: Tensor, comparisons: Comparisons, connectivity: Connectivity, read: Read, sums: Sums
    ) -> Tensor:
        """x [B, I] -> y [B, O]."""
        indices, coefficients = self.read(x, comparisons, read, sums)
        return self.fill_rows(weight, connectivity, indices, reads.rows_that_are_added(coefficients, read), sums)


PRIMITIVES = [each for each in vars(Backend) if not each.startswith("_")]
