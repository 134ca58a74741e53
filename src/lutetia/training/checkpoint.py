"""Checkpoints: folders that appear whole or not at all, with a checksum of every file, and never a pickle.

checkpoints/step-000120/
    config.toml             the config of the run; lutetia.models.load reads its [model]
    model.safetensors       the weights
    metadata.json           names of classes and features, and the range of the inputs
    optimizer.safetensors   what the optimisers remember, by the names of the parameters
    rng.safetensors         the states of the random generators
    state.json              the step, the place in the data, the best evaluation, and other plain values
    manifest.json           size and SHA-256 of each of the above
checkpoints/best, last      links to two of them
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lutetia.errors import DataError
from lutetia.models import verify
from lutetia.models.saving import MANIFEST, MANIFEST_FORMAT

NAME = re.compile(r"step-(\d{6,})")


@dataclass
class Content:
    """What a checkpoint holds: tensors by file and name, and texts by file."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Any]:
        """state.json."""
        return json.loads(self.texts["state.json"])


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in order, damaged ones too."""
    if not folder.is_dir():
        return []
    names = (NAME.fullmatch(path.name) for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(int(name[1]) for name in names if name)


def write(folder: Path, step: int, content: Content) -> Path:
    """Write a checkpoint into `folder`; one of the same step is replaced. A process that is killed leaves none, or all of it."""
    target = folder / name_of(step)
    part = folder / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        part.mkdir(parents=True)
        for name, tensors in content.tensors.items():
            save_file(_separate(tensors), part / name)
        for name, text in content.texts.items():
            (part / name).write_text(text, encoding="utf-8")
        names = sorted([*content.tensors, *content.texts])
        manifest = {"format": MANIFEST_FORMAT, "files": {name: _facts(part / name) for name in names}}
        (part / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for name in [*names, MANIFEST]:
            _sync(part / name)
        _sync(part)
        _put(part, target)
        _sync(folder)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{target} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _facts(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory with each other, as safetensors wants them."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if tensor.numel() and (place in seen or tensor.storage_offset()) else tensor
        seen.add(place)
    return apart


def _put(part: Path, target: Path) -> None:
    """Move a finished folder into its place."""
    if target.exists():  # damaged, or written before by a run that went on from further back
        old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
        os.rename(target, old)
        os.rename(part, target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(part, target)


def _sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: Path) -> Content:
    """Read a checkpoint, whose checksums are checked first; tensors come to the CPU."""
    content = Content()
    for name in verify(path):
        if name.endswith(".safetensors"):
            try:
                content.tensors[name] = load_file(path / name)
            except SafetensorError as error:
                raise DataError(f"{path / name} is not a safetensors file: {error}") from error
        else:
            content.texts[name] = (path / name).read_text(encoding="utf-8")
    return content


def newest(folder: Path, say: Callable[[str], None]) -> tuple[Path, Content] | None:
    """The newest checkpoint that is whole; what is said of damaged ones goes to `say`."""
    for step in reversed(steps_in(folder)):
        path = folder / name_of(step)
        try:
            return path, read(path)
        except DataError as error:
            say(f"{error}; going back to the checkpoint before it")
    return None


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Keep the last few checkpoints and the best one, and link to them; drop the rest, and what killed processes left."""
    steps = steps_in(folder)
    for step in steps[:-keep]:
        if step != best:
            shutil.rmtree(folder / name_of(step), ignore_errors=True)
    for path in folder.glob(".*.part"):
        path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
    if steps:
        _link(folder / "last", name_of(steps[-1]))
    if best is not None and (folder / name_of(best)).is_dir():
        _link(folder / "best", name_of(best))


def _link(link: Path, target: str) -> None:
    """Point a relative link at a checkpoint, at once; where the system allows no links there is none."""
    part = link.with_name(f".{link.name}.{secrets.token_hex(4)}.part")
    with suppress(OSError, NotImplementedError):
        os.symlink(target, part, target_is_directory=True)
        os.replace(part, link)
