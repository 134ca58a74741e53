"""What a model learns from: samples with classes, or one long text, split into contiguous parts, with a checksum."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lutetia.errors import ArgumentError, DataError, require
from lutetia.models import Grams
from lutetia.training import config as settings
from lutetia.training.arrays import read_npz
from lutetia.training.formats import Array, map_bytes, read_idx
from lutetia.training.splits import RANDOM, Split
from lutetia.training.tables import class_order, read_csv

CLASS_NAMES = ("classes", "class_names", "target_names")  # keys of an npz file, as the next line
FEATURE_NAMES = ("features", "feature_names")
SHUFFLE_SEED = 0  # of data.shuffle: which samples are held out must not depend on the seed of the run
NOT_LIBRARY = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")


@dataclass(frozen=True)
class Samples:
    """x [n, ...], uint8 or float32, and the class of each, y [n] int64; of a ranking the number of its query, [n] int64."""

    x: Array
    y: Array
    weight: Array | None = None  # float32 [n]: how much each counts; None where all count alike
    split: Split = RANDOM  # by what rows are parted
    query: Array | None = None
    texts: tuple[Grams, ...] = ()  # columns of text besides those of x

    def __len__(self) -> int:
        return len(self.y)


class Names(NamedTuple):
    """The names of the classes and columns in the data; empty where it has none."""

    classes: Sequence[str] = ()
    features: Sequence[str] = ()


UNNAMED = Names()


@dataclass(frozen=True)
class Text:
    """One text, bytes [n] uint8."""

    bytes: Array

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True)
class Data:
    """The splits, always with "train", and a checksum of their contents."""

    splits: Mapping[str, Samples] | Mapping[str, Text]
    fingerprint: str  # "sha256:..."
    names: Names = UNNAMED
    folder: Path = Path()  # that its paths are relative to

    @property
    def is_text(self) -> bool:
        return isinstance(self.splits["train"], Text)

    @property
    def n_classes(self) -> int:
        """One more than the largest class, or as many as have names; 0 for text."""
        largest = max((int(each.y.max()) + 1 for each in self.splits.values() if isinstance(each, Samples)), default=0)
        return max(largest, len(self.names.classes))


def open_data(wanted: settings.DataConfig, folder: str | Path, classes: Sequence[str] = ()) -> Data:
    """Open what [data] asks for; its paths are relative to `folder`. `classes` are those of a model, in its order."""
    folder = Path(folder)
    if wanted.kind in ("bytes", "stdlib"):
        text = map_bytes(folder / str(wanted.path)) if wanted.kind == "bytes" else standard_library()
        texts = {name: Text(text[a:b]) for name, (a, b) in _cuts(len(text), wanted).items()}
        return Data(texts, fingerprint([text]), folder=folder)
    parts, names = _samples(wanted, folder)
    if names.classes and classes:
        numbers = numbers_among(names.classes, classes, folder / str(wanted.path))
        parts = {name: Samples(part.x, numbers[part.y]) for name, part in parts.items()}
        names = names._replace(classes=classes)
    for name, part in parts.items():
        _check_samples(name, part, wanted, names)
    return Data(parts, fingerprint([array for part in parts.values() for array in (part.x, part.y)]), names, folder)


def numbers_among(own: Sequence[str], classes: Sequence[str], path: Path) -> Array:
    """The number of each of the own classes of some data among those of a model, which may be older than `class_order`."""
    order = {name: number for number, name in enumerate(classes)}
    strange = [name for name in own if name not in order]
    if strange:
        raise DataError(f"{path} has the class {strange[0]!r}, which the model was not trained on")
    return np.array([order[name] for name in own], np.int64)


def fingerprint(arrays: list[Array]) -> str:
    """A checksum of the content, shapes and types of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str} {array.shape};".encode())
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, len(flat), 1 << 24):  # in pieces: a mapped file need not fit in memory
            total.update(flat[start : start + (1 << 24)].data)
    return f"sha256:{total.hexdigest()}"


def standard_library() -> Array:
    """The source of Python's standard library as one text, without its tests, uint8 [n]: files in the order of their names."""
    root = Path(sysconfig.get_paths()["stdlib"])
    names: list[str] = []
    for folder, within, files in os.walk(root):
        within[:] = [name for name in within if name not in NOT_LIBRARY]  # other people's packages may be many
        names += [Path(folder, name).relative_to(root).as_posix() for name in files if name.endswith(".py")]
    if not names:
        raise DataError(f"{root} holds no Python files, expected the source of the standard library")
    return np.frombuffer(b"".join((root / name).read_bytes() + b"\n" for name in sorted(names)), np.uint8)


# ---- samples ---------------------------------------------------------------------------------------------------------


def _samples(wanted: settings.DataConfig, folder: Path) -> tuple[dict[str, Samples], Names]:
    if wanted.kind == "digits":
        return _split(_digits(), wanted), Names([str(digit) for digit in range(10)])
    if wanted.kind == "csv":
        rows = read_csv(folder / str(wanted.path), wanted.label)
        return _split(Samples(rows.x, rows.y), wanted), Names(rows.classes, rows.features)
    if wanted.kind == "npz":
        return _named_arrays(folder / str(wanted.path), wanted)
    parts = _split(_images(folder, str(wanted.images), str(wanted.labels)), wanted)
    if wanted.test_images is not None:
        parts["test"] = _images(folder, wanted.test_images, str(wanted.test_labels))
    return parts, UNNAMED


def _digits() -> Samples:
    """The 1797 digits of scikit-learn, 8 × 8 pixels with 17 shades of grey."""
    digits = require("sklearn.datasets", "the digits data set", "scikit-learn").load_digits()
    return Samples((digits.images / 16).astype(np.float32), digits.target.astype(np.int64))


def _images(folder: Path, images: str, labels: str) -> Samples:
    x, y = read_idx(folder / images), read_idx(folder / labels)
    if y.ndim != 1 or len(x) != len(y):
        raise DataError(f"{folder / labels} has the shape {list(y.shape)}, expected {len(x)} labels, one for each of {images}")
    return _as_samples(x, y, str(folder / images))


def _named_arrays(path: Path, wanted: settings.DataConfig) -> tuple[dict[str, Samples], Names]:
    """x and y, to be split; or x_train and y_train, with x_valid, x_test and their y where they are given.

    X is accepted for x. Names of classes and columns come from arrays of strings: classes and features, or as scikit-learn calls
    them target_names and feature_names. Classes may be strings themselves.
    """
    arrays = read_npz(path)
    arrays |= {key.replace("X", "x", 1): arrays[key] for key in list(arrays) if key == "X" or key.startswith("X_")}
    names = Names(_strings(arrays, CLASS_NAMES, path), _strings(arrays, FEATURE_NAMES, path))
    arrays, names = _numbered(arrays, names, path)
    if "x" in arrays and "y" in arrays:
        return _split(_pair(arrays, "", path), wanted), names
    if "x_train" not in arrays or "y_train" not in arrays:
        content = ", ".join(arrays) or "nothing"
        raise DataError(f"{path} holds {content}, expected x and y, or x_train, y_train, x_test, y_test; X is accepted for x")
    parts = _split(_pair(arrays, "_train", path), wanted)
    for name in ("valid", "test"):
        if f"x_{name}" in arrays:
            if name in parts:
                raise ArgumentError(f"data.{name} is {getattr(wanted, name)}, expected none: {path} holds x_{name}")
            parts[name] = _pair(arrays, f"_{name}", path)
    return parts, names


def _strings(arrays: Mapping[str, Array], keys: Sequence[str], path: Path) -> list[str]:
    """The array of strings under the first of these keys; none where there is no such key."""
    key = next((key for key in keys if key in arrays), None)
    if key is None:
        return []
    if arrays[key].ndim != 1 or arrays[key].dtype.kind not in "US":
        raise DataError(f"{path}: {key} is {arrays[key].dtype} {list(arrays[key].shape)}, expected a list of strings")
    return [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in arrays[key].tolist()]


def _numbered(arrays: dict[str, Array], names: Names, path: Path) -> tuple[dict[str, Array], Names]:
    """The arrays with classes as numbers, where they are strings, and the names of those numbers."""
    keys = [key for key in ("y", "y_train", "y_valid", "y_test") if key in arrays and arrays[key].dtype.kind in "US"]
    if not keys:
        return arrays, names
    words = {key: _strings(arrays, [key], path) for key in keys}
    classes = list(names.classes) or sorted(set().union(*words.values()), key=class_order)
    order = {name: number for number, name in enumerate(classes)}
    for key, each in words.items():
        unknown = next((name for name in each if name not in order), None)
        if unknown is not None:
            raise DataError(f"{path}: {key} has the class {unknown!r}, expected one of {', '.join(classes)}")
    numbers: dict[str, Array] = {key: np.array([order[name] for name in each], np.int64) for key, each in words.items()}
    return {**arrays, **numbers}, Names(classes, names.features)


def _pair(arrays: Mapping[str, Array], suffix: str, path: Path) -> Samples:
    x, y = arrays[f"x{suffix}"], arrays.get(f"y{suffix}")
    if y is None or y.ndim != 1 or len(x) != len(y) or y.dtype.kind not in "iu":
        found = "missing" if y is None else f"{y.dtype} {list(y.shape)}"
        raise DataError(f"{path}: y{suffix} is {found}, expected {len(x)} integers, the classes of x{suffix}")
    return _as_samples(x, y, f"{path}: x{suffix}")


def _as_samples(x: Array, y: Array, name: str) -> Samples:
    if x.ndim < 2 or x.dtype.kind not in "iuf":
        raise DataError(f"{name} is {x.dtype} {list(x.shape)}, expected numbers, samples first")
    x = x if x.dtype == np.uint8 else x.astype(np.float32)
    if x.dtype != np.uint8 and not np.isfinite(x).all():
        raise DataError(f"{name} holds values that are not finite, expected numbers")
    return Samples(x, y.astype(np.int64))


def _split(samples: Samples, wanted: settings.DataConfig) -> dict[str, Samples]:
    x, y = samples.x, samples.y
    if wanted.shuffle:
        order = np.random.Generator(np.random.PCG64(SHUFFLE_SEED)).permutation(len(y))
        x, y = x[order], y[order]
    return {name: Samples(x[a:b], y[a:b]) for name, (a, b) in _cuts(len(y), wanted).items()}


def _check_samples(name: str, part: Samples, wanted: settings.DataConfig, names: Names) -> None:
    if len(part.y) and part.y.min() < 0:
        raise DataError(f"the {name} data has the class {part.y.min()}, expected 0 or more")
    if names.classes and len(part.y) and part.y.max() >= len(names.classes):
        raise DataError(f"the {name} data has the class {part.y.max()}, expected names for it: there are {len(names.classes)}")
    if names.features and part.x.ndim == 2 and part.x.shape[1] != len(names.features):
        raise DataError(f"the {name} data has {part.x.shape[1]} columns and {len(names.features)} names of features")
    for name in ("shift", "warp"):
        if getattr(wanted, name) and part.x.ndim not in (3, 4):
            given, shape = getattr(wanted, name), list(part.x.shape[1:])
            raise ArgumentError(f"data.{name} is {given}, expected 0 for samples of shape {shape}: no images")


def _cuts(n: int, wanted: settings.DataConfig) -> dict[str, tuple[int, int]]:
    """Where each split begins and ends in n samples or bytes; an empty one is left out."""
    test = n - _share(n, wanted.test)
    valid = test - _share(n, wanted.valid)
    if valid <= 0:
        raise ArgumentError(f"data.valid and data.test leave none of the {n} to train on, expected smaller fractions")
    places = {"train": (0, valid), "valid": (valid, test), "test": (test, n)}
    return {name: (a, b) for name, (a, b) in places.items() if b > a}


def _share(n: int, part: float) -> int:
    """A count unchanged; for a fraction the remainder is rounded down, so that 0.1 leaves the first int(0.9 n)."""
    return int(part) if part >= 1 else n - int(n * (1 - part))
