"""The checks of a layer's tensors cost at most 2% of a small eager call.

One `nn.LUT` called eagerly in eval mode, at batch 1 on a CPU and as a small layer on a GPU; and the same without what guards
against anchors and synapses that were changed: version counters, where the anchors are, and on the CPU the compare of all
anchors with the number of inputs. What remains finds the call that was prepared. `identities` is what that asks of the tensors
of the layer: whether they are the same objects, and the weight at the same address. All take turns, a few calls at a time, and
the slowest of the fastest tenth counts. Where code lies in memory matters as much: 45 rounds have copies of their own, and the
median round is told. Time is that of the processor: checks never wait for the GPU.

    lutetia bench checks_cost [--quick] [--json] [--save] [-- --turns 13500]
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lutetia._shared import prepared
from lutetia._shared.direct import PLAIN, is_quiet
from lutetia.lut import api
from lutetia.lut.autograd import quick
from lutetia.nn import LUT
from results import Row, finish, options_of, progress, result, table

MOST = 0.02
CALLS, ROUNDS = 20, 45  # calls of each kind in a turn
CASES = (("cpu", 1, (32, 32, 16, 6)), ("cpu", 1, (384, 384, 64, 8)), ("cuda", 4096, (32, 32, 16, 6)))
known: dict[Any, prepared.Prepared] = {}


def trusting(x: Tensor, weight: Tensor, anchors: Tensor, mark: Any, backend: str) -> prepared.Prepared | None:
    """`prepared_for` without its checks."""
    if type(x) not in PLAIN:
        return None
    call = known.get((id(weight), x.shape))
    if call is None or call.anchors is not anchors or (call.mark is not mark and call.launches.connectivity is not mark):
        return None
    if weight.data_ptr() != call.weight_pointer or not call.takes(x):
        return None
    return call if is_quiet() and backend in ("", call.backend) else None


def blind(x: Tensor, weight: Tensor, anchors: Tensor, mark: Any, backend: str) -> prepared.Prepared | None:
    """The same, which takes any tensors for those that it knows."""
    if type(x) not in PLAIN:
        return None
    call = known.get((id(weight), x.shape))
    if call is None or not call.takes(x):
        return None
    return call if is_quiet() and backend in ("", call.backend) else None


def trusting_loop() -> Any:
    """The loop `evaluate` of the CPU without its look at the anchors."""
    from lutetia.lut.kernels.cpu.loops import rows

    detect, fill = rows.detect, rows.fill

    @rows.kernel
    def evaluate(inputs, weight, blocks, y, scale, begin, end):  # type: ignore[no-untyped-def]
        x, anchors = inputs
        n, zero = end - begin, np.int64(0)
        indices = np.empty((n, anchors.shape[0]), np.uint32)
        detect((x[begin:end], anchors, None), indices, None, zero, n)
        return fill(weight, blocks, ((indices, None), None), y[begin:end], scale, zero, n)

    return evaluate


def asking(look: Any, layer: LUT, x: Tensor, loop: Any = None) -> LUT:
    """A layer of the same tensors that asks `look` what serves a call with tensors like x, and runs this loop if there is one.

    The functions on the way are copies: Python makes each quicker for what it calls, and slower for two that take turns.
    """
    key = (id(layer.weight), x.shape)
    call = copy.copy(prepared.known[key])
    call.launches = copy.copy(call.launches)
    if loop is not None:
        call.launches.run = loop
    made, quick_for = copy.copy(layer), copied(quick.quick_for, prepared_for=copied(look, known={key: call}))
    look_up = copied(LUT._look_up, quickly=copied(api.quickly, quick_for=quick_for))
    made.__class__ = type("LUT", (LUT,), {"forward": copied(LUT.forward), "_look_up": look_up})
    return made


def copied(function: Any, **names: Any) -> Any:
    """A function of its own code, which finds other things under these names."""
    return FunctionType(function.__code__.replace(), {**function.__globals__, **names}, function.__name__, function.__defaults__)


def compare(layer: LUT, x: Tensor, loop: Any, turns: int) -> tuple[float, float, float]:
    """Microseconds of a call, of its checks, and of the identities, as these copies of the functions lie in memory."""
    kinds = [asking(prepared.prepared_for, layer, x), asking(trusting, layer, x, loop), asking(blind, layer, x, loop)]
    assert all(torch.equal(each(x), layer(x)) for each in kinds)
    times: list[list[float]] = [[] for _ in kinds]
    for turn in range(turns):
        for which in range(3) if turn % 2 else reversed(range(3)):
            times[which].append(timed(kinds[which], x))
    call, trusted, blinded = (1e6 * statistics.quantiles(each, n=10)[0] for each in times)
    return call, call - trusted, trusted - blinded


def measure(device: str, batch: int, sizes: tuple[int, int, int, int], turns: int) -> Row:
    """Microseconds of a call, and what of them the checks take."""
    layer = LUT(*sizes, seed=0, device=device).eval()
    x = torch.randn(batch, sizes[0], device=device)
    loop = trusting_loop() if x.is_cpu else None
    with torch.no_grad():
        layer(x)
        rounds = [compare(layer, x, loop, turns // ROUNDS) for _ in range(ROUNDS)]
    call, checks, identities = (statistics.median(each) for each in zip(*rounds, strict=True))
    names = ("inputs", "outputs", "tables", "N_c")
    shape = ", ".join(f"{name} {size}" for name, size in zip(names, sizes, strict=True))
    return {"shape": shape, "device": device, "batch": batch, "call": call, "checks": checks, "identities": identities}


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
    parser.add_argument("--turns", type=int, default=13_500, help="of each layer (default 13,500)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    turns, rows = 10 * ROUNDS if options.quick else options.turns, []
    for device, batch, sizes in CASES:
        if device == "cpu" or torch.cuda.is_available():
            progress(f"{device}, batch {batch}, {sizes}")
            rows.append(measure(device, batch, sizes, turns))
    shares = {f"{row['shape']} on {row['device']}": row["checks"] / row["call"] for row in rows}
    missed = [f"{where}: {share:.1%} of a call" for where, share in shares.items() if share > MOST]
    columns = {"shape": None, "device": None, "batch": None, "call": "µs", "checks": "µs", "identities": "µs"}
    settings = {"turns": turns, "rounds": ROUNDS, "calls": CALLS, "time": "of the processor, one thread"}
    tables = [table("cost", columns, rows)]
    return finish(result(__doc__, "checks_cost", settings, tables, missed=[] if options.quick else missed), options)


if __name__ == "__main__":
    sys.exit(main())
