"""Whole folders: written at once, found damaged, and never in place of what somebody else made."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lutetia._shared import folders
from lutetia._shared.folders import MANIFEST
from lutetia.errors import ArgumentError, DataError

FORMAT = "lutetia.test/1"
FACTS = {"format": FORMAT, "who": "a test"}
FILES: dict[str, folders.Content] = {"a.txt": "é", "in/b.bin": b"\0\1", "in/deep/c": lambda path: path.write_text("c")}


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What was given to fsync, with whether the folder `out` was in its place by then; a real one would only take time."""
    names: list[tuple[str, bool]] = []

    def note(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        names.append((path.name, path.parent.name == "out" or path.name == "out"))

    monkeypatch.setattr(os, "fsync", note)
    return names


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_the_files_and_their_manifest(tmp_path: Path) -> None:
    folders.write(tmp_path / "deep" / "out", FILES, FACTS, sizes=True)
    folders.write(tmp_path / "plain", FILES, FACTS)
    manifest = json.loads((tmp_path / "deep" / "out" / MANIFEST).read_text())
    assert manifest == {
        **FACTS,
        "files": {
            name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in (("a.txt", "é".encode()), ("in/b.bin", b"\0\1"), ("in/deep/c", b"c"))
        },
    }
    assert json.loads((tmp_path / "plain" / MANIFEST).read_text())["files"]["in/deep/c"] == hashlib.sha256(b"c").hexdigest()
    for name in ("deep/out", "plain"):
        assert folders.verify(tmp_path / name, FORMAT, needed=("a.txt",)) == sorted(FILES)
        assert folders.is_ours(tmp_path / name, FORMAT)
    assert sorted(os.listdir(tmp_path)) == ["deep", "plain"]  # no scraps
    assert os.listdir(tmp_path / "deep") == ["out"]


def test_everything_is_on_the_disk_before_the_folder_is_in_its_place(tmp_path: Path, synced: list[tuple[str, bool]]) -> None:
    folders.write(tmp_path / "out", FILES, FACTS)
    names = [name for name, there in synced if not there]
    assert {"a.txt", "b.bin", "c", MANIFEST, "in", "deep"} <= set(names)
    assert synced[-2:] == [("out", True), (tmp_path.name, False)]


@pytest.mark.parametrize("place", ["beside", "inside"])
def test_an_earlier_folder_is_replaced_whole(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    folders.write(out, FILES, FACTS)
    (out / "a.txt").write_text("damaged")
    before = out.stat().st_ino
    if place == "inside":
        monkeypatch.chdir(out)
    folders.write("." if place == "inside" else out, {"new": "n"}, FACTS)
    assert set(content(out)) == {"new", MANIFEST}
    assert os.listdir(tmp_path) == ["out"]
    assert sorted(os.listdir(out)) == [MANIFEST, "new"]
    assert (out.stat().st_ino == before) == (place == "inside")


OTHERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file of the same name": (lambda out: out.write_text("mine"), "it is a file"),
    "a folder of somebody's": (lambda out: (out / "index.html").write_text("mine"), "it holds index.html"),
    "a web app's manifest": (lambda out: (out / MANIFEST).write_text('{"name": "app", "files": {}}'), "it holds manifest.json"),
    "another format of ours": (lambda out: folders.write(out, FILES, {"format": "lutetia.model/1"}), "no Lutetia manifest"),
    "one more file": (
        lambda out: (folders.write(out, FILES, FACTS), (out / "in" / "thesis.txt").write_text("mine")),
        "it holds in/thesis.txt, which its manifest does not list",
    ),
    "a hidden file": (lambda out: (folders.write(out, FILES, FACTS), (out / ".git").write_text("mine")), "it holds .git"),
    "a link": (lambda out: (folders.write(out, FILES, FACTS), (out / "link").symlink_to("/")), "it holds link"),
    "a manifest that lists too much": (
        lambda out: (
            (out / "../thesis.txt").write_text("mine"),
            (out / MANIFEST).write_text(json.dumps({**FACTS, "files": {"../thesis.txt": "0"}})),
        ),
        "it holds manifest.json",
    ),
    "a manifest that lists what is behind a link": (
        lambda out: behind_a_link(out),
        "it holds in/, which its manifest does not list",
    ),
}


def behind_a_link(out: Path) -> None:
    """A folder whose manifest takes somebody's files for its own, through a link that it lists as well."""
    mine = out.parent / "mine" / "deep"
    mine.mkdir(parents=True)
    (mine / "thesis.txt").write_text("mine")
    (out / "in").symlink_to("../mine")
    (out / MANIFEST).write_text(json.dumps({**FACTS, "files": dict.fromkeys(("a", "in", "in/deep/thesis.txt"), "0")}))
    (out / "a").write_text("ours")


@pytest.mark.parametrize("other", OTHERS)
def test_what_others_made_is_refused_and_left_alone(other: str, tmp_path: Path) -> None:
    make, why = OTHERS[other]
    out = tmp_path / "out"
    if "same name" not in other:
        out.mkdir()
    make(out)
    before = content(tmp_path)
    with pytest.raises(ArgumentError, match=rf"out already exists and was not written by Lutetia \(.*{why}"):
        folders.write(out, {"new": "n"}, FACTS)
    assert content(tmp_path) == before
    assert not folders.is_ours(out, FORMAT)


def test_only_listed_files_are_discarded(tmp_path: Path) -> None:
    folders.write(tmp_path / "one", FILES, FACTS)
    folders.discard(tmp_path / "one", FORMAT)
    assert not (tmp_path / "one").exists()
    folders.write(tmp_path / "two", FILES, FACTS)
    (tmp_path / "two" / "in" / "mine").write_text("mine")
    folders.discard(tmp_path / "two", FORMAT)
    assert content(tmp_path) == {"two/in/mine": b"mine"}


def test_nothing_behind_a_link_is_discarded_or_overwritten(tmp_path: Path) -> None:
    for number in range(8):  # names are removed in any order
        out = tmp_path / str(number) / "out"
        out.mkdir(parents=True)
        behind_a_link(out)
        with pytest.raises(ArgumentError, match=r"thesis\.txt is not from an earlier save"):
            folders.write_into(out, {"in/deep/thesis.txt": "other"}, FACTS)
        folders.discard(out, FORMAT)
        assert not (out / "a").exists()
        assert (tmp_path / str(number) / "mine" / "deep" / "thesis.txt").read_text() == "mine"


def test_files_of_others_stay_beside_ours(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    folders.write_into(tmp_path, FILES, FACTS)
    folders.write_into(tmp_path, {"a.txt": "2"}, FACTS)  # those of the first time are gone, and the README is not
    assert {name: data for name, data in content(tmp_path).items() if name != MANIFEST} == {"README.md": b"mine", "a.txt": b"2"}
    assert not (tmp_path / "in").exists()
    before = content(tmp_path)
    with pytest.raises(ArgumentError, match=r"README.md is not from an earlier save"):
        folders.write_into(tmp_path, {"README.md": "ours"}, FACTS)
    with pytest.raises(ArgumentError, match=r"manifest.json is not from an earlier save"):
        folders.write_into(tmp_path, {"b": "ours"}, {"format": "other/1"})
    assert content(tmp_path) == before
    folders.write_into(tmp_path, {"README.md": "ours"}, FACTS, overwrite=True)
    assert (tmp_path / "README.md").read_text() == "ours"
    (tmp_path / "b").mkdir()
    with pytest.raises(ArgumentError, match="b is not from an earlier save"):
        folders.write_into(tmp_path, {"b": "ours"}, FACTS, overwrite=True)


@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("moves", range(9))
@pytest.mark.parametrize("place", ["beside", "inside", "into"])
def test_whatever_fails_the_old_folder_remains(
    place: str, moves: int, problem: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    folders.write(out, FILES, FACTS)
    before = content(tmp_path)
    rename, done = os.rename, 0

    def fail_once(source: Path, target: Path) -> None:
        nonlocal done
        done += 1
        if done == moves + 1:
            raise problem("no more")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_once)
    write = folders.write_into if place == "into" else folders.write
    if place == "inside":
        monkeypatch.chdir(out)
    new = {"a.txt": "new", "in/e" if place == "into" else "in": "new", "z": "new"}
    try:
        write(out, new, FACTS)
    except problem:
        assert content(tmp_path) == before
        assert folders.verify(out, FORMAT) == sorted(FILES)
    else:
        assert done <= moves
        assert folders.verify(out, FORMAT) == sorted(new)
        assert set(content(out)) == {*new, MANIFEST}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("alone", [True, False])
def test_a_killed_process_leaves_one_or_the_other(alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at any call that changes names: a folder of ours alone is always whole, and nothing is lost of another."""
    if alone and not hasattr(folders._LIBRARY, "renameat2"):
        pytest.skip("this system cannot exchange folders")
    changes = {name: getattr(os, name) for name in ("rename", "unlink", "rmdir", "mkdir")}
    ends = set()
    for last in range(40):
        out = tmp_path / str(last) / "out"
        folders.write(out, FILES, FACTS)
        if not alone:
            (out / "mine").write_text("mine")
        calls = iter(range(last))

        def change(name: str, *arguments: Any, calls: Any = calls, **options: Any) -> None:
            next(calls)  # StopIteration, from here on: nothing changes any more, as after a kill
            changes[name](*arguments, **options)

        for name in changes:
            monkeypatch.setattr(os, name, partial(change, name))
        with suppress(StopIteration):
            folders.write_into(out, {"a.txt": "new"}, FACTS)
        monkeypatch.undo()
        if alone or (out / MANIFEST).exists():
            ends.add(tuple(folders.verify(out, FORMAT)))
        else:
            with pytest.raises(DataError, match=r"what was there before in \.out\."):
                folders.verify(out, FORMAT)
            ends.add(())
        kept = set(content(out).values()) | {data for path in out.parent.iterdir() for data in content(path).values()}
        assert ends & {("a.txt",)} or {b"c", "é".encode()} <= kept
        assert alone or (out / "mine").exists()
    assert ends == {tuple(sorted(FILES)), ("a.txt",), *([] if alone else [()])}


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        path.write_bytes(b"ha")
        raise OSError(28, "No space left on device")

    for write in (folders.write, folders.write_into):
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "deep" / "out", {"a": "1", "b": full}, FACTS)
        assert os.listdir(tmp_path) == []


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "changed": (lambda out: (out / "a.txt").write_text("ab"), "a.txt does not have the checksum"),
    "longer": (lambda out: (out / "a.txt").write_text("abc"), "a.txt has 3 bytes, expected 2"),
    "gone": (lambda out: (out / "in/deep/c").unlink(), "c is missing: the circuit is not complete"),
    "no manifest": (lambda out: (out / MANIFEST).unlink(), "manifest.json, which holds the checksums, is missing"),
    "nested": (lambda out: (out / MANIFEST).write_text("[" * 200_000), "manifest.json cannot be read"),
    "not JSON": (lambda out: (out / MANIFEST).write_bytes(b"\xff\0"), "manifest.json cannot be read"),
    "a list": (lambda out: (out / MANIFEST).write_text("[1]"), "manifest.json cannot be read"),
    "files a list": (lambda out: (out / MANIFEST).write_text('{"format": "x", "files": [1]}'), "manifest.json cannot be read"),
    "no sums": (lambda out: edit(out, {"a.txt": {"bytes": 2}}), "does not list a.txt in the format 'lutetia.test/1'"),
    "climbing": (lambda out: edit(out, {"a.txt": "0", "in/../../x": "0"}), "does not list a.txt in the format"),
    "absolute": (lambda out: edit(out, {"a.txt": "0", "/etc/passwd": "0"}), "does not list a.txt in the format"),
    "other format": (lambda out: edit(out, {"a.txt": "0"}, format="lutetia.test/2"), "does not list a.txt in the format"),
    "not listed": (lambda out: edit(out, {}), "does not list a.txt"),
    "a pipe": (lambda out: ((out / MANIFEST).unlink(), os.mkfifo(out / MANIFEST)), "it is not a file"),
    "endless": (lambda out: ((out / MANIFEST).unlink(), (out / MANIFEST).symlink_to("/dev/zero")), "it is not a file"),
    "huge": (lambda out: os.truncate(out / MANIFEST, folders.LARGEST_MANIFEST + 1), "too large for a manifest"),
}


def edit(out: Path, files: dict[str, Any], **facts: str) -> None:
    (out / MANIFEST).write_text(json.dumps({**FACTS, **facts, "files": files}))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(damage: str, tmp_path: Path) -> None:
    hurt, said = DAMAGES[damage]
    folders.write(tmp_path / "out", FILES, FACTS, sizes=True)
    hurt(tmp_path / "out")
    with pytest.raises(DataError, match=said):
        folders.verify(tmp_path / "out", FORMAT, needed=("a.txt",), what="circuit")


@pytest.mark.parametrize("name", ["", ".", "..", "a//b", "a/../b", "/a", "a\\b", "a\0", MANIFEST])
def test_names_that_leave_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected plain names of files"):
        folders.write(tmp_path / "out", {name: "x"}, FACTS)
    assert os.listdir(tmp_path) == []


def test_files_that_come_later_may_be_replaced_and_no_others(tmp_path: Path) -> None:
    out, facts = tmp_path / "out", {**FACTS, "later": ["in/log", "run", "../x", 7, "never"]}
    (tmp_path / "x").write_text("mine")
    folders.write(out, {"in/a": "1"}, facts)
    (out / "in" / "log").write_text("left by a program")
    (out / "run").write_text("left by a program")
    folders.write(out, {"in/a": "2"}, facts)
    assert content(out).keys() == {"in/a", MANIFEST}
    (out / "in" / "notes").write_text("mine")
    (out / "run").write_text("left by a program")
    with pytest.raises(ArgumentError, match="it holds in/notes"):
        folders.write(out, {"in/a": "3"}, facts)
    assert (out / "run").exists()
    assert (tmp_path / "x").read_text() == "mine"
    (out / MANIFEST).write_text(json.dumps({**FACTS, "later": "run", "files": {"in/a": "0", "in/notes": "0"}}))
    with pytest.raises(ArgumentError, match="it holds run"):
        folders.write(out, {"in/a": "4"}, facts)
