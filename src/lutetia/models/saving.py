"""A model as a folder: `config.toml` (what it is), `model.safetensors` (its numbers), `manifest.json` (checksums of all files),
and, if something is known about its data, `metadata.json` (names of classes and features, ranges of the inputs).

A new folder appears whole or not at all. In a folder that exists, only files of an earlier model are replaced, the manifest last:
if that is interrupted, the checksums do not match, and the folder is refused. Nothing is ever unpickled.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from lutetia import toml
from lutetia._shared import folders
from lutetia._shared.dtypes import FLOATS
from lutetia._shared.folders import MANIFEST
from lutetia._version import __version__
from lutetia.errors import ArgumentError, DataError, fail
from lutetia.files import path_of
from lutetia.lut import checked_anchors
from lutetia.models.building import KINDS, Model
from lutetia.models.metadata import METADATA, check_metadata, dump_metadata, read_metadata
from lutetia.models.patches import Patches
from lutetia.models.sizes import ModelSize
from lutetia.models.tabular import Tabular
from lutetia.models.votes import Votes
from lutetia.nn import LUT, hold_int8, without_draws

# What building a model may cost before its tensors are compared one by one: so much always, and beyond it so many times what
# the file holds. Windows are worked out while a layer is built, and are in no file.
ALWAYS, TIMES = ModelSize(1000, 1 << 20, 1 << 24), ModelSize(2, 2, 1000)
FORMAT, MANIFEST_FORMAT = "lutetia.model/1", "lutetia.manifest/1"
CONFIG, TENSORS = "config.toml", "model.safetensors"

Content: TypeAlias = bytes | Mapping[str, Tensor]
M = TypeVar("M", bound=Model[Any])


# ---- save ------------------------------------------------------------------------------------------------------------


def save(
    model: Model[Any],
    path: str | os.PathLike[str],
    *,
    config: Mapping[str, Any] | None = None,
    files: Mapping[str, Content] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model to a folder that `load` reads.

    `config` holds more tables for `config.toml`, beside those of the model, and `files` more files by name, as bytes or as
    tensors by name, which are written as safetensors: the manifest lists them too. A file of the same name that no earlier save
    wrote is refused, unless `overwrite` allows it; all other files in the folder stay.
    """
    if not isinstance(model, Model):
        fail("model", model, "a model of lutetia.models")
    folder = path_of(path)
    if not isinstance(overwrite, bool):
        fail("overwrite", overwrite, "True or False")
    tables = {"format": FORMAT, "lutetia": __version__, "kind": model.kind, **_more(config), "model": model.config.to_dict()}
    content: dict[str, Content] = {CONFIG: toml.dumps(tables).encode(), TENSORS: state_of(model)}
    metadata = check_metadata(model.metadata, model.config)
    if metadata or (folder / METADATA).exists():  # not to leave that of another model in its place
        content[METADATA] = dump_metadata(metadata).encode()
    for name, extra in _mapping("files", files).items():
        if name in (CONFIG, TENSORS, METADATA, MANIFEST) or not _is_plain(name):
            fail("files", name, f"plain names of files other than {CONFIG}, {TENSORS}, {METADATA} and {MANIFEST}")
        if not isinstance(extra, bytes) and not all(isinstance(each, Tensor) for each in _mapping(name, extra).values()):
            fail(f"the file {name}", extra, "bytes, or tensors by name")
        content[name] = extra
    written = {name: value if isinstance(value, bytes) else _writer(value) for name, value in content.items()}
    try:
        folders.write_into(folder, written, {"format": MANIFEST_FORMAT}, sizes=True, overwrite=overwrite)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the model cannot be written to {folder}: {getattr(error, 'strerror', None) or error}") from error


def _more(config: Mapping[str, Any] | None) -> dict[str, Any]:
    tables = _mapping("config", config)
    taken = {"format", "lutetia", "kind", "model"} & set(tables)
    if taken:
        fail("config", sorted(taken), "other names: these are the model's own")
    return tables


def _mapping(name: str, value: object) -> dict[str, Any]:
    """A mapping by name; empty for None."""
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        fail(name, value, "values by name, as in a dict")
    return dict(value or {})


def state_of(model: Model[Any]) -> dict[str, Tensor]:
    """The tensors of a model by name, as `model.safetensors` holds them: contiguous, on the CPU, none twice."""
    state, seen = {}, set()
    for name, tensor in model.state_dict().items():
        own = tensor.detach().cpu().contiguous()
        if own.data_ptr() in seen:  # safetensors takes no two names for the same memory
            own = own.clone()
        seen.add(own.data_ptr())
        state[name] = own
    return state


def _writer(tensors: Mapping[str, Tensor]) -> Callable[[Path], None]:
    return lambda path: save_file(dict(tensors), path, metadata={"format": "pt"})


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"} and name.isprintable()


# ---- load ------------------------------------------------------------------------------------------------------------


def load(path: str | os.PathLike[str], *, device: torch.device | str | None = None, expected: type[M] = Model) -> M:  # type: ignore[assignment]
    """The model that a folder holds, of whichever kind it is, in eval mode, once all its files agree with their checksums.

    The folder of a training run stands for its best checkpoint, or where it has none for its last. `expected` is the class that
    the model must have.
    """
    folder = in_run(path)
    listed = verify(folder)
    tables = read_config(folder)
    kind = KINDS[tables["kind"]]
    if not issubclass(kind, expected):
        raise DataError(f"{folder} holds a {kind.__name__}, expected a {expected.__name__}")
    try:
        config = kind.config_class.from_dict(tables.get("model", {}))
        with safe_open(folder / TENSORS, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no iteration here)
            _check_size(folder, kind.least_size(config), shapes)
            with without_draws():
                model = kind(config)
            hold_int8(model, shapes)
            _check_shapes(folder, model.state_dict(), shapes)
            # Cloned: what safetensors gives is mapped from the file, which may go away.
            state = {name: file.get_tensor(name).clone() for name in shapes}
        _check_types(folder, model.state_dict(), state)
    except (ArgumentError, SafetensorError, OSError) as error:
        raise DataError(f"{folder} cannot be read: {error}") from error
    model.load_state_dict(state, assign=True)  # assigned: numbers keep the type they had
    _check_tables(folder, model)
    if METADATA in listed:
        model.metadata = read_metadata(folder / METADATA, model.config)
    return model.to(device).eval()


def in_run(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that the folder of a run stands for; another folder as it is."""
    folder = path_of(path)
    if (folder / MANIFEST).exists():
        return folder
    return next((each for name in ("best", "last") if (each := folder / "checkpoints" / name).is_dir()), folder)


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Check that a folder holds a model whose files match the manifest; return their names."""
    folder = path_of(path)
    if not folder.is_dir():
        raise DataError(f"{folder} {'is a file' if folder.exists() else 'does not exist'}, expected the folder of a saved model")
    if not (folder / CONFIG).is_file():
        other = (folder / "config.json").is_file()
        use = "which lutetia explain --hf explains and, if it writes text, lutetia generate --hf runs"
        hint = f"; its config.json is that of a model of transformers, {use}" if other else ""
        raise DataError(f"{folder} is not the folder of a saved model: it holds no {CONFIG}{hint}")
    return folders.verify(folder, MANIFEST_FORMAT, needed=(CONFIG, TENSORS), what="model")


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `config.toml` in the folder of a model says, with a `kind` that is known here."""
    file = path_of(path) / CONFIG
    tables = toml.read(file, "the config of a saved model")
    if tables.get("format") != FORMAT:
        raise DataError(f"{file} has the format {tables.get('format')!r}, expected {FORMAT!r}: it is not a Lutetia model")
    if tables.get("kind") not in tuple(KINDS):  # which may be a list, and no key
        raise DataError(f"{file} has the kind {tables.get('kind')!r}, expected one of {', '.join(KINDS)}")
    return tables


def _check_size(folder: Path, least: ModelSize, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file that cannot hold the model of its config, before spending time and memory on building it."""
    numbers = sum(map(math.prod, shapes.values()))
    held = ModelSize(len(shapes), numbers, numbers)
    for what, wanted, has, always, times in zip(ModelSize._fields, least, held, ALWAYS, TIMES, strict=True):
        if wanted > max(always, times * has):
            of = "numbers in windows" if what == "windows" else what
            raise DataError(f"{folder / CONFIG} describes a model of {wanted:,} {of} or more, but {TENSORS} holds {has:,}")


def _check_shapes(folder: Path, wanted: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the tensors of a file are those of the model."""
    file = folder / TENSORS
    for name in wanted.keys() | shapes.keys():
        if name not in shapes or name not in wanted:
            raise DataError(f"{file} has {'no' if name not in shapes else 'a'} tensor {name}, unlike the model of {CONFIG}")
        if wanted[name].shape != shapes[name]:
            sizes = f"{list(shapes[name])}, expected {list(wanted[name].shape)}"
            raise DataError(f"{file} has the tensor {name} of shape {sizes} by {CONFIG}")


def _check_types(folder: Path, wanted: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Check that weights are floats, of any width that layers take, and that other tensors have their own type."""
    for name, tensor in state.items():
        allowed = FLOATS if wanted[name].is_floating_point() else (wanted[name].dtype,)
        if tensor.dtype not in allowed:
            types = " or ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            raise DataError(f"{folder / TENSORS} has the tensor {name} of type {tensor.dtype}, expected {types}")


def _check_tables(folder: Path, model: Model[Any]) -> None:
    """Check what layers of tables would only notice when they run: where their anchors and synapses point."""
    for name, module in model.named_modules():
        try:
            if isinstance(module, LUT):
                checked_anchors(module.anchors, module.n_inputs, module.thresholds)
                module.synapses  # noqa: B018  # checked as it is put together
            elif isinstance(module, Votes):
                module.check_classes()
            elif isinstance(module, Patches):
                module.arrays()
            elif isinstance(module, Tabular):
                module.check_chances()
        except ArgumentError as error:
            raise DataError(f"{folder / TENSORS}: {name}: {error}") from error
