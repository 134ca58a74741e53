"""Growing connectivity: full, random, from a list of edges, in 2-D windows.

`n_anchors` is the number of bits of the table's index, so a table has 2**n_anchors rows; for LUT attention that is
2·n_anchors + positional_dim of the layer. Everything is grown on the CPU; `Synapses.to` moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lutetia._shared.arrays import check_each_below, first_repeat, integers_of
from lutetia._shared.sampling import bernoulli_places, keep_some
from lutetia._shared.windows import Size, corners_of, offsets, pair_of, pixels_of, room_for
from lutetia.errors import ArgumentError, check_choice, check_int, check_range, fail
from lutetia.lut.connectivity.anchors import MAX_ANCHORS
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.connectivity.synapses import Layout, Synapses

DEFAULT_META = SynapseMeta()


def fully_connected(n_detectors: int, n_anchors: int, n_outputs: int, meta: SynapseMeta = DEFAULT_META) -> Synapses:
    """Every row of every detector reaches every output (shared layout)."""
    _check_sizes(n_detectors, n_anchors, n_outputs)
    targets = np.tile(np.arange(n_outputs, dtype=np.int32), (n_detectors, 1))
    return _same_width(targets, n_anchors, n_outputs, meta)


def random(
    n_detectors: int,
    n_anchors: int,
    n_outputs: int,
    probability: float,
    *,
    seed: int,
    shared: bool = False,
    metas: Sequence[SynapseMeta] = (DEFAULT_META,),
) -> Synapses:
    """Each lookup neuron (each detector, when shared) reaches each output with a probability, independently.

    Where there are several metas each synapse takes one of them, all equally likely.
    """
    _check_sizes(n_detectors, n_anchors, n_outputs, metas)
    check_range("probability", probability, 0, 1)
    check_int("seed", seed)
    rng = np.random.default_rng(seed)
    owners = n_detectors if shared else n_detectors << n_anchors
    owner, output = np.divmod(bernoulli_places(rng, owners * n_outputs, probability), n_outputs)
    meta = rng.integers(len(metas), size=len(owner)) if len(metas) > 1 else np.zeros_like(owner)
    sizes = (n_detectors, 1 << n_anchors, n_outputs)
    return _assemble(sizes, "shared" if shared else "general", (owner, output, meta), metas)


def from_edges(
    n_detectors: int,
    n_anchors: int,
    n_outputs: int,
    edges: Any,
    meta_ids: Any = None,
    metas: Sequence[SynapseMeta] = (DEFAULT_META,),
) -> Synapses:
    """Synapses from a list, in any order.

    `edges`, integer [n, 3], holds (detector, row, output) of each synapse; integer [n, 2], (detector, output), makes the
    shared layout. `meta_ids`, integer [n], holds the index in `metas` of each; without it all have the first.
    """
    _check_sizes(n_detectors, n_anchors, n_outputs, metas)
    table = integers_of("edges", edges)
    if table.ndim != 2 or table.shape[1] not in (2, 3):
        fail("the shape of edges", list(table.shape), "[n, 3] (detector, row, output) or [n, 2] (detector, output)")
    names = ("detector", "row", "output") if table.shape[1] == 3 else ("detector", "output")
    ends = {"detector": n_detectors, "row": 1 << n_anchors, "output": n_outputs}
    for column, name in zip(table.T, names, strict=True):
        check_each_below("edge", name, column, ends[name])
    meta = np.zeros(len(table), dtype=np.int64) if meta_ids is None else integers_of("meta_ids", meta_ids)
    if meta.shape != (len(table),):
        fail("the shape of meta_ids", list(meta.shape), f"[{len(table)}], one per edge")
    check_each_below("edge", "meta", meta, len(metas))

    owner = table[:, 0] if len(names) == 2 else (table[:, 0] << n_anchors) + table[:, 1]
    _check_distinct(owner * n_outputs + table[:, -1], table, names)
    layout: Layout = "shared" if len(names) == 2 else "general"
    return _assemble((n_detectors, 1 << n_anchors, n_outputs), layout, (owner, table[:, -1], meta), metas)


def windows_2d(
    input_size: Size,
    output_size: Size,
    n_anchors: int,
    *,
    field: Size,
    projection: Size,
    grid: Size | None = None,
    stride: Size | None = None,
    placement: str = "grid",
    detectors_per_position: int = 1,
    keep: float = 1.0,
    in_channels: int = 1,
    out_channels: int = 1,
    meta: SynapseMeta = DEFAULT_META,
    seed: int = 0,
) -> tuple[torch.Tensor, Synapses]:
    """Detectors that look at a window of one image and project to a window of another, as in a convolution.

    Returns the inputs each detector may compare, int32 [n_detectors, in_channels·field height·field width], for
    `random_anchors(fields=...)`, and the synapses (shared layout). Images are flattened channel, row, column.

    Positions come from one of two: `grid` positions spread evenly from border to border, or a `stride` in the input, as
    many as fit. With placement "sampled" the same number of positions is drawn at random instead. A window never leaves
    its image, and the projection lies as far across the output as the field lies across the input.
    Each position has `detectors_per_position` detectors, numbered one after another. Of the outputs in its projection a
    detector keeps a fraction `keep`, rounded, at least one, drawn at random for each detector.
    """
    image, window = pair_of("input_size", input_size), pair_of("field", field)
    target, patch = pair_of("output_size", output_size), pair_of("projection", projection)
    rooms = [room_for("field", window, "input_size", image), room_for("projection", patch, "output_size", target)]
    numbers = {"in_channels": in_channels, "out_channels": out_channels, "detectors_per_position": detectors_per_position}
    for name, number in numbers.items():
        check_int(name, number, 1)
    check_int("the number of inputs", in_channels * image[0] * image[1], 1)
    check_range("keep", keep, 0, 1)
    check_choice("placement", placement, ("grid", "sampled"))
    if (grid is None) == (stride is None):
        raise ArgumentError(f"grid is {grid!r} and stride is {stride!r}, expected one of the two")
    check_int("seed", seed)
    rng = np.random.default_rng(seed)

    axes = offsets(rooms, None if grid is None else pair_of("grid", grid), None if stride is None else pair_of("stride", stride))
    n_positions, n_outputs = len(axes[0][0]) * len(axes[0][1]), out_channels * target[0] * target[1]
    _check_sizes(n_positions * detectors_per_position, n_anchors, n_outputs)
    if placement == "sampled":
        places = rng.random((n_positions, 2))
        here, there = (np.floor(places * (np.array(room) + 1)).astype(np.int64) for room in rooms)
    else:
        here, there = map(corners_of, axes)
    fields = pixels_of(here, image, window, in_channels).repeat(detectors_per_position, axis=0)
    outputs = pixels_of(there, target, patch, out_channels).repeat(detectors_per_position, axis=0)
    outputs = keep_some(rng, outputs, max(1, round(keep * outputs.shape[1])))
    return torch.from_numpy(fields), _same_width(outputs, n_anchors, n_outputs, meta)


# Putting synapses together.


def _assemble(
    sizes: tuple[int, int, int], layout: Layout, listed: tuple[np.ndarray, ...], metas: Sequence[SynapseMeta]
) -> Synapses:
    """Synapses from owner, output and meta of each, int64 [n], in any order, none twice; sizes are detectors, rows, outputs."""
    (n_detectors, n_rows, n_outputs), (owner, output, meta) = sizes, listed
    n_owners = n_detectors * n_rows if layout == "general" else n_detectors
    key = (owner * len(metas) + meta) * n_outputs + output
    if (key[1:] <= key[:-1]).any():
        key.sort()  # the key holds all there is to know, and sorting it is far cheaper than an argsort
        owner, output = np.divmod(key, n_outputs)
        owner, meta = np.divmod(owner, len(metas))
    start = np.zeros(n_owners + 1, dtype=np.int64)
    np.cumsum(np.bincount(owner, minlength=n_owners), out=start[1:])
    targets, meta_of = (torch.from_numpy(values.astype(np.int32)) for values in (output, meta))
    return Synapses(*sizes, layout, torch.from_numpy(start), targets, meta_of, tuple(metas))


def _same_width(targets: np.ndarray, n_anchors: int, n_outputs: int, meta: SynapseMeta) -> Synapses:
    """Shared synapses from the sorted outputs of each detector, int32 [n_detectors, width]."""
    n_detectors, width = targets.shape
    start, meta_of = np.arange(n_detectors + 1, dtype=np.int64) * width, np.zeros(targets.size, np.int32)
    lists = (torch.from_numpy(start), torch.from_numpy(targets.reshape(-1)), torch.from_numpy(meta_of))
    return Synapses(n_detectors, 1 << n_anchors, n_outputs, "shared", *lists, (meta,))


# Checks.


def _check_sizes(n_detectors: int, n_anchors: int, n_outputs: int, metas: Sequence[SynapseMeta] = (DEFAULT_META,)) -> None:
    check_int("n_detectors", n_detectors, 1)
    check_int("n_anchors", n_anchors, 1, MAX_ANCHORS)
    check_int("n_outputs", n_outputs, 1)
    if not isinstance(metas, Sequence) or not metas or not all(isinstance(meta, SynapseMeta) for meta in metas):
        fail("metas", metas, "a sequence of at least one SynapseMeta")
    # A synapse is numbered by (neuron, meta, output) in an int64; sums of such numbers must not overflow either.
    if (n_detectors << n_anchors) * n_outputs * len(metas) >= 2**58:
        raise ArgumentError(f"{n_detectors} detectors × 2**{n_anchors} rows × {n_outputs} outputs are too many to number")


def _check_distinct(place: np.ndarray, table: np.ndarray, names: tuple[str, ...]) -> None:
    """place int64 [n] numbers (owner, output) of each edge."""
    repeat = first_repeat(place)
    if repeat is not None:
        k, earlier = repeat
        what = ", ".join(f"{name} {value}" for name, value in zip(names, table[k], strict=True))
        raise ArgumentError(f"edge {k} repeats edge {earlier} ({what}), expected every edge once")
