"""Files and folders that appear whole or not at all, and folders that are as before when the work on them fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from lutetia.errors import DataError
from lutetia.files import check_writable, filling, make_folder, remove_empty, write_atomically


def content(folder: Path) -> dict[str, str | None]:
    return {str(each.relative_to(folder)): each.read_text() if each.is_file() else None for each in folder.rglob("*")}


@pytest.fixture
def old(tmp_path: Path) -> dict[str, str | None]:
    """What a folder holds before."""
    (tmp_path / "in").mkdir()
    for name in ("a", "b", ".hidden", "in/c"):
        (tmp_path / name).write_text(f"old {name}")
    return content(tmp_path)


def fill(folder: Path, problem: type[BaseException] | None = None) -> None:
    assert [each for each in content(folder) if not each.startswith(".")] == []  # it begins empty
    (folder / "in").mkdir()
    (folder / "in" / "d").write_text("new")
    (folder / "a").write_text("new")
    (folder / "link").symlink_to("nowhere")
    if problem:
        raise problem("no more")


def test_filling_replaces(tmp_path: Path, old: dict[str, str | None]) -> None:
    with filling(tmp_path):
        fill(tmp_path)
    assert content(tmp_path) == {"in": None, "in/d": "new", "a": "new", "link": None}


@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError, DataError])
def test_what_fails_leaves_the_folder_as_it_was(
    problem: type[BaseException], tmp_path: Path, old: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path, Path(".")):
        with pytest.raises(problem), filling(folder):
            fill(tmp_path, problem)
        assert content(tmp_path) == old


@pytest.mark.parametrize("moves", [0, 1, 2, 3])
def test_ctrl_c_while_the_old_is_put_aside(
    moves: int, tmp_path: Path, old: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, done = os.rename, 0

    def interrupted(source: Path, target: Path) -> None:
        nonlocal done
        done += 1
        if done == moves + 1:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), filling(tmp_path):
        pytest.fail("the work began")
    assert content(tmp_path) == old


def test_folders_that_were_made_are_removed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), filling(tmp_path / "x" / "y"):
        fill(tmp_path / "x" / "y", ValueError)
    assert content(tmp_path) == {}
    with filling(tmp_path / "x" / "y"):
        pass
    assert content(tmp_path) == {"x": None, "x/y": None}


def test_make_folder_tells_what_it_made(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made = make_folder(tmp_path / "a" / "b" / "c")
    assert made == [tmp_path / "a" / "b" / "c", tmp_path / "a" / "b"]
    assert make_folder(tmp_path / "a" / "b") == []
    (tmp_path / "a" / "b" / "file").write_text("mine")
    remove_empty(made)
    assert content(tmp_path / "a") == {"b": None, "b/file": "mine"}
    with pytest.raises(DataError, match="cannot be created: Not a directory"):
        make_folder(tmp_path / "a" / "b" / "file" / "x")


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "new" / "folder")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DataError, match="file is a file, expected a folder"):
        check_writable(tmp_path / "file" / "folder")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(DataError, match=r"folder cannot be written: .* is read-only"):
        check_writable(tmp_path / "new" / "folder")
    assert content(tmp_path) == {"file": "mine"}


def test_a_disk_that_refuses_even_to_clean_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(DataError, match=r"a cannot be written: No such file"), write_atomically(tmp_path / "none" / "a"):
        pytest.fail("there is a file to write to")


def spoil(file: BinaryIO, problem: type[BaseException]) -> None:
    file.write(b"ha")
    raise problem


@pytest.mark.parametrize("problem", [KeyboardInterrupt, ValueError])
def test_a_file_is_old_or_new(problem: type[BaseException], tmp_path: Path) -> None:
    with write_atomically(tmp_path / "a") as file:
        file.write(b"whole")
    with pytest.raises(problem), write_atomically(tmp_path / "a") as file:
        spoil(file, problem)
    assert content(tmp_path) == {"a": "whole"}
