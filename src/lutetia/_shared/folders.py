"""Folders that appear whole or not at all, with a manifest that lists the SHA-256 of every file.

A folder is ours if its manifest has the format being written and lists every file in the folder.
Only such a folder is ever replaced, and only files that a manifest of ours lists are ever removed.

    folders.write(out, {"report.json": text, "rtl/top.v": text}, {"format": "lutetia.build/1"})
    folders.verify(out, "lutetia.build/1")  # the names of its files, or a DataError that says what is damaged
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from lutetia.errors import ArgumentError, DataError, fail
from lutetia.files import open_file, read_json, remove, remove_empty

MANIFEST = "manifest.json"
LARGEST_MANIFEST = 64 << 20  # bytes; more than any folder of ours needs
_LIBRARY: Any = ctypes.CDLL(None) if os.name == "posix" else None  # the system's, of which Linux has renameat2
Content: TypeAlias = bytes | str | Callable[[Path], object]  # a function writes the file at that path itself


# ---- write -----------------------------------------------------------------------------------------------------------


def write(folder: str | os.PathLike[str], files: Mapping[str, Content], facts: Mapping[str, Any], *, sizes: bool = False) -> None:
    """Write a whole folder: a new one, or in place of an empty one or an earlier one of ours. OSError where the disk refuses.

    `files` holds contents by name, "a/b" for a file in a folder. `facts` is what the manifest says besides the list of files:
    its "format" above all, and with "later" the names of files that programs in the folder may leave there, which may be replaced
    too. With `sizes` the manifest lists the bytes of each file too.
    """
    check_replaceable(folder, facts["format"])
    target = Path(os.path.realpath(folder))
    _write(target, files, facts, sizes, within=target.exists() and _stays(target))


def write_into(
    folder: str | os.PathLike[str],
    files: Mapping[str, Content],
    facts: Mapping[str, Any],
    *,
    sizes: bool = False,
    overwrite: bool = False,
) -> None:
    """Write files and their manifest into a folder that may hold other people's files, which stay. Otherwise as `write`.

    ArgumentError where a file would be overwritten that no manifest of this format lists, unless `overwrite` allows it.
    """
    target = Path(os.path.realpath(folder))
    old = _listed(target, facts["format"])
    for name in (*files, MANIFEST):
        there = target / name
        if name not in old and os.path.lexists(there) and (there.is_dir() or not overwrite):
            raise ArgumentError(f"{there} is not from an earlier save: choose another folder, or pass overwrite=True")
    # A folder of ours alone is replaced at once: moving file after file, a process that is killed leaves no manifest.
    _write(target, files, facts, sizes, within=target.exists() and (_stays(target) or not is_ours(target, facts["format"])))


def check_replaceable(folder: str | os.PathLike[str], format: str) -> None:
    """Refuse a folder that `write` would not replace: ArgumentError that says what it holds."""
    why = _foreign(Path(folder), format)
    if why:
        raise ArgumentError(
            f"{os.fspath(folder)} already exists and was not written by Lutetia ({why}): choose another, or remove it"
        )


def is_ours(folder: str | os.PathLike[str], format: str) -> bool:
    """Whether a folder holds what we wrote in this format, damaged or not, and nothing else."""
    path = Path(folder)
    return path.is_dir() and any(path.iterdir()) and not _foreign(path, format)


def discard(folder: str | os.PathLike[str], format: str) -> None:
    """Remove the files of a folder that its manifest lists, and the folder itself unless it holds others.

    A folder that is all ours is renamed before its first file is removed, so that a killed process leaves nothing that looks
    whole.
    """
    path = Path(folder)
    listed = _listed(path, format)
    if is_ours(path, format):
        doomed = path.with_name(f".{path.name}.{secrets.token_hex(4)}.old")
        os.rename(path, doomed)
        path = doomed
    _remove_files(path, listed)


def _foreign(folder: Path, format: str) -> str:
    """Why a folder may not be replaced; empty if it may."""
    if not os.path.lexists(folder):
        return ""
    if not folder.is_dir():
        return "it is a file"
    held = files_in(folder)
    listed = _listed(folder, format) if held else set()
    others = sorted(held - listed)
    if not others:
        return ""
    return f"it holds {others[0]}, which {'its manifest does not list' if listed else 'no Lutetia manifest lists'}"


def _listed(folder: Path, format: str) -> set[str]:
    """The files of a folder that its manifest lists, now or later, and the manifest; none without a manifest of this format.

    Nor any behind a link to a folder, which we never make: it may lead to somebody's files.
    """
    try:
        manifest = read_manifest(folder, format)
    except DataError:
        return set()
    later = manifest.get("later")
    names = {*manifest["files"], MANIFEST, *(filter(_is_plain, later) if isinstance(later, list) else ())}
    parents = {parent for name in names for parent in PurePosixPath(name).parents}
    links = {parent for parent in parents if parent.name and os.path.islink(folder / parent)}
    return {name for name in names if links.isdisjoint(PurePosixPath(name).parents)}


def files_of(folder: Path) -> set[str]:
    """The files of a folder that a manifest of Lutetia's lists, whatever it was written for, and the manifest."""
    try:
        format = read_json(folder / MANIFEST, "a manifest", LARGEST_MANIFEST)["format"]
    except (DataError, KeyError, TypeError, IndexError):
        return set()
    return _listed(folder, format) if str(format).startswith("lutetia.") else set()


def files_in(folder: Path) -> set[str]:
    """Every file below a folder, links too, by its name from there.

    That of a link to a folder ends in "/", as no name in a manifest does.
    """
    names = set()
    for path, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(path, name))]
        names |= {Path(path, name).relative_to(folder).as_posix() for name in files}
        names |= {Path(path, name).relative_to(folder).as_posix() + "/" for name in links}
    return names


def _stays(folder: Path) -> bool:
    """Whether a folder cannot be moved: it is the current folder or a mount point, or its parent is read-only."""
    with suppress(FileNotFoundError):  # of a working folder that is gone
        if Path.cwd().is_relative_to(folder):
            return True
    return os.path.ismount(folder) or not os.access(folder.parent, os.W_OK)


def _write(folder: Path, files: Mapping[str, Content], facts: Mapping[str, Any], sizes: bool, within: bool) -> None:
    """Write everything to a temporary folder, sync it, then move it into place; `within`: the folder itself stays."""
    for name in files:
        if name == MANIFEST or not _is_plain(name):
            fail("files", name, f"plain names of files other than {MANIFEST}")
    old = _listed(folder, facts["format"])
    missing = [each for each in folder.parents if not each.exists()]
    part = (folder if within else folder.parent) / f".{folder.name}.{secrets.token_hex(4)}.part"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        _fill(part, files, facts, sizes)
        if within:
            _move_in(part, folder, {*old, *files, MANIFEST})
        else:
            _swap(part, folder, old)
        _sync(folder)
        _sync(folder.parent)
    finally:
        remove(part)
        remove_empty(missing)  # where nothing was written


def _fill(part: Path, files: Mapping[str, Content], facts: Mapping[str, Any], sizes: bool) -> None:
    listed: dict[str, Any] = {}
    for name, content in sorted(files.items()):
        file = part / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            file.touch()
            mode = stat.S_IMODE(file.stat().st_mode)  # as the umask wants it; safetensors makes a file that only its owner reads
            content(file)
            file.chmod(mode)
        else:
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        _sync(file)
        listed[name] = {"bytes": file.stat().st_size, "sha256": sha256(file)} if sizes else sha256(file)
    (part / MANIFEST).write_text(json.dumps({**facts, "files": listed}, indent=2) + "\n", encoding="utf-8")
    _sync(part / MANIFEST)
    for each in (part, *(path for path in part.rglob("*") if path.is_dir())):
        _sync(each)


def _swap(part: Path, folder: Path, listed: Collection[str]) -> None:
    """Put a finished folder in place of an old one, of which only the listed files are removed."""
    old = part.with_suffix(".old")
    if folder.exists() and hasattr(_LIBRARY, "renameat2"):
        os.rename(part, old)
        if _exchange(old, folder):
            _remove_files(old, listed)
            return
        os.rename(old, part)
    try:
        if folder.exists():
            os.rename(folder, old)
        os.rename(part, folder)
    finally:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
    _remove_files(old, listed)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, where the disk can: a process that is killed leaves either."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(_LIBRARY.renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _move_in(part: Path, folder: Path, names: Collection[str]) -> None:
    """Replace old files by finished ones, the manifest first out and last in; if that fails, everything is restored."""
    aside = part.with_suffix(".old")
    ordered = sorted(names, key=lambda name: (name == MANIFEST, name))
    placed: list[str] = []
    try:
        for name in reversed(ordered):
            if os.path.lexists(folder / name) and not _is_folder(folder / name):
                _move(folder / name, aside / name)
        _remove_emptied(folder, names)
        for name in ordered:
            if os.path.lexists(part / name):
                placed.append(name)
                _move(part / name, folder / name)
    except BaseException:
        for name in placed:
            if not os.path.lexists(part / name):
                remove(folder / name)
        for name in files_in(aside):
            _move(aside / name, folder / name)
        _remove_files(aside, names)  # the folders alone: the files are back
        raise
    _remove_files(aside, names)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(source, target)


def _remove_files(folder: Path, names: Collection[str]) -> None:
    """Remove these files of a folder, the folders they leave empty, and the folder itself if nothing is left in it."""
    for name in names:
        with suppress(OSError):
            (folder / name).unlink()
    _remove_emptied(folder, names)
    remove_empty([folder])


def _remove_emptied(folder: Path, names: Collection[str]) -> None:
    """Remove the folders, below this one, that these files were in and that hold nothing now."""
    parents = {parent for name in names for parent in Path(name).parents if parent.name}
    remove_empty(folder / parent for parent in sorted(parents, reverse=True))


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk, where the system can do that."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    except OSError:
        if path.is_file():  # not every system syncs folders
            raise
    finally:
        os.close(handle)


# ---- read ------------------------------------------------------------------------------------------------------------


def verify(folder: str | os.PathLike[str], format: str, needed: Collection[str] = (), what: str = "folder") -> list[str]:
    """The names of a folder's files, if all of them, and those `needed`, match the manifest; otherwise DataError."""
    path = Path(folder)
    listed = read_manifest(path, format, needed)["files"]
    for name, known in listed.items():
        file = path / name
        if not os.path.isfile(file):  # of names that no disk takes, too
            raise DataError(f"{file} is missing: the {what} is not complete")
        size = file.stat().st_size
        if known.get("bytes", size) != size:
            raise DataError(f"{file} has {size} bytes, expected {known['bytes']}: it is damaged")
        if sha256(file) != known["sha256"]:
            raise DataError(f"{file} does not have the checksum in {MANIFEST}: it is damaged, or was changed by hand")
    return list(listed)


def read_manifest(folder: Path, format: str, needed: Collection[str] = ()) -> dict[str, Any]:
    """The manifest of a folder; its "files" holds for each name a "sha256" and, where it was kept, the "bytes"."""
    file = folder / MANIFEST
    if not os.path.lexists(file):
        aside = sorted(each.name for each in folder.glob(f".{folder.name}.*.old"))
        why = f"; a process that was killed left what was there before in {aside[0]}" if aside else ""
        raise DataError(f"{folder} is incomplete: {MANIFEST}, which holds the checksums, is missing{why}")
    if not file.is_file() or file.stat().st_size > LARGEST_MANIFEST:
        raise DataError(f"{file} cannot be read: it is not a file, or too large for a manifest")
    try:
        manifest: dict[str, Any] = read_json(file, "a manifest", LARGEST_MANIFEST)
        same = manifest["format"] == format
        files = {name: {"sha256": known} if isinstance(known, str) else dict(known) for name, known in manifest["files"].items()}
    except (DataError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} cannot be read: it is damaged, or not written by Lutetia") from error
    plain = all(_is_plain(name) and isinstance(known.get("sha256"), str) for name, known in files.items())
    if not same or not plain or not set(needed) <= set(files):
        wanted = " and ".join(needed) or "the files"
        raise DataError(f"{file} does not list {wanted} in the format {format!r}: it is damaged, or not written by Lutetia")
    return {**manifest, "files": files}


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with open_file(path, "a file") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_plain(name: object) -> bool:
    """Whether a name stays in its folder: parts joined by "/", none of them empty, ".", ".." or unprintable."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and not set(name) & {"\\", "\0"}
        and all(part not in ("", ".", "..") for part in name.split("/"))
    )
