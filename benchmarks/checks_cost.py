"""The checks of a layer's tensors cost at most 2% of a small eager call.

One `nn.LUT` called eagerly in eval mode, at batch 1 on a CPU and as a small layer on a GPU; and the same without what only guards
against tensors that were changed or replaced: identities, addresses, version counters, and on the CPU the compare of all anchors
with the number of inputs. What remains chooses who runs. Both take turns, a few calls at a time; the cost is the median of the
differences between neighbouring turns. Time is that of the processor: checks never wait for the GPU.

    lutetia bench checks_cost [--quick] [--json] [--save] [-- --turns 4000]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from lutetia.lut.autograd.direct import PLAIN, is_quiet
from torch import Tensor

import lutetia
from lutetia.lut import api
from lutetia.lut.autograd import quick
from lutetia.lut.kernels import choice
from lutetia.nn import LUT
from results import Row, finish, options_of, progress, result, table

MOST = 0.02
CALLS = 20  # of each kind in a turn
CASES = (("cpu", 1, (32, 32, 16, 6)), ("cpu", 1, (384, 384, 64, 8)), ("cuda", 4096, (32, 32, 16, 6)))


def trusting(x: Tensor, weight: Tensor, anchors: Tensor, mark: Any) -> quick.Quick | None:
    """`quick_for` without its checks."""
    if type(x) not in PLAIN:
        return None
    known = quick._known.get((id(weight), x.shape))
    if known is None or not known.takes(x):
        return None
    return known if is_quiet() and not lutetia.debug and choice.chosen in ("", known.backend) else None


def trusting_loop() -> Any:
    """The loop `evaluate` of the CPU without its look at the anchors."""
    from lutetia.lut.kernels.cpu.loops import rows

    detect, fill = rows.detect, rows.fill

    @rows.kernel
    def evaluate(inputs, weight, blocks, y, scale, begin, end):  # type: ignore[no-untyped-def]
        x, anchors = inputs
        n, zero, no = end - begin, np.int64(0), np.bool_(False)
        indices = np.empty((n, anchors.shape[0]), np.uint32)
        detect((x[begin:end], anchors, None), indices, no, None, zero, n)
        return fill(weight, blocks, ((indices, None), None), y[begin:end], scale, zero, n)

    return evaluate


@contextmanager
def without_checks(launches: Any, loop: Any) -> Iterator[None]:
    """Calls in the block check nothing."""
    before = api.quick_for, getattr(launches, "run", None)
    api.quick_for, launches.run = trusting, loop
    try:
        yield
    finally:
        api.quick_for, launches.run = before


def measure(device: str, batch: int, sizes: tuple[int, int, int, int], turns: int) -> Row:
    """Microseconds of a call, and what of them the checks take."""
    layer = LUT(*sizes, seed=0, device=device).eval()
    x = torch.randn(batch, sizes[0], device=device)
    with torch.no_grad():
        expected = layer(x)
        launches = quick._known[id(layer.weight), x.shape].launches
        loop = trusting_loop() if device == "cpu" else None
        with without_checks(launches, loop):
            assert torch.equal(layer(x), expected)
        timed(layer, x)
        taken, saved = [], []
        for _ in range(turns):
            first = timed(layer, x)
            with without_checks(launches, loop):
                bare = timed(layer, x)
            second = timed(layer, x)
            taken.append((first + second) / 2)
            saved.append(taken[-1] - bare)
    call, checks = (1e6 * statistics.median(each) for each in (taken, saved))
    names = ("inputs", "outputs", "tables", "N_c")
    shape = ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
    return {"shape": shape, "device": device, "batch": batch, "call": call, "checks": checks, "share": checks / call}


def timed(layer: LUT, x: Tensor) -> float:
    """Seconds of processor time of a call of this thread."""
    if x.is_cuda:
        torch.cuda.synchronize()
    begun = time.thread_time()
    for _ in range(CALLS):
        layer(x)
    return (time.thread_time() - begun) / CALLS


def main(argv: list[str] | None = None) -> int:
    """Time both, and print; 1 where checks cost more than claimed."""
    parser = options_of(__doc__)
    parser.add_argument("--turns", type=int, default=4000, help="of each layer (default 4000)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    turns, rows = 20 if options.quick else options.turns, []
    for device, batch, sizes in CASES:
        if device == "cpu" or torch.cuda.is_available():
            progress(f"{device}, batch {batch}, {sizes}")
            rows.append(measure(device, batch, sizes, turns))
    missed = [f"{row['shape']} on {row['device']}: {row['share']:.1%} of a call" for row in rows if row["share"] > MOST]
    columns = {"shape": None, "device": None, "batch": None, "call": "µs", "checks": "µs", "share": None}
    settings = {"turns": turns, "calls": CALLS, "time": "of the processor, one thread"}
    tables = [table("cost", columns, rows)]
    return finish(result(__doc__, "checks_cost", settings, tables, missed=[] if options.quick else missed), options)


if __name__ == "__main__":
    sys.exit(main())
