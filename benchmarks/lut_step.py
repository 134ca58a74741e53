"""One LUT layer on a GPU, mode for mode: at least 2.5x the original CUDA library in graphs, and 2x eagerly from 128 tables on.

At the original's own shapes, in float32: eager calls beside its eager calls, replays of a CUDA graph beside replays of its
patched build, whose times are constants (see original.py); and `torch.compile`, for which it has no counterpart. A training step
is forward, gradient of the inputs and gradient of the weights.

How good that is: every kernel's work is to gather rows, so its rate (bytes of rows over time) stands beside the rate at which a
plain kernel reads a buffer of the size of the tables, over and over.

    lutetia bench lut_step [--quick] [--json] [--save]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import original
from empty_graph import nothing_from
from gpu_timing import Runs, Steps, compiled_as, in_processes, replayed, step_runs
from lutetia.lut import Synapses, growth, kernels, random_anchors
from lutetia.nn import LUT
from original import Original
from results import Row, finish, needs_cuda, options_of, progress, result, table

NEEDS = ("cuda",)
GROUPED = (24576, 384, 384, 512, 8)  # 8 heads × 64 tables, each head reads its own 48 inputs and writes its own 48 outputs
QUICK = (64, 32, 32, 16, 6)
GRAPH, EAGER = 2.5, 2.0  # claimed: in eval and in training; eager calls of small layers are bound by Python's launching
LARGE = 128  # tables of a layer that is not small
STACKS = (1, 4, 8)  # small modules, one after the other
FLOOR_MODES, CALLS = ("eager", "compiled", "reduce-overhead"), 20
EMPTY = "empty graph"
ALONE = ("eager", "compiled")  # also timed with the backward pass on the calling thread
COMPILING = (
    *(f"{step}, {mode}" for step in original.STEPS for mode in FLOOR_MODES),
    *(f"train, {mode}, one thread" for mode in ALONE),
)
KERNELS = ("eval forward", "train forward", "x gradient", "weight gradient")


def main(argv: list[str] | None = None) -> int:
    """Run the shapes; 1 when a claim is missed."""
    options = options_of(__doc__).parse_args(argv)
    if not needs_cuda("lut_step", "lut_cpu"):
        return 1
    shapes: dict[tuple[int, ...], Original | None] = {**original.STEP, GROUPED: None}
    if options.quick:
        shapes = {QUICK: original.STEP[4096, 32, 32, 16, 6]}
    times = dict(zip(shapes, in_processes(runs_of, list(shapes)), strict=True))
    layers = [{"shape": name_of(shape), **original.beside(times[shape], peer)} for shape, peer in shapes.items()]
    rates = [{"shape": name_of(shape), **rates_of(Layer(shape))} for shape in shapes]
    tables = [
        table("layers", {"shape": None, **original.COLUMNS}, layers),
        table("rates", {"shape": None, **dict.fromkeys((*KERNELS, "plain read"), "TB/s"), "one entry / usual": "times"}, rates),
        table("compiling", {"module": None, **dict.fromkeys(COMPILING, "ms")},
              compiled_modules(*((64, (1, 2)) if options.quick else (4096, STACKS)))),
    ]  # fmt: skip
    found = result(__doc__, "lut_step", {"dtype": "float32"}, tables, peers=original.PEERS, missed=claims(layers))
    return finish(found, options)


def name_of(shape: tuple[int, ...]) -> str:
    return "B{} I{} O{} N_t{} N_c{}".format(*shape) + (", 8 groups" if shape == GROUPED else "")


def claims(layers: list[Row]) -> list[str]:
    """What was claimed and is not so."""
    missed = []
    for row in layers:
        for step in original.STEPS:
            for mode, least in (("graph", GRAPH), ("eager", EAGER)):
                ratio = row.get(f"{step}, {mode}/{mode}")
                small = mode == "eager" and int(row["shape"].split("N_t")[1].split()[0]) < LARGE
                if ratio is not None and ratio < least and not small:
                    missed.append(f"{row['shape']}: {step} {ratio:.2f} times as fast, {mode} against {mode}, {least} claimed")
    return missed


def compiled_modules(batch: int, stacks: tuple[int, ...]) -> list[Row]:
    """What `torch.compile` makes of small modules and stacks of them beside ours, all taking turns: one to eight of
    nn.Linear(32, 32), nn.LUT(32, 32, 16, 6), or of modules that have the tensors of ours and compute nothing: what is around an
    empty graph is the floor of a compiled call."""
    rows: dict[str, Row] = {}
    for number, times in zip(stacks, in_processes(stack_runs, [(batch, number) for number in stacks]), strict=True):
        for name, ms in times.items():
            module, step = name.split(": ")
            rows.setdefault(f"{number} × {module}", {"module": f"{number} × {module}"})[step] = ms
    return list(rows.values())


def stack_runs(case: tuple[int, int], modes: Sequence[str]) -> tuple[Runs, int]:
    """The runs of a batch of rows through so many modules."""
    batch, number = case
    progress(f"{number} modules, {' and '.join(modes)}")
    makers: dict[str, Callable[[int], torch.nn.Module]] = {
        EMPTY: lambda _: NoOp(),
        "nn.Linear": lambda _: torch.nn.Linear(32, 32),
        "nn.LUT": lambda seed: LUT(32, 32, 16, 6, seed=seed),
    }
    torch.compiler.reset()
    runs: Runs = {}
    # All modules share the code that the compiler counts by: past its usual limit the last ones would run eagerly.
    with torch._dynamo.config.patch(recompile_limit=256):
        for name, make in makers.items():
            module = torch.nn.Sequential(*(make(seed) for seed in range(number))).to("cuda")
            x, grad = torch.randn(batch, 32, device="cuda", requires_grad=True), torch.randn(batch, 32, device="cuda")

            def forward_in(mode: str, module: torch.nn.Module = module, x: Tensor = x) -> Callable[[], Tensor]:
                return partial(compiled_as(mode, module), x)

            taken = [mode for mode in FLOOR_MODES if (mode == "eager") == ("eager" in modes) and (name, mode) != (EMPTY, "eager")]
            steps = step_runs(forward_in, [x, *module.parameters()], grad, CALLS, taken)
            steps |= {f"train, {mode}, one thread": on_one_thread(steps[f"train, {mode}"]) for mode in ALONE if mode in taken}
            runs |= {f"{name}: {step}": run for step, run in steps.items()}
    return runs, CALLS


def on_one_thread(run: Callable[[], Any]) -> Callable[[], Any]:
    """What runs, with its backward passes on the thread that calls it."""

    def call() -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run()

    call()
    return call


class NoOp(torch.nn.Module):
    """The tensors of ours, from which nothing is computed: both passes give memory as it is, and launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(16, 64, 32))
        self.register_buffer("anchors", torch.zeros(16, 6, 2, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        return nothing_from((x, self.weight, self.anchors), x.shape)


def grouped_synapses() -> Synapses:
    t = torch.arange(512).repeat_interleave(48)
    outputs = t // 64 * 48 + torch.arange(48).repeat(512)
    return growth.from_edges(512, 8, 384, torch.stack([t, outputs], 1)).to("cuda")


class Layer:
    """The tensors of one layer and one batch."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        batch, n_inputs, self.n_outputs, n_detectors, n_anchors = shape
        torch.manual_seed(0)
        self.synapses = grouped_synapses() if shape == GROUPED else None
        fields = None if self.synapses is None else (torch.arange(512)[:, None] // 64 * 48 + torch.arange(48)).int()
        anchors = random_anchors(n_inputs, n_detectors, n_anchors, seed=0, fields=fields)
        sizes = (n_inputs, self.n_outputs, n_detectors, n_anchors)
        self.module = LUT(*sizes, synapses=self.synapses, anchors=anchors, seed=0, device="cuda")
        self.weight, self.anchors = self.module.weight, self.module.anchors
        self.x = torch.randn(batch, n_inputs, device="cuda", requires_grad=True)
        self.grad = torch.randn(batch, self.n_outputs, device="cuda")


def runs_of(shape: tuple[int, ...], modes: Sequence[str]) -> tuple[Runs, int]:
    """The steps of one shape in these modes."""
    progress(f"{name_of(shape)}, {' and '.join(modes)}")
    layer = Layer(shape)
    steps = Steps(lambda: layer.module(layer.x), (layer.x, layer.weight), layer.grad, (layer.anchors,))
    return steps.runs(modes), steps.calls


def rates_of(layer: Layer) -> Row:
    """The rates of the kernels of one shape."""
    x, weight = layer.x.detach(), layer.weight.detach()
    taken = {name: replayed(call) for name, call in pieces(x, weight, layer.anchors, layer.grad, layer.synapses).items()}
    width = layer.n_outputs if layer.synapses is None else 48
    gathered = len(x) * len(layer.anchors) * width * 4 / 1e9  # rows of one gather, GB; GB per ms is TB/s
    rates = {name: (2 if name == "x gradient" else 1) * gathered / taken[name] for name in KERNELS}
    return {
        **rates,
        "plain read": read_rate(weight),
        "one entry / usual": taken["weight gradient, one entry"] / taken["weight gradient"],
    }


def pieces(x: Tensor, weight: Tensor, anchors: Tensor, grad: Tensor, synapses: Synapses | None) -> dict[str, Callable[[], Any]]:
    """The kernels of a step, one by one."""
    k, kind = kernels("triton"), "fc" if synapses is None else "sparse"
    rest = () if synapses is None else (synapses,)
    n_rows = 2 ** anchors.shape[1]
    found = k.check_detectors(x, anchors)
    one_entry = torch.zeros_like(found[0])

    def gather(indices: Tensor) -> Tensor:
        return getattr(k, f"gather_weight_gradients_{kind}")(grad, indices, *(rest or (n_rows,)))

    return {
        "eval forward": lambda: getattr(k, f"detect_and_fill_eval_{kind}")(x, weight, anchors, *rest),
        "train forward": lambda: getattr(k, f"detect_and_fill_{kind}")(x, weight, anchors, *rest),
        "x gradient": lambda: getattr(k, f"propagate_through_detectors_{kind}")(grad, weight, *found, anchors, x.shape[1], *rest),
        "weight gradient": lambda: gather(found[0]),
        "weight gradient, one entry": lambda: gather(one_entry),
    }


def read_rate(buffer: Tensor) -> float:
    """TB/s at which a plain kernel reads a buffer of this size again and again: out of L2 when it fits, else out of memory."""
    buffer = buffer.flatten()
    programs, tile, rounds = 4224, 1024, 64
    tiles = buffer.numel() // tile
    out = buffer.new_empty(programs)

    def call() -> None:
        read_kernel[(programs,)](buffer, out, tiles, rounds, TILE=tile, num_warps=1)

    return programs * rounds * tile * 4 / 1e9 / replayed(call)


@triton.jit
def read_kernel(buffer_ptr, out_ptr, tiles, rounds, TILE: tl.constexpr):
    """Every program reads `rounds` tiles, all programs side by side, round after round through the buffer."""
    total = tl.zeros([TILE], tl.float32)
    for i in range(0, rounds, 2):
        tile = (tl.program_id(0) + i * tl.num_programs(0)) % tiles
        other = (tl.program_id(0) + (i + 1) * tl.num_programs(0)) % tiles
        total += tl.load(buffer_ptr + tile.to(tl.int64) * TILE + tl.arange(0, TILE))
        total += tl.load(buffer_ptr + other.to(tl.int64) * TILE + tl.arange(0, TILE))
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


if __name__ == "__main__":
    sys.exit(main())
