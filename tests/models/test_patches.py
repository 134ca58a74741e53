"""Patterns that are counted in images, against a slow definition in plain Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lutetia.errors import ArgumentError, DataError
from lutetia.models import Patches, Tabular, load, patch_loops, save
from lutetia.models.patches import N_REGIONS, region_mask, region_name


def drawn(shape: tuple[int, ...], seed: int = 0, n_detectors: int = 5, n_pairs: int = 3, n_counts: int = 40) -> Patches:
    random = np.random.default_rng(seed)
    patches = Patches(shape, n_detectors, n_pairs, n_counts)
    channels = patches.shape[0]
    patches.pairs.copy_(torch.from_numpy(random.integers(0, 4, (n_detectors, n_pairs, 4))))
    patches.plane.copy_(torch.from_numpy(random.integers(-1, channels, n_detectors)))
    patches.threshold.copy_(torch.from_numpy(random.integers(0, 60, n_detectors)))
    rows = np.stack([random.integers(0, top, n_counts) for top in (n_detectors, 2**n_pairs, N_REGIONS)], 1)
    patches.counted.copy_(torch.from_numpy(rows[np.argsort(rows[:, 0], kind="stable")]))
    return patches


def slow_counts(patches: Patches, image: list[list[list[int]]]) -> list[int]:
    """By the definition: every position is visited, and asked all questions."""
    height, width, found = len(image[0]), len(image[0][0]), []
    for detector, address, region in patches.counted.tolist():
        pairs, plane = patches.pairs[detector].tolist(), int(patches.plane[detector])
        down = height - max(max(pair[0], pair[2]) for pair in pairs)
        across = width - max(max(pair[1], pair[3]) for pair in pairs)
        total = 0
        for row in range(down):
            for column in range(across):
                bits = 0
                for place, (a, b, c, d) in enumerate(pairs):
                    steps = [each[row + a][column + b] - each[row + c][column + d] for each in image]
                    apart = sum(map(abs, steps)) if plane < 0 else steps[plane]
                    bits += (apart > int(patches.threshold[detector])) << place
                cell = (row * 4 // down, column * 4 // across)
                inside = region == 0 or (region == 1 + cell[0] // 2 * 2 + cell[1] // 2) or region == 5 + cell[0] * 4 + cell[1]
                total += bits == address and inside
        found.append(total)
    return found


@pytest.mark.parametrize("shape", [(8, 11), (3, 9, 8), (1, 8, 8)])
def test_counts_are_those_of_the_definition(shape: tuple[int, ...]) -> None:
    patches, random = drawn(shape), np.random.default_rng(1)
    levels = random.integers(0, 256, (4, *patches.shape))
    levels[0] = 7  # an image without differences
    x = levels.reshape(4, -1) / 255
    found = patches.counts(x, threads=2)
    assert found.tolist() == [slow_counts(patches, image) for image in levels.tolist()]
    assert patches.counts(np.asfortranarray(x)).tolist() == found.tolist()
    assert found.any(0).sum() > 10


def test_images_of_several_blocks_are_counted_like_small_ones() -> None:
    """The loop takes some rows at a time."""
    patches, height, width = drawn((2, 70, 130), n_counts=30), 70, 130
    x = np.random.default_rng(4).integers(0, 256, (1, 2 * height * width)) / 255
    found = patches.counts(x)[0].tolist()
    for (detector, address, region), count in zip(patches.counted.tolist(), found, strict=True):
        addresses = patches.addresses(patches.levels(x)[0], detector)
        assert count == (region_mask(addresses.shape, region) & (addresses == address)).sum()
    assert height * width > 2 * patch_loops.BLOCK


def test_levels_follow_the_range_of_the_data() -> None:
    patches = drawn((8, 8))
    patches.span.copy_(torch.tensor([-1.0, 3.0]))
    x = np.array([[-1.0, 3.0, 1.0, -5.0, 9.0, np.nan, 0.0, 2.0] * 8])
    assert patches.levels(x)[0, 0, 0].tolist() == [0, 255, 128, 0, 255, 0, 64, 191]


def test_relevance_goes_where_patterns_were_found_and_adds_up() -> None:
    patches, random = drawn((3, 9, 8)), np.random.default_rng(2)
    x = torch.from_numpy(random.integers(0, 256, (2, 3, 9, 8)) / 255)
    relevance = torch.from_numpy(random.normal(size=(2, patches.n_counts)))
    relevance[:, ::3] = 0
    shares = patches.shares(relevance, x)
    assert shares.sum(1).tolist() == pytest.approx(relevance.sum(1).tolist(), abs=1e-12)
    counts = patches.counts(x.flatten(1).numpy())
    for number in range(patches.n_counts):
        one = torch.zeros(2, patches.n_counts, dtype=torch.float64)
        one[0, number] = 1.0
        heat = patches.shares(one, x)[0].reshape(3, 9, 8).numpy()
        wanted = np.zeros((3, 9, 8))
        detector, address, region = patches.counted[number].tolist()
        addresses = patches.addresses(patches.levels(x.flatten(1).numpy())[0], detector)
        inside = region_mask(addresses.shape, region)
        places = np.argwhere(inside & (addresses == address)) if counts[0, number] else np.argwhere(inside)
        assert len(places) == (counts[0, number] or inside.sum())
        plane = int(patches.plane[detector])
        planes = range(3) if plane < 0 else [plane]
        for row, column in places.tolist():
            for a, b, c, d in patches.pairs[detector].tolist():
                for channel in planes:
                    wanted[channel, row + a, column + b] += 1 / (len(places) * 6 * len(planes))
                    wanted[channel, row + c, column + d] += 1 / (len(places) * 6 * len(planes))
        assert np.allclose(heat, wanted, atol=1e-12)


def test_distances_in_many_channels_stay_within_sixteen_bits() -> None:
    """The loop adds them up in int16, the definition in int64."""
    patches = drawn((128, 8, 8))
    patches.plane[:], patches.threshold[:] = -1, 128 * 255 // 2
    x = np.zeros((1, 128, 8, 8))
    x[0, :, ::2] = 1.0  # as far apart as can be
    address = patches.addresses(patches.levels(x.reshape(1, -1))[0], 0)
    wanted = [int((region_mask(address.shape, r) & (address == a)).sum()) for d, a, r in patches.counted.tolist() if d == 0]
    assert patches.counts(x.reshape(1, -1))[0, : len(wanted)].tolist() == wanted
    with pytest.raises(ArgumentError, match="129 channels, expected 128"):
        drawn((129, 8, 8)).counts(np.zeros((1, 129 * 64)))


def test_counts_that_are_kept_stay_the_same() -> None:
    patches, x = drawn((3, 9, 8)), np.random.default_rng(3).random((3, 216))
    wanted = np.flatnonzero(patches.counted[:, 0].numpy() % 2 == 1)[::2]
    kept = patches.keep(wanted)
    assert kept.counts(x).tolist() == patches.counts(x)[:, wanted].tolist()
    assert len(kept.pairs) == 2


def test_regions_have_names_and_cover_the_image() -> None:
    masks = [region_mask((5, 9), region) for region in range(N_REGIONS)]
    assert (sum(masks[1:5]) == 1).all()
    assert (sum(masks[5:]) == 1).all()
    assert all(mask.any() for mask in masks)
    assert (region_name(0), region_name(2), region_name(10)) == ("the image", "the upper right quarter", "cell 2, 2 of 4 × 4")


def model_of(patches: Patches) -> Tabular:
    counts = patches.n_counts
    model = Tabular(
        input_shape=(8, 8), n_encoded=64 + counts, n_edges=3, n_tables=4, n_anchors=3, seed=0,
        patch_detectors=len(patches.pairs), patch_pairs=patches.pairs.shape[1], patch_counts=counts,
    )  # fmt: skip
    model.encoding.patches = patches
    model.encoding.source.copy_(torch.arange(64 + counts))
    model.encoding.edges.copy_(torch.tensor([0.5, 1.5, 3.5], dtype=torch.float64))
    return model.eval()


def test_a_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model, x = model_of(drawn((8, 8))), torch.rand(5, 8, 8)
    save(model, tmp_path / "model")
    assert torch.equal(load(tmp_path / "model")(x), model(x))
    counts = model.patches.counts(x.flatten(1).double().numpy()) if model.patches else None
    wanted = 1 + (torch.from_numpy(counts)[..., None] > torch.tensor([0.5, 1.5, 3.5])).sum(-1)
    assert torch.equal(model.encode(x)[:, 64:], wanted.float())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pairs", 5),
        ("pairs", -1),
        ("plane", 1),
        ("plane", -2),
        ("threshold", -1),
        ("threshold", 256),
        ("counted", 21),
        ("span", 0),
    ],
)
def test_files_that_point_elsewhere_are_refused(tmp_path: Path, name: str, value: int) -> None:
    """Compiled loops would read and write there."""
    model = model_of(drawn((8, 8)))
    getattr(model.patches, name)[-1] = value
    save(model, tmp_path / "model")
    with pytest.raises(DataError, match="patches"):
        load(tmp_path / "model")


def test_unsorted_counts_are_refused() -> None:
    patches = drawn((8, 8))
    patches.counted.copy_(patches.counted.flip(0))
    with pytest.raises(ArgumentError, match="sorted"):
        patches.counts(np.zeros((1, 64)))


@pytest.mark.parametrize(
    "fields",
    [
        {"patch_counts": 3},
        {"patch_counts": 3, "patch_detectors": 2, "input_shape": (64,)},
        {"patch_pairs": 9},
        {"patch_detectors": -1},
        {"patch_counts": 1, "patch_detectors": 1, "core": "gates", "gate_codes": (3,)},
    ],
)
def test_configs_are_checked(fields: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match="patch_"):
        Tabular(**{"input_shape": (8, 8), "n_encoded": 64, **fields})


def test_relevance_of_counts_needs_the_images() -> None:
    model = model_of(drawn((8, 8)))
    with pytest.raises(ArgumentError, match="images"):
        model.by_column(torch.zeros(2, 64 + 40))
