"""Tables that fit in shared memory: what detectors read, rows added up, and the three gradients, each in one CUDA kernel.

Everything is float32, as in the Triton kernels; narrower tensors are widened first. What detectors found is kept by detector:
[B, N_t] with strides (1, B).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from lutetia._shared import nvrtc
from lutetia._shared.memo import Memo
from lutetia.lut.connectivity.anchors import is_captured
from lutetia.lut.kernels.cuda import SOURCES, is_narrow
from lutetia.lut.kernels.protocol import TWO_ROWS, Coefficients, Detected, Read
from lutetia.lut.kernels.triton.layout import Layout

READS, ROWS, GATHER = (SOURCES / f"{name}.cu" for name in ("reads", "rows", "gather"))
KINDS = {"hard": 0, "blend": 1, "confidence": 2, "confidence2": 3}
THREADS = (512, 768)  # of a block that reads rows; the second where a row takes few enough registers
NARROW = 48  # outputs of such a row
GATHER_ROWS, GATHER_THREADS = (1024, 512), 1024  # rows of the batch that a block gathers, and its threads, at most
TEAMS = 2  # of such a block
MOST_TOGETHER = 4  # tables between two barriers, at most: as many are read as are on their way
SPLITS = 2  # waves of blocks that a gradient is cut into, at least


class Windows(NamedTuple):
    """Anchors as the kernels take them: runs of detectors whose inputs no other run reads.

    segments int32 [n, 4] hold first detector, one past the last, first input, inputs; pairs int32 [N_t, N_c, 2] where the
    columns of a pair begin in a window, in bytes.
    """

    segments: Tensor
    pairs: Tensor
    widest: int
    tile: int  # rows of x at a time
    all_inputs: bool  # whether every input is in a window


def windows_of(anchors: Tensor, n_inputs: int) -> Windows | None:
    """The windows of these anchors, None where one is too wide for shared memory, or where a capture first asks for them."""
    return _windows.get((anchors,), n_inputs, is_captured)  # looking at the anchors waits for the device


def _windows_of(anchors: Tensor, n_inputs: int) -> Windows | None:
    flat = anchors.flatten(1).cpu().long()
    lowest, highest = flat.amin(1), flat.amax(1)
    before, after = highest.cummax(0).values, lowest.flip(0).cummin(0).values.flip(0)
    cuts = [0, *((before[:-1] < after[1:]).nonzero().flatten() + 1).tolist(), len(flat)]
    runs = list(pairwise(cuts))
    spans = [(int(lowest[i:j].min()), int(highest[i:j].max()) + 1) for i, j in runs]
    widest = max(last - first for first, last in spans)
    tile = next((tile for tile in (128, 64) if 8 * widest * (tile + 1) <= nvrtc.limits().shared - 8192), 0)
    if not tile:
        return None
    start = torch.tensor([first for first, _ in spans]).repeat_interleave(torch.tensor([j - i for i, j in runs]))
    pairs = (anchors.cpu().long() - start[:, None, None]) * (4 * (tile + 1))
    segments = torch.tensor([[*run, first, last - first] for run, (first, last) in zip(runs, spans, strict=True)])
    covered = sum(last - first for first, last in spans) == n_inputs
    return Windows(segments.int().to(anchors.device), pairs.int().to(anchors.device), widest, tile, covered)


_windows = Memo(_windows_of)


def columns(tensor: Tensor) -> Tensor:
    """[B, N_t] -> [N_t, B], contiguous."""
    return tensor.t().contiguous()


def _by_detector(x: Tensor, n_detectors: int, dtype: torch.dtype) -> Tensor:
    return x.new_empty(n_detectors, x.shape[0], dtype=dtype).t()


# ---- reads -----------------------------------------------------------------------------------------------------------


def _reader(name: str, kind: str, windows: Windows, device: int | None, n_anchors: int, tiles: int) -> nvrtc.Kernel:
    constants = (("KIND", KINDS[kind]), ("N_C", n_anchors), ("TILE", windows.tile), ("V", windows.widest))
    launch = (windows.tile, tiles * 4 * windows.widest * (windows.tile + 1))
    return nvrtc.kernel(READS, name, constants, launch, device)


def detect(x: Tensor, anchors: Tensor, windows: Windows, train: bool) -> Detected:
    """x [B, I] -> `Detected`, by detector."""
    indices = _by_detector(x, anchors.shape[0], torch.int32)
    found = Detected(indices)
    if train:
        found = Detected(indices, _by_detector(x, anchors.shape[0], torch.float32), torch.empty_like(indices))
    _read(x, anchors, windows, Read(), (indices, found.min_delta_index, found.min_delta, None))
    return found


def read(x: Tensor, anchors: Tensor, windows: Windows, how: Read) -> tuple[Tensor, Coefficients]:
    """x [B, I] -> indices and coefficients, by detector."""
    indices, a = (_by_detector(x, anchors.shape[0], dtype) for dtype in (torch.int32, torch.float32))
    coefficients = (
        Coefficients(a) if how.name == "confidence" else Coefficients(a, torch.empty_like(a), torch.empty_like(indices))
    )
    _read(x, anchors, windows, how, (indices, coefficients.alternatives, a, coefficients.b))
    return indices, coefficients


def read_and_fill(x: Tensor, weight: Tensor, anchors: Tensor, windows: Windows, layout: Layout, how: Read) -> Tensor:
    """x [B, I] -> y [B, O] of a soft read. Where it adds two rows, one number names both between the two kernels."""
    indices, a = (_by_detector(x, anchors.shape[0], dtype) for dtype in (torch.int32, torch.float32))
    b = torch.empty_like(a) if how.name in TWO_ROWS else None
    _read(x, anchors, windows, how, (indices, None, a, b))
    return _fill(weight, layout, x.shape[0], 1 if b is None else 2, (indices, None, a, b))


def _read(x: Tensor, anchors: Tensor, windows: Windows, how: Read, out: tuple[Tensor | None, ...]) -> None:
    run = _reader("read_detectors", how.name, windows, x.device.index, anchors.shape[1], 1)
    logs = [None if log is None else log.float() for log in how.logs]
    x = x.float().contiguous()
    run((-(-x.shape[0] // windows.tile), len(windows.segments), 1), x, windows.pairs, windows.segments, *logs, *out, *x.shape)


def send_slopes(
    x: Tensor, anchors: Tensor, windows: Windows, how: Read, gains: tuple[Tensor, Tensor | None], to_x: bool
) -> tuple[Tensor | None, Tensor]:
    """The gradients of a and b [B, N_t] -> dx [B, I] (None unless `to_x`), and of log β, log γ, log τ: [3]."""
    blocks = (-(-x.shape[0] // windows.tile), len(windows.segments), 1)
    shares = x.new_zeros(blocks[0] * blocks[1] * windows.tile // 32, 3, dtype=torch.float32)
    dx = _room_for_dx(x.shape, windows, shares) if to_x else None
    run = _reader("send_slopes", how.name, windows, x.device.index, anchors.shape[1], 2)
    logs = [None if log is None else log.float() for log in how.logs]
    da, db = (None if gain is None else columns(gain.float()) for gain in gains)
    x = x.float().contiguous()
    run(blocks, x, windows.pairs, windows.segments, *logs, da, db, None, dx, shares, *x.shape)
    return dx, shares.sum(0)


def send_hard_slopes(slope: Tensor, detected: Detected, anchors: Tensor, windows: Windows, n_inputs: int) -> Tensor:
    """What `hard_slope` gave -> dx [B, I] of the hard read."""
    batch, (_, which) = slope.shape[0], detected.closest
    dx = _room_for_dx((batch, n_inputs), windows, slope)
    run = _reader("send_slopes", "hard", windows, slope.device.index, anchors.shape[1], 1)
    found = (columns(slope), None, columns(which))
    blocks = (-(-batch // windows.tile), len(windows.segments), 1)
    run(blocks, None, windows.pairs, windows.segments, None, None, None, *found, dx, None, batch, n_inputs)
    return dx


def _room_for_dx(shape: tuple[int, ...], windows: Windows, like: Tensor) -> Tensor:
    return (like.new_empty if windows.all_inputs else like.new_zeros)(shape, dtype=torch.float32)


# ---- rows ------------------------------------------------------------------------------------------------------------


def fits(layout: Layout, *tensors: Tensor) -> bool:
    """Whether these tables pass through shared memory, and the tensors lie as the kernels read them."""
    if not layout.run or not is_narrow(layout.width, layout.n_rows):
        return False
    return all(tensor.data_ptr() % 16 == 0 and tensor.dtype != torch.float64 for tensor in tensors)


def _over_tables(name: str, layout: Layout, count: int, y: Tensor, *arguments: Tensor | None) -> None:
    """Launch a kernel that goes through the tables, for as many rows of the batch at a time as leaves the fewest idle in the end.

    `y` [B, O] is the output, or its gradient.
    """
    batch, table = y.shape[0], 4 * layout.n_rows * layout.width
    together = min(MOST_TOGETHER, nvrtc.limits().shared // (2 * table))
    blocks = {threads: -(-batch // threads) for threads in THREADS[: 2 if layout.width <= NARROW else 1]}
    rounds = {threads: -(-blocks[threads] * layout.n_blocks // nvrtc.limits().multiprocessors) for threads in blocks}
    threads = min(reversed(blocks), key=lambda threads: rounds[threads] * threads)
    constants = (("COUNT", count), ("R", layout.n_rows), ("THREADS", threads), ("TOGETHER", together), ("W", layout.width))
    run = nvrtc.kernel(ROWS, name, constants, (threads, 2 * together * table), y.device.index)
    run((blocks[threads], layout.n_blocks, 1), *arguments, *y.shape, layout.run)


def fill(weight: Tensor, layout: Layout, indices: Tensor, coefficients: Coefficients | None) -> Tensor:
    """indices [B, N_t] -> y [B, O]."""
    return _fill(weight, layout, indices.shape[0], *_found(indices, coefficients))


def _fill(weight: Tensor, layout: Layout, batch: int, count: int, found: tuple[Tensor | None, ...]) -> Tensor:
    """From indices, alternatives, a, b by detector; without alternatives the indices of two rows hold them."""
    y = weight.new_empty(batch, layout.n_outputs, dtype=torch.float32)
    _over_tables("fill_rows", layout, count, y, weight.float(), *found, y)
    return y


def _found(indices: Tensor, coefficients: Coefficients | None) -> tuple[int, tuple[Tensor | None, ...]]:
    """How many coefficients there are, and indices, alternatives, a, b by detector."""
    if coefficients is None:
        return 0, (columns(indices), None, None, None)
    a, b, alternatives = coefficients
    if alternatives is None or b is None:
        return 1, (columns(indices), None, columns(a.float()), None)
    return 2, (columns(indices), columns(alternatives), columns(a.float()), columns(b.float()))


def gains(grad: Tensor, weight: Tensor, layout: Layout, rows: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """grad [B, O], rows [B, N_t] -> g·W[t, index_t] of each, by detector."""
    index, other = (None if row is None else columns(row) for row in rows)
    out = [None if row is None else _by_detector(grad, layout.n_detectors, torch.float32) for row in rows]
    _gains(grad, weight, layout, 1 if other is None else 2, (index, other, None), out)
    da, db = out
    assert da is not None
    return da, db


def hard_slope(grad: Tensor, weight: Tensor, layout: Layout, detected: Detected) -> Tensor:
    """grad [B, O] -> U'(margin) · g·(W[t, index_t] - W[t, flipped]), by detector."""
    slope, (min_delta, which) = _by_detector(grad, layout.n_detectors, torch.float32), detected.closest
    _gains(grad, weight, layout, 0, (columns(detected.indices), columns(which), columns(min_delta)), [slope, None])
    return slope


def _gains(
    grad: Tensor, weight: Tensor, layout: Layout, count: int, found: tuple[Tensor | None, ...], out: list[Tensor | None]
) -> None:
    """From indices, others and margins by detector."""
    _over_tables("row_gains", layout, count, grad, weight.float(), *found, grad.float().contiguous(), *out)


def gather(grad: Tensor, layout: Layout, indices: Tensor, coefficients: Coefficients | None, out: Tensor, scale: float) -> None:
    """out [n_weights] += scale · the gradient of the tables: grad [B, O], indices [B, N_t]."""
    count, found = _found(indices, coefficients)
    sizes = [(rows, teams) for rows in GATHER_ROWS for teams in (TEAMS, 1)]
    rows, teams = next(size for size in sizes if _shared_to_gather(*size, layout, count) <= nvrtc.limits().shared - 256)
    threads = min(GATHER_THREADS, rows)
    sorting = (("ROWS", rows), ("TEAMS", teams), ("THREADS", threads // teams))
    constants = (("COUNT", count), ("R", layout.n_rows), *sorting, ("W", layout.width))
    launch = (threads, _shared_to_gather(rows, teams, layout, count))
    run, tiles, splits = (
        nvrtc.kernel(GATHER, "gather_rows", constants, launch, grad.device.index),
        -(-grad.shape[0] // rows),
        1,
    )
    while layout.run % (2 * splits) == 0 and tiles * layout.n_blocks * splits < SPLITS * nvrtc.limits().multiprocessors:
        splits *= 2
    numbers = (*grad.shape, layout.run, layout.run // splits)
    run((tiles, layout.n_blocks, splits), grad.float().contiguous(), *found, out, float(scale), *numbers)


def _shared_to_gather(rows: int, teams: int, layout: Layout, count: int) -> int:
    return 4 * rows * layout.width + teams * (8 * rows * max(1, count) + 4 * layout.n_rows)
