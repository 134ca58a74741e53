"""Files of data: read as others wrote them, and named when they are not what they should be."""

from __future__ import annotations

import gzip
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lutetia.errors import DataError
from lutetia.training import formats
from lutetia.training.arrays import read_npy, read_npz
from lutetia.training.formats import map_bytes, read_idx
from lutetia.training.tables import read_cells


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


# ---- files from anybody ----------------------------------------------------------------------------------------------


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def write_zip(path: Path, content: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x.npy", content)
    return path


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (100000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -3), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (100000000000,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1,",  # TokenError
        "{'descr': None, 'fortran_order': False, 'shape': (1,), }",
        "'descr'",  # AttributeError
        "(" * 3000,
        "",
    ],
)
def test_headers_of_numpy_that_lie(header: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.npz", npy(header, b"12345678"))
    with pytest.raises(DataError, match=r"x\.npz is not an npz file of plain arrays, or is damaged: "):
        read_npz(path)
    (tmp_path / "x.npy").write_bytes(npy(header, b"12345678"))
    with pytest.raises(DataError, match=r"x\.npy is not an array of plain numbers, or is damaged: "):
        read_npy(tmp_path / "x.npy")


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8", ">u2", "|b1", "<U3", "|S2", "<f2"])
def test_arrays_come_back_as_numpy_reads_them(dtype: str, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    np.savez_compressed(tmp_path / "x.npz", a=array, b=np.asfortranarray(array), c=array[:0], d=array[0, 0])
    wanted = np.load(tmp_path / "x.npz")
    arrays = read_npz(tmp_path / "x.npz")
    assert list(arrays) == wanted.files
    for name in wanted.files:
        np.testing.assert_array_equal(arrays[name], wanted[name])
        assert arrays[name].dtype == wanted[name].dtype.newbyteorder("=")
    np.save(tmp_path / "x.npy", array)
    np.testing.assert_array_equal(read_npy(tmp_path / "x.npy"), array)


def test_archives_that_unpack_to_far_more_than_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "SMALL", 1 << 16)
    zeros = np.zeros(1 << 20, np.uint8)
    np.savez_compressed(tmp_path / "bomb.npz", x=zeros)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(zeros)))
    for read, name in ((read_npz, "bomb.npz"), (map_bytes, "bomb.gz"), (read_idx, "bomb.gz")):
        with pytest.raises(DataError, match=rf"{name} has .* bytes and decompresses to more than 100 times as many"):
            read(tmp_path / name)
    np.savez(tmp_path / "stored.npz", x=zeros)
    assert read_npz(tmp_path / "stored.npz")["x"].shape == (1 << 20,)


def test_archives_of_other_methods_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="compressed by method 14, expected deflate or none"):
        read_npz(write_zip(tmp_path / "x.npz", npy("{}"), zipfile.ZIP_LZMA))


@pytest.mark.parametrize("read", [read_npz, read_npy, read_idx, map_bytes, read_cells])
@pytest.mark.parametrize("special", ["pipe", "/dev/zero"])
def test_devices_and_pipes_are_refused(read: Callable[[Path], object], special: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if special == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(special)
    with pytest.raises(DataError, match="is a device, a pipe or a socket, expected"):
        read(path)


def test_the_cache_of_texts_is_cleaned(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(name: str) -> Path:
        (tmp_path / name).write_bytes(gzip.compress(name.encode() * 10))
        map_bytes(tmp_path / name)
        return next(each for each in cache.iterdir() if each.name.startswith(name.removesuffix(".gz")))

    old, unused = text("old.gz"), text("unused.gz")
    for path in (old, unused):
        os.utime(path, (0, 0))
    map_bytes(tmp_path / "old.gz")  # which counts as use
    (cache / "mine.txt").write_text("mine")
    left, fresh = (cache / f".text-{'0' * 16}.{number * 8}.part" for number in "12")
    left.write_text("of a process that was killed")
    os.utime(left, (0, 0))
    fresh.write_text("of one that is at work")
    os.utime(cache / "mine.txt", (0, 0))
    new = text("new.gz")
    assert sorted(cache.iterdir()) == sorted([old, new, cache / "mine.txt", fresh])
    monkeypatch.setattr(formats, "LARGEST_CACHE", 60)
    last = text("last.gz")
    assert sorted(cache.iterdir()) == sorted([new, last, cache / "mine.txt", fresh])  # the least recently used is gone
