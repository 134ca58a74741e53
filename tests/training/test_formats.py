"""Files of data: read as others wrote them, and named when they are not what they should be."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from lutetia.errors import DataError
from lutetia.training.arrays import read_npz
from lutetia.training.formats import map_bytes, read_idx


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lutetia"


def idx(kind: int, shape: tuple[int, ...], values: bytes) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("kind", "code"), [(0x08, "B"), (0x09, "b"), (0x0B, "h"), (0x0C, "i"), (0x0D, "f"), (0x0E, "d")])
def test_idx(tmp_path: Path, kind: int, code: str, compressed: bool) -> None:
    values = [0, 1, 2, 3, 100, 5]
    data = idx(kind, (3, 2), struct.pack(f">6{code}", *values))
    path = tmp_path / ("a.gz" if compressed else "a")
    path.write_bytes(gzip.compress(data) if compressed else data)
    array = read_idx(path)
    assert array.tolist() == [[0, 1], [2, 3], [100, 5]]
    assert array.dtype == np.dtype(code)
    assert array.dtype.isnative


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "begins with nothing, expected an idx file"),
        (b"\x89PNG\r\n", "begins with 89 50 4e 47, expected an idx file"),
        (idx(0x08, (3, 2), b"")[:9], "is truncated: 9 bytes, expected a header of 12"),
        (idx(0x08, (3, 2), b"12345"), "is truncated: 17 bytes, expected 18 for 3 × 2 values of 1 bytes"),
        (idx(0x08, (3, 2), b"1234567"), "is too long: 19 bytes, expected 18"),
    ],
)
def test_a_bad_idx_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    assert str(caught.value).startswith(f"{path} {message}")


def test_a_truncated_gzip_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(idx(0x08, (500,), bytes(range(250)) * 2))
    for name, data in (("cut.gz", whole[:-20]), ("no.gz", b"not gzip")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=rf"{name} is truncated or damaged"):
            read_idx(tmp_path / name)
        with pytest.raises(DataError, match=rf"{name} is truncated or damaged"):
            map_bytes(tmp_path / name)
    with pytest.raises(DataError, match=r"none does not exist, expected an idx file"):
        read_idx(tmp_path / "none")
    with pytest.raises(DataError, match="is a folder, expected an idx file"):
        read_idx(tmp_path)


def test_bytes_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"hello")
    array = map_bytes(path)
    assert isinstance(array, np.memmap)
    assert bytes(array) == b"hello"
    path.write_bytes(b"")
    with pytest.raises(DataError, match="is empty, expected bytes"):
        map_bytes(path)


def test_a_gz_is_decompressed_once(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"hello"))
    assert bytes(map_bytes(path)) == b"hello"
    (twin,) = cache.iterdir()
    twin.write_bytes(b"HELLO")  # seen, so that was not written again
    assert bytes(map_bytes(path)) == b"HELLO"
    path.write_bytes(gzip.compress(b"another text"))
    assert bytes(map_bytes(path)) == b"another text"


def test_a_damaged_gz_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(100_000))[:-500])
    with pytest.raises(DataError, match=r"text\.gz is truncated or damaged"):
        map_bytes(path)
    assert list(cache.iterdir()) == []


def test_npz_refuses_pickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    assert read_npz(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]
    np.savez(tmp_path / "b.npz", x=np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"b\.npz is not an npz file of plain arrays"):
        read_npz(tmp_path / "b.npz")
    np.save(tmp_path / "c.npy", np.arange(3))
    with pytest.raises(DataError, match=r"c\.npy holds a single array"):
        read_npz(tmp_path / "c.npy")
    whole = (tmp_path / "a.npz").read_bytes()
    for name, data in (("d.npz", whole[: len(whole) // 2]), ("e.npz", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=rf"{name} is not an npz file"):
            read_npz(tmp_path / name)
