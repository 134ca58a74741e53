"""Grown connectivity against loops, hand-made windows and the binomial law."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutetia.errors import ArgumentError
from lutetia.lut.connectivity.anchors import check_anchors, random_anchors
from lutetia.lut.connectivity.growth import from_edges, fully_connected, random, windows_2d
from lutetia.lut.connectivity.parts import SynapseMeta
from lutetia.lut.connectivity.synapses import Synapses

METAS = (SynapseMeta(), SynapseMeta(lr_scale=0.5), SynapseMeta(lr_scale=2.0))


def outputs_of(synapses: Synapses, detector: int) -> list[int]:
    start, end = synapses.det_start[detector : detector + 2].tolist()
    return synapses.det_targets[start:end].tolist()


def test_fully_connected() -> None:
    meta = SynapseMeta(lr_scale=0.1)
    synapses = fully_connected(3, 2, 5, meta).validate()
    assert synapses.layout == "shared"
    assert synapses.metas == (meta,)
    assert synapses.dense_mask().all()
    weight = torch.arange(60)
    assert torch.equal(synapses.expand(weight).flatten(), weight)  # the flat weights are the dense table
    assert fully_connected(1, 1, 1).n_weights == 2


@settings(max_examples=60, deadline=None)
@given(st.data(), st.booleans(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 7))
def test_from_edges_is_the_sorted_list(data: Any, shared: bool, n_detectors: int, n_anchors: int, n_outputs: int) -> None:
    row = [] if shared else [st.integers(0, 2**n_anchors - 1)]
    edge = st.tuples(st.integers(0, n_detectors - 1), *row, st.integers(0, n_outputs - 1))
    chosen = data.draw(st.dictionaries(edge, st.integers(0, 2), max_size=30))
    edges = torch.tensor(list(chosen), dtype=torch.int64).reshape(-1, 2 if shared else 3)
    synapses = from_edges(
        n_detectors, n_anchors, n_outputs, edges, list(chosen.values()) or torch.empty(0, dtype=torch.int32), METAS
    )
    synapses.validate()
    assert synapses.layout == ("shared" if shared else "general")

    listed = sorted((*key[:-1], meta, key[-1]) for key, meta in chosen.items())  # by owner, then meta, then output
    owners = [t if shared else t * 2**n_anchors + rest[0] for t, *rest in listed]
    assert synapses.owner_targets.tolist() == [entry[-1] for entry in listed]
    assert synapses.owner_meta.tolist() == [entry[-2] for entry in listed]
    assert synapses.owner_start.tolist() == [sum(o < n for o in owners) for n in range(synapses.n_owners + 1)]

    order = data.draw(st.permutations(range(len(chosen))))
    shuffled_meta = torch.tensor([list(chosen.values())[i] for i in order], dtype=torch.int32)
    assert synapses == from_edges(n_detectors, n_anchors, n_outputs, edges[order], shuffled_meta, METAS)


def test_from_edges_takes_lists_arrays_and_tensors() -> None:
    edges = [[1, 3, 0], [0, 0, 4]]
    first = from_edges(2, 2, 5, edges)
    assert first == from_edges(2, 2, 5, np.array(edges, dtype=np.int16)) == from_edges(2, 2, 5, torch.tensor(edges))
    assert first.dense_mask().nonzero().tolist() == [[0, 0, 4], [1, 3, 0]]
    assert first.metas == (SynapseMeta(),)


@pytest.mark.parametrize(
    ("edges", "meta_ids", "message"),
    [
        ([[0, 0, 1], [1, 2, 3], [0, 1, 0], [1, 2, 3], [0, 0, 1]], None, r"edge 3 repeats edge 1 \(detector 1, row 2, output 3\)"),
        ([[1, 2, 3], [1, 2, 3]], [0, 1], "edge 1 repeats edge 0"),  # not even with another meta
        ([[1, 3], [0, 3], [1, 3]], None, r"edge 2 repeats edge 0 \(detector 1, output 3\)"),
        ([[0, 0, 0], [2, 0, 0]], None, "edge 1 has detector 2, expected 0 to 1"),
        ([[0, 4, 0]], None, "edge 0 has row 4, expected 0 to 3"),
        ([[0, 0, -1]], None, "edge 0 has output -1, expected 0 to 4"),
        ([[0, 0, 0]], [3], "edge 0 has meta 3, expected 0 to 2"),
        ([[0, 0, 0]], [0, 0], r"the shape of meta_ids is \[2\], expected \[1\]"),
        ([[0]], None, r"the shape of edges is \[1, 1\]"),
        ([0, 1, 2], None, r"the shape of edges is \[3\]"),
        ([[0.0, 1.0]], None, r"edges is float64 \[1, 2\] on cpu, expected an integer dtype"),
        ([[0, 1], [2]], None, "edges is not an array of integers"),
        ("edges", None, "edges is not an array of integers"),
    ],
)
def test_bad_edges(edges: Any, meta_ids: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        from_edges(2, 2, 5, edges, meta_ids, METAS)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("probability", [0.003, 0.2, 0.5, 0.97])
def test_random_follows_the_binomial_law(shared: bool, probability: float) -> None:
    n_detectors, n_anchors, n_outputs = (40, 5, 37) if not shared else (1301, 1, 37)
    synapses = random(n_detectors, n_anchors, n_outputs, probability, shared=shared, seed=8).validate()
    mask = synapses.dense_mask() if not shared else synapses.dense_mask()[:, :1]
    mask = mask.reshape(-1, n_outputs).double()

    def near(count: torch.Tensor, trials: int) -> bool:
        sigma = math.sqrt(trials * probability * (1 - probability))
        return bool(((count - trials * probability).abs() < 5 * sigma + 1).all())

    owners = mask.shape[0]
    assert near(mask.sum(), mask.numel())
    assert near(mask.sum(0), owners)  # every output alike
    assert near(mask[: owners // 2].sum(), owners // 2 * n_outputs)  # and early owners like late ones
    # Neighbours are independent: both present with probability p².
    both, pairs = float((mask[:, 1:] * mask[:, :-1]).sum()), owners * (n_outputs - 1)
    square = probability**2
    assert abs(both - pairs * square) < 5 * math.sqrt(3 * pairs * square * (1 - square)) + 1
    # The fan-out of an owner is binomial: its variance is O·p·(1 - p).
    variance = n_outputs * probability * (1 - probability)
    assert float(mask.sum(1).var()) == pytest.approx(variance, rel=0.25)


def test_random_is_sparse_in_time_and_memory() -> None:
    """2**41 possible synapses of which a hundred or so exist."""
    synapses = random(2**11, 1, 2**29, 100 / 2**41, seed=1).validate()
    assert 50 < synapses.n_weights < 150
    assert synapses.targets.max() > 2**28
    assert random(3, 2, 5, 1e-300, seed=0).n_weights == 0


def test_random_extremes_and_seeds() -> None:
    assert random(3, 2, 5, 0, seed=0).n_weights == 0
    assert random(3, 2, 5, 1, seed=0).dense_mask().all()
    assert random(3, 2, 5, 1, seed=0, shared=True) == fully_connected(3, 2, 5)
    first = random(9, 3, 21, 0.3, seed=4)
    assert first == random(9, 3, 21, 0.3, seed=4)
    assert first != random(9, 3, 21, 0.3, seed=5)


def test_random_metas_are_equally_likely() -> None:
    synapses = random(50, 3, 31, 0.5, seed=2, metas=METAS).validate()
    counts = torch.bincount(synapses.meta_of, minlength=3).double()
    expected = synapses.n_weights / 3
    assert ((counts - expected).abs() < 5 * math.sqrt(expected)).all()


def test_windows_by_hand() -> None:
    """3 × 3 inputs, 4 × 4 outputs, four corner windows of 2 × 2 and projections of 2 × 2, two detectors at each."""
    fields, synapses = windows_2d(3, 4, 2, field=2, projection=2, grid=2, detectors_per_position=2)
    synapses.validate()
    assert fields.dtype == torch.int32
    assert fields[::2].tolist() == [[0, 1, 3, 4], [1, 2, 4, 5], [3, 4, 6, 7], [4, 5, 7, 8]]
    assert torch.equal(fields[::2], fields[1::2])
    assert [outputs_of(synapses, t) for t in range(0, 8, 2)] == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert synapses.blocks.of_detector.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert synapses.blocks.disjoint
    assert (synapses.n_detectors, synapses.n_rows, synapses.n_outputs) == (8, 4, 16)


def windows_oracle(
    corners: list[tuple[int, int]], width: int, area: int, window: tuple[int, int], channels: int
) -> list[list[int]]:
    rows, columns = range(window[0]), range(window[1])
    return [[c * area + (y + i) * width + x + j for c in range(channels) for i in rows for j in columns] for y, x in corners]


def test_windows_with_stride_and_channels() -> None:
    fields, synapses = windows_2d(
        (7, 5), (4, 9), 1, field=(3, 2), projection=(2, 3), stride=(2, 3), in_channels=2, out_channels=3
    )
    here = [(y, x) for y in (0, 2, 4) for x in (0, 3)]
    there = [(y, x) for y in (0, 1, 2) for x in (0, 6)]
    assert fields.tolist() == windows_oracle(here, 5, 35, (3, 2), 2)
    assert [outputs_of(synapses, t) for t in range(6)] == windows_oracle(there, 9, 36, (2, 3), 3)
    assert synapses.n_outputs == 108


@pytest.mark.parametrize("sizes", [(8, 3, 4), (5, 5, 3), (11, 2, 1), (6, 4, 9)])
def test_grid_positions_run_from_border_to_border(sizes: tuple[int, int, int]) -> None:
    image, window, count = sizes
    fields, _ = windows_2d((image, window), (1, 1), 1, field=window, projection=1, grid=(count, 1))
    offsets = [row[0] // window for row in fields.tolist()]
    ideal = [i * (image - window) / (count - 1) if count > 1 else (image - window) / 2 for i in range(count)]
    assert all(abs(offset - wanted) <= 0.5 for offset, wanted in zip(offsets, ideal, strict=True))


def test_sampled_windows_stay_inside_and_are_even() -> None:
    fields, synapses = windows_2d((6, 7), (5, 4), 1, field=(4, 3), projection=(3, 4), grid=60, placement="sampled", seed=3)
    corners = [divmod(row[0], 7) for row in fields.tolist()]
    assert fields.tolist() == windows_oracle(corners, 7, 42, (4, 3), 1)
    for axis, places in ((0, 3), (1, 5)):
        counts = np.bincount([corner[axis] for corner in corners])
        assert len(counts) == places
        assert (abs(counts - 3600 / places) < 5 * math.sqrt(3600 / places)).all()
    rows = [outputs_of(synapses, t)[0] // 4 for t in range(3600)]
    assert rows == [y for y, _ in corners]  # as far across the output as across the input: both have three places


def test_keep_draws_for_each_detector() -> None:
    arguments: dict[str, Any] = {"field": 2, "projection": 5, "grid": 6, "detectors_per_position": 40}
    _, whole = windows_2d(9, 12, 2, **arguments)
    _, kept = windows_2d(9, 12, 2, keep=0.2, seed=1, **arguments)
    kept.validate()
    assert kept.det_start.diff().unique().tolist() == [5]
    assert not (kept.dense_mask() & ~whole.dense_mask()).any()
    assert len(kept.blocks.width) > 1000  # almost every detector has its own choice
    mask = kept.dense_mask()[:, 0]
    first = mask[:40, whole.det_targets[:25].long()].sum(0)
    assert int(first.sum()) == 200
    windows = torch.stack([mask[t, outputs_of(whole, t)] for t in range(1440)]).sum(0)
    assert ((windows - 288).abs() < 5 * math.sqrt(1440 * 0.2 * 0.8)).all()  # every place of the window alike
    assert kept == windows_2d(9, 12, 2, keep=0.2, seed=1, **arguments)[1]
    assert kept != windows_2d(9, 12, 2, keep=0.2, seed=2, **arguments)[1]
    assert windows_2d(9, 12, 2, keep=0.0, **arguments)[1].det_start[-1] == 1440


def test_the_mnist_recipe() -> None:
    fields, first = windows_2d(28, 56, 3, field=5, projection=10, grid=13, detectors_per_position=4, keep=0.2, seed=0)
    assert fields.shape == (13 * 13 * 4, 25)
    assert (first.n_detectors, first.n_rows, first.n_outputs) == (676, 8, 3136)
    assert first.n_weights == 676 * 8 * 20
    anchors = random_anchors(784, first.n_detectors, 3, seed=0, fields=fields)
    check_anchors(anchors, 784)
    assert all(set(a.flatten().tolist()) <= set(f) for a, f in zip(anchors, fields.tolist(), strict=True))

    fields, second = windows_2d(56, 28, 5, field=20, projection=5, grid=8, detectors_per_position=16, keep=0.2, seed=1)
    assert fields.shape == (8 * 8 * 16, 400)
    assert (second.n_detectors, second.n_rows, second.n_outputs) == (1024, 32, 784)
    assert second.n_weights == 1024 * 32 * 5
    assert len(fields.unique()) == 3136  # together the fields see the whole image
    first.validate()
    second.validate()
    # Before outputs are dropped every one is reached.
    assert windows_2d(28, 56, 3, field=5, projection=10, grid=13)[1].statistics().fan_in[0] > 0
    assert windows_2d(56, 28, 5, field=20, projection=5, grid=8)[1].statistics().fan_in[0] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"field": 4}, r"field is \(4, 4\), expected no larger than input_size, which is \(3, 3\)"),
        ({"projection": (1, 6)}, r"projection is \(1, 6\)"),
        ({"field": (2, 2, 2)}, r"field is \(2, 2, 2\), expected a number or a pair"),
        ({"field": 0}, "field is 0"),
        ({"grid": None}, "grid is None and stride is None, expected one of the two"),
        ({"stride": 1}, "grid is 2 and stride is 1, expected one of the two"),
        ({"keep": 1.5}, "keep is 1.5"),
        ({"keep": math.nan}, "keep is nan"),
        ({"placement": "spiral"}, "placement is 'spiral'"),
        ({"detectors_per_position": 0}, "detectors_per_position is 0"),
        ({"in_channels": 0}, "in_channels is 0"),
        ({"in_channels": 2**30}, "the number of inputs is"),
        ({"out_channels": 2**30}, "n_outputs is"),
        ({"n_anchors": 25}, "n_anchors is 25"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_windows(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"input_size": 3, "output_size": 5, "n_anchors": 2, "field": 2, "projection": 2, "grid": 2}
    windows_2d(**arguments)
    with pytest.raises(ArgumentError, match=message):
        windows_2d(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probability": -0.1}, "probability is -0.1"),
        ({"probability": math.nan}, "probability is nan"),
        ({"n_detectors": 0}, "n_detectors is 0"),
        ({"n_outputs": True}, "n_outputs is True"),
        ({"metas": ()}, r"metas is \(\)"),
        ({"metas": SynapseMeta()}, "metas is SynapseMeta"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"n_detectors": 2**31 - 1, "n_anchors": 24, "n_outputs": 2**31 - 1}, "too many to number"),
    ],
)
def test_bad_random(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"n_detectors": 3, "n_anchors": 2, "n_outputs": 5, "probability": 0.5, "seed": 0}
    with pytest.raises(ArgumentError, match=message):
        random(**{**arguments, **changes})
