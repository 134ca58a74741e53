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
checkpoints/damaged-..      checkpoints that could not be read, set aside: nothing here deletes them
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lutetia._shared import folders
from lutetia.errors import DataError
from lutetia.files import read_json, read_text, remove
from lutetia.models import MANIFEST_FORMAT, METADATA_FILE, verify

STATE = "state.json"
NAME = re.compile(r"step-(\d{6,})")
LEFT_OVER = re.compile(r"\.(step-\d{6,}|best|last)\.[0-9a-f]+\.(part|old)")  # by a process that was killed


@dataclass
class Content:
    """What a checkpoint holds: tensors by file and name, and texts by file."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Any]:
        """state.json."""
        try:
            state = json.loads(self.texts[STATE])
        except (KeyError, ValueError, RecursionError) as error:
            raise DataError(f"state.json of the checkpoint cannot be read: {error or type(error).__name__}") from error
        if not isinstance(state, dict):
            raise DataError(f"state.json of the checkpoint holds a {type(state).__name__}, expected an object")
        return state


def name_of(step: int) -> str:
    return f"step-{step:06d}"


def step_of(path: Path) -> int:
    """The step of a checkpoint, from its name."""
    return int(path.name.removeprefix("step-"))


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in order, damaged ones too."""
    if not folder.is_dir():
        return []
    names = (NAME.fullmatch(path.name) for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(step for name in names if name and name_of(step := int(name[1])) == name[0])  # not with other digits or zeros


def write(folder: Path, step: int, content: Content) -> Path:
    """Write a checkpoint into `folder`; one of the same step is replaced. A killed process leaves either nothing or all of it."""
    target = folder / name_of(step)
    files: dict[str, folders.Content] = {name: _writer(tensors) for name, tensors in content.tensors.items()}
    if target.exists() and not folders.is_ours(target, MANIFEST_FORMAT):
        set_aside(target)
    try:
        folders.write(target, files | content.texts, {"format": MANIFEST_FORMAT}, sizes=True)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{target} cannot be written: {getattr(error, 'strerror', None) or error}") from error
    return target


def _writer(tensors: Mapping[str, Tensor]) -> Callable[[Path], None]:
    return lambda path: save_file(_separate(tensors), path)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory with each other, as safetensors requires."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if tensor.numel() and (place in seen or tensor.storage_offset()) else tensor
        seen.add(place)
    return apart


def set_aside(path: Path) -> Path:
    """Rename a checkpoint that cannot be used, so that it is neither mistaken for a good one nor deleted."""
    aside = path.with_name(f"damaged-{path.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"damaged-{path.name}-{number}")
    try:
        os.rename(path, aside)
    except OSError as error:
        raise DataError(f"{path} is damaged and cannot be set aside as {aside.name}: {error.strerror or error}") from error
    return aside


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
            content.texts[name] = read_text(path / name, "a text of the checkpoint")
    return content


def read_state(path: Path) -> dict[str, Any]:
    """state.json of a checkpoint; empty for a model that no run has written."""
    file = path / STATE
    state = read_json(file, "the state of a run") if os.path.lexists(file) else {}
    return state if isinstance(state, dict) else {}


def classes_in(folder: Path) -> list[str]:
    """The classes of the newest checkpoint in a folder that names them, in their order."""
    for step in reversed(steps_in(folder)):
        file = folder / name_of(step) / METADATA_FILE
        with suppress(DataError):
            known = read_json(file, "the metadata of a model") if file.is_file() else {}
            if isinstance(known, dict) and isinstance(classes := known.get("classes"), list):
                return [str(name) for name in classes]
    return []


def newest(folder: Path, say: Callable[[str], None]) -> tuple[Path, Content] | None:
    """The newest checkpoint that is whole. Damaged ones are set aside, and reported through `say`."""
    for step in reversed(steps_in(folder)):
        path = folder / name_of(step)
        try:
            return path, read(path)
        except DataError as error:
            say(f"{error}; set aside as {set_aside(path).name}, going back to the checkpoint before it")
    return None


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Keep the last few checkpoints and the best one, and link to them; delete the rest, and leftovers of killed processes."""
    steps = steps_in(folder)
    for step in steps[:-keep]:
        path = folder / name_of(step)
        if step == best:
            continue
        if folders.is_ours(path, MANIFEST_FORMAT):
            folders.discard(path, MANIFEST_FORMAT)
        else:  # someone else's files are there
            set_aside(path)
    for path in folder.iterdir():
        if LEFT_OVER.fullmatch(path.name):
            remove(path)
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
