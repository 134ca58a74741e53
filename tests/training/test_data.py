"""Data: splits, fingerprints, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lutetia.errors import ArgumentError, DataError
from lutetia.training import open_data
from lutetia.training.config import DataConfig as Settings
from lutetia.training.data import Samples, Text, fingerprint, standard_library
from small import write_samples, write_text
from tools import require_module


def write_idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())


def write_images(folder: Path, n: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(n)
    x, y = draw.integers(256, size=(n, 5, 4)).astype(np.uint8), draw.integers(3, size=n).astype(np.uint8)
    write_idx(folder / f"{name}-x", x)
    write_idx(folder / f"{name}-y", y)
    return x, y


@pytest.mark.parametrize(
    ("valid", "test", "cuts"),
    [(0.1, 0.0, (1003854, 1115394)), (0, 0, (1115394, 1115394)), (500, 0.5, (557197, 557697)), (5, 6, (1115383, 1115388))],
)
def test_splits_are_contiguous(valid: float, test: float, cuts: tuple[int, int], tmp_path: Path) -> None:
    n = 1115394  # bytes of tiny shakespeare: 0.1 must split it where nanoGPT does, at int(0.9 n)
    text = np.arange(n, dtype=np.uint32).view(np.uint8)[:n]
    (tmp_path / "text").write_bytes(text.tobytes())
    data = open_data(Settings("bytes", path="text", valid=valid, test=test), tmp_path)
    wanted = {"train": text[: cuts[0]], "valid": text[cuts[0] : cuts[1]], "test": text[cuts[1] :]}
    assert set(data.splits) == {name for name, part in wanted.items() if len(part)}
    assert data.is_text
    for name, part in data.splits.items():
        assert isinstance(part, Text)
        assert np.array_equal(part.bytes, wanted[name])


def test_splits_that_leave_nothing_are_refused(tmp_path: Path) -> None:
    write_text(tmp_path, 100)
    for valid, test in ((0.5, 0.5), (100, 0), (60, 60)):
        with pytest.raises(ArgumentError, match="leave none of the 100 to train on"):
            open_data(Settings("bytes", path="text.txt", valid=valid, test=test), tmp_path)


def test_idx_with_a_test_set_of_its_own(tmp_path: Path) -> None:
    x, y = write_images(tmp_path, 20, "a")
    other, others = write_images(tmp_path, 7, "b")
    files: dict[str, Any] = {"images": "a-x", "labels": "a-y", "test_images": "b-x", "test_labels": "b-y"}
    data = open_data(Settings("idx", valid=0.25, **files), tmp_path)
    train, valid, test = (data.splits[name] for name in ("train", "valid", "test"))
    assert isinstance(train, Samples)
    assert np.array_equal(np.concatenate([train.x, valid.x]), x)
    assert np.array_equal(np.concatenate([train.y, valid.y]), y)
    assert (len(train), len(valid)) == (15, 5)
    assert np.array_equal(test.x, other)
    assert np.array_equal(test.y, others)
    assert data.n_classes == 3
    with pytest.raises(DataError, match=r"b-y has the shape \[7\], expected 20 labels, one for each of a-x"):
        open_data(Settings("idx", images="a-x", labels="b-y"), tmp_path)


def test_npz_that_is_split_by_its_names(tmp_path: Path) -> None:
    x, y = np.zeros((9, 4), np.float64), np.arange(9)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    data = open_data(Settings("npz", path="a.npz", valid=3), tmp_path)
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 6, "valid": 3, "test": 2}
    with pytest.raises(ArgumentError, match=r"data\.test is 0\.5, expected none: .* holds x_test"):
        open_data(Settings("npz", path="a.npz", test=0.5), tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "holds a, expected x and y, or x_train"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(2, int)}, r"y is int64 \[2\], expected 3 integers, the classes of x"),
        ({"x": np.zeros((3, 2)), "y": np.zeros(3)}, r"y is float64 \[3\], expected 3 integers"),
        ({"x": np.zeros(3), "y": np.zeros(3, int)}, r"x is float64 \[3\], expected numbers, samples first"),
        ({"x": np.full((3, 2), np.nan), "y": np.zeros(3, int)}, "not finite"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, -1, 0])}, "the train data has the class -1"),
    ],
)
def test_arrays_that_are_no_samples_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message):
        open_data(Settings("npz", path="a.npz"), tmp_path)


@pytest.mark.parametrize("keys", [("x", "y"), ("X", "y"), ("X_train", "y_train")])
def test_npz_in_the_spelling_of_scikit_learn(keys: tuple[str, str], tmp_path: Path) -> None:
    x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 0])
    np.savez(tmp_path / "a.npz", **dict(zip(keys, (x, y), strict=True)), target_names=["no", "yes"], feature_names=["a", "b"])
    data = open_data(Settings("npz", path="a.npz"), tmp_path)
    train = data.splits["train"]
    assert isinstance(train, Samples)
    assert train.x.tolist() == x.tolist()
    assert (data.names.classes, data.names.features) == (["no", "yes"], ["a", "b"])
    assert data.n_classes == 2


def test_npz_with_words_for_classes(tmp_path: Path) -> None:
    x = np.zeros((4, 2))
    np.savez(tmp_path / "a.npz", x_train=x, y_train=["b", "c", "a", "b"], x_test=x, y_test=["c", "c", "a", "a"])
    data = open_data(Settings("npz", path="a.npz"), tmp_path)
    assert data.names.classes == ["a", "b", "c"]
    assert [part.y.tolist() for part in data.splits.values()] == [[1, 2, 0, 1], [2, 2, 0, 0]]
    np.savez(tmp_path / "b.npz", x=x, y=["b", "c", "a", "b"], classes=["c", "b"])
    with pytest.raises(DataError, match="y has the class 'a', expected one of c, b"):
        open_data(Settings("npz", path="b.npz"), tmp_path)
    np.savez(tmp_path / "c.npz", x=x, y=[0, 1, 2, 0], classes=["c", "b"])
    with pytest.raises(DataError, match="the train data has the class 2, expected names for it: there are 2"):
        open_data(Settings("npz", path="c.npz"), tmp_path)
    np.savez(tmp_path / "d.npz", x=x, y=[0, 1, 0, 0], features=["c", "b", "a"])
    with pytest.raises(DataError, match="the train data has 2 columns and 3 names of features"):
        open_data(Settings("npz", path="d.npz"), tmp_path)
    np.savez(tmp_path / "e.npz", x=x, y=[0, 1, 0, 0], features=[1, 2])
    with pytest.raises(DataError, match=r"features is int64 \[2\], expected a list of strings"):
        open_data(Settings("npz", path="e.npz"), tmp_path)


def test_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,kind\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n")
    data = open_data(Settings("csv", path="a.csv", test=1), tmp_path)
    train = data.splits["train"]
    assert isinstance(train, Samples)
    assert (train.x.tolist(), train.y.tolist()) == ([[1, 2], [3, 4], [5, 6]], [0, 1, 0])
    assert (data.names.classes, data.names.features) == (["x", "y"], ["a", "b"])
    with pytest.raises(ArgumentError, match=r"data\.shift is 1, expected 0 for samples of shape \[2\]: no images"):
        open_data(Settings("csv", path="a.csv", shift=1), tmp_path)
    with pytest.raises(ArgumentError, match=r"data\.warp is 0\.1, expected 0 for samples of shape \[2\]: no images"):
        open_data(Settings("csv", path="a.csv", warp=0.1), tmp_path)


def test_shuffling_keeps_pairs_together_and_is_always_the_same(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(20, 2)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20))
    one, two = (open_data(Settings("npz", path="a.npz", valid=5, shuffle=True), tmp_path) for _ in range(2))
    assert one.fingerprint == two.fingerprint
    together = np.concatenate([one.splits[name].y for name in ("train", "valid")])
    assert sorted(together) == list(range(20))
    assert together.tolist() != list(range(20))
    for part in one.splits.values():
        assert np.array_equal(part.x[:, 0], 2 * part.y)


def test_digits() -> None:
    require_module("sklearn")
    data = open_data(Settings("digits", valid=0.1, test=0.2), ".")
    train = data.splits["train"]
    assert isinstance(train, Samples)
    assert train.x.shape[1:] == (8, 8)
    assert (train.x.min(), train.x.max(), data.n_classes) == (0, 1, 10)
    assert sum(len(part) for part in data.splits.values()) == 1797


def test_the_standard_library_is_a_long_text_without_tests() -> None:
    text = standard_library()
    assert np.array_equal(text, standard_library())
    source = text.tobytes()
    assert len(source) > 3_000_000
    assert (Path(pytest.__file__).read_bytes()) not in source
    import argparse
    import json

    places = [source.index(Path(module.__file__).read_bytes()) for module in (argparse, json)]
    assert places == sorted(places)
    assert b"class SupportSubclassing" not in source


def test_the_fingerprint_tells_content_shape_and_type_apart(tmp_path: Path) -> None:
    one = np.arange(6, dtype=np.int32)
    other = one.copy()
    other[3] = 0
    others = [other, one.reshape(2, 3), one.astype(np.int64), one.astype(np.float32), one[::-1]]
    prints = [fingerprint([array]) for array in (one, *others)]
    assert len(set(prints)) == len(prints)
    assert fingerprint([one]) == prints[0]
    assert prints[0].startswith("sha256:")
    write_samples(tmp_path)
    before = open_data(Settings("npz", path="samples.npz"), tmp_path).fingerprint
    write_samples(tmp_path, features=8)
    assert open_data(Settings("npz", path="samples.npz"), tmp_path).fingerprint != before
