"""Which kernels a one-shot command uses: plain torch for a small job, the compiled loops for a large one.

Importing numba and loading its compiled loops takes 0.8 s of processor time, and minutes if they were never compiled before. A
small job in plain torch is done by then. So the work is counted before it starts, as the number of values that tables add up, and
only that count decides: the same command always runs on the same kernels. The two differ in the order of additions, so floats may
differ in their last digit; classes, and probabilities as they are printed, do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import NamedTuple

from torch import nn

from lutetia.lut import sum_dtype, use_backend
from lutetia.models import LUTTransformer, SoftmaxAttention
from lutetia.nn import LUT, LUTAttention

# In plain torch one number takes 3.3 ns of processor time, and a call as much as 20,000 of them: measured on two cores.
CALL = 20_000
MOST_NUMBERS = 200_000_000  # they take as long as loading the compiled loops, less the time that those would take
MOST_AT_ONCE = 1 << 24  # in one call, which holds all of its numbers in memory


class TableWork(NamedTuple):
    """How many values the tables of a model add up: in total, and in the largest call."""

    numbers: int = 0
    at_once: int = 0

    def times(self, count: int) -> TableWork:
        """This work, repeated."""
        return TableWork(self.numbers * count, self.at_once)

    def then(self, other: TableWork) -> TableWork:
        """This work followed by another."""
        return TableWork(self.numbers + other.numbers, max(self.at_once, other.at_once))


def forward_work(model: nn.Module, rows: int, length: int = 1, earlier: int = 0) -> TableWork:
    """The work of one forward pass over `rows` inputs, each of `length` positions that follow `earlier` cached ones."""
    work = TableWork()
    for layer in model.modules():
        if isinstance(layer, LUTAttention):
            pairs = rows * (length * earlier + length * (length - 1) // 2)
            work = work.then(_layer_work(layer, pairs, rows * max(length, earlier), calls=length))
        elif isinstance(layer, LUT):
            reads = rows * length * (2 if layer.read in ("blend", "confidence2") else 1)
            work = work.then(_layer_work(layer, reads, reads, calls=1))
        elif isinstance(layer, SoftmaxAttention) and earlier:  # without a cache it is torch's own attention
            numbers = 2 * rows * length * earlier * layer.n_heads * layer.head_dim
            work = work.then(TableWork(numbers + CALL, numbers))
    return work


def _layer_work(layer: LUT, reads: int, at_once: int, calls: int) -> TableWork:
    """`reads` rows of every table, `at_once` of them in the largest call."""
    # Plain torch works on a dense table in the dtype of the sums: where the layer holds no such table, each call makes one.
    sparse = layer.synapses is not None
    copied = layer.n_detectors * layer.n_rows * layer.n_outputs if sparse or sum_dtype(layer.weight) != layer.weight.dtype else 0
    row = layer.n_detectors * layer.n_outputs
    return TableWork(reads * row + calls * (CALL + copied), at_once * row + copied)


def generation_work(model: LUTTransformer, prompt: int, new: int) -> TableWork:
    """The work of writing `new` tokens after `prompt` ones: through the cache, then window by window."""
    context = model.config.context
    prompt = min(prompt, context)
    steps = min(max(new - 1, 0), context - prompt)
    work = forward_work(model, 1, prompt)
    if steps:
        work = work.then(forward_work(model, 1, 1, earlier=prompt + steps // 2).times(steps))  # linear in `earlier`
    return work.then(forward_work(model, 1, context).times(max(new - 1 - steps, 0)))


@contextmanager
def kernels_for(model: nn.Module, work: TableWork) -> Iterator[str]:
    """Run the block on the kernels that suit the work; yields the name of their backend, "reference" or "cpu"."""
    small = work.numbers <= MOST_NUMBERS and work.at_once <= MOST_AT_ONCE
    attentions = [module for module in model.modules() if isinstance(module, SoftmaxAttention)]
    before = [attention.backend for attention in attentions]
    if small:
        for attention in attentions:
            attention.backend = "reference"
    try:
        with use_backend("reference") if small else nullcontext():
            yield "reference" if small or find_spec("numba") is None else "cpu"
    finally:
        for attention, backend in zip(attentions, before, strict=True):
            attention.backend = backend
